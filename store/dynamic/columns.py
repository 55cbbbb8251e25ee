"""Arrow columns: rows under another schema, typed columns from numpy arrays, and the columns of a segment.

Rows take a schema's order and types, with NULL where a column is absent. `logical_types.build` makes columns
of single values.

Journal batches of one run, and runs among each other, may know a key under different kinds. In a segment the
table's committed kind wins, then the kind that shows the numbers of all, then the first kind seen. What a
column cannot hold moves to the group's JSON column, and the column is marked where it should show such
numbers.

A frame of Polars, or a result of DuckDB, has no metadata: of an int8 array of shape (2, 3) it shows six
int16 numbers. But its rows have their `episode_id`, which names their run. So a process remembers the kinds
of the array columns of every run whose tables it has handed to an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ..common.compatibility import numpy_type
from ..spaces.arrow import equal_lists, flat_array
from . import logical_types as kinds
from .column_groups import EXTRA, INFO, POLICY, STEP_GROUPS, ColumnGroup, ColumnSet, DynamicRows, merge_rows

_KINDS: dict[str, Mapping[str, str]] = {}
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def align_to_schema(rows: Rows, schema: Iterable[pa.Field], *, fill: bool = True) -> Rows:
    """Return rows with the columns of a schema, and no others.

    Args:
        rows: a table or a record batch.
        schema: the columns to return.
        fill: NULLs stand for a column that `rows` lacks; otherwise it is left out.

    Raises:
        pyarrow.ArrowException: a value does not fit the type of its column.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    wanted = pa.schema([column for column in schema if fill or column.name in columns])
    return type(rows).from_arrays(columns_or_nulls(columns, wanted, rows.num_rows), schema=wanted)


def with_columns(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return rows with the values of some columns replaced, or appended where the rows lack the column."""
    for name, values in columns.items():
        index = rows.schema.get_field_index(name)
        if index < 0:
            rows = rows.append_column(name, values)
        else:
            rows = rows.set_column(index, rows.schema.field(index), values)
    return rows


def columns_or_nulls(columns: Mapping[str, Any], schema: Iterable[pa.Field], count: int) -> list[Any]:
    """Return the columns that a schema names, in its order; `count` NULLs for each that is absent."""
    return [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]


def cells_column(kind: str, rows: np.ndarray, values: np.ndarray, length: int) -> pa.Array:
    """Return the column of `length` rows in which row `rows[i]` has `values[i]`; of two values the later
    counts.

    Args:
        kind: that of every value; see `kinds.batch_kind`.
        rows: int64, any order.
        values: numbers of shape (len(rows), ...).
        length: rows of the column.
    """
    physical = kinds.physical_type(kind)
    where = np.full(length, -1, np.int64)
    where[rows] = np.arange(len(rows))
    valid = where >= 0
    mask = None if valid.all() else valid
    if not pa.types.is_list(physical):
        # Where there is no value any number will do, since the row is NULL.
        flat = values[where].astype(numpy_type(physical), copy=False)
        return flat_array(flat, physical, mask)
    flat = values[where[valid]].astype(numpy_type(physical.value_type), copy=False)
    size = int(np.prod(values.shape[1:], dtype=np.int64))
    inner = flat_array(flat.reshape(-1), physical.value_type)
    return equal_lists(inner, size, length, mask)


def array_kinds(fields: Iterable[pa.Field]) -> dict[str, str]:
    """Return the kinds of those columns whose values are arrays, by name; a file may claim any kind."""
    by_name = {field.name: kinds.field_kind(field) for field in fields}
    return {name: kind for name, kind in by_name.items() if kind is not None and kinds.is_array(kind)}


def remember(runs: Iterable[str], columns: Mapping[str, str]) -> None:
    """Remember the kinds of array columns in rows of some runs."""
    _KINDS.update(dict.fromkeys(runs, columns))


def remembered(episodes: Iterable[Any]) -> dict[str, str]:
    """Return the kinds of array columns in rows of episodes with these ids.

    Kinds on which the runs of these episodes do not agree are left out; all are if one of the ids is none of
    a remembered run.
    """
    by_name: dict[str, set[str]] = {}
    for run in {each.rpartition("/")[0] if isinstance(each, str) else None for each in episodes}:
        if run not in _KINDS:
            return {}
        for name, kind in _KINDS[run].items():
            by_name.setdefault(name, set()).add(kind)
    return {name: min(each) for name, each in by_name.items() if len(each) == 1}


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
                    with_json.add(group_of(column.name))
                if merged is not None:
                    chosen[key] = merged
        for group in with_json:
            chosen[group.json_column] = kinds.field(group.json_column, kinds.JSON_KIND)
        self.fields = sorted(chosen.values(), key=lambda column: column.name)
        self._chosen = {column.name: column for column in self.fields}
        self._overflow: dict[str, str] = {}

    def overflow(self) -> list[pa.Field]:
        """Return the marked fields of columns that need the JSON column for some of their numbers."""
        return marked(self.fields, self._overflow)

    def schema(self, standard: pa.Schema) -> pa.Schema:
        """Return the columns of a segment's file, after those of the spaces."""
        return pa.schema([*standard, *self.fields])

    def align(self, batch: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return the rows of a batch with exactly this segment's columns, in one order."""
        kept: dict[str, pa.Array | pa.ChunkedArray] = {}
        for group in STEP_GROUPS:
            own = [column for column in batch.schema if group.owns(column)]
            others = [column for column in own if not self._takes(column)]
            if any(column.name == group.json_column for column in others):
                # An earlier writer's: its numbers may belong to any column.
                others, targets = own, [column for column in self.fields if group.owns(column)]
            else:
                targets = [self._chosen[column.name] for column in others if column.name in self._chosen]
            kept |= {column.name: batch.column(column.name) for column in own if column not in others}
            if others:
                kept |= self._rewritten(
                    group, [c for c in own if c in others or c.name == group.json_column], targets, batch
                )
        arrays = [batch.column(name) for name in self._fixed]
        arrays += columns_or_nulls(kept, self.fields, batch.num_rows)
        fields = [batch.schema.field(name) for name in self._fixed]
        fields += [column.remove_metadata() for column in self.fields]
        return pa.table(arrays, schema=pa.schema(fields))

    def _rewritten(
        self,
        group: ColumnGroup,
        own: Sequence[pa.Field],
        targets: Sequence[pa.Field],
        batch: pa.RecordBatch | pa.Table,
    ) -> Mapping[str, pa.Array]:
        """Return some columns of a group, with its JSON column, in the kinds of the segment."""
        arrays = [batch.column(column.name) for column in own]
        rows = merge_rows(group, pa.table(arrays, schema=pa.schema(own)))
        columns = ColumnSet(group, targets, closed=True)
        made = columns.columns(DynamicRows.of(rows), 0, batch.num_rows)
        for name, kind in columns.overflow.items():
            kinds.widen(self._overflow, name, kind)
        empty = {group.json_column: pa.nulls(batch.num_rows, pa.string())}
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


def group_of(column: str) -> ColumnGroup:
    """Return the step group that a dynamic column's name belongs to."""
    for group in (INFO, POLICY):
        if column.startswith(group.prefix):
            return group
    return EXTRA
