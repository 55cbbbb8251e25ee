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
        if name not in origins:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, original = origins[name]
        value = getattr(importlib.import_module(f".{source}", __package__), original)
        namespace[name] = value
        return value

    return names, load, lambda: sorted({*namespace, *names})
