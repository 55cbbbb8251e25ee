"""Types of results, recorders and callbacks, for annotations and `isinstance`.

A call such as `store.record(env)` or `store.compact()` returns one of them.
"""

from .lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
