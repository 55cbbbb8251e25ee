"""`cast=`: which dtypes go into a space, compared with `numpy.can_cast` and a plain `astype`."""

from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import episodelake as el
from effort import examples
from episodelake.store.spaces import SpaceCodec
from episodelake.testing.adapters import case

NAMES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NAMES += ["float16", "float32", "float64"]
WIDE = spaces.Box(-1, 1, (2,), np.float32)
HALF = np.array([0.1, 1e-60])


def same_range(given_values: np.ndarray, cast: np.ndarray) -> bool:
    """Compare value by value in Python: equal integers, and finite floats where finite numbers came."""
    pairs = list(zip(given_values.tolist(), cast.tolist(), strict=True))
    if cast.dtype.kind == "f":
        return all(np.isfinite(before) == np.isfinite(after) for before, after in pairs)
    return all(before == after for before, after in pairs)


@settings(max_examples=examples(400))
@given(data=st.data(), given_as=st.sampled_from(NAMES), stored_as=st.sampled_from(NAMES))
@pytest.mark.parametrize("rule", ["safe", "same_kind"])
def test_rule_is_that_of_numpy(rule, data, given_as, stored_as):
    """Arrays that numpy casts by the rule are stored as numpy casts them, if in range; others raise."""
    values = data.draw(nps.arrays(given_as, 3))
    low, high = (0, 1) if stored_as == "bool" else (-np.inf, np.inf)
    if np.dtype(stored_as).kind in "iu":
        low, high = np.iinfo(stored_as).min, np.iinfo(stored_as).max
    dtype: Any = np.dtype(stored_as)
    codec = SpaceCodec(spaces.Box(low, high, (3,), dtype.type), "observation", rule)
    with np.errstate(all="ignore"):
        expected = values.astype(stored_as)
    buffer = codec.buffer(3)
    forms = {
        "put": lambda: (buffer.put(0, values), buffer.arrays(0, 1))[1],
        "put_many": lambda: (buffer.put_many(1, np.stack([values, values]), 2), buffer.arrays(1, 2))[1],
        "encode_many": lambda: codec.encode_many(values[None], 1),
    }
    for name, encoded in forms.items():
        if np.can_cast(given_as, stored_as, rule) and same_range(values, expected):
            np.testing.assert_array_equal(codec.decode(encoded())[0], expected, err_msg=name)
        else:
            with pytest.raises(el.errors.SpaceMismatchError, match="observation"):
                encoded()


def test_default_refuses_as_before_and_names_the_option():
    """Without the option a float64 observation raises, and the message says what would take it."""
    codec = SpaceCodec(WIDE, "observation")
    with pytest.raises(el.errors.SpaceMismatchError, match=r"astype\('float32'\), or pass cast='same_kind'"):
        codec.buffer(1).put(0, HALF)
    whole = SpaceCodec(spaces.Box(-1, 1, (1,), np.float64), "observation")
    for value in (np.array([2**53 + 1]), [2**53 + 1]):
        with pytest.raises(el.errors.SpaceMismatchError, match="cast='safe'"):
            whole.buffer(1).put(0, value)
    rounding = SpaceCodec(whole.space, "observation", "safe")
    for value in (np.array([2**53 + 1]), [2**53 + 1]):
        buffer = rounding.buffer(1)
        buffer.put(0, value)
        assert rounding.decode(buffer.arrays(0, 1))[0, 0] == 2.0**53


def test_values_out_of_range_raise():
    """Numpy would make infinities and wrapped integers; both are errors, infinities themselves are not."""
    floats = SpaceCodec(WIDE, "observation", "same_kind")
    for value in ([1e39, 0], [0, -1e300]):
        with pytest.raises(el.errors.SpaceMismatchError, match="out of range"):
            floats.buffer(1).put(0, np.array(value))
    buffer = floats.buffer(2)
    buffer.put_many(0, np.array([[np.inf, np.nan], [0.1, 0]]), 2)
    np.testing.assert_array_equal(floats.decode(buffer.arrays(0, 1))[0], [np.inf, np.nan])
    # A batch that fitted says nothing about the next one of the same dtype.
    with pytest.raises(el.errors.SpaceMismatchError, match="out of range"):
        buffer.put_many(0, np.full((2, 2), 1e39), 2)
    discrete = SpaceCodec(spaces.Discrete(3), "action", "same_kind")
    discrete.buffer(1).put(0, np.uint64(2))
    with pytest.raises(el.errors.SpaceMismatchError, match="out of range"):
        discrete.buffer(1).put(0, np.uint64(2**63))


