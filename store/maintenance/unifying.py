"""Columns in the kind that holds all their numbers, for engines that read no JSON column.

One commit replaces every file that has such a column, so in each version of a table a column has one kind.
While a run is being recorded its next files are unknown, and kinds stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa

from ..delta.table import Table
from ..dynamic import logical_types as kinds
from ..dynamic.column_groups import METADATA, ColumnSet, DynamicRows, merge_rows
from ..dynamic.columns import align_to_schema, marked
from ..errors import ConcurrentCommitError
from ..tables.overflow import overflow_of


@dataclass(frozen=True)
class Unification:
    """New kinds for some columns of a table.

    Attributes:
        table: the table.
        before, schema: its columns, with the kinds that they have and with those that they get.
        touched: names of the files that have to be written anew.
    """

    table: Table
    before: pa.Schema
    schema: pa.Schema
    touched: frozenset[str]

    @staticmethod
    def of(table: Table) -> Unification | None:
        """Return the new kinds for a table at its pinned version; None if its columns hold all their numbers.

        Raises:
            CorruptStoreError: a file of an earlier writer is damaged.
        """
        files = table.files()
        overflow = overflow_of(table.schema, table.path, lambda: files)
        target = {name: kinds.retyped(of.column, of.kind) for name, of in overflow.items()}
        json_columns = {c.name for c in table.schema if kinds.field_kind(c) == kinds.JSON_KIND}
        for name in json_columns:
            if not kinds.is_marked(table.schema.field(name)):
                target[name] = kinds.field(name, kinds.JSON_KIND)
        if not target:
            return None
        concerned = {*overflow, *(of.json_column for of in overflow.values())}
        touched = frozenset(file.name for file in files if not concerned.isdisjoint(file.columns))
        return Unification(
            table, table.schema, pa.schema([target.get(c.name, c) for c in table.schema]), touched
        )

    def apply(self, schema: pa.Schema) -> pa.Schema:
        """Return the newest columns of the table with the new kinds."""
        return _replaced(schema, self.schema)

    def revert(self, schema: pa.Schema) -> pa.Schema:
        """Return the newest columns of the table with the kinds that they had before."""
        return _replaced(schema, self.before)

    def check(self, replaced: Collection[str]) -> Callable[[], None]:
        """Refuse the commit if others brought files with old kinds, or other kinds, meanwhile."""

        def check() -> None:
            now = Unification.of(self.table)
            if (
                now is None
                or not now.schema.equals(self.schema, check_metadata=True)
                or not now.touched <= set(replaced)
            ):
                raise ConcurrentCommitError(
                    f"Others recorded to {self.table.path} meanwhile; nothing was changed. Call again."
                )

        return check

    def rows(self, rows: pa.Table) -> pa.Table:
        """Return rows of episodes or runs with metadata in the new kinds."""
        rows = in_kinds(rows, self.schema)[0]
        here = set(rows.column_names)
        return align_to_schema(rows, [c for c in self.schema if METADATA.owns(c) or c.name in here])


def _replaced(schema: pa.Schema, by: pa.Schema) -> pa.Schema:
    return pa.schema([by.field(column.name) if column.name in by.names else column for column in schema])


def in_kinds(rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, list[pa.Field]]:
    """Return rows of episodes or runs with metadata in the kinds that a schema has.

    Returns:
        The rows, and the fields of columns some of whose numbers stand in the JSON column only, marked so.
    """
    own = [column for column in rows.schema if METADATA.owns(column)]
    columns = ColumnSet(METADATA, schema, closed=True)
    dynamic = columns.columns(DynamicRows.of(merge_rows(METADATA, rows)), 0, rows.num_rows)
    rows = rows.drop_columns([column.name for column in own])
    for name, (kind, array) in dynamic.items():
        rows = rows.append_column(kinds.field(name, kind), array)
    return rows, marked(schema, columns.overflow)


def metadata_in_kind(rows: pa.Table, table: Table, *, overflow: bool) -> pa.Table:
    """Return rows from another store with metadata in the kinds that a table has.

    Args:
        rows: their columns carry the kinds that they had there.
        table: the table; it gets marks for what its columns cannot hold.
        overflow: whether numbers of typed columns stand in the JSON column there.
    """
    known = {column.name: kinds.field_kind(column) for column in table.schema}
    own = [column for column in rows.schema if METADATA.owns(column)]
    alike = all(known.get(column.name) == kinds.field_kind(column) for column in own)
    if alike and not (overflow and METADATA.json_column in rows.column_names):
        return rows
    rows, marks = in_kinds(rows, table.schema)
    table.ensure_columns([*marks, *(column for column in rows.schema if METADATA.owns(column))])
    return rows
