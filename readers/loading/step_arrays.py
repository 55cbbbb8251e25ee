"""Decoded columns in contiguous arrays, row after row, and how they are read from a snapshot."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.schema import TERMINATED, TRUNCATED
from ...store.snapshot import Pointers
from ..blocks import BlockReader
from .columns import Column
from .episode_index import END_REASONS, EpisodeIndex
from .shared_columns import SharedColumns, is_spawning, share
from .tree import Tree, leaves, map_leaves

_LARGE = 4 << 20

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
        """By value; for a process that is being spawned, as a file that it shares."""
        if is_spawning():
            return _from_shared, (self.index, self._shared)
        return StepArrays, (self.index, self.columns)

    @cached_property
    def _shared(self) -> SharedColumns:
        return share(self.columns)


def _from_shared(index: EpisodeIndex, shared: SharedColumns) -> StepArrays:
    return StepArrays(index, shared.columns())


@dataclass
class _Piece:
    """A row group of a segment, and the wanted rows of it: first row, how many, where they go."""

    segment: str
    group: int
    rows: list[tuple[int, int, int]] = field(default_factory=list)


def empty_arrays(columns: Sequence[Column], rows: int, allocate: Allocate) -> dict[str, Tree]:
    """Arrays of so many rows for some columns, by name, contents undefined."""

    def empty(leaf: np.ndarray) -> np.ndarray:
        shape = (rows, *leaf.shape[1:])
        count = int(np.prod(shape))
        size = count * leaf.itemsize
        if size < _LARGE:
            return np.empty(shape, leaf.dtype)
        return np.frombuffer(allocate(size), leaf.dtype, count).reshape(shape)

    return {column.name: map_leaves(empty, column.template) for column in columns}


def large_pages(size: int) -> Any:
    """Memory that is held for long: for small pages the system takes longer than decoding into them does."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def pooled(size: int) -> Any:
    """Memory that is soon given back, and then taken again without the system clearing it."""
    return pa.allocate_buffer(size)


def read_arrays(
    blocks: BlockReader,
    positions: np.ndarray,
    index: EpisodeIndex,
    columns: Sequence[Column],
    into: Mapping[str, Tree] | None = None,
    pool: Executor | None = None,
) -> StepArrays:
    """Read columns of the episodes at some positions; each row group is read and decoded once.

    Args:
        blocks: opens the files.
        positions: int64, in the snapshot.
        index: of the same episodes, in the same order.
        columns: what to read.
        into: C-contiguous arrays to read into, by column; None for new ones in memory.
        pool: decodes the row groups; None for one thread a processor.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    if pool is None:
        with ThreadPoolExecutor(os.cpu_count() or 1, "episodelake loading") as own:
            return read_arrays(blocks, positions, index, columns, into, own)
    arrays = empty_arrays(columns, index.rows, large_pages) if into is None else dict(into)
    fields = {name for column in columns for name in column.fields}
    pieces = list(_pieces(blocks, positions, index))
    # Few row groups leave threads free, which then decode columns in parallel.
    threads = len(pieces) < (os.cpu_count() or 1)

    def read(piece: _Piece) -> None:
        file = blocks.file(piece.segment)
        first, stop = int(file.starts[piece.group]), int(file.starts[piece.group + 1])
        block = blocks.block(file, range(piece.group, piece.group + 1), first, stop - first)
        block.load(fields, threads=threads)
        for column in columns:
            column.write(block, blocks.snapshot, arrays[column.name], piece.rows)

    for _ in pool.map(read, pieces):
        pass
    _end_what_was_cut(arrays, index)
    return StepArrays(index, arrays)


def _pieces(blocks: BlockReader, positions: np.ndarray, index: EpisodeIndex) -> Iterator[_Piece]:
    """The row groups that hold the episodes, in the order of first use."""
    pointers = blocks.snapshot.pointers
    pieces: dict[tuple[int, int], _Piece] = {}
    for segment, start, count, place in _runs(pointers, positions, index):
        name = pointers.segments[segment]
        file = blocks.file(name)
        for group in file.groups_of(start, count):
            first, stop = int(file.starts[group]), int(file.starts[group + 1])
            low, high = max(start, first), min(start + count, stop)
            piece = pieces.setdefault((segment, group), _Piece(name, group))
            piece.rows.append((low - first, high - low, place + low - start))
    yield from pieces.values()


def _runs(
    pointers: Pointers, positions: np.ndarray, index: EpisodeIndex
) -> Iterator[tuple[int, int, int, int]]:
    """Stretches of rows that lie side by side in a file and in the arrays: segment, start, count, place."""
    if not len(positions):
        return
    segment, start = pointers.segment[positions], pointers.row_start[positions]
    count = pointers.row_count[positions]
    joined = (segment[1:] == segment[:-1]) & (start[1:] == start[:-1] + count[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~joined]))
    places = index.starts[:-1]
    counts = np.add.reduceat(count, first)
    yield from zip(
        segment[first].tolist(), start[first].tolist(), counts.tolist(), places[first].tolist(), strict=True
    )


def _end_what_was_cut(arrays: dict[str, Tree], index: EpisodeIndex) -> None:
    """An episode that did not terminate was truncated, for a learner, wherever its recording ended."""
    if TRUNCATED in arrays and len(index):
        arrays[TRUNCATED][index.last_transitions] |= index.end_reasons != END_REASONS.index(TERMINATED)
