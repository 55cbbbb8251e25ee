"""Exact statistics of frames: how often each of the 256 values stands in each channel.

`measuring` fills them, some frames at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

import numpy as np

from .column_stats import ColumnStats

_CHANNELS = (1, 3, 4)
#: Pixels are counted so many at a time, since numpy widens them to 64 bits on the way.
_AT_ONCE = 1 << 20


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Which axis of a frame is that of its colours: the last, or else the first, if it has 1, 3 or 4."""
    if len(shape) == 3 and shape[-1] in _CHANNELS:
        return 2
    return 0 if len(shape) == 3 and shape[0] in _CHANNELS else None


class Histograms:
    """How often each value stands in each channel of some frames.

    Args:
        shape: of a frame.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._axis = channel_axis(shape)
        self._counts = np.zeros((1 if self._axis is None else shape[self._axis], 256), np.int64)

    def add(self, frames: np.ndarray) -> None:
        """Count frames; uint8, shape (n, *shape)."""
        if self._axis is None:
            self._counts[0] += _counted(frames.reshape(-1))
            return
        for channel, counts in enumerate(self._counts):
            counts += _counted(frames.take(channel, axis=self._axis + 1).reshape(-1))

    def stats(self, name: str, present: np.ndarray, quantiles: Sequence[float]) -> ColumnStats:
        """What they amount to.

        Args:
            name: of the column.
            present: bool, one per row: which were added.
            quantiles: probabilities.
        """
        rows = int(np.count_nonzero(present))
        found = np.array([_numbers(counts, quantiles) for counts in self._counts]).T
        shape = {None: (), 0: (len(self._counts), 1, 1), 2: (len(self._counts),)}[self._axis]
        parts = [part.reshape(shape) for part in found]
        count = parts[0].astype(np.int64)
        return ColumnStats(
            name,
            "uint8",
            self._shape,
            rows,
            len(present) - rows,
            count,
            np.zeros_like(count),
            *parts[1:5],
            quantiles=dict(zip(quantiles, parts[5:], strict=True)),
        )


def _counted(values: np.ndarray) -> np.ndarray:
    """How often each value stands in a vector of bytes."""
    total = np.zeros(256, np.int64)
    if len(values) % 2:
        total[values[-1]] += 1
        values = values[:-1]
    # Two bytes at a time: half as many numbers to count.
    pairs = np.ascontiguousarray(values).view(np.uint16)
    for first in range(0, len(pairs), _AT_ONCE):
        counts = np.bincount(pairs[first : first + _AT_ONCE], minlength=1 << 16).reshape(256, 256)
        total += counts.sum(axis=0) + counts.sum(axis=1)
    return total


def _numbers(counts: np.ndarray, quantiles: Sequence[float]) -> list[float]:
    """Count, mean, deviation, least, greatest and quantiles, from exact sums."""
    numbers = [int(number) for number in counts]
    count = sum(numbers)
    if not count:
        return [0, *[np.nan] * (4 + len(quantiles))]
    summed = sum(value * number for value, number in enumerate(numbers))
    squared = sum(value * value * number for value, number in enumerate(numbers))
    spread = count * squared - summed * summed
    upto = np.cumsum(counts)

    def at(place: int) -> int:
        return int(np.searchsorted(upto, place, side="right"))

    def between(probability: float) -> float:
        place = (count - 1) * probability
        below = int(place)
        low, high = at(below), at(min(below + 1, count - 1))
        return low + (high - low) * (place - below)

    present = np.flatnonzero(counts)
    return [
        count,
        float(Fraction(summed, count)),
        _root(spread) / count,
        int(present[0]),
        int(present[-1]),
        *map(between, quantiles),
    ]


def _root(number: int) -> float:
    """The square root of a whole number that may be too long for a float."""
    return isqrt(number << 64) / 2**32
