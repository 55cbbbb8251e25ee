"""Discounted sums to the end of each episode, of all episodes at once."""

from __future__ import annotations

import numpy as np

from ..columns.episode_index import EpisodeIndex


def discounted_sums(values: np.ndarray, index: EpisodeIndex, factor: float) -> np.ndarray:
    """Return what `sum_t = values_t + factor * sum_(t+1)` gives, within each episode.

    Each pass doubles how far a sum reaches, so that episodes of T steps take log2(T) passes over all rows,
    and no sum is of one row at a time; rounding errors grow with log2(T) too.

    Args:
        values: float64, shape (rows, ...).
        index: where the episodes are.
        factor: from 0 to 1.

    Returns:
        A fresh array of the same shape.
    """
    sums = values.copy()
    if not len(index):
        return sums
    left = np.repeat(index.starts[1:], index.lengths + 1) - np.arange(index.rows)
    longest = int(index.lengths.max()) + 1
    reach = 1
    with np.errstate(invalid="ignore", over="ignore"):  # infinite rewards are data
        while reach < longest and factor**reach > 0:
            inside = (left[:-reach] > reach).reshape(-1, *[1] * (values.ndim - 1))
            further = sums[reach:] * factor**reach
            # Chosen, not multiplied by 0: what is not a number in one episode must not reach another.
            np.add(sums[:-reach], further, out=sums[:-reach], where=inside)
            reach *= 2
    return sums
