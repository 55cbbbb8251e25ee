"""What all file operations share: errors of our tree, and durable names in local folders."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import EpisodelakeError, StoreAccessError


@contextlib.contextmanager
def guard_access(action: str, path: object) -> Iterator[None]:
    """Turn an `OSError` of the operating system into a `StoreAccessError` that names the path.

    Args:
        action: what was being done, as in "write the journal".
        path: the file or folder concerned, shown as text.
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


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
