"""Numpy buffers to Arrow arrays, without a copy where the layouts agree.

Arrow's own conversions either copy or look at every value. Here the arrays are put together from their
buffers: the data buffer is the numpy memory itself, which the Arrow array keeps alive.
A NULL list or binary value always has length zero, because Parquet refuses any other.
The codec nodes stand on this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError

LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
#: The type of frames chosen from a buffer and not copied yet: the rows' numbers, and the buffer.
UNGATHERED = pa.dictionary(pa.int32(), pa.binary())
MAX_OFFSET = 2**31 - 1
"""The largest offset that a plain Arrow list or binary array can hold (elements or bytes)."""


def flat_array(values: np.ndarray, arrow_type: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Wrap a one-dimensional numpy array of the matching dtype; shares its memory, except for booleans."""
    data = (
        np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    )
    return pa.Array.from_buffers(arrow_type, len(values), [_validity(valid), pa.py_buffer(data)])


def values_of(array: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return numbers or booleans as numpy, those in the place of NULLs undefined.

    Shares memory, except for booleans and several chunks. `to_numpy` and `pa.array` would import pandas
    where it is installed, which takes a quarter of a second.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    data, stop = array.buffers()[1], array.offset + len(array)
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=stop, bitorder="little")
        return bits[array.offset :].view(np.bool_)
    return np.from_dlpack(pa.Array.from_buffers(array.type, len(array), [None, data], offset=array.offset))


def equal_lists(values: pa.Array, size: int, length: int, valid: np.ndarray | None = None) -> pa.Array:
    """Make a list array of `length` rows, each of `size` values; NULL rows own none of the values."""
    offsets = _equal_offsets(size, length, valid)
    return list_array(offsets, values, valid)


def equal_binaries(data: np.ndarray, size: int, length: int, valid: np.ndarray | None = None) -> pa.Array:
    """Make a binary array of `length` rows, each of `size` bytes of `data` (uint8, contiguous; shared)."""
    offsets = _equal_offsets(size, length, valid)
    buffers = [_validity(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), length, buffers)


def list_array(offsets: np.ndarray, values: pa.Array, valid: np.ndarray | None = None) -> pa.Array:
    """Make a list array from int32 offsets (one more than rows) and the values they cut."""
    buffers = [_validity(valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), len(offsets) - 1, buffers, children=[values])


