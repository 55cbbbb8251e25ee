"""Adapters that let other packages read and write stores."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

from ..plugin import require


def names_of(
    module: str, origins: Mapping[str, str], package: str, purpose: str, install: str
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of an integration, whose package may be missing or slow.

    Args:
        module: its `__name__`.
        origins: the submodule of each name.
        package: what the first use imports; where it is missing, that raises `MissingPackageError`.
        purpose, install: for its message, as `require` has them.
    """
    namespace = vars(sys.modules[module])

    def load(name: str) -> object:
        if name not in origins:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        require(package, purpose, install)
        value = namespace[name] = getattr(importlib.import_module(f".{origins[name]}", module), name)
        return value

    names = sorted(origins)
    return names, load, lambda: sorted({*namespace, *names})