def test_images_of_other_integers_stay_refused():
    """Numpy does not cast int64 to uint8 by "same_kind": the message says so, and what to call."""
    image = SpaceCodec(spaces.Box(0, 255, (2, 2), np.uint8), "observation", "same_kind")
    with pytest.raises(
        el.errors.SpaceMismatchError, match=r"int64 to uint8 by the rule 'same_kind'; call .astype"
    ):
        image.buffer(1).put(0, np.zeros((2, 2), np.int64))
    wider = image.buffer(1)
    wider.put(0, np.full((2, 2), 255, np.uint16))
    assert image.decode(wider.arrays(0, 1))[0, 0, 0] == 255


def test_parts_of_nested_spaces_are_cast():
    """The option reaches the leaves of every kind of space."""
    space = spaces.Dict(
        {
            "pair": spaces.Tuple([WIDE, spaces.MultiDiscrete([3, 3], dtype=np.int32)]),
            "steps": spaces.Sequence(WIDE),
            "one": spaces.OneOf([WIDE, spaces.Discrete(2)]),
            "graph": spaces.Graph(WIDE, None),
            "bits": spaces.MultiBinary(2),
        }
    )
    graph = spaces.GraphInstance(HALF[None], None, None)
    value = {
        "pair": (HALF, np.array([1, 2])),
        "steps": (HALF, HALF),
        "one": (0, HALF),
        "graph": graph,
        "bits": np.array([1, 0]),
    }
    codec = SpaceCodec(space, "observation", "same_kind")
    (found,) = [codec.decode(codec.encode_many([value], 1))]
    stored = HALF.astype(np.float32)
    np.testing.assert_array_equal(found["pair"][0][0], stored)
    np.testing.assert_array_equal(found["pair"][1][0], [1, 2])
    np.testing.assert_array_equal(found["steps"][0], [stored, stored])
    np.testing.assert_array_equal(found["one"][0][1], stored)
    np.testing.assert_array_equal(found["graph"][0].nodes, [stored])


class Doubles(gymnasium.Env):
    """Declares float32 and returns float64, as many environments do."""

    observation_space = WIDE
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Begin."""
        super().reset(seed=seed)
        self.t = 0
        return HALF, {}

    def step(self, action):
        """Go on."""
        self.t += 1
        return HALF / (self.t + 1), 0.5, self.t == 3, False, {}


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.float32])
def test_wider_types_are_cast_from_arrow(dtype, tmp_path):
    """Arrow columns are rounded to the space's dtype, and out of range they raise."""
    store = el.create(
        tmp_path / "store", observation_space=spaces.Box(-9, 9, (), dtype), action_space=spaces.Discrete(2)
    )
    number = 7 if dtype is np.int8 else 0.1
    beyond = {np.float16: 1e6, np.int8: 30_000, np.float32: 1e39}[dtype]
    stored = {np.float16: pa.float32(), np.int8: pa.int16(), np.float32: pa.float64()}[dtype]

    def table(value):
        return pa.table(
            {
                "observation": pa.array([value, value], stored),
                "action": [1, None],
                "reward": [0.5, None],
                "terminated": [True, None],
                "truncated": [False, None],
            }
        )

    with store.writer(cast="same_kind") as writer:
        writer.write_episodes(table(number), lengths=[1])
        with pytest.raises(el.errors.SpaceMismatchError, match="out of range"):
            writer.write_episodes(table(beyond), lengths=[1])
    assert store.refresh()[0].observations.tolist() == np.full(2, number).astype(dtype).tolist()


def test_other_rules_are_refused(tmp_path):
    """A rule that could change numbers at will does not exist."""
    for number, rule in enumerate(["unsafe", "equiv", None, 1]):
        with case(rule):
            _check_other_rules_are_refused(tmp_path / str(number), rule)


def _check_other_rules_are_refused(tmp_path, rule):
    store = el.create(tmp_path / "store", Doubles())
    with pytest.raises(
        el.errors.InvalidArgumentError, match=r"cast=.* expected one of 'no', 'safe', 'same_kind'"
    ):
        store.writer(cast=rule)
