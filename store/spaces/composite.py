"""Dict and Tuple: no columns of their own; a batch is a dict or tuple of the children's batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Space

from ..errors import SpaceMismatchError
from .arrow import MAX_OFFSET
from .node import Node, ValueBuffer, cut_arrays, describe, encode_parts


class CompositeNode(Node):
    """The base of Dict and Tuple: values are taken apart, and each part goes to its child."""

    def __init__(self, space: Space, column: str, children: Sequence[Node]):
        fields = [field for child in children for field in child.fields]
        max_rows = min((child.max_rows for child in children), default=MAX_OFFSET)
        super().__init__(space, column, fields, sum(child.row_bytes for child in children), max_rows)
        self.children = tuple(children)
        self.required = tuple(field for child in children for field in child.required)

    @abstractmethod
    def apart(self, value: Any) -> Sequence[Any]:
        """Check the structure of a value and return its parts in the order of the children."""

    @abstractmethod
    def together(self, parts: Sequence[Any]) -> Any:
        """Make a value of its parts."""

    @abstractmethod
    def put_all(self, puts: Sequence[Callable[[int, Any], None]]) -> Callable[[int, Any], None]:
        """Return the function that puts each part of a value into its child's row."""

    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate a buffer for each child."""
        return CompositeBuffer(self, [child.buffer(capacity) for child in self.children])

    def take(self, value: Any) -> tuple[Any, ...]:
        """Return the taken parts as a tuple."""
        return tuple(child.take(part) for child, part in self._parts(value))

    def _parts(self, value: Any) -> Iterable[tuple[Node, Any]]:
        return zip(self.children, self.apart(value), strict=True)

    def take_many(self, value: Any) -> list[Any]:
        """Return the elements of a stacked value, each a tuple of taken parts."""
        columns = [child.take_many(part) for child, part in self._parts(value)]
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            raise self.mismatch(
                "parts of one length", f"lengths {sorted(lengths)}", "stack every part of each element"
            )
        return list(zip(*columns, strict=True))

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode the parts, child by child."""
        return encode_parts(self.children, taken)

    def encode_many(self, values: Any, length: int) -> list[pa.Array]:
        """Encode a dict or tuple of the children's batches, or a list of single values."""
        if isinstance(values, list):
            return self.encode_rows(values, length)
        return [array for child, part in self._parts(values) for array in child.encode_many(part, length)]

    def decode(self, arrays: Sequence[Any]) -> Any:
        """Return the children's batches, put together."""
        parts = zip(self.children, cut_arrays(self.children, arrays), strict=True)
        return self.together([child.decode(own) for child, own in parts])

    def decode_columns(self, arrays: Sequence[Any]) -> Any:
        """Return the children's batches, put together."""
        parts = zip(self.children, cut_arrays(self.children, arrays), strict=True)
        return self.together([child.decode_columns(own) for child, own in parts])

    def row(self, batch: Any, index: int) -> Any:
        """Return one single value."""
        return self.together([child.row(part, index) for child, part in self._parts(batch)])

    def stacked(self, batch: Any, start: int, stop: int) -> Any:
        """Return the children's stacks, put together."""
        return self.together([child.stacked(part, start, stop) for child, part in self._parts(batch)])


