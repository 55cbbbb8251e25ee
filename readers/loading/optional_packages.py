"""Packages that some outputs need and Episodelake does not bring along: imported when first asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

from ...store.errors import MissingPackageError


def require(package: str, purpose: str) -> ModuleType:
    """Import a package.

    Args:
        package: its name, to import and to install.
        purpose: what it is needed for, as a message begins: "output='torch'".

    Raises:
        MissingPackageError: it, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == package:
            reason = f"the package {package!r}, which is not installed"
        else:
            reason = f"the package {package!r}, which cannot be imported ({error})"
        raise MissingPackageError(
            f"{purpose} needs {reason}. Install it with: pip install {package}"
        ) from error
