"""Nested values of any array library: to numpy, copied, checked against a number of environments.

A policy speaks numpy, PyTorch or JAX, and nests arrays in dicts, lists and tuples. No such library is
imported here: an object that has `detach`, `cpu` and `numpy` is a tensor, one that has `__array__` an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ...store.dynamic.values import IMMUTABLE
from ...store.errors import SpaceMismatchError

_KNOWN = IMMUTABLE | {np.ndarray}


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the same nesting of dicts, lists and (named) tuples, with every leaf changed; None stays
    None.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: map_leaves(change, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [map_leaves(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [map_leaves(change, part) for part in value]
    return change(value)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its dotted path, which begins with `path`; None is no leaf."""
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tuple | list):
        parts = list(enumerate(value))
    else:
        parts = []
        if value is not None:
            yield path, value
    for key, part in parts:
        yield from leaves(part, f"{path}.{key}")


def to_host(value: Any) -> Any:
    """Return the same nesting with tensors and foreign arrays as numpy arrays; other leaves are left as they
    are.
    """
    return value if value.__class__ in _KNOWN else map_leaves(_leaf_to_host, value)


def _leaf_to_host(leaf: Any) -> Any:
    if leaf.__class__ in _KNOWN or isinstance(leaf, np.ndarray | np.generic):
        return leaf
    if is_tensor(leaf):
        leaf = leaf.detach().cpu()
        try:
            return leaf.numpy()
        except TypeError:  # a type that numpy lacks, such as bfloat16
            return leaf.float().numpy()
    return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf


def is_tensor(value: Any) -> bool:
    """Return whether it is a PyTorch tensor, or behaves like one."""
    return all(hasattr(value, name) for name in ("detach", "cpu", "numpy", "clone"))


def detached(value: Any) -> Any:
    """Return the same nesting without gradients, so that no graph is kept: itself if it has none."""
    return _without_gradients(value) if _has_gradients(value) else value


def _has_gradients(value: Any) -> bool:
    if value.__class__ in _KNOWN:
        return False
    if getattr(value, "requires_grad", False) is True:
        return True
    if isinstance(value, Mapping):
        return any(map(_has_gradients, value.values()))
    return isinstance(value, tuple | list) and any(map(_has_gradients, value))


def _without_gradients(value: Any) -> Any:
    # A mapping may be a tensor too, as in the package tensordict.
    if getattr(value, "requires_grad", False) is True:
        return value.detach()
    if isinstance(value, Mapping):
        return {key: _without_gradients(part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_without_gradients(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return [_without_gradients(part) for part in value] if isinstance(value, list) else value


def copied(value: Any) -> Any:
    """Return the same nesting with copied leaves, on the host."""
    return map_leaves(_copied_leaf, to_host(value))


def _copied_leaf(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def keyed(value: Any) -> Any:
    """Tuples and lists that hold arrays as dicts by position, so that each part becomes a column."""
    if isinstance(value, Mapping):
        return {key: keyed(part) for key, part in value.items()}
    if isinstance(value, tuple) or (
        isinstance(value, list) and any(isinstance(part, np.ndarray | Mapping) for part in value)
    ):
        return {str(index): keyed(part) for index, part in enumerate(value)}
    return value


def check_actions(space: gymnasium.Space, actions: Any, size: int, path: str = "action") -> None:
    """Make sure that a batch of actions has one for each environment.

    Args:
        space: the space of one environment.
        actions: as Gymnasium batches it: an array per leaf of Dict and Tuple spaces.
        size: how many environments there are.
        path: the name of the column, for the message.

    Raises:
        SpaceMismatchError: it has another number, or another nesting.
    """
    parts: Mapping[Any, gymnasium.Space] | None = None
    given: Any = actions
    if isinstance(space, spaces.Dict) and isinstance(actions, Mapping):
        parts = space.spaces
    elif isinstance(space, spaces.Tuple) and isinstance(actions, tuple | list):
        parts = dict(enumerate(space.spaces))
    if parts is None:
        check_rows(actions, size, path)
        return
    for key, part in parts.items():
        try:
            found = given[key]
        except (KeyError, IndexError):
            raise SpaceMismatchError(f"The policy's {path} lacks the part {key!r} of {space}.") from None
        check_actions(part, found, size, f"{path}.{key}")


def check_rows(value: Any, size: int, path: str) -> None:
    """Make sure that a leaf of a batch has `size` rows.

    Raises:
        SpaceMismatchError: it has not.
    """
    shape = getattr(value, "shape", None)
    if shape is None and isinstance(value, tuple | list):
        shape = (len(value),)
    if shape is None or not len(shape) or shape[0] != size:
        got = f"the shape {tuple(shape)}" if shape is not None else f"a {type(value).__name__}"
        raise SpaceMismatchError(
            f"The policy's {path} has {got}; expected one row for each of the {size} environments, so "
            f"{size} on the first axis. A policy of a vector environment answers for the whole batch."
        )
