"""Where the units of an epoch come from, and which of them a reader takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from .orders import Order
from .step_arrays import StepArrays
from .units.unit import Batch, Chosen, Units, choose

#: For so many units at a time it is worked out which they are; a batch is a slice of them.
_PLANNED = 1 << 14
#: Where a few units are picked at a time, so many.
_BLOCK = 1 << 13


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


class Plan:
    """Which units stand at a few places: works them out in blocks, and keeps the last one.

    Args:
        order: which unit stands where.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._block: tuple[int, int, int, int] | None = None
        self._numbers = np.zeros(0, np.int64)

    def units(self, epoch: int, places: Places) -> np.ndarray:
        """The units at some places: int64."""
        begin, first = places.start % places.step, places.start // places.step
        found = []
        stop = first + places.count
        while first < stop:
            number, within = divmod(first, _BLOCK)
            numbers = self._at(epoch, begin, places.step, number)
            found.append(numbers[within : within + stop - first])
            first += len(found[-1])
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _at(self, epoch: int, begin: int, step: int, number: int) -> np.ndarray:
        block = (epoch, begin, step, number)
        if self._block != block:
            places = np.arange(number * _BLOCK, (number + 1) * _BLOCK, dtype=np.int64) * step + begin
            self._block, self._numbers = block, self._order.units(epoch, places % self._order.length)
        return self._numbers


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

    @cached_property
    def _plan(self) -> Plan:
        return Plan(self.order)

    def pick(self, epoch: int, places: Places) -> Batch:
        """See `Picking`."""
        chosen = choose(self.edges, self._plan.units(epoch, places))
        return self.units.gather(self.arrays, self.keys, chosen)

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
