"""Episodelake: a columnar store for reinforcement-learning episodes on Arrow and Parquet.

    import episodelake as el

    store = el.create("data/cartpole", env)
    with store.record(env, run="ppo-seed3") as env: ...
    store.refresh().sql("select avg(episode_return) from episodes")

`create` and `open` give an `EpisodeStore`; everything else is reached from there.
"""

from __future__ import annotations

import ast
import importlib
import pathlib

from . import _polars_namespace

# Public names load on first use: DuckDB, Polars, pyarrow, Gymnasium and the writers take a second. The stub,
# which type checkers read, is the only list of them.
_STUB = ast.parse(pathlib.Path(__file__).with_suffix(".pyi").read_text("utf-8"))
_ORIGINS = {
    alias.asname or alias.name: (node.module, alias.name)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_ORIGINS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _ORIGINS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, origin = _ORIGINS[name]
    value = globals()[name] = getattr(importlib.import_module(f".{module}", __name__), origin)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_polars_namespace.register()
