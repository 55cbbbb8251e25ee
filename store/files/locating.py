"""`locate`: from a path or a URL to its place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path

from ..errors import InvalidArgumentError
from .access import user_path
from .local import LocalPlace
from .memory import memory_place
from .place import Place

#: delta-rs decodes the first, refuses the second, and makes a slash of the third.
_REFUSED = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f]|\\")
_URL = re.compile("^([a-zA-Z][a-zA-Z0-9+.-]*)://")
_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory", "file")


def _plain(path: Path) -> Path:
    """Return an absolute path without the steps `folder/..`, for people to read.

    What stands behind a link is left as it is: there `..` leads to where the link points, not back. So is
    what stands behind a folder that is not there.
    """
    plain = Path(path.anchor)
    for part in path.parts[1:]:
        back = part == ".." and plain.name != ".." and plain.is_dir() and not plain.is_symlink()
        plain = plain.parent if back else plain / part
    return plain


def locate(path: str | PathLike[str], storage_options: Mapping[str, str] | None = None) -> Place:
    """Return the place that a path or a URL names.

    Args:
        path: a path of this machine, made absolute and plain, `~` for the user's folder; or `s3://`,
            `gs://`, `az://` or `memory://`.
        storage_options: keys of object_store, as delta-rs, Polars and obstore take them.

    Raises:
        InvalidArgumentError: it is neither text nor a path object, the scheme is unknown, a library is
            missing, or the path holds a percent escape.
    """
    try:
        text = fspath(path)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{path!r} is no path of a store; expected text or a path object, such as 'data/cartpole'."
        ) from error
    if "\0" in (text if isinstance(text, str) else os.fsdecode(text)):
        raise InvalidArgumentError(f"{text!r} is no path of a store: it holds a null byte.")
    found = _URL.match(text) if isinstance(text, str) else None
    scheme = found.group(1).lower() if found else "file"
    if found and scheme not in _SCHEMES:
        raise InvalidArgumentError(
            f"{text!r} has the unknown scheme {scheme}://. Use a path, or one of: "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}."
        )
    place: Place
    if scheme == "file":
        place = LocalPlace(_plain(user_path(text[len("file://") :] if found else text).absolute()))
    elif scheme == "memory":
        place = memory_place(text[len("memory://") :])
    else:
        from .remote import remote_place

        place = remote_place(text, dict(storage_options or {}))
    refused = _REFUSED.search(str(place))
    if refused:
        raise InvalidArgumentError(
            f"The path {str(place)!r} holds {refused[0]!r}, which the tables cannot have. "
            "Choose or rename the folder so that it has no control character, no backslash, and no percent "
            "sign before two hexadecimal digits."
        )
    return place
