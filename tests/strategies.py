"""Hypothesis strategies for Gymnasium spaces and their values, and an exact comparison; shared by the tests.

`spaces()` draws any nest of spaces. `values(space, number)` draws that many values: samples of the space
mixed with what samples never show (NaN, infinities, the ends of integer ranges, empty sequences, text from
all of unicode). `stack` and `same` are written against the documentation alone, and share no code with the
library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces as gym_spaces
from gymnasium.spaces import GraphInstance
from hypothesis import strategies as st

from episodelake.store.spaces import SpaceCodec

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FIXED = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)
TEXTS = [
    "",
    "a",
    "größe",
    "日本語",
    "😀",
    "\x00",
    "a\nb\t,;{}",
    "NULL",
    "nan",
    "'quote\"",
    "\u202e",
    "x" * 300,
]
KEYS = st.one_of(
    st.sampled_from(["a", "A", "b.c", "", "%", "x y", "Ä", "ä", "0", "length"]), st.text(max_size=4)
).filter(lambda key: not any("\ud800" <= character <= "\udfff" for character in key))

shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
)


@st.composite
def boxes(draw: st.DrawFn) -> gym_spaces.Box:
    """Draw a Box of any supported dtype and shape, with uniform, per-element or infinite bounds."""
    dtype = np.dtype(draw(st.sampled_from([*FLOATS, *INTEGERS, "uint8", "bool"])))
    shape = draw(shapes)
    form = draw(st.sampled_from(["uniform", "elements", "infinite"]))
    if dtype.kind == "b":
        return gym_spaces.Box(0, 1, shape, dtype.type)
    if form == "infinite" and dtype.kind in "fi":
        high = draw(st.sampled_from([np.inf, 7]))
        return gym_spaces.Box(-np.inf, high, shape, dtype.type)
    if form == "elements":
        low = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
        return gym_spaces.Box(low, low + dtype.type(3), shape, dtype.type)
    return gym_spaces.Box(0, 100, shape, dtype.type)


@st.composite
def discretes(draw: st.DrawFn) -> gym_spaces.Discrete:
    """Draw a Discrete of any integer dtype and start."""
    dtype = draw(st.sampled_from(INTEGERS))
    start = draw(st.integers(0 if dtype.startswith("u") else -50, 50))
    return gym_spaces.Discrete(draw(st.integers(1, 50)), start=start, dtype=dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> gym_spaces.MultiDiscrete:
    """Draw a MultiDiscrete of one to three dimensions, of any integer dtype."""
    dtype = draw(st.sampled_from(INTEGERS))
    shape = draw(shapes.filter(len))
    nvec = np.full(shape, draw(st.integers(1, 20)), dtype=dtype)
    start = np.full(shape, draw(st.integers(0, 9)), dtype=dtype)
    return gym_spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


multi_binaries = st.one_of(
    st.integers(1, 9).map(gym_spaces.MultiBinary),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(gym_spaces.MultiBinary),
)
texts = st.one_of(
    st.integers(1, 20).map(gym_spaces.Text),
    st.just(gym_spaces.Text(5, min_length=0, charset="öäü😀ba")),
)
fixed_leaves = st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries)
graphs = st.builds(
    gym_spaces.Graph, st.one_of(boxes(), discretes()), st.one_of(st.none(), boxes(), discretes())
)
leaves = st.one_of(fixed_leaves, texts, graphs)


def _nests(children: st.SearchStrategy) -> st.SearchStrategy:
    several = st.lists(children, max_size=3)
    return st.one_of(
        st.lists(st.tuples(KEYS, children), max_size=3, unique_by=lambda pair: pair[0]).map(gym_spaces.Dict),
        several.map(gym_spaces.Tuple),
        st.lists(children, min_size=1, max_size=3).map(gym_spaces.OneOf),
        children.map(gym_spaces.Sequence),
        children.map(lambda space: gym_spaces.Sequence(space, stack=True)),
    )


def spaces() -> st.SearchStrategy[gym_spaces.Space]:
    """Draw any space, nested up to three levels deep."""
    level = leaves
    for _ in range(3):
        level = st.one_of(leaves, _nests(level))
    return level


@st.composite
def values(draw: st.DrawFn, space: gym_spaces.Space, number: int) -> list[Any]:
    """Draw `number` single values of a space."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    space.seed(int(random.integers(2**31)))
    return [value_of(space, random) for _ in range(number)]


