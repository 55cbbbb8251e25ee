"""Leaves of a fixed shape: Box, Discrete, MultiDiscrete and MultiBinary, one column each.

A value of shape () is a scalar column; any other is a list in C order; a frame (uint8 with two or more
dimensions) is binary. What Parquet's plain types lack is widened: float16 to float, int8 and uint8 to
int16, uint16 to int32, uint32 to int64. A uint64 keeps its 64 bits and is read as int64, so values of 2^63
and above appear negative to other engines and come back exact here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box, Discrete, MultiBinary, Space

from ..common.arguments import refuse_mask
from ..common.foreign_arrays import as_array
from ..errors import UnsupportedSpaceError
from ..frames import ImageShape, decode_frames, has_chunks
from .arrow import (
    LISTS,
    MAX_OFFSET,
    STORED_DTYPES,
    elements_of,
    equal_binaries,
    equal_lists,
    flat_array,
    mask_of,
    values_of,
)
from .coerce import Cast, Coercion, is_binary, may_round
from .node import Node, RowBuffer, ValueBuffer

_INT64 = np.dtype(np.int64)
_BOOL = np.dtype(np.bool_)
#: Of larger arrays a second copy costs more than what taking their bytes saves.
_SMALL_BYTES = 512


class FixedNode(Node):
    """A leaf whose values all have one dtype and one shape; a batch is an array of shape `(n, *shape)`."""

    def __init__(self, space: Space, column: str, cast: Cast = "no"):
        shape, dtype = space.shape, space.dtype
        native = None if dtype is None else dtype.newbyteorder("=")
        if shape is None or native is None or native.name not in STORED_DTYPES:
            raise UnsupportedSpaceError(
                f"space {space} at '{column}' has dtype {dtype}, which no column type holds exactly. "
                "Expected a boolean, an integer or a float of at most 64 bits.",
                hint="Choose such a dtype, or register a codec with episodelake.register_codec().",
            )
        self.dtype = dtype
        # By name, to get numpy's one object for it: the hot path compares identities first.
        self.native = np.dtype(native.name)
        self.shape = tuple(map(int, shape))
        self.size = int(np.prod(self.shape, dtype=object))
        self.binary = isinstance(space, Box) and self.native == np.uint8 and len(self.shape) >= 2
        self.storage = _storage(space, self.native)
        self.coerce = replace(_coercion(space, column, self.native), cast=cast)
        self.arrow_type = pa.from_numpy_dtype(self.storage)
        column_type = (
            pa.binary() if self.binary else pa.list_(self.arrow_type) if self.shape else self.arrow_type
        )
        max_rows = MAX_OFFSET // max(self.size, 1) if self.shape else MAX_OFFSET
        super().__init__(
            space, column, [pa.field(column, column_type)], self.size * self.native.itemsize, max_rows
        )

    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate an array of shape `(capacity, *shape)`."""
        return FixedBuffer(self, capacity)

    def row_buffer(self, capacity: int) -> RowBuffer:
        """Preallocate rows of bytes for small arrays."""
        small = isinstance(self.space, Box) and self.shape and 0 < self.row_bytes <= _SMALL_BYTES
        return FixedRows(self, capacity) if small else self.buffer(capacity)

    def take(self, value: Any) -> np.ndarray:
        """Return a copy of the value as an array of the space's shape."""
        return self.coerce(value, self.shape).copy()

    def take_many(self, value: Any) -> list[Any]:
        """Return the rows of a stacked copy."""
        if isinstance(value, list | tuple):
            return list(map(self.take, value))
        shape = np.shape(value)
        return list(self._stack(value, shape[0] if shape else 0).copy())

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Stack taken values."""
        stack = np.zeros((len(taken), *self.shape), dtype=self.native)
        for index, value in enumerate(taken):
            if value is not None:
                stack[index] = value
        return [self.to_arrow(stack, mask_of(taken))]

    def encode_many(self, values: Any, length: int) -> list[pa.Array]:
        """Encode an array of shape `(length, *shape)`, or a list of single values."""
        if isinstance(values, list | tuple):
            return self.encode_rows(values, length)
        return [self.to_arrow(self._stack(values, length), None)]

    def adopt(self, array: pa.Array, valid: np.ndarray | None = None) -> pa.Array:
        """Check a column of another program and return it in this leaf's type; see `SpaceCodec.adopt`."""
        count = len(array) if valid is None else int(np.count_nonzero(valid))
        if valid is not None and not isinstance(array.type, LISTS):
            array = array.drop_null()
        flat, inner = elements_of(array)
        if len(array) - array.null_count != count or flat.null_count:
            raise self.mismatch(f"{self.shape} values", "NULL", "each of these rows holds a whole value")
        binary = pa.types.is_binary(flat.type)
        values = self._raw_frames(flat) if binary else flat.to_numpy(zero_copy_only=False)
        if values.size != count * self.size or inner is None or (binary and not self.binary):
            got = f"{array.type} with rows of other sizes" if inner is None else str(array.type)
            raise self.mismatch(f"{self.dtype} of shape {self.shape}", got, "reshape the values")
        stack = values.reshape((count, *self.shape))
        stored = not binary and values.dtype == self.storage and self.storage != self.native
        if stored and not self.coerce.relaxed_for(self.storage):
            stack = self._narrowed(stack)
        return self.spread(self._stack(stack, count), valid)

    def spread(self, stack: np.ndarray, valid: np.ndarray | None) -> pa.Array:
        """Return values of the native dtype as the rows where `valid` is set; the others are NULL."""
        if valid is None:
            return self.to_arrow(stack, None)
        if self.shape:
            return self._rows_to_arrow(stack, len(valid), valid)
        rows = np.zeros(len(valid), stack.dtype)
        rows[valid] = stack
        return self.to_arrow(rows, valid)

    def _narrowed(self, stack: np.ndarray) -> np.ndarray:
        """Values of the type on disk in the space's own."""
        if self.native == np.uint64:
            return stack.view(np.uint64)
        with np.errstate(all="ignore"):
            narrow = stack.astype(self.native)
        if not ((narrow == stack) | (stack != stack)).all():
            raise self.mismatch(f"values of {self.dtype}", "others", "a number does not fit the space")
        return narrow

    def decode(self, arrays: Sequence[Any]) -> np.ndarray:
        """Return a read-only array of shape `(n, *shape)`; it shares Arrow's memory where the types agree."""
        (array,) = arrays
        chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
        if self.binary and len(chunks) > 1 and any(has_chunks(chunk, self.size) for chunk in chunks):
            # An encoded frame may belong to a cell of the part before.
            chunks = [array.combine_chunks()]
        if len(chunks) == 1:
            result = self._from_storage(self._values(chunks[0]), len(chunks[0]))
        else:
            result = np.empty((len(array), *self.shape), dtype=self.dtype)
            start = 0
            for chunk in chunks:
                result[start : start + len(chunk)] = self._from_storage(self._values(chunk), len(chunk))
                start += len(chunk)
        result.flags.writeable = False
        return result

    def row(self, batch: np.ndarray, index: int) -> Any:
        """Return a view of one row: a scalar for Discrete, else an array."""
        return batch[index] if isinstance(self.space, Discrete) else batch[index, ...]

    def stacked(self, batch: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return a view of some rows."""
        return batch[start:stop]

    def to_arrow(self, stack: np.ndarray, valid: np.ndarray | None) -> pa.Array:
        """Turn an array `(n, *shape)` of the native dtype into the column; shares memory if types agree."""
        if valid is not None and valid.all():
            valid = None
        if not self.shape:
            return flat_array(self._to_storage(stack), self.arrow_type, valid)
        # Takes a quarter of the time of `stack[valid]`.
        rows = stack if valid is None else np.compress(valid, stack, axis=0)
        return self._rows_to_arrow(rows, len(stack), valid)

    def gathered(self, array: np.ndarray, rows: np.ndarray, valid: np.ndarray | None) -> pa.Array:
        """Turn chosen rows of an array of the native dtype into the column; only frames share its memory."""
        if self.binary:
            count = int(rows.max(initial=-1)) + 1
            numbers = pa.array(rows, pa.int32(), mask=None if valid is None else ~valid)
            frames = equal_binaries(array[:count].reshape(-1), self.size, count)
            return pa.DictionaryArray.from_arrays(numbers, frames)
        if not self.shape:
            return flat_array(self._to_storage(np.take(array, rows)), self.arrow_type, valid)
        kept = rows if valid is None else rows[valid]
        return self._rows_to_arrow(np.take(array, kept, axis=0), len(rows), valid)

    def _rows_to_arrow(self, rows: np.ndarray, length: int, valid: np.ndarray | None) -> pa.Array:
        """Make the column of `length` rows; `rows` are those that are valid."""
        flat = np.ascontiguousarray(rows).reshape(-1)
        if self.binary:
            return equal_binaries(flat, self.size, length, valid)
        return equal_lists(flat_array(self._to_storage(flat), self.arrow_type), self.size, length, valid)

    def _stack(self, values: Any, length: int) -> np.ndarray:
        return self.coerce(values, (length, *self.shape))

    def _to_storage(self, flat: np.ndarray) -> np.ndarray:
        if flat.dtype == np.uint64:
            return np.ascontiguousarray(flat).view(_INT64)
        return flat.astype(self.storage, copy=False)

    def _from_storage(self, flat: np.ndarray, length: int) -> np.ndarray:
        if self.native == np.uint64:
            flat = flat.view(np.uint64)
        return flat.astype(self.dtype, copy=False).reshape((length, *self.shape))

    def _values(self, array: pa.Array) -> np.ndarray:
        """Return the flat values of one chunk as numpy, after checking that every row has its size."""
        if array.null_count:
            raise self.corrupt(f"{array.null_count} of {len(array)} rows are NULL")
        if self.binary:
            encoded = has_chunks(array, self.size)
            return self._decoded(array).reshape(-1) if encoded else self._raw_frames(array)
        if self.shape:
            self._check_sizes(np.diff(values_of(array.offsets)))
            array = array.flatten()
            if array.null_count:
                raise self.corrupt(f"{array.null_count} elements are NULL")
        return values_of(array)

    def frames_at(self, cells: pa.ChunkedArray, rows: np.ndarray) -> np.ndarray:
        """Return some rows of a column; of encoded frames only what these need is decoded.

        Args:
            cells: the column, from a row on that needs none before it.
            rows: of the cells, in any order.

        Returns:
            Shape `(len(rows), *shape)`.

        Raises:
            CorruptStoreError: a cell is NULL, or neither a frame nor a part of an encoded one.
        """
        chosen = pa.array(rows)
        if self.binary and any(has_chunks(chunk, self.size) for chunk in cells.chunks):
            if not values_of(cells.is_valid().take(chosen)).all():
                raise self.corrupt("a row is NULL")
            return self._decoded(cells.combine_chunks(), rows)
        return self.decode([cells.take(chosen)])

    def _decoded(self, cells: pa.Array, rows: np.ndarray | None = None) -> np.ndarray:
        try:
            return decode_frames(cells, ImageShape(self.shape), rows)
        except ValueError as error:
            raise self.corrupt(str(error)) from error

    def _raw_frames(self, array: pa.Array) -> np.ndarray:
        if not len(array):
            return np.empty(0, dtype=np.uint8)
        total = len(array) * self.size
        _, offset_buffer, data = array.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
        self._check_sizes(np.diff(offsets))
        if not total:
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(data, dtype=np.uint8, count=total, offset=int(offsets[0]))

    def _check_sizes(self, sizes: np.ndarray) -> None:
        if not (sizes == self.size).all():
            raise self.corrupt(
                f"found a row of {int(sizes[sizes != self.size][0])} elements instead of {self.size}"
            )


class FixedBuffer(ValueBuffer):
    """Rows of a fixed leaf in one array of shape `(capacity, *shape)`, `array`."""

    def __init__(self, node: FixedNode, capacity: int):
        self._node = node
        self.array = np.zeros((capacity, *node.shape), dtype=node.native)
        # Dtypes of batches that are known to cast safely; whether they do depends on nothing else.
        self._safe = set() if isinstance(node.space, MultiBinary) else {self.array.dtype}
        # The one of the last batch, if it is such: hashing a dtype takes as long as copying some values.
        self._last: np.dtype | None = None
        if isinstance(node.space, Discrete):
            self.put = _scalar_put(node, self.array)
        elif isinstance(node.space, MultiBinary):
            self.put = _binary_put(node, self.array)
        elif node.shape == () and node.native == np.float64:
            self.put = _double_put(node, self.array)
        else:
            self.put = _array_put(node, self.array)

    def values(self, start: int, stop: int) -> np.ndarray:
        """See `RowBuffer.values`."""
        return self.array[start:stop]

    def arrays(self, start: int, stop: int, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.arrays`; shares memory unless the type is widened or a row is NULL."""
        return [self._node.to_arrow(self.array[start:stop], valid)]

    def put_many(self, start: int, values: Any, length: int, chosen: np.ndarray | None = None) -> None:
        """See `ValueBuffer.put_many`."""
        if chosen is not None:
            refuse_mask(values, f"column '{self._node.column}'")
            values = as_array(values)[chosen]
        shape = (length, *self._node.shape)
        if values.__class__ is not np.ndarray:
            self.array[start : start + length] = self._node.coerce(values, shape)
        elif values.shape == shape and (values.dtype is self._last or values.dtype in self._safe):
            self._last = values.dtype
            self.array[start : start + length] = values
        else:
            self.array[start : start + length] = self._node.coerce(values, shape)
            dtype, own = values.dtype, self.array.dtype
            exact = np.can_cast(dtype, own) and not may_round(dtype, own)
            if exact and not isinstance(self._node.space, MultiBinary):
                self._safe.add(dtype)

    def copy_rows(self, into: np.ndarray, source: ValueBuffer, rows: np.ndarray) -> None:
        """See `ValueBuffer.copy_rows`."""
        assert isinstance(source, FixedBuffer)
        self.array[into] = source.array[rows]

    def gather(self, rows: np.ndarray, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.gather`."""
        return [self._node.gathered(self.array, rows, valid)]


class FixedRows(RowBuffer):
    """Rows of a small fixed leaf as bytes: taking those costs a third of assigning to a row of an array."""

    def __init__(self, node: FixedNode, capacity: int):
        self._node = node
        self._rows = [bytes(node.row_bytes)] * capacity
        self.plain = self._rows, node.native, node.shape
        self.put = _bytes_put(node, self._rows)

    def values(self, start: int, stop: int) -> np.ndarray:
        """See `RowBuffer.values`; a copy, read-only."""
        rows = self._rows[start:stop]
        return np.ndarray((len(rows), *self._node.shape), self._node.native, b"".join(rows))

    def arrays(self, start: int, stop: int, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `RowBuffer.arrays`; shares no memory."""
        return [self._node.to_arrow(self.values(start, stop), valid)]


def _bytes_put(node: FixedNode, rows: list[bytes]) -> Callable[[int, Any], None]:
    # The hot path of recording: three comparisons of what is nearly always the same, then one copy.
    ndarray, dtype, shape, coerce = np.ndarray, node.native, node.shape, node.coerce

    def put(index: int, value: Any) -> None:
        if (
            value.__class__ is ndarray
            and value.shape == shape
            and (value.dtype is dtype or value.dtype == dtype)
        ):
            rows[index] = value.tobytes()
        else:
            rows[index] = coerce(value, shape).tobytes()

    return put


def _array_put(node: FixedNode, array: np.ndarray) -> Callable[[int, Any], None]:
    ndarray, dtype, shape, coerce = np.ndarray, array.dtype, node.shape, node.coerce

    def put(index: int, value: Any) -> None:
        if (
            value.__class__ is ndarray
            and value.shape == shape
            and (value.dtype is dtype or value.dtype == dtype)
        ):
            array[index] = value
        else:
            array[index] = coerce(value, shape)

    return put


def _double_put(node: FixedNode, array: np.ndarray) -> Callable[[int, Any], None]:
    # Rewards are such a leaf: nearly always a Python float, or numpy's equal of it.
    # A memoryview takes a float in half the time of an array.
    double, coerce, numbers = np.float64, node.coerce, array.data

    def put(index: int, value: Any) -> None:
        kind = value.__class__
        if kind is float or kind is double:
            numbers[index] = value
        else:
            array[index] = coerce(value, ())

    return put


def _binary_put(node: FixedNode, array: np.ndarray) -> Callable[[int, Any], None]:
    put_array, coerce, shape = _array_put(node, array), node.coerce, node.shape

    def put(index: int, value: Any) -> None:
        if value.__class__ is np.ndarray and value.dtype == np.int8 and is_binary(value):
            put_array(index, value)
        else:
            array[index] = coerce(value, shape)

    return put


def _scalar_put(node: FixedNode, array: np.ndarray) -> Callable[[int, Any], None]:
    scalar, coerce = array.dtype.type, node.coerce

    def put(index: int, value: Any) -> None:
        kind = value.__class__
        if kind is scalar:
            array[index] = value
        elif kind is int:
            try:
                array[index] = value
            except OverflowError:
                array[index] = coerce(value, ())
        else:
            array[index] = coerce(value, ())

    return put


def _storage(space: Space, native: np.dtype) -> np.dtype:
    if isinstance(space, MultiBinary):
        return _BOOL
    return np.dtype(STORED_DTYPES[native.name]) if isinstance(space, Box) else _INT64


def _coercion(space: Space, column: str, native: np.dtype) -> Coercion:
    if isinstance(space, MultiBinary):
        return Coercion(column, native, "biuf", "biuf", any_width=True, binary=True)
    if isinstance(space, Discrete):
        return Coercion(column, native, "iu", "biu")
    plain = {"b": "b", "f": "biuf"}.get(native.kind, "biu")
    return Coercion(column, native, "biuf", plain)
