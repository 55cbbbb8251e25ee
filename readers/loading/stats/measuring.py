"""Measures columns exactly, one at a time: counts, means, deviations, extremes and true quantiles.

`compute` calls it; it returns `ColumnStats`. Numbers are measured element by element from
sorted copies; frames from a count of each of the 256 values, some episodes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....store.reserved import is_observation
from ....store.schema import ACTION, FLAGS, REWARD
from ..columns.episode_index import EpisodeIndex
from ..columns.specs import Column, DynamicColumn, ObservedColumn
from ..columns.step_arrays import ColumnSource, StepArrays, read_arrays
from ..output.tree import leaves, row_bytes
from .column_stats import ColumnStats
from .histograms import Histograms

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
        _measured(name, leaf, present, quantiles)
        for name, leaf in leaves(arrays.columns[column.name], column.name)
    ]


def _with_presence(source: ColumnSource, column: Column) -> tuple[Column, ...]:
    """Return the column, and one that tells where it has values."""
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
    return index.stepped if column.name in (ACTION, REWARD, *FLAGS) else np.ones(index.rows, bool)


def _is_frame(leaf: np.ndarray) -> bool:
    return leaf.dtype == np.uint8 and leaf.ndim > 2


def _measured(name: str, values: np.ndarray, present: np.ndarray, quantiles: Sequence[float]) -> ColumnStats:
    """Measure a column element by element."""
    flat = values.reshape(len(values), -1)
    found = np.empty((6 + len(quantiles), flat.shape[1]))
    for element in range(flat.shape[1]):
        found[:, element] = _numbers(flat[present, element], quantiles)
    return ColumnStats.of(name, values, present, found, values.shape[1:], quantiles)


def _numbers(values: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """Return count, NaN, mean, deviation, minimum, maximum, quantiles of a vector; sort it in place."""
    values.sort()
    count = len(values)
    if values.dtype.kind == "f":
        count -= int(np.count_nonzero(np.isnan(values)))
    nan = len(values) - count
    values = values[:count]  # NaN is sorted to the end
    if not count:
        return np.array([0, nan, *[np.nan] * (4 + len(quantiles))])
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _mean(wide)
        std = _deviation(wide, mean) if np.isfinite(mean) else np.nan
    between = [_quantile(values, probability) for probability in quantiles]
    return np.array([count, nan, mean, std, values[0], values[-1], *between])


def _mean(values: np.ndarray) -> float:
    """Return the mean of sorted numbers, whose sum may be too large for a float64."""
    mean = float(values.mean())
    if not np.isfinite(mean) and np.isfinite(values[0]) and np.isfinite(values[-1]):
        mean = float((values / len(values)).sum())
    return min(max(mean, values[0]), values[-1]) if np.isfinite(mean) else mean


def _deviation(values: np.ndarray, mean: float) -> float:
    """Return the standard deviation of float64 numbers, which are overwritten."""
    values -= mean
    # Their squares may be too large or too small for a float64.
    peak = max(-values[0], values[-1])
    if not 0 < peak < np.inf:
        return abs(float(peak))
    values /= peak
    # Two passes: subtract the rounding error of the mean from the sum of squares.
    rest = values.mean()
    np.square(values, out=values)
    return float(peak * np.sqrt(max(values.mean() - rest * rest, 0.0)))


def _quantile(ordered: np.ndarray, probability: float) -> float:
    """Interpolate between the two neighbouring values of a sorted vector."""
    place = (len(ordered) - 1) * probability
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    part = place - below
    return low if low == high or not part else low * (1 - part) + high * part


def _measured_in_parts(source: ColumnSource, column: Column, quantiles: Sequence[float]) -> list[ColumnStats]:
    """Measure a column with frames some episodes at a time; keep the values beside the frames."""
    named = dict(leaves(column.template, column.name))
    counted = {name: Histograms(leaf.shape[1:]) for name, leaf in named.items() if _is_frame(leaf)}
    kept: dict[str, list[np.ndarray]] = {name: [] for name in named if name not in counted}
    presence = []
    for some in _parts(source.index, row_bytes(column.template)):
        arrays = read_arrays(source.part(some))
        present = _present(arrays, column)
        presence.append(present)
        for name, leaf in leaves(arrays.columns[column.name], column.name):
            if name in counted:
                counted[name].add(leaf if present.all() else leaf[present])
            else:
                kept[name].append(leaf)
    everywhere = np.concatenate(presence)
    return [
        counted[name].stats(name, everywhere, quantiles)
        if name in counted
        else _measured(name, np.concatenate(kept[name]), everywhere, quantiles)
        for name in named
    ]


def _parts(index: EpisodeIndex, bytes_of_row: int) -> Iterator[slice]:
    """Yield slices of episodes that together have about `_PART` bytes, at least one episode each."""
    most = max(_PART // max(bytes_of_row, 1), 1)
    first = 0
    while first < len(index):
        limit = index.starts[first] + most
        stop = max(int(np.searchsorted(index.starts, limit, side="right")) - 1, first + 1)
        yield slice(first, stop)
        first = stop
