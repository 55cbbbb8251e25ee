"""Rows of different lengths: their values one after the other, and the ranges of them that rows have."""

from __future__ import annotations

import numpy as np

from .tree import Tree, take_rows


def range_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the positions that ranges cover, range after range.

    Args:
        starts: int64, shape (n,): the first position of each.
        lengths: int64, shape (n,): how many positions each has, from 0 on.

    Returns:
        int64, shape (sum of the lengths,).
    """
    stops = np.cumsum(lengths)
    # What each range adds to the number of a position in the result.
    shifts = starts - stops + lengths
    positions = np.repeat(shifts, lengths)
    positions += np.arange(len(positions))
    return positions


def gather_ranges(values: Tree, starts: np.ndarray, lengths: np.ndarray) -> Tree:
    """Copy ranges of values, one after the other.

    Args:
        values: an array of shape (m, *item), or a tree of those.
        starts: int64, shape (n,): the first value of each range.
        lengths: int64, shape (n,): how many values each has, from 0 on; all are within [0, m).

    Returns:
        Fresh arrays of shape (sum of the lengths, *item).
    """
    return take_rows(values, range_positions(starts, lengths))
