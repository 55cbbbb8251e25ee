"""Spaces as JSON: equal again after the trip, and nothing worse than an error from a hostile file."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given

from effort import looped
from episodelake.store.errors import (
    CorruptStoreError,
)
from episodelake.store.spaces import space_from_json, space_to_json
from episodelake.testing.adapters import case
from strategies import spaces


@given(spaces())
def test_json_round_trip(space: gym_spaces.Space) -> None:
    """A space comes back from strict JSON equal to itself, with the order of its keys."""
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert repr(again) == repr(space)
    assert json.dumps(space_to_json(again)) == text


def test_json_keeps_bounds_exactly() -> None:
    """Per-element, infinite and 64-bit bounds come back bit by bit; uniform ones are a single number."""
    low = np.array([-np.inf, -0.0, 1 / 3])
    space = gym_spaces.Box(low, np.array([np.inf, 0.0, 1e300]), dtype=np.float64)
    description = space_to_json(space)
    assert description["low"] == ["-inf", -0.0, 1 / 3]
    again = space_from_json(json.loads(json.dumps(description, allow_nan=False)))
    assert isinstance(again, gym_spaces.Box)
    assert again.low.tobytes() == space.low.tobytes()
    assert again.high.tobytes() == space.high.tobytes()
    wide = gym_spaces.Box(0, 2**63 - 2, (100, 100), np.int64)
    assert space_to_json(wide)["high"] == 2**63 - 2
    assert space_from_json(space_to_json(wide)) == wide
    zeros = gym_spaces.Box(np.array([0.0, -0.0]), np.array([1.0, 1.0]), dtype=np.float64)
    assert np.signbit(space_from_json(space_to_json(zeros)).low).tolist() == [False, True]  # pyright: ignore
    space.low[0] = np.nan
    assert np.isnan(space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False))).low[0])  # pyright: ignore


def test_json_keeps_which_integer_bounds_were_infinite() -> None:
    """An integer Box without bounds samples as one without bounds after it came back."""
    space = gym_spaces.Box(-np.inf, 5, (2,), np.int32)
    again = space_from_json(space_to_json(space))
    space.seed(1)
    again.seed(1)
    assert isinstance(again, gym_spaces.Box)
    assert not again.bounded_below.any()
    assert again.bounded_above.all()
    assert np.array_equal(space.sample(), again.sample())


def test_json_keeps_key_order_and_odd_characters() -> None:
    """Keys stay in the order of the space, and a charset keeps its order and its surrogates."""
    space = gym_spaces.Dict(
        [("b", gym_spaces.Text(3, charset="zya\ud83d\ude00")), ("a", gym_spaces.Discrete(2))]
    )
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert isinstance(again, gym_spaces.Dict)
    assert list(again.spaces) == ["b", "a"]
    assert again.spaces["b"].character_list == tuple("zya\ud83d\ude00")  # pyright: ignore


def nested(levels: int) -> dict[str, Any]:
    """Return a description nested that deep."""
    description: dict[str, Any] = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    for _ in range(levels):
        description = {"type": "Tuple", "spaces": [description]}
    return description


def doubling(levels: int) -> dict[str, Any]:
    """Return a description that Gymnasium doubles at each level."""
    description: dict[str, Any] = {"type": "MultiBinary", "n": 2}
    for _ in range(levels):
        description = {"type": "Sequence", "space": description, "stack": True}
    return description


GOOD_BOX: dict[str, Any] = {"type": "Box", "dtype": "float32", "shape": [2], "low": 0, "high": 1}


def test_hostile_descriptions_are_corrupt_stores() -> None:
    """Whatever a damaged or forged description asks for, the answer is one error, and quick."""
    cases: list[Any] = [
        None,
        [],
        {},
        {"type": "Box"},
        {"type": "os.system", "n": 1},
        {"type": "__import__('os').system('true')"},
        {**GOOD_BOX, "dtype": "object"},
        {**GOOD_BOX, "dtype": "O,O"},
        {**GOOD_BOX, "dtype": None},
        {**GOOD_BOX, "dtype": "longdouble"},
        {**GOOD_BOX, "shape": [2**31, 2]},
        {**GOOD_BOX, "shape": [2**31 - 1]},
        {**GOOD_BOX, "shape": [10**30]},
        {**GOOD_BOX, "shape": [-1]},
        {**GOOD_BOX, "shape": [1.5]},
        {**GOOD_BOX, "shape": [1] * 65},
        {**GOOD_BOX, "shape": "22"},
        {**GOOD_BOX, "low": [0, 0, 0]},
        {**GOOD_BOX, "low": 2},
        {**GOOD_BOX, "low": "zero"},
        {**GOOD_BOX, "low": None},
        {**GOOD_BOX, "low": True},
        {**GOOD_BOX, "high": {"a": 1}},
        {**GOOD_BOX, "dtype": "uint8", "high": 256},
        {**GOOD_BOX, "dtype": "uint8", "high": 0.5},
        {**GOOD_BOX, "bounded_below": [1, 2]},
        {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
        {"type": "Discrete", "n": 300, "start": 0, "dtype": "int8"},
        {"type": "Discrete", "n": 2, "start": 0, "dtype": "float32"},
        {"type": "Discrete", "n": True, "start": 0, "dtype": "int64"},
        {"type": "MultiDiscrete", "dtype": "int64", "shape": [2], "nvec": 0, "start": 0},
        {"type": "MultiBinary", "n": -1},
        {"type": "MultiBinary", "n": ["a"]},
        {"type": "Text", "min_length": 3, "max_length": 1, "charset": "ab"},
        {"type": "Text", "min_length": 1, "max_length": 1, "charset": [-5]},
        {"type": "Text", "min_length": 1, "max_length": 1, "charset": 5},
        {"type": "Dict", "spaces": {"a": GOOD_BOX}},
        {"type": "Dict", "spaces": [["a", GOOD_BOX], ["a", GOOD_BOX]]},
        {"type": "Dict", "spaces": [[1, GOOD_BOX]]},
        {"type": "Dict", "spaces": [["a"]]},
        {"type": "Tuple", "spaces": [None]},
        {"type": "OneOf", "spaces": []},
        {"type": "Sequence", "stack": True},
        {"type": "Graph", "node_space": GOOD_BOX},
        {"type": "custom"},
        nested(66),
        nested(900),
        doubling(40),
    ]
    for description in cases:
        with case(description), pytest.raises(CorruptStoreError, match=r"store\.json"):
            space_from_json(description)


@looped(
    "box",
    [
        gym_spaces.Box(-2, 2, (1,), np.float32),
        gym_spaces.Box(np.array([-1, -2]), np.array([1, 2]), dtype=np.int8),
        gym_spaces.Box(-np.inf, np.inf, (2, 2)),
        gym_spaces.Box(0, 255, (3,), np.uint8),
    ],
)
def test_boxes_print_as_they_were_made(box: gym_spaces.Box) -> None:
    """A box that was read prints its bounds, also under releases of Gymnasium that keep the text of them."""
    assert str(space_from_json(space_to_json(box))) == str(box)
