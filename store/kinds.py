"""Typed columns for loose values.

Each key of an info, policy, metadata or user mapping becomes a column as soon as its values share one
*kind*. A kind is a short text kept in the table's column metadata; with the physical type it says how to
turn a cell back into the very value that was recorded:

    bool  int  float  str                   Python scalars (numpy scalars come back as these)
    list:bool  list:int  list:float  list:str
    array:float32:*                         a one-dimensional array of any length
    array:int8:3,4                          an array of one fixed shape, flattened in C order

Values of another kind than the column's go to the JSON column of their family (`info._json`, ...), and
`merge` puts both together again. NULL in a column means that the key was absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import CorruptStoreError
from .names import has_utf8

KIND_KEY = b"kind"
JSON_KIND = "json"
_EXACT_IN_DOUBLE = 2**53
_ARRAY_KIND = re.compile(r"array:(\w+):(\*|(?:[0-9]{1,10}(?:,[0-9]{1,10}){0,63})?)")
_MOST_ELEMENTS = 2**31
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

_SCALARS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
}
_SCALAR_OF_TYPE: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str", np.bool_: "bool"}
_SCALAR_OF_TYPE |= {np.dtype(code).type: "int" for code in "bhilqBHIL"}
_SCALAR_OF_TYPE |= {np.dtype(code).type: "float" for code in "efd"}
_ARRAY_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    **dict.fromkeys(("int8", "uint8", "int16"), pa.int16()),
    **dict.fromkeys(("uint16", "int32"), pa.int32()),
    **dict.fromkeys(("uint32", "int64"), pa.int64()),
    **dict.fromkeys(("float16", "float32"), pa.float32()),
    "float64": pa.float64(),
}


def kind_of(value: Any) -> str | None:
    """The kind of a frozen value, or None when only JSON can hold it."""
    scalar = _SCALAR_OF_TYPE.get(type(value))
    if scalar is not None:
        return scalar if _fits(scalar, value) else None
    if type(value) is list:
        return _list_kind(value)
    if isinstance(value, np.ndarray) and value.dtype.name in _ARRAY_TYPES and value.dtype.isnative:
        shape = "*" if value.ndim == 1 else ",".join(map(str, value.shape))
        return f"array:{value.dtype.name}:{shape}"
    return None


def _fits(scalar: str, value: Any) -> bool:
    if scalar == "int":
        return _SMALLEST <= int(value) <= _LARGEST
    if scalar == "str":
        return value.isascii() or has_utf8(value)
    return True


def _list_kind(value: list[Any]) -> str | None:
    kinds = {_SCALAR_OF_TYPE.get(kind) for kind in set(map(type, value))}
    if len(kinds) != 1 or None in kinds or any(isinstance(item, np.generic) for item in value):
        return None
    (scalar,) = kinds
    assert scalar is not None
    return f"list:{scalar}" if all(_fits(scalar, item) for item in value) else None


def physical_type(kind: str) -> pa.DataType:
    """The column type on disk of a kind; `json` is a string column."""
    family, _, rest = kind.partition(":")
    if kind == JSON_KIND:
        return pa.string()
    if kind in _SCALARS:
        return _SCALARS[kind]
    if family == "list" and rest in _SCALARS:
        return pa.list_(_SCALARS[rest])
    dtype, shape = array_parts(kind)
    physical = _ARRAY_TYPES[dtype.name]
    return physical if shape == () else pa.list_(physical)


@lru_cache
def array_parts(kind: str) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape of an array kind; a shape of (-1,) takes any length.

    Raises:
        CorruptStoreError: it is no kind of format 1.
    """
    found = _ARRAY_KIND.fullmatch(kind)
    if found is not None and found[1] in _ARRAY_TYPES:
        shape = (-1,) if found[2] == "*" else tuple(int(size) for size in found[2].split(",") if size)
        if prod(shape) <= _MOST_ELEMENTS:
            return np.dtype(found[1]), shape
    shown = kind if len(kind) < 100 else f"{kind[:97]}..."
    raise CorruptStoreError(f"A column is marked with the unknown kind {shown!r}; expected one of format 1.")


