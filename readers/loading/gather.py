"""Gathering rows and stretches of rows from contiguous arrays: the inner loop of every batch."""

from __future__ import annotations

import numpy as np

from .tree import Tree, map_leaves


def take_rows(tree: Tree, rows: np.ndarray) -> Tree:
    """Copy single rows.

    Args:
        tree: arrays of shape (n, ...).
        rows: int64, of any shape (b, ...).

    Returns:
        Fresh arrays of shape (b, ..., *item).
    """
    return map_leaves(lambda leaf: leaf.take(rows, axis=0), tree)


def take_stretches(tree: Tree, starts: np.ndarray, length: int) -> Tree:
    """Copy `length` rows from each start.

    Args:
        tree: C-contiguous arrays of shape (n, ...).
        starts: int64, shape (b,); what lies outside [0, n) is filled with the nearest row.
        length: rows of each stretch.

    Returns:
        Fresh arrays of shape (b, length, ...).
    """
    return map_leaves(lambda leaf: _stretches(leaf, starts, length), tree)


def _stretches(leaf: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    row_bytes = leaf.itemsize * int(np.prod(leaf.shape[1:]))
    count = len(leaf) - length + 1
    if count < 1 or not row_bytes or row_bytes * length >= _LARGEST_ITEM:
        return leaf.take(_rows_of(starts, length, len(leaf)), axis=0)
    inside = np.clip(starts, 0, count - 1)
    # Each stretch as one element that overlaps its neighbours, so that numpy copies it in one go.
    overlapping = np.ndarray((count,), f"V{row_bytes * length}", leaf, strides=(row_bytes,))
    found = overlapping[inside].view(leaf.dtype).reshape(len(starts), length, *leaf.shape[1:])
    outside = np.flatnonzero(inside != starts)
    if len(outside):
        found[outside] = leaf.take(_rows_of(starts[outside], length, len(leaf)), axis=0)
    return found


def _rows_of(starts: np.ndarray, length: int, count: int) -> np.ndarray:
    return np.clip(starts[:, None] + np.arange(length), 0, count - 1)


def blank(tree: Tree, absent: np.ndarray) -> None:
    """Set rows of fresh arrays to zero, in place.

    Args:
        tree: arrays of shape (b, length, ...).
        absent: bool, shape (b, length).
    """

    def set_zero(leaf: np.ndarray) -> None:
        leaf[absent] = 0

    map_leaves(set_zero, tree)


#: Numpy keeps the size of an element in 32 bits.
_LARGEST_ITEM = 2**31
