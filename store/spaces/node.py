"""The shape of a codec, a tree of nodes that mirrors the tree of spaces; and codecs registered for others.

Every kind of space has a node class that owns its columns and knows four forms of its values:

- a *single value*, as Gymnasium passes it;
- a *taken value*, the same, checked, in the space's dtype and owned by us (never None, which is a NULL row);
- *Arrow arrays*, one per column;
- a *decoded batch*: an array for fixed leaves, a nest of batches for Dict and Tuple, else a list.

Data runs single -> taken (or straight into a buffer) -> Arrow on the way in, and Arrow -> batch -> single
on the way back.

`register_codec` binds a codec to a class of spaces for this process. A store keeps only the name of the
class and what the codec's `to_json` says about the space; opening it needs the codec registered again.
Nothing is ever imported by a name that stands in a store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from gymnasium.spaces import Space

from ..errors import CorruptStoreError, InvalidArgumentError, SpaceMismatchError, UnsupportedSpaceError
from ..names import has_utf8

MAX_DEPTH = 64
"""The maximum nesting depth of spaces."""
"""The size of a ragged value in `row_bytes`; its true size is known only with the value."""


class RowBuffer(ABC):
    """Preallocated rows of the values of one space that come one at a time.

    `put(index, value)` copies one value into a row. It raises `SpaceMismatchError` if the value does not
    fit; the row is then undefined and may be put again. Rows that were never put hold zeros (or nothing,
    for ragged spaces).
    """

    put: Callable[[int, Any], None]
    #: The rows, and the dtype and shape of arrays whose bytes a caller may put there itself.
    plain: tuple[list[bytes], np.dtype, tuple[int, ...]] | tuple[None, None, None] = None, None, None

    def values(self, start: int, stop: int) -> Any:
        """Return rows [start, stop): an array for fixed leaves, a nest of arrays for Dict and Tuple.

        They may share memory with the buffer.

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


