"""Finding the arrays of a batch by name: keys, and parts of nested values by dotted names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ....store.errors import InvalidArgumentError
from ....store.names import NEXT_OBSERVATION, is_observation, next_name
from ...columns.tree import Tree, leaves


def key_tuple(keys: str | Sequence[str]) -> tuple[str, ...]:
    """Return one key or several as a tuple.

    Raises:
        InvalidArgumentError: it is something else, or none.
    """
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if not names or not all(isinstance(key, str) for key in names):
        raise InvalidArgumentError(f"{keys!r}: expected the name of a key, or several.")
    return names


def numeric_dtype(dtype: DTypeLike) -> str:
    """Return the name of a dtype of numbers.

    Raises:
        InvalidArgumentError: it is none.
    """
    try:
        numeric = np.dtype(dtype)
    except TypeError as error:
        raise InvalidArgumentError(f"dtype={dtype!r}: {error}.") from error
    if dtype is None or numeric.kind not in "biufc":
        raise InvalidArgumentError(f"dtype={dtype!r}: expected a dtype of numbers, such as 'float32'.")
    return numeric.name


def part_of(tree: Mapping[str, Tree], name: str) -> Tree:
    """Return the value of a dotted name.

    Raises:
        InvalidArgumentError: there is none; the message names those that are.
    """
    part: Tree = tree
    for key in _found_path(tree, name):
        part = part[key]
    return part


def replace_part(tree: Mapping[str, Tree], name: str, function: Callable[[Tree], Tree]) -> dict[str, Tree]:
    """Return a copy of nested values in which one has been replaced; arrays are shared.

    Raises:
        InvalidArgumentError: there is none of that name; the message names those that are.
    """
    return _replaced(dict(tree), _found_path(tree, name), function)


def _found_path(tree: Mapping[str, Tree], name: str) -> tuple[Any, ...]:
    path = (name,) if name in tree else _path(dict(tree), name)
    if path is None:
        parts = [key for top in tree for key in (top, *(part for part, _ in leaves(tree[top], top)))]
        raise InvalidArgumentError(
            f"There is no {name!r} here. There are: {', '.join(dict.fromkeys(parts))}."
        )
    return path


def _path(tree: Tree, name: str) -> tuple[Any, ...] | None:
    """Return the keys that lead to a dotted name; a key may have dots itself."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else ()
    for key, part in parts:
        if name == str(key):
            return (key,)
        if name.startswith(f"{key}."):
            rest = _path(part, name[len(str(key)) + 1 :])
            if rest is not None:
                return (key, *rest)
    return None


def _replaced(tree: Tree, path: tuple[Any, ...], function: Callable[[Tree], Tree]) -> Tree:
    if not path:
        return function(tree)
    key, rest = path[0], path[1:]
    part = _replaced(tree[key], rest, function)
    return (*tree[:key], part, *tree[key + 1 :]) if isinstance(tree, tuple) else {**tree, key: part}


def with_following(batch: Mapping[str, Any], keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names in a batch that a transform of some keys changes, each with the key that it is treated
    as.

    What happens to observations happens to the next observations of a batch too, also where the batch has
    only parts of them.
    """
    pairs = []
    for key in keys:
        pairs.append((key, key))
        following = next_name(key) if is_observation(key) else None
        if following is not None and (NEXT_OBSERVATION in batch or following in batch):
            pairs.append((following, key))
    return pairs


def change(
    batch: Mapping[str, Any], keys: Sequence[str], function: Callable[[Tree, str, str], Tree]
) -> dict[str, Any]:
    """Return a batch with other values under some keys; see `with_following`.

    Args:
        batch: not changed.
        keys: keys of the batch, or dotted names of parts of nested values.
        function: gets the values, their name in the batch, and the key that they are treated as.

    Raises:
        InvalidArgumentError: there is no such key.
    """
    changed = dict(batch)
    for name, key in with_following(batch, keys):
        changed = replace_part(changed, name, lambda part, name=name, key=key: function(part, name, key))
    return changed


def real_values(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return which values are no padding: bool, in the shape of the values."""
    if not isinstance(mask, np.ndarray) or values.ndim < 2:
        return np.ones(values.shape, bool)
    if values.shape[1] == mask.shape[1] + 1:
        # Whole episodes have an observation more than transitions.
        mask = np.concatenate([np.ones((len(mask), 1), bool), mask], axis=1)
    return np.broadcast_to(mask.reshape(*mask.shape, *[1] * (values.ndim - 2)), values.shape)