def elements_of(array: pa.Array) -> tuple[pa.Array, tuple[int, ...] | None]:
    """Take the lists of an array apart: all elements, and the shape of each row; None if these differ.

    NULL rows of lists are skipped.
    Dictionaries and extension types are read as what they hold, binary values of any width as binary.
    """
    import pyarrow.compute as pc

    shape: list[int] = []
    regular = True
    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(kind):
            array = array.dictionary_decode()
        elif (
            pa.types.is_large_binary(kind)
            or pa.types.is_binary_view(kind)
            or pa.types.is_fixed_size_binary(kind)
        ):
            array = array.cast(pa.binary())
        elif isinstance(kind, pa.FixedSizeListType):
            shape.append(kind.list_size if array.null_count < len(array) else 0)
            array = array.flatten()
        elif isinstance(kind, LISTS):
            sizes = pc.call_function("list_value_length", [array]).drop_null().to_numpy()
            shape.append(int(sizes[0]) if len(sizes) else 0)
            regular = regular and bool((sizes == shape[-1]).all())
            array = pc.call_function("list_flatten", [array])
        else:
            return array, tuple(shape) if regular else None


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without views, dictionaries and runs at any depth: Arrow can take from it and cast it."""
    if pa.types.is_primitive(kind):  # most
        return kind
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(plain_type(each.type)) for each in kind])
    if isinstance(kind, LISTS):
        inner = kind.value_field.with_type(plain_type(kind.value_type))
        if isinstance(kind, pa.ListViewType | pa.LargeListViewType):
            return pa.large_list(inner)
        if isinstance(kind, pa.FixedSizeListType):
            return pa.list_(inner, kind.list_size)
        return pa.list_(inner) if isinstance(kind, pa.ListType) else pa.large_list(inner)
    return kind


def plain_array(array: pa.Array) -> pa.Array:
    """Return the values of an array as those of `plain_type`; the array itself where it has that already."""
    kind = plain_type(array.type)
    if kind == array.type:
        return array
    # The values of these two first: Arrow takes nothing from a view (pyarrow 26).
    if pa.types.is_run_end_encoded(array.type):
        positions = array.offset + np.arange(len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), positions, side="right")
        return plain_array(array.values).take(pa.array(runs))
    if pa.types.is_dictionary(array.type):
        values = plain_array(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
    if pa.types.is_struct(array.type):
        # Arrow casts no dictionary in a struct.
        parts = [plain_array(part) for part in array.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if isinstance(array.type, pa.FixedSizeListType):
        size = array.type.list_size
        values = plain_array(array.values.slice(array.offset * size, len(array) * size))
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=array.is_null())
    if isinstance(array.type, LISTS):
        import pyarrow.compute as pc

        # Not by a cast, which gives other values for views (pyarrow 26).
        sizes = pc.call_function("list_value_length", [array]).fill_null(0).to_numpy()
        values = plain_array(pc.call_function("list_flatten", [array]))
        short = isinstance(kind, pa.ListType)
        made, width = (pa.ListArray, pa.int32()) if short else (pa.LargeListArray, pa.int64())
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), width)
        return made.from_arrays(offsets, values, type=kind, mask=array.is_null())
    return array.cast(kind)


def plain_table(rows: pa.Table) -> pa.Table:
    """Return rows with the columns of `plain_array`; the rows themselves where they have those already."""
    for index, field in enumerate(rows.schema):
        if plain_type(field.type) != field.type:
            chunks = [plain_array(chunk) for chunk in rows.column(index).chunks]
            kind = plain_type(field.type)
            rows = rows.set_column(index, field.with_type(kind), pa.chunked_array(chunks, kind))
    return rows


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the int32 offsets of rows with these lengths.

    Raises:
        InvalidArgumentError: the lengths add up to more than an Arrow array can hold.
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    check_total(int(offsets[-1]))
    return offsets.astype(np.int32)


def check_total(total: int) -> None:
    """Refuse more elements or bytes than the offsets of one plain Arrow array reach.

    Raises:
        InvalidArgumentError: `total` is above 2^31 - 1.
    """
    if total > MAX_OFFSET:
        raise InvalidArgumentError(
            f"cannot put {total} elements into one Arrow array: expected at most {MAX_OFFSET}.",
            hint="Encode fewer rows at a time (SpaceCodec.max_rows).",
        )


def mask_of(rows: list) -> np.ndarray | None:
    """Return which rows are not None, or None when all are there."""
    valid = np.fromiter((row is not None for row in rows), dtype=np.bool_, count=len(rows))
    return None if valid.all() else valid


def _equal_offsets(size: int, length: int, valid: np.ndarray | None) -> np.ndarray:
    if valid is not None:
        return offsets_of(np.where(valid, size, 0))
    check_total(size * length)
    return np.arange(length + 1, dtype=np.int32) * np.int32(size)


def _validity(valid: np.ndarray | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


#: Types that values of spaces have.
PLAIN_TYPES = (
    pa.bool_(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
)
STORED_TYPES = (*PLAIN_TYPES, pa.timestamp("us", "UTC"))


#: The dtypes in which values are stored: what Parquet's plain types lack is widened.
STORED_DTYPES: dict[str, str] = {
    **{name: name for name in ("bool", "int16", "int32", "int64", "float32", "float64")},
    **{"int8": "int16", "uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "int64"},
    "float16": "float32",
}


def inner_type(kind: Any) -> Any:
    """Return the type of what a list, or a list of lists, holds; any other type as it is."""
    while isinstance(kind, pa.ListType):
        kind = kind.value_type
    return kind
