"""Copy rows of old files to a new one as Arrow tables, without decoding them.

*Aligned files* match the segments row by row: the steps themselves, or an annotation of them. Rows come in
the order of the episodes asked for: `in_order` streams what lies in this order already; `Shuffled` sorts
through temporary files, so that memory stays within one new segment.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from ..common.prefetch import peeked
from ..delta.log import NewFile
from ..dynamic.columns import align_to_schema, columns_or_nulls
from ..dynamic.logical_types import field_overflow
from ..errors import CorruptStoreError
from ..files import Place, guard_access, remove_file, temporary_folder
from ..frames import VideoColumn, encoded_tables, whole_chunks
from ..parquet.files import open_parquet, read_footer, reading_file
from ..parquet.writing import parquet_writer
from ..segments.steps_file import GROUP_BYTES, GROUP_ROWS
from ..tables.table_files import Pointers
from .operation import Progress

_RANK = "_rank"
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True)
class AlignedFiles:
    """Files that are aligned with segments.

    Attributes:
        place: the file that goes with a segment, by the segment's name; None if all its rows are NULL.
        schema: the columns that these files may have.
        segments: names of all segments that rows are taken from.
        video: the columns of encoded frames, of which a row group begins with a chunk.
        encode: those of them whose raw frames are encoded; all other cells are copied.
    """

    place: Callable[[str], Place | None]
    schema: pa.Schema
    segments: tuple[str, ...]
    video: tuple[VideoColumn, ...] = ()
    encode: tuple[VideoColumn, ...] = ()
    _open: dict[str, pq.ParquetFile] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[tuple[str, int], pa.Table] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def footers(self) -> dict[str, pq.FileMetaData]:
        """The footers of the files, by segment; at most one file is open at a time."""
        places = {name: self.place(name) for name in self.segments}
        return {name: read_footer(place) for name, place in places.items() if place is not None}

    @cached_property
    def columns(self) -> pa.Schema:
        """The columns that at least one of the files has, in the order of the schema.

        One that is marked counts too: the files may have numbers of it in their JSON columns.
        """
        names = {name for footer in self.footers.values() for name in footer.schema.to_arrow_schema().names}
        own = [c for c in self.schema if c.name in names or field_overflow(c) is not None]
        return pa.schema([column.remove_metadata() for column in own])

    def with_kinds(self, tables: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield rows of these files as batches whose columns carry their kinds."""
        schema = pa.schema([self.schema.field(name) for name in self.columns.names])
        for table in tables:
            yield from table.cast(schema).combine_chunks().to_batches()

    @cached_property
    def row_bytes(self) -> int:
        """About how many bytes a row takes before compression."""
        sizes = rows = 0
        for footer in self.footers.values():
            rows += footer.num_rows
            sizes += sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups))
        return max(1, sizes // max(1, rows))

    def rows(self, name: str, start: int, stop: int) -> Iterator[pa.Table]:
        """Yield the rows `[start, stop)` of the file of one segment, a row group at a time.

        Raises:
            CorruptStoreError: the file is damaged, or has fewer rows.
        """
        footer = self.footers.get(name)
        if footer is None:
            yield pa.table(columns_or_nulls({}, self.columns, stop - start), schema=self.columns)
            return
        first = 0
        for index in range(footer.num_row_groups):
            count = footer.row_group(index).num_rows
            low, high = max(start, first) - first, min(stop, first + count) - first
            if low < high:
                yield align_to_schema(self._group(name, index).slice(low, high - low), self.columns)
            first += count
        if stop > first:
            raise CorruptStoreError(
                f"{self.place(name)} has {first} rows; an episode points at rows up to {stop}. The file is "
                "not the one that was committed."
            )

    def _group(self, name: str, index: int) -> pa.Table:
        """Return a row group; the last one is kept, since the next range often begins in it."""
        if (name, index) not in self._kept:
            self._kept.clear()
            place = self.place(name)
            assert place is not None
            if name not in self._open:
                while self._open:
                    self._open.popitem()[1].close()
                self._open[name] = open_parquet(place, self.footers[name])
            with reading_file(place):
                self._kept[name, index] = self._open[name].read_row_group(index)
        return self._kept[name, index]


def in_order(aligned: AlignedFiles, pointers: Pointers) -> Iterator[pa.Table]:
    """Yield the rows of the episodes that `pointers` names, one after the other."""
    starts, stops = pointers.row_start, pointers.row_start + pointers.row_count
    breaks = (pointers.segment[1:] != pointers.segment[:-1]) | (starts[1:] != stops[:-1])
    firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    lasts = np.concatenate([firsts[1:], [len(starts)]]) - 1
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        name = pointers.segments[pointers.segment[first]]
        yield from aligned.rows(name, int(starts[first]), int(stops[last]))


class Shuffled:
    """Rows in an order unrelated to their files: sorted through temporary files.

    Args:
        aligned: where the rows come from.
        pointers: the episodes in their new order.
        bucket: for each of them the number of the new segment it goes to; never decreasing.
    """

    def __init__(self, aligned: AlignedFiles, pointers: Pointers, bucket: np.ndarray) -> None:
        self._aligned = aligned
        self._folder = temporary_folder("episodelake-")
        columns = [*aligned.columns, pa.field(_RANK, pa.int64())]
        with guard_access("write temporary files", self._folder.name), ExitStack() as stack:
            writers = [
                stack.enter_context(
                    pa.ipc.new_file(str(self._file(index)), pa.schema(columns), options=_COMPRESSED)
                )
                for index in range(int(bucket[-1]) + 1)
            ]
            for ranks, table in self._scattered(pointers):
                for index in np.unique(bucket[ranks]):
                    chosen = np.flatnonzero(bucket[ranks] == index)
                    rows = table.take(pa.array(chosen)).append_column(_RANK, pa.array(ranks[chosen]))
                    writers[index].write_table(rows)

    def _file(self, index: int) -> Path:
        return Path(self._folder.name, f"{index}.arrow")

    def _scattered(self, pointers: Pointers) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield rows in the order of the files, and for each the position of its episode in the new order."""
        for index, name in enumerate(pointers.segments):
            ranks = np.flatnonzero(pointers.segment == index)
            ranks = ranks[np.argsort(pointers.row_start[ranks], kind="stable")]
            starts, counts = pointers.row_start[ranks], pointers.row_count[ranks]
            # Episodes that lie next to each other are read together.
            gaps = np.flatnonzero(starts[1:] != (starts + counts)[:-1]) + 1
            for part in np.split(ranks, gaps) if len(ranks) else ():
                start = int(pointers.row_start[part[0]])
                stop = int(pointers.row_start[part[-1]] + pointers.row_count[part[-1]])
                each = np.repeat(part, pointers.row_count[part])
                done = 0
                for table in self._aligned.rows(name, start, stop):
                    yield each[done : done + table.num_rows], table
                    done += table.num_rows

    def bucket(self, index: int) -> Iterator[pa.Table]:
        """Yield the rows of one new segment in their new order."""
        path = self._file(index)
        with guard_access("read temporary files", path), pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            batch: int | None = None
            table = None
            for number, start, count in self._pieces(reader):
                if number != batch:
                    batch, table = number, pa.Table.from_batches([reader.get_batch(number)])
                assert table is not None
                yield table.slice(start, count).drop_columns([_RANK])
        remove_file(path)

    @staticmethod
    def _pieces(reader: pa.ipc.RecordBatchFileReader) -> Iterator[tuple[int, int, int]]:
        """Return batch, first row and number of rows of each episode, in the new order."""
        pieces: list[tuple[int, int, int, int]] = []
        for number in range(reader.num_record_batches):
            ranks = reader.get_batch(number).column(_RANK).to_numpy()
            edges = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)]
            pieces += [(int(ranks[low]), number, low, high - low) for low, high in itertools.pairwise(edges)]
        pieces.sort()
        return ((number, start, count) for _, number, start, count in pieces)

    def close(self) -> None:
        """Delete the temporary files."""
        self._folder.cleanup()


def counting(progress: Progress | None, total: int) -> Callable[[Iterator[pa.Table]], Iterator[pa.Table]]:
    """Return a function that passes tables on, and reports how many of all rows have passed."""
    done = 0

    def counted(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        nonlocal done
        for table in tables:
            done += table.num_rows
            if progress is not None:
                progress(done, total)
            yield table

    return counted


def write_rows(
    target: Place,
    aligned: AlignedFiles,
    tables: Iterator[pa.Table],
    counts: np.ndarray,
    schema: pa.Schema | None = None,
) -> tuple[int, dict[str, int]]:
    """Write rows as a new file, whose row groups never split an episode that fits in one.

    Args:
        target: the new file.
        aligned: the source of the rows; has the columns.
        tables: the rows.
        counts: how many rows each episode has, in the same order.
        schema: the columns, if they are not those of the aligned files.

    Returns:
        Number of rows, and NULLs by column.

    Raises:
        StoreAccessError: the file could not be written.
    """
    columns = pa.schema([column.remove_metadata() for column in schema or aligned.columns])
    nulls = dict.fromkeys(columns.names, 0)
    first, groups = peeked(_groups(aligned, tables, counts))
    with parquet_writer(target, columns, aligned.row_bytes, first) as writer:
        del first
        for group in groups:
            writer.write_table(group.cast(columns), row_group_size=max(1, group.num_rows))
            for name, column in zip(group.column_names, group.columns, strict=True):
                nulls[name] += column.null_count
    return int(counts.sum()), nulls


def _groups(aligned: AlignedFiles, tables: Iterator[pa.Table], counts: np.ndarray) -> Iterator[pa.Table]:
    """Yield the row groups of a new file."""
    names = [column.name for column in aligned.video]
    if not aligned.encode:
        groups = _regroup(tables, group_sizes(counts, aligned.row_bytes))
        return whole_chunks(groups, names) if names else groups
    raw = sum(column.image.size for column in aligned.encode)
    saved = sum(column.image.size - column.frame_bytes for column in aligned.encode)
    row_bytes = max(1, aligned.row_bytes - saved) if aligned.row_bytes > raw else aligned.row_bytes
    # One task for each processor, at most eight: the tables ahead are held, raw.
    ahead = -(-min(os.cpu_count() or 1, 8) // len(aligned.encode))
    encoded = encoded_tables(whole_chunks(tables, names), aligned.encode, ahead=ahead)
    return whole_chunks(_regroup(encoded, group_sizes(counts, row_bytes)), names)


def group_sizes(counts: Sequence[int] | np.ndarray, row_bytes: int) -> list[int]:
    """Return the rows of each row group: as many episodes as fit, longer ones cut."""
    most = max(1, min(GROUP_ROWS, GROUP_BYTES // row_bytes))
    sizes: list[int] = []
    filling = 0
    for count in np.asarray(counts).tolist():
        if filling and filling + count > most:
            sizes.append(filling)
            filling = 0
        while count > most:
            sizes.append(most)
            count -= most
        filling += count
    return [*sizes, filling] if filling else sizes


def _regroup(tables: Iterator[pa.Table], sizes: Sequence[int]) -> Iterator[pa.Table]:
    rest: pa.Table | None = None
    for size in sizes:
        parts: list[pa.Table] = []
        missing = size
        while missing:
            table = next(tables) if rest is None else rest
            parts.append(table.slice(0, missing))
            missing -= parts[-1].num_rows
            rest = table.slice(parts[-1].num_rows) if table.num_rows > parts[-1].num_rows else None
        yield pa.concat_tables(parts)


def new_steps_file(name: str, ids: pa.ChunkedArray, written: tuple[int, dict[str, int]]) -> NewFile:
    """Return how to list a new segment."""
    low, high = (pc.call_function("min_max", [ids])[key].as_py() for key in ("min", "max"))
    return NewFile(name, *written, {"episode_id": low}, {"episode_id": high})
