"""Decoded columns in contiguous arrays, row after row, and how they are read from a snapshot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...store.schema import TERMINATED, TRUNCATED
from ...store.snapshot import Pointers
from ..blocks import BlockReader
from .columns import Column
from .episode_index import END_REASONS, EpisodeIndex
from .shared_columns import SharedColumns, is_spawning, share
from .tree import Tree, leaves, map_leaves

#: Makes the array of a leaf: gets its dotted name, shape and dtype.
Allocate = Callable[[str, tuple[int, ...], np.dtype], np.ndarray]


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


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate the array of a leaf in memory."""
    return np.empty(shape, dtype)


def read_arrays(
    blocks: BlockReader,
    positions: np.ndarray,
    index: EpisodeIndex,
    columns: Sequence[Column],
    allocate: Allocate = in_memory,
) -> StepArrays:
    """Read columns of the episodes at some positions; each row group is read and decoded once.

    Args:
        blocks: opens the files.
        positions: int64, in the snapshot.
        index: of the same episodes, in the same order.
        columns: what to read.
        allocate: makes the arrays.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    arrays = {column.name: _allocated(column, index.rows, allocate) for column in columns}

    def read(piece: _Piece) -> None:
        file = blocks.file(piece.segment)
        first, stop = int(file.starts[piece.group]), int(file.starts[piece.group + 1])
        block = blocks.block(file, range(piece.group, piece.group + 1), first, stop - first)
        block.load({name for column in columns for name in column.fields}, threads=False)
        for column in columns:
            values = column.values(block, blocks.snapshot)
            map_leaves(lambda into, own: _copy(into, own, piece.rows), arrays[column.name], values)

    with ThreadPoolExecutor(os.cpu_count() or 1, "episodelake loading") as pool:
        for _ in pool.map(read, _pieces(blocks, positions, index)):
            pass
    _end_what_was_cut(arrays, index)
    return StepArrays(index, arrays)


def _allocated(column: Column, rows: int, allocate: Allocate) -> Tree:
    named = dict(leaves(column.template, column.name))
    made = {name: allocate(name, (rows, *leaf.shape[1:]), leaf.dtype) for name, leaf in named.items()}
    following = iter(made.values())
    return map_leaves(lambda _: next(following), column.template)


def _copy(into: np.ndarray, values: np.ndarray, rows: list[tuple[int, int, int]]) -> None:
    for start, count, place in rows:
        into[place : place + count] = values[start : start + count]


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