class CompositeBuffer(ValueBuffer):
    """The buffers of the children, side by side."""

    def __init__(self, node: CompositeNode, buffers: Sequence[ValueBuffer]):
        self._node = node
        self._buffers = buffers
        self.put = node.put_all([buffer.put for buffer in buffers])

    def values(self, start: int, stop: int) -> Any:
        """See `RowBuffer.values`."""
        return self._node.together([buffer.values(start, stop) for buffer in self._buffers])

    def arrays(self, start: int, stop: int, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.arrays`."""
        return [array for buffer in self._buffers for array in buffer.arrays(start, stop, valid)]

    def put_many(self, start: int, values: Any, length: int, chosen: np.ndarray | None = None) -> None:
        """See `ValueBuffer.put_many`."""
        if isinstance(values, list):
            values = values if chosen is None else [values[index] for index in chosen.tolist()]
            self._node.check_length(len(values), length)
            for row, value in enumerate(values, start):
                self.put(row, value)
            return
        for buffer, part in zip(self._buffers, self._node.apart(values), strict=True):
            buffer.put_many(start, part, length, chosen)

    def copy_rows(self, into: np.ndarray, source: ValueBuffer, rows: np.ndarray) -> None:
        """See `ValueBuffer.copy_rows`."""
        assert isinstance(source, CompositeBuffer)
        for own, other in zip(self._buffers, source._buffers, strict=True):
            own.copy_rows(into, other, rows)

    def gather(self, rows: np.ndarray, valid: np.ndarray | None = None) -> list[pa.Array]:
        """See `ValueBuffer.gather`."""
        return [array for buffer in self._buffers for array in buffer.gather(rows, valid)]


class DictNode(CompositeNode):
    """A Dict: children by key, in the order of the space."""

    def __init__(self, space: Space, column: str, children: Mapping[str, Node]):
        super().__init__(space, column, list(children.values()))
        self.keys = tuple(children)

    def apart(self, value: Any) -> list[Any]:
        """Return the parts; a missing or an extra key is refused."""
        if not isinstance(value, Mapping) or len(value) != len(self.keys):
            raise self._wrong_keys(value)
        try:
            return [value[key] for key in self.keys]
        except KeyError:
            raise self._wrong_keys(value) from None

    def together(self, parts: Sequence[Any]) -> dict[str, Any]:
        """Return a dict with the keys in the order of the space."""
        return dict(zip(self.keys, parts, strict=True))

    def put_all(self, puts: Sequence[Callable[[int, Any], None]]) -> Callable[[int, Any], None]:
        """See `CompositeNode.put_all`."""
        pairs = tuple(zip(self.keys, puts, strict=True))
        count, apart = len(pairs), self.apart

        def put(index: int, value: Any) -> None:
            if value.__class__ is dict and len(value) == count:
                for key, put_part in pairs:
                    try:
                        part = value[key]
                    except KeyError:
                        raise self._wrong_keys(value) from None
                    put_part(index, part)
            else:
                for put_part, part in zip(puts, apart(value), strict=True):
                    put_part(index, part)

        return put

    def _wrong_keys(self, value: Any) -> SpaceMismatchError:
        if not isinstance(value, Mapping):
            return self.mismatch(f"a dict with keys {list(self.keys)}", describe(value), "pass a dict")
        missing = [key for key in self.keys if key not in value]
        extra = [key for key in value if key not in self.keys]
        got = f"a dict in which {missing} are missing and {extra} are extra"
        return self.mismatch(
            f"a dict with keys {list(self.keys)}", got, "a value has exactly the keys of its space"
        )


class TupleNode(CompositeNode):
    """A Tuple: children by position."""

    def apart(self, value: Any) -> Sequence[Any]:
        """Return the parts, of a list or array too, as Gymnasium does; refuse a wrong length."""
        if isinstance(value, np.ndarray) and value.ndim:
            value = tuple(value)
        if not isinstance(value, tuple | list) or len(value) != len(self.children):
            hint = "a value has one part for each space of the Tuple"
            raise self.mismatch(f"a tuple of length {len(self.children)}", describe(value), hint)
        return value

    def together(self, parts: Sequence[Any]) -> tuple[Any, ...]:
        """Return a tuple."""
        return tuple(parts)

    def put_all(self, puts: Sequence[Callable[[int, Any], None]]) -> Callable[[int, Any], None]:
        """See `CompositeNode.put_all`."""
        apart, count, puts = self.apart, len(puts), tuple(puts)

        def put(index: int, value: Any) -> None:
            parts = value if value.__class__ is tuple and len(value) == count else apart(value)
            for put_part, part in zip(puts, parts):  # noqa: B905 - both are `count` long, and strict is slow
                put_part(index, part)

        return put
