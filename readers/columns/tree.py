"""Nested values: dicts and tuples whose leaves are arrays, as Dict and Tuple spaces give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A numpy array, or a dict or a tuple of trees.
Tree = Any

#: Packed leaves begin at cache lines.
_ALIGNMENT = 64


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
    return sum(leaf.itemsize * int(np.prod(leaf.shape[1:])) for _, leaf in leaves(tree))


@dataclass(frozen=True)
class Slot:
    """The bytes of a leaf in a piece of memory that holds all leaves of a tree."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: Any


def lay_out(tree: Tree) -> tuple[Tree, int]:
    """Return a slot for each leaf (an array or a tensor), nested in the same way, and the bytes of all."""
    stop = 0

    def place(leaf: Any) -> Slot:
        nonlocal stop
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
        stop = start + leaf.nbytes
        return Slot(start, stop, leaf.shape, leaf.dtype)

    return map_leaves(place, tree), stop


def unpack(slots: Tree, memory: Any) -> Tree:
    """Return the leaves that `lay_out` placed, as views of the memory: an array or a tensor of bytes."""
    return map_leaves(lambda slot: memory[slot.start : slot.stop].view(slot.dtype).reshape(slot.shape), slots)
