"""Optional dependencies, imported on first use."""

from __future__ import annotations

import importlib
from types import ModuleType

from ..errors import MissingPackageError

#: Packages that an extra of Episodelake installs.
_EXTRAS = {
    **dict.fromkeys(("PIL", "altair", "nicegui", "vl_convert"), "explore"),
    "av": "video",
    "h5py": "hdf5",
    "zarr": "zarr",
}
#: Packages whose names differ from what is imported.
_INSTALLED_AS = {"PIL": "pillow", "vl_convert": "vl-convert-python"}


def require(package: str, purpose: str, install: str | None = None) -> ModuleType:
    """Import a package.

    Args:
        package: its name, to import.
        purpose: what it is needed for, as a message begins: "output='torch'".
        install: what to give to `pip install`; None for the extra of Episodelake that has the package, or
            else its name.

    Raises:
        MissingPackageError: it, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        root = package.partition(".")[0]
        name = _INSTALLED_AS.get(root, root)
        if error.name is not None and error.name.partition(".")[0] == root:
            reason = f"the package {name!r}, which is not installed"
        else:
            reason = f"the package {name!r}, which cannot be imported ({error})"
        extra = f"'episodelake[{_EXTRAS[root]}]'" if root in _EXTRAS else package
        raise MissingPackageError(
            f"{purpose} needs {reason}. Install it with: pip install {install or extra}"
        ) from error
