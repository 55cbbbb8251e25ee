"""Which part of an epoch one of several readers takes."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

from ...store.errors import InvalidArgumentError
from ..optional_packages import require
from .feed import Places


@dataclass(frozen=True)
class Shard:
    """One of `world` readers that share an epoch, each unit read by one of them.

    Reader `rank` takes every `world`-th unit. Where their number does not divide by `world`, each takes the
    same number all the same: "pad" gives some readers a unit from the epoch's beginning a second time,
    "drop" leaves the last few units out.

    Attributes:
        rank: 0 to world - 1.
        world: how many readers.
        uneven: "pad" or "drop".
    """

    rank: int = 0
    world: int = 1
    uneven: Literal["pad", "drop"] = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise InvalidArgumentError(
                f"shard=({self.rank}, {self.world}): expected (rank, world) with 0 <= rank < world."
            )
        if self.uneven not in ("pad", "drop"):
            raise InvalidArgumentError(f"uneven={self.uneven!r}: expected 'pad' or 'drop'.")

    def places(self, position: int, length: int) -> Places:
        """What this reader takes of an epoch from a position on.

        Args:
            position: how many units all readers together have taken of the epoch.
            length: places of the epoch.
        """
        left = max(length - position, 0)
        count = left // self.world if self.uneven == "drop" else -(-left // self.world)
        return Places(position + self.rank, self.world, count, length)


def choose_shard(shard: Any, uneven: Any) -> Shard:
    """The shard that the arguments of a loader name.

    Args:
        shard: (rank, world), or "distributed" for this process's in torch.distributed's default group; the
            only one where that is not initialised.
        uneven: "pad" or "drop".

    Raises:
        InvalidArgumentError: it is neither, or out of range.
        MissingPackageError: torch is not installed.
    """
    if shard == "distributed":
        distributed = require("torch", "shard='distributed'").distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return Shard(uneven=uneven)
        return Shard(distributed.get_rank(), distributed.get_world_size(), uneven)
    try:
        rank, world = map(operator.index, shard)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"shard={shard!r}: expected (rank, world), two whole numbers, or 'distributed'."
        ) from error
    return Shard(rank, world, uneven)
