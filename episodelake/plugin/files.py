"""Files and folders with the errors of the library, for extensions.

A path of this machine is a `pathlib.Path`; a `Place` may also be on an object store. What the system refuses
is a `StoreAccessError` that names the path. Each name is loaded on first use.
"""

from ..lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
