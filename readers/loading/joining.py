"""Batches one behind the other, as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .tree import Tree, map_leaves
from .units.unit import Batch


def join(batches: Sequence[Batch], *, ragged: bool = False) -> Batch:
    """Join batches that have the same keys, dtypes and shapes along their first axis.

    Args:
        batches: at least one; a single one is given back as it is.
        ragged: the second axes may differ; shorter ones are filled up with zeros.
    """
    if len(batches) == 1:
        return batches[0]
    first, *others = batches
    return map_leaves(_joined if ragged else _concatenated, first, *others)


def _concatenated(*leaves: np.ndarray) -> np.ndarray:
    return np.concatenate(leaves)


def _joined(*leaves: np.ndarray) -> np.ndarray:
    if leaves[0].ndim < 2:
        return np.concatenate(leaves)
    longest = max(leaf.shape[1] for leaf in leaves)
    return np.concatenate([_filled_up(leaf, longest) for leaf in leaves])


def _filled_up(leaf: Tree, length: int) -> np.ndarray:
    if leaf.shape[1] == length:
        return leaf
    full = np.zeros((len(leaf), length, *leaf.shape[2:]), leaf.dtype)
    full[:, : leaf.shape[1]] = leaf
    return full
