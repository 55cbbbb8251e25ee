"""Which values a space takes, which it refuses, and which columns it refuses on the way back."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces as gym_spaces

from episodelake.store.errors import (
    CorruptStoreError,
    InvalidArgumentError,
    SpaceMismatchError,
)
from episodelake.store.spaces import SpaceCodec
from episodelake.testing.adapters import case
from strategies import buffered, same


def put_one(space: gym_spaces.Space, value: Any) -> Any:
    """Put one value and return the batch of one that comes back."""
    codec = SpaceCodec(space, "x")
    return codec.decode(buffered(codec, [value]))


BOX = gym_spaces.Box(-1, 1, (2,), np.float32)
BOOL: Any = np.bool_
INTEGER_BOX = gym_spaces.Box(0, 9, (2,), np.uint8)


def test_fitting_values_are_converted() -> None:
    """Plain numbers, lists and arrays that are safe to cast are taken; bounds are not enforced."""
    cases: list[Any] = [
        (BOX, [1, 0.5], [1, 0.5]),
        (BOX, (np.float64(1), 2), [1, 2]),
        (BOX, [float("nan"), float("inf")], [np.nan, np.inf]),
        (BOX, np.array([1, 2], np.float16), [1, 2]),
        (BOX, np.array([1, 2], np.int16), [1, 2]),
        (BOX, np.array([9, -9], np.float32), [9, -9]),
        (BOX, np.array([9, 1, -9], np.float32)[::2], [9, -9]),
        (INTEGER_BOX, [0, 255], [0, 255]),
        (INTEGER_BOX, np.array([True, False]), [1, 0]),
        (gym_spaces.Box(0, 1, (2,), np.uint64), [2**63, 1], [2**63, 1]),
        (gym_spaces.Box(0, 1, (), np.float32), 0.5, 0.5),
        (gym_spaces.Box(0, 1, (0,), np.int32), [], []),
        (gym_spaces.Discrete(3), 2, 2),
        (gym_spaces.Discrete(3), True, 1),
        (gym_spaces.Discrete(3), np.int8(-100), -100),
        (gym_spaces.Discrete(3), np.array(7), 7),
        (gym_spaces.Discrete(3, dtype=np.uint64), 2**64 - 1, 2**64 - 1),
        (gym_spaces.MultiDiscrete([3, 3]), [1, 2], [1, 2]),
        (gym_spaces.MultiBinary(2), [True, 0], [1, 0]),
        (gym_spaces.MultiBinary(2), np.array([0, 1]), [0, 1]),
        (gym_spaces.MultiBinary(2), np.array([0.0, 1.0]), [0, 1]),
    ]
    for space, value, expected in cases:
        with case((space, value, expected)):
            decoded = put_one(space, value)
            assert same(decoded, np.array([expected], dtype=space.dtype))


def test_misfits_are_refused() -> None:
    """A value that does not fit names the column, what was expected, what came, and a hint."""
    cases: list[Any] = [
        (BOX, np.zeros(3, np.float32), ["float32 of shape (2,)", "float32 of shape (3,)"]),
        (BOX, np.zeros(1, np.float32), ["shape (1,)"]),
        (BOX, np.zeros((1, 2), np.float32), ["shape (1, 2)"]),
        (BOX, np.zeros(2), ["float32", "float64", "astype"]),
        (BOX, np.zeros(2, np.int64), ["int64"]),
        (BOX, np.zeros(2, complex), ["complex128"]),
        (BOX, np.float32(1), ["shape ()"]),
        (BOX, [1, "a"], ["expected float32"]),
        (BOX, [[1], [1, 2]], ["list of length 2"]),
        (BOX, [1e300, 0], ["does not fit"]),
        (BOX, None, ["expected float32"]),
        (BOX, {}, ["expected float32"]),
        (INTEGER_BOX, [1, 256], ["uint8"]),
        (INTEGER_BOX, [1, -1], ["uint8"]),
        (INTEGER_BOX, [1, 0.5], ["float64"]),
        (INTEGER_BOX, [1, 10**30], ["uint8"]),
        (gym_spaces.Box(0, 1, (2,), BOOL), [0, 1], ["bool"]),
        (gym_spaces.Discrete(3), 1.0, ["int64"]),
        (gym_spaces.Discrete(3), np.float32(1), ["float32"]),
        (gym_spaces.Discrete(3), np.True_, ["bool"]),
        (gym_spaces.Discrete(3), np.array([1]), ["shape (1,)"]),
        (gym_spaces.Discrete(3), "1", ["int64"]),
        (gym_spaces.Discrete(3), 2**63, ["int64"]),
        (gym_spaces.Discrete(3, dtype=np.int8), 200, ["int8"]),
        (gym_spaces.Discrete(3, dtype=np.int32), np.int64(1), ["int32", "int64"]),
        (gym_spaces.MultiDiscrete([3, 3]), np.zeros(2), ["float64"]),
        (gym_spaces.MultiBinary(2), np.array([0, 2], np.int8), ["Only 0 and 1"]),
        (gym_spaces.MultiBinary(2), np.array([0, 256]), ["int8"]),
        (gym_spaces.MultiBinary(2), [0, 2], ["Only 0 and 1"]),
        (gym_spaces.MultiBinary(2), np.array([0, np.nan]), ["int8"]),
        (gym_spaces.Text(3), 5, ["str", "int"]),
        (gym_spaces.Text(3), b"a", ["bytes"]),
        (gym_spaces.Text(3), "a\ud800", ["surrogate"]),
        (gym_spaces.Dict({"a": BOX}), {}, ["missing", "'a'"]),
        (gym_spaces.Dict({"a": BOX}), {"b": 1}, ["'a'", "extra", "'b'"]),
        (gym_spaces.Dict({"a": BOX}), {"a": np.zeros(2, np.float32), "b": 1}, ["'b'"]),
        (gym_spaces.Dict({"a": BOX}), [1], ["a dict", "list"]),
        (gym_spaces.Dict({"a": BOX}), {"a": np.zeros(3, np.float32)}, ["'x.a'"]),
        (gym_spaces.Tuple([BOX, BOX]), (np.zeros(2, np.float32),), ["length 2", "length 1"]),
        (gym_spaces.Tuple([BOX]), 3, ["int"]),
        (gym_spaces.Sequence(BOX), np.zeros((1, 2), np.float32), ["tuple"]),
        (gym_spaces.Sequence(BOX), (np.zeros(3, np.float32),), ["shape (3,)"]),
        (gym_spaces.Sequence(BOX, stack=True), np.zeros((1, 3), np.float32), ["(1, 3)"]),
        (gym_spaces.Sequence(BOX, stack=True), np.float32(0), ["shape ()"]),
        (
            gym_spaces.Sequence(gym_spaces.Dict({"a": BOX, "b": BOX}), stack=True),
            {"a": np.zeros((1, 2), np.float32), "b": np.zeros((2, 2), np.float32)},
            ["one length"],
        ),
        (gym_spaces.Graph(BOX, None), 3, ["GraphInstance"]),
        (gym_spaces.Graph(BOX, None), (np.zeros((1, 2), np.float32), np.zeros(3), None), ["no edge space"]),
        (gym_spaces.Graph(BOX, BOX), (np.zeros((1, 2), np.float32), None, np.zeros((2, 3), int)), ["(2, 3)"]),
        (
            gym_spaces.Graph(BOX, BOX),
            (np.zeros((1, 2), np.float32), None, np.full((1, 2), 2**40)),
            ["32 bits"],
        ),
        (gym_spaces.Graph(BOX, BOX), (np.zeros((1, 2), np.float32), None, np.ones((1, 2))), ["float64"]),
        (gym_spaces.OneOf([BOX]), (1, np.zeros(2, np.float32)), ["branch from 0 to 0"]),
        (gym_spaces.OneOf([BOX]), (-1, np.zeros(2, np.float32)), ["branch"]),
        (gym_spaces.OneOf([BOX]), np.zeros(2, np.float32), ["(branch, value)"]),
        (gym_spaces.OneOf([BOX]), (0, np.zeros(3, np.float32)), ["'x.0'"]),
    ]
    for space, value, words in cases:
        with case((space, value, words)):
            codec = SpaceCodec(space, "x")
            with pytest.raises(SpaceMismatchError) as refusal:
                codec.buffer(1).put(0, value)
            with pytest.raises(SpaceMismatchError, match=re.escape(str(refusal.value))):
                codec.row_buffer(1).put(0, value)
            for word in ["column 'x", "expected", "got", *words]:
                assert word in str(refusal.value)
            assert str(refusal.value).endswith(refusal.value.hint) and refusal.value.hint
            with pytest.raises(SpaceMismatchError):
                codec.encode_many([value], 1)


def test_batches_of_the_wrong_form_are_refused() -> None:
    """A batch for three rows has three values in every part, of the right shape and dtype."""
    cases: list[Any] = [
        (BOX, np.zeros((2, 2), np.float32)),
        (BOX, np.zeros((3, 3), np.float32)),
        (BOX, np.zeros((3, 2))),
        (BOX, [np.zeros(2, np.float32)] * 2),
        (BOX, np.float32(0)),
        (gym_spaces.Discrete(3), np.zeros(3)),
        (gym_spaces.Discrete(3), np.zeros(3, bool)),
        (gym_spaces.Discrete(3), np.zeros((3, 1), int)),
        (gym_spaces.MultiBinary(2), np.full((3, 2), 2, np.int8)),
        (gym_spaces.Text(2), ["a", "b"]),
        (gym_spaces.Text(2), "abc"),
        (gym_spaces.Text(2), np.array("abc")),
        (gym_spaces.Dict({"a": BOX, "b": BOX}), {"a": np.zeros((3, 2), np.float32)}),
        (gym_spaces.Dict({"a": BOX}), {"a": np.zeros((2, 2), np.float32)}),
        (gym_spaces.Tuple([BOX]), (np.zeros((2, 2), np.float32),)),
        (gym_spaces.Tuple([BOX]), [(np.zeros(2, np.float32),)]),
    ]
    for space, batch in cases:
        with case((space, batch)), pytest.raises(SpaceMismatchError, match="expected"):
            SpaceCodec(space, "x").encode_many(batch, 3)


def test_a_row_can_be_put_again_after_a_refusal() -> None:
    """A refused value leaves its row free for the next one."""
    space = gym_spaces.Tuple([BOX, gym_spaces.Discrete(2)])
    codec = SpaceCodec(space, "x")
    buffer = codec.buffer(1)
    with pytest.raises(SpaceMismatchError):
        buffer.put(0, (np.ones(2, np.float32), 0.5))
    buffer.put(0, (np.zeros(2, np.float32), 1))
    assert same(codec.decode(buffer.arrays(0, 1)), (np.zeros((1, 2), np.float32), np.array([1])))


def test_too_many_rows_for_one_array_are_refused() -> None:
    """More elements than Arrow's offsets reach are an error that says how to go on, not an overflow."""
    space = gym_spaces.Box(0, 255, (1024, 1024), np.uint8)
    codec = SpaceCodec(space, "x")
    assert codec.max_rows == 2047
    with pytest.raises(InvalidArgumentError, match="max_rows"):
        codec.buffer(2048).arrays(0, 2048)


