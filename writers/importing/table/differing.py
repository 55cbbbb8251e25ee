"""Values of a table that its rows contradict: those that a store takes from elsewhere, counted as lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....store.losses import Losses
from ..last_observation import DIFFERING
from .spans import Span

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


class DifferingRows:
    """Compares the rows of some neighbouring episodes with each other.

    Args:
        spans: the episodes.
        losses: where differences are counted.
    """

    def __init__(self, spans: Sequence[Span], losses: Losses) -> None:
        counts = np.array([span.rows for span in spans])
        self._firsts = np.cumsum(counts) - counts
        self._owners = np.repeat(self._firsts, counts)
        self._goes_on = np.ones(int(counts.sum()), bool)
        self._goes_on[np.cumsum(counts) - 1] = False
        self._next = np.zeros(max(0, len(self._goes_on) - 1), bool)
        self._losses = losses

    def compare_next(self, values: pa.Array, following: pa.Array) -> None:
        """Compare next values with those of the next row; an observation has several such columns."""
        self._next |= _differ(following.slice(0, len(self._next)), values.slice(1)) & self._goes_on[:-1]

    def count_next(self) -> None:
        """Count the rows whose next observation is not that of the next row, which is the one kept."""
        self._losses.add(DIFFERING, int(self._next.sum()))

    def count_changes(self, name: str, values: pa.Array) -> None:
        """Count the rows with another value than the first of their episode, which is the one kept."""
        differ = _differ(values, values.take(pa.array(self._owners)))
        self._losses.add(f"values of {name} that differ from the first of their episode", int(differ.sum()))


def _differ(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return which values differ; NULL at the left states nothing, and NaN is NaN."""
    if _are_vectors(left, right):
        return _vectors_differ(left, right)
    stated = left.is_valid().to_numpy(zero_copy_only=False)
    if isinstance(left.type, _LISTS) and isinstance(right.type, _LISTS):
        return stated & _lists_differ(left, right)
    if pa.types.is_floating(left.type) and pa.types.is_floating(right.type):
        ours, theirs = (each.to_numpy(zero_copy_only=False) for each in (left, right))
        # NULL is NaN here.
        return stated & (ours != theirs) & ~((ours != ours) & (theirs != theirs))
    if left.type != right.type or pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return stated & np.array([one != other for one, other in pairs], bool)
    differ = pc.call_function("not_equal", [left, right]).fill_null(True)
    return stated & differ.to_numpy(zero_copy_only=False)


def _are_vectors(left: pa.Array, right: pa.Array) -> bool:
    if left.type != right.type or not isinstance(left.type, pa.FixedSizeListType):
        return False
    inner = left.type.value_type
    nulls = left.null_count + right.null_count
    numbers = pa.types.is_integer(inner) or pa.types.is_floating(inner)
    return numbers and not nulls and not left.flatten().null_count + right.flatten().null_count


def _vectors_differ(left: pa.Array, right: pa.Array) -> np.ndarray:
    ours, theirs = (
        each.flatten().to_numpy().reshape(len(each), each.type.list_size) for each in (left, right)
    )
    differ = (ours != theirs).any(axis=1)
    # Few rows differ, so NaN is looked for in those alone.
    rows = np.flatnonzero(differ)
    ours, theirs = ours[rows], theirs[rows]
    differ[rows] = ((ours != theirs) & ~((ours != ours) & (theirs != theirs))).any(axis=1)
    return differ


def _lists_differ(left: pa.Array, right: pa.Array) -> np.ndarray:
    sizes = [pc.call_function("list_value_length", [each]).fill_null(-1) for each in (left, right)]
    ours, theirs = (each.to_numpy(zero_copy_only=False) for each in sizes)
    differ = ours != theirs
    if differ.any():
        same = pa.array(~differ)
        found = _lists_differ(left.filter(same), right.filter(same))
        differ[~differ] = found
        return differ
    inner = _differ(left.flatten(), right.flatten())
    owners = np.repeat(np.arange(len(ours)), np.maximum(ours, 0))
    return np.bincount(owners, inner, len(ours)) > 0
