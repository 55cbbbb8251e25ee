"""Small file operations with one meaning each: write whole or not at all, and errors of our tree."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from .errors import EpisodelakeError, StoreAccessError, StoreExistsError


@contextlib.contextmanager
def guard_access(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` of the operating system into a `StoreAccessError` that names the path.

    Args:
        action: what was being done, as in "write the journal".
        path: the file or directory concerned.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, EpisodelakeError):
            raise
        raise StoreAccessError(
            f"Could not {action} at {path}: {error.strerror or error}. {_hint(error)}"
        ) from error


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full: free some space and try again; what was journalled before stays."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Check that you may write there, or choose another folder."
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return "A file stands where a folder is needed: choose another path."
    return "Check the path and the file system."


def write_whole(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Write a file that readers see either whole or not at all.

    The data goes to a temporary neighbour first, is synced, and takes its name in one step.

    Args:
        path: the final name.
        data: the content.
        exclusive: fail if the name is taken, instead of replacing the file.

    Raises:
        StoreExistsError: `exclusive`, and the name is taken.
        StoreAccessError: the file system refused; nothing was changed.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with guard_access("write", path):
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if exclusive:
                os.link(temporary, path)
            else:
                os.replace(temporary, path)
        except FileExistsError as error:
            raise StoreExistsError(f"{path} exists already.") from error
        finally:
            temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable (fsync of the directory itself)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
