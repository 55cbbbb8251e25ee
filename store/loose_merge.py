"""The loose columns of one segment: made from what its journal batches have, in line with the table.

Batches of one run, and runs among each other, may know a key under different kinds. The table's committed
kind wins, then int gives way to float, then the first kind seen; values of another kind move to the family's
JSON column, where readers find them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from . import kinds
from .families import EXTRA, INFO, POLICY, Family
from .values import dump_json, load_object


class SegmentColumns:
    """Decides the loose columns of a segment and brings batches into line.

    Args:
        fixed: names of the columns that the spaces decide, in the journal's order.
        committed: the table's schema.
        seen: the schemas of all batches that go into the segment.
    """

    def __init__(self, fixed: Sequence[str], committed: pa.Schema, seen: Iterable[pa.Schema]) -> None:
        self._fixed = list(fixed)
        chosen: dict[str, pa.Field] = {}
        own = {column.name.casefold(): column for column in committed if kinds.field_kind(column)}
        with_json: set[Family] = set()
        for schema in seen:
            for column in schema:
                if kinds.field_kind(column) is None:
                    continue
                key = column.name.casefold()
                known = own.get(key) or chosen.get(key)
                merged = column if known is None else _merge(known, column, committed=key in own)
                if known is not None and (merged is not known or not _same_kind(known, column)):
                    with_json.add(family_of(column.name))
                if merged is not None:
                    chosen[key] = merged
        for family in with_json:
            chosen[family.json_column] = kinds.field(family.json_column, kinds.JSON_KIND)
        self.fields = sorted(chosen.values(), key=lambda column: column.name)
        self._chosen = {column.name: column for column in self.fields}

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly this segment's columns, in one order."""
        demoted: dict[Family, list[dict[Any, Any]]] = {}
        for column in batch.schema:
            kind = kinds.field_kind(column)
            if kind is not None and not self._takes(column):
                _demote(batch, column, demoted)
        arrays = [batch.column(name) for name in self._fixed]
        for column in self.fields:
            arrays.append(_aligned(batch, column, demoted))
        return pa.record_batch(arrays, names=[*self._fixed, *self._chosen])

    def _takes(self, column: pa.Field) -> bool:
        """Whether readers get a batch's values back from the segment's column alone."""
        mine = self._chosen.get(column.name)
        return mine is not None and _same_kind(mine, column)


def _same_kind(one: pa.Field, other: pa.Field) -> bool:
    return kinds.field_kind(one) == kinds.field_kind(other)


def _fits(values: pa.Array, column: pa.Field, wanted: pa.Field) -> bool:
    """Whether a batch's column goes into the segment's column of that name: equal values, in SQL too."""
    before, after = kinds.field_kind(column), kinds.field_kind(wanted)
    if (before, after) == ("int", "float"):
        found = values.drop_null().to_numpy()
        return (
            all(kinds.accepts("float", int(bound)) for bound in (found.min(), found.max()))
            if len(found)
            else True
        )
    return before == after


def _merge(known: pa.Field, column: pa.Field, *, committed: bool) -> pa.Field | None:
    """The field for a key that is known already, or None if the two do not go together.

    The committed field is returned when it takes the new column's values.
    """
    before, now = kinds.field_kind(known), kinds.field_kind(column)
    if known.name != column.name:
        return None
    if before == now or (before, now) == ("float", "int"):
        return known
    if (before, now) == ("int", "float") and not committed:
        return column
    return None


def _aligned(
    batch: pa.RecordBatch, column: pa.Field, demoted: dict[Family, list[dict[Any, Any]]]
) -> pa.Array:
    family = family_of(column.name)
    index = batch.schema.get_field_index(column.name)
    if column.name == family.json_column and family in demoted:
        return _with_json(None if index < 0 else batch.column(index), demoted[family])
    if index < 0:
        return pa.nulls(batch.num_rows, column.type)
    found = batch.column(index)
    if not _fits(found, batch.schema.field(index), column):
        return pa.nulls(batch.num_rows, column.type)
    return found if found.type == column.type else found.cast(column.type)


def family_of(column: str) -> Family:
    """The step family that a loose column's name belongs to."""
    for family in (INFO, POLICY):
        if column.startswith(family.prefix):
            return family
    return EXTRA


def _demote(batch: pa.RecordBatch, column: pa.Field, demoted: dict[Family, list[dict[Any, Any]]]) -> None:
    family = family_of(column.name)
    rows = demoted.setdefault(family, [{} for _ in range(batch.num_rows)])
    read = kinds.reader(kinds.field_kind(column) or kinds.JSON_KIND)
    path = family.path(column.name)
    for row, cell in zip(rows, batch.column(column.name).to_pylist(), strict=True):
        if cell is not None:
            kinds.nest(row, path, read(cell))


def _with_json(present: pa.Array | None, rows: list[dict[Any, Any]]) -> pa.Array:
    texts = [None] * len(rows) if present is None else present.to_pylist()
    merged: list[str | None] = []
    for text, row in zip(texts, rows, strict=True):
        if row and text is not None:
            for key, value in load_object(text, "the journal").items():
                kinds.nest(row, (key,), value)
        merged.append(dump_json(row) if row else text)
    return pa.array(merged, pa.string())
