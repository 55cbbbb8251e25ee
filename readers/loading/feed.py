"""Feeds: batches of the units at some places of an epoch; and the source of a loader's batches.

Everything that makes batches, here, in a thread or in another process, asks a `BatchSource` for those of an
epoch from a position on. It cuts a feed's units into batches and transforms them. It holds no state, so any
number of readers can share one, and it can be pickled. A `Shard` is the part of an epoch that one of several
readers takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from ...store.common.arguments import flag, integer, one_of, whole_number
from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError, LoaderStateError
from ...store.names import UNIT, WEIGHT
from ..columns.step_arrays import StepArrays
from ..columns.tree import leaves, map_leaves
from .orders import Order
from .priorities import Priorities, checked_update, read_priorities
from .units import Batch, UnitIndex, Units


@dataclass(frozen=True)
class ShardSlice:
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
        """Return the `first`-th to the `stop`-th of them, int64."""
        numbers = np.arange(first, min(stop, self.count), dtype=np.int64)
        if self.gap:
            numbers += numbers // self.run * self.gap
        return numbers * self.step + self.start

    def before(self, place: int) -> int:
        """Return the number of them before a place; places past the end count on."""
        numbers = max(-(-(place - self.start) // self.step), 0)
        whole, rest = divmod(numbers, self.run + self.gap)
        return min(whole * self.run + min(rest, self.run), self.count)

    def every(self, batch_size: int, first: int, workers: int) -> ShardSlice:
        """Return the places of every `workers`-th batch, from the `first` one on."""
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
        """Return the same places, within [0, length)."""
        return self.part(first, stop) % self.length


@dataclass(frozen=True)
class Shard:
    """One of `world` disjoint shares of an epoch; `store.loader(256, shard=el.Shard(0, 4, uneven="drop"))`.

    Share `rank` has every `world`-th unit. All shares are equally long, also where the number of units does
    not divide by `world`.

    Args:
        rank: 0 to world - 1.
        world: the number of shares.
        uneven: "pad" gives some shares a unit from the epoch's beginning a second time; "drop" leaves the
            last few units out.

    Raises:
        InvalidArgumentError: `rank` or `world` is out of range or no whole number, or `uneven` is unknown.
    """

    rank: int = 0
    world: int = 1
    _: KW_ONLY
    uneven: Literal["pad", "drop"] = "pad"

    def __post_init__(self) -> None:
        try:
            rank, world = integer(self.rank), integer(self.world)
        except TypeError as error:
            raise InvalidArgumentError(
                f"Shard({self.rank!r}, {self.world!r}): expected (rank, world), two whole numbers."
            ) from error
        if not 0 <= rank < world:
            raise InvalidArgumentError(
                f"shard=({rank}, {world}): expected (rank, world) with 0 <= rank < world."
            )
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world", world)
        one_of("uneven", self.uneven, ("pad", "drop"))

    @staticmethod
    def distributed(*, uneven: Literal["pad", "drop"] = "pad") -> Shard:
        """Return this process's share in torch.distributed's default group; all of it if there is no group.

        Raises:
            MissingPackageError: torch is not installed.
        """
        distributed = require("torch", "shard='distributed'").distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return Shard(uneven=uneven)
        return Shard(distributed.get_rank(), distributed.get_world_size(), uneven=uneven)

    @staticmethod
    def of(value: Any) -> Shard:
        """Return the argument `shard` of a loader as an object.

        Raises:
            InvalidArgumentError: it is no share.
            MissingPackageError: torch is not installed.
        """
        if isinstance(value, Shard):
            return value
        if isinstance(value, str) and value == "distributed":
            return Shard.distributed()
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
            raise InvalidArgumentError(
                f"shard={value!r}: expected (rank, world), two whole numbers, 'distributed' or el.Shard(...)."
            )
        return Shard(*value)

    def places(self, position: int, length: int) -> ShardSlice:
        """Return what this reader takes of an epoch from a position on.

        Args:
            position: how many units all readers together have taken of the epoch.
            length: places of the epoch.
        """
        left = max(length - position, 0)
        count = left // self.world if self.uneven == "drop" else -(-left // self.world)
        return ShardSlice(position + self.rank, self.world, count, length)


#: The numbers of so many units are computed at a time; a batch is a slice of them.
_PLANNED = 1 << 14
#: About so many bytes of small batches are gathered at once, and then cut.
_GATHERED_BYTES = 1 << 19


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

    def epoch_length(self, epoch: int) -> int:
        """Return the places of one epoch; those of all epochs are alike, unless units are made for each."""
        return self.length

    @property
    def reads_objects(self) -> bool:
        """Whether batches are read from an object store when they are made, which a forked process cannot."""
        return False

    @property
    def ahead(self) -> bool:
        """Whether units may be gathered before their batch is requested, and together with other batches."""
        return self.priorities is None and not self.units.ragged

    @abstractmethod
    def take(self, epoch: int, places: ShardSlice, counts: Iterator[int]) -> Iterator[Batch]:
        """Yield the units at some places in turn, as batches of fresh arrays.

        Args:
            epoch, places: which units.
            counts: the number of units of each batch, requested when that batch is made; together at most
                `places.count`.
        """

    def batches(self, epoch: int, places: ShardSlice, batch_size: int) -> Iterator[Batch]:
        """Yield the units at some places as batches of one size; the last one may be smaller.

        Several small batches are gathered at once, which costs little more than one, and then cut.
        """
        size = together = batch_size

        def counts() -> Iterator[int]:
            nonlocal size
            left = places.count
            while left:
                size = min(together, left)
                left -= size
                yield size

        for gathered in self.take(epoch, places, counts()):
            if size <= batch_size:
                yield gathered
            else:
                for low in range(0, size, batch_size):
                    yield map_leaves(itemgetter(slice(low, low + batch_size)), gathered)
            if self.ahead and together == batch_size:
                one = sum(leaf.nbytes for _, leaf in leaves(gathered))
                together *= max(_GATHERED_BYTES // max(one, 1), 1)

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

    def take(self, epoch: int, places: ShardSlice, counts: Iterator[int]) -> Iterator[Batch]:
        """See `Feed`; each batch is drawn by the priorities at the moment when it is requested."""
        first, planned = 0, np.zeros(0, np.int64)
        for count in counts:
            if self.priorities is not None:
                yield self._drawn(self.priorities, epoch, places.wrapped(first, first + count))
            else:
                if count > len(planned):
                    start = first + len(planned)
                    more = places.wrapped(start, start + max(count, _PLANNED))
                    planned = np.concatenate([planned, self.order.units(epoch, more)])
                yield self.gather(planned[:count])
                planned = planned[count:]
            first += count

    def _drawn(self, priorities: Priorities, epoch: int, draws: np.ndarray) -> Batch:
        numbers, weights = priorities.draw(epoch, draws)
        return {**self.gather(numbers), UNIT: numbers, WEIGHT: weights}

    def gather(self, numbers: np.ndarray) -> Batch:
        """Return a batch of some units.

        Args:
            numbers: int64, shape (b,), each in [0, the number of units): whatever the order.
        """
        return self.units.gather(self.arrays, self.keys, self.unit_index.choose(numbers))


@dataclass(frozen=True)
class Batches:
    """The size of batches and how they are made; `store.loader(el.Batches(256, drop_last=True, prefetch=2))`.

    Args:
        size: units of a batch, from 1 on.
        drop_last: leave out the last batch of an epoch if it is smaller.
        prefetch: batches that a background thread makes ahead; 0 for none.

    Raises:
        InvalidArgumentError: a number is no whole number in its range.
    """

    size: int = 256
    _: KW_ONLY
    drop_last: bool = False
    prefetch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_number("size", self.size, 1))
        object.__setattr__(self, "prefetch", whole_number("prefetch", self.prefetch, 0))
        object.__setattr__(self, "drop_last", flag("drop_last", self.drop_last))

    @staticmethod
    def of(value: Any) -> Batches:
        """Return the argument `batch_size` of a loader as an object."""
        return value if isinstance(value, Batches) else Batches(whole_number("batch_size", value, 1))


@dataclass(frozen=True)
class BatchSource:
    """Batches of numpy arrays.

    Attributes:
        feed: where units come from.
        batching: how an epoch is cut into batches.
        shard: the part of an epoch.
        transforms: applied to each batch in turn.
    """

    feed: Feed
    batching: Batches
    shard: Shard
    transforms: tuple[Callable[[Batch], Batch], ...] = ()

    def places(self, epoch: int, position: int) -> ShardSlice:
        """Return the places of an epoch that are batched, from a position on."""
        places, size = self.shard.places(position, self.feed.epoch_length(epoch)), self.batching.size
        return replace(places, count=places.count // size * size) if self.batching.drop_last else places

    def count(self, epoch: int) -> int:
        """Return how many batches an epoch has."""
        return -(-self.places(epoch, 0).count // self.batching.size)

    def batches(
        self, epoch: int, position: int, first: int = 0, workers: int = 1
    ) -> Generator[Batch, None, None]:
        """Yield batches of an epoch from a position on: the `first`-th, and every `workers`-th after it."""
        places, size = self.places(epoch, position), self.batching.size
        if first or workers > 1:
            places = places.every(size, first, workers)
        for batch in self.feed.batches(epoch, places, size):
            yield transformed(batch, self.transforms)


def transformed(batch: Batch, transforms: Iterable[Callable[[Batch], Batch]]) -> Batch:
    """Return a batch after each transform in turn.

    Raises:
        InvalidArgumentError: a transform gave nothing back.
    """
    for transform in transforms:
        batch = transform(batch)
        if batch is None:
            raise InvalidArgumentError(f"The transform {transform!r} gave None; expected a batch. Return it.")
    return batch
