"""Exact statistics of columns, one column at a time: counts, means, deviations, extremes and true quantiles.

Numbers are measured element by element from sorted copies; frames from a count of each of the 256 values of a
channel, some episodes at a time. Results are kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from os import PathLike
from typing import Any

import numpy as np

from ...store.common.arguments import real_number
from ...store.common.progress import Progress, progress_meter
from ...store.errors import InvalidArgumentError
from ...store.names import is_observation
from ...store.schema import ACTION, OBSERVATION, REWARD
from ...store.snapshot import Snapshot
from ..columns.column import Column, ObservedColumn
from ..columns.ragged import Ragged
from ..columns.selection import EpisodeIndex, Selection, select
from ..columns.specs import DynamicColumn, check_names, choose_columns, dynamic_fields
from ..columns.step_arrays import ColumnSource, StepArrays, read_arrays
from ..columns.tree import joined_leaves, leaves, row_bytes
from ..context import ReadContext
from .column_stats import ColumnStats, Stats, StatsCache, cache_key

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
        counted = ((np.flatnonzero(counts), counts[counts > 0]) for counts in self._counts)
        numbers = np.array([_numbers(values, quantiles, counts) for values, counts in counted]).T
        shape = {None: (), 0: (len(self._counts), 1, 1), 2: (len(self._counts),)}[self._axis]
        return ColumnStats.of(name, np.empty((0, *self._shape), np.uint8), present, numbers, shape, quantiles)


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


#: Frames are read in parts of about so many bytes.
_PART = 1 << 27


def measure(source: ColumnSource, column: Column, quantiles: Sequence[float]) -> list[ColumnStats]:
    """Measure a column of the episodes of a source; each part of a nested one by itself.

    Memory: the column, decoded, and a copy of one of its elements; of frames about 128 MB.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    source = replace(source, columns=_with_presence(source, column))
    if any(_is_frame(leaf) for _, leaf in leaves(column.template)):
        return _measured_in_parts(source, column, quantiles)
    arrays = read_arrays(source)
    present = _present(arrays, column)
    return [
        stats
        for name, leaf in leaves(arrays.columns[column.name], column.name)
        for stats in _measured_leaf(name, leaf, present, quantiles)
    ]


def _with_presence(source: ColumnSource, column: Column) -> tuple[Column, ...]:
    """Return the column, and a mask of its values."""
    if source.index.missing is not None and is_observation(column.name):
        observed = ObservedColumn.of(source.selection.schema.observation)
        return column, replace(observed, name=_PRESENCE)
    if isinstance(column, DynamicColumn) and not column.presence:
        return column, replace(column, name=_PRESENCE, template=np.zeros(0, bool), presence=True)
    return (column,)


_PRESENCE = " present"


def _present(arrays: StepArrays, column: Column) -> np.ndarray:
    """Return which rows have a value: bool, one per row."""
    if _PRESENCE in arrays.columns:
        return arrays.columns[_PRESENCE]
    index = arrays.index
    return index.stepped if column.of_transitions else np.ones(index.rows, bool)


def _is_frame(leaf: np.ndarray | Ragged) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype == np.uint8 and leaf.ndim > 2


def _measured_leaf(
    name: str, leaf: np.ndarray | Ragged, present: np.ndarray, quantiles: Sequence[float]
) -> list[ColumnStats]:
    """Measure an array; of rows that differ in length, their lengths and all values together."""
    if not isinstance(leaf, Ragged):
        return [_measured(name, leaf, present, quantiles)]
    values = leaf.values
    while isinstance(values, Ragged):
        values = values.values
    measured = _measured(name, values, np.ones(len(values), bool), quantiles)
    rows = int(np.count_nonzero(present))
    return [
        replace(measured, rows=rows, absent=len(present) - rows),
        _measured(f"len({name})", leaf.lengths, present, quantiles),
    ]


