"""The shape of a codec: a tree of nodes that mirrors the tree of spaces.

Every kind of space has a node class that owns its columns and knows four forms of its values:

- a *single value*, as Gymnasium passes it;
- a *taken value*, the same, checked, in the space's dtype and owned by us (never None, which is a NULL row);
- *Arrow arrays*, one per column;
- a *decoded batch*: an array for fixed leaves, a nest of batches for Dict and Tuple, else a list.

Data runs single -> taken (or straight into a buffer) -> Arrow on the way in, and Arrow -> batch -> single
on the way back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Space

from ..errors import CorruptStoreError, SpaceMismatchError, UnsupportedSpaceError
from .arrow import MAX_OFFSET

MAX_DEPTH = 64
"""The maximum nesting depth of spaces."""
RAGGED_ROW_BYTES = 64
"""The size of a ragged value in `row_bytes`; its true size is known only with the value."""


class ValueBuffer(ABC):
    """Preallocated rows of the values of one space.

    `put(index, value)` copies one value into a row. It raises `SpaceMismatchError` if the value does not
    fit; the row is then undefined and may be put again. Rows that were never put hold zeros (or nothing,
    for ragged spaces).
    """

    put: Callable[[int, Any], None]

    @property
    def values(self) -> Any:
        """All rows without a copy: an array for fixed leaves, a nest of arrays for Dict and Tuple.

        Raises:
            UnsupportedSpaceError: the space is ragged.
        """
        raise UnsupportedSpaceError(f"{type(self).__name__} has no arrays: its values have no fixed shape.")

    @abstractmethod
    def arrays(self, start: int, stop: int, valid: np.ndarray | None = None) -> list[pa.Array]:
        """Return rows [start, stop) as Arrow arrays, one per field.

        Args:
            start: the first row.
            stop: the row after the last.
            valid: bool, shape (stop - start,); a row that is False there becomes NULL. None: all are valid.

        The arrays may share memory with the buffer: a row that they show must not be put again while they
        live. Rows outside of them may.
        """

    @abstractmethod
    def put_many(self, start: int, values: Any, length: int, chosen: np.ndarray | None = None) -> None:
        """Copy a batch of values into rows [start, start + length).

        Args:
            start: the first row.
            values: as Gymnasium's vector environments pass them: for fixed leaves an array of shape
                (length, *shape); for Dict and Tuple a dict or tuple of the children's batches; for ragged
                spaces a sequence of single values. A *list* of single values is taken for every space.
            length: how many rows.
            chosen: int64, shape (length,): put only these values of the batch.

        Raises:
            SpaceMismatchError: names the column; the rows are then undefined and may be put again.
        """

    @abstractmethod
    def copy_rows(self, into: np.ndarray, source: ValueBuffer, rows: np.ndarray) -> None:
        """Copy `rows` of another buffer of the same space into the rows `into`; both int64, of one length."""

    @abstractmethod
    def gather(self, rows: np.ndarray, valid: np.ndarray | None = None) -> list[pa.Array]:
        """Return the given rows, in this order, as Arrow arrays that share no memory with the buffer.

        Args:
            rows: row numbers, int64.
            valid: bool, one for each of them; where it is False the row becomes NULL.
        """


class Node(ABC):
    """One space of the tree: its columns, and its values in all their forms."""

    def __init__(self, space: Space, column: str, fields: Sequence[pa.Field], row_bytes: int, max_rows: int):
        self.space = space
        self.column = column
        self.fields = tuple(fields)
        #: The columns with a value in every row that has a value of the space.
        self.required = self.fields
        self.row_bytes = row_bytes
        self.max_rows = max_rows

    @abstractmethod
    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate rows for `capacity` values."""

    @abstractmethod
    def take(self, value: Any) -> Any:
        """Check one value and return an owned copy in canonical form."""

    @abstractmethod
    def take_many(self, value: Any) -> list[Any]:
        """Check a stacked value, such as a stacked Sequence holds, and return its elements taken."""

    @abstractmethod
    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Turn taken values into columns; None becomes a NULL row."""

    @abstractmethod
    def encode_many(self, values: Any, length: int) -> list[pa.Array]:
        """Check a batch of `length` values and turn it into columns, which may share its memory."""

    @abstractmethod
    def decode(self, arrays: Sequence[Any]) -> Any:
        """Turn columns without NULL rows into a batch."""

    @abstractmethod
    def row(self, batch: Any, index: int) -> Any:
        """Return one single value of a batch."""

    @abstractmethod
    def stacked(self, batch: Any, start: int, stop: int) -> Any:
        """Return rows [start, stop) of a batch in the form in which Gymnasium stacks them."""

    def mismatch(self, expected: str, got: str, hint: str) -> SpaceMismatchError:
        """Make the error for a value that does not fit here."""
        return SpaceMismatchError(f"column '{self.column}': expected {expected}, got {got}. Hint: {hint}.")

    def corrupt(self, problem: str) -> CorruptStoreError:
        """Make the error for columns that cannot have come from this codec."""
        return CorruptStoreError(
            f"column '{self.column}': {problem}, expected values of {self.space}. "
            "Hint: the file is damaged or was written by something else."
        )

    def encode_rows(self, values: Sequence[Any], length: int) -> list[pa.Array]:
        """Encode a plain sequence of single values, one put at a time."""
        self.check_length(len(values), length)
        buffer = self.buffer(length)
        put = buffer.put
        for index, value in enumerate(values):
            put(index, value)
        return buffer.arrays(0, length)

    def check_length(self, got: int, expected: int) -> None:
        """Refuse a batch of the wrong number of values."""
        if got != expected:
            raise self.mismatch(f"{expected} values", f"{got}", "give one value for each row")


def cut_arrays(nodes: Iterable[Node], arrays: Iterable[Any]) -> list[list[Any]]:
    """Return the arrays of each node, from those of all nodes one behind the other."""
    given = iter(arrays)
    return [list(islice(given, len(node.fields))) for node in nodes]


def encode_parts(nodes: Iterable[Node], taken: list[Any]) -> list[pa.Array]:
    """Encode taken values that consist of one part for each node; None becomes a NULL row."""
    return [
        array
        for index, node in enumerate(nodes)
        for array in node.encode([None if parts is None else parts[index] for parts in taken])
    ]


class RaggedBuffer(ValueBuffer):
    """Rows of a ragged space: a list of taken values, encoded when they are asked for."""

    def __init__(self, node: RaggedNode, capacity: int):
        self._node = node
        self._rows: list[Any] = [None] * capacity
        rows, take = self._rows, node.take

        def put(index: int, value: Any) -> None:
            rows[index] = take(value)

        self.put = put

    def arrays(self, start: int, stop: int, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.arrays`; these arrays are copies."""
        return self._encode(self._rows[start:stop], valid)

    def put_many(self, start: int, values: Any, length: int, chosen: np.ndarray | None = None) -> None:
        """See `ValueBuffer.put_many`."""
        if chosen is not None:
            values = [values[index] for index in chosen.tolist()]
        self._rows[start : start + length] = self._node.take_batch(values, length)

    def copy_rows(self, into: np.ndarray, source: ValueBuffer, rows: np.ndarray) -> None:
        """See `ValueBuffer.copy_rows`; taken values never change, so they are shared."""
        assert isinstance(source, RaggedBuffer)
        for target, row in zip(into.tolist(), rows.tolist(), strict=True):
            self._rows[target] = source._rows[row]

    def gather(self, rows: np.ndarray, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.gather`."""
        return self._encode([self._rows[row] for row in rows.tolist()], valid)

    def _encode(self, rows: list[Any], valid: np.ndarray | None) -> list[pa.Array]:
        if valid is not None:
            rows = [row if keep else None for row, keep in zip(rows, valid.tolist(), strict=True)]
        return self._node.encode(rows)


class RaggedNode(Node):
    """A space whose values differ in size or kind; a batch of them is a list."""

    plural: ClassVar[str] = "a list with one value for each row"

    def __init__(self, space: Space, column: str, fields: Sequence[pa.Field]):
        super().__init__(space, column, fields, RAGGED_ROW_BYTES, MAX_OFFSET)

    @abstractmethod
    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[Any]:
        """Decode arrays that are not chunked."""

    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate a list of `capacity` rows."""
        return RaggedBuffer(self, capacity)

    def take_many(self, value: Any) -> list[Any]:
        """Take the elements of the tuple that Gymnasium makes of values it cannot stack."""
        if not isinstance(value, tuple | list):
            raise self.mismatch(
                "a tuple of values", describe(value), f"{self.space} cannot be stacked in an array"
            )
        return list(map(self.take, value))

    def encode_many(self, values: Any, length: int) -> list[pa.Array]:
        """Encode a list (or tuple, or one-dimensional array) of single values."""
        return self.encode(self.take_batch(values, length))

    def take_batch(self, values: Any, length: int) -> list[Any]:
        """Take each value of a list (or tuple, or one-dimensional array) of `length` single values."""
        if not isinstance(values, list | tuple | np.ndarray) or (
            isinstance(values, np.ndarray) and not values.ndim
        ):
            raise self.mismatch(self.plural, describe(values), f"{self.space} has no stacked form")
        self.check_length(len(values), length)
        return list(map(self.take, values))

    def decode(self, arrays: Sequence[Any]) -> list[Any]:
        """Decode into a list of single values; chunks may be cut anywhere."""
        if not any(isinstance(array, pa.ChunkedArray) for array in arrays):
            return self.decode_plain(arrays)
        table = pa.Table.from_arrays(list(arrays), names=[str(index) for index in range(len(arrays))])
        values: list[Any] = []
        for batch in table.to_batches():
            values.extend(self.decode_plain(batch.columns))
        return values

    def row(self, batch: list[Any], index: int) -> Any:
        """Return the value itself."""
        return batch[index]

    def stacked(self, batch: list[Any], start: int, stop: int) -> tuple[Any, ...]:
        """Return the values as a tuple."""
        return tuple(batch[start:stop])


def describe(value: Any) -> str:
    """Say what a value is, for a message: dtype and shape if it has them, else its type."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__


def decode_where(node: Node, arrays: Sequence[pa.Array], chosen: np.ndarray) -> list[Any]:
    """Decode only the chosen rows; the others are None."""
    mask = pa.array(chosen)
    batch = node.decode([array.filter(mask) for array in arrays])
    positions = iter(range(int(chosen.sum())))
    return [node.row(batch, next(positions)) if here else None for here in chosen.tolist()]
