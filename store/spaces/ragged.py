"""Text, OneOf, Sequence, Graph and custom spaces: values that differ in size or kind from row to row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box, GraphInstance, Space

from ..errors import SpaceMismatchError, UnsupportedSpaceError
from ..names import escape_distinct, has_utf8
from .arrow import (
    MAX_OFFSET,
    PLAIN_TYPES,
    flat_array,
    inner_type,
    list_array,
    mask_of,
    offsets_of,
    values_of,
)
from .coerce import integers_within
from .fixed import FixedNode
from .lists import cut_values, list_lengths, text_bytes
from .node import Codec, Node, ValueBuffer, cut_arrays, describe, encode_parts

RAGGED_ROW_BYTES = 64


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

    def whole(self, arrays: Sequence[Any]) -> list[pa.Array]:
        """Return arrays without chunks, none of which may have a NULL row."""
        if any(array.null_count for array in arrays):
            raise self.corrupt("some rows are NULL")
        return _joined(arrays)

    def row(self, batch: list[Any], index: int) -> Any:
        """Return the value itself."""
        return batch[index]

    def stacked(self, batch: list[Any], start: int, stop: int) -> tuple[Any, ...]:
        """Return the values as a tuple."""
        return tuple(batch[start:stop])


def _joined(arrays: Sequence[Any]) -> list[pa.Array]:
    return [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]


def decode_where(node: Node, arrays: Sequence[pa.Array], chosen: np.ndarray) -> list[Any]:
    """Decode only the chosen rows; the others are None."""
    mask = pa.array(chosen)
    batch = node.decode([array.filter(mask) for array in arrays])
    positions = iter(range(int(chosen.sum())))
    return [node.row(batch, next(positions)) if here else None for here in chosen.tolist()]


class TextNode(RaggedNode):
    """A Text: one string column; other characters and lengths than the space's are recorded too."""

    def __init__(self, space: Space, column: str):
        super().__init__(space, column, [pa.field(column, pa.string())])

    def take(self, value: Any) -> str:
        """Return the text; one that UTF-8 cannot hold is refused."""
        if not isinstance(value, str):
            raise self.mismatch("a str", describe(value), "Text values are Python strings")
        if not has_utf8(value):
            hint = "replace the surrogate, for example with value.encode(errors='replace').decode()"
            raise self.mismatch("a text that UTF-8 can hold", f"{value!r}, which has a lone surrogate", hint)
        return str(value)

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode strings."""
        return [_one_array(self, taken, pa.string())]

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[str]:
        """Decode strings."""
        return arrays[0].to_pylist()

    def decode_columns(self, arrays: Sequence[Any]) -> Any:
        """Return the bytes of the strings in UTF-8."""
        (array,) = self.whole(arrays)
        return text_bytes(array)


class OneOfNode(RaggedNode):
    """A OneOf: the column `.choice`, and the columns of every branch under its number, NULL unless chosen."""

    def __init__(self, space: Space, column: str, branches: Sequence[Node]):
        fields = [pa.field(f"{column}.choice", pa.int64())]
        super().__init__(space, column, fields + [field for branch in branches for field in branch.fields])
        self.branches = tuple(branches)
        self.required = self.fields[:1]

    def take(self, value: Any) -> tuple[int, Any]:
        """Return the branch number and the taken value."""
        if (
            not isinstance(value, tuple | list)
            or len(value) != 2
            or not isinstance(value[0], int | np.integer)
        ):
            raise self.mismatch("a tuple (branch, value)", describe(value), "name the branch by its position")
        choice = int(value[0])
        if not 0 <= choice < len(self.branches):
            raise self.mismatch(
                f"a branch from 0 to {len(self.branches) - 1}", str(choice), "the space has no such branch"
            )
        return choice, self.branches[choice].take(value[1])

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode the choices and each branch."""
        choices = np.fromiter(
            (0 if pair is None else pair[0] for pair in taken), dtype=np.int64, count=len(taken)
        )
        arrays = [flat_array(choices, pa.int64(), mask_of(taken))]
        for number, branch in enumerate(self.branches):
            arrays += branch.encode(
                [pair[1] if pair is not None and pair[0] == number else None for pair in taken]
            )
        return arrays

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[tuple[np.int64, Any]]:
        """Return tuples of the branch number, as an int64 like Gymnasium's samples, and the value."""
        if arrays[0].null_count:
            raise self.corrupt("some choices are NULL")
        choices = arrays[0].to_numpy()
        if len(choices) and not (choices.min() >= 0 and choices.max() < len(self.branches)):
            raise self.corrupt("some choices name no branch")
        values: list[Any] = [None] * len(choices)
        for number, own in enumerate(cut_arrays(self.branches, arrays[1:])):
            chosen = choices == number
            decoded = decode_where(self.branches[number], own, chosen)
            for index in np.flatnonzero(chosen).tolist():
                values[index] = (choices[index], decoded[index])
        return values


