"""Transforms of some keys of a batch: `Cast`, `Clip`, `OneHot`, `Flatten`, `SelectKeys`, `RenameKeys`.

Keys are those of the batch, or dotted names of parts of nested values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import DTypeLike

from ....store.common.arguments import expect, is_integer, is_real, whole_number
from ....store.errors import InvalidArgumentError
from ....store.names import MASK, NEXT_OBSERVATION, is_observation, next_name
from ....store.spaces.flattening import check_flattened, flatten_values
from ...columns.ragged import Ragged
from ...columns.tree import Tree, leaves, map_leaves
from ..units import Batch


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
    expect(
        dtype is not None and numeric.kind in "biufc", "dtype", dtype, "a dtype of numbers, such as 'float32'"
    )
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


@dataclass(frozen=True)
class Cast:
    """Gives arrays another dtype, as `ndarray.astype` does.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        dtype: of numbers; what numpy takes for one.
    """

    keys: str | Sequence[str]
    dtype: DTypeLike

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        object.__setattr__(self, "dtype", numeric_dtype(self.dtype))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with other arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key, or NaN (a missing value) or infinity would become an
                integer.
        """
        return change(batch, key_tuple(self.keys), _each_leaf(self._cast))

    def _cast(self, leaf: np.ndarray) -> np.ndarray:
        if np.dtype(self.dtype).kind in "iu" and leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise InvalidArgumentError(
                f"{self!r} meets NaN, as which a missing value is loaded, or infinity; integers have neither."
                " Load the key as a float, or choose episodes in which each step has it."
            )
        return leaf.astype(self.dtype, copy=False)


def _each_leaf(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tree, str, str], Tree]:
    """Return a change of all arrays of a value; of rows that differ in length, their values."""

    def change(leaf: Any) -> Any:
        return leaf.with_values(change(leaf.values)) if isinstance(leaf, Ragged) else function(leaf)

    return lambda values, name, key: map_leaves(change, values)


@dataclass(frozen=True)
class Clip:
    """Moves values outside [low, high] to the nearer bound; the dtype stays, NaN stays.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        low, high: numbers; None for no bound.
    """

    keys: str | Sequence[str]
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        for name, bound in (("low", self.low), ("high", self.high)):
            expect(bound is None or is_real(bound), name, bound, "a number or None")
            # A scalar of numpy would give the batch its own dtype.
            object.__setattr__(self, name, bound.item() if isinstance(bound, np.generic) else bound)
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not low <= high or (self.low is None and self.high is None):
            raise InvalidArgumentError(f"low={self.low}, high={self.high}: expected low <= high.")

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with clipped arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key, or no number of its dtype within the bounds.
        """
        return change(batch, key_tuple(self.keys), _each_leaf(self._clipped))

    def _clipped(self, leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype.kind not in "iub":
            return np.clip(leaf, self.low, self.high)
        least, most = (0, 1) if leaf.dtype == bool else (np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max)
        low = least if self.low is None or self.low < least else math.ceil(self.low)
        high = most if self.high is None or self.high > most else math.floor(self.high)
        if low > high:
            raise InvalidArgumentError(f"{self!r}: no {leaf.dtype} lies between {self.low} and {self.high}.")
        return np.clip(leaf, low, high).astype(leaf.dtype, copy=False)


@dataclass(frozen=True)
class OneHot:
    """One-hot encoding: an axis of n, 1 at the number and 0 elsewhere.

    What the batch's mask leaves out is all zeros.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        n: how many numbers there are.
        start: the least of them, as a Discrete space has it.
        dtype: of the result.
    """

    keys: str | Sequence[str]
    n: int
    start: int = 0
    dtype: DTypeLike = "float32"

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        object.__setattr__(self, "n", whole_number("n", self.n, 1))
        expect(is_integer(self.start), "start", self.start, "a whole number")
        object.__setattr__(self, "start", int(self.start))
        object.__setattr__(self, "dtype", numeric_dtype(self.dtype))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with vectors under these keys: (b, ...) becomes (b, ..., n).

        Raises:
            InvalidArgumentError: there is no such key, or a value is no whole number from `start` to
                `start + n - 1`.
        """
        return change(batch, key_tuple(self.keys), partial(self._vectors, mask=batch.get(MASK)))

    def _vectors(self, values: np.ndarray, name: str, key: str, mask: np.ndarray | None) -> np.ndarray:
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iub":
            raise InvalidArgumentError(
                f"OneHot needs whole numbers; {name!r} is {getattr(values, 'dtype', 'a nested value')}."
            )
        real = real_values(values, mask)
        places = np.where(real, values.astype(np.int64) - self.start, 0)
        wrong = (places < 0) | (places >= self.n)
        if wrong.any():
            raise InvalidArgumentError(
                f"{name!r} has the value {values[wrong][0]}; OneHot expects {self.start} to "
                f"{self.start + self.n - 1}. Check n and start."
            )
        vectors = np.zeros((*values.shape, self.n), self.dtype)
        np.put_along_axis(vectors, places[..., None], real[..., None], -1)
        return vectors


