"""Units of streamed columns: groups of row groups are read one after the other.

The order is a pure function of the seed and the epoch. A *block* is the episodes that begin in one row group
or, where few of these fit into a group, a part of an episode (`stream_blocks.py`). The blocks are permuted,
and cut into *groups* of as many as fit into half of the buffer; a group takes a span of an epoch's places.
The group's units are cut into 64 chunks, one for each *lane*: the places that leave the same remainder by 64.
Within a chunk the units are permuted. So a batch has units of all chunks of a group, and a reader that takes
every second place (or fourth, ... or 64th) needs half (a fourth, ...) of the blocks: its chunks lie side by
side.

The first groups of an epoch are small, so that the first batch comes soon. While the batches of a group are
taken, threads read the next ones. Nothing is read that lies before the place at which a reader begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...store.parquet.files import decoding_threads
from ..columns.step_arrays import ColumnSource, StepArrays, empty_arrays, pooled, read_arrays
from .feed import Feed, ShardSlice
from .orders import Permutation, hash_words, mix64
from .stream_blocks import Blocks
from .transforms.on_read import TransformPipeline
from .units import Batch, Chosen, UnitIndex, Units

_LANES = 64
#: Chunks are ordered by the reversed bits of their lanes, so those of every second lane are adjacent.
_CHUNKS = np.array([int(f"{lane:06b}"[::-1], 2) for lane in range(_LANES)])
_BLOCKS, _CHUNK = 4, 5
#: The first group has this part of the rows that a group may have; shuffled, so many rows at least.
_FIRST_PART, _FIRST_ROWS = 128, 1 << 14


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
        mixed = mix64(np.arange(-(-count // _LANES), dtype=np.uint64))
        for lane in np.unique(places % _LANES).tolist():
            start, stop = self._chunk_edges[_CHUNKS[lane] :][:2].tolist()
            order = _sorting(mix64(mixed[: stop - start] ^ keys[lane]))
            shuffled[(lane - self.first) % _LANES :: _LANES] = order + start
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


def _sorting(keys: np.ndarray) -> np.ndarray:
    """Return the numbers of some keys in their order: uint64 of which no two are alike."""
    bits = np.uint64(len(keys).bit_length())
    low = (np.uint64(1) << bits) - np.uint64(1)
    # Numbers in the lowest bits of their keys are sorted in a fifth of the time of `argsort`.
    packed = np.sort((keys & ~low) | np.arange(len(keys), dtype=np.uint64))
    rest = packed >> bits
    return np.argsort(keys) if (rest[1:] == rest[:-1]).any() else packed & low


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
        growing: whether the first groups are smaller; without a seed they always are, which changes no order.
    """

    blocks: Blocks
    group_rows: int
    seed: int | None
    growing: bool = True

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
        most = self.group_rows
        if self.seed is None or self.growing:
            most = max(most // _FIRST_PART, 1 if self.seed is None else min(_FIRST_ROWS, most))
        while start < count:
            before = rows[start - 1] if start else 0
            stop = max(int(np.searchsorted(rows, before + most, side="right")), start + 1)
            most = min(2 * most, self.group_rows)
            key = None if self.seed is None else hash_words(self.seed, epoch, _CHUNK, len(groups))
            edges = units[start : stop + 1] - units[start]
            groups.append(Group(int(units[start]), order[start:stop], edges, key))
            start = stop
        return groups


#: The numbers of so many units are computed at a time.
_PLANNED = 1 << 14


@dataclass
class StreamFeed(Feed):
    """Units of streamed columns: groups of row groups are read one after the other.

    Attributes:
        source: the columns.
        units: the kind of unit.
        keys: of a batch.
        order: the order of the units.
        pipeline: transform a group's rows before units are gathered.
        other: where `order` has parts of episodes, that of whole ones, which states of earlier versions are
            in; such a state exchanges both. None if there is one order.
    """

    source: ColumnSource
    units: Units
    keys: Sequence[str]
    order: StreamOrder
    pipeline: TransformPipeline
    other: StreamOrder | None = None

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

    def state(self) -> dict[str, Any]:
        """See `Feed`; a mark for each way in which the order differs from that of earlier versions."""
        marks = {"parts": self.order.blocks.spans is not None}
        marks["growing"] = self.order.seed is not None and self.order.growing
        return {name: True for name, new in marks.items() if new}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Feed`."""
        if self.other is not None and ("parts" in state) != (self.order.blocks.spans is not None):
            self.order, self.other = self.other, self.order
        self.order = replace(self.order, growing="growing" in state)

    def take(self, epoch: int, places: ShardSlice, counts: Iterator[int]) -> Iterator[Batch]:
        """See `Feed`; the last batch of a group may be completed from the next ones."""
        parts: list[Batch] = []
        missing = 0
        for read in self._read_ahead(self.order, epoch, places):
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

    def _read_ahead(self, order: StreamOrder, epoch: int, places: ShardSlice) -> Iterator[ReadGroup]:
        """Read groups: always one more than is handed out, and as many as the buffer has room for."""
        threads = decoding_threads(self.source.blocks.snapshot.layout.root)
        decoding = ThreadPoolExecutor(threads, "episodelake decoding")
        # Two, so that while the last row groups of one group are decoded the next one is begun.
        ahead = ThreadPoolExecutor(2, "episodelake reading ahead")
        coming: list[tuple[int, Future[ReadGroup]]] = []
        try:
            for run in order.runs(epoch, places):
                rows = int(order.blocks.rows[run.group.blocks].sum())
                while len(coming) > 1 and sum(each[0] for each in coming) + rows > 2 * order.group_rows:
                    yield coming.pop(0)[1].result()
                coming.append((rows, ahead.submit(self._read, order.blocks, run, decoding)))
            while coming:
                yield coming.pop(0)[1].result()
        finally:
            # The collector may close this generator inside a lock of `threading`: no thread is joined here.
            for pool in (decoding, ahead):
                pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, blocks: Blocks, run: Run, pool: Executor) -> ReadGroup:
        group = run.group
        needed = group.needed(run.some)
        source, index, unit_index = blocks.read_from(self.source, self.units, group.blocks[needed])
        into = empty_arrays(source.columns, source.index.rows, pooled)
        arrays = StepArrays(index, read_arrays(source, into, pool).columns)
        prepared = self.pipeline.prepare(arrays, self.units.columns(self.keys))
        before = np.cumsum(np.where(needed, 0, np.diff(group.edges)))
        return ReadGroup(prepared, unit_index, run, before, group.units(run.some))


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