class ValueBuffer(RowBuffer):
    """Preallocated rows of the values of one space that also come in batches."""

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

        Frames alone do: they are `UNGATHERED`, a dictionary of the buffer's rows.

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

    def row_buffer(self, capacity: int) -> RowBuffer:
        """Preallocate rows for `capacity` values that come one at a time."""
        return self.buffer(capacity)

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

    def decode_columns(self, arrays: Sequence[Any]) -> Any:
        """Turn the same columns into a batch whose leaves are arrays and `Lists`; where there is no such
        form, as `decode` does.
        """
        return self.decode(arrays)

    @abstractmethod
    def row(self, batch: Any, index: int) -> Any:
        """Return one single value of a batch."""

    @abstractmethod
    def stacked(self, batch: Any, start: int, stop: int) -> Any:
        """Return rows [start, stop) of a batch in the form in which Gymnasium stacks them."""

    def mismatch(self, expected: str, got: str, hint: str) -> SpaceMismatchError:
        """Make the error for a value that does not fit here."""
        return SpaceMismatchError(
            f"column '{self.column}': expected {expected}, got {got}.",
            hint=f"{hint[0].upper()}{hint[1:]}.",
        )

    def corrupt(self, problem: str) -> CorruptStoreError:
        """Make the error for columns that cannot have come from this codec."""
        return CorruptStoreError(
            f"column '{self.column}': {problem}, expected values of {self.space}.",
            hint="The file is damaged or was written by something else.",
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
    """Return the arrays of each node, from those of all nodes one after the other."""
    given = iter(arrays)
    return [list(islice(given, len(node.fields))) for node in nodes]


def encode_parts(nodes: Iterable[Node], taken: list[Any]) -> list[pa.Array]:
    """Encode taken values that consist of one part for each node; None becomes a NULL row."""
    return [
        array
        for index, node in enumerate(nodes)
        for array in node.encode([None if parts is None else parts[index] for parts in taken])
    ]


def describe(value: Any) -> str:
    """Say what a value is, for a message: dtype and shape if it has them, else its type."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} of shape {value.shape}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__


BUILT_IN: tuple[type[Space], ...] = (
    *(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text),
    *(spaces.Dict, spaces.Tuple, spaces.Sequence, spaces.Graph, spaces.OneOf),
)


@runtime_checkable
class Codec(Protocol):
    """Converts the values of one class of spaces to columns, and back.

    Values of such a space are decoded into a list with one value for each row.
    """

    def fields(self, space: Any) -> dict[str, pa.DataType]:
        """Return the columns: part names relative to the space's column, `""` for that column itself.

        At least one. Types: bool, int16, int32, int64, float32, float64, string, binary, or a list of those.
        """
        ...

    def encode(self, space: Any, value: Any) -> dict[str, Any]:
        """Return a plain Python value for each part, fit for its type (None for NULL); it is copied.

        Raises:
            ValueError, TypeError: the value does not fit the space; the caller gets a `SpaceMismatchError`.
        """
        ...

    def decode(self, space: Any, parts: dict[str, Any]) -> Any:
        """Return the value that `encode` turned into these parts."""
        ...

    def to_json(self, space: Any) -> dict[str, Any]:
        """Return a description to make the space again from, in plain JSON types (no NaN, no infinity)."""
        ...

    def from_json(self, description: dict[str, Any]) -> Any:
        """Return the space that `to_json` described; `description` comes from a file, so check it."""
        ...


_registered: dict[type, Codec] = {}


def register_codec(space_type: type, codec: Codec) -> None:
    """Store spaces of a class of your own with a codec of your own, for the rest of this process.

    Subclasses of `space_type` use it too, unless a codec is registered for a class nearer to them. For a
    subclass of a built-in space (such as Box) the codec takes precedence over the built-in columns.
    Registering a class again replaces its codec. Register before a store is created or opened.

    Args:
        space_type: a subclass of `gymnasium.spaces.Space`, but none of Gymnasium's own spaces.
        codec: an object with the methods of `Codec`.

    Raises:
        InvalidArgumentError: `space_type` is no such class, or `codec` lacks a method.
    """
    if not isinstance(space_type, type) or not issubclass(space_type, Space) or space_type is Space:
        raise InvalidArgumentError(
            f"cannot register a codec for {space_type!r}: expected a subclass of gymnasium.spaces.Space.",
            hint="Pass the class, not an instance.",
        )
    if space_type in BUILT_IN:
        raise InvalidArgumentError(
            f"cannot register a codec for {space_type.__name__}: the columns of Gymnasium's own spaces "
            "belong to the file format.",
            hint="Derive a class from it and register that.",
        )
    if not isinstance(codec, Codec):
        raise InvalidArgumentError(
            f"cannot register {codec!r}: expected an object with the methods fields, encode, decode, "
            "to_json and from_json.",
            hint="See episodelake.Codec.",
        )
    _registered.pop(space_type, None)  # so that the latest stands last
    _registered[space_type] = codec


def find(space: Any, where: str = "") -> tuple[type, Codec | None]:
    """Return the class that decides how `space` is stored, and its codec (None for a built-in).

    Raises:
        UnsupportedSpaceError: there is none; the message names the place, ` at 'column'`.
    """
    for each in type(space).__mro__ if isinstance(space, Space) else ():
        if each in _registered:
            return each, _registered[each]
        if each in BUILT_IN:
            return each, None
    if is_text(space):
        return spaces.Text, None
    raise UnsupportedSpaceError(
        f"space {space!r}{where} ({type(space).__name__}) is of a class without columns. Expected the "
        "spaces of Gymnasium.",
        hint="Register a codec for the class with episodelake.register_codec().",
    )


def is_text(space: Any) -> bool:
    """Return whether the values of a space are texts, as those of Text and of MiniGrid's missions."""
    dtype = getattr(space, "dtype", None) if isinstance(space, Space) else None
    return dtype is not None and np.dtype(dtype).kind == "U"


def check_keys(space: spaces.Dict, where: str = "") -> None:
    """Refuse a Dict space whose keys cannot be column names.

    Raises:
        UnsupportedSpaceError: names the keys and the place, ` at 'column'`.
    """
    wrong = [key for key in space.spaces if not isinstance(key, str) or not has_utf8(key)]
    if wrong:
        raise UnsupportedSpaceError(
            f"space {space}{where} has the keys {wrong}. Expected keys that are text in UTF-8, since they "
            "become column names.",
            hint="Rename the keys with a wrapper, or register a codec with episodelake.register_codec().",
        )


def find_named(name: str) -> Codec | None:
    """Return the codec of the registered class of that name, the latest if there are several."""
    return next(
        (codec for each, codec in reversed(_registered.items()) if qualified_name(each) == name), None
    )


def qualified_name(space_type: type) -> str:
    """Return the name under which a store remembers a class."""
    return f"{space_type.__module__}.{space_type.__qualname__}"
