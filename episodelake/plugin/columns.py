"""Names and groups of the columns of a store, for extensions.

Steps have `observation`, `action`, `reward` and so on; those of a Dict are `observation.place`, with keys
escaped. Infos, policy outputs, own columns and metadata are groups, each with its prefix. Each name is loaded
on first use.
"""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