def _measured(name: str, values: np.ndarray, present: np.ndarray, quantiles: Sequence[float]) -> ColumnStats:
    """Measure a column element by element."""
    flat = values.reshape(len(values), -1)
    measured = np.empty((6 + len(quantiles), flat.shape[1]))
    for element in range(flat.shape[1]):
        measured[:, element] = _numbers(flat[present, element], quantiles)
    extremes = None
    if values.dtype.kind in "iu" and np.any(np.abs(measured[4:6]) >= _EXACT):
        there = flat[present]
        extremes = np.stack([there.min(axis=0), there.max(axis=0)])
    return ColumnStats.of(name, values, present, measured, values.shape[1:], quantiles, extremes)


def _numbers(values: np.ndarray, quantiles: Sequence[float], weights: np.ndarray | None = None) -> np.ndarray:
    """Return count, NaN, mean, deviation, minimum, maximum, quantiles of a vector; sort it in place.

    Args:
        values: numbers.
        quantiles: probabilities.
        weights: int64: how often each of the values occurs, which ascend; None for once.
    """
    values.sort()
    there = len(values)
    if values.dtype.kind == "f":
        there -= int(np.count_nonzero(np.isnan(values)))
    nan = len(values) - there
    values = values[:there]  # NaN is sorted to the end
    if not there:
        return np.array([0, nan, *[np.nan] * (4 + len(quantiles))])
    upto = None if weights is None else np.cumsum(weights)
    count = there if upto is None else int(upto[-1])

    def value_at(place: int) -> float:
        return values[place if upto is None else np.searchsorted(upto, place, side="right")].item()

    exact_mean = None
    if values.dtype.kind in "iu" and max(abs(int(values[0])), abs(int(values[-1]))) >= _EXACT:
        # A float64 rounds such integers, but not their distances from the smallest, exact modulo 2^64.
        exact_mean = _mean_of_integers(values)
        wide = (values.view(np.uint64) - values.view(np.uint64)[0]).astype(np.float64)
    else:
        wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _mean(wide, weights)
        std = _deviation(wide, mean, weights) if np.isfinite(mean) else np.nan
    mean = mean if exact_mean is None else exact_mean
    between = [_quantile(count, value_at, probability) for probability in quantiles]
    return np.array([count, nan, mean, std, values[0], values[-1], *between])


#: Integers up to here are exact as float64.
_EXACT = 2**53


def _mean_of_integers(values: np.ndarray) -> float:
    """Return the mean of int64 or uint64 numbers, rounded once: the sums of their halves do not overflow."""
    high, low = int((values >> 32).sum()), int((values & 0xFFFFFFFF).sum())
    return float(Fraction((high << 32) + low, len(values)))


