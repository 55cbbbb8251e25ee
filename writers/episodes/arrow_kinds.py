"""Columns of other programs in the types of dynamic columns, converted as a whole."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.dynamic import logical_types as kinds
from ...store.dynamic.values import OpaqueValue
from ...store.spaces.arrow import LISTS, elements_of, equal_lists


def as_kind(array: pa.Array, declared: str | None = None) -> tuple[str, pa.Array] | None:
    """Return an array in the column type of its kind; None if its values have to be looked at one by one.

    Args:
        declared: the kind of arrays that the source says the values have; passed over where they do not.
    """
    if declared is not None and (made := _as_declared(array, declared)) is not None:
        return declared, made
    kind = _scalar_kind(array.type)
    if kind is None and isinstance(array.type, pa.FixedSizeListType) and _is_sized(array.type.value_type):
        return _as_matrices(array)
    if kind is None and isinstance(array.type, LISTS):
        inner = array.type.value_type
        kind = _scalar_kind(inner)
        sized = isinstance(array.type, pa.FixedSizeListType)
        if kind is None or pc.call_function("list_flatten", [array]).null_count or (sized and kind == "str"):
            return None
        if sized or (inner not in (pa.bool_(), pa.int64(), pa.float64()) and kind != "str"):
            dtype = np.dtype(inner.to_pandas_dtype()).name
            kind = f"array:{dtype}:{array.type.list_size if sized else '*'}"
        else:
            kind = f"list:{kind}"
    try:
        return None if kind is None else (kind, array.cast(kinds.physical_type(kind)))
    except pa.ArrowException:
        return None


def _as_declared(array: pa.Array, kind: str) -> pa.Array | None:
    """Return values as an array column of a kind; None where some are no such arrays."""
    logical = kinds.LogicalType.of(kind)
    expected, physical = logical.shape, logical.physical
    flat, shape = elements_of(array)
    stored = physical.value_type if expected else physical
    listed = isinstance(array.type, LISTS)
    if flat.type not in (stored, pa.from_numpy_dtype(logical.dtype)) or listed != bool(expected):
        return None
    sized = listed and expected != (-1,)
    if sized and shape != expected and shape != (prod(expected),) and len(flat):
        return None
    if listed and (flat.null_count or (not sized and isinstance(array.type.value_type, LISTS))):
        return None
    given = flat.drop_null().to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        narrow = given.astype(logical.dtype)
    if not np.array_equal(narrow.astype(given.dtype), given, equal_nan=given.dtype.kind == "f"):
        return None
    if not sized:
        return array.cast(physical)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if len(flat) != int(valid.sum()) * prod(expected):
        return None
    return equal_lists(flat.cast(stored), prod(expected), len(array), valid)


def python_values(array: pa.Array, declared: str | None = None) -> list[Any]:
    """Return the values of a column as they are recorded, None for NULL.

    Arrays of numbers are NumPy arrays. A time finer than a microsecond, which Python does not have, is an
    `OpaqueValue`.

    Args:
        declared: as for `as_kind`.
    """
    made = as_kind(array, declared)
    if made is None:
        return _coarse_values(array)
    read = kinds.reader(made[0])
    return [None if value is None else read(value) for value in made[1].to_pylist()]


def _coarse_values(array: pa.Array) -> list[Any]:
    kind = _coarse(array.type)
    try:
        return array.cast(kind).to_pylist() if kind != array.type else array.to_pylist()
    except (pa.ArrowInvalid, OverflowError, ValueError):
        if len(array) > 1:
            return [value for row in range(len(array)) for value in _coarse_values(array.slice(row, 1))]
        text = str(array) if pa.types.is_nested(kind) else str(array.cast(pa.string())[0])
        # Also a time after the year 9999.
        return [OpaqueValue(f"pyarrow.{array.type}", text)]


def _coarse(kind: pa.DataType) -> pa.DataType:
    """Return a type whose times count microseconds where they counted nanoseconds, at any depth."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_coarse(each.type)) for each in kind])
    if isinstance(kind, LISTS):
        inner = kind.value_field.with_type(_coarse(kind.value_type))
        if isinstance(kind, pa.FixedSizeListType):
            return pa.list_(inner, kind.list_size)
        return pa.list_(inner) if isinstance(kind, pa.ListType) else pa.large_list(inner)
    if getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


def _as_matrices(array: pa.Array) -> tuple[str, pa.Array] | None:
    """Return lists of lists of fixed sizes in the column type of arrays of their shape; None as `as_kind`."""
    flat, shape = elements_of(array)
    size = prod(shape or ())
    whole = len(flat) == (len(array) - array.null_count) * size and not flat.null_count
    if _scalar_kind(flat.type) in (None, "str") or not whole:
        return None
    kind = f"array:{np.dtype(flat.type.to_pandas_dtype()).name}:{','.join(map(str, shape or ()))}"
    values = flat.cast(kinds.physical_type(kind).value_type)
    return kind, equal_lists(values, size, len(array), array.is_valid().to_numpy(zero_copy_only=False))


def _is_sized(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.FixedSizeListType)


def _scalar_kind(kind: pa.DataType) -> str | None:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return "int"
    if pa.types.is_floating(kind):
        return "float"
    return "str" if kind in (pa.string(), pa.large_string(), pa.string_view()) else None
