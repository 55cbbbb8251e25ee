"""Collecting, reading and writing on several machines, for extensions such as the one of Ray.

`episodelake.collect` takes a `WorkerPool` as `workers`. What several machines write is staged, and one commit
brings it into the store. Each name is loaded on first use.
"""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
