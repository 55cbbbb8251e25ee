"""Recurrent state of policies: kept between steps, renewed at the start of an episode.

A state is any nesting of dicts, lists and (named) tuples of numpy arrays, PyTorch tensors or JAX arrays.
For a single environment it is that environment's own and is replaced as a whole. For a vector environment
every leaf has the batch as its first axis, and the rows of the environments whose episode begins are
replaced; what the policy returned is never changed in place. Of a pool, where a policy is given the rows of
those environments that are ready, all rows are kept here.

No array library is imported for it: an object that has `detach`, `cpu` and `numpy` is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from ...store.common.foreign_arrays import is_tensor, to_numpy
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
    return map_leaves(_copied_leaf, to_numpy(value))


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
            part_actions = given[key]
        except (KeyError, IndexError):
            raise SpaceMismatchError(f"The policy's {path} lacks the part {key!r} of {space}.") from None
        check_actions(part, part_actions, size, f"{path}.{key}")


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


class Memory:
    """The current state of a policy.

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
            check_state(initial, size, "initial_state")
        self.state: Any = None

    @property
    def kept(self) -> Any:
        """The state that the next call continues with."""
        return self.state

    @kept.setter
    def kept(self, value: Any) -> None:
        self.state = value

    def renew(self, beginning: Sequence[int]) -> None:
        """Reset the state of environments whose episode begins.

        Raises:
            SpaceMismatchError: the state has no row for each environment, or is nested otherwise than the
                initial state.
        """
        if self._size is None or len(beginning) == self._size:
            self.state = map_leaves(_clone, self._initial)
        elif self.state is not None and len(beginning):
            check_state(self.state, self._size, "state")
            self.state = replaced(self.state, self._initial, list(beginning), "state")


class ReadyEnvs(Protocol):
    """The part of a pool that a memory uses.

    Attributes:
        num_envs: how many environments it has.
        ids: int64: which of them the policy is asked for now.
    """

    num_envs: int
    ids: np.ndarray


class PoolMemory:
    """The current states of a policy, by environment.

    Args:
        initial: the state before the first step of an episode, one row for each environment of the pool; None
            as for `Memory`.
        pool: the environments.
    """

    def __init__(self, initial: Any, pool: ReadyEnvs) -> None:
        check_state(initial, pool.num_envs, "initial_state")
        self._initial = detached(initial)
        self._pool = pool
        # Which environments stand before the first step of an episode.
        self._fresh = np.ones(pool.num_envs, bool)
        # The nesting of the state, and its leaves with one row for each environment.
        self._nesting: Any = None
        self._leaves: list[Any] = []

    def renew(self, beginning: Sequence[int]) -> None:
        """Reset the state of environments whose episode begins."""
        self._fresh[np.asarray(beginning, np.int64)] = True

    @property
    def kept(self) -> Any:
        """The state that the next call continues with; None before the first."""
        return self._nesting, self._leaves, self._fresh

    @kept.setter
    def kept(self, value: Any) -> None:
        if value is not None:
            self._nesting, self._leaves, self._fresh = value

    @property
    def state(self) -> Any:
        """The rows of the environments that are ready; the policy owns them."""
        ids = self._pool.ids
        fresh = self._fresh[ids]
        initial = map_leaves(lambda leaf: leaf[ids], self._initial)
        if fresh.all():
            return initial
        leaves = iter(self._leaves)
        state = map_leaves(lambda _: next(leaves)[ids], self._nesting)
        begun = np.flatnonzero(fresh).tolist()
        return replaced(state, initial, begun, "state") if begun else state

    @state.setter
    def state(self, value: Any) -> None:
        """Keep what the policy returned for the environments that are ready."""
        ids = self._pool.ids
        check_state(value, len(ids), "state")
        nesting = map_leaves(lambda leaf: 0, value)
        rows = [leaf.detach() if is_tensor(leaf) else leaf for _, leaf in leaves(value, "state")]
        if self._nesting is None:
            # Rows of environments that were not asked for yet are never read.
            everyone = np.zeros(self._pool.num_envs, np.int64)
            self._leaves = [leaf[everyone] for leaf in rows]
        elif value is not None and nesting != self._nesting:
            raise SpaceMismatchError(
                f"The policy returned a state nested as {nesting}, before that as {self._nesting}. A state "
                "keeps its nesting while a pool is played."
            )
        self._nesting = nesting
        self._leaves = [
            with_rows(known, leaf, ids.tolist(), "state")
            for known, leaf in zip(self._leaves, rows, strict=value is not None)
        ]
        self._fresh[ids] = False


def check_state(state: Any, size: int, name: str) -> None:
    """Make sure that every leaf of a state has one row for each environment.

    Raises:
        SpaceMismatchError: one has not.
    """
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


def replaced(value: Any, initial: Any, rows: list[int], path: str) -> Any:
    """Return a copy of a state with some rows taken from the initial one.

    Raises:
        SpaceMismatchError: they are nested otherwise, or of another shape or kind.
    """
    if value is None:
        return None
    parts = _parts(value)
    if parts is None and _parts(initial) is not None:
        raise SpaceMismatchError(
            f"The policy's {path} is nested otherwise than initial_state: it is a {type(value).__name__}, "
            f"the initial state a {type(initial).__name__}."
        )
    if parts is None:
        return with_rows(value, None if initial is None else initial[rows], rows, path)
    begun = {} if initial is None else dict(_parts(initial) or ())
    if initial is not None and begun.keys() != dict(parts).keys():
        raise SpaceMismatchError(
            f"The policy's {path} is nested otherwise than initial_state: it has the parts "
            f"{list(dict(parts))}, the initial state has {list(begun)}."
        )
    pairs = [(key, replaced(part, begun.get(key), rows, f"{path}.{key}")) for key, part in parts]
    if isinstance(value, Mapping):
        return dict(pairs)
    if isinstance(value, list):
        return [part for _, part in pairs]
    items = [part for _, part in pairs]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Keys and parts of a container; None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    parts: Iterable[Any] | None = value if isinstance(value, tuple | list) else None
    return None if parts is None else list(enumerate(parts))


def with_rows(leaf: Any, begun: Any, rows: list[int], path: str) -> Any:
    """Return a copy of a leaf with some rows replaced, by zeros if `begun` is None."""
    fill = 0 if begun is None else begun
    fresh: Any = _clone(leaf)
    if is_tensor(leaf) and isinstance(fill, np.ndarray) and hasattr(leaf, "new_tensor"):
        fill = leaf.new_tensor(fill)
    elif isinstance(leaf, np.ndarray):
        fill = to_numpy(fill)
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
