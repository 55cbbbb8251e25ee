"""The source of a loader's batches: a feed of units, cut into batches, each of which is transformed.

Everything that makes batches, here, in a thread or in another process, asks a `BatchSource` for those of an
epoch from a position on. It holds no state, so any number of readers can share one, and it can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from ...store.errors import InvalidArgumentError
from .arguments import whole_number
from .feed import Feed
from .order.shard import Shard, ShardSlice
from .units.unit import Batch


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

    def places(self, position: int) -> ShardSlice:
        """Return the places of an epoch that are batched, from a position on."""
        places, size = self.shard.places(position, self.feed.length), self.batching.size
        return replace(places, count=places.count // size * size) if self.batching.drop_last else places

    def count(self, position: int) -> int:
        """Return how many batches an epoch has from a position on."""
        return -(-self.places(position).count // self.batching.size)

    def batches(self, epoch: int, position: int, first: int = 0, workers: int = 1) -> Iterator[Batch]:
        """Yield batches of an epoch from a position on: the `first`-th, and every `workers`-th after it."""
        places, size = self.places(position), self.batching.size
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
