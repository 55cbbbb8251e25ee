"""`memory://name`: a folder in memory (tmpfs where there is one) that lives as long as this process.

A real folder, so that every engine reads it as any other; its name is known to this process alone.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path

from ..errors import InvalidArgumentError
from .local import LocalPlace

_TMPFS = Path("/dev/shm")
_guard = threading.Lock()
#: The folder of this process, as soon as there is one.
_folders: list[Path] = []


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
