"""The entry to this package: values of one space to columns, and back.

`SpaceCodec` builds the tree of nodes for a space. The writers fill its buffers (or hand it whole arrays)
and get Arrow arrays; the readers hand it Arrow arrays and get batches of values: a stacked array, a list, or
nested dicts and tuples of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Dict, Graph, OneOf, Space, Text, Tuple
from gymnasium.spaces import Sequence as SequenceSpace

from ..errors import CorruptStoreError, UnsupportedSpaceError
from ..names import escape_distinct
from .arrow import LISTS
from .coerce import Cast
from .composite import CompositeNode, DictNode, TupleNode
from .fixed import FixedNode
from .node import MAX_DEPTH, Node, RowBuffer, ValueBuffer, check_keys, find
from .ragged import CustomNode, GraphNode, OneOfNode, SequenceNode, TextNode

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

    def __init__(self, space: Space, root: str, cast: Cast = "no"):
        """Work out the columns of `space`.

        Args:
            space: the space.
            root: the column name under which it stands.
            cast: which conversions of dtype values may need; see `Coercion`.

        Raises:
            UnsupportedSpaceError: names the space, its path, and `register_codec`.
        """
        self._node = _build(space, root, 0, cast)
        self.space = space
        self.root = root
        self.fields: tuple[pa.Field, ...] = self._node.fields
        self.row_bytes: int = self._node.row_bytes
        self.max_rows: int = self._node.max_rows

    @property
    def required(self) -> tuple[pa.Field, ...]:
        """The columns with a value in every row that has a value of the space."""
        return self._node.required

    @cached_property
    def leaves(self) -> tuple[FixedNode, ...]:
        """The parts of a fixed shape, one column each, in order; those within ragged spaces are left out."""
        return tuple(node for node in _nodes(self._node) if isinstance(node, FixedNode))

    @property
    def parts(self) -> tuple[SpaceCodec, ...]:
        """Codecs of the parts of Dict and Tuple spaces that are neither, in order; the codec itself else."""
        nodes = (node for node in _nodes(self._node) if not isinstance(node, CompositeNode))
        return tuple(SpaceCodec(node.space, node.column) for node in nodes)

    def part(self, column: str) -> SpaceCodec | None:
        """Return the codec of the part of a Dict or Tuple space with a column name, or None.

        Args:
            column: such as `observation.arm.angles`; the part may be a Dict or a Tuple itself.
        """
        codecs = (SpaceCodec(node.space, column) for node in _nodes(self._node) if node.column == column)
        return next(codecs, None)

    def buffer(self, capacity: int) -> ValueBuffer:
        """Preallocate `capacity` rows."""
        return self._node.buffer(capacity)

    def row_buffer(self, capacity: int) -> RowBuffer:
        """Preallocate `capacity` rows for values that come one at a time."""
        return self._node.row_buffer(capacity)

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
            For fixed leaves a read-only array of shape `(n, *shape)` with the space's dtype, which shares
            Arrow's memory where the column has that very type (and a single chunk); for Dict and Tuple a
            dict or tuple of batches; for ragged spaces a list of n single values (Sequence: tuples, or
            stacks if `stack`; Graph: GraphInstance; OneOf: (branch, value)).

        Raises:
            CorruptStoreError: the arrays cannot have come from this codec; names the column.
        """
        return self._node.decode(self._fitting(arrays))

    def decode_columns(self, arrays: Sequence[pa.Array | pa.ChunkedArray]) -> Any:
        """Turn the same arrays into a batch without a Python object for each row.

        Returns:
            As `decode`, but for Sequence and Text `Lists` (of bytes in UTF-8 for Text; for a Sequence of
            dicts or tuples a dict or tuple of them), and for Graph a dict of its parts, in which a graph
            without edges has none.

        Raises:
            CorruptStoreError: see `decode`.
        """
        return self._node.decode_columns(self._fitting(arrays))

    def _fitting(self, arrays: Sequence[pa.Array | pa.ChunkedArray]) -> list[pa.Array | pa.ChunkedArray]:
        if len(arrays) != len(self.fields):
            names = [field.name for field in self.fields]
            raise CorruptStoreError(
                f"space '{self.root}': got {len(arrays)} columns, expected {names}.",
                hint="The file is damaged or was written by something else.",
            )
        return [_of_type(array, field) for array, field in zip(arrays, self.fields, strict=True)]

    def adopt(self, arrays: Sequence[pa.Array], valid: np.ndarray | None = None) -> list[pa.Array]:
        """Check columns that another program made and return them in the types of `fields`.

        Numbers may have any type that `encode_many` takes, lists any layout; values of ragged spaces have the
        layout of `fields`. The result may share memory with the arrays.

        Args:
            arrays: one per field, without NULL rows; with `valid`, NULL rows of fixed leaves are skipped.
            valid: bool, for each row of the result: the rows where it is set get the values in order, the
                others are NULL. None: no row is NULL.

        Raises:
            SpaceMismatchError, CorruptStoreError: the values do not fit the space; names the column.
        """
        given = iter(arrays)
        adopted: list[pa.Array] = []
        for node in _nodes(self._node):
            if isinstance(node, CompositeNode):
                continue
            own = [next(given) for _ in node.fields]
            if isinstance(node, FixedNode):
                adopted.append(node.adopt(own[0], valid))
            else:
                fitting = [_of_type(array, field) for array, field in zip(own, node.fields, strict=True)]
                made = node.encode_many(list(node.decode(fitting)), len(own[0]) if own else 0)
                if valid is not None:
                    rows = pa.array(np.cumsum(valid) - 1, mask=~valid)
                    made = [array.take(rows) for array in made]
                adopted += made
        return adopted


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, CompositeNode):
        for child in node.children:
            yield from _nodes(child)


