"""Arrays in NumPy's format inside gzip and zip files, read in slices from front to back."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...store.errors import DatasetError
from ...store.files import is_file
from .boundary import check_access, check_bytes, closed_on_error, reading
from .formats import Match

_BLOCK_BYTES = 8 << 20
#: Of a file at a time, since decompressing makes a copy.
_READ_BYTES = 1 << 20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NpyFile:
    """An array that is decompressed as it is read, without pickles.

    A slice that begins before the end of the last one reads the file from its start again.

    Args:
        place: names the file in messages.
        name: of the array.
        open_file: opens the array's file.

    Attributes:
        shape, dtype: of the array.

    Raises:
        DatasetError: the file is damaged, or holds pickles.
    """

    def __init__(self, place: str, name: str, open_file: Callable[[], IO[bytes] | GzipFile]) -> None:
        self.name = name
        self._place = f"{place}: {name}"
        with reading(self._place):
            self._file = open_file()
        with closed_on_error(self):
            self._read_header()

    def _read_header(self) -> None:
        with reading(self._place):
            version = np.lib.format.read_magic(self._file)
            if version not in _HEADERS:
                raise DatasetError(f"{self._place}: version {version} of NumPy's format is unknown.")
            self.shape, fortran, self.dtype = _HEADERS[version](self._file)
        if self.dtype.hasobject:
            raise DatasetError(f"{self._place} holds pickled objects; expected numbers.")
        if fortran and len(self.shape) > 1:
            raise DatasetError(f"{self._place} is in Fortran order, which cannot be read in rows.")
        self._start = self._file.tell()
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return the rows of a slice, or with `()` the array.

        Raises:
            DatasetError: the file is damaged.
        """
        if rows == ():
            return self._read(0, self.shape)
        start, stop, _ = rows.indices(len(self))
        return self._read(start, (max(0, stop - start), *self.shape[1:]))

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield all rows in blocks of a few megabytes."""
        size = max(1, _BLOCK_BYTES // max(1, self._row_bytes))
        return (self[start : start + size] for start in range(0, len(self), size))

    def _read(self, start: int, shape: tuple[int, ...]) -> np.ndarray:
        check_bytes(self._place, self.dtype.itemsize * math.prod(shape))
        with reading(self._place):
            rows = np.empty(shape, self.dtype)
            rest = rows.reshape(-1).view(np.uint8).data
            self._file.seek(self._start + start * self._row_bytes)
            while len(rest):
                count = self._file.readinto(rest[:_READ_BYTES])  # type: ignore[attr-defined]
                if not count:
                    raise DatasetError(
                        f"{self._place} ends too early: its header gives the shape {self.shape}."
                    )
                rest = rest[count:]
        return rows

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NpzFile:
    """An `.npz` file; its arrays are opened one by one.

    Attributes:
        names: of its arrays.
        attrs: none.

    Raises:
        DatasetError: it is no zip file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.attrs: dict[str, object] = {}
        self._opened: dict[str, NpyFile] = {}
        with reading(str(path)):
            self._archive = zipfile.ZipFile(path)
        self.names = [name.removesuffix(".npy") for name in self._archive.namelist() if name.endswith(".npy")]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def items(self) -> Iterator[tuple[str, NpyFile]]:
        """Yield the names and the arrays, as a group of HDF5 does."""
        return ((name, self.open(name)) for name in self.names)

    def get(self, name: str) -> NpyFile | None:
        """Return an array, or None if there is none of this name."""
        return self.open(name) if name in self.names else None

    def open(self, name: str) -> NpyFile:
        """Open an array.

        Raises:
            DatasetError: it is missing or damaged, or holds pickles.
        """
        if name not in self.names:
            raise DatasetError(f"{self.path} has no {name}; it has {', '.join(self.names)}.")
        if name not in self._opened:
            self._opened[name] = NpyFile(str(self.path), name, lambda: self._archive.open(f"{name}.npy"))
        return self._opened[name]

    def close(self) -> None:
        """Close the file and its arrays."""
        for array in self._opened.values():
            array.close()
        self._archive.close()


def npz_path(source: Any) -> Path | None:
    """Return the path of an `.npz` file; None for any other source."""
    if not isinstance(source, str | Path) or Path(source).suffix != ".npz":
        return None
    if not is_file(Path(source)):
        return None
    return Path(source) if is_zip(Path(source)) else None


def is_zip(path: Path) -> bool:
    """Return whether a file is a zip file.

    Raises:
        StoreAccessError: it cannot be read, for which `zipfile.is_zipfile` returns False.
    """
    if zipfile.is_zipfile(path):
        return True
    try:
        zipfile.ZipFile(path).close()
    except zipfile.BadZipFile as error:
        check_access(path, error)
        return False
    return True


def look_into_npz(path: Path, *needed: str) -> Match:
    """Return whether an `.npz` file has some arrays.

    Raises:
        DatasetError: the file is damaged.
    """
    file = NpzFile(path)
    file.close()
    return Match.of_names(file.names, *needed)
