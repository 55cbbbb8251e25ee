"""The built package: what the wheel holds, and what importing it brings in."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from checkout import REPOSITORY, installed_path, project_files
from waiting import PATIENCE

# What the library itself needs to open a store, on first use only, and what only some uses need.
OPENING = ["gymnasium", "numpy", "polars", "pyarrow", "episodelake.readers"]
LATER = [*OPENING, "deltalake", "duckdb", "pyarrow.compute", "episodelake.writers"]
LATER += ["episodelake.readers.loading.loader", "episodelake.readers.measures.measuring"]
HEAVY = [
    "altair",
    "jax",
    "matplotlib",
    "minari",
    "tensordict",
    "torch",
    "marimo",
    "PIL",
    "av",
    "pandas",
    "IPython",
]
HEAVY += ["prompt_toolkit", "rich", "vl_convert"]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel, built from a copy of the project's files so that no leftover can slip in."""
    source = tmp_path_factory.mktemp("source")
    for name in project_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, source / name, follow_symlinks=False)
    output = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(output)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    built = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = output.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_wheel_holds_every_library_file_and_no_other(wheel_names: set[str]) -> None:
    """The wheel's code is the project's library code, file for file, with the typing markers."""
    wanted = {
        path
        for path in map(installed_path, project_files())
        if path and path.endswith((".py", ".pyi", ".css", ".js", "py.typed"))
    }
    assert "episodelake/py.typed" in wanted
    assert {name for name in wheel_names if ".dist-info/" not in name} == wanted


def test_wheel_installs_one_top_level_name(wheel_names: set[str]) -> None:
    """Nothing but the library arrives at the top level: no package called `store`."""
    names = {"episodelake"}
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == names
    (metadata,) = tops - names
    assert f"{metadata}/licenses/LICENSE" in wheel_names


def test_package_list_names_every_package() -> None:
    """The list in pyproject.toml is sorted and is the list of library folders that hold modules."""
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"][
        "packages"
    ]
    modules = [path for path in map(installed_path, project_files()) if path and path.endswith(".py")]
    folders = {str(Path(path).parent).replace("/", ".") for path in modules}
    assert listed == sorted(folders)
    assert {folder for folder in folders if f"{folder.replace('.', '/')}/__init__.py" not in modules} == set()


def test_links_lead_to_the_folders_beside() -> None:
    """The three links that type checkers and editors follow are relative and lead to the real folders."""
    links = {
        path.name: os.readlink(path) for path in (REPOSITORY / "episodelake").iterdir() if path.is_symlink()
    }
    assert links == {"readers": "../readers", "store": "../store", "writers": "../writers"}


def test_import_brings_in_nothing_heavy(tmp_path: Path) -> None:
    """Importing the library leaves frameworks and plotting alone, even where they can be imported."""
    for name in HEAVY:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    program = "import sys, episodelake; print(sorted(sys.modules.keys() & sys.argv[1:]))"
    command = [sys.executable, "-c", program, *HEAVY]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_import_leaves_dependencies_for_later() -> None:
    """`import episodelake` loads none of its dependencies; the first use loads those that opening needs."""
    program = "import sys, episodelake; print(sorted(sys.modules.keys() & sys.argv[1:])); episodelake.open"
    program += "; print(sorted(sys.modules.keys() & sys.argv[1:]))"
    run = subprocess.run([sys.executable, "-c", program, *LATER], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["[]", str(sorted(OPENING))], run.stderr


@pytest.mark.parametrize("order", ["polars, episodelake", "episodelake, polars"])
def test_polars_has_the_namespace_in_either_order(order: str) -> None:
    """The namespace is there after both imports, loaded with its first use."""
    program = f"""
import sys, {order}
print("episodelake.readers" in sys.modules)
frame = polars.DataFrame({{"x": [1.0, 2.0]}})
print(frame.select(polars.col("x").rl.discounted(0.5)).to_series().to_list())
print(type(frame.rl).__name__, type(frame.lazy().rl).__name__)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["False", "[2.0, 2.0]", "EpisodeFrame EpisodeLazyFrame"], run.stderr
