"""Fair measurement of two sides on a busy machine, and the resulting table row.

Every number is a cost (seconds, bytes), so smaller is better everywhere and a ratio is ours over theirs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Samples:
    """The cost of one side, once per repeat."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value that is quoted."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)


@dataclass(frozen=True)
class Row:
    """One row of the table: the work, its cost on both sides, and the target.

    `ratio_target` bounds ours over theirs, `limit` bounds ours alone, in `unit`. A row with neither is there
    for information.
    """

    work: str
    unit: str
    ours: Samples
    peer: str = ""
    theirs: Samples | None = None
    ratio_target: float | None = None
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """Median of ours over median of theirs, or None without a peer."""
        if self.theirs is None or self.theirs.median == 0:
            return None
        return self.ours.median / self.theirs.median

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached, or None if the row has none."""
        if self.limit is not None:
            return self.ours.median <= self.limit
        if self.ratio_target is not None and self.ratio is not None:
            return self.ratio <= self.ratio_target
        return None


def interleave(
    sides: Mapping[str, Callable[[], Result]], repeats: int, warm_up: bool = True
) -> dict[str, list[Result]]:
    """Call the sides in turn, A B A B ..., and return the results of each, one per repeat.

    Whatever slows the machine for a while then slows both sides. One uncounted round goes first, so that
    imports, caches and clock speeds are the same for the first repeat as for the others.
    """
    if warm_up:
        for side in sides.values():
            side()
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            results[name].append(side())
    return results


def scaled(values: Sequence[float], factor: float) -> Samples:
    """Turn results into samples in another unit."""
    return Samples(tuple(value * factor for value in values))


def overhead(recorded: Sequence[float], bare: Sequence[float], steps: int) -> Samples:
    """Return the overhead in microseconds per step: recorded loop minus bare loop of the same repeat."""
    pairs = zip(recorded, bare, strict=True)
    return Samples(tuple((with_it - without) / steps * 1e6 for with_it, without in pairs))
