"""Histograms: the edges of bins, and how many values of each series are in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..chart_session import ChartSession
from .series import DRAWN, FITS

#: A histogram that would end farther from the quartiles than so many of their distances ends nearer.
_FAR, _NEAR = 10, 3


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


def usual_range(low: float, high: float, quantiles: Sequence[float]) -> tuple[float, float]:
    """Return where a histogram ends whose outer bars hold what is far from the other values.

    Args:
        low, high: the extremes.
        quantiles: 1 %, 25 %, 75 % and 99 %. Of a few values, a single wild one moves the outer two.

    >>> usual_range(0.0, 1e30, (0.0, 1.0, 3.0, 9e29))
    (0.0, 9.0)
    """
    least, lower, upper, most = quantiles
    room, box = (most - least) / 2, upper - lower
    low, high = max(low, least - room), min(high, most + room)
    if box and low < lower - _FAR * box:
        low = lower - _NEAR * box
    if box and high > upper + _FAR * box:
        high = upper + _NEAR * box
    return low, high


def count_bins(
    bench: ChartSession, panel: str, about: int, table: str = DRAWN, *, clip: bool = False
) -> tuple[Bins, tuple[float, float], list[dict[str, Any]]]:
    """Count the episodes in each bin of a histogram, by series.

    Args:
        bench: with the table.
        panel: one of it.
        about: how many bins there should be.
        table: `DRAWN`, or `VALUED` for all series.
        clip: the first and the last bin hold what is beyond them, where a few values are far from the others.

    Returns:
        The bins, the lowest and the highest value, and rows of series, panel, bin, episodes (count) and share
        (of the series).
    """
    chosen = f"panel = '{panel}' AND {FITS}"
    (span,) = bench.rows(
        f"SELECT min(value) AS low, max(value) AS high, bool_and(value = round(value)) AS whole, "
        f"quantile_cont(value, [0.01, 0.25, 0.75, 0.99]) AS usual FROM {table} WHERE {chosen}"
    )
    low, high = span["low"], span["high"]
    if clip:
        low, high = usual_range(low, high, span["usual"])
    bins = bins_for(low, high, about, whole=span["whole"])
    return (
        bins,
        (span["low"], span["high"]),
        bench.rows(
            f"SELECT series, panel, {bins.sql('value')} AS bin, count(*) AS episodes, "
            f"count(*) / sum(count(*)) OVER (PARTITION BY series) AS share FROM {table} WHERE {chosen} "
            "GROUP BY series, panel, bin ORDER BY bin, series"
        ),
    )