def _mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean of sorted numbers, whose sum may be too large for a float64."""
    mean = float(np.average(values, weights=weights))
    if not np.isfinite(mean) and np.isfinite(values[0]) and np.isfinite(values[-1]):
        mean = float((values / len(values)).sum())
    return min(max(mean, values[0]), values[-1]) if np.isfinite(mean) else mean


def _deviation(values: np.ndarray, mean: float, weights: np.ndarray | None) -> float:
    """Return the standard deviation of float64 numbers, which ascend and are overwritten."""
    if np.isinf(values[-1] - values[0]):
        # Distances between finite numbers may be too large for a float64; those of their halves are not.
        values /= 2
        return 2 * _deviation(values, mean / 2, weights)
    values -= mean
    # Their squares may be too large or too small for a float64.
    peak = max(-values[0], values[-1])
    if not 0 < peak < np.inf:
        return abs(float(peak))
    values /= peak
    # Two passes: subtract the rounding error of the mean from the sum of squares.
    rest = np.average(values, weights=weights)
    np.square(values, out=values)
    return float(peak * np.sqrt(max(np.average(values, weights=weights) - rest * rest, 0.0)))


def _quantile(count: int, value_at: Callable[[int], float], probability: float) -> float:
    """Interpolate between the two neighbouring values of `count` sorted ones."""
    place = (count - 1) * probability
    below = int(place)
    low, high = float(value_at(below)), float(value_at(min(below + 1, count - 1)))
    part = place - below
    if low == high or not part:
        return low
    # Not by their difference, which may be too large for a float64, or NaN; rounding can lead out of the two.
    return min(max(low * (1 - part) + high * part, low), high)


def _measured_in_parts(source: ColumnSource, column: Column, quantiles: Sequence[float]) -> list[ColumnStats]:
    """Measure a column with frames some episodes at a time; keep the values beside the frames."""
    named = dict(leaves(column.template, column.name))
    counted = {name: Histograms(leaf.shape[1:]) for name, leaf in named.items() if _is_frame(leaf)}
    kept: dict[str, list[Any]] = {name: [] for name in named if name not in counted}
    presence = []
    for some in parts(source.index, row_bytes(column.template)):
        arrays = read_arrays(source.part(some))
        present = _present(arrays, column)
        presence.append(present)
        for name, leaf in leaves(arrays.columns[column.name], column.name):
            if name in counted:
                counted[name].add(leaf if present.all() else leaf[present])
            else:
                kept[name].append(leaf)
    everywhere = np.concatenate(presence)
    measured: list[ColumnStats] = []
    for name in named:
        if name in counted:
            measured.append(counted[name].stats(name, everywhere, quantiles))
        else:
            measured += _measured_leaf(name, joined_leaves(kept[name]), everywhere, quantiles)
    return measured


def parts(index: EpisodeIndex, bytes_of_row: int) -> Iterator[slice]:
    """Yield slices of episodes that together have about `_PART` bytes, at least one episode each."""
    most = max(_PART // max(bytes_of_row, 1), 1)
    first = 0
    while first < len(index):
        limit = index.starts[first] + most
        stop = max(int(np.searchsorted(index.starts, limit, side="right")) - 1, first + 1)
        yield slice(first, stop)
        first = stop


def measured(
    context: ReadContext,
    columns: Sequence[str] | None,
    quantiles: Sequence[float],
    cache_folder: str | PathLike[str] | None,
    agent: str | None,
    group: str | None,
    progress: bool | Progress,
) -> Stats:
    """Return statistics of columns; see `MeasuredView.stats`."""
    snapshot, positions = context.snapshot, context.all_positions
    asked = _checked(quantiles)
    if not len(positions):
        raise InvalidArgumentError("There is no episode to measure: the view is empty. Check the filter.")
    selection = select(snapshot, positions, agent, group)
    cache, source = StatsCache(cache_folder), ColumnSource(context.blocks, selection, ())
    columns_stats = {}
    chosen = _columns(snapshot, selection, columns)
    with progress_meter(progress, "Measuring", "columns") as report:
        for done, column in enumerate(chosen):
            report(done, len(chosen))
            key = cache_key(snapshot, selection.pointers, column, asked)
            measured = cache.load(key)
            if measured is None:
                measured = measure(source, column, asked)
                cache.save(key, measured)
            columns_stats.update((each.name, each) for each in measured)
        report(len(chosen), len(chosen))
    return Stats(columns_stats)


def _columns(snapshot: Snapshot, selection: Selection, names: Sequence[str] | None) -> list[Column]:
    if names is not None:
        check_names(names)
        return list(choose_columns(snapshot, selection, names, ragged=True))
    columns: list[Column] = []
    for name in (OBSERVATION, ACTION, REWARD, *dynamic_fields(snapshot)):
        try:
            columns += choose_columns(snapshot, selection, [name])
        except InvalidArgumentError:
            # Without named columns, leave out values that are no arrays of one shape.
            continue
    return columns


def _checked(quantiles: Sequence[float]) -> tuple[float, ...]:
    try:
        return tuple(sorted({real_number("quantile", each, 1.0) for each in quantiles}))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"quantiles={quantiles!r}: expected probabilities from 0 to 1.") from error
