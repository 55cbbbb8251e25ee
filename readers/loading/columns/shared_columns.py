"""Columns in memory, handed to processes that are spawned, without a copy for each.

A forked process shares its parent's memory anyway. A spawned one gets its arguments by pickle, which would
copy every array into every process. So the columns are written once into a temporary file without a name,
whose descriptor is handed on; all processes map the same pages, and the file goes when the last of them ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import IO, Any

import numpy as np

from ....store.errors import StoreAccessError
from ..output.tree import Slot, Tree, lay_out, map_leaves, unpack


def is_spawning() -> bool:
    """Return whether this thread is pickling the arguments of a process that is being spawned."""
    return get_spawning_popen() is not None


@dataclass(frozen=True)
class SharedColumns:
    """Columns in a file without a name; only a process that is being spawned can unpickle it.

    Attributes:
        file: holds them.
        slots: by name, the place of each array in the file.
    """

    file: IO[bytes]
    slots: dict[str, Tree]

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (reduction.DupFd(self.file.fileno()), self.slots)

    def columns(self) -> dict[str, Tree]:
        """Return the columns, read-only, in pages that all processes share."""
        content = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        return unpack(self.slots, np.frombuffer(content, np.uint8))


def share(columns: Mapping[str, Tree]) -> SharedColumns:
    """Write columns to a file.

    Args:
        columns: by name, C-contiguous arrays or trees of those.

    Raises:
        StoreAccessError: the folder for temporary files is full.
    """
    slots, size = lay_out(dict(columns))
    try:
        file = tempfile.TemporaryFile(prefix="episodelake-")  # noqa: SIM115 - it stays open with its owner

        def write(slot: Slot, leaf: np.ndarray) -> None:
            file.seek(slot.start)
            file.write(leaf.reshape(-1).view(np.uint8).data)

        map_leaves(write, slots, columns)
        file.truncate(max(size, 1))  # an empty file cannot be mapped
        file.flush()
    except OSError as error:
        raise StoreAccessError(
            f"The columns cannot be shared with a process that is spawned: {error}. They are written to "
            f"{tempfile.gettempdir()!r}; name a larger folder by TMPDIR, or fork the process."
        ) from error
    return SharedColumns(file, slots)


def _opened(descriptor: Any, slots: dict[str, Tree]) -> SharedColumns:
    return SharedColumns(os.fdopen(descriptor.detach(), "rb"), slots)
