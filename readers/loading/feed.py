"""Feeds: batches of the units at some places of an epoch, and units taken a few at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...store.errors import LoaderStateError
from .columns.step_arrays import StepArrays
from .order.orders import Order
from .order.priorities import Priorities, checked_update, read_priorities
from .order.shard import ShardSlice
from .order.unit_index import UnitIndex
from .output.tree import leaves, map_leaves
from .units.unit import Batch, Chosen, Units

#: The numbers of so many units are computed at a time; a batch is a slice of them.
_PLANNED = 1 << 14
#: About so many bytes of small batches are gathered at once, and then cut.
_GATHERED_BYTES = 1 << 19
#: Keys of a batch that is drawn by priority.
UNIT, WEIGHT = "unit", "weight"
#: Where a few units are picked at a time, so many.
_BLOCK = 1 << 13


class Feed(ABC):
    """Batches of the units at some places of an epoch."""

    #: The kind of unit.
    units: Units
    #: The priorities by which units are drawn; None if they are not.
    priorities: Priorities | None = None

    @property
    @abstractmethod
    def length(self) -> int:
        """Places of an epoch."""

    @abstractmethod
    def batches(self, epoch: int, places: ShardSlice, batch_size: int) -> Iterator[Batch]:
        """Yield batches of fresh arrays; the last one may be smaller."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays in memory."""
        return 0

    def facts(self) -> dict[str, Any]:
        """Return the part of a loader's identity that depends on the feed; JSON can hold it."""
        return {} if self.priorities is None else self.priorities.facts

    def update_priorities(self, priorities: Priorities, units: Any, values: Any) -> None:
        """Set the priorities of some units, given the feed's own priorities.

        Raises:
            InvalidArgumentError: a unit or a value makes no sense; nothing has changed.
        """
        priorities.change(*checked_update(units, values, len(priorities)))

    def state(self) -> dict[str, Any]:
        """Return the part of a loader's state beside its position."""
        return {} if self.priorities is None else self.priorities.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state`.

        Raises:
            LoaderStateError: it is no such state, or does not fit; nothing has changed.
        """
        if self.priorities is None:
            return
        powers, beta = read_priorities(state)
        if powers.size != len(self.priorities):
            raise LoaderStateError(
                f"The state has the priorities of {powers.size} units; this loader has "
                f"{len(self.priorities)}. Open the same version of the store with the same arguments."
            )
        self.priorities.restore(powers, beta)


class Plan:
    """The units at a few places: computes them in blocks, and keeps the last block.

    Args:
        order: the order of the units.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._block: tuple[int, int, int, int] | None = None
        self._numbers = np.zeros(0, np.int64)

    def units(self, epoch: int, places: ShardSlice) -> np.ndarray:
        """Return the units at some places: int64."""
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
class ArrayFeed(Feed):
    """Units of columns in memory or mapped; drawn by priority, a batch also has `unit` and `weight`.

    Attributes:
        arrays: the columns, in memory or mapped.
        units: the kind of unit.
        keys: what a batch has.
        order: the order of the units.
        unit_index: finds the episode of a unit.
        priorities: draw units instead of the order; None for the order.
    """

    arrays: StepArrays
    units: Units
    keys: Sequence[str]
    order: Order
    unit_index: UnitIndex
    priorities: Priorities | None = None

    @property
    def length(self) -> int:
        """See `Feed`."""
        return self.order.length

    @property
    def nbytes(self) -> int:
        """See `Feed`."""
        return self.arrays.nbytes

    @cached_property
    def _plan(self) -> Plan:
        return Plan(self.order)

    def pick(self, epoch: int, places: ShardSlice) -> Batch:
        """See `RandomAccess`."""
        if self.priorities is not None:
            return next(self.batches(epoch, places, places.count))
        return self.gather(self._plan.units(epoch, places))

    def batches(self, epoch: int, places: ShardSlice, batch_size: int) -> Iterator[Batch]:
        """See `Feed`; each batch is drawn by the priorities at the moment when it is asked for."""
        if self.priorities is not None:
            for first in range(0, places.count, batch_size):
                yield self._drawn(self.priorities, epoch, places.wrapped(first, first + batch_size))
            return
        planned = max(_PLANNED // batch_size, 1) * batch_size
        for first in range(0, places.count, planned):
            numbers = self.order.units(epoch, places.wrapped(first, first + planned))
            chosen = self.unit_index.choose(numbers)
            together = self._together(chosen, batch_size)
            for start in range(0, len(chosen), together):
                group = self._gather(chosen[start : start + together])
                size = min(together, len(chosen) - start)
                if size <= batch_size:
                    yield group
                    continue
                for low in range(0, size, batch_size):
                    yield map_leaves(itemgetter(slice(low, low + batch_size)), group)

    def _drawn(self, priorities: Priorities, epoch: int, draws: np.ndarray) -> Batch:
        numbers, weights = priorities.draw(epoch, draws)
        return {**self.gather(numbers), UNIT: numbers, WEIGHT: weights}

    def _gather(self, chosen: Chosen) -> Batch:
        return self.units.gather(self.arrays, self.keys, chosen)

    def _together(self, chosen: Chosen, batch_size: int) -> int:
        """Return how many units are gathered at once: several small batches cost little more than one."""
        if self.units.ragged or batch_size >= len(chosen):
            return batch_size
        one = sum(leaf.nbytes for _, leaf in leaves(self._gather(chosen[:1])))
        return max(_GATHERED_BYTES // max(one * batch_size, 1), 1) * batch_size

    def gather(self, numbers: np.ndarray) -> Batch:
        """Return a batch of some units.

        Args:
            numbers: int64, shape (b,), each in [0, the number of units): whatever the order.
        """
        return self._gather(self.unit_index.choose(numbers))


@runtime_checkable
class RandomAccess(Protocol):
    """A feed that reads any few places as fast as the next ones."""

    def pick(self, epoch: int, places: ShardSlice) -> Batch:
        """Return the units at some places, as one batch."""
        ...


class SequentialTake:
    """Takes any number of units at a time from a feed, in order.

    Args:
        feed: where units come from.
        epoch, places: the places to take, from the first one on.
        size: the size of the batches that are read.
    """

    def __init__(self, feed: Feed, epoch: int, places: ShardSlice, size: int) -> None:
        self._units = feed.units
        self._batches = feed.batches(epoch, places, size)
        self._rest: Batch = {}

    def next(self, count: int) -> Batch:
        """Return the next `count` units, which must be there."""
        parts = []
        while count:
            batch = self._rest or next(self._batches)
            size = len(next(leaf for _, leaf in leaves(batch)))
            parts.append(_slice(batch, 0, min(count, size)))
            self._rest = _slice(batch, count, size) if count < size else {}
            count -= min(count, size)
        return parts[0] if len(parts) == 1 else self._units.join(parts)


def _slice(batch: Batch, start: int, stop: int) -> Batch:
    # Copied, so that a part is fresh and does not keep the rest of its batch in memory.
    return map_leaves(lambda leaf: leaf[start:stop].copy(), batch)
