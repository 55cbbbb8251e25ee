"""Units of columns that are never held as a whole: groups of row groups are read one after the other.

While the batches of a group are taken, a thread reads the next one. Nothing is read that lies before the
place at which a reader begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from .columns.step_arrays import ColumnSource, StepArrays, empty_arrays, pooled, read_arrays
from .feed import Feed
from .order.shard import ShardSlice
from .order.stream_order import Group, Run, StreamOrder
from .order.unit_index import UnitIndex
from .transforms.on_read import TransformPipeline
from .units.unit import Batch, Chosen, Units

#: The numbers of so many units are computed at a time.
_PLANNED = 1 << 14


@dataclass(frozen=True)
class StreamFeed(Feed):
    """Units of columns that are read as they are needed.

    Attributes:
        source: the columns.
        units: the kind of unit.
        keys: of a batch.
        order: the order of the units.
        stages: transform a group's rows before units are gathered.
    """

    source: ColumnSource
    units: Units
    keys: Sequence[str]
    order: StreamOrder
    stages: TransformPipeline

    @property
    def length(self) -> int:
        """See `Feed`."""
        return self.order.length

    def facts(self) -> dict[str, Any]:
        """See `Feed`: without shuffling the order is that of other feeds."""
        if self.order.seed is None:
            return {}
        return {"order": f"Shuffled in groups of {self.order.group_rows} rows"}

    def batches(self, epoch: int, places: ShardSlice, batch_size: int) -> Iterator[Batch]:
        """See `Feed`; the last batch of a group may be completed from the next ones."""
        parts: list[Batch] = []
        missing = batch_size
        for read in self._read_ahead(self.order.runs(epoch, places)):
            for chosen in read.choices():
                start = 0
                while start < len(chosen):
                    part = chosen[start : start + missing]
                    parts.append(self._gather(read, part))
                    start, missing = start + len(part), missing - len(part)
                    if not missing:
                        yield self._joined(parts)
                        parts, missing = [], batch_size
            del read  # its memory is that of the group which is begun now
        if parts:
            yield self._joined(parts)

    def _joined(self, parts: list[Batch]) -> Batch:
        return parts[0] if len(parts) == 1 else self.units.join(parts)

    def _gather(self, read: ReadGroup, chosen: Chosen) -> Batch:
        return self.units.gather(read.arrays, self.keys, chosen)

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
        source = self.source.part(episodes)
        into = empty_arrays(source.columns, source.index.rows, pooled)
        arrays = read_arrays(source, into, pool)
        prepared = self.stages.prepare(arrays, self.units.columns(self.keys))
        before = np.cumsum(np.where(needed, 0, np.diff(group.edges)))
        return ReadGroup(prepared, UnitIndex(self.units, source.index), run, before, group.units(run.some))


@dataclass(frozen=True)
class ReadGroup:
    """A group, of which the blocks that a reader needs are read.

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
