"""Units of streamed columns: groups of row groups are read one after the other.

The order is a pure function of the seed and the epoch. A *block* is the episodes that begin in one row group.
The blocks are permuted, and cut into *groups* of as many as fit into half of the buffer; a group takes a span
of an epoch's places. The group's units are cut into 64 chunks, one for each *lane*: the places that leave the
same remainder by 64. Within a chunk the units are permuted. So a batch has units of all chunks of a group,
and a reader that takes every second place (or fourth, ... or 64th) needs half (a fourth, ...) of the blocks:
its chunks lie side by side.

While the batches of a group are taken, a thread reads the next one. Nothing is read that lies before the
place at which a reader begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...store.parquet.files import decoding_threads
from ..columns.ragged import gather_ranges
from ..columns.step_arrays import ColumnSource, StepArrays, empty_arrays, pooled, read_arrays
from .feed import Feed, ShardSlice
from .orders import Permutation, hash_words, mix64
from .transforms.on_read import TransformPipeline
from .units import Batch, Chosen, UnitIndex, Units

_LANES = 64
#: Chunks are ordered by the reversed bits of their lanes, so those of every second lane are adjacent.
_CHUNKS = np.array([int(f"{lane:06b}"[::-1], 2) for lane in range(_LANES)])
_BLOCKS, _CHUNK = 4, 5
#: A segment of less than this part of a group is one block, so that its footer need not be read to plan.
_SMALL_PART = 8


@dataclass(frozen=True)
class Blocks:
    """The episodes that have units, in blocks.

    Attributes:
        episodes: int64: the numbers of episodes, block after block.
        edges: int64, shape (K + 1,): where each block begins among them.
        rows, units: int64, shape (K,): how many each has.
    """

    episodes: np.ndarray
    edges: np.ndarray
    rows: np.ndarray
    units: np.ndarray

    def episodes_of(self, blocks: np.ndarray) -> np.ndarray:
        """Return the episodes of some blocks, in their order."""
        first = self.edges[blocks]
        return gather_ranges(self.episodes, first, self.edges[blocks + 1] - first)


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
    segment, start = pointers.segment, pointers.row_start
    episodes = np.flatnonzero(counts)
    if sort:
        episodes = episodes[np.lexsort((start[episodes], segment[episodes]))]
    segment, start = segment[episodes], start[episodes]
    groups = np.zeros(len(episodes), np.int64)
    file_rows = np.array([file.rows for file in snapshot.step_files])
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


@dataclass(frozen=True)
class Group:
    """Blocks that are read together.

    Attributes:
        first: its first place.
        blocks: int64: numbers of its blocks, in their order.
        edges: int64: its first unit of each block, counted within the group, and the number of all.
        key: chooses the order of its units; None for one after the other.
    """

    first: int
    blocks: np.ndarray
    edges: np.ndarray
    key: int | None

    @property
    def stop(self) -> int:
        """The place after it."""
        return self.first + int(self.edges[-1])

    def units(self, places: np.ndarray) -> np.ndarray | None:
        """Return the unit at each place of the group, counted within it: int32, or int64 for very many.

        Args:
            places: as `Run.some` gives them; other lanes are undefined.

        Returns:
            None if they are in order.
        """
        if self.key is None:
            return None
        count = self.stop - self.first
        shuffled = np.zeros(count, np.int32 if count < 1 << 31 else np.int64)
        keys = mix64(np.arange(_LANES, dtype=np.uint64) ^ np.uint64(self.key))
        for lane in np.unique(places % _LANES).tolist():
            start, stop = self._chunk_edges[_CHUNKS[lane] :][:2].tolist()
            numbers = mix64(np.arange(stop - start, dtype=np.uint64))
            # Mixing is one to one, so no two are alike, and any way of sorting gives the same.
            shuffled[(lane - self.first) % _LANES :: _LANES] = np.argsort(mix64(numbers ^ keys[lane])) + start
        return shuffled

    def needed(self, places: np.ndarray) -> np.ndarray:
        """Return which of its blocks hold the units of a reader, and maybe a few others: bool.

        Args:
            places: as `Run.some` gives them.
        """
        if self.key is None:
            first, stop = np.array([places[0] - self.first]), np.array([places[-1] - self.first + 1])
        else:
            lanes = np.unique(places % _LANES)
            chunks = _CHUNKS[lanes]
            first, stop = self._chunk_edges[chunks], self._chunk_edges[chunks + 1]
        wanted = np.zeros(len(self.blocks) + 1, np.int64)
        some = stop > first
        np.add.at(wanted, np.searchsorted(self.edges, first[some], side="right") - 1, 1)
        np.add.at(wanted, np.searchsorted(self.edges, stop[some], side="left"), -1)
        return np.cumsum(wanted)[:-1] > 0

    @cached_property
    def _chunk_edges(self) -> np.ndarray:
        """The first unit of each chunk, and the number of all."""
        counts = _places_before(self.stop) - _places_before(self.first)
        # Reversing bits is its own inverse.
        return np.concatenate([[0], np.cumsum(counts[_CHUNKS])])


def _places_before(place: int) -> np.ndarray:
    """Return the number of places of each lane before a place."""
    return (place - np.arange(_LANES) + _LANES - 1) // _LANES


@dataclass(frozen=True)
class Run:
    """Consecutive places of one reader within one group.

    Attributes:
        group: the group.
        places: all places of the reader.
        first, stop: which of them.
    """

    group: Group
    places: ShardSlice
    first: int
    stop: int

    def __len__(self) -> int:
        """Return how many."""
        return self.stop - self.first

    def part(self, first: int, stop: int) -> np.ndarray:
        """Return some of the places, counted from the first of the run: int64, ascending."""
        return self.places.wrapped(self.first + first, min(self.first + stop, self.stop))

    @property
    def some(self) -> np.ndarray:
        """The first and the last place, and one of each lane: int64, ascending."""
        last = self.part(len(self) - 1, len(self))
        if not self.places.gap:
            return np.concatenate([self.part(0, min(_LANES, len(self) - 1)), last])
        places = self.part(0, len(self))
        firsts = np.unique(places % _LANES, return_index=True)[1]
        return np.unique(np.concatenate([places[firsts], last]))


@dataclass(frozen=True)
class StreamOrder:
    """All groups of every epoch.

    Attributes:
        blocks: the blocks.
        group_rows: most rows of a group of several blocks.
        seed: of the order; None for blocks and units one after the other.
    """

    blocks: Blocks
    group_rows: int
    seed: int | None

    @property
    def length(self) -> int:
        """Places of an epoch."""
        return int(self.blocks.units.sum())

    def runs(self, epoch: int, places: ShardSlice) -> Iterator[Run]:
        """Yield what a reader takes of each group, in the order of its places."""
        groups = self.groups(epoch)
        stops = np.array([group.stop for group in groups])
        done = 0
        while done < places.count:
            place = int(places.part(done, done + 1)[0])
            group = groups[int(np.searchsorted(stops, place % places.length, side="right"))]
            stop = places.before(place + group.stop - place % places.length)
            yield Run(group, places, done, stop)
            done = stop

    def groups(self, epoch: int) -> list[Group]:
        """Return the groups of an epoch, in the order of their places."""
        count = len(self.blocks.rows)
        order = np.arange(count)
        if self.seed is not None:
            order = Permutation(count, hash_words(self.seed, epoch, _BLOCKS))(order)
        rows = np.cumsum(self.blocks.rows[order])
        units = np.concatenate([[0], np.cumsum(self.blocks.units[order])])
        groups: list[Group] = []
        start = 0
        while start < count:
            before = rows[start - 1] if start else 0
            stop = max(int(np.searchsorted(rows, before + self.group_rows, side="right")), start + 1)
            key = None if self.seed is None else hash_words(self.seed, epoch, _CHUNK, len(groups))
            edges = units[start : stop + 1] - units[start]
            groups.append(Group(int(units[start]), order[start:stop], edges, key))
            start = stop
        return groups


#: The numbers of so many units are computed at a time.
_PLANNED = 1 << 14


@dataclass(frozen=True)
class StreamFeed(Feed):
    """Units of streamed columns: groups of row groups are read one after the other.

    Attributes:
        source: the columns.
        units: the kind of unit.
        keys: of a batch.
        order: the order of the units.
        pipeline: transform a group's rows before units are gathered.
    """

    source: ColumnSource
    units: Units
    keys: Sequence[str]
    order: StreamOrder
    pipeline: TransformPipeline

    @property
    def length(self) -> int:
        """See `Feed`."""
        return self.order.length

    @property
    def reads_objects(self) -> bool:
        """See `Feed`."""
        return self.source.blocks.snapshot.layout.root.local is None

    def facts(self) -> dict[str, Any]:
        """See `Feed`: without shuffling the order is that of other feeds."""
        if self.order.seed is None:
            return {}
        return {"order": f"Shuffled in groups of {self.order.group_rows} rows"}

    def take(self, epoch: int, places: ShardSlice, counts: Iterator[int]) -> Iterator[Batch]:
        """See `Feed`; the last batch of a group may be completed from the next ones."""
        parts: list[Batch] = []
        missing = 0
        for read in self._read_ahead(self.order.runs(epoch, places)):
            for chosen in read.choices():
                start = 0
                while start < len(chosen):
                    missing = missing or next(counts)
                    part = chosen[start : start + missing]
                    parts.append(self._gather(read, part))
                    start, missing = start + len(part), missing - len(part)
                    if not missing:
                        yield self._joined(parts)
                        parts = []
            del read  # its memory is that of the group which is begun now

    def _joined(self, parts: list[Batch]) -> Batch:
        return parts[0] if len(parts) == 1 else self.units.join(parts)

    def _gather(self, read: ReadGroup, chosen: Chosen) -> Batch:
        return self.units.gather(read.arrays, self.keys, chosen)

    def _read_ahead(self, runs: Iterator[Run]) -> Iterator[ReadGroup]:
        """Read groups, always one more than is handed out."""
        threads = decoding_threads(self.source.blocks.snapshot.layout.root)
        decoding = ThreadPoolExecutor(threads, "episodelake decoding")
        # Two, so that while the last row groups of one group are decoded the next one is begun.
        ahead = ThreadPoolExecutor(2, "episodelake reading ahead")
        coming: list[Future[ReadGroup]] = []
        try:
            for run in runs:
                coming.append(ahead.submit(self._read, run, decoding))
                if len(coming) == 2:
                    yield coming.pop(0).result()
            for future in coming:
                yield future.result()
        finally:
            # Row groups that are being decoded are waited for, the others are given up.
            for pool in (decoding, ahead):
                pool.shutdown(cancel_futures=True)

    def _read(self, run: Run, pool: Executor) -> ReadGroup:
        group = run.group
        needed = group.needed(run.some)
        blocks = self.order.blocks
        episodes = blocks.episodes_of(group.blocks[needed])
        source = self.source.part(episodes)
        into = empty_arrays(source.columns, source.index.rows, pooled)
        arrays = read_arrays(source, into, pool)
        prepared = self.pipeline.prepare(arrays, self.units.columns(self.keys))
        before = np.cumsum(np.where(needed, 0, np.diff(group.edges)))
        return ReadGroup(prepared, UnitIndex(self.units, source.index), run, before, group.units(run.some))


@dataclass(frozen=True)
class ReadGroup:
    """A group, and its blocks that a reader needs.

    Attributes:
        arrays: the columns of these blocks' episodes.
        unit_index: finds which of these episodes a unit is of.
        run: the places that the reader takes.
        before: int64, for each block of the group: units of the blocks up to it that are not read.
        units: as `Group.units` returns them.
    """

    arrays: StepArrays
    unit_index: UnitIndex
    run: Run
    before: np.ndarray
    units: np.ndarray | None

    def choices(self) -> Iterator[Chosen]:
        """Yield the units at all places, many at a time; episodes are counted within these arrays."""
        group: Group = self.run.group
        for first in range(0, len(self.run), _PLANNED):
            numbers = self.run.part(first, first + _PLANNED) - group.first
            if self.units is not None:
                numbers = self.units[numbers].astype(np.int64)
            if self.before[-1]:
                numbers -= self.before[np.searchsorted(group.edges, numbers, side="right") - 1]
            yield self.unit_index.choose(numbers)
