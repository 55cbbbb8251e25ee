"""Exact statistics of frames, from a histogram of the 256 values of each channel.

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
    """Return the axis of a frame's channels: the last, or else the first, of size 1, 3 or 4; or None."""
    if len(shape) == 3 and shape[-1] in _CHANNELS:
        return 2
    return 0 if len(shape) == 3 and shape[0] in _CHANNELS else None


class Histograms:
    """A histogram for each channel of some frames.

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
        """Return the statistics of all frames.

        Args:
            name: of the column.
            present: bool, one per row: whether it was added.
            quantiles: probabilities.
        """
        found = np.array([_numbers(counts, quantiles) for counts in self._counts], np.float64).T
        shape = {None: (), 0: (len(self._counts), 1, 1), 2: (len(self._counts),)}[self._axis]
        return ColumnStats.of(name, np.empty((0, *self._shape), np.uint8), present, found, shape, quantiles)


def _counted(values: np.ndarray) -> np.ndarray:
    """Return the number of occurrences of each value in a vector of bytes."""
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
    """Return count, NaN (0), mean, deviation, minimum, maximum and quantiles, from exact sums."""
    numbers = [int(number) for number in counts]
    count = sum(numbers)
    if not count:
        return [0, 0, *[np.nan] * (4 + len(quantiles))]
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
        0,
        float(Fraction(summed, count)),
        _root(spread) / count,
        int(present[0]),
        int(present[-1]),
        *map(between, quantiles),
    ]


def _root(number: int) -> float:
    """Return the square root of a whole number that may be too long for a float."""
    return isqrt(number << 64) / 2**32
