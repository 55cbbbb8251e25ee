"""The rules of the house: directions of imports, public names, what no committed file may hold, sizes."""

import __future__

import ast
import functools
import gc
import importlib.metadata
import inspect
import re
import tomllib
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import episodelake
import episodelake.plugin
import episodelake.plugin.columns
import episodelake.plugin.engines
import episodelake.plugin.files
from checkout import REPOSITORY, library_modules, project_files
from effort import looped

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


class Docstring(NamedTuple):
    """A module, class or function, and its docstring, which stands in these lines; None where it has none."""

    kind: type[ast.AST]
    name: str
    line: int
    text: str | None
    lines: range


class Facts(NamedTuple):
    """The parts of a module that the rules look at: imports, docstrings or where one should be, functions."""

    imports: list[ast.Import | ast.ImportFrom]
    docstrings: list[Docstring]
    lengths: list[tuple[str, int]]


def parsed(source: str) -> ast.Module:
    """The tree of a source.

    CPython counts the depth of a tree for the whole process, and raises SystemError where a garbage
    collection parses another one meanwhile.
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()


@functools.cache
def facts(source: str) -> Facts:
    """The facts of a module. Trees are not kept: with them, every garbage collection would take long."""
    found = Facts([], [], [])
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imports.append(node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            first = node.body[0] if text is not None else None
            lines = range(first.lineno, (first.end_lineno or first.lineno) + 1) if first else range(0)
            name, line = getattr(node, "name", ""), getattr(node, "lineno", 1)
            found.docstrings.append(Docstring(type(node), name, line, text, lines))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.lengths.append((name, (node.end_lineno or line) - line + 1 - len(lines)))
    return found


def part_of(module: str) -> str:
    """The part of the library that a dotted name belongs to."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 and pieces[1] in MAY_IMPORT else "face"


