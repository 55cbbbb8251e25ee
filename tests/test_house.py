"""The rules of the house: which way imports run, what is public, and what no committed file may hold."""

import __future__

import ast
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import episodelake
from checkout import REPOSITORY, library_modules, project_files

# What each part of the library may import. "face" is everything in episodelake/ itself.
MAY_IMPORT = {
    "store": {"store"},
    "writers": {"store", "writers"},
    "readers": {"store", "readers"},
    "face": {"store", "writers", "readers", "face"},
}

# Absolute paths of a machine and the marks of a package index. They are put together here, so that this file,
# which is searched too, does not hold them.
MACHINE_FOLDERS = "|".join(["work", "root", "Users", "home"])
NOT_COMMITTED = {
    "a path of a machine": re.compile(rf"(?<![\w.$}}/-])/(?:{MACHINE_FOLDERS})/".encode()),
    "a temporary environment": re.compile(b"/tmp/" + b"venv"),
    "the address of a package index": re.compile(
        b"|".join(
            [
                b"/sim" + b"ple/",
                b"index" + b"-url",
                b"python" + b"hosted",
                b"npm" + rb"js\.",
                b"pypi" + rb"\.",
            ]
        )
    ),
}


def part_of(module: str) -> str:
    """The part of the library that a dotted name belongs to."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 and pieces[1] in MAY_IMPORT else "face"


def imported_modules(module: str, is_package: bool, tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Line, dotted name and relativeness of every import; `from . import name` gives the name's own path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, False
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or "", False
        elif isinstance(node, ast.ImportFrom):
            pieces = module.split(".")
            base = pieces[: len(pieces) - node.level + is_package]
            for alias in node.names:
                yield node.lineno, ".".join([*base, *filter(None, [node.module]), alias.name]), True


def wrong_imports(module: str, is_package: bool, source: str) -> list[str]:
    """What is wrong with the imports of one library module, a sentence for each."""
    own_top_levels = {"episodelake", *MAY_IMPORT}
    faults = []
    for line, target, relative in imported_modules(module, is_package, ast.parse(source)):
        if not relative:
            if target.split(".")[0] in own_top_levels:
                faults.append(f"{module}:{line} imports {target} by its absolute name")
        elif part_of(target) not in MAY_IMPORT[part_of(module)]:
            faults.append(f"{module}:{line} imports {target}")
    return faults


def test_imports_run_one_way() -> None:
    """The store imports neither side, writers and readers never meet, and inside, imports are relative."""
    inside = [(module, path) for module, path in library_modules() if module.split(".")[0] == "episodelake"]
    faults = [
        fault
        for module, path in inside
        for fault in wrong_imports(module, path.name == "__init__.py", path.read_text("utf-8"))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("module", "source", "right"),
    [
        ("episodelake.store.spaces.box", "from ..errors import StoreError", True),
        ("episodelake.store.spaces.box", "from ...writers import buffer", False),
        ("episodelake.store.spaces.box", "from ... import EpisodeStore", False),
        ("episodelake.store.tables", "from ..readers.frames import scan", False),
        ("episodelake.writers.recorder", "from ..store.journal import Journal", True),
        ("episodelake.writers.recorder", "def f():\n    from ..readers import frames", False),
        ("episodelake.writers.recorder", "from episodelake.store import journal", False),
        ("episodelake.writers.recorder", "import store.journal", False),
        ("episodelake.readers.sql.query", "from ... import writers", False),
        ("episodelake.readers.sql.query", "import polars\nfrom . import frames", True),
        ("episodelake.terminal.app", "from .readers import query\nfrom .writers import recorder", True),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str, right: bool) -> None:
    """The import check tells an allowed import from each kind of forbidden one."""
    assert (wrong_imports(module, False, source) == []) is right


def test_the_program_begins_with_nothing_of_the_library() -> None:
    """What starts before the library imports it nowhere but where it hands over."""
    found = [
        (module, target, node.col_offset > 0)
        for module, path in library_modules()
        if module.split(".")[0] == "episodelake_command"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for _, target, _ in imported_modules(module, path.name == "__init__.py", node)
        if target.split(".")[0] == "episodelake"
    ]
    assert found == [("episodelake_command", "episodelake.terminal.app", True)]


def test_public_names_are_sorted_and_real() -> None:
    """`__all__` is sorted and names exactly what the package defines in public."""
    public = {
        name
        for name, value in vars(episodelake).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType | __future__._Feature)
    }
    names = list(episodelake.__all__)
    assert names == sorted(names)
    assert public == {name for name in names if not name.startswith("__")}
    assert [name for name in names if not hasattr(episodelake, name)] == []


def test_public_names_are_documented() -> None:
    """Every public class and function has a docstring of its own, not one that a dataclass made up."""
    bare = []
    for name in episodelake.__all__:
        value = getattr(episodelake, name)
        text = inspect.cleandoc(value.__doc__ or "")
        if callable(value) and (not text or text.startswith(f"{name}(")):
            bare.append(name)
    assert bare == []


def test_nothing_committed_names_a_machine() -> None:
    """No file of the project holds a path of somebody's machine or the address of a package index."""
    found = [
        f"{name}: {what}"
        for name in project_files()
        if (REPOSITORY / name).is_file()
        for what, pattern in NOT_COMMITTED.items()
        if pattern.search((REPOSITORY / name).read_bytes())
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["see /" + "work/notes", "'/" + "root/.cache'", "--index" + "-url=x", "\n/" + "home/me/a"]
)
def test_a_machine_path_is_seen(text: str) -> None:
    """The search finds what it is there to find."""
    assert any(pattern.search(text.encode()) for pattern in NOT_COMMITTED.values())


def test_every_module_says_what_it_is_for() -> None:
    """Every module of the library and of the tests opens with a docstring."""
    tests = [(path.stem, path) for path in sorted(Path(__file__).parent.rglob("*.py"))]
    modules = [*library_modules(), *tests]
    assert [name for name, path in modules if not ast.get_docstring(ast.parse(path.read_text("utf-8")))] == []


def test_every_test_says_what_it_proves() -> None:
    """Every test function, methods of test classes included, has a docstring."""
    bare = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in sorted(Path(__file__).parent.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert bare == []


def test_the_map_has_every_module() -> None:
    """CONTRIBUTING.md says of every module what it is for."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    names = [path.name for _, path in library_modules() if path.name != "__init__.py"]
    lost = [name for name in names if name not in text]
    assert not lost