def test_columns_that_fit_no_value_are_corrupt() -> None:
    """Rows of a wrong size, NULLs where none can be and wrong types are an error that names the column."""
    cases: list[Any] = [
        (BOX, [pa.array([[1.0]], pa.list_(pa.float32()))]),
        (BOX, [pa.array([[1.0], [1.0, 2.0, 3.0]], pa.list_(pa.float32()))]),
        (BOX, [pa.array([[1.0, None]], pa.list_(pa.float32()))]),
        (BOX, [pa.array([None], pa.list_(pa.float32()))]),
        (BOX, [pa.array(["a"])]),
        (BOX, []),
        (gym_spaces.Discrete(2), [pa.array([None], pa.int64())]),
        (gym_spaces.Box(0, 255, (2, 2), np.uint8), [pa.array([b"abc"])]),
        (gym_spaces.OneOf([BOX]), [pa.array([1]), pa.array([None], pa.list_(pa.float32()))]),
        (gym_spaces.OneOf([BOX]), [pa.array([None], pa.int64()), pa.array([None], pa.list_(pa.float32()))]),
        (gym_spaces.Sequence(gym_spaces.Tuple([])), [pa.array([-1])]),
        (gym_spaces.Sequence(BOX), [pa.array([None], pa.list_(pa.list_(pa.float32())))]),
        (
            gym_spaces.Sequence(gym_spaces.Tuple([gym_spaces.Discrete(2)] * 2)),
            [pa.array([[1]], pa.list_(pa.int64())), pa.array([[1, 2]], pa.list_(pa.int64()))],
        ),
    ]
    for space, arrays in cases:
        with case((space, arrays)), pytest.raises(CorruptStoreError, match="'x"):
            SpaceCodec(space, "x").decode(arrays)
