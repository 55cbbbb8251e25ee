"""Edges of histograms: round numbers, and a cell for each whole number of a small range."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bins:
    """Equal stretches of an axis.

    Attributes:
        start: where the first begins.
        width: of each.
        count: how many.
        whole: whether each is one whole number, in its middle.
    """

    start: float
    width: float
    count: int
    whole: bool

    def sql(self, value: str) -> str:
        """Return SQL for the index of the bin that a value belongs to."""
        place = f"floor({value} / {self.width!r} - {self.start / self.width!r})"
        return f"least(greatest({place}, 0), {self.count - 1})::INT"

    def edges(self, index: int) -> tuple[float, float]:
        """Return where a stretch begins and ends."""
        return self.start + index * self.width, self.start + (index + 1) * self.width

    def label(self, index: int) -> str:
        """Return a stretch in words: its number, or from where to where."""
        low, high = self.edges(index)
        return f"{(low + high) / 2:g}" if self.whole else f"{low:.6g} to {high:.6g}"


def bins_for(low: float, high: float, about: int, *, whole: bool) -> Bins:
    """Stretches that cover values from `low` to `high`.

    Args:
        low, high: finite, at most 1e300 from zero.
        about: how many there should be; round edges make it a few more or less.
        whole: whether all values are whole numbers.

    >>> bins_for(0.0, 3.0, 40, whole=True)
    Bins(start=-0.5, width=1.0, count=4, whole=True)
    >>> bins_for(0.0, 0.98, 10, whole=False)
    Bins(start=0.0, width=0.1, count=10, whole=False)
    """
    if whole and high - low < about and abs(low) < 2**52:
        return Bins(low - 0.5, 1.0, int(high - low) + 1, True)
    span = high - low
    if span <= max(abs(low), abs(high)) * 1e-12:
        span = abs(low) or 1.0
        low, high = low - span / 2, high + span / 2
    width = _round(span / about)
    if whole:
        width = max(1.0, width)
    start = math.floor(low / width) * width
    count = max(1, math.floor((high - start) / width) + 1)
    if count > 1 and start + (count - 1) * width >= high:
        count -= 1
    return Bins(start, width, count, False)


def _round(width: float) -> float:
    """Return the next number that is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(width))
    for step in (1, 2, 5, 10):
        if width <= step * power * (1 + 1e-9):
            return step * power
    return 10 * power