def field(name: str, kind: str) -> pa.Field:
    """The schema field of a loose column; its kind travels in the field's metadata."""
    return pa.field(name, physical_type(kind), metadata={KIND_KEY: kind.encode()})


def field_kind(column: pa.Field) -> str | None:
    """The kind that a schema field carries, or None for a column that is not loose."""
    found = (column.metadata or {}).get(KIND_KEY)
    return None if found is None else found.decode()


def accepts(kind: str, value: Any) -> bool:
    """Whether a column of this kind holds the value exactly (an int fits a float column up to 2**53)."""
    own = kind_of(value)
    if own == kind:
        return True
    if kind == "float" and own == "int":
        return abs(int(value)) <= _EXACT_IN_DOUBLE
    return kind.startswith("list:") and type(value) is list and not value


def common_kind(values: Iterable[Any]) -> str | None:
    """The kind for a new column: that of the first value that has one, int widened to float if both occur."""
    first = None
    for value in values:
        kind = kind_of(value)
        if kind is None:
            continue
        if first is None:
            first = kind
        elif first == "int" and kind == "float":
            return "float"
        if first not in ("int",):
            return first
    return first


def build(kind: str, values: Sequence[Any]) -> pa.Array:
    """The physical column of `values`, each of which the kind accepts or is None (absent)."""
    physical = physical_type(kind)
    if kind.startswith("array:"):
        if not pa.types.is_list(physical):
            values = [None if value is None else value.item() for value in values]
        else:
            flat = physical.value_type.to_pandas_dtype()
            values = [None if value is None else value.reshape(-1).astype(flat) for value in values]
    return pa.array(values, physical)


def uniform_kind(values: Sequence[Any]) -> str | None:
    """The kind that every value of a batch of scalars has, or None if that is not plain at a glance."""
    found = {_SCALAR_OF_TYPE.get(own) for own in set(map(type, values))}
    if len(found) != 1:
        return None
    (kind,) = found
    if kind == "int" and not (min(values) >= _SMALLEST and max(values) <= _LARGEST):
        return None
    if kind == "str" and not all(map(str.isascii, values)):
        return None
    return kind


def batch_kind(values: np.ndarray) -> str | None:
    """The kind that each element `values[i]` of an array of numbers has, or None if that is not plain."""
    if values.dtype.name not in _ARRAY_TYPES or not values.dtype.isnative:
        return None
    if values.ndim == 1:
        return _SCALAR_OF_TYPE[values.dtype.type]
    shape = "*" if values.ndim == 2 else ",".join(map(str, values.shape[1:]))
    return f"array:{values.dtype.name}:{shape}"


def reader(kind: str) -> Callable[[Any], Any]:
    """A function from a cell's Python value to the recorded value.

    The function raises ValueError, TypeError or OverflowError where the cell cannot have been recorded under
    this kind.

    Raises:
        CorruptStoreError: it is no kind of format 1.
    """
    if not kind.startswith("array:"):
        return lambda cell: cell
    dtype, shape = array_parts(kind)

    def read(cell: Any) -> np.ndarray:
        if type(cell) is list and None in cell:
            raise ValueError("an element of an array is NULL")
        return np.asarray(cell, dtype).reshape(shape)

    return read


def flatten(mapping: Mapping[Any, Any], path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """Yield `(path, value)` for each leaf of nested dictionaries; an empty one is a leaf."""
    for key, value in mapping.items():
        if type(value) is dict and value and type(key) is str and all(type(k) is str for k in value):
            yield from flatten(value, (*path, key))
        else:
            yield (*path, key), value


def nest(target: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    """Set `value` at `path` in nested dictionaries, creating them on the way."""
    for key in path[:-1]:
        target = target.setdefault(key, {})
    last = path[-1]
    if isinstance(value, dict) and isinstance(target.get(last), dict):
        for key, item in value.items():
            nest(target[last], (key,), item)
    else:
        target[last] = value
