"""The rules of the house: which way imports run, what is public, and what no committed file may hold."""

import __future__

import ast
import inspect
import re
import types
from collections.abc import Iterator, Mapping
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


def import_graph(sources: Mapping[str, tuple[bool, str]]) -> dict[str, set[str]]:
    """What each module imports of the others, at whatever depth of its code; packages by their own names.

    Args:
        sources: by dotted name, whether it is a package, and its text.
    """
    graph: dict[str, set[str]] = {}
    for module, (is_package, source) in sources.items():
        targets = {target for _, target, _ in imported_modules(module, is_package, ast.parse(source))}
        # What is no module is a name that one defines.
        graph[module] = {name if name in sources else name.rpartition(".")[0] for name in targets} & {
            *sources
        }
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Groups of modules that reach each other: the strongly connected components that hold an import."""
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }
    return sorted(map(set, groups), key=sorted)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def test_no_import_cycles() -> None:
    """No modules import each other, imports inside functions and for type checkers counted."""
    graph = import_graph(
        {module: (path.name == "__init__.py", path.read_text("utf-8")) for module, path in library_modules()}
    )
    assert cycles(graph) == []


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"b": "from . import c", "c": "from . import d", "d": ""}, []),
        ({"b": "from . import c", "c": "from . import b"}, [{"a.b", "a.c"}]),
        (
            {"b": "from .c import name", "c": "from .d import name", "d": "import a.b"},
            [{"a.b", "a.c", "a.d"}],
        ),
        ({"b": "def f():\n    from .c import name", "c": "from .b import f"}, [{"a.b", "a.c"}]),
        ({"b": "if TYPE_CHECKING:\n    from .c import C", "c": "from .b import f"}, [{"a.b", "a.c"}]),
        ({"b": "from . import name", "c": "from .b import f"}, [{"a", "a.b"}]),
        (
            {"b": "from .c import x", "c": "from .b import y", "d": "from .e import x", "e": "import a.d"},
            [{"a.b", "a.c"}, {"a.d", "a.e"}],
        ),
    ],
)
def test_a_cycle_is_seen(sources: dict[str, str], found: list[set[str]]) -> None:
    """The search finds the modules of each cycle, lazy imports and those for types too, and no others."""
    package = {"a": (True, "from .b import f")}
    assert (
        cycles(import_graph(package | {f"a.{name}": (False, text) for name, text in sources.items()}))
        == found
    )


def test_public_names_are_sorted_and_real() -> None:
    """`__all__` is sorted and names exactly what the package defines in public, once all of it is loaded."""
    names = list(episodelake.__all__)
    assert [name for name in names if not hasattr(episodelake, name)] == []
    public = {
        name
        for name, value in vars(episodelake).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType | __future__._Feature)
    }
    assert names == sorted(names)
    assert public == {name for name in names if not name.startswith("__")}
    with pytest.raises(AttributeError, match="module 'episodelake' has no attribute 'nothing'"):
        _ = episodelake.nothing


def test_the_stub_names_what_is_loaded() -> None:
    """`__init__.py` loads the names that `__init__.pyi` imports, which are exactly those of its `__all__`."""
    tree = ast.parse((REPOSITORY / "episodelake" / "__init__.pyi").read_text("utf-8"))
    (listed,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert listed == episodelake.__all__


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


def packages() -> dict[str, list[str]]:
    """The modules of each package of the library, by its folder in the repository."""
    found: dict[str, list[str]] = {}
    for _, path in library_modules():
        found.setdefault(str(path.parent.relative_to(REPOSITORY)), []).append(path.name)
    return found


def test_the_map_has_every_package() -> None:
    """CONTRIBUTING.md says of every package what it is for."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    inner = {"readers/loading": r"`{}/`", "episodelake/terminal": r"`{}/`"}
    lost = []
    for folder in packages():
        parent, _, name = folder.rpartition("/")
        if f"`{folder}/`" not in text and inner.get(parent, "?").format(name) not in text:
            lost.append(folder)
    assert lost == []


def test_no_folder_is_a_wall_of_files() -> None:
    """No package has more than 24 modules side by side."""
    assert {folder: len(names) for folder, names in packages().items() if len(names) > 24} == {}
