"""Numbers that a typed column cannot hold: those that readers show from the JSON column, and wider kinds.

The kind of a committed column stays until `compact`. A 0.5 that follows on committed integers goes to the
JSON column, and the field of the typed column is marked with `overflow: float`. Every reader then shows the
column as double and fills its NULLs from the JSON column. Columns without the mark cost nothing.

Earlier writers did not mark columns. Their JSON columns lack a mark too, and are read once to find such
numbers.

`compact` gives columns the kind that holds all their numbers, for engines that read no JSON column. One
commit replaces every file that has such a column, so in each version of a table a column has one kind. While
a run is being recorded its next files are unknown, and kinds stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from ..delta.log import TableFile
from ..delta.table import Table
from ..dynamic import logical_types as kinds
from ..dynamic.column_groups import METADATA, STEP_GROUPS, ColumnGroup, ColumnSet, DynamicRows, merge_rows
from ..dynamic.columns import align_to_schema, marked
from ..dynamic.values import load_objects
from ..errors import ConcurrentCommitError
from ..files import Place
from ..parquet.files import read_parquet

_EXACT_IN_DOUBLE = 2**53
#: Columns with overflow by the file of an earlier writer, which never changes.
_found: dict[tuple[str, int, int], Mapping[str, str]] = {}


@dataclass(frozen=True)
class Overflow:
    """A column with some of its numbers in the JSON column only.

    Attributes:
        column: its field, as committed.
        group: its group.
        kind: the kind in which readers show it.
    """

    column: pa.Field
    group: ColumnGroup
    kind: str

    @cached_property
    def type(self) -> pa.DataType:
        """The type in which readers show the column."""
        return kinds.physical_type(self.kind)

    @property
    def json_column(self) -> str:
        """The column that has the other numbers."""
        return self.group.json_column

    def numbers(self, texts: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return the values in cells of the JSON column that the typed column would show; NULL where there is
        none.

        Raises:
            CorruptStoreError: a text is no JSON object.
        """
        path = self.group.path(self.column.name)
        name = json.dumps(path[-1])
        cells = texts.to_pylist()
        rows = [row for row, text in enumerate(cells) if text is not None and name in text]
        objects = load_objects([cells[row] for row in rows], f"the column {self.json_column!r}")
        shown: list[Any] = [None] * len(cells)
        for row, value in zip(rows, objects, strict=True):
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if type(value) is float and self.kind == "float":
                shown[row] = value
            elif value is not None and kinds.shown_kind(self.kind, value) == self.kind:
                shown[row] = kinds.show(self.kind, value)
        return kinds.build(self.kind, shown)

    def fill(self, cells: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the cells of the typed column, with the numbers of the JSON column where they are NULL."""
        cells = cells.cast(self.type, safe=False)
        if not cells.null_count or texts.null_count == len(texts):
            return cells
        arrays = [cells.combine_chunks(), self.numbers(texts)]
        import pyarrow.compute as pc

        return pa.chunked_array([pc.call_function("coalesce", arrays)])


def overflow_of(
    schema: pa.Schema, folder: Place, files: Callable[[], Iterable[TableFile]]
) -> dict[str, Overflow]:
    """Return the columns of a table with numbers in the JSON column only, by name.

    Args:
        schema: the table's columns with kinds and marks.
        folder: the folder of the table.
        files: returns the files to read, for JSON columns of earlier writers.

    Raises:
        CorruptStoreError: such a file is damaged.
    """
    marks = {column.name: mark for column in schema if (mark := kinds.field_overflow(column)) is not None}
    groups = [group for group in (*STEP_GROUPS, METADATA) if group.json_column in schema.names]
    unmarked = [group for group in groups if not kinds.is_marked(schema.field(group.json_column))]
    for file in files() if unmarked else ():
        for group in unmarked:
            if group.json_column in file.columns:
                for name, kind in _of_file(folder / file.name, file, group, schema).items():
                    kinds.widen(marks, name, kind)
    return {
        column.name: Overflow(column, group, marks[column.name])
        for group in groups
        for column in schema
        if column.name in marks and group.owns(column)
    }


def _of_file(place: Place, file: TableFile, group: ColumnGroup, schema: pa.Schema) -> Mapping[str, str]:
    """Return the columns of one file of an earlier writer that have overflow, and the kinds that show it."""
    key = (f"{place}:{group.json_column}", file.size, file.moment)
    if key not in _found:
        own = {group.path(c.name): c for c in schema if group.owns(c) and c.name != group.json_column}
        texts = read_parquet(place, [group.json_column]).column(0)
        kinds_by_name: dict[str, str] = {}
        where = f"the column {group.json_column!r} of {place}"
        for mapping in load_objects(texts.drop_null().to_pylist(), where):
            for path, value in kinds.flatten(mapping):
                column = own.get(path)
                kind = None if column is None else kinds.field_kind(column)
                shown = None if kind is None else kinds.shown_kind(kind, value)
                if column is not None and shown is not None and not _in_column(kind, value):
                    kinds.widen(kinds_by_name, column.name, shown)
        _found[key] = kinds_by_name
    return _found[key]


def _in_column(kind: str | None, value: Any) -> bool:
    """Return whether earlier writers put a value of the JSON column into the typed column as well."""
    return kind == "float" and type(value) is int and abs(value) <= _EXACT_IN_DOUBLE


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
