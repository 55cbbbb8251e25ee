"""Gathering rows and stretches of rows from contiguous arrays: the inner loop of every batch."""

from __future__ import annotations

from dataclasses import dataclass

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
    if type(tree) is np.ndarray:
        return tree.take(rows, axis=0)
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


def _stretches(leaf: np.ndarray | StackedRows, starts: np.ndarray, length: int) -> np.ndarray:
    if isinstance(leaf, StackedRows):
        return leaf.take(_rows_of(starts, length, len(leaf)))
    row_bytes = leaf.itemsize * int(np.prod(leaf.shape[1:]))
    count = len(leaf) - length + 1
    if count < 1 or not row_bytes or row_bytes * length >= _LARGEST_ITEM:
        return leaf.take(_rows_of(starts, length, len(leaf)), axis=0)
    inside = np.clip(starts, 0, count - 1)
    # Each stretch as one element that overlaps its neighbours, so that numpy copies it in one go.
    overlapping = np.ndarray((count,), f"V{row_bytes * length}", leaf, strides=(row_bytes,))
    copied = overlapping[inside].view(leaf.dtype).reshape(len(starts), length, *leaf.shape[1:])
    outside = np.flatnonzero(inside != starts)
    if len(outside):
        copied[outside] = leaf.take(_rows_of(starts[outside], length, len(leaf)), axis=0)
    return copied


def _rows_of(starts: np.ndarray, length: int, count: int) -> np.ndarray:
    return np.clip(starts[:, None] + np.arange(length), 0, count - 1)


@dataclass(frozen=True)
class StackedRows:
    """An array whose every row comes with the rows before it: a leaf of a tree, beside plain arrays.

    Attributes:
        rows: shape (n, ...), C-contiguous.
        before: shape (n,): how many rows before each belong to it, up to k - 1.
        k: rows of a stack.
        zero: pad with zeros where there are fewer rows before; otherwise repeat the first of them.
    """

    rows: np.ndarray
    before: np.ndarray
    k: int
    zero: bool

    def __len__(self) -> int:
        """Return the number of rows n."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.rows.nbytes + self.before.nbytes

    def take(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Copy stacks.

        Args:
            rows: int64, of any shape (b, ...): the last row of each stack.
            axis: 0, as numpy's `take` has it.

        Returns:
            A fresh array of shape (b, ..., k, *item), oldest first.
        """
        last = rows.ravel()
        stacks = _stretches(self.rows, last - (self.k - 1), self.k)
        before = self.before[last]
        fewer = np.flatnonzero(before < self.k - 1)
        if len(fewer):
            steps = np.arange(self.k - 1, -1, -1)
            reach = before[fewer].astype(np.int64)[:, None]
            parts = self.rows.take(last[fewer][:, None] - np.minimum(steps, reach), axis=0)
            if self.zero:
                parts[steps > reach] = 0
            stacks[fewer] = parts
        return stacks.reshape(*rows.shape, self.k, *self.rows.shape[1:])


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
