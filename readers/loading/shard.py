"""The part of an epoch that one of several readers takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np

from ...store.common.arguments import integer, one_of
from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError


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
