"""Building blocks for formats, charts and engines of your own, beside the public API.

The rooms of the library are built from the same names: a format in `episodelake/exchange`, the explorer, the
lakes. Each name is loaded on first use. `plugin.files` has what touches files and folders,
`plugin.columns` the names of columns, `plugin.engines` what several machines need.
"""

from ..lazy import lazy_names
from . import columns as columns
from . import engines as engines
from . import files as files

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
