"""Decoded columns in contiguous arrays, row after row, and how they are read from a snapshot.

A forked process shares the arrays of its parent. A spawned one gets its arguments by pickle, which would copy
every array into every process. So the columns are then written once into a temporary file without a name,
whose descriptor is handed on; all processes map the same pages, and the file goes when the last of them ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ...store.errors import StoreAccessError
from ...store.frames import whole_chunks
from ...store.names import TERMINATED, TRUNCATED
from ...store.parquet.files import decoding_threads
from ...store.tables.table_files import POINTERS
from ..blocks import Block, BlockPart, BlockReader, SegmentFile
from .column import Column, EncodedColumn, SpaceColumn
from .encoded_rows import filled
from .episode_columns import EpisodeColumn
from .selection import END_REASONS, EpisodeIndex, Selection
from .tree import Slot, Tree, apart, lay_out, leaves, map_leaves, row_bytes, together, unpack


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
        return together(unpack(self.slots, np.frombuffer(content, np.uint8)))


def share(columns: Mapping[str, Tree]) -> SharedColumns:
    """Write columns to a file.

    Args:
        columns: by name, C-contiguous arrays or trees of those.

    Raises:
        StoreAccessError: the folder for temporary files is full.
    """
    columns = apart(dict(columns))
    slots, size = lay_out(columns)
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


_LARGE = 4 << 20
#: Rows are decoded a few at a time, with about so many bytes; not thriftily, with four times as many.
_PART_BYTES = 1 << 20

#: Rows of encoded frames are read so many at a time.
_PICTURES = 16

#: Columns, each with the arrays that its values go into.
_Pairs = list[tuple[Column, Tree]]

#: Stretches of rows: the first one, how many, and where they go.
_Stretches = list[tuple[int, int, int]]

#: One task reads a file of an object store up to this size; it reads all, if so much of it is wanted.
_ONE_TASK, _MOST_OF_FILE = 16 << 20, 0.6
#: Of larger files and row groups than this, so many are read at a time.
_SMALL_FILE, _large_reads = 2 << 20, threading.BoundedSemaphore(8)

#: Makes memory of so many bytes.
Allocate = Callable[[int], Any]


@dataclass(frozen=True)
class StepArrays:
    """Columns of some episodes.

    Attributes:
        index: where each episode's rows are.
        columns: by name, an array of shape (rows, ...) or a tree of those. C-contiguous.
    """

    index: EpisodeIndex
    columns: Mapping[str, Tree]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(leaf.nbytes for tree in self.columns.values() for _, leaf in leaves(tree))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays; for a process that is being spawned, a file that it shares."""
        if get_spawning_popen() is not None:
            return _from_shared, (self.index, self._shared)
        return StepArrays, (self.index, self.columns)

    @cached_property
    def _shared(self) -> SharedColumns:
        return share(self.columns)


def _from_shared(index: EpisodeIndex, shared: SharedColumns) -> StepArrays:
    return StepArrays(index, shared.columns())


