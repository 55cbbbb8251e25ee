"""Infos of every kind of key and value, and the form in which each comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from .values import same


class Colour(enum.IntEnum):
    """A number with a name."""

    RED = 1


class Unprintable:
    """An object that cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("this object has no printed form")


#: Infos that a recorder must keep: types that change from step to step, odd keys, and values of every kind.
ODD_INFOS: list[dict[Any, Any]] = [
    {"value": 1, "sometimes": 7, "flag": True},
    {"value": 2.5, "flag": 1},
    {"value": "three", "flag": 1.0},
    {"value": np.arange(6, dtype=np.int16).reshape(2, 3), "flag": None},
    {"value": {"a": 1, "b": {"c": [1, 2.5, "x", None]}, "empty": {}}},
    {"value": None, "sometimes": None},
    {},
    {"Value": 1, "value": 2, "VALUE": 3},
    {
        **{"a.b": 1, "a": {"b": 2}, "a%2Eb": 3, "a b": 4, "": 5, "größe": 6, "日本": 7},
        **{",;{}()=\t\n": 8, "%": 9, ".": 10},
    },
    {"_json": {"x": 1}, "info": 2, "info._json": "y", "t": -1, "episode_id": "z", "observation": [0]},
    {
        **{"f16": np.float16(0.1), "f32": np.float32(0.1), "f64": np.float64(0.1)},
        **{"u8": np.uint8(255), "b": np.bool_(True)},
    },
    {
        **{"u64": np.uint64(2**64 - 1), "i64": np.int64(-(2**63)), "big": 2**70, "small": -(2**200)},
        "text": np.str_("ü"),
    },
    {
        **{"nan": float("nan"), "inf": float("inf"), "minus": -np.inf, "zero": -0.0},
        "list": [np.nan, np.inf, -0.0],
    },
    {"ints": [1, 2, 3], "mixed": [1, 2.0, True], "none": [], "nested": [[1], [2, 3], []], "maybe": [1, None]},
    {"ints": np.array([1, 2, 3]), "mixed": np.array([1.5]), "none": np.zeros((0, 3), np.uint8)},
    {
        **{"scalar": np.array(3.5), "half": np.array([1, np.nan], np.float16)},
        "u64": np.array([2**64 - 1], np.uint64),
    },
    {
        **{"bools": np.array([[True], [False]]), "texts": np.array(["a", "größe"])},
        "big_endian": np.array([1.5], ">f8"),
    },
    {"fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "strided": np.arange(10)[::-3]},
    {
        **{"bytes": b"\x00\xff\x80", "tuple": (1, "a", (2.0,)), "set": {1}, "frozen": frozenset({"x"})},
        "complex": 1 + 2j,
    },
    {
        **{"text": "\x00 nul", "surrogate": "\ud800", "long": "x" * 70_000, "lines": "a\nb\r\n"},
        "json": '{"a": 1}',
    },
    {"\ud800": 1, "\x00": 2, "k" * 5000: 3},
    {"object": object(), "function": len, "unprintable": Unprintable(), "type": int, "colour": Colour.RED},
    {
        1: "int key",
        "1": "text key",
        (1, 2): "tuple key",
        None: "none key",
        "deep": {1: "a", 2.5: "b", b"x": "c"},
    },
    {
        **{"objects": np.array([{"a": 1}, None], dtype=object), "when": np.datetime64("2020-01-01")},
        "void": np.zeros(1, "i4,f4"),
    },
]


def same_info(stored: Any, true: Any) -> bool:
    """Return whether an info value came back as it must.

    Numpy scalars come back as Python's, arrays with dtype and shape. Of a sequence only the contents
    count; an object comes back as a description. Of keys that are no text only the number is promised.
    """
    if isinstance(true, Mapping):
        return type(stored) is dict and _same_mapping(stored, true)
    if isinstance(true, np.ndarray):
        return _same_array(stored, true)
    if isinstance(true, list | tuple):
        alike = isinstance(stored, list | tuple) and len(stored) == len(true)
        return alike and all(map(same_info, stored, true))
    if isinstance(true, set | frozenset):
        return isinstance(stored, set | frozenset | list | tuple) and set(stored) == true
    return _same_scalar(stored, true)


def _same_mapping(stored: dict[Any, Any], true: Mapping[Any, Any]) -> bool:
    if not all(isinstance(key, str) for key in true):
        return len(stored) == len(true)
    return stored.keys() == true.keys() and all(same_info(stored[key], true[key]) for key in true)


def _same_array(stored: Any, true: np.ndarray) -> bool:
    """Compare arrays of numbers, bools and text in dtype, shape and value; others come back described."""
    if true.dtype.kind not in "biufU":
        return stored is not None
    native = true.astype(true.dtype.newbyteorder("="))
    alike = isinstance(stored, np.ndarray) and stored.dtype.newbyteorder("=") == native.dtype
    return alike and same(stored.astype(native.dtype), native)


def _same_scalar(stored: Any, true: Any) -> bool:
    """Compare single values: the Python type of a number counts; an object comes back as a description."""
    if isinstance(true, float | np.floating):
        return type(stored) is float and same(np.float64(stored), np.float64(true))
    for kind, plain in (((bool, np.bool_), bool), (str, str), ((int, np.integer), int)):
        if isinstance(true, kind):
            return type(stored) is plain and stored == plain(true)
    if true is None or isinstance(true, bytes):
        return type(stored) is type(true) and stored == true
    return stored is not None