def _of_type(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    # Engines that rewrite a store, or frames that pass rows on, may come back with large or view types.
    if array.type == field.type:
        return array
    problem: Exception | str = "the two do not go together"
    if _family(array.type) == _family(field.type):
        try:
            return array.cast(field.type)
        except MemoryError:
            raise
        except pa.ArrowException as error:
            problem = error
    raise CorruptStoreError(
        f"column '{field.name}': has type {array.type}, expected {field.type} ({problem}).",
        hint="The file is damaged or was written by something else.",
    )


def _family(kind: pa.DataType) -> tuple[str, ...]:
    """Return a key that types share whose values are of the same sort, in any width or layout."""
    if isinstance(kind, LISTS):
        return ("list", *_family(kind.value_type))
    for name, belongs in _SORTS.items():
        if belongs(kind):
            return (name,)
    return (str(kind),)


def _build(space: Space, column: str, depth: int, cast: Cast) -> Node:
    _, codec = find(space, f" at '{column}'")
    if depth > MAX_DEPTH:
        raise UnsupportedSpaceError(
            f"space {space!r} at '{column}' ({type(space).__name__}) is nested deeper than {MAX_DEPTH} "
            "levels.",
            hint="Register a codec for a class of your own with episodelake.register_codec().",
        )
    if codec is not None:
        return CustomNode(space, column, codec)
    match space:
        case Dict():
            check_keys(space, f" at '{column}'")
            segments = escape_distinct(space.spaces)
            children = {
                key: _build(child, f"{column}.{segments[key]}", depth + 1, cast)
                for key, child in space.spaces.items()
            }
            return DictNode(space, column, children)
        case Tuple():
            return TupleNode(space, column, _build_numbered(space.spaces, column, depth, cast))
        case OneOf():
            return OneOfNode(space, column, _build_numbered(space.spaces, column, depth, cast))
        case SequenceSpace():
            return SequenceNode(
                space, column, _build(space.feature_space, column, depth + 1, cast), space.stack
            )
        case Graph():
            nodes = _build(space.node_space, f"{column}.nodes", depth + 1, cast)
            edges = None
            if space.edge_space is not None:
                edges = _build(space.edge_space, f"{column}.edges", depth + 1, cast)
            return GraphNode(space, column, nodes, edges)
        case Text():
            return TextNode(space, column)
        case _:
            return FixedNode(space, column, cast)


def _build_numbered(spaces: Sequence[Space], column: str, depth: int, cast: Cast) -> list[Node]:
    return [_build(child, f"{column}.{number}", depth + 1, cast) for number, child in enumerate(spaces)]


def single_value(values: Any, index: int) -> Any:
    """Return value `index` of a batch: of an array or list, or of each part of nested dicts and tuples."""
    if isinstance(values, Mapping):
        return {key: single_value(part, index) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(single_value(part, index) for part in values)
    return values[index]


def slice_batch(values: Any, start: int, stop: int) -> Any:
    """Return the values `[start, stop)` of a batch: of nested dicts and tuples in each part."""
    if isinstance(values, Mapping):
        return {key: slice_batch(part, start, stop) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(slice_batch(part, start, stop) for part in values)
    return values[start:stop]
