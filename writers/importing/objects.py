"""Buffers of other libraries: recognition without an import of these, their arrays, and their rings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from .flat import Tree
from .hdf5 import discrete_of, is_discrete, space_of

BEGUN = "the beginning of the first episode of a full buffer, whose rows newer ones may have replaced"


def class_names(source: Any, package: str) -> set[str]:
    """Return the names of those classes of an object that a package defines."""
    classes = type(source).__mro__
    return {each.__name__ for each in classes if each.__module__.partition(".")[0] == package}


def array_tree(values: Any) -> Tree:
    """Return tensors as arrays that share their memory, in nested mappings; None for other objects."""
    if isinstance(values, Mapping):
        return {str(key): array_tree(part) for key, part in values.items()}
    if hasattr(values, "detach"):
        found = values.detach().cpu().numpy()
        return found if isinstance(found, np.ndarray) else None
    return values


def tree_leaves(tree: Tree, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the arrays of nested mappings by path."""
    if not isinstance(tree, Mapping):
        return {path: tree}
    found: dict[tuple[str, ...], Any] = {}
    for key, part in tree.items():
        found |= tree_leaves(part, (*path, key))
    return found


def action_space_of(actions: Tree) -> Space:
    """Return a Discrete space of whole numbers from 0 to the largest, or that of other arrays."""
    if not isinstance(actions, Mapping) and is_discrete(actions):
        return discrete_of(iter([actions]))
    return space_of(actions, "action_space")


def unrolled(lanes: Sequence[tuple[int, int, int, int]], step: int = 1) -> np.ndarray:
    """Return the rows of rings in order of time, one ring behind the other, as int64.

    Args:
        lanes: of each ring the row where it begins, how many rows it has, how many of these are filled, and
            the place of the oldest among them.
        step: how many rows of the arrays one row of a ring is away from the next.
    """
    found = [
        first + step * ((oldest + np.arange(filled)) % capacity) for first, capacity, filled, oldest in lanes
    ]
    return np.concatenate(found) if found else np.array([], np.int64)
