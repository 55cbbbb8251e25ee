"""Checksums of Parquet pages, compared without decoding since engines skip them; and digests of files.

Every page that we write carries a CRC-32. This module walks the pages of a column chunk, compares each
checksum, and holds the headers against the file's checked footer: pages must fill the chunk and add up to its
number of values. It reads compressed bytes only, so a check costs a fraction of the query that follows.
Verdicts are kept per file and column for the life of the process.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..files import Place, guard_access
from ..files.access import pread
from ..layout import checksum
from .files import file_key, footer_bytes, open_parquet, read_checked_footer, reading_error

#: Columns of files whose pages were found whole, by file identity: a file that was changed since has another.
_whole: dict[object, set[str]] = {}
#: Files whose pages were all read, likewise, and digests of footers.
_read: set[object] = set()
_digests: dict[object, str] = {}
# Reentrant, for the `finally` of a generator that is collected while its own thread holds the lock.
_lock = threading.RLock()
#: Fewer bytes than this are checked faster without threads.
_WORTH_THREADS = 8 << 20
_READERS = 16
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DEEPEST = 3
_ENCODINGS = {
    "PLAIN": 0,
    "PLAIN_DICTIONARY": 2,
    "RLE": 3,
    "BIT_PACKED": 4,
    "DELTA_BINARY_PACKED": 5,
    "DELTA_LENGTH_BYTE_ARRAY": 6,
    "DELTA_BYTE_ARRAY": 7,
    "RLE_DICTIONARY": 8,
    "BYTE_STREAM_SPLIT": 9,
}
_RLE, _PLAIN = 3, (0, 2)


@dataclass(frozen=True)
class _Chunk:
    """The pages of one column in one row group, as the footer describes them."""

    column: str
    group: int
    start: int
    size: int
    unpacked: int
    values: int
    encodings: frozenset[int]


@dataclass(frozen=True)
class FilePages:
    """Column chunks of a file that are still to be checked.

    Attributes:
        place: the file.
        key: its identity.
        columns: those in question.
        chunks: theirs.
        required: whether every page must carry a checksum, as in all files of ours.
        ends: after how many rows each row group ends.
    """

    place: Place
    key: object
    columns: frozenset[str]
    chunks: tuple[_Chunk, ...]
    required: bool
    ends: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(chunk.size for chunk in self.chunks)

    def within(self, rows: np.ndarray) -> FilePages:
        """Only the row groups that hold some rows of the file."""
        groups = set(np.searchsorted(self.ends, rows, "right").tolist())
        return replace(self, chunks=tuple(chunk for chunk in self.chunks if chunk.group in groups))


def all_checked(places: Sequence[Place], columns: Collection[str]) -> bool:
    """Return whether this process has checked the pages of some columns in all of these files."""
    wanted = set(columns)
    return all(wanted <= _whole.get(file_key(place), set()) for place in places)


def unchecked(places: Sequence[Place], columns: Collection[str], *, every: bool = False) -> list[FilePages]:
    """Return the pages of some columns of local files that this process has not checked yet.

    Args:
        places: the files.
        columns: names of columns.
        every: give an entry for each file, also where nothing is left to check.

    Raises:
        CorruptStoreError: a footer is damaged; the message names the file.
    """
    wanted = set(columns)
    pages = []
    for place in places:
        key = file_key(place)
        missing = wanted - _whole.get(key, set())
        if (missing or every) and place.local is not None:
            pages.append(_pages_of(place, key, missing))
    return pages


def check(files: Sequence[FilePages]) -> None:
    """Compare pages with their checksums and remember those that are whole; in threads where it pays.

    Raises:
        CorruptStoreError: one is damaged; the message names the file and the column.
    """
    if sum(file.size for file in files) < _WORTH_THREADS:
        for file in files:
            _check_file(file)
        return
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(_check_file, files))


def _pages_of(place: Place, key: object, columns: set[str]) -> FilePages:
    footer, ours = read_checked_footer(place)
    names = footer.schema.to_arrow_schema().names
    if len(names) != footer.num_columns:
        # A column of several leaves is none of ours: its chunks count for every column.
        names = [min(columns, default="")] * footer.num_columns
    chosen = [(index, name) for index, name in enumerate(names) if name in columns]
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    chunks = [
        _chunk(name, number, group.column(index))
        for number, group in enumerate(groups)
        for index, name in chosen
    ]
    ends, rows = [], 0
    for group in groups:
        rows += group.num_rows
        ends.append(rows)
    return FilePages(place, key, frozenset(columns), tuple(chunks), ours, tuple(ends))


def _chunk(name: str, group: int, chunk: pq.ColumnChunkMetaData) -> _Chunk:
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = min(start, chunk.dictionary_page_offset)
    encodings = frozenset(_ENCODINGS.get(each, -1) for each in chunk.encodings)
    return _Chunk(
        name,
        group,
        start,
        chunk.total_compressed_size,
        chunk.total_uncompressed_size,
        chunk.num_values,
        encodings,
    )


def _remember(key: object, columns: Collection[str]) -> None:
    if key is not None and columns:
        with _lock:
            _whole.setdefault(key, set()).update(columns)


def _check_file(file: FilePages) -> None:
    try:
        assert file.place.local is not None
        with open(file.place.local, "rb", buffering=0) as stream:
            for chunk in file.chunks:
                data = pread(stream.fileno(), chunk.size, chunk.start)
                _check_chunk(data, chunk, required=file.required)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise reading_error(file.place, error) from error
    groups = {chunk.group for chunk in file.chunks}
    if not groups or len(groups) == len(file.ends):
        _remember(file.key, file.columns)


def _check_chunk(data: bytes, chunk: _Chunk, *, required: bool) -> None:
    """Walk the pages of a column chunk.

    Raises:
        ValueError: a checksum differs, or a header contradicts the footer.
    """
    values = unpacked = 0
    try:
        for header, head, body in _pages(data):
            if 4 in header:
                if checksum(body) != header[4] & 0xFFFFFFFF:
                    raise ValueError("a checksum differs")
            elif required:
                raise ValueError("a page has no checksum")
            unpacked += head + header[2]
            values += _values_of(header, chunk.encodings)
    except (IndexError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the pages of its column {chunk.column!r} have broken headers") from error
    except ValueError as error:
        raise ValueError(f"the pages of its column {chunk.column!r} are damaged: {error}") from error
    if (len(data), values, unpacked) != (chunk.size, chunk.values, chunk.unpacked):
        raise ValueError(f"the pages of its column {chunk.column!r} do not add up to what its footer lists")


def _values_of(header: dict[int, Any], encodings: frozenset[int]) -> int:
    """Return the number of values in a page; 0 for a dictionary."""
    kind = header[1]
    if kind == _DICTIONARY:
        if header[7][2] not in _PLAIN:
            raise ValueError("its dictionary has an encoding that dictionaries lack")
        return 0
    if kind not in (_DATA, _DATA_V2):
        raise ValueError(f"a page has the unknown type {kind}")
    inner = header[5 if kind == _DATA else 8]
    if kind == _DATA and (inner[2] not in encodings or (inner[3], inner[4]) != (_RLE, _RLE)):
        raise ValueError("a page has an encoding that its column lacks")
    return inner[1]


def _pages(data: bytes) -> Iterator[tuple[dict[int, Any], int, memoryview]]:
    """Yield each page of a chunk: its header by field number, the header's size, and the page's bytes."""
    at, view = 0, memoryview(data)
    while at < len(data):
        header, start = _struct(data, at, 0)
        stop = start + header[3]
        if header[3] < 0 or stop > len(data):
            raise ValueError("a page is longer than its column")
        yield header, start - at, view[start:stop]
        at = stop


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return a struct in Thrift's compact protocol by field number, and where it ends."""
    if depth > _DEEPEST:
        raise ValueError("a page header is nested too deeply")
    fields: dict[int, Any] = {}
    field = 0
    while byte := data[at]:
        kind = byte & 15
        at += 1
        if byte >> 4:
            field += byte >> 4
        else:
            field, at = _integer(data, at)
        if kind in (1, 2):
            fields[field] = kind == 1
        elif kind in (4, 5, 6):
            fields[field], at = _integer(data, at)
        elif kind == 8:
            length, at = _varint(data, at)
            at += length
        elif kind == 12:
            fields[field], at = _struct(data, at, depth + 1)
        else:
            raise ValueError(f"a page header has a field of the unknown type {kind}")
    return fields, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at
        shift += 7
        if shift > 63:
            raise ValueError("a page header has a number of more than 64 bits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def content_digests(places: Sequence[Place]) -> list[str]:
    """Return a text for each of some files that another file, or a changed one, does not have.

    It is the hash of the file's footer, read once in this process (see `_footer_digest`); and of a local file
    its size, and when its inode changed, which no program can set: a footer says little of lists.

    Raises:
        CorruptStoreError: one is damaged or missing; the message names it.
    """
    keys = [file_key(place) for place in places]
    new = [(key, place) for key, place in zip(keys, places, strict=True) if key not in _digests]
    # Object stores answer many requests at once in the time of one.
    with ThreadPoolExecutor(_READERS) as pool:
        _digests.update(
            zip((key for key, _ in new), pool.map(_footer_digest, (p for _, p in new)), strict=True)
        )
    return [_digests[key] + _changed(place) for key, place in zip(keys, places, strict=True)]


def _changed(place: Place) -> str:
    if place.local is None:
        return ""
    with guard_access("look at", place.local):
        state = os.stat(place.local)
    return f"-{state.st_size}-{state.st_ctime_ns}"


def check_pages(places: Sequence[Place]) -> None:
    """Compare every page of some files with its checksum, once in this process: engines do not.

    Raises:
        CorruptStoreError: one is damaged; the message names the file.
    """
    for place in places:
        key = file_key(place)
        if key is not None and key in _read:
            continue
        try:
            file = open_parquet(place)
            for group in range(file.num_row_groups):
                file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise reading_error(place, error) from error
        _read.add(key)


def _footer_digest(place: Place) -> str:
    """Return the SHA-256 of a footer: where its pages lie, how large they are, and their statistics."""
    try:
        return hashlib.sha256(footer_bytes(place)[0]).hexdigest()
    except (OSError, ValueError) as error:
        raise reading_error(place, error) from error
