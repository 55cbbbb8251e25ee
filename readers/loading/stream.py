"""Units of columns that are never held as a whole: groups of row groups are read one after the other.

While the batches of a group are taken, a thread reads the next one. Nothing is read that lies before the
place at which a reader begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..blocks import BlockReader
from .columns import Column
from .episode_index import EpisodeIndex
from .feed import Places
from .step_arrays import StepArrays, empty_arrays, pooled, read_arrays
from .stream_order import Group, Run, StreamOrder
from .transforms.on_read import Stages
from .unit_index import UnitIndex
from .units.unit import EPISODE, Batch, Chosen, Units

#: For so many units at a time it is worked out which they are.
_PLANNED = 1 << 14


@dataclass(frozen=True)
class StreamFeed:
    """Units of columns that are read as they are needed.

    Attributes:
        blocks: opens the store's files.
        positions: int64, of the episodes in the snapshot.
        index: of the same episodes.
        columns: what is read.
        units: the kind of unit.
        keys: what a batch has.
        counts: int64: units of each episode.
        order: which unit stands where.
        stages: what is done to a group's rows before units are gathered.
    """

    blocks: BlockReader
    positions: np.ndarray
    index: EpisodeIndex
    columns: tuple[Column, ...]
    units: Units
    keys: Sequence[str]
    counts: np.ndarray
    order: StreamOrder
    stages: Stages

    @property
    def nbytes(self) -> int:
        """See `Feed`: nothing is held between iterations."""
        return 0

    @property
    def length(self) -> int:
        """See `Feed`."""
        return self.order.length

    def facts(self) -> dict[str, Any]:
        """See `Feed`: without shuffling the order is that of other feeds."""
        if self.order.seed is None:
            return {}
        return {"order": f"Shuffled in groups of {self.order.group_rows} rows"}

    def batches(self, epoch: int, places: Places, batch_size: int) -> Iterator[Batch]:
        """See `Feed`; the last batch of a group may be completed from the next ones."""
        parts: list[Batch] = []
        missing = batch_size
        for read in self._read_ahead(self.order.runs(epoch, places)):
            while read.left:
                chosen = read.next(missing)
                parts.append(self._gather(read, chosen))
                missing -= len(chosen)
                if not missing:
                    yield self._joined(parts)
                    parts, missing = [], batch_size
            del read  # its memory is that of the group which is begun now
        if parts:
            yield self._joined(parts)

    def _joined(self, parts: list[Batch]) -> Batch:
        return parts[0] if len(parts) == 1 else self.units.join(parts)

    def _gather(self, read: ReadGroup, chosen: Chosen) -> Batch:
        batch = self.units.gather(read.arrays, self.keys, chosen)
        if EPISODE in batch:
            batch[EPISODE] = read.episodes[batch[EPISODE]]
        return batch

    def _read_ahead(self, runs: Iterator[Run]) -> Iterator[ReadGroup]:
        """Read groups, always one more than is handed out."""
        decoding = ThreadPoolExecutor(os.cpu_count() or 1, "episodelake decoding")
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
        index = EpisodeIndex(self.index.lengths[episodes], self.index.end_reasons[episodes])
        into = empty_arrays(self.columns, index.rows, pooled)
        arrays = read_arrays(self.blocks, self.positions[episodes], index, self.columns, into, pool)
        prepared = self.stages.prepare(arrays, self.units.columns(self.keys))
        before = np.cumsum(np.where(needed, 0, np.diff(group.edges)))
        return ReadGroup(prepared, episodes, UnitIndex(self.units, index), run, before, group.units(run.some))


@dataclass
class ReadGroup:
    """A group of which the blocks that a reader needs are read.

    Attributes:
        arrays: the columns of these blocks' episodes.
        episodes: int64: their numbers in the view.
        unit_index: which of these episodes a unit is of.
        run: the places that the reader takes.
        before: int64, for each block of the group: units of the blocks up to it that are not read.
        units: as `Group.units` gives them.
    """

    arrays: StepArrays
    episodes: np.ndarray
    unit_index: UnitIndex
    run: Run
    before: np.ndarray
    units: np.ndarray | None
    _taken: int = 0
    _planned: tuple[int, Chosen] = field(default=(0, Chosen(np.zeros(0, np.int64), np.zeros(0, np.int64))))

    @property
    def left(self) -> int:
        """How many places are not taken yet."""
        return len(self.run) - self._taken

    def next(self, most: int) -> Chosen:
        """The units at the next places, at most so many; episodes are counted within these arrays."""
        first, chosen = self._planned
        if self._taken == first + len(chosen):
            first, chosen = self._planned = self._taken, self._choose(self._taken, self._taken + _PLANNED)
        some = slice(self._taken - first, self._taken - first + most)
        found = Chosen(chosen.episodes[some], chosen.numbers[some])
        self._taken += len(found)
        return found

    def _choose(self, first: int, stop: int) -> Chosen:
        group: Group = self.run.group
        numbers = self.run.part(first, stop) - group.first
        if self.units is not None:
            numbers = self.units[numbers].astype(np.int64)
        if self.before[-1]:
            numbers -= self.before[np.searchsorted(group.edges, numbers, side="right") - 1]
        return self.unit_index.choose(numbers)