def value_of(space: gym_spaces.Space, random: np.random.Generator) -> Any:
    """Return one value: an ordinary sample, or an extreme one."""
    match space:
        case gym_spaces.Dict():
            return {key: value_of(child, random) for key, child in space.spaces.items()}
        case gym_spaces.Tuple():
            return tuple(value_of(child, random) for child in space.spaces)
        case gym_spaces.OneOf():
            choice = random.integers(len(space.spaces))
            return np.int64(choice), value_of(space.spaces[choice], random)
        case gym_spaces.Sequence():
            elements = [value_of(space.feature_space, random) for _ in range(random.integers(4))]
            return gym_stack(space.feature_space, elements) if space.stack else tuple(elements)
        case gym_spaces.Graph():
            return _graph(space, random)
        case gym_spaces.Text():
            return space.sample() if random.random() < 0.5 else TEXTS[random.integers(len(TEXTS))]
    return _fixed(space, random)


def stack(space: gym_spaces.Space, items: list[Any]) -> Any:
    """Return what decoding these single values must give."""
    match space:
        case gym_spaces.Dict():
            return {key: stack(child, [item[key] for item in items]) for key, child in space.spaces.items()}
        case gym_spaces.Tuple():
            return tuple(stack(child, [item[i] for item in items]) for i, child in enumerate(space.spaces))
    if isinstance(space, FIXED):
        result = np.zeros((len(items), *(space.shape or ())), dtype=space.dtype)
        for index, item in enumerate(items):
            result[index] = item
        return result
    return list(items)


def gym_stack(space: gym_spaces.Space, items: list[Any]) -> Any:
    """Return the same in the form that Gymnasium gives to stacked values: tuples where there is no array."""
    match space:
        case gym_spaces.Dict():
            return {
                key: gym_stack(child, [item[key] for item in items]) for key, child in space.spaces.items()
            }
        case gym_spaces.Tuple():
            return tuple(
                gym_stack(child, [item[i] for item in items]) for i, child in enumerate(space.spaces)
            )
    return stack(space, items) if isinstance(space, FIXED) else tuple(items)


def same(left: Any, right: Any) -> bool:
    """Tell whether two nests are equal in structure, dtype, shape and value; NaN is NaN, 0.0 is not -0.0."""
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


def buffered(codec: SpaceCodec, items: list[Any]) -> list[pa.Array]:
    """Put values into a buffer and return its arrays."""
    buffer = codec.buffer(len(items))
    for index, item in enumerate(items):
        buffer.put(index, item)
    return buffer.arrays(0, len(items))


def columns(space: gym_spaces.Space) -> dict[str, str]:
    """Return the columns of a space under the name x, with their types as text."""
    return {field.name: str(field.type).replace("element", "item") for field in SpaceCodec(space, "x").fields}


def _fixed(space: gym_spaces.Space, random: np.random.Generator) -> Any:
    if isinstance(space, gym_spaces.MultiBinary) or random.random() < 0.4:
        return _typed(space, space.sample())
    dtype: Any = space.dtype
    shape = space.shape
    if dtype.kind == "f":
        extremes = [np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).max, np.finfo(dtype).tiny, 1 / 3]
    elif dtype.kind == "b":
        extremes = [False, True]
    else:
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, 0, 1]
    picks = random.integers(len(extremes), size=shape)
    return _typed(space, np.array(extremes, dtype=dtype)[picks])


def _typed(space: gym_spaces.Space, value: Any) -> Any:
    """Return Discrete values as scalars of the space's dtype, all others as arrays of it."""
    dtype = np.dtype(space.dtype)
    return dtype.type(value) if isinstance(space, gym_spaces.Discrete) else np.asarray(value, dtype=dtype)


def _graph(space: gym_spaces.Graph, random: np.random.Generator) -> GraphInstance:
    nodes = [value_of(space.node_space, random) for _ in range(random.integers(4))]
    if space.edge_space is None or random.random() < 0.3:
        return GraphInstance(gym_stack(space.node_space, nodes), None, None)
    edges = [value_of(space.edge_space, random) for _ in range(random.integers(4))]
    links = random.integers(0, 5, size=(len(edges), 2), dtype=np.int32)
    return GraphInstance(gym_stack(space.node_space, nodes), gym_stack(space.edge_space, edges), links)
