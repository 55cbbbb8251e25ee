"""The namespace `rl` of Polars, available after `import episodelake` without loading Polars.

Once Polars is imported, by anyone and in either order, it gets factories that load `readers.namespaces` when
`rl` is first used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def register() -> None:
    """Register the namespace now, or as soon as Polars has been imported."""
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
