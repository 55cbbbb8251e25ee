"""Sequence and Graph: any number of elements in a row, so each column of the element is a list."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box, GraphInstance, Space

from ..errors import SpaceMismatchError
from .arrow import flat_array, list_array, mask_of, offsets_of
from .coerce import integers_within
from .fixed import FixedNode
from .node import Node, RaggedNode, cut_arrays, decode_where, describe, encode_parts


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

    def _lengths(self, arrays: Sequence[pa.Array]) -> np.ndarray:
        if not self.element.fields:
            lengths = arrays[0].to_numpy()
            if len(lengths) and lengths.min() < 0:
                raise self.corrupt("some lengths are negative")
            return lengths
        first, *others = (np.diff(array.offsets.to_numpy()) for array in arrays)
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

    def _wrong_links(self, links: Any) -> SpaceMismatchError:
        return self.links.mismatch(
            "integers of 32 bits, shape (edges, 2)", describe(links), "links number the nodes"
        )
