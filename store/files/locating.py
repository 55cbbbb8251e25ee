"""`locate`: from a path or a URL to its place.

`memory://name` is a real folder, in tmpfs where there is one, so that every engine reads it as any other. Its
name is known to this process alone.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path

from ..errors import InvalidArgumentError
from .access import user_path
from .local import LocalPlace
from .paths import is_folder
from .place import Place

#: delta-rs decodes the first, refuses the second, and makes a slash of the third.
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f]|\\")
_URL = re.compile("^([a-zA-Z][a-zA-Z0-9+.-]*)://")
_LOCAL = ("file", "memory")
_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "memory", "file")
_TMPFS = Path("/dev/shm")
_guard = threading.Lock()
#: The folder of this process, as soon as there is one.
_folders: list[Path] = []


def _plain(path: Path) -> Path:
    """Return an absolute path without the steps `folder/..`, for people to read.

    What stands behind a link is left as it is: there `..` leads to where the link points, not back. So is
    what stands behind a folder that is not there.
    """
    plain = Path(path.anchor)
    for part in path.parts[1:]:
        back = part == ".." and plain.name != ".." and is_folder(plain, follow=False)
        plain = plain.parent if back else plain / part
    return plain


def is_remote(place: object) -> bool:
    """Return whether a path, a URL or a place is on an object store or a hub."""
    url = _URL.match(str(place))
    return url is not None and url.group(1).lower() not in _LOCAL


def options_of(
    storage_options: Mapping[str, str] | None, place: str | PathLike[str] | Place
) -> Mapping[str, str] | None:
    """Return the `storage_options` of a call with several places for one of them; None for a local one."""
    return storage_options if is_remote(place) else None


def refuse_unused(
    storage_options: Mapping[str, str] | None, *places: str | PathLike[str] | Place | None
) -> None:
    """Refuse `storage_options` that none of some paths and URLs has a use for.

    Raises:
        InvalidArgumentError: there are options, and no place is on an object store.
    """
    if storage_options and not any(map(is_remote, places)):
        given = ", ".join(str(place) for place in places if place is not None)
        raise InvalidArgumentError(
            f"Storage options are for object stores; {given or 'what is open'} needs none. Leave them out."
        )


def locate(path: str | PathLike[str], storage_options: Mapping[str, str] | None = None) -> Place:
    """Return the place that a path or a URL names.

    Args:
        path: a path of this machine, made absolute and plain, `~` for the user's folder; or `s3://`,
            `gs://`, `az://` or `memory://`.
        storage_options: keys of object_store, as delta-rs, Polars and obstore take them.

    Raises:
        InvalidArgumentError: it is neither text nor a path object, the scheme is unknown, a library is
            missing, the path holds a percent escape, or there are options for a path of this machine.
    """
    try:
        text = fspath(path)
    except TypeError as error:
        raise InvalidArgumentError(
            f"{path!r} is not a path of a store; expected text or a path object, such as 'data/cartpole'."
        ) from error
    if "\0" in (text if isinstance(text, str) else os.fsdecode(text)):
        raise InvalidArgumentError(f"{text!r} is not a path of a store: it holds a null byte.")
    url = _URL.match(text) if isinstance(text, str) else None
    scheme = url.group(1).lower() if url else "file"
    if url and scheme not in _SCHEMES:
        raise InvalidArgumentError(
            f"{text!r} has the unknown scheme {scheme}://. Use a path, or one of: "
            f"{', '.join(f'{known}://' for known in _SCHEMES)}."
        )
    refuse_unused(storage_options, text)
    place: Place
    if scheme == "file":
        place = LocalPlace(_plain(user_path(text[len("file://") :] if url else text).absolute()))
    elif scheme == "memory":
        place = memory_place(text[len("memory://") :])
    else:
        from .remote import remote_place

        place = remote_place(text, dict(storage_options or {}))
    if unusable := unusable_part(str(place)):
        raise InvalidArgumentError(
            f"The path {str(place)!r} holds {unusable!r}, which the tables cannot have. "
            "Choose or rename the folder so that it has no control character, no backslash, and no percent "
            "sign before two hexadecimal digits."
        )
    return place


def unusable_part(path: str) -> str | None:
    """Return the first part of a path that tables cannot have: a percent escape, control character or
    backslash; None if there is none.
    """
    match = _UNUSABLE.search(path)
    return match and match[0]


def memory_place(name: str) -> LocalPlace:
    """Return the folder behind `memory://name`; the same for the same name in one process.

    Raises:
        InvalidArgumentError: the name is empty or leads out of the folder.
    """
    parts = [part for part in name.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise InvalidArgumentError(f"'memory://{name}' has no name. Use memory://some-name.")
    return LocalPlace(_folder().joinpath(*parts))


def _folder() -> Path:
    """Return this process's folder; a forked child gets one of its own."""
    with _guard:
        if not _folders:
            base = str(_TMPFS) if os.access(_TMPFS, os.W_OK) else None
            _folders.append(Path(tempfile.mkdtemp(prefix="episodelake-memory-", dir=base)))
        return _folders[0]


@atexit.register
def _remove() -> None:
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)


def _forget_in_child() -> None:
    """Leave the folder to the parent of a forked child; a thread of the parent may have held the lock."""
    global _guard
    _guard = threading.Lock()
    _folders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