def imported_modules(module: str, is_package: bool, source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, dotted name and relativeness of every import; `from . import name` gives the name's own path."""
    for node in facts(source).imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, False
        elif node.level == 0:
            yield node.lineno, node.module or "", False
        else:
            pieces = module.split(".")
            base = pieces[: len(pieces) - node.level + is_package]
            for alias in node.names:
                yield node.lineno, ".".join([*base, *filter(None, [node.module]), alias.name]), True


def wrong_imports(module: str, is_package: bool, source: str) -> list[str]:
    """What is wrong with the imports of one library module, a sentence for each."""
    own_top_levels = {"episodelake", *MAY_IMPORT}
    faults = []
    for line, target, relative in imported_modules(module, is_package, source):
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
    assert faults == [], "Import relatively; what both sides need moves into `store/`, their caller up."


@looped(
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
        ("episodelake.readers.sql.session", "from ... import writers", False),
        ("episodelake.readers.sql.session", "import polars\nfrom . import frames", True),
        ("episodelake.terminal.app", "from .readers import query\nfrom .writers import recorder", True),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str, right: bool) -> None:
    """The import check tells an allowed import from each kind of forbidden one."""
    assert (wrong_imports(module, False, source) == []) is right


def _origins() -> dict[str, str]:
    """Each public name, and the name in the module that has it, from the stubs of lazy modules."""
    found = {}
    extensions = [f"plugin/{name}.pyi" for name in ("__init__", "columns", "engines", "files")]
    for file in ("__init__.pyi", *extensions, "types.pyi", "errors.py"):
        room = f"episodelake/{file.partition('.')[0]}".replace("/", ".").removesuffix(".__init__")
        for node in facts((REPOSITORY / "episodelake" / file).read_text("utf-8")).imports:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    own = f"episodelake.{node.module}.{alias.name}"
                    found[f"{room}.{alias.asname or alias.name}"] = own
    return found


#: Lazy modules are seen through: a name that one is asked for counts as an import from the name's own module.
ORIGINS = _origins()


def import_graph(sources: Mapping[str, tuple[bool, str]]) -> dict[str, set[str]]:
    """The imports of each module among the others, at any depth of its code; packages by their own names.

    Args:
        sources: by dotted name, whether it is a package, and its text.
    """
    graph: dict[str, set[str]] = {}
    for module, (is_package, source) in sources.items():
        imports = imported_modules(module, is_package, source)
        targets = {ORIGINS.get(target, target) for _, target, _ in imports}
        # What is no module is a name that one defines.
        graph[module] = {name if name in sources else name.rpartition(".")[0] for name in targets} & {
            *sources
        }
    return graph


@functools.cache
def library_graph() -> dict[str, set[str]]:
    """The imports among the modules of the library."""
    return import_graph(
        {module: (path.name == "__init__.py", path.read_text("utf-8")) for module, path in library_modules()}
    )


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
    graph = library_graph()
    assert cycles(graph) == [], "Move what they share into a module that all of them import."


@looped(
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


PUBLIC = (
    episodelake,
    episodelake.types,
    episodelake.errors,
    episodelake.plugin,
    episodelake.plugin.columns,
    episodelake.plugin.engines,
    episodelake.plugin.files,
)


@looped("room", PUBLIC)
def test_public_names_are_sorted_and_real(room: types.ModuleType) -> None:
    """`__all__` is sorted and names exactly what the module defines in public, once all of it is loaded."""
    names = list(room.__all__)
    assert [name for name in names if not hasattr(room, name)] == [], "`__all__` has names of nothing."
    public = {
        name
        for name, value in vars(room).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType | __future__._Feature)
    }
    assert names == sorted(names), "Sort `__all__`."
    assert public - {"lazy_names"} == {name for name in names if not name.startswith("__")}
    with pytest.raises(AttributeError, match=f"module '{room.__name__}' has no attribute 'nothing'"):
        _ = room.nothing


def test_the_version_is_that_of_the_package() -> None:
    """`el.__version__` is what the installer knows; its other modules have none."""
    assert episodelake.__version__ == importlib.metadata.version("episodelake")
    assert not hasattr(episodelake.errors, "__version__")


@looped(
    ("room", "name", "hint"),
    [
        (episodelake, "SpaceMismatchError", ": it is el.errors.SpaceMismatchError."),
        (episodelake, "import_datset", ": did you mean el.import_dataset?"),
        (episodelake, "load", ": did you mean el.open?"),
        (episodelake.types, "Windows", ": it is el.Windows."),
        (episodelake.plugin, "DatasetError", ": it is el.errors.DatasetError."),
        (episodelake.plugin, "is_file", ": it is el.plugin.files.is_file."),
        (episodelake, "_nothing_like_it", ""),
    ],
)
def test_unknown_names_say_where_to_look(room: types.ModuleType, name: str, hint: str) -> None:
    """The error names the module that has the name, or the name most like it."""
    with pytest.raises(AttributeError) as caught:
        getattr(room, name)
    assert str(caught.value) == f"module '{room.__name__}' has no attribute '{name}'{hint}"


def test_rooms_share_no_name_but_the_base_of_errors() -> None:
    """Each public name is in one place: about sixty at the top, at most eighty for extensions.

    Those of files are at most forty more, those of columns twenty and those of engines ten.
    """
    counts = Counter(name for room in PUBLIC for name in room.__all__)
    twice = [name for name, count in counts.items() if count > 1]
    assert twice == ["EpisodelakeError"], "Leave each name in one place."
    limits = {episodelake: 60, episodelake.plugin: 80}
    limits |= {episodelake.plugin.columns: 20, episodelake.plugin.engines: 10, episodelake.plugin.files: 40}
    full = [room.__name__ for room, limit in limits.items() if len(room.__all__) > limit]
    assert full == [], "A name that one room alone needs moves from the core into that room."


@looped(
    ("stub", "room"),
    [
        ("__init__.pyi", episodelake),
        ("plugin/__init__.pyi", episodelake.plugin),
        ("plugin/columns.pyi", episodelake.plugin.columns),
        ("plugin/engines.pyi", episodelake.plugin.engines),
        ("plugin/files.pyi", episodelake.plugin.files),
        ("types.pyi", episodelake.types),
    ],
)
def test_the_stub_names_what_is_loaded(stub: str, room: types.ModuleType) -> None:
    """A lazy module loads the names that its stub imports, which are exactly those of its `__all__`."""
    tree = ast.parse((REPOSITORY / "episodelake" / stub).read_text("utf-8"))
    (listed,) = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert listed == room.__all__, "Each name has an import in the stub, and a place in its `__all__`."


@looped("room", PUBLIC)
def test_public_names_are_documented(room: types.ModuleType) -> None:
    """Every public class and function has a docstring of its own, not one that a dataclass made up."""
    bare = []
    for name in room.__all__:
        value = getattr(room, name)
        text = inspect.cleandoc(value.__doc__ or "")
        is_type = isinstance(value, types.GenericAlias)  # as of callbacks
        if callable(value) and not is_type and (not text or text.startswith(f"{name}(")):
            bare.append(name)
    assert bare == [], "Write docstrings for them."


def test_the_reference_has_every_name_for_extensions() -> None:
    """The page about `episodelake.plugin` has each of its names once, constants with their meaning."""
    page = (REPOSITORY / "docs" / "api" / "plugin.md").read_text("utf-8")
    described = re.findall(
        r"^\.\. auto\w+:: episodelake\.plugin\.(?:(\w+)\.)?(\w+)$|^\| `(?:(\w+)\.)?(\w+)` \|", page, re.M
    )
    rooms = {room.__name__.removeprefix("episodelake.plugin").lstrip("."): room for room in PUBLIC[3:]}
    for part, room in rooms.items():
        names = [name or constant for of, name, by, constant in described if (of or by) == part]
        assert sorted(names) == room.__all__, "Add it to, or remove it from, docs/api/plugin.md."
    assert {of or by for of, _, by, _ in described} == {*rooms}


def test_formats_are_entry_points() -> None:
    """The installed package has the formats of pyproject.toml; `make` installs it anew when they change."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    for group, entries in declared.items():
        installed = importlib.metadata.entry_points(group=group)
        found = {each.name: each.value for each in installed if each.name in entries}
        assert found == entries, "Run `make`, or pip install --editable '.[test]'; it reads them anew."


def test_nothing_committed_names_a_machine() -> None:
    """No file of the project holds a path of somebody's machine or the address of a package index."""
    found = [
        f"{name}: {what}"
        for name in project_files()
        if (REPOSITORY / name).is_file()
        for what, pattern in NOT_COMMITTED.items()
        if pattern.search((REPOSITORY / name).read_bytes())
    ]
    assert found == [], "Write paths relative to the repository, and no index."


@looped("text", ["see /" + "work/notes", "'/" + "root/.cache'", "--index" + "-url=x", "\n/" + "home/me/a"])
def test_a_machine_path_is_seen(text: str) -> None:
    """The search finds what it is there to find."""
    assert any(pattern.search(text.encode()) for pattern in NOT_COMMITTED.values())


def test_every_module_says_what_it_is_for() -> None:
    """Every module of the library and of the tests opens with a docstring."""
    tests = [(path.stem, path) for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    modules = [*library_modules(), *tests]
    bare = [name for name, path in modules if not facts(path.read_text("utf-8")).docstrings[0].text]
    assert bare == [], "Open these modules with a docstring."


def test_every_test_says_what_it_proves() -> None:
    """Every test function, methods of test classes included, has a docstring."""
    bare = [
        f"{path.name}:{found.line} {found.name}"
        for path in sorted(Path(__file__).parents[1].rglob("test_*.py"))
        for found in facts(path.read_text("utf-8")).docstrings
        if found.kind in (ast.FunctionDef, ast.AsyncFunctionDef)
        and found.name.startswith("test_")
        and not found.text
    ]
    assert bare == [], "Say in a docstring of one sentence what each of these tests proves."


def packages() -> dict[str, list[str]]:
    """The modules of each package of the library, by its folder in the repository."""
    found: dict[str, list[str]] = {}
    for _, path in library_modules():
        found.setdefault(str(path.parent.relative_to(REPOSITORY)), []).append(path.name)
    return found


def test_frames_are_collected_in_one_place() -> None:
    """The face collects with `readers.frames.collected`, which tells errors that pass from damage.

    Contracts collect as users do.
    """
    bare = [
        f"{module}:{line}"
        for module, path in library_modules()
        if part_of(module) == "face" and ".testing." not in module
        for line, text in enumerate(path.read_text().splitlines(), 1)
        if ".collect()" in text
    ]
    assert bare == [], "Call `collected(frame)` of `episodelake.plugin` instead of `frame.collect()`."


def test_the_map_has_every_package() -> None:
    """CONTRIBUTING.md says of every package what it is for."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    inner = {"readers/loading": r"`{}/`", "episodelake/terminal": r"`{}/`"}
    lost = []
    for folder in packages():
        parent, _, name = folder.rpartition("/")
        if f"`{folder}/`" not in text and inner.get(parent, "?").format(name) not in text:
            lost.append(folder)
    assert lost == [], "Add a line for each to the table of packages in CONTRIBUTING.md."


def test_no_folder_is_a_wall_of_files() -> None:
    """No package has more than 24 modules side by side."""
    full = {folder: len(names) for folder, names in packages().items() if len(names) > 24}
    assert full == {}, "Make a package of those modules that belong together."


class Room(NamedTuple):
    """A part of the library that takes from the core only public names and those of `episodelake.plugin`.

    Attributes:
        modules: below these it lies; names with spaces between them.
        rooms: others that it may import, as such names.
        floor: whether it takes from the core below it freely.
    """

    modules: str
    rooms: str = ""
    floor: bool = False


DOORS: dict[str, Room] = {
    "exchange": Room(
        modules="exchange readers.exporting store.common.exchange writers.importing",
    ),
    "look": Room(
        modules="explorer explorer_process readers.charts readers.pictures",
        rooms="rollouts",
    ),
    "lakes": Room(
        modules="lakes publishing",
    ),
    "integrations": Room(
        modules="integrations",
        rooms="exchange",
    ),
    "rollouts": Room(
        modules="rollouts",
        rooms="exchange training",
    ),
    "terminal": Room(
        modules="terminal",
        rooms="look rollouts",
    ),
    "collecting": Room(
        modules="writers.collecting",
        floor=True,
    ),
    "training": Room(
        modules="readers.columns readers.loading replay_buffer",
        floor=True,
    ),
    "measures": Room(
        modules="readers.measures",
        rooms="training",
        floor=True,
    ),
    "importing": Room(
        modules="importing",
        rooms="exchange",
        floor=True,
    ),
}


def room_of(module: str) -> str | None:
    """The room that a module or a name in one belongs to; None for the core."""
    lies_in = [
        name
        for name, room in DOORS.items()
        if any(f"{module}.".startswith(f"episodelake.{each}.") for each in room.modules.split())
    ]
    return lies_in[0] if lies_in else None


def taken(room: str, module: str, is_package: bool, source: str) -> Iterator[tuple[str, str]]:
    """What a module takes beside its room's door: another room or a module of the core, and the name.

    A room in `episodelake/` takes public names from the public modules, one below it from where they are.
    """
    public = {*ORIGINS, *(each.__name__ for each in PUBLIC)}
    if part_of(module) != "face":
        public |= {*ORIGINS.values()}
    for _, target, relative in imported_modules(module, is_package, source):
        if not relative or target in public:
            continue
        if room_of(target) not in (None, room):
            yield str(room_of(target)), target
        elif room_of(target) is None and not DOORS[room].floor:
            yield target.removeprefix("episodelake.").rpartition(".")[0], target


def test_rooms_have_one_door() -> None:
    """Rooms import public names, those of `episodelake.plugin`, their own, and those of rooms they may."""
    used: dict[str, set[str]] = {name: set() for name in DOORS}
    wrong = []
    for module, path in library_modules():
        if (room := room_of(module)) is not None:
            for source, name in taken(room, module, path.name == "__init__.py", path.read_text("utf-8")):
                used[room].add(source)
                if source not in DOORS[room].rooms.split():
                    wrong.append(f"{module} imports {name}")
    assert wrong == [], (
        "Take it from `episodelake.plugin` (CONTRIBUTING.md, Rooms), or move it into the room."
    )
    declared = {name: {*room.rooms.split()} for name, room in DOORS.items()}
    assert used == declared, "Remove from `DOORS` the rooms that no module imports any more."


#: The objects that offer everything hand their calls to rooms; no other module of the core needs one.
ON_TOP = {"episodelake.readers.episode", "episodelake.readers.view"}


def test_the_core_needs_no_room() -> None:
    """Below the face, only the objects on top import from rooms; nothing else of the core calls upwards."""
    upwards = {
        module
        for module, targets in library_graph().items()
        if part_of(module) != "face" and room_of(module) is None and any(map(room_of, targets))
    }
    assert upwards == ON_TOP, "Move what the core needs below the rooms."


#: Longer modules; the list may only shrink. Each method of a store is a docstring and a call.
LONG_FILES = ["episodelake/episode_store.py"]
#: Longer functions; the list may only shrink. The arguments of a command are its options, with their help.
LONG_FUNCTIONS = {"episodelake/terminal/commands/exchanging.py:import_"}


def test_files_and_functions_can_be_read_at_once() -> None:
    """No module has more than 500 lines, and no function more than 80 beside its docstring."""
    long_files, long_functions = [], set()
    for _, path in library_modules():
        source, name = path.read_text("utf-8"), path.relative_to(REPOSITORY).as_posix()
        if source.count("\n") > 500:
            long_files.append(name)
        long_functions |= {f"{name}:{each}" for each, length in facts(source).lengths if length > 80}
    assert long_files == LONG_FILES, "Divide the module by its ideas; a name that is gone leaves the list."
    assert long_functions == LONG_FUNCTIONS, "Divide the function; a name that is gone leaves the list."


def knots(graph: Mapping[str, Iterable[str]]) -> dict[str, list[set[str]]]:
    """The children of each package that need each other, directly or through others of its children."""
    needs: dict[str, dict[str, set[str]]] = {}
    for module, targets in graph.items():
        for target in targets:
            mine, other = module.split("."), target.split(".")
            common = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None)
            if common:
                children = needs.setdefault(".".join(mine[:common]), {})
                children.setdefault(mine[common], set()).add(other[common])
                children.setdefault(other[common], set())
    found = {parent: cycles(children) for parent, children in needs.items()}
    return {parent: groups for parent, groups in found.items() if groups}


def test_packages_are_layers() -> None:
    """No two packages or modules side by side need each other, lazy imports and those for types counted."""
    graph = library_graph()
    assert knots(graph) == {}, "Move what they share into a package or module beside them that both import."


@looped(
    ("graph", "found"),
    [
        ({"a.b.x": {"a.c.y"}, "a.c.y": {"a.d"}, "a.d": set()}, {}),
        ({"a.b.x": {"a.c.y"}, "a.c.z": {"a.b.w"}}, {"a": [{"b", "c"}]}),
        ({"a.b.c.x": {"a.b.d"}, "a.b.d": {"a.b.c.y"}}, {"a.b": [{"c", "d"}]}),
        ({"a": {"a.b"}, "a.b": {"a.c"}}, {}),
    ],
)
def test_a_knot_is_seen(graph: dict[str, set[str]], found: dict[str, list[set[str]]]) -> None:
    """Packages form a knot although no two of their modules import each other."""
    assert knots(graph) == found


# Words that the library and its documents do not use, and what to write. CONTRIBUTING.md has the same table.
REPLACED = {
    "at once made": "made at once",
    "in hand": "current, open, buffered",
    "nobody": "no writer, no reader",
    "said of": "of, about, outputs for",
    "stands in the place": "has replaced",
    "tells of": "has, names, contains",
    "whoever": "the author, a user who",
}
OPENS_BADLY = re.compile(r"(What|Whether what|Who|Whatever)\b")


def replaced_words(text: str) -> list[str]:
    """The words of a text that have a replacement."""
    return [word for word in REPLACED if re.search(rf"\b{word}\b", text, re.IGNORECASE)]


def test_words_are_those_of_the_house() -> None:
    """No module, guide or decision uses a replaced word, and no docstring opens with "What"."""
    documents = [path for path in sorted((REPOSITORY / "docs").rglob("*.md")) if path.name != "changelog.md"]
    texts = [*(path for _, path in library_modules()), REPOSITORY / "README.md", *documents]
    used = {path.name: replaced_words(path.read_text("utf-8")) for path in texts}
    assert {name: words for name, words in used.items() if words} == {}, f"Write instead: {REPLACED}"
    opened = [
        f"{module}: {found.text.splitlines()[0]}"
        for module, path in library_modules()
        for found in facts(path.read_text("utf-8")).docstrings
        if found.text and OPENS_BADLY.match(found.text)
    ]
    assert opened == [], 'Open with a noun, or a verb: "Return ...", "Take ...".'


def test_the_table_of_decisions_is_whole() -> None:
    """Each decision has its line, with its number, in order."""
    folder = REPOSITORY / "docs" / "decisions"
    lines = re.findall(
        r"^\| \[(\d+)\]\((\d+)-(.+\.md)\) \| .+ \|$", (folder / "README.md").read_text("utf-8"), re.M
    )
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    shown = [f"{number}-{name}" for shown, number, name in lines if shown == number]
    assert shown == files, "Each decision has a line in docs/decisions/README.md, in the order of its number."


def test_contributing_lists_the_words() -> None:
    """CONTRIBUTING.md has each word with its replacement."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8")
    assert [word for word, instead in REPLACED.items() if f"| {word} | {instead} |" not in text] == []


def test_contributing_names_what_there_is() -> None:
    """The files and tests that CONTRIBUTING.md names exist; NAME stands for one that a reader writes."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text("utf-8")
    paths = {
        path for path in re.findall(r"(?:[\w.-]+/)+[\w.-]+\.(?:pyi?|toml|txt)\b", text) if "NAME" not in path
    }
    lost = [path for path in sorted(paths) if not [*REPOSITORY.glob(path)]]
    tests = "".join(path.read_text("utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    lost += [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests]
    # `-k` of a page is the name of its file.
    for path, word in re.findall(r"`pytest (tests/\S+\.py)[^`]* -k (\w+)", text):
        names = re.findall(r"(?:def|class) (\w+)", (REPOSITORY / path).read_text("utf-8"))
        pages = [*REPOSITORY.glob(f"docs/{word}.md"), *REPOSITORY.glob(f"{word}.md")]
        if word != "NAME" and not pages and not any(word in name for name in names):
            lost.append(f"{path} -k {word}")
    assert lost == [], "Name in CONTRIBUTING.md what has replaced them."
