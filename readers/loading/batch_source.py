"""Where a loader's batches come from: a feed, how it is batched, and what is done to each batch.

Everything that makes batches, here, in a thread or in another process, asks a `BatchSource` for those of an
epoch from a position on. It holds no state, so any number of readers can share one, and it can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ...store.errors import InvalidArgumentError
from .feed import Feed, Places
from .shard import Shard
from .units.unit import Batch


@dataclass(frozen=True)
class Batching:
    """How an epoch is cut into batches.

    Attributes:
        size: units of a batch.
        drop_last: leave out the last batch of an epoch if it is smaller.
        shard: which part of the epoch.
    """

    size: int
    drop_last: bool
    shard: Shard

    def places(self, position: int, length: int) -> Places:
        """The places that are batched, from a position on."""
        places = self.shard.places(position, length)
        if self.drop_last:
            places = replace(places, count=places.count // self.size * self.size)
        return places

    def batches(self, position: int, length: int) -> int:
        """How many batches are left."""
        return -(-self.places(position, length).count // self.size)


@dataclass(frozen=True)
class BatchSource:
    """Batches of numpy arrays.

    Attributes:
        feed: where units come from.
        batching: how they are cut into batches.
        transforms: applied to each batch in turn.
    """

    feed: Feed
    batching: Batching
    transforms: tuple[Callable[[Batch], Batch], ...] = ()

    def count(self, position: int) -> int:
        """How many batches an epoch has from a position on."""
        return self.batching.batches(position, self.feed.length)

    def batches(self, epoch: int, position: int, first: int = 0, workers: int = 1) -> Iterator[Batch]:
        """Yield batches of an epoch from a position on: the `first`-th, and every `workers`-th after it."""
        size = self.batching.size
        places = self.batching.places(position, self.feed.length)
        if first or workers > 1:
            places = places.every(size, first, workers)
        for batch in self.feed.batches(epoch, places, size):
            yield transformed(batch, self.transforms)


def transformed(batch: Batch, transforms: Iterable[Callable[[Batch], Batch]]) -> Batch:
    """A batch after each transform in turn.

    Raises:
        InvalidArgumentError: a transform gave nothing back.
    """
    for transform in transforms:
        batch = transform(batch)
        if batch is None:
            raise InvalidArgumentError(f"The transform {transform!r} gave None; expected a batch. Return it.")
    return batch
