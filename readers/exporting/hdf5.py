"""Writing HDF5 files: growing columns, infos as columns, and what single arrays cannot hold."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from ...store.common.optional_packages import require
from ...store.dynamic.column_groups import INFO
from ...store.errors import DatasetError
from ...store.spaces.codec import slice_batch
from ..episode import Episode
from ..episode_data import stack
from .step_arrays import SIMPLE_SPACES, number_array
from .target import Export

_BLOCK_BYTES = 4 << 20
#: Some of them fit into HDF5's cache.
_CHUNK_BYTES = 256 << 10
#: HDF5 refuses attributes of 64 KiB; a text in a list takes a reference.
_ATTRIBUTE_BYTES, _TEXT_BYTES = 60_000, 16


@contextmanager
def new_file(target: Path, name: str) -> Iterator[Any]:
    """Yield a new HDF5 file, open for writing; see `episodes_into`.

    Raises:
        MissingPackageError: h5py is not installed.
        OSError: a write failed, as on a full disk.
    """
    h5py = require("h5py", f"Exporting to {name}")
    with open(target, "w+b", buffering=0) as opened:
        writes = _Writes(opened)
        try:
            with h5py.File(writes, "w") as file:
                file.writes = writes
                yield file
        except Exception:
            if writes.error is None:
                raise
        if writes.error is not None:
            writes.error.filename = str(target)
            raise writes.error


def episodes_into(file: Any, export: Export) -> Iterator[Episode]:
    """Yield the episodes for a file of `new_file` until a write to it has failed.

    Raises:
        OSError: it has.
    """
    for episode in export.episodes():
        if file.writes.error is not None:
            raise file.writes.error
        yield episode


class _Writes:
    """A file for h5py whose writes never fail: HDF5 crashes the process when it closes a file of failed ones.

    Attributes:
        error: of the first write that failed; those after it are left out.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.error: OSError | None = None
        self.read, self.readinto, self.seek = file.read, file.readinto, file.seek
        self.tell, self.flush = file.tell, file.flush

    def write(self, data: memoryview) -> int:
        """Write all bytes, unless a write has failed."""
        rest = memoryview(data)
        try:
            while len(rest) and self.error is None:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            self.error = error
        return len(data)

    def truncate(self, size: int) -> int:
        """Set the length, unless a write has failed."""
        try:
            return self._file.truncate(size) if self.error is None else size
        except OSError as error:
            self.error = error
            return size


class ColumnWriter:
    """Appends rows to arrays of a file, in blocks of a few megabytes.

    Call `flush` at the end.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._waiting: dict[str, list[np.ndarray]] = {}
        self._bytes: dict[str, int] = {}

    def create(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Create an empty array for rows of a shape; each chunk holds complete rows."""
        row_bytes = max(1, np.dtype(dtype).itemsize * int(np.prod(shape)))
        chunk = (max(1, _CHUNK_BYTES // row_bytes), *(max(1, size) for size in shape))
        self._file.create_dataset(name, (0, *shape), dtype, maxshape=(None, *shape), chunks=chunk)
        self._waiting[name], self._bytes[name] = [], 0

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to an array."""
        self._waiting[name].append(rows)
        self._bytes[name] += rows.nbytes
        if self._bytes[name] > _BLOCK_BYTES:
            self._write(name)

    def drop(self, name: str) -> None:
        """Delete an array."""
        del self._waiting[name], self._bytes[name], self._file[name]

    def flush(self) -> None:
        """Write the rows that wait."""
        for name in self._waiting:
            self._write(name)

    def _write(self, name: str) -> None:
        if not self._waiting[name]:
            return
        rows = np.concatenate(self._waiting[name])
        array = self._file[name]
        array.resize(len(array) + len(rows), axis=0)
        array[len(array) - len(rows) :] = rows
        self._waiting[name], self._bytes[name] = [], 0


class InfoColumns:
    """Infos as columns of T rows: those that have numbers of one shape and type in every episode."""

    def __init__(self, columns: ColumnWriter, prefix: str, export: Export) -> None:
        self._columns = columns
        self._prefix = prefix
        self._export = export
        self._episodes = 0
        self._kept: dict[str, tuple[Any, ...]] = {}
        self._any = any(map(INFO.owns, export.context.snapshot.steps_schema))

    def append(self, episode: Episode, transitions: int) -> None:
        """Append the infos of the first rows of an episode."""
        if not self._any:
            return
        if any(episode.infos[transitions:]):
            self._export.losses.add("the infos of a last observation")
        kept = flat(self._export.of_steps(INFO, _rows_by_key(episode, transitions)))
        infos = {name: values for name, part in kept if (values := number_array(part)) is not None}
        for name in [name for name in self._kept if name not in infos]:
            self._drop(name)
        for name, values in infos.items():
            form = (values.shape[1:], values.dtype)
            if name not in self._kept:
                if self._episodes:
                    self._export.losses.add(f"info.{name.replace('/', '.')}, which not every episode has")
                    continue
                self._columns.create(self._prefix + name, *form)
                self._kept[name] = form
            elif self._kept[name] != form:
                self._drop(name)
                continue
            self._columns.append(self._prefix + name, values)
        self._episodes += 1

    def _drop(self, name: str) -> None:
        self._columns.drop(self._prefix + name)
        del self._kept[name]
        what = f"info.{name.replace('/', '.')}, which has not the same form in every episode"
        self._export.losses.add(what, self._episodes + 1)


def is_numbers(path: tuple[Any, ...], values: Any) -> bool:
    """Return whether values are numbers of one shape, and the keys that lead to them names of HDF5."""
    numbers = number_array(values)
    return numbers is not None and bool(numbers.size) and all(map(is_name, path))


def _rows_by_key(episode: Episode, count: int) -> dict[str, Any]:
    """Return the infos of the first rows by key; kinds of numbers follow from these rows alone."""
    rows = episode.infos[:count]
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: stack([row.get(key) for row in rows]) for key in keys}


def is_name(key: Any) -> bool:
    """Return whether HDF5 gives a name back as it is, not as a path."""
    return isinstance(key, str) and key not in ("", ".") and "/" not in key and "\0" not in key


def is_attribute(value: Any) -> bool:
    """Return whether an attribute gives a value back as it is: a number, a text, or a list of one kind."""
    if isinstance(value, str):
        return "\0" not in value
    if not isinstance(value, list):
        return number_array(value) is not None
    if value and all(isinstance(part, str) for part in value):
        return len(value) * _TEXT_BYTES < _ATTRIBUTE_BYTES and all(map(is_attribute, value))
    numbers = number_array(value)
    return numbers is not None and 0 < numbers.nbytes < _ATTRIBUTE_BYTES


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings by path; their keys are names of HDF5."""
    for key, part in values.items():
        if isinstance(part, Mapping):
            yield from flat(part, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", part


def single_array(space: Space, what: str, target: str) -> Space:
    """Return a space whose values are single arrays or numbers.

    Raises:
        DatasetError: it is another one.
    """
    if isinstance(space, SIMPLE_SPACES) and 0 not in (space.shape or ()):
        return space
    raise DatasetError(
        f"{target} holds {what} that are one number or array each; the store has {what} of {space}. "
        "Write an array of them to another store, and export that."
    )


def first_rows(values: Any, count: int) -> Any:
    """Return the first values of a batch."""
    return slice_batch(values, 0, count)
