"""Public names that load on first use, listed in the stub beside a module.

DuckDB, Polars, pyarrow, Gymnasium and the writers take a second to import. The stub, which type checkers
read, is the only list of the names.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path


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
    known = {f"{room}.{each}": each for room, path in rooms.items() for each in sys.modules[path].__all__}
    there = [path for path, each in known.items() if each == name]
    if there:
        return f": it is {there[0]}."
    # It loads difflib, which no program needs that misspells nothing.
    from .store.common.suggestions import near_names

    near = near_names(name, list(known.values()), 1)
    return "".join(f": did you mean {path}?" for path, each in known.items() if [each] == near)
