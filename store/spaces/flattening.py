"""Batches of values of a space as one flat vector for each value, in the order of
`gymnasium.spaces.utils.flatten`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from ..errors import InvalidArgumentError


def check_flattened(space: Space, name: str) -> None:
    """Refuse a space whose values make no vectors of one length.

    Args:
        name: of its column, for the message.

    Raises:
        InvalidArgumentError: it is ragged, or has a ragged part, or no part at all.
    """
    leaves = list(_leaves(space, name))
    for path, leaf in leaves:
        if not isinstance(leaf, Box | Discrete | MultiBinary | MultiDiscrete):
            raise InvalidArgumentError(
                f"{path!r} has a {type(leaf).__name__} space, whose values have no fixed shape, so it cannot "
                "be flattened. Flatten other parts one by one, by their dotted names."
            )
    if not leaves:
        raise InvalidArgumentError(f"{name!r} has no parts: there is nothing to flatten.")


def _leaves(space: Space, name: str) -> Iterator[tuple[str, Space]]:
    if isinstance(space, Dict | Tuple):
        for key, part in _parts(space):
            yield from _leaves(part, f"{name}.{key}")
    else:
        yield name, space


def _parts(space: Dict | Tuple) -> list[tuple[Any, Space]]:
    return list(space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces))


def flatten_values(
    space: Space, values: Any, name: str, real: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """Return values of a space that `check_flattened` takes as vectors: shape (..., n).

    Numbers of Discrete and MultiDiscrete spaces become one-hot vectors. The dtype is what numpy promotes
    those of the parts to, as for `gymnasium.spaces.utils.flatten`.

    Args:
        space: the space.
        values: arrays of shape (..., *shape), nested as the space is.
        name: of their column, for messages.
        real: returns which numbers of an array are values, bool of its shape; padding becomes zeros.

    Raises:
        InvalidArgumentError: the values are not nested as the space is, or have another shape.
    """
    vectors = list(_vectors(space, values, name, real))
    if len({part.shape[:-1] for part in vectors}) > 1:
        shapes = ", ".join(str(part.shape[:-1]) for part in vectors)
        raise InvalidArgumentError(f"The parts of {name!r} are stacked in different shapes: {shapes}.")
    return np.concatenate(vectors, axis=-1)


def _vectors(space: Space, values: Any, name: str, real: Any) -> Iterator[np.ndarray]:
    if isinstance(space, Dict | Tuple):
        parts = _parts(space)
        keys = (
            set(values)
            if isinstance(values, dict)
            else set(range(len(values) if isinstance(values, tuple) else 0))
        )
        if keys != {key for key, _ in parts}:
            raise _other(space, name)
        for key, part in parts:
            yield from _vectors(part, values[key], f"{name}.{key}", real)
        return
    shape = space.shape or ()
    lead = values.shape[: values.ndim - len(shape)] if isinstance(values, np.ndarray) else ()
    if not isinstance(values, np.ndarray) or values.shape != (*lead, *shape):
        raise _other(space, name)
    if isinstance(space, Discrete | MultiDiscrete):
        yield _one_hot(
            space, values, lead, np.ones(values.shape, bool) if real is None else real(values), name
        )
    else:
        yield values.reshape(*lead, prod(shape))


def _one_hot(
    space: Discrete | MultiDiscrete, values: np.ndarray, lead: tuple[int, ...], real: np.ndarray, name: str
) -> np.ndarray:
    sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec).astype(np.int64)
    numbers = np.where(real, values.astype(np.int64) - np.asarray(space.start, np.int64), 0)
    numbers = numbers.reshape(*lead, len(sizes))
    wrong = ((numbers < 0) | (numbers >= sizes)).reshape(values.shape)
    if wrong.any():
        raise InvalidArgumentError(f"{name!r} has the value {values[wrong][0]}, which is not in {space}.")
    places = numbers + np.cumsum(sizes) - sizes
    hot = np.zeros((*lead, sizes.sum()), space.dtype)
    np.put_along_axis(hot, places, real.reshape(places.shape), -1)
    return hot


def _other(space: Space, name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"The values of {name!r} are not those of {space}. Flatten before transforms that change their "
        "shape, and name the space of this column."
    )
