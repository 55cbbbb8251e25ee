"""The spaces that the columns of a table suggest: those of `importing/spaces.py`, and Dict and Text.

Texts make a Text of the lengths and characters found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gymnasium import Space, spaces

from ....store.errors import DatasetError
from ....store.spaces.arrow import LISTS
from ..columns import column_of
from ..spaces import array_space, discrete_space
from .images import image_shape
from .mapping import Leaf, ResolvedMapping, Tree, is_image, leaves
from .rows import TableRows

_TEXTS = (pa.string(), pa.large_string(), pa.string_view())


@dataclass
class _Range:
    """The values of a column: least and greatest number or length, and the characters of texts."""

    least: int | None = None
    greatest: int | None = None
    characters: set[str] = field(default_factory=set)

    def add(self, least: int | None, greatest: int | None) -> None:
        if least is not None and greatest is not None:
            self.least = least if self.least is None else min(least, self.least)
            self.greatest = greatest if self.greatest is None else max(greatest, self.greatest)


class LeafRanges:
    """Looks at the columns of observations and actions whose values decide the space.

    Args:
        mapping: which columns there are.
        schema: of the table.
        observation, action: whether to look at these.
    """

    def __init__(
        self, mapping: ResolvedMapping, schema: pa.Schema, *, observation: bool, action: bool
    ) -> None:
        trees = [mapping.observation, mapping.following] if observation else []
        trees += [mapping.action] if action else []
        self._leaves = [
            leaf
            for tree in trees
            if tree is not None
            for leaf in leaves(tree)
            if not leaf.vector and _is_ranged(kind_of_leaf(leaf, schema))
        ]
        self._ranges: dict[str, _Range] = {}

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys(leaf.columns[0] for leaf in self._leaves))

    def clear(self) -> None:
        """Forget all values."""
        self._ranges = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at the values of some rows."""
        for leaf in self._leaves:
            values = values_of(leaf, batch)
            found = self._ranges.setdefault(leaf.name.removeprefix("next_"), _Range())
            if values.type in _TEXTS:
                texts = values.unique()
                found.characters.update("".join(filter(None, texts.to_pylist())))
                values = pc.call_function("utf8_length", [texts])
            limits = pc.call_function("min_max", [values]).as_py()
            found.add(limits["min"], limits["max"])

    def of(self, leaf: Leaf) -> _Range:
        """Return the values of a leaf."""
        return self._ranges.get(leaf.name, _Range())


def _is_ranged(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or kind in _TEXTS


def kind_of_leaf(leaf: Leaf, schema: pa.Schema) -> pa.DataType:
    """Return the type of the values of a leaf with one column."""
    kind = schema.field(leaf.columns[0]).type
    for key in leaf.path:
        kind = kind.field(key).type
    if isinstance(kind, pa.ExtensionType):  # of `datasets`, whose lists have all that is needed
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def values_of(leaf: Leaf, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return the values of a leaf with one column, as one array of a plain type."""
    found = column_of(rows, leaf.columns[0])
    for key in leaf.path:
        found = pc.struct_field(found, key)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(found.type, pa.BaseExtensionType):
        found = found.storage
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def infer_space(tree: Tree, rows: TableRows, ranges: LeafRanges, role: str) -> Space:
    """Return the space that the columns of an observation or action suggest.

    Raises:
        DatasetError: they suggest none; names the column.
    """
    if not isinstance(tree, Leaf):
        return spaces.Dict({key: infer_space(part, rows, ranges, role) for key, part in tree.items()})
    if tree.vector:
        dtypes = [_dtype(rows, column, rows.schema.field(column).type, role) for column in tree.columns]
        return array_space(np.result_type(*dtypes), (len(dtypes),))
    kind = kind_of_leaf(tree, rows.schema)
    found = ranges.of(tree)
    if pa.types.is_integer(kind) and found.least is not None and found.greatest is not None:
        if found.greatest - min(found.least, 0) >= 2**63 - 1:
            raise _unclear(rows, str(tree), kind, role)
        return discrete_space(found.least, found.greatest)
    if kind in _TEXTS and found.greatest:
        return spaces.Text(
            found.greatest, min_length=found.least or 0, charset="".join(sorted(found.characters))
        )
    if is_image(kind) and not tree.path:
        shape = image_shape(rows.head(tree.columns).column(0), f"{rows.name}: `{tree}`")
        return spaces.Box(0, 255, shape, np.uint8)
    shape, inner = _shape(tree, kind, rows)
    return array_space(_dtype(rows, str(tree), inner, role), shape)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of a type can be one number of a vector."""
    return pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _dtype(rows: TableRows, column: str, kind: pa.DataType, role: str) -> np.dtype:
    if is_number(kind):
        return np.dtype(kind.to_pandas_dtype())
    raise _unclear(rows, column, kind, role)


def _unclear(rows: TableRows, column: str, kind: pa.DataType, role: str) -> DatasetError:
    return DatasetError(
        f"{rows.name}: the column `{column}` of type {kind} suggests no space. Pass {role}_space=, or leave "
        "the column out of the mapping."
    )


def _shape(leaf: Leaf, kind: pa.DataType, rows: TableRows) -> tuple[tuple[int, ...], pa.DataType]:
    """Return the shape of the values, by the first of them where the type does not tell, and their type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape), kind.value_type
    shape: list[int] = []
    first: Any = None
    if isinstance(kind, LISTS):
        first = next((value for value in values_of(leaf, rows.head(leaf.columns)).to_pylist() if value), None)
    while isinstance(kind, LISTS):
        size = kind.list_size if isinstance(kind, pa.FixedSizeListType) else len(first or ())
        shape.append(size)
        first = first[0] if first else None
        kind = kind.value_type
    return tuple(shape), kind
