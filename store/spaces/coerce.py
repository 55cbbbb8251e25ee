"""The slow path into a fixed leaf: make an array of the space's dtype and shape of a value, or refuse it.

Two kinds of values come here. Arrays (and anything else that carries a dtype) must be safe to cast, as
`Box.contains` demands. Plain Python numbers and lists have no dtype to lose: they are converted,
as long as the number stays the same (a float may be rounded to the space's precision, never to infinity).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import SpaceMismatchError
from .node import describe

_PLAIN = bool | int | float | list | tuple


@dataclass(frozen=True)
class Coercion:
    """What a fixed leaf accepts.

    Attributes:
        column: named in errors.
        dtype: of the result, in native byte order.
        kinds: the kinds of dtype an array may have (`numpy.dtype.kind`).
        plain_kinds: the same for what plain Python numbers become.
        any_width: accept any width of these kinds, as long as the values stay the same (MultiBinary).
        binary: accept 0 and 1 only, because the column is boolean.
    """

    column: str
    dtype: np.dtype
    kinds: str
    plain_kinds: str
    any_width: bool = False
    binary: bool = False

    def __call__(self, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Return `value` as an array of `dtype` and `shape`; it may be the value itself.

        Raises:
            SpaceMismatchError: names the column, and the expected and got dtype and shape.
        """
        plain = isinstance(value, _PLAIN) and not isinstance(value, np.generic)
        try:
            array = np.asarray(value)
            if plain and array.size and self.dtype.kind in "iu" and array.dtype.kind in "fO":
                array = self._integers(value, array)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise self._mismatch(describe(value), shape, "it cannot be read as an array") from error
        if array.shape != shape:
            raise self._mismatch(describe(array), shape, "reshape the value, or correct the space")
        if array.dtype != self.dtype:
            array = self._convert(array, shape) if plain else self._cast(array, shape)
        if self.binary and not is_binary(array):
            raise self._mismatch(describe(array) + " with other values", shape, "only 0 and 1 can be stored")
        return array

    def _cast(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if array.dtype.kind in self.kinds:
            if np.can_cast(array.dtype, self.dtype):
                return array.astype(self.dtype)
            if self.any_width:
                return self._convert(array, shape)
        raise self._mismatch(describe(array), shape, self._cast_hint(array))

    def _cast_hint(self, array: np.ndarray) -> str:
        if array.dtype.kind == self.dtype.kind:
            return f"cast the value with .astype({str(self.dtype)!r})"
        return (
            f"give values that mean the same in {self.dtype}, or declare the space with the values' own dtype"
        )

    def _convert(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if array.size == 0:
            return np.empty(shape, dtype=self.dtype)
        if array.dtype.kind in self.plain_kinds:
            with np.errstate(all="ignore"):
                converted = array.astype(self.dtype)
            if _unchanged(array, converted):
                return converted
        raise self._mismatch(describe(array), shape, "a number does not fit the dtype of the space")

    def _integers(self, value: Any, array: np.ndarray) -> np.ndarray:
        # numpy reads integers on both sides of 2^63 as floats or objects; integers they are all the same.
        exact = np.array(value, dtype=object)
        whole = all(isinstance(each, int | np.integer) for each in exact.flat)
        return np.array(value, dtype=self.dtype) if whole else array

    def _mismatch(self, got: str, shape: tuple[int, ...], hint: str) -> SpaceMismatchError:
        return SpaceMismatchError(
            f"column '{self.column}': expected {self.dtype} of shape {shape}, got {got}. Hint: {hint}."
        )


def is_binary(array: np.ndarray) -> bool:
    """Tell whether every byte of an int8 array is 0 or 1; the fastest test there is for a few values."""
    return not array.tobytes().translate(None, b"\x00\x01")


def integers_within(value: Any, dtype: np.dtype, refuse: Callable[[Any], SpaceMismatchError]) -> np.ndarray:
    """Return integers of any width as `dtype` if all of them fit; else raise what `refuse` makes."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise refuse(value) from error
    if array.dtype.kind not in "iu" and array.size:
        raise refuse(value)
    converted = array.astype(dtype)
    if not _unchanged(array, converted):
        raise refuse(value)
    return converted


def _unchanged(array: np.ndarray, converted: np.ndarray) -> bool:
    if converted.dtype.kind == "f":
        return array.dtype.kind != "f" or bool((np.isfinite(array) == np.isfinite(converted)).all())
    return bool((array == converted).all())
