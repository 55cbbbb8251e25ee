"""Groups of neighbouring episodes, of which a task reads one: few row groups are decoded for it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def groups_of(sizes: np.ndarray, capacity: int) -> list[slice]:
    """Cut neighbours into groups of about `capacity`: where the sum passes a multiple of it, a group ends.

    Args:
        sizes: int64, shape (E,), such as rows of episodes. Groups have a positive size.
    """
    ends = np.cumsum(sizes)
    if not len(ends) or not ends[-1]:
        return []
    edges = np.unique(np.searchsorted(ends, np.arange(capacity, int(ends[-1]), capacity)) + 1)
    bounds = [0, *edges[edges < len(sizes)].tolist(), len(sizes)]
    return [slice(*pair) for pair in pairwise(bounds)]
