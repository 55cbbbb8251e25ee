"""Where the units of an epoch come from, and which of them a reader takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from .orders import Order
from .step_arrays import StepArrays
from .tree import leaves, map_leaves
from .unit_index import UnitIndex
from .units.unit import Batch, Chosen, Units

#: For so many units at a time it is worked out which they are; a batch is a slice of them.
_PLANNED = 1 << 14
#: About so many bytes of small batches are gathered at once, and then cut.
_GATHERED_BYTES = 1 << 19
#: Where a few units are picked at a time, so many.
_BLOCK = 1 << 13


@dataclass(frozen=True)
class Places:
    """Places of an epoch that one reader takes: every `step`-th from `start` on; past the end come the first.

    Attributes:
        start, step, count: which they are.
        length: places of the epoch.
        run, gap: after every `run` of them, so many are left to others.
    """

    start: int
    step: int
    count: int
    length: int
    run: int = 1
    gap: int = 0

    def part(self, first: int, stop: int) -> np.ndarray:
        """The `first`-th to the `stop`-th of them, int64."""
        numbers = np.arange(first, min(stop, self.count), dtype=np.int64)
        if self.gap:
            numbers += numbers // self.run * self.gap
        return numbers * self.step + self.start

    def before(self, place: int) -> int:
        """How many of them lie before a place, counted on past the end."""
        numbers = max(-(-(place - self.start) // self.step), 0)
        whole, rest = divmod(numbers, self.run + self.gap)
        return min(whole * self.run + min(rest, self.run), self.count)

    def every(self, batch_size: int, first: int, workers: int) -> Places:
        """Of the batches that these places make, the `first`-th and every `workers`-th after it."""
        batches = -(-self.count // batch_size)
        own = max(-(-(batches - first) // workers), 0)
        missing = batches * batch_size - self.count
        ends_with_last = own > 0 and (batches - 1 - first) % workers == 0
        return replace(
            self,
            start=self.start + first * batch_size * self.step,
            count=own * batch_size - missing * ends_with_last,
            run=batch_size,
            gap=batch_size * (workers - 1),
        )

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
        """What decides which unit stands where beside the arguments, by name: values that JSON can hold."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that it holds."""
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
        unit_index: which episode a unit is of.
    """

    arrays: StepArrays
    units: Units
    keys: Sequence[str]
    order: Order
    unit_index: UnitIndex

    @property
    def length(self) -> int:
        """See `Feed`."""
        return self.order.length

    def facts(self) -> dict[str, Any]:
        """See `Feed`."""
        return {}

    @property
    def nbytes(self) -> int:
        """See `Feed`."""
        return self.arrays.nbytes

    @cached_property
    def _plan(self) -> Plan:
        return Plan(self.order)

    def pick(self, epoch: int, places: Places) -> Batch:
        """See `Picking`."""
        chosen = self.unit_index.choose(self._plan.units(epoch, places))
        return self.units.gather(self.arrays, self.keys, chosen)

    def batches(self, epoch: int, places: Places, batch_size: int) -> Iterator[Batch]:
        """See `Feed`."""
        planned = max(_PLANNED // batch_size, 1) * batch_size
        for first in range(0, places.count, planned):
            numbers = self.order.units(epoch, places.wrapped(first, first + planned))
            chosen = self.unit_index.choose(numbers)
            together = self._together(chosen, batch_size)
            for start in range(0, len(chosen), together):
                group = self._gather(chosen, start, start + together)
                size = min(together, len(chosen) - start)
                if size <= batch_size:
                    yield group
                    continue
                for low in range(0, size, batch_size):
                    yield map_leaves(itemgetter(slice(low, low + batch_size)), group)

    def _gather(self, chosen: Chosen, start: int, stop: int) -> Batch:
        part = Chosen(chosen.episodes[start:stop], chosen.numbers[start:stop])
        return self.units.gather(self.arrays, self.keys, part)

    def _together(self, chosen: Chosen, batch_size: int) -> int:
        """How many units are gathered at once: several small batches cost little more than one."""
        if not self.units.alike or batch_size >= len(chosen):
            return batch_size
        one = sum(leaf.nbytes for _, leaf in leaves(self._gather(chosen, 0, 1)))
        return max(_GATHERED_BYTES // max(one * batch_size, 1), 1) * batch_size

    def gather(self, numbers: np.ndarray) -> Batch:
        """A batch of some units.

        Args:
            numbers: int64, shape (b,), each in [0, the number of units): whatever the order.
        """
        return self.units.gather(self.arrays, self.keys, self.unit_index.choose(numbers))
