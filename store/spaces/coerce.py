"""The slow path into a fixed leaf: convert a value to the space's dtype and shape, or refuse it.

Two kinds of values come here. Arrays (and anything else that carries a dtype) must be safe to cast, as
`Box.contains` demands. Plain Python numbers and lists have no dtype to lose: they are converted,
as long as the number stays the same (a float may be rounded to the space's precision, never to infinity).
An integer that the space's floats cannot hold exactly is refused in either form.

`cast` relaxes both rules to a casting rule of numpy: values may lose precision then, but never range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..common.arguments import refuse_mask
from ..common.foreign_arrays import as_array
from ..errors import SpaceMismatchError
from .node import describe

#: Which conversions of dtype a writer accepts: none that could change a value, or those of `numpy.can_cast`.
Cast = Literal["no", "safe", "same_kind"]
_NUMBERS = "biuf"
_PLAIN = bool | int | float | list | tuple
#: A float64 up to this size was not rounded from another integer.
_LARGEST_EXACT = (1 << 53) - 1
_ROUNDED = "an integer would be rounded to the nearest float; give the float that you mean"


@dataclass(frozen=True)
class Coercion:
    """The values that a fixed leaf accepts.

    Attributes:
        column: named in errors.
        dtype: of the result, in native byte order.
        kinds: the kinds of dtype an array may have (`numpy.dtype.kind`).
        plain_kinds: the same for arrays of plain Python numbers.
        any_width: accept any width of these kinds, as long as the values stay the same (MultiBinary).
        binary: accept 0 and 1 only, because the column is boolean.
        one_item: accept an array of shape (1,) for a number, as environments return for rewards.
        cast: "no", or the rule of `numpy.can_cast` by which arrays of any kind of number may be rounded. A
            number outside the range of `dtype` is refused all the same.
    """

    column: str
    dtype: np.dtype
    kinds: str
    plain_kinds: str
    any_width: bool = False
    binary: bool = False
    one_item: bool = False
    cast: Cast = "no"

    def __call__(self, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Return `value` as an array of `dtype` and `shape`; it may be the value itself.

        Raises:
            SpaceMismatchError: names the column, and the expected and got dtype and shape.
        """
        plain = isinstance(value, _PLAIN) and not isinstance(value, np.generic)
        refuse_mask(value, f"column '{self.column}'")
        try:
            array = as_array(value)
            if plain and array.size and self.dtype.kind in "iu" and array.dtype.kind in "fO":
                array = self._integers(value, array)
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            raise self._mismatch(describe(value), shape, "it cannot be read as an array") from error
        listed = plain and not isinstance(value, float) and self.cast == "no"
        if listed and array.dtype.kind == "f" and _rounded(value, array):
            raise self._mismatch(describe(value), shape, self._rounded_hint())
        if self.one_item and not plain and array.shape == (*shape, 1):
            array = array.reshape(shape)
        if array.shape != shape:
            raise self._mismatch(describe(array), shape, "reshape the value, or correct the space")
        if array.dtype != self.dtype:
            array = self._convert(array, shape) if plain else self._cast(array, shape)
        if self.binary and not is_binary(array):
            raise self._mismatch(describe(array) + " with other values", shape, "only 0 and 1 can be stored")
        return array

    def _cast(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if self.relaxed_for(array.dtype):
            return self._rounding(array, shape)
        if array.dtype.kind in self.kinds:
            if np.can_cast(array.dtype, self.dtype):
                converted = array.astype(self.dtype)
                if may_round(array.dtype, self.dtype) and not _unchanged(array, converted):
                    raise self._mismatch(_described(array), shape, self._rounded_hint())
                return converted
            if self.any_width:
                return self._convert(array, shape)
        raise self._mismatch(describe(array), shape, self._cast_hint(array))

    def relaxed_for(self, dtype: np.dtype) -> bool:
        """Return whether `cast` accepts arrays of a dtype, whatever the other rules say of them."""
        return self.cast != "no" and dtype.kind in _NUMBERS and np.can_cast(dtype, self.dtype, self.cast)

    def _rounding(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        with np.errstate(all="ignore"):
            converted = array.astype(self.dtype)
        if self.dtype.kind == "f" and np.isfinite(converted).all():
            return converted
        # numpy wraps integers around and makes infinities of large floats: other data than what was given.
        kept = np.isfinite(array) == np.isfinite(converted) if self.dtype.kind == "f" else array == converted
        if not kept.all():
            wrong = f"{describe(array)} with the value {array[~kept].flat[0]}"
            hint = f"it is out of range: cast={self.cast!r} only rounds; correct the value, or the space"
            raise self._mismatch(wrong, shape, hint)
        return converted

    def _rounded_hint(self) -> str:
        return f"{_ROUNDED}, or pass cast='safe' to the recorder or writer, which rounds it"

    def _cast_hint(self, array: np.ndarray) -> str:
        rules: tuple[Cast, ...] = ("safe", "same_kind")
        option = next((rule for rule in rules if replace(self, cast=rule).relaxed_for(array.dtype)), None)
        if option is not None:
            return (
                f"cast the value with .astype({str(self.dtype)!r}), or pass cast={option!r} to the recorder "
                "or writer"
            )
        if array.dtype.kind in _NUMBERS and self.cast != "no":
            return (
                f"numpy does not cast {array.dtype} to {self.dtype} by the rule {self.cast!r}; "
                f"call .astype({str(self.dtype)!r}) where that is right"
            )
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
        if self.dtype.kind == "f" and array.dtype.kind in "iu":
            if self.cast != "no":
                return self._rounding(array, shape)
            raise self._mismatch(_described(array), shape, self._rounded_hint())
        raise self._mismatch(describe(array), shape, "a number does not fit the dtype of the space")

    def _integers(self, value: Any, array: np.ndarray) -> np.ndarray:
        # numpy reads integers on both sides of 2^63 as floats or objects; integers they are all the same.
        exact = np.array(value, dtype=object)
        whole = all(isinstance(each, int | np.integer) for each in exact.flat)
        return np.array(value, dtype=self.dtype) if whole else array

    def _mismatch(self, got: str, shape: tuple[int, ...], hint: str) -> SpaceMismatchError:
        return SpaceMismatchError(
            f"column '{self.column}': expected {self.dtype} of shape {shape}, got {got}.",
            hint=f"{hint[0].upper()}{hint[1:]}.",
        )


def is_binary(array: np.ndarray) -> bool:
    """Return whether every byte of an int8 array is 0 or 1; the fastest test there is for a few values."""
    return not array.tobytes().translate(None, b"\x00\x01")


def integers_within(value: Any, dtype: np.dtype, refuse: Callable[[Any], SpaceMismatchError]) -> np.ndarray:
    """Return integers of any width as `dtype` if all of them fit; else raise what `refuse` makes."""
    refuse_mask(value, "a value")
    try:
        array = as_array(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise refuse(value) from error
    if array.dtype.kind not in "iu" and array.size:
        raise refuse(value)
    converted = array.astype(dtype)
    if not _unchanged(array, converted):
        raise refuse(value)
    return converted


def may_round(source: np.dtype, target: np.dtype) -> bool:
    """Return whether a cast that numpy calls safe may still round large integers."""
    return source.kind in "iu" and target.kind == "f" and source.itemsize >= target.itemsize


def _unchanged(array: np.ndarray, converted: np.ndarray) -> bool:
    if converted.dtype.kind != "f":
        return bool((array == converted).all())
    if array.dtype.kind == "f":
        return bool((np.isfinite(array) == np.isfinite(converted)).all())
    exact = 2 ** (np.finfo(converted.dtype).nmant + 1)
    if not array.size or array.dtype.kind == "b" or _within(array, exact):
        return True
    # Numpy compares an integer with a float by rounding the integer.
    pairs = zip(array.flat, converted.flat, strict=True)
    return all(math.isfinite(number) and int(number) == int(whole) for whole, number in pairs)


def _described(array: np.ndarray) -> str:
    return describe(array) if array.ndim else f"the integer {array}"


def _within(array: np.ndarray, limit: int) -> bool:
    return bool(array.max() <= limit and array.min() >= -limit)


def _rounded(value: Any, array: np.ndarray) -> bool:
    """Return whether numpy rounded an integer when it read a list of integers and floats as floats."""
    if not array.size or _within(array, _LARGEST_EXACT):
        return False
    numbers = zip(np.array(value, dtype=object).flat, array.flat, strict=True)
    return any(_is_integer(whole) and int(number) != int(whole) for whole, number in numbers)


def _is_integer(number: Any) -> bool:
    return isinstance(number, int) or (
        isinstance(number, np.generic | np.ndarray) and number.dtype.kind in "iu"
    )
