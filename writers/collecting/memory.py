"""Recurrent state: what a policy returned, given back at the next step, and renewed where an episode begins.

A state is any nesting of dicts, lists and (named) tuples of numpy arrays, PyTorch tensors or JAX arrays.
For a single environment it is that environment's own and is replaced as a whole. For a vector environment
every leaf has the batch as its first axis, and the rows of the environments whose episode begins are
replaced; what the policy returned is never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...store.errors import SpaceMismatchError
from .values import detached, is_tensor, leaves, map_leaves, to_host


class Memory:
    """The state that a policy has in hand.

    Args:
        initial: the state before the first step of an episode; for a vector environment one row per
            environment. None: the policy is given None, and later, where only some of the environments begin,
            rows of zeros.
        size: how many environments; None for a single one.
    """

    def __init__(self, initial: Any, size: int | None) -> None:
        self._initial = detached(initial)
        self._size = size
        if size is not None:
            _check(initial, size, "initial_state")
        self.state: Any = None

    def renew(self, beginning: Sequence[int]) -> None:
        """Forget what was before in the environments whose episode begins now.

        Raises:
            SpaceMismatchError: the state has no row for each environment, or is nested otherwise than the
                initial state.
        """
        if self._size is None or len(beginning) == self._size:
            self.state = map_leaves(_clone, self._initial)
        elif self.state is not None and len(beginning):
            _check(self.state, self._size, "state")
            self.state = _replaced(self.state, self._initial, list(beginning), "state")


def _check(state: Any, size: int, name: str) -> None:
    for path, leaf in leaves(state, name):
        shape = getattr(leaf, "shape", None)
        if shape is None or not len(shape) or shape[0] != size:
            got = f"a {type(leaf).__name__}" if shape is None else f"the shape {tuple(shape)}"
            raise SpaceMismatchError(
                f"The policy's {path} is {got}; expected an array or a tensor with one row for each of the "
                f"{size} environments on its first axis. Move the batch to the first axis where it is "
                "another one."
            )


def _clone(leaf: Any) -> Any:
    if is_tensor(leaf):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _replaced(value: Any, initial: Any, rows: list[int], path: str) -> Any:
    if value is None:
        return None
    parts = _parts(value)
    if parts is None and _parts(initial) is not None:
        raise SpaceMismatchError(
            f"The policy's {path} is nested otherwise than initial_state: it is a {type(value).__name__}, "
            f"the initial state a {type(initial).__name__}."
        )
    if parts is None:
        return _with_rows(value, None if initial is None else initial[rows], rows, path)
    begun = {} if initial is None else dict(_parts(initial) or ())
    if initial is not None and begun.keys() != dict(parts).keys():
        raise SpaceMismatchError(
            f"The policy's {path} is nested otherwise than initial_state: it has the parts "
            f"{list(dict(parts))}, the initial state has {list(begun)}."
        )
    found = [(key, _replaced(part, begun.get(key), rows, f"{path}.{key}")) for key, part in parts]
    if isinstance(value, Mapping):
        return dict(found)
    if isinstance(value, list):
        return [part for _, part in found]
    items = [part for _, part in found]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Keys and parts of a container; None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    found: Iterable[Any] | None = value if isinstance(value, tuple | list) else None
    return None if found is None else list(enumerate(found))


def _with_rows(leaf: Any, begun: Any, rows: list[int], path: str) -> Any:
    """Return a copy of a leaf with some rows replaced, by zeros if `begun` is None."""
    fill = 0 if begun is None else begun
    fresh: Any = _clone(leaf)
    if is_tensor(leaf) and isinstance(fill, np.ndarray) and hasattr(leaf, "new_tensor"):
        fill = leaf.new_tensor(fill)
    elif isinstance(leaf, np.ndarray):
        fill = to_host(fill)
    try:
        if hasattr(fresh, "at"):
            return fresh.at[np.array(rows)].set(fill)  # arrays of JAX cannot be written to
        fresh[rows] = fill
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpaceMismatchError(
            f"The rows of the policy's {path} cannot be replaced by those of initial_state: {error}. Both "
            "need the same shape and kind."
        ) from error
    return fresh
