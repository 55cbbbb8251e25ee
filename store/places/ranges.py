"""Reading objects by ranges, in the two shapes that pyarrow takes: a file, and a file system."""

from __future__ import annotations

import io
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as fs

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
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position."""
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


class ObjectFiles(fs.FileSystemHandler):
    """The objects below one root as a read-only file system for Arrow datasets; paths are keys."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get_type_name(self) -> str:
        """What pyarrow shows."""
        return "episodelake objects"

    def normalize_path(self, path: str) -> str:
        """Keys have one spelling."""
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Sizes of objects."""
        return [
            fs.FileInfo(path, fs.FileType.File, size=int(self._store.head(path)["size"])) for path in paths
        ]

    def open_input_file(self, path: str) -> pa.PythonFile:
        """An object for reading."""
        return open_object(self._store, path)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """The same; it can seek too."""
        return open_object(self._store, path)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("this file system opens objects for reading, and nothing else")

    get_file_info_selector = _refuse
    create_dir = _refuse
    delete_dir = _refuse
    delete_dir_contents = _refuse
    delete_root_dir_contents = _refuse
    delete_file = _refuse
    move = _refuse
    copy_file = _refuse
    open_output_stream = _refuse
    open_append_stream = _refuse


def open_object(store: Any, key: str) -> pa.PythonFile:
    """An object as an Arrow file; asks for its size."""
    with as_os_errors(key):
        size = int(store.head(key)["size"])
    return pa.PythonFile(RangedFile(store, key, size), "r")
