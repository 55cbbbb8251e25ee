"""Measures columns exactly, one at a time: counts, means, deviations, extremes and true quantiles.

`stats_view` asks for it; `column_stats` is what comes out. Numbers are measured element by element from
sorted copies; frames from a count of each of the 256 values, some episodes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...store.schema import ACTION, FLAGS, REWARD
from ..blocks import BlockReader
from .column_stats import ColumnStats
from .columns import Column, LooseColumn
from .episode_index import EpisodeIndex
from .histograms import Histograms
from .step_arrays import StepArrays, read_arrays
from .tree import leaves

#: Frames are read in parts of about so many bytes.
_PART = 1 << 27


def measure(
    blocks: BlockReader,
    positions: np.ndarray,
    index: EpisodeIndex,
    column: Column,
    quantiles: Sequence[float],
) -> list[ColumnStats]:
    """Measure a column of the episodes at some positions; each part of a nested one by itself.

    Memory: the column, decoded, and a copy of one of its elements; of frames about 128 MB.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    named = dict(leaves(column.template, column.name))
    if any(_is_frame(leaf) for leaf in named.values()):
        return _measured_in_parts(blocks, positions, index, column, quantiles)
    arrays = read_arrays(blocks, positions, index, _with_presence(column))
    present = _present(arrays, column)
    return [
        _measured(name, leaf, present, quantiles)
        for name, leaf in leaves(arrays.columns[column.name], column.name)
    ]


def _with_presence(column: Column) -> list[Column]:
    """The column, and where it has values."""
    if isinstance(column, LooseColumn) and not column.presence:
        return [column, replace(column, name=_PRESENCE, template=np.zeros(0, bool), presence=True)]
    return [column]


_PRESENCE = " present"


def _present(arrays: StepArrays, column: Column) -> np.ndarray:
    """Which rows have a value: bool, one per row."""
    if _PRESENCE in arrays.columns:
        return arrays.columns[_PRESENCE]
    present = np.ones(arrays.index.rows, bool)
    if column.name in (ACTION, REWARD, *FLAGS):
        present[arrays.index.padding] = False
    return present


def _is_frame(leaf: np.ndarray) -> bool:
    return leaf.dtype == np.uint8 and leaf.ndim > 2


def _measured(name: str, values: np.ndarray, present: np.ndarray, quantiles: Sequence[float]) -> ColumnStats:
    """Element by element."""
    shape = values.shape[1:]
    rows = int(np.count_nonzero(present))
    flat = values.reshape(len(values), -1)
    found = np.empty((6 + len(quantiles), flat.shape[1]))
    for element in range(flat.shape[1]):
        found[:, element] = _numbers(flat[present, element], quantiles)
    parts = [part.reshape(shape) for part in found]
    return ColumnStats(
        name,
        values.dtype.name,
        shape,
        rows,
        len(present) - rows,
        parts[0].astype(np.int64),
        parts[1].astype(np.int64),
        *parts[2:6],
        quantiles=dict(zip(quantiles, parts[6:], strict=True)),
    )


def _numbers(values: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """Count, NaN, mean, deviation, least, greatest, quantiles of a fresh vector, which is sorted in place."""
    values.sort()
    count = len(values)
    if values.dtype.kind == "f":
        count -= int(np.count_nonzero(np.isnan(values)))
    nan = len(values) - count
    values = values[:count]  # what is no number stands at the end
    if not count:
        return np.array([0, nan, *[np.nan] * (4 + len(quantiles))])
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = _mean(wide)
        std = _deviation(wide, mean) if np.isfinite(mean) else np.nan
    between = [_quantile(values, probability) for probability in quantiles]
    return np.array([count, nan, mean, std, values[0], values[-1], *between])


def _mean(values: np.ndarray) -> float:
    """The mean of sorted numbers; their sum may be too large for a float64."""
    mean = float(values.mean())
    if not np.isfinite(mean) and np.isfinite(values[0]) and np.isfinite(values[-1]):
        mean = float((values / len(values)).sum())
    return min(max(mean, values[0]), values[-1]) if np.isfinite(mean) else mean


def _deviation(values: np.ndarray, mean: float) -> float:
    """The standard deviation of float64 numbers, which are used up."""
    values -= mean
    # Their squares may be too large or too small for a float64.
    peak = max(-values[0], values[-1])
    if not 0 < peak < np.inf:
        return abs(float(peak))
    values /= peak
    # Two passes: what rounding left in the mean is taken out of the sum of squares again.
    rest = values.mean()
    np.square(values, out=values)
    return float(peak * np.sqrt(max(values.mean() - rest * rest, 0.0)))


def _quantile(ordered: np.ndarray, probability: float) -> float:
    """Interpolated between the two values of a sorted vector that it lies between."""
    place = (len(ordered) - 1) * probability
    below = int(place)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    part = place - below
    return low if low == high or not part else low * (1 - part) + high * part


def _measured_in_parts(
    blocks: BlockReader,
    positions: np.ndarray,
    index: EpisodeIndex,
    column: Column,
    quantiles: Sequence[float],
) -> list[ColumnStats]:
    """A column with frames in it, some episodes at a time; what stands beside the frames is kept."""
    named = dict(leaves(column.template, column.name))
    counted = {name: Histograms(leaf.shape[1:]) for name, leaf in named.items() if _is_frame(leaf)}
    kept: dict[str, list[np.ndarray]] = {name: [] for name in named if name not in counted}
    presence = []
    row_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in named.values())
    for some in _parts(index, row_bytes):
        part = EpisodeIndex(index.lengths[some], index.end_reasons[some])
        arrays = read_arrays(blocks, positions[some], part, _with_presence(column))
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


def _parts(index: EpisodeIndex, row_bytes: int) -> Iterator[slice]:
    """Episodes that together have about `_PART` bytes, at least one at a time."""
    most = max(_PART // max(row_bytes, 1), 1)
    first = 0
    while first < len(index):
        limit = index.starts[first] + most
        stop = max(int(np.searchsorted(index.starts, limit, side="right")) - 1, first + 1)
        yield slice(first, stop)
        first = stop
