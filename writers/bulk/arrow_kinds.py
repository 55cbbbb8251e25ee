"""Columns of other programs in the types of dynamic columns, where whole columns can be taken."""

from __future__ import annotations

from math import prod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.dynamic import logical_types as kinds
from ...store.spaces.arrow import LISTS, elements_of, equal_lists


def as_kind(array: pa.Array) -> tuple[str, pa.Array] | None:
    """Return an array in the column type of its kind; None if its values have to be looked at one by one."""
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
