"""The door to this package: one space under one column name, both ways.

`SpaceCodec` builds the tree of nodes for a space. The writers fill its buffers (or hand it whole arrays)
and get Arrow arrays; the readers hand it Arrow arrays and get stacked values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from gymnasium.spaces import Dict, Graph, OneOf, Space, Text, Tuple
from gymnasium.spaces import Sequence as SequenceSpace

from ..errors import CorruptStoreError, UnsupportedSpaceError
from ..names import escape_distinct, has_utf8
from .composite import CompositeNode, DictNode, TupleNode
from .fixed import FixedNode
from .node import MAX_DEPTH, Node, ValueBuffer
from .ragged import CustomNode, OneOfNode, TextNode
from .registry import find
from .sequence import GraphNode, SequenceNode

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_SORTS = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "text": lambda kind: kind in (pa.string(), pa.large_string(), pa.string_view()),
    "binary": lambda kind: (
        kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind)
    ),
}


class SpaceCodec:
    """The columns of one space.

    Attributes:
        space: the space.
        root: the column name under which it stands, such as `observation`.
        fields: the columns in order, all nullable, of plain types that every Delta reader takes.
        row_bytes: how many bytes a row takes in a buffer; exact for fixed leaves, 64 for each ragged space.
        max_rows: how many rows one call of `encode_many` or `ValueBuffer.arrays` can hold, as far as fixed
            leaves go (Arrow's list and binary offsets end at 2^31 - 1).
    """

    def __init__(self, space: Space, root: str):
        """Work out the columns of `space`.

        Raises:
            UnsupportedSpaceError: names the space, its path, and `register_codec`.
        """
        self._node = _build(space, root, 0)
        self.space = space
        self.root = root
        self.fields: tuple[pa.Field, ...] = self._node.fields
        self.row_bytes: int = self._node.row_bytes
        self.max_rows: int = self._node.max_rows

    @property
    def leaves(self) -> tuple[FixedNode, ...]:
        """The parts of a fixed shape, one column each, in order; those within ragged spaces are left out."""
        return tuple(_fixed_leaves(self._node))

    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate `capacity` rows."""
        return self._node.buffer(capacity)

    def encode_many(self, values: Any, length: int) -> list[pa.Array]:
        """Turn a batch of values into Arrow arrays, one per field.

        Args:
            values: for fixed leaves an array of shape (length, *shape) with a dtype that is safe to cast;
                for Dict and Tuple a dict or tuple of the children's batches; for ragged spaces (Text,
                Sequence, Graph, OneOf, custom) a list of single values. A *list* of single values is
                accepted for every space.
            length: the number of rows.

        The arrays may share the caller's memory: use them up before the caller can change it.

        Raises:
            SpaceMismatchError: names the column, and the expected and got dtype and shape.
            InvalidArgumentError: more rows than `max_rows`.
        """
        return self._node.encode_many(values, length)

    def decode(self, arrays: Sequence[pa.Array | pa.ChunkedArray]) -> Any:
        """Turn Arrow arrays, one per field and without NULL rows, back into a batch of values.

        Returns:
            For fixed leaves a read-only array of shape (n, *shape) with the space's dtype, which shares
            Arrow's memory where the column has that very type (and a single chunk); for Dict and Tuple a
            dict or tuple of batches; for ragged spaces a list of n single values (Sequence: tuples, or
            stacks if `stack`; Graph: GraphInstance; OneOf: (branch, value)).

        Raises:
            CorruptStoreError: the arrays cannot have come from this codec; names the column.
        """
        if len(arrays) != len(self.fields):
            names = [field.name for field in self.fields]
            raise CorruptStoreError(
                f"space '{self.root}': got {len(arrays)} columns, expected {names}. "
                "Hint: the file is damaged or was written by something else."
            )
        fitting = [_of_type(array, field) for array, field in zip(arrays, self.fields, strict=True)]
        return self._node.decode(fitting)


def _fixed_leaves(node: Node) -> Iterator[FixedNode]:
    if isinstance(node, FixedNode):
        yield node
    elif isinstance(node, CompositeNode):
        for child in node.children:
            yield from _fixed_leaves(child)


def _of_type(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    # Engines that rewrite a store, or frames that pass rows on, may come back with large or view types.
    if array.type == field.type:
        return array
    problem: Exception | str = "the two do not go together"
    if _family(array.type) == _family(field.type):
        try:
            return array.cast(field.type)
        except pa.ArrowException as error:
            problem = error
    raise CorruptStoreError(
        f"column '{field.name}': has type {array.type}, expected {field.type} ({problem}). "
        "Hint: the file is damaged or was written by something else."
    )


def _family(kind: pa.DataType) -> tuple[str, ...]:
    """What types have in common whose values are of the same sort, whatever their width or layout."""
    if isinstance(kind, _LISTS):
        return ("list", *_family(kind.value_type))
    for name, belongs in _SORTS.items():
        if belongs(kind):
            return (name,)
    return (str(kind),)


def _build(space: Space, column: str, depth: int) -> Node:
    found = find(space) if isinstance(space, Space) else None
    if found is None or depth > MAX_DEPTH:
        reason = f"is nested deeper than {MAX_DEPTH} levels" if found else "is of a class without columns"
        raise UnsupportedSpaceError(
            f"space {space!r} at '{column}' ({type(space).__name__}) {reason}. Expected the spaces of "
            "Gymnasium. Hint: register a codec for the class with episodelake.register_codec()."
        )
    _, codec = found
    if codec is not None:
        return CustomNode(space, column, codec)
    match space:
        case Dict():
            return _build_dict(space, column, depth)
        case Tuple():
            return TupleNode(space, column, _build_numbered(space.spaces, column, depth))
        case OneOf():
            return OneOfNode(space, column, _build_numbered(space.spaces, column, depth))
        case SequenceSpace():
            return SequenceNode(space, column, _build(space.feature_space, column, depth + 1), space.stack)
        case Graph():
            return _build_graph(space, column, depth)
        case Text():
            return TextNode(space, column)
        case _:
            return FixedNode(space, column)


def _build_dict(space: Dict, column: str, depth: int) -> DictNode:
    wrong = [key for key in space.spaces if not isinstance(key, str) or not has_utf8(key)]
    if wrong:
        raise UnsupportedSpaceError(
            f"space {space} at '{column}' has the keys {wrong}. Expected keys that are text in UTF-8, since "
            "they become column names. Hint: rename the keys with a wrapper, or register a codec for a class "
            "of your own with episodelake.register_codec()."
        )
    segments = escape_distinct(space.spaces)
    children = {
        key: _build(child, f"{column}.{segments[key]}", depth + 1) for key, child in space.spaces.items()
    }
    return DictNode(space, column, children)


def _build_numbered(spaces: Sequence[Space], column: str, depth: int) -> list[Node]:
    return [_build(child, f"{column}.{number}", depth + 1) for number, child in enumerate(spaces)]


def _build_graph(space: Graph, column: str, depth: int) -> GraphNode:
    nodes = _build(space.node_space, f"{column}.nodes", depth + 1)
    edges = None if space.edge_space is None else _build(space.edge_space, f"{column}.edges", depth + 1)
    return GraphNode(space, column, nodes, edges)
