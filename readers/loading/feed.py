"""Where the units of an epoch come from, and which of them a reader takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .orders import Order
from .step_arrays import StepArrays
from .units.unit import Batch, Chosen, Units, choose

#: For so many units at a time it is worked out which they are; a batch is a slice of them.
_PLANNED = 1 << 14


@dataclass(frozen=True)
class Places:
    """Places of an epoch that one reader takes: every `step`-th from `start` on; past the end come the first.

    Attributes:
        start, step, count: which they are.
        length: places of the epoch.
    """

    start: int
    step: int
    count: int
    length: int

    def part(self, first: int, stop: int) -> np.ndarray:
        """The `first`-th to the `stop`-th of them, int64."""
        return np.arange(first, min(stop, self.count), dtype=np.int64) * self.step + self.start

    def wrapped(self, first: int, stop: int) -> np.ndarray:
        """The same within [0, length)."""
        return self.part(first, stop) % self.length


class Feed(Protocol):
    """Batches of the units at some places of an epoch."""

    @property
    def units(self) -> Units:
        """The kind of unit."""
        ...

    @property
    def length(self) -> int:
        """Places of an epoch."""
        ...

    def batches(self, epoch: int, places: Places, batch_size: int) -> Iterator[Batch]:
        """Yield batches of fresh arrays; the last one may be smaller."""
        ...

    def facts(self) -> dict[str, Any]:
        """What decides which unit stands where, by name: values that JSON can hold."""
        ...


@dataclass(frozen=True)
class ArrayFeed:
    """Units of columns that are all at hand.

    Attributes:
        arrays: the columns, in memory or mapped.
        units: the kind of unit.
        keys: what a batch has.
        order: which unit stands where.
        edges: as `unit_edges` gives them.
    """

    arrays: StepArrays
    units: Units
    keys: Sequence[str]
    order: Order
    edges: np.ndarray

    @property
    def length(self) -> int:
        """See `Feed`."""
        return self.order.length

    def facts(self) -> dict[str, Any]:
        """See `Feed`."""
        return {}

    def batches(self, epoch: int, places: Places, batch_size: int) -> Iterator[Batch]:
        """See `Feed`."""
        planned = max(_PLANNED // batch_size, 1) * batch_size
        for first in range(0, places.count, planned):
            numbers = self.order.units(epoch, places.wrapped(first, first + planned))
            chosen = choose(self.edges, numbers)
            for start in range(0, len(chosen), batch_size):
                some = slice(start, start + batch_size)
                part = Chosen(chosen.episodes[some], chosen.numbers[some])
                yield self.units.gather(self.arrays, self.keys, part)
