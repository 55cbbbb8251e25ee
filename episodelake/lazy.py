"""Public names and the namespace `rl` of Polars, both loaded on first use.

DuckDB, Polars, pyarrow, Gymnasium and the writers take a second to import. The stub beside a module, which
type checkers read, is the only list of its names. Once Polars is imported, before or after this package, it
gets factories that load `readers.namespaces` when `rl` is first used.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy_names(module: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a module of this package.

    Args:
        module: its `__name__`.
        file: its `__file__`; the stub has the same name and ends in `.pyi`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8"))
    origins = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    names = sorted(origins)
    namespace = vars(sys.modules[module])

    def load(name: str) -> object:
        if name == "__version__" and module == __package__:
            from importlib.metadata import version

            return namespace.setdefault(name, version(module))
        if name not in origins:
            raise AttributeError(f"module {module!r} has no attribute {name!r}{_hint(name)}")
        source, original = origins[name]
        value = getattr(importlib.import_module(f".{source}", __package__), original)
        namespace[name] = value
        return value

    return names, load, lambda: sorted({*namespace, *names})


def _hint(name: str) -> str:
    """Return the end of a message about an unknown name: where it is, or the name most like it."""
    if name.startswith("_"):
        return ""
    rooms = {"el": __package__, "el.errors": f"{__package__}.errors", "el.types": f"{__package__}.types"}
    if f"{__package__}.plugin" in sys.modules:
        rooms |= {
            f"el.plugin.{each}": f"{__package__}.plugin.{each}" for each in ("columns", "engines", "files")
        }
    known = {f"{room}.{each}": each for room, path in rooms.items() for each in sys.modules[path].__all__}
    there = [path for path, each in known.items() if each == name]
    if there:
        return f": it is {there[0]}."
    # They load difflib, which no program needs that misspells nothing.
    from .store.common.arguments import near_names
    from .store.common.habits import meant

    same = meant("module", name)
    if same is not None and same not in known.values():
        return f": did you mean {same}?"
    near = [same] if same else near_names(name, list(known.values()), 1)
    return "".join(f": did you mean {path}?" for path, each in known.items() if [each] == near)


def register_namespace() -> None:
    """Register `rl` now, or as soon as Polars has been imported."""
    if "polars" in sys.modules:
        _register(sys.modules["polars"])
    else:
        sys.meta_path.insert(0, _OnceImported())


def _register(polars: Any) -> None:
    for kind in ("Expr", "LazyFrame", "DataFrame"):
        register = getattr(polars.api, f"register_{kind.lower()}_namespace")
        register("rl")(partial(_namespace, f"Episode{kind.removeprefix('Data')}"))


def _namespace(name: str, owner: Any) -> Any:
    namespaces = importlib.import_module(".readers.namespaces", __package__)
    return getattr(namespaces, name)(owner)


class _OnceImported(MetaPathFinder):
    """Registers the namespace right after the module `polars` has run; finds nothing itself.

    It stays until then: a program may look for Polars, for example by `importlib.util.find_spec`, without
    importing it.
    """

    def __init__(self) -> None:
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have for Polars."""
        if fullname != "polars" or self._searching:
            return None
        self._searching = True
        try:
            spec = find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register(module)
                sys.meta_path.remove(self)

            spec.loader.exec_module = execute_and_register
        return spec
