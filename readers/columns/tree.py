"""Nested values: dicts and tuples whose leaves are arrays, as Dict and Tuple spaces give them.

Gathering rows and stretches of rows from their leaves is the inner loop of every batch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A numpy array, or a dict or a tuple of trees.
Tree = Any

#: Packed leaves begin at cache lines.
ALIGNMENT = 64


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to the leaves of one tree, or to those at the same place of several."""
    if not others:
        return _map_one(function, tree)
    if isinstance(tree, dict):
        return {key: map_leaves(function, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def _map_one(function: Callable[[Any], Any], tree: Tree) -> Tree:
    # On the path of every batch, where a call less for each leaf counts.
    if isinstance(tree, dict):
        return {
            key: function(part) if type(part) is np.ndarray else _map_one(function, part)
            for key, part in tree.items()
        }
    if isinstance(tree, tuple):
        return tuple(_map_one(function, part) for part in tree)
    return function(tree)


def leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its dotted name, in order."""
    if isinstance(tree, dict | tuple):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, part in parts:
            yield from leaves(part, f"{name}.{key}" if name else str(key))
    else:
        yield name, tree


def row_bytes(tree: Tree) -> int:
    """Return the bytes that one row of all leaves takes."""
    return sum(_row_bytes(leaf) for _, leaf in leaves(tree))


def _row_bytes(leaf: Any) -> int:
    if None in leaf.shape:  # rows of different lengths know it themselves
        return leaf.row_bytes
    return leaf.itemsize * int(np.prod(leaf.shape[1:]))


def apart(tree: Tree) -> Tree:
    """Return a tree of plain arrays alone, from which `together` makes the tree again.

    Leaves that are no arrays have `parts`, and a class with `of_parts`.
    """

    def split(leaf: Any) -> Any:
        # The class is no key of a space: those are texts.
        return {type(leaf): apart(leaf.parts())} if hasattr(leaf, "of_parts") else leaf

    return map_leaves(split, tree)


def together(tree: Tree) -> Tree:
    """Return the tree that `apart` took apart."""
    if isinstance(tree, tuple):
        return tuple(map(together, tree))
    if not isinstance(tree, dict):
        return tree
    parts = {key: together(part) for key, part in tree.items()}
    kind = next(iter(parts), None)
    return kind.of_parts(*parts[kind]) if isinstance(kind, type) else parts


def joined_leaves(parts: Sequence[Any]) -> Any:
    """Join leaves of several trees along the first axis."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0]).joined(parts)


@dataclass(frozen=True)
class Slot:
    """The bytes of a leaf in a piece of memory that holds all leaves of a tree."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: Any


def aligned(place: int) -> int:
    """Return the first place from some place on at which a packed leaf may begin."""
    return -(-place // ALIGNMENT) * ALIGNMENT


def lay_out(tree: Tree) -> tuple[Tree, int]:
    """Return a slot for each leaf (an array or a tensor), nested in the same way, and the bytes of all."""
    stop = 0

    def place(leaf: Any) -> Slot:
        nonlocal stop
        start = aligned(stop)
        stop = start + leaf.nbytes
        return Slot(start, stop, leaf.shape, leaf.dtype)

    return map_leaves(place, tree), stop


def unpack(slots: Tree, memory: Any) -> Tree:
    """Return the leaves that `lay_out` placed, as views of the memory: an array or a tensor of bytes."""
    return map_leaves(lambda slot: memory[slot.start : slot.stop].view(slot.dtype).reshape(slot.shape), slots)


#: Makes an uninitialised array of a shape and a dtype.
NewArray = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class _Memory(threading.local):
    """Makes the arrays that rows are copied into, in one thread; None for numpy's own memory."""

    new: NewArray | None = None


_memory = _Memory()


@contextlib.contextmanager
def taken_into(new: NewArray) -> Iterator[None]:
    """Let this thread's `take_rows` and `take_stretches` copy into arrays that a function makes."""
    _memory.new, before = new, _memory.new
    try:
        yield
    finally:
        _memory.new = before


def _taken(leaf: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a copy of the rows of an array; they are all within it."""
    if _memory.new is None:
        return leaf.take(rows, axis=0)
    into = _memory.new((*rows.shape, *leaf.shape[1:]), leaf.dtype)
    # Of the modes "clip" alone copies without a buffer in between.
    return leaf.take(rows, axis=0, out=into, mode="clip")


def take_rows(tree: Tree, rows: np.ndarray) -> Tree:
    """Copy single rows.

    Args:
        tree: arrays of shape (n, ...).
        rows: int64, of any shape (b, ...).

    Returns:
        Fresh arrays of shape (b, ..., *item).
    """
    if type(tree) is np.ndarray:
        return _taken(tree, rows)
    return map_leaves(
        lambda leaf: _taken(leaf, rows) if type(leaf) is np.ndarray else leaf.take(rows, axis=0), tree
    )


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
    if not isinstance(leaf, np.ndarray):
        return leaf.take(_rows_of(starts, length, len(leaf)))
    row_bytes = leaf.itemsize * int(np.prod(leaf.shape[1:]))
    count = len(leaf) - length + 1
    placed = _memory.new is not None
    if count < 1 or not row_bytes or row_bytes * length >= _LARGEST_ITEM or (placed and row_bytes >= _WIDE):
        return _taken(leaf, _rows_of(starts, length, len(leaf)))
    inside = np.clip(starts, 0, count - 1)
    # Each stretch as one element that overlaps its neighbours, so that numpy copies it in one go.
    overlapping = np.ndarray((count,), f"V{row_bytes * length}", leaf, strides=(row_bytes,))
    copied = overlapping[inside].view(leaf.dtype).reshape(len(starts), length, *leaf.shape[1:])
    if _memory.new is not None:
        copied, own = _memory.new(copied.shape, copied.dtype), copied
        copied[...] = own
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
                parts[steps > reach] = np.zeros((), parts.dtype)
            stacks[fewer] = parts
        return stacks.reshape(*rows.shape, self.k, *self.rows.shape[1:])


def blank(tree: Tree, absent: np.ndarray) -> Tree:
    """Set rows of fresh arrays to zero, in place, and return them; rows of different lengths become empty.

    Args:
        tree: arrays of shape (b, length, ...).
        absent: bool, shape (b, length).
    """

    def set_zero(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf.blanked(absent)
        # Not 0: among texts that would be "0".
        leaf[absent] = np.zeros((), leaf.dtype)
        return leaf

    return map_leaves(set_zero, tree)


#: Bytes of a row from which on copying row by row into an array that is there costs less than copying
#: stretches into a new one, as numpy does, and from that.
_WIDE = 64
#: Numpy keeps the size of an element in 32 bits.
_LARGEST_ITEM = 2**31
