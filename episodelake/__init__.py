"""Episodelake: a columnar store for reinforcement-learning episodes on Arrow and Parquet.

    import episodelake as el

    store = el.create("data/cartpole", env)
    with store.record(env, run="ppo-seed3") as env: ...
    store.refresh().sql("select avg(episode_return) from episodes")

`create` and `open` give an `EpisodeStore`; everything else is reached from there. Errors are in `el.errors`,
and the types of results, recorders and callbacks in `el.types`.
"""

from . import errors as errors
from . import types as types
from .lazy import lazy_names as _lazy_names
from .lazy import register_namespace as _register_namespace

# The namespace `rl` also waits for Polars, and loads nothing.
__all__, __getattr__, __dir__ = _lazy_names(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]

_register_namespace()
