"""The dynamic columns of one segment: made from what its journal batches have, in line with the table.

Batches of one run, and runs among each other, may know a key under different kinds. The table's committed
kind wins, then the kind that shows the numbers of all, then the first kind seen. What a column cannot hold
moves to the family's JSON column, and the column is marked where it should show such numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from . import logical_types as kinds
from .column_groups import EXTRA, INFO, POLICY, STEP_FAMILIES, ColumnGroup, ColumnSet, merge_rows
from .columns import columns_or_nulls
from .rows import DynamicRows


class SegmentColumns:
    """Decides the dynamic columns of a segment and brings batches into line.

    Args:
        fixed: names of the columns that the spaces decide, in the journal's order.
        committed: the table's schema.
        seen: the schemas of all batches that go into the segment.
    """

    def __init__(self, fixed: Sequence[str], committed: pa.Schema, seen: Iterable[pa.Schema]) -> None:
        self._fixed = list(fixed)
        chosen: dict[str, pa.Field] = {}
        own = {column.name.casefold(): column for column in committed if kinds.field_kind(column)}
        with_json: set[ColumnGroup] = set()
        for schema in seen:
            for column in schema:
                if kinds.field_kind(column) is None:
                    continue
                key = column.name.casefold()
                known = chosen.get(key) or own.get(key)
                merged = column if known is None else _merged(known, column, committed=key in own)
                differs = merged is None or (known is not None and not _same_kind(known, column))
                if differs or kinds.field_kind(column) == kinds.JSON_KIND:
                    with_json.add(family_of(column.name))
                if merged is not None:
                    chosen[key] = merged
        for family in with_json:
            chosen[family.json_column] = kinds.field(family.json_column, kinds.JSON_KIND)
        self.fields = sorted(chosen.values(), key=lambda column: column.name)
        self._chosen = {column.name: column for column in self.fields}
        self._overflow: dict[str, str] = {}

    def overflow(self) -> list[pa.Field]:
        """Return the fields of columns some of whose numbers stand in the JSON column only, marked so."""
        return marked(self.fields, self._overflow)

    def schema(self, standard: pa.Schema) -> pa.Schema:
        """Return the columns of a segment's file, behind those of the spaces."""
        return pa.schema([*standard, *self.fields])

    def aligned(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield the rows of batches with exactly this segment's columns, as tables."""
        for batch in batches:
            yield self.align(batch)

    def align(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return the rows of a batch with exactly this segment's columns, in one order."""
        found: dict[str, pa.Array | pa.ChunkedArray] = {}
        for family in STEP_FAMILIES:
            own = [column for column in batch.schema if family.owns(column)]
            others = [column for column in own if not self._takes(column)]
            if any(column.name == family.json_column for column in others):
                # An earlier writer's: its numbers may belong to any column.
                others, targets = own, [column for column in self.fields if family.owns(column)]
            else:
                targets = [self._chosen[column.name] for column in others if column.name in self._chosen]
            found |= {column.name: batch.column(column.name) for column in own if column not in others}
            if others:
                found |= self._rewritten(
                    family, [c for c in own if c in others or c.name == family.json_column], targets, batch
                )
        arrays = [batch.column(name) for name in self._fixed]
        arrays += columns_or_nulls(found, self.fields, batch.num_rows)
        return pa.table(arrays, names=[*self._fixed, *self._chosen])

    def _rewritten(
        self,
        family: ColumnGroup,
        own: Sequence[pa.Field],
        targets: Sequence[pa.Field],
        batch: pa.RecordBatch | pa.Table,
    ) -> Mapping[str, pa.Array]:
        """Return some columns of a family, with its JSON column, in the kinds of the segment."""
        arrays = [batch.column(column.name) for column in own]
        rows = merge_rows(family, pa.table(arrays, schema=pa.schema(own)))
        columns = ColumnSet(family, targets, closed=True)
        made = columns.columns(DynamicRows.of(rows), 0, batch.num_rows)
        for name, kind in columns.overflow.items():
            kinds.widen(self._overflow, name, kind)
        empty = {family.json_column: pa.nulls(batch.num_rows, pa.string())}
        return {**empty, **{name: array for name, (_, array) in made.items()}}

    def _takes(self, column: pa.Field) -> bool:
        """Return whether the segment has a batch's column as it is."""
        mine = self._chosen.get(column.name)
        if kinds.field_kind(column) == kinds.JSON_KIND and not kinds.is_marked(column):
            return False
        return mine is not None and _same_kind(mine, column)


def marked(fields: Iterable[pa.Field], overflow: Mapping[str, str]) -> list[pa.Field]:
    """Return those fields that have a kind for their overflow, marked with it."""
    return [
        kinds.field(column.name, kinds.field_kind(column) or kinds.JSON_KIND, overflow[column.name])
        for column in fields
        if column.name in overflow
    ]


def _same_kind(one: pa.Field, other: pa.Field) -> bool:
    return kinds.field_kind(one) == kinds.field_kind(other)


def _merged(known: pa.Field, column: pa.Field, *, committed: bool) -> pa.Field | None:
    """Return the field for a key that is known already, or None if the two do not go together."""
    before, now = kinds.field_kind(known), kinds.field_kind(column)
    if known.name != column.name or before is None or now is None:
        return None
    shown = kinds.joined(before, now)
    if shown is None:
        return None
    return known if committed else kinds.field(known.name, shown)


def family_of(column: str) -> ColumnGroup:
    """Return the step family that a dynamic column's name belongs to."""
    for family in (INFO, POLICY):
        if column.startswith(family.prefix):
            return family
    return EXTRA