class CustomNode(RaggedNode):
    """A space with a registered codec: the columns that it names, the values that it makes."""

    def __init__(self, space: Space, column: str, codec: Codec):
        types = codec.fields(space)
        self.codec = codec
        self.types = _checked_types(space, column, types)
        names = escape_distinct(part for part in types if part)
        fields = [
            pa.field(f"{column}.{names[part]}" if part else column, kind) for part, kind in types.items()
        ]
        super().__init__(space, column, fields)
        # The meaning of NULL is the codec's own.
        self.required = ()

    def take(self, value: Any) -> list[Any]:
        """Return an owned copy of the parts that the codec makes of the value."""
        try:
            parts = self.codec.encode(self.space, value)
            if not isinstance(parts, Mapping) or parts.keys() != self.types.keys():
                raise ValueError(f"the codec must give the parts {list(self.types)}, and gave {parts!r}")
            # Through Arrow and back: checks the type, and cuts every tie to the caller's objects.
            return [pa.scalar(parts[part], type=kind).as_py() for part, kind in self.types.items()]
        except MemoryError:
            raise
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            hint = "see encode() of the codec that is registered for this space"
            raise self.mismatch(f"a value of {self.space}", f"{describe(value)}: {error}", hint) from error

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode each part."""
        return [
            _one_array(self, [None if parts is None else parts[index] for parts in taken], kind)
            for index, kind in enumerate(self.types.values())
        ]

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[Any]:
        """Let the codec make each value of its parts; what the codec raises passes on unchanged."""
        columns = zip(*(array.to_pylist() for array in arrays), strict=True)
        return [self.codec.decode(self.space, dict(zip(self.types, parts, strict=True))) for parts in columns]


def _one_array(node: Node, values: list[Any], kind: pa.DataType) -> pa.Array:
    array = pa.array(values, type=kind)
    if isinstance(array, pa.ChunkedArray):
        raise node.mismatch(
            "at most 2 GiB of data in one array", f"{array.nbytes} bytes", "encode fewer rows at a time"
        )
    return array


def _checked_types(space: Space, column: str, types: Any) -> dict[str, pa.DataType]:
    wrong = not isinstance(types, Mapping) or not types
    wrong = wrong or not all(
        isinstance(part, str) and has_utf8(part) and inner_type(kind) in PLAIN_TYPES
        for part, kind in types.items()
    )
    if wrong:
        raise UnsupportedSpaceError(
            f"the codec of space {space} at '{column}' gives the fields {types!r}. Expected at least one "
            "part, each of a plain type: bool, int16, int32, int64, float32, float64, string, binary, or "
            "a list of those.",
            hint="Correct fields() of the codec given to episodelake.register_codec().",
        )
    return dict(types)


class SequenceNode(RaggedNode):
    """A Sequence: the columns of its element, each wrapped in a list; `.length` if the element has none.

    A value is a tuple of single values or, with `stack`, whatever Gymnasium stacks them into: an array, a
    nest of arrays, or a tuple where elements cannot be stacked.
    """

    def __init__(self, space: Space, column: str, element: Node, stack: bool):
        self.element = element
        self.stack = stack
        fields = [pa.field(field.name, pa.list_(field.type)) for field in element.fields]
        super().__init__(space, column, fields or [pa.field(f"{column}.length", pa.int64())])

    def take(self, value: Any) -> list[Any]:
        """Return the taken elements."""
        if self.stack:
            return self.element.take_many(value)
        if not isinstance(value, tuple | list):
            raise self.mismatch(
                "a tuple of values", describe(value), "a Sequence value is a tuple unless stack=True"
            )
        return list(map(self.element.take, value))

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode all elements of all rows at once, and cut them into lists."""
        valid = mask_of(taken)
        lengths = np.fromiter(
            (len(row) if row is not None else 0 for row in taken), dtype=np.int64, count=len(taken)
        )
        if not self.element.fields:
            return [flat_array(lengths, pa.int64(), valid)]
        offsets = offsets_of(lengths)
        elements = [element for row in taken if row is not None for element in row]
        return [list_array(offsets, array, valid) for array in self.element.encode(elements)]

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[Any]:
        """Decode all elements of all rows at once, and split them into rows."""
        if any(array.null_count for array in arrays):
            raise self.corrupt("some rows are NULL")
        lengths = self._lengths(arrays)
        edges = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        flat = [array.flatten() for array in arrays] if self.element.fields else []
        batch = self.element.decode(flat)
        if self.stack:
            return [self.element.stacked(batch, start, stop) for start, stop in pairwise(edges)]
        row = self.element.row
        return [tuple(row(batch, index) for index in range(start, stop)) for start, stop in pairwise(edges)]

    def decode_columns(self, arrays: Sequence[Any]) -> Any:
        """Return `Lists` for each array of the elements."""
        return self.lists(self.whole(arrays))

    def lists(self, arrays: Sequence[pa.Array]) -> Any:
        """Return the same; rows that are NULL have no elements."""
        lengths = self._lengths(arrays)
        flat = [array.flatten() for array in arrays] if self.element.fields else []
        return cut_values(self.element.decode_columns(flat), lengths)

    def _lengths(self, arrays: Sequence[pa.Array]) -> np.ndarray:
        if not self.element.fields:
            lengths = values_of(arrays[0])
            if len(lengths) and lengths.min() < 0:
                raise self.corrupt("some lengths are negative")
            return lengths
        first, *others = map(list_lengths, arrays)
        if not all(np.array_equal(first, other) for other in others):
            raise self.corrupt("its columns hold different numbers of elements")
        return first


