"""Reading an object by ranges, as a file that pyarrow takes."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from .object_errors import as_os_errors


class RangedFile(io.RawIOBase):
    """A read-only file over an object; every read is one request for a range.

    Args:
        store: the obstore object.
        key: the object.
        size: its bytes.
    """

    def __init__(self, store: Any, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; nothing is asked of the object store."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def size(self) -> int:
        """Bytes of the object."""
        return self._size

    def read(self, size: int | None = -1, /) -> Any:
        """Ask for the next `size` bytes (negative: all that are left); fewer at the end."""
        stop = self._size if size is None or size < 0 else min(self._size, self._position + size)
        if stop <= self._position:
            return b""
        with as_os_errors(self._key):
            data = self._store.get_range(self._key, start=self._position, end=stop)
        self._position = stop
        return memoryview(data)


def open_object(store: Any, key: str) -> pa.PythonFile:
    """Return an object as an Arrow file; asks for its size."""
    with as_os_errors(key):
        size = int(store.head(key)["size"])
    return pa.PythonFile(RangedFile(store, key, size), "r")
