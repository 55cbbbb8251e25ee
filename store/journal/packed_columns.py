"""Packed columns: image frames in the journal, compressed by stretches of rows.

Observations that are images make up nearly all of a journal, and to write, check and read back their bytes
takes longer than to compress them first. So a column of values of one size is *packed*: the values of some
neighbouring rows of one lane are one page of a Parquet file (see `parquet.pages`), which stands in the first
of these rows; the others are empty. Sealing copies such a *unit* into the segment, so frames are compressed
once; where it cannot, it unpacks units one by one, so memory stays bounded.
A packed column has a type that no other column has. Values that do not shrink stay as they are.

`Packer` stands between a batch and the journal part that it is written to, `PackedRows` between the part and
`row_index`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import DamagedJournalError
from ..parquet.pages import COMPRESSION, COMPRESSION_LEVEL, page_bytes, put_page, values_of_page
from ..schema import JOURNAL_AGENT, JOURNAL_NUMBER
from ..spaces.arrow import MAX_OFFSET, UNGATHERED, equal_binaries

#: The type of a packed column.
PACKED = pa.large_binary()
#: Metadata of its field: how many bytes a value has. Units of earlier writers are LZ4 frames of bare values.
PAGE_VALUE_BYTES = b"page_value_bytes"
VALUE_BYTES = b"value_bytes"

_LZ4 = "lz4"
# Units of less are not worth a call. Larger ones would leave the processor's caches, and be unpacked for a
# few of their rows.
_FEWEST_BYTES = 8 << 10
_MOST_BYTES = 512 << 10
# What does not shrink below this share is left as it is; so many bytes of a batch show whether it does.
_WORTH = 0.75
_SAMPLE_BYTES = 64 << 10
# No frame unpacks to more than so many times its size.
_MOST_TIMES = {COMPRESSION: 1 << 15, _LZ4: 255}
_UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError)


class _Values(NamedTuple):
    """Values of one size: the rows of `memory` (uint8, two dimensions), or those that `order` names."""

    memory: np.ndarray
    order: np.ndarray | None

    def between(self, low: int, high: int) -> np.ndarray:
        """Return the values `[low, high)`, copied only where they are not neighbours."""
        return self.memory[low:high] if self.order is None else self.memory[self.order[low:high]]


class Packer:
    """Packs the columns of batches where that makes them smaller."""

    def __init__(self) -> None:
        self._codec = pa.Codec(COMPRESSION, COMPRESSION_LEVEL)
        # Fresh memory for each page would take longer than to fill and compress it.
        self._page = np.empty(0, np.uint8)

    def packed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with all columns packed that are worth it; the rest shares memory with it.

        Columns of chosen rows (`UNGATHERED`) are gathered here, packed or not.
        """
        values_of = {
            index: values
            for index, column in enumerate(batch.schema)
            if column.type in (pa.binary(), UNGATHERED) and not column.metadata
            if (values := _values(batch.column(index))) is not None
        }
        if not values_of:
            return gathered(batch)
        most = max(values.memory.shape[1] for values in values_of.values())
        edges = _cut(lane_edges(batch), most)
        for index, values in values_of.items():
            valid = _valid(batch.column(index))
            count, size = int(np.count_nonzero(valid)), values.memory.shape[1]
            if count * size < _FEWEST_BYTES * (len(edges) - 1) or not self._shrinks(values, count):
                continue
            packed = self._pack(valid, values, edges)
            if packed.buffers()[2].size <= _WORTH * count * size:
                field = pa.field(batch.schema.field(index).name, PACKED, metadata=_page_metadata(size))
                batch = batch.set_column(index, field, packed)
        return gathered(batch)

    def paged(self, array: pa.Array, size: int) -> pa.Array | None:
        """Return a binary column as pages, whether that makes it smaller or not; None unless all values that
        are not NULL have this size.
        """
        values = _values(array)
        if values is None or values.memory.shape[1] != size:
            return None
        return self._pack(_valid(array), values, _cut(np.array([0, len(array)]), size))

    def between(self, pages: pa.Array, size: int, start: int, stop: int) -> pa.Array:
        """Return rows `[start, stop)` of pages without NULLs; pages that are cut are made anew."""
        edges = np.append(np.flatnonzero(np.diff(_offsets(pages)) > 0), len(pages))
        limits = edges.searchsorted([start, stop], side="right") - 1
        if edges[limits].tolist() == [start, stop]:
            return pages.slice(start, stop - start)
        parts = []
        for low, high in pairwise(sorted({start, stop, *edges[(start < edges) & (edges < stop)].tolist()})):
            first = int(edges[edges.searchsorted(low, side="right") - 1])
            last = int(edges[edges.searchsorted(high)])
            part = pages.slice(first, last - first)
            if (first, last) != (low, high):
                rows = _unpack(part, size, Arena(0), COMPRESSION).slice(low - first, high - low)
                part = self.paged(rows, size)
            parts.append(part)
        return pa.concat_arrays(parts) if parts else pages.slice(0, 0)

    def _pack(self, valid: np.ndarray, values: _Values, edges: np.ndarray) -> pa.Array:
        cuts = np.concatenate([[0], np.cumsum(valid)])[edges].tolist()
        # Each unit is gathered when it is compressed, so that it is in the processor's caches.
        units = [self._unit(values.between(low, high)) for low, high in pairwise(cuts) if low < high]
        joined = b"".join(units)
        lengths = np.zeros(len(valid), np.int64)
        lengths[_first_rows(valid, edges)] = [len(unit) for unit in units]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(PACKED, len(valid), [bits, pa.py_buffer(ends), pa.py_buffer(joined)])

    def _unit(self, values: np.ndarray) -> bytes:
        size = page_bytes(*values.shape)
        if len(self._page) < size:
            self._page = np.empty(size, np.uint8)
        put_page(values, self._page[:size])
        return self._codec.compress(pa.py_buffer(self._page[:size]), asbytes=True)

    def _shrinks(self, values: _Values, count: int) -> bool:
        """Return whether some bytes of the middle show that packing is worth it."""
        rows = max(1, _SAMPLE_BYTES // values.memory.shape[1])
        start = max(0, count - rows) // 2
        sample = values.between(start, start + rows).reshape(-1)[:_SAMPLE_BYTES]
        return self._codec.compress(pa.py_buffer(sample)).size <= _WORTH * len(sample)


def gathered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the columns of chosen rows (`UNGATHERED`) in memory of their own."""
    for index, column in enumerate(batch.schema):
        if column.type == UNGATHERED:
            array = batch.column(index).dictionary_decode()
            batch = batch.set_column(index, column.with_type(array.type), array)
    return batch


class Arena:
    """Memory that columns are unpacked into, the same for one row group after another.

    Fresh memory comes from the operating system a page at a time, which takes longer than unpacking into it.

    Args:
        size: bytes; a request for more than is left gets memory of its own.
    """

    def __init__(self, size: int) -> None:
        self._memory = np.empty(size, np.uint8)
        self._used = 0

    def take(self, size: int) -> np.ndarray:
        """Return memory of so many bytes, uint8, to be used until the next `clear`."""
        start, stop = self._used, self._used + size
        if stop > len(self._memory):
            return np.empty(size, np.uint8)
        self._used = stop
        return self._memory[start:stop]

    def clear(self) -> None:
        """Use the memory again; what was taken before is then invalid."""
        self._used = 0


@dataclass(frozen=True)
class PackedRows:
    """Rows of a journal batch, columns packed or not.

    Attributes:
        rows: as they stand in the journal.
        source: the part, for messages.
        packed: the schema as bytes if columns are packed, else None; rows that agree in it may be joined.
    """

    rows: pa.RecordBatch
    source: Path | None
    packed: bytes | None

    @staticmethod
    def of(batch: pa.RecordBatch, source: Path | None) -> PackedRows:
        """Return all rows of a batch."""
        packed = batch.schema.serialize().to_pybytes() if has_packed(batch.schema) else None
        return PackedRows(batch, source, packed)

    @cached_property
    def _edges(self) -> np.ndarray:
        """Return the first rows of units in all packed columns, and after them the number of rows."""
        begins = np.ones(self.rows.num_rows, bool)
        for array in self.rows.columns:
            if array.type == PACKED:
                begins &= np.diff(_offsets(array)) > 0
        begins[:1] = True
        return np.append(np.flatnonzero(begins), self.rows.num_rows)

    def part(self, start: int, stop: int) -> PackedRows:
        """Return the rows `[start, stop)`; where they cut a unit, all of them are unpacked.

        Raises:
            CorruptStoreError: a packed column is not what a journal holds.
        """
        if self.packed is None or start >= stop:
            return PackedRows(self.rows.slice(start, stop - start), self.source, self.packed)
        low = int(self._edges[self._edges.searchsorted(start, side="right") - 1])
        high = int(self._edges[self._edges.searchsorted(stop)])
        whole = PackedRows(self.rows.slice(low, high - low), self.source, self.packed)
        if (low, high) == (start, stop):
            return whole
        return PackedRows(whole.unpacked().slice(start - low, stop - start), self.source, None)

    def unpacked(self, arena: Arena | None = None, paged: Collection[str] = ()) -> pa.RecordBatch:
        """Return the rows with columns as they were before packing.

        Args:
            arena: where values are unpacked; memory of their own if None.
            paged: columns that may stay as they are.

        Raises:
            CorruptStoreError: a packed column is not what a journal holds.
        """
        rows = self.rows
        for index, column in enumerate(rows.schema):
            if column.type == PACKED and column.name not in paged:
                try:
                    size, codec = packed_bytes(column), _codec_of(column)
                    values = _unpack(rows.column(index), size, arena or Arena(0), codec)
                except MemoryError:
                    raise
                except _UNREADABLE as error:
                    raise DamagedJournalError(
                        f"The packed column {column.name!r} of the journal part {self.source} cannot be "
                        f"unpacked ({error}). It was written by something else, or changed on purpose."
                    ) from error
                rows = rows.set_column(index, pa.field(column.name, pa.binary()), values)
        return rows


def unpack_all(
    chunks: Iterable[PackedRows], arena: Arena, paged: Collection[str] = ()
) -> list[pa.RecordBatch]:
    """Return the rows of all chunks, unpacked; what was not packed shares memory with them.

    Packed neighbours are unpacked as one, which takes fewer calls.

    Args:
        chunks: the rows.
        arena: where columns are unpacked.
        paged: columns that are pages in all batches, or in none.

    Raises:
        CorruptStoreError: a packed column is not what a journal holds.
    """
    batches: list[pa.RecordBatch] = []
    every = list(chunks)
    for packed, group in groupby(every, lambda chunk: chunk.packed):
        members = list(group)
        if packed is None:
            batches += [chunk.rows for chunk in members]
        else:
            rows = pa.concat_batches([chunk.rows for chunk in members])
            batches.append(PackedRows(rows, members[0].source, packed).unpacked(arena, paged))
    made = [_paged_alike(batches, name) for name in paged]
    return batches if all(made) else unpack_all(every, arena)


def _paged_alike(batches: list[pa.RecordBatch], name: str) -> bool:
    """Turn a column into pages in all batches if it is so in one; False where that cannot be."""
    fields = [batch.schema.field(name) for batch in batches]
    field = next((each for each in fields if each.type == PACKED), None)
    for index, batch in enumerate(batches if field is not None else ()):
        if fields[index].type != PACKED:
            pages = Packer().paged(batch.column(name), packed_bytes(field))
            if pages is None:
                return False
            batches[index] = batch.set_column(batch.schema.get_field_index(name), field, pages)
    return True


def units_of(pages: Iterable[pa.Array]) -> Iterator[tuple[int, pa.Buffer]]:
    """Yield the units of packed columns without NULLs, each with its number of rows."""
    for array in pages:
        offsets = _offsets(array)
        first = np.flatnonzero(np.diff(offsets) > 0)
        counts, ends = np.diff(np.append(first, len(array))), np.append(offsets[first[1:]], offsets[-1:])
        for count, low, high in zip(counts.tolist(), offsets[first].tolist(), ends.tolist(), strict=True):
            yield count, array.buffers()[2].slice(low, high - low)


def lane_edges(batch: pa.RecordBatch) -> np.ndarray:
    """Return where the stretches of neighbouring rows of one lane begin, and after them where the last one
    ends.
    """
    names = (JOURNAL_NUMBER.name, JOURNAL_AGENT.name)
    return edges_of([batch.column(name).to_numpy() for name in names if name in batch.schema.names])


def edges_of(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Return where stretches of rows with equal keys begin, and after them where the last one ends.

    Args:
        keys: arrays of one length; at least one.
    """
    count = len(keys[0])
    if not count:
        return np.zeros(1, np.int64)
    changed = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        changed |= key[1:] != key[:-1]
    return np.concatenate([[0], np.flatnonzero(changed) + 1, [count]])


def packed_bytes(column: pa.Field) -> int:
    """Return how many bytes a value of a packed column has.

    Raises:
        ValueError: it is no packed column of ours.
    """
    metadata = column.metadata or {}
    size = int(metadata.get(PAGE_VALUE_BYTES) or metadata.get(VALUE_BYTES, b""))
    if column.type != PACKED or not 0 < size <= MAX_OFFSET:
        raise ValueError(f"the column {column.name!r} is not packed as a journal packs")
    return size


def has_packed(schema: pa.Schema) -> bool:
    """Return whether a batch has packed columns."""
    return PACKED in schema.types


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a journal column has when it is not packed."""
    return pa.binary() if kind == PACKED else kind


def plain_bytes(batch: pa.RecordBatch, size: int) -> int:
    """Return how many bytes a batch that takes `size` bytes in the journal would take there without
    packing.
    """
    for index, kind in enumerate(batch.schema.types):
        if kind == PACKED:
            array, ends = batch.column(index), _offsets(batch.column(index))
            values = len(array) - array.null_count
            size += values * packed_bytes(batch.schema.field(index)) - int(ends[-1] - ends[0])
    return size


def _page_metadata(size: int) -> dict[bytes, bytes]:
    return {PAGE_VALUE_BYTES: str(size).encode()}


def _codec_of(column: pa.Field) -> str:
    return COMPRESSION if PAGE_VALUE_BYTES in column.metadata else _LZ4


def _cut(edges: np.ndarray, size: int) -> np.ndarray:
    """Cut stretches of rows with values of a size into units."""
    most = max(1, _MOST_BYTES // size)
    if len(edges) < 2 or np.diff(edges).max() <= most:
        return edges
    units = [np.arange(low, high, most) for low, high in pairwise(edges.tolist())]
    return np.concatenate([*units, edges[-1:]])


def _unpack(array: pa.Array, size: int, arena: Arena, codec: str) -> pa.Array:
    valid, offsets, data = _valid(array), _offsets(array), array.buffers()[2]
    first = np.flatnonzero(np.diff(offsets) > 0)
    before = np.concatenate([[0], np.cumsum(valid)])
    total = int(before[-1]) * size
    if total > min(_MOST_TIMES[codec] * int(offsets[-1] - offsets[0]), MAX_OFFSET) or before[first[:1]].any():
        raise ValueError(f"{int(offsets[-1] - offsets[0])} bytes cannot be {total}")
    values = arena.take(total)
    into = values.data
    cuts = [*offsets[first].tolist(), int(offsets[-1])]
    ends = [*(before[first] * size).tolist(), total]
    largest = int(np.diff(ends).max(initial=0)) // size
    pages = np.empty(page_bytes(largest, size) if codec == COMPRESSION else 0, np.uint8)
    for (low, high), (begin, end) in zip(pairwise(cuts), pairwise(ends), strict=True):
        frame = data.slice(low, high - low)
        if codec == COMPRESSION:
            count = (end - begin) // size
            page = pages[: page_bytes(count, size)]
            _unpack_into(page.data, frame, codec)
            values[begin:end].reshape(count, size)[:] = values_of_page(page, count, size)
        else:
            _unpack_into(into[begin:end], frame, codec)
    return equal_binaries(values, size, len(array), None if valid.all() else valid)


def _unpack_into(into: memoryview, frame: pa.Buffer, codec: str) -> None:
    """Fill memory with the content of one frame, which must be exactly as large."""
    with pa.CompressedInputStream(pa.BufferReader(frame), codec) as stream:
        filled = 0
        while filled < len(into):
            some = stream.readinto(into[filled:])
            if not some:
                raise ValueError(f"{filled} bytes instead of {len(into)}")
            filled += some
        if stream.read(1):
            raise ValueError(f"more than {len(into)} bytes")


def _values(array: pa.Array) -> _Values | None:
    """Return the values of a binary column if they have one size; None if they have several, or there is
    none.
    """
    if array.null_count == len(array):
        return None
    if array.type == UNGATHERED:
        values = _values(array.dictionary)
        return values and _Values(values.memory, array.indices.drop_null().to_numpy())
    offsets = _offsets(array)
    sizes = np.diff(offsets)
    size = int(sizes.max())
    if not size or (sizes != np.where(_valid(array), size, 0)).any():
        return None
    memory = np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return _Values(memory.reshape(-1, size), None)


def _offsets(array: pa.Array) -> np.ndarray:
    """Return the offsets of a binary array's rows, one more than rows."""
    if not len(array):
        return np.zeros(1, np.int64)
    kind = np.int64 if array.type == PACKED else np.int32
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array) + 1]


def _valid(array: pa.Array) -> np.ndarray:
    if not array.null_count:
        return np.ones(len(array), bool)
    return array.is_valid().to_numpy(zero_copy_only=False)


def _first_rows(valid: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the first row with a value of each stretch that has one."""
    rows = np.flatnonzero(valid)
    at = rows.searchsorted(edges)
    return rows[at[:-1][at[:-1] < at[1:]]]