class GraphNode(RaggedNode):
    """A Graph: `.nodes`, `.edges` and `.edge_links`, each a list; NULL for the None of a graph without edges.

    Edge links are 32-bit pairs, as Gymnasium samples them. Without an edge space there is no `.edges`.
    """

    def __init__(self, space: Space, column: str, nodes: Node, edges: Node | None):
        links = FixedNode(Box(0, 2**31 - 1, (2,), np.int32), f"{column}.edge_links")
        self.nodes = SequenceNode(space, f"{column}.nodes", nodes, stack=True)
        self.edges = SequenceNode(space, f"{column}.edges", edges, stack=True) if edges is not None else None
        self.links = SequenceNode(space, f"{column}.edge_links", links, stack=True)
        self.parts = [part for part in (self.nodes, self.edges, self.links) if part is not None]
        super().__init__(space, column, [field for part in self.parts for field in part.fields])
        self.required = self.nodes.fields

    def take(self, value: Any) -> list[Any]:
        """Return taken nodes, edges (if the space has them) and edge links; the last two may be None."""
        if not isinstance(value, tuple) or len(value) != 3:
            raise self.mismatch(
                "a GraphInstance", describe(value), "a Graph value has nodes, edges and edge_links"
            )
        nodes, edges, links = value
        taken: list[Any] = [self.nodes.take(nodes)]
        if self.edges is not None:
            taken.append(None if edges is None else self.edges.take(edges))
        elif edges is not None:
            raise self.mismatch("edges to be None", describe(edges), "the Graph has no edge space")
        if links is not None:
            links = self.links.take(integers_within(links, np.dtype(np.int32), self._wrong_links))
        taken.append(links)
        return taken

    def encode(self, taken: list[Any]) -> list[pa.Array]:
        """Encode nodes, edges and edge links."""
        return encode_parts(self.parts, taken)

    def decode_plain(self, arrays: Sequence[pa.Array]) -> list[GraphInstance]:
        """Return one GraphInstance for each row."""
        columns: list[list[Any]] = []
        for part, own in zip(self.parts, cut_arrays(self.parts, arrays), strict=True):
            chosen = own[0].is_valid().to_numpy(zero_copy_only=False)
            columns.append(part.decode(own) if part is self.nodes else decode_where(part, own, chosen))
        if self.edges is None:
            columns.insert(1, [None] * len(columns[0]))
        return [GraphInstance(*parts) for parts in zip(*columns, strict=True)]

    def decode_columns(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """Return `Lists` by the names of the parts; a graph without edges has none."""
        nodes, *others = cut_arrays(self.parts, arrays)
        lists = [self.nodes.decode_columns(nodes)]
        lists += [part.lists(_joined(own)) for part, own in zip(self.parts[1:], others, strict=True)]
        names = [part.column.rpartition(".")[2] for part in self.parts]
        return dict(zip(names, lists, strict=True))

    def _wrong_links(self, links: Any) -> SpaceMismatchError:
        return self.links.mismatch(
            "integers of 32 bits, shape (edges, 2)", describe(links), "links number the nodes"
        )
