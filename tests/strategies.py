"""Hypothesis strategies for Gymnasium spaces and their values, and an exact comparison; shared by the tests.

`spaces()` draws any nest of spaces. `values(space, number)` draws that many values, samples and extreme ones.
They, `stack` and `same` are those of `episodelake.testing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium import spaces as gym_spaces
from hypothesis import strategies as st

from episodelake.store.spaces import SpaceCodec
from episodelake.testing.values import FLOATS, INTEGERS, same, stack
from episodelake.testing.values import extreme_value as value_of

__all__ = ["same", "stack", "value_of"]

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


def buffered(codec: SpaceCodec, items: list[Any]) -> list[pa.Array]:
    """Put values into a buffer and return its arrays."""
    buffer = codec.buffer(len(items))
    for index, item in enumerate(items):
        buffer.put(index, item)
    return buffer.arrays(0, len(items))


def columns(space: gym_spaces.Space) -> dict[str, str]:
    """Return the columns of a space under the name x, with their types as text."""
    return {field.name: str(field.type).replace("element", "item") for field in SpaceCodec(space, "x").fields}
