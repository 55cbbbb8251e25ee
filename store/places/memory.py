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
_folders: dict[int, Path] = {}


def memory_place(name: str) -> LocalPlace:
    """The folder behind `memory://name`; the same for the same name in one process.

    Raises:
        InvalidArgumentError: the name is empty or leads out of the folder.
    """
    parts = [part for part in name.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise InvalidArgumentError(f"'memory://{name}' has no name. Use memory://some-name.")
    return LocalPlace(_folder().joinpath(*parts))


def _folder() -> Path:
    """This process's folder; a forked child gets one of its own."""
    process = os.getpid()
    with _guard:
        if process not in _folders:
            base = str(_TMPFS) if os.access(_TMPFS, os.W_OK) else None
            folder = Path(tempfile.mkdtemp(prefix="episodelake-memory-", dir=base))
            _folders[process] = folder
            atexit.register(_remove, process, folder)
        return _folders[process]


def _remove(process: int, folder: Path) -> None:
    # A forked child inherits the registration of its parent, whose folder is not its to remove.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
