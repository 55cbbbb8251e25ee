"""File operations: errors of our tree, files replaced whole or not at all, durable names in local folders."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .errors import EpisodelakeError, InvalidArgumentError, StoreAccessError

try:
    import grp
    import pwd
except ImportError:  # Windows
    grp = pwd = None  # type: ignore[assignment]


@contextlib.contextmanager
def guard_access(action: str, path: object) -> Iterator[None]:
    """Turn an `OSError` of the operating system into a `StoreAccessError` that names the path.

    Args:
        action: what was being done, as in "write the journal".
        path: the file or folder concerned, shown as text.

    Raises:
        StoreAccessError: the system refused.
        InvalidArgumentError: the path holds a null byte.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, EpisodelakeError):
            raise
        raise StoreAccessError(
            f"Could not {action} at {path}: {error.strerror or error}. {_hint(error, path)}"
        ) from error
    except ValueError as error:
        # How Python refuses such a path before the system sees it.
        if str(error) != "embedded null byte":
            raise
        raise InvalidArgumentError(
            f"Could not {action}: {str(path)!r} holds a null byte, which no path may. Choose another path."
        ) from error


def _hint(error: OSError, path: object) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full: free some space and try again; what was journalled before stays."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{_owner(path)}Check that you may write there, or choose another folder."
    if error.errno == errno.EROFS:
        return "The file system is mounted for reading only: choose another folder."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "A file stands where a folder is needed: choose another path."
    if "://" in str(path):
        return "Check the address, the storage_options and that the object store is reachable."
    return "Check the path and the file system."


def _owner(path: object) -> str:
    """Describe the owner of the file, or of the nearest folder above it that can be seen."""
    if pwd is None or grp is None:
        return ""
    found = Path(str(path))
    for place in (found, *found.parents):
        try:
            state = place.lstat()
        except OSError:
            continue
        return (
            f"{place} belongs to the user {_name(pwd.getpwuid, state.st_uid)} and the group "
            f"{_name(grp.getgrgid, state.st_gid)}, with the mode {stat.S_IMODE(state.st_mode):04o}; this "
            f"process runs as {_name(pwd.getpwuid, os.geteuid())}. To share a store with a group, use a "
            "folder with the setgid bit (chmod g+ws) and record with umask 002; for files that exist, its "
            "owner can use chmod -R g+rwX. "
        )
    return ""


def _name(look_up: Callable[[int], Sequence[Any]], number: int) -> str:
    try:
        return f"{look_up(number)[0]} ({number})"
    except KeyError:
        return str(number)


@contextlib.contextmanager
def replacing(path: Path, ending: str = ".tmp", *, exclusive: bool = False) -> Iterator[Path]:
    """Yield a new path beside `path`; the file written there takes its name in one step.

    If anything fails the new file is removed, and `path` is as it was. A caller that promises durability
    syncs the file first and the folder afterwards.

    Args:
        path: the file to replace.
        ending: of the new file's name, for writers that choose a format by it.
        exclusive: do not replace a file that is there.

    Raises:
        FileExistsError: there is one already, and `exclusive` is set.
    """
    draft = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}{ending}")
    try:
        yield draft
        if exclusive:
            os.link(draft, path)
        else:
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
