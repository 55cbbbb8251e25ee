"""Blocks of a stream: the episodes that begin in one row group or, where few fit, parts of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..columns.ragged import range_positions
from ..columns.selection import EpisodeIndex
from ..columns.step_arrays import ColumnSource
from .units import Chosen, UnitIndex, Units

#: A segment of less than this part of a group is one block, so that its footer need not be read to plan.
_SMALL_PART = 8
#: A group has about so many blocks of parts of episodes, or more.
_PARTS = 4


@dataclass(frozen=True)
class Blocks:
    """The episodes that have units, in blocks.

    Attributes:
        episodes: int64, shape (N,): the numbers of episodes, block after block.
        edges: int64, shape (K + 1,): where each block begins among them.
        rows, units: int64, shape (K,): how many each has.
        spans: int64, shape (2, N): of parts of episodes, the first unit of each and the one after the last;
            None for whole episodes.
    """

    episodes: np.ndarray
    edges: np.ndarray
    rows: np.ndarray
    units: np.ndarray
    spans: np.ndarray | None = None

    def read_from(
        self, source: ColumnSource, units: Units, some: np.ndarray
    ) -> tuple[ColumnSource, EpisodeIndex, UnitIndex]:
        """Return what to read for some blocks, the index of the arrays that this fills, and their units.

        Args:
            source: of all episodes.
            units: the kind of unit.
            some: int64: the numbers of blocks.
        """
        first = self.edges[some]
        entries = range_positions(first, self.edges[some + 1] - first)
        episodes = self.episodes[entries]
        if self.spans is None:
            part = source.part(episodes)
            return part, part.index, UnitIndex(units, part.index)
        spans, index = self.spans[:, entries], source.index[episodes]
        low, high = _rows_of_spans(units, index, spans)
        part = replace(source, selection=source.selection.spans(episodes, low, high))
        index = index.placed(part.index.starts[:-1] - low)
        return part, index, UnitIndex(units, index, spans)


def blocks_of(source: ColumnSource, counts: np.ndarray, *, group_rows: int, sort: bool) -> Blocks:
    """Find the blocks of some episodes; reads the footers of large steps files only.

    Args:
        source: the episodes.
        counts: int64: units of each episode; those without any are left out.
        group_rows: about how many rows a group may have.
        sort: as the episodes lie in the files, which makes fewer and larger blocks; else in their own order.
    """
    reader, snapshot = source.blocks, source.blocks.snapshot
    pointers = source.selection.pointers
    episodes = np.flatnonzero(counts)
    if sort:
        episodes = _as_stored(source, episodes)
    segment, start = pointers.segment[episodes], pointers.row_start[episodes]
    groups = np.zeros(len(episodes), np.int64)
    rows_of = {file.name: file.rows for file in snapshot.step_files}
    file_rows = np.array([rows_of[name] for name in pointers.segments])
    by_segment = np.argsort(segment, kind="stable")
    firsts = np.flatnonzero(np.diff(segment[by_segment], prepend=-1))
    parts = np.split(by_segment, firsts[1:]) if len(firsts) else []
    large = [here for here in parts if file_rows[segment[here[0]]] * _SMALL_PART > group_rows]
    files = reader.files(pointers.segments[segment[here[0]]] for here in large)
    for here, file in zip(large, files, strict=True):
        groups[here] = np.searchsorted(file.starts, start[here], side="right")
    begins = (segment[1:] != segment[:-1]) | (groups[1:] != groups[:-1])
    edges = np.concatenate([[0], np.flatnonzero(begins) + 1, [len(episodes)]])
    rows = np.add.reduceat(source.index.lengths[episodes] + 1, edges[:-1])
    return Blocks(episodes, edges, rows, np.add.reduceat(counts[episodes], edges[:-1]))


def _as_stored(source: ColumnSource, episodes: np.ndarray) -> np.ndarray:
    pointers = source.selection.pointers
    return episodes[np.lexsort((pointers.row_start[episodes], pointers.segment[episodes]))]


def parts_of(source: ColumnSource, units: Units, counts: np.ndarray, *, group_rows: int) -> Blocks | None:
    """Find blocks of which several fit into a group, whatever the length of the episodes; reads footers.

    An episode is cut where a row group begins, and a row group into equal parts where it is larger than a
    quarter of a group. It is then decoded once for each group that has a part of it. Parts that are smaller
    share a block with their neighbours in the row group.

    Args:
        source, counts, group_rows: as for `blocks_of`.
        units: the kind of unit.

    Returns:
        None if the units read whole episodes.
    """
    episodes = _as_stored(source, np.flatnonzero(counts))
    firsts = np.zeros(len(episodes), np.int64)
    index = source.index[episodes]
    one = units.rows_of(index, Chosen(np.arange(len(episodes)), firsts))
    if one is None:
        return None
    context = int((one[1] - one[0]).max(initial=0))
    pointers = source.selection.pointers
    names = [pointers.segments[number] for number in np.unique(pointers.segment[episodes]).tolist()]
    files = dict(zip(names, source.blocks.files(names), strict=True))
    # A unit reads rows beyond its own. Parts of fewer than that would mostly read what others read too.
    most = max(group_rows // _PARTS - context, context, 1)
    entries: list[tuple[int, int, int]] = []
    places: list[tuple[int, int]] = []
    for number, episode in enumerate(episodes.tolist()):
        segment, start = int(pointers.segment[episode]), int(pointers.row_start[episode])
        borders = files[pointers.segments[segment]].starts
        numbers = np.arange(int(counts[episode]))
        rows_of = units.rows_of(index, Chosen(np.full(len(numbers), number), numbers))
        assert rows_of is not None
        begins = start + rows_of[0]
        for first, stop in _cut(begins, borders, most):
            entries.append((episode, first, stop))
            group = int(np.searchsorted(borders, begins[first], side="right"))
            places.append((segment, group))
    table = np.array(entries, np.int64).reshape(-1, 3)
    spans = np.ascontiguousarray(table[:, 1:].T)
    low, high = _rows_of_spans(units, source.index[table[:, 0]], spans)
    rows = high - low
    edges = np.array(list(_edges(places, rows.tolist(), most)), np.int64)
    counted = np.add.reduceat(spans[1] - spans[0], edges[:-1])
    return Blocks(table[:, 0], edges, np.add.reduceat(rows, edges[:-1]), counted, spans)


def _cut(begins: np.ndarray, borders: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of an episode's units: within one row group, and of about so many rows each, or fewer.

    Args:
        begins: int64, ascending: the first row of each unit in its file.
        borders: int64: where row groups begin.
        most: rows.
    """
    inside = np.unique(np.searchsorted(begins, borders))
    edges = np.unique(np.concatenate([[0], inside, [len(begins)]]))
    for first, stop in pairwise(edges.tolist()):
        rows = int(begins[stop - 1] - begins[first]) + 1
        pieces = min(max(round(rows / most), 1), stop - first)
        cuts = np.linspace(first, stop, pieces + 1).astype(np.int64).tolist()
        yield from pairwise(cuts)


def _edges(places: list[tuple[int, int]], rows: list[int], most: int) -> Iterator[int]:
    """Yield where blocks begin among parts, and the number of parts.

    Args:
        places: the segment and row group of each part.
        rows: of each.
        most: rows of a block of several.
    """
    held = 0
    for number, (place, count) in enumerate(zip(places, rows, strict=True)):
        if not number or place != places[number - 1] or held + count > most:
            yield number
            held = 0
        held += count
    yield len(places)


def _rows_of_spans(units: Units, index: EpisodeIndex, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that spans of units read, within their episodes: the first, and the one after the last.

    Args:
        units: the kind of unit, none that reads whole episodes.
        index: the episode of each span.
        spans: int64, shape (2, n): the first unit of each, and the one after the last.
    """
    numbers = np.arange(len(index))
    first, last = (units.rows_of(index, Chosen(numbers, each)) for each in (spans[0], spans[1] - 1))
    assert first is not None
    assert last is not None
    return np.maximum(first[0], 0), np.minimum(last[1], index.lengths + 1)