@dataclass(frozen=True)
class Flatten:
    """Gives Dict and Tuple values as one vector, as `gymnasium.spaces.utils.flatten` orders and types it.

    Parts follow in the order of the space, arrays in C order; numbers of Discrete and MultiDiscrete spaces
    become one-hot vectors. What the batch's mask leaves out of these is all zeros.

    Args:
        key: a key of the batch, or a part of nested values by its dotted name. `observation` stands for
            `next_observation` too.
        space: the space of its values, such as `store.observation_space`.

    Raises:
        InvalidArgumentError: `space` is no space, or has a part without a fixed shape (Text, Sequence, Graph,
            OneOf).
    """

    key: str
    space: gymnasium.Space

    def __post_init__(self) -> None:
        """Check the arguments."""
        expect(isinstance(self.key, str), "key", self.key, "the name of a key")
        valid = isinstance(self.space, gymnasium.Space)
        expect(valid, "space", self.space, "a space, such as store.observation_space")
        check_flattened(self.space, self.key)

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with vectors under the key: shape (b, n), (b, length, n) in windows.

        Raises:
            InvalidArgumentError: there is no such key, or its values are not those of the space.
        """
        real = partial(real_values, mask=batch.get(MASK))
        return change(
            batch, [self.key], lambda values, name, key: flatten_values(self.space, values, name, real)
        )


@dataclass(frozen=True)
class SelectKeys:
    """Keeps some keys, in the order given, and drops all others.

    Args:
        keys: keys of the batch, each by itself (`next_observation` is not meant by `observation`). A part of
            a nested value is taken out under its dotted name: "observation.image".
    """

    keys: str | Sequence[str]

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch of these keys.

        Raises:
            InvalidArgumentError: there is no such key.
        """
        return {key: part_of(batch, key) for key in key_tuple(self.keys)}


@dataclass(frozen=True)
class RenameKeys:
    """Gives keys of a batch other names; the order stays.

    Args:
        names: new names by old ones. Each key by itself; for parts of nested values see `SelectKeys`.
    """

    names: Mapping[str, str]

    def __post_init__(self) -> None:
        """Check the arguments."""
        names = dict(self.names)
        if len(set(names.values())) < len(names):
            raise InvalidArgumentError(f"{names}: two keys would get the same name.")
        object.__setattr__(self, "names", names)

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with other keys.

        Raises:
            InvalidArgumentError: there is no such key, or two would have the same name.
        """
        lost = [key for key in self.names if key not in batch]
        if lost:
            raise InvalidArgumentError(f"There is no {lost[0]!r} to rename. There are: {', '.join(batch)}.")
        renamed = {self.names.get(key, key): value for key, value in batch.items()}
        if len(renamed) < len(batch):
            raise InvalidArgumentError(f"{self!r}: a new name is that of another key: {', '.join(batch)}.")
        return renamed
