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

from ...store.errors import StoreAccessError
from .tree import Tree, map_leaves

#: Where arrays begin: at a cache line.
_ALIGNMENT = 64


def is_spawning() -> bool:
    """Whether this thread is pickling the arguments of a process that is being spawned."""
    return get_spawning_popen() is not None


@dataclass(frozen=True)
class _Stored:
    """An array in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class SharedColumns:
    """Columns in a file without a name; it can be pickled only for a process that is being spawned.

    Attributes:
        file: holds them.
        stored: by name, where in the file each array is.
    """

    file: IO[bytes]
    stored: dict[str, Tree]

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (reduction.DupFd(self.file.fileno()), self.stored)

    def columns(self) -> dict[str, Tree]:
        """The columns, in pages that all processes share; they cannot be written to."""
        mapped = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)

        def found(stored: _Stored) -> np.ndarray:
            return np.ndarray(stored.shape, stored.dtype, mapped, stored.offset)

        return {name: map_leaves(found, tree) for name, tree in self.stored.items()}


def share(columns: Mapping[str, Tree]) -> SharedColumns:
    """Write columns to a file.

    Args:
        columns: by name, C-contiguous arrays or trees of those.

    Raises:
        StoreAccessError: the folder for temporary files is full.
    """
    try:
        file = tempfile.TemporaryFile(prefix="episodelake-")  # noqa: SIM115 - it stays open with its owner
        stored = {name: map_leaves(lambda leaf: _write(file, leaf), tree) for name, tree in columns.items()}
        # Nothing of length zero can be mapped.
        file.write(b"\0")
        file.flush()
    except OSError as error:
        raise StoreAccessError(
            f"The columns cannot be shared with a process that is spawned: {error}. They are written to "
            f"{tempfile.gettempdir()!r}; name a larger folder by TMPDIR, or fork the process."
        ) from error
    return SharedColumns(file, stored)


def _write(file: IO[bytes], leaf: np.ndarray) -> _Stored:
    file.write(bytes(-file.tell() % _ALIGNMENT))
    stored = _Stored(file.tell(), leaf.shape, leaf.dtype)
    file.write(leaf.reshape(-1).view(np.uint8).data)
    return stored


def _opened(descriptor: Any, stored: dict[str, Tree]) -> SharedColumns:
    return SharedColumns(os.fdopen(descriptor.detach(), "rb"), stored)