@dataclass(frozen=True)
class ColumnSource:
    """Columns of some episodes in the files of a store.

    Attributes:
        blocks: opens the files.
        selection: the episodes.
        columns: the columns to read.
    """

    blocks: BlockReader
    selection: Selection
    columns: tuple[Column, ...]

    @property
    def index(self) -> EpisodeIndex:
        """The index of the episodes."""
        return self.selection.index

    def part(self, episodes: slice | np.ndarray) -> ColumnSource:
        """Return the same columns of some of the episodes."""
        return replace(self, selection=self.selection.part(episodes))

    @property
    def row_bytes(self) -> int:
        """Bytes of a decoded row."""
        return sum(column.row_bytes for column in self.columns)

    def fill(self, arrays: Mapping[str, Tree], pool: Executor, *, thrifty: bool = False) -> None:
        """Read the columns into arrays.

        Args:
            arrays: of all columns, by name.
            pool: decodes the row groups.
            thrifty: decode smaller parts, and return memory to the system after each row group.

        Raises:
            CorruptStoreError: a file is damaged.
        """
        blocks, index = self.blocks, self.index
        columns = [column for column in self.columns if not isinstance(column, EpisodeColumn)]
        for column in self.columns:
            if isinstance(column, EpisodeColumn):
                column.repeat(self.selection, arrays[column.name])
        passes = list(_passes(columns, arrays, frozenset(blocks.snapshot.schema.encodings)))
        most = max(1, _PART_BYTES * (1 if thrifty else 4) // max(1, self.row_bytes))
        if blocks.snapshot.schema.encodings:
            # What is read is encoded: chunks of some frames, decoded one after the other.
            most = max(most, _PICTURES)
        pieces = list(_pieces(self)) if columns else []
        tasks = [(piece, each) for piece in pieces for each in passes]
        # Few tasks leave threads free, which then decode columns in parallel.
        threads = len(tasks) < (os.cpu_count() or 1)
        grouped = len(blocks.snapshot.schema.groups) > 1

        def read(task: tuple[_Piece, tuple[_Pairs, bool]]) -> None:
            piece, (own, video) = task
            with piece.turn:
                for file, groups, wanted in piece.stretches(blocks, self.row_bytes):
                    read_groups(file, groups, wanted, own, video)

        def read_groups(
            file: SegmentFile, groups: range, wanted: _Stretches, own: _Pairs, video: bool
        ) -> None:
            first, stop = int(file.starts[groups[0]]), int(file.starts[groups[-1] + 1])
            whole = Block(file, groups, first, stop - first)
            fields = list(dict.fromkeys(name for column, _ in own for name in column.fields))
            low, last = 0, max(start + count for start, count, _ in wanted)
            # A part of the rows at a time: threads then hold little beside the arrays.
            tables = file.batches(groups, fields, most, threads=threads)
            for table in whole_chunks(tables, fields) if video else tables:
                part = BlockPart(whole, slice(low, low + table.num_rows))
                part.hold(table)
                write(own, part, _within(wanted, low, low + table.num_rows))
                low += table.num_rows
                if low >= last and last < stop - first:
                    break
            if thrifty:
                # Arrow's pool would keep more for each thread than a thread needs at a time.
                pa.default_memory_pool().release_unused()

        def write(own: _Pairs, block: Block, rows: _Stretches) -> None:
            if grouped and rows:
                # Columns of a group are NULL on the rows of other groups, so leave these out.
                block, rows = _only(block, rows)
            for column, into in own if rows else ():
                column.write(block, blocks.snapshot, into, rows)

        for _ in pool.map(read, tasks):
            pass
        if TRUNCATED in arrays and len(index):
            # To a learner an episode that did not terminate counts as truncated; an agent that never acted
            # has no transition to mark.
            acted = index.lengths > 0
            ended = index.end_reasons[acted] == END_REASONS.index(TERMINATED)
            arrays[TRUNCATED][index.last_transitions[acted]] |= ~ended


def empty_arrays(columns: Sequence[Column], rows: int, allocate: Allocate) -> dict[str, Tree]:
    """Return uninitialised arrays for some columns, by name."""

    def empty(leaf: np.ndarray) -> np.ndarray:
        shape = (rows, *leaf.shape[1:])
        size = rows * row_bytes(leaf)
        if size < _LARGE:
            return np.empty(shape, leaf.dtype)
        return np.frombuffer(allocate(size), leaf.dtype, size // leaf.itemsize).reshape(shape)

    return {column.name: column.empty(empty, rows) for column in columns}


def large_pages(size: int) -> Any:
    """Allocate long-lived memory: mapping small pages would take longer than decoding into them."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # macOS and Windows
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def pooled(size: int) -> Any:
    """Allocate short-lived memory from a pool, which reuses it without clearing."""
    return pa.allocate_buffer(size)


def read_arrays(
    source: ColumnSource, into: Mapping[str, Tree] | None = None, pool: Executor | None = None
) -> StepArrays:
    """Read columns; each row group is read and decoded once.

    Args:
        source: the columns and episodes.
        into: C-contiguous arrays to read into, by column; None for new ones in memory.
        pool: decodes the row groups; None for a pool of this call's own.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    arrays = empty_arrays(source.columns, source.index.rows, large_pages) if into is None else dict(into)
    if pool is not None:
        source.fill(arrays, pool)
    else:
        threads = decoding_threads(source.blocks.snapshot.layout.root)
        with ThreadPoolExecutor(threads, "episodelake loading") as own:
            source.fill(arrays, own, thrifty=True)
    return StepArrays(source.index, {name: filled(tree) for name, tree in arrays.items()})


def _passes(
    columns: Sequence[Column], arrays: Mapping[str, Tree], video: frozenset[str]
) -> Iterator[tuple[_Pairs, bool]]:
    """Yield columns that are read together, with their arrays, and whether they are frames to be decoded.

    Each column of such frames is read by itself: groups of pictures of two cameras may never begin in the
    same row, and all rows up to one are decoded together.
    """
    plain: _Pairs = []
    for column in columns:
        into = arrays[column.name]
        encoded = isinstance(column, EncodedColumn) or video.isdisjoint(column.fields)
        if encoded or not isinstance(column, SpaceColumn):
            plain.append((column, into))
            continue
        for part, own in column.divided(into):
            if part.name in video:
                yield [(part, own)], True
            else:
                plain.append((part, own))
    if plain:
        yield plain, False


def _only(block: Block, rows: _Stretches) -> tuple[Block, _Stretches]:
    """Return the part of a block that has some stretches of rows, and where these are in it."""
    chosen = np.zeros(block.count, bool)
    for start, count, _ in rows:
        chosen[start : start + count] = True
    before = np.cumsum(chosen) - chosen
    return BlockPart(block, chosen), [(int(before[start]), count, place) for start, count, place in rows]


def _within(rows: _Stretches, start: int, stop: int) -> _Stretches:
    """Return the parts of stretches of rows that are in `[start, stop)`, counted from its first row."""
    cut = ((max(first, start), min(first + count, stop), place - first) for first, count, place in rows)
    return [(low - start, high - low, shift + low) for low, high, shift in cut if low < high]


@dataclass(frozen=True)
class _Piece:
    """The part of a steps file that one task reads: a row group, or all that is wanted of a remote file.

    Attributes:
        segment: the file.
        wanted: rows of the row group, or of the file.
        size: bytes of the file, where all of it is read by one task; else 0.
        group: the row group, where the file is open.
        turn: is held while it reads.
    """

    segment: str
    wanted: _Stretches
    size: int = 0
    group: int = 0
    turn: contextlib.AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)

    def stretches(
        self, blocks: BlockReader, row_bytes: int
    ) -> Iterator[tuple[SegmentFile, range, _Stretches]]:
        """Yield row groups that follow each other, with the wanted rows counted from the first of them."""
        if not self.size:
            yield blocks.file(self.segment), range(self.group, self.group + 1), self.wanted
            return
        # Most of a file is asked for in one request instead of its end and then its columns.
        most = sum(count for _, count, _ in self.wanted) * row_bytes > self.size * _MOST_OF_FILE
        file = blocks.whole(self.segment) if most else blocks.file(self.segment)
        pieces = _by_group(file, self.wanted)
        groups = np.array(sorted(pieces))
        for some in np.split(groups, np.flatnonzero(np.diff(groups) > 1) + 1):
            stretch = range(int(some[0]), int(some[-1]) + 1)
            first = int(file.starts[stretch[0]])
            moved = (
                [(low + int(file.starts[group]) - first, count, place) for low, count, place in pieces[group]]
                for group in stretch
            )
            yield file, stretch, [each for own in moved for each in own]


def _pieces(source: ColumnSource) -> Iterator[_Piece]:
    """Yield what tasks read, in the order of first use."""
    blocks, pointers = source.blocks, source.selection.pointers
    by_file: dict[str, _Stretches] = {}
    for segment, start, count, place in _runs(source):
        by_file.setdefault(pointers.segments[segment], []).append((start, count, place))
    sizes = dict.fromkeys(by_file, 0)
    if blocks.snapshot.layout.root.local is None:
        sizes = {name: blocks.snapshot.listed_bytes(name) for name in by_file}
    opened = [name for name in by_file if not 0 < sizes[name] <= _ONE_TASK]
    files = dict(zip(opened, blocks.files(opened), strict=True))
    for name, wanted in by_file.items():
        if name not in files:
            turn = contextlib.nullcontext() if sizes[name] <= _SMALL_FILE else _large_reads
            yield _Piece(name, wanted, size=sizes[name], turn=turn)
            continue
        for group, own in _by_group(files[name], wanted).items():
            turn = contextlib.nullcontext() if not sizes[name] else _large_reads
            yield _Piece(name, own, group=group, turn=turn)


def _by_group(file: SegmentFile, wanted: _Stretches) -> dict[int, _Stretches]:
    """Return the wanted rows of a file by row group, counted from its first row."""
    pieces: dict[int, _Stretches] = {}
    for start, count, place in wanted:
        for group in file.groups_of(start, count):
            first, stop = int(file.starts[group]), int(file.starts[group + 1])
            low, high = max(start, first), min(start + count, stop)
            pieces.setdefault(group, []).append((low - first, high - low, place + low - start))
    return pieces


def _runs(source: ColumnSource) -> Iterator[tuple[int, int, int, int]]:
    """Yield contiguous rows, in a file and in the arrays: segment, start, count, place."""
    if not len(source.index):
        return
    segment, start, count = (getattr(source.selection.pointers, name) for name in POINTERS)
    joined = (segment[1:] == segment[:-1]) & (start[1:] == start[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    places = source.index.starts[:-1]
    counts = np.add.reduceat(count, first)
    yield from zip(
        segment[first].tolist(), start[first].tolist(), counts.tolist(), places[first].tolist(), strict=True
    )
