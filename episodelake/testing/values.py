"""Values that samples never show, of any space, and an exact comparison of nested values.

`extreme_value` mixes samples of a space with NaN, infinities, the ends of integer ranges, empty sequences and
text from all of unicode. `stack` and `same` follow the documentation and share no code with the library.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
#: Spaces whose values have one shape, so that they are stacked into an array.
FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
TEXTS = (
    *("", "a", "größe", "日本語", "😀", "\x00", "a\nb\t,;{}", "NULL", "nan", "'quote\"", "\u202e", "x" * 300),
)


def extreme_value(space: spaces.Space, random: np.random.Generator) -> Any:
    """Return one value: an ordinary sample, or an extreme one."""
    match space:
        case spaces.Dict():
            return {key: extreme_value(child, random) for key, child in space.spaces.items()}
        case spaces.Tuple():
            return tuple(extreme_value(child, random) for child in space.spaces)
        case spaces.OneOf():
            choice = random.integers(len(space.spaces))
            return np.int64(choice), extreme_value(space.spaces[choice], random)
        case spaces.Sequence():
            elements = [extreme_value(space.feature_space, random) for _ in range(random.integers(4))]
            return gymnasium_stack(space.feature_space, elements) if space.stack else tuple(elements)
        case spaces.Graph():
            return _graph(space, random)
        case spaces.Text():
            return space.sample() if random.random() < 0.5 else TEXTS[random.integers(len(TEXTS))]
    return _fixed(space, random)


def stack(space: spaces.Space, items: list[Any]) -> Any:
    """Return the stacked form of single values, as an episode has it."""
    match space:
        case spaces.Dict():
            return {key: stack(child, [item[key] for item in items]) for key, child in space.spaces.items()}
        case spaces.Tuple():
            return tuple(stack(child, [item[i] for item in items]) for i, child in enumerate(space.spaces))
    if isinstance(space, FIXED):
        result = np.zeros((len(items), *(space.shape or ())), dtype=space.dtype)
        for index, item in enumerate(items):
            result[index] = item
        return result
    return list(items)


def gymnasium_stack(space: spaces.Space, items: list[Any]) -> Any:
    """Return the same in the form that Gymnasium gives to stacked values: tuples where there is no array."""
    match space:
        case spaces.Dict():
            return {
                key: gymnasium_stack(child, [item[key] for item in items])
                for key, child in space.spaces.items()
            }
        case spaces.Tuple():
            return tuple(
                gymnasium_stack(child, [item[i] for item in items]) for i, child in enumerate(space.spaces)
            )
    return stack(space, items) if isinstance(space, FIXED) else tuple(items)


def same(left: Any, right: Any) -> bool:
    """Return whether two nests are equal in structure, dtype, shape and value; 0.0 is not -0.0."""
    if isinstance(left, np.ndarray | np.generic):
        if type(left) is not type(right) or left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.dtype.kind != "f":
            return bool(np.array_equal(left, right))
        number = ~np.isnan(left)
        signs = np.array_equal(np.signbit(left)[number], np.signbit(right)[number])
        return signs and np.array_equal(left, right, equal_nan=True)
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def own(value: Any) -> Any:
    """Return a copy that shares no array and no container with the value."""
    return copy.deepcopy(value)


def overwrite(value: Any) -> None:
    """Overwrite every array of a value in place and empty its mappings and lists, as a caller may do."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable and value.dtype.kind in "biufc":
            value[...] = 77 if value.dtype.kind != "b" else ~value
    elif isinstance(value, GraphInstance | tuple):
        for part in value:
            overwrite(part)
    elif isinstance(value, Mapping):
        for part in list(value.values()):
            overwrite(part)
        if isinstance(value, dict):
            value.clear()
    elif isinstance(value, list):
        for part in value:
            overwrite(part)
        value.clear()


def _fixed(space: spaces.Space, random: np.random.Generator) -> Any:
    if isinstance(space, spaces.MultiBinary) or random.random() < 0.4:
        return _typed(space, space.sample())
    dtype: Any = space.dtype
    if dtype.kind == "f":
        extremes = [np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).max, np.finfo(dtype).tiny, 1 / 3]
    elif dtype.kind == "b":
        extremes = [False, True]
    else:
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1]
    picks = random.integers(len(extremes), size=space.shape)
    return _typed(space, np.array(extremes, dtype=dtype)[picks])


def _typed(space: spaces.Space, value: Any) -> Any:
    """Return Discrete values as scalars of the space's dtype, all others as arrays of it."""
    dtype = np.dtype(space.dtype)
    return dtype.type(value) if isinstance(space, spaces.Discrete) else np.asarray(value, dtype=dtype)


def _graph(space: spaces.Graph, random: np.random.Generator) -> GraphInstance:
    nodes = [extreme_value(space.node_space, random) for _ in range(random.integers(4))]
    if space.edge_space is None or random.random() < 0.3:
        return GraphInstance(gymnasium_stack(space.node_space, nodes), None, None)
    edges = [extreme_value(space.edge_space, random) for _ in range(random.integers(4))]
    links = random.integers(0, 5, size=(len(edges), 2), dtype=np.int32)
    stacked = gymnasium_stack(space.node_space, nodes), gymnasium_stack(space.edge_space, edges)
    return GraphInstance(*stacked, links)
