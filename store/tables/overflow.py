"""Numbers that a typed column cannot hold, and that readers show from the JSON column of its family.

The kind of a committed column stays until `compact`. A 0.5 that follows on committed integers goes to the
JSON column, and the field of the typed column is marked with `overflow: float`. Every reader then shows the
column as double and fills its NULLs from the JSON column. Columns without the mark cost nothing.

Earlier writers did not mark columns. Their JSON columns lack a mark too, and are read once to find such
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..delta.log import TableFile
from ..dynamic import logical_types as kinds
from ..dynamic.column_groups import METADATA, STEP_FAMILIES, ColumnGroup
from ..dynamic.values import load_objects
from ..files import Place
from ..parquet.files import read_parquet

_EXACT_IN_DOUBLE = 2**53
#: Columns with overflow by the file of an earlier writer, which never changes.
_found: dict[tuple[str, int, int], Mapping[str, str]] = {}


@dataclass(frozen=True)
class Overflow:
    """A column some of whose numbers stand in the JSON column only.

    Attributes:
        column: its field, as committed.
        family: its family.
        kind: the kind in which readers show it.
    """

    column: pa.Field
    family: ColumnGroup
    kind: str

    @cached_property
    def type(self) -> pa.DataType:
        """The type in which readers show the column."""
        return kinds.physical_type(self.kind)

    @property
    def json_column(self) -> str:
        """The column that has the other numbers."""
        return self.family.json_column

    def numbers(self, texts: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return the values in cells of the JSON column that the typed column would show; NULL where there is
        none.

        Raises:
            CorruptStoreError: a text is no JSON object.
        """
        path = self.family.path(self.column.name)
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
    families = [family for family in (*STEP_FAMILIES, METADATA) if family.json_column in schema.names]
    unmarked = [family for family in families if not kinds.is_marked(schema.field(family.json_column))]
    for file in files() if unmarked else ():
        for family in unmarked:
            if family.json_column in file.columns:
                for name, kind in _of_file(folder / file.name, file, family, schema).items():
                    kinds.widen(marks, name, kind)
    return {
        column.name: Overflow(column, family, marks[column.name])
        for family in families
        for column in schema
        if column.name in marks and family.owns(column)
    }


def _of_file(place: Place, file: TableFile, family: ColumnGroup, schema: pa.Schema) -> Mapping[str, str]:
    """Return the columns of one file of an earlier writer that have overflow, and the kinds that show it."""
    key = (f"{place}:{family.json_column}", file.size, file.moment)
    if key not in _found:
        own = {family.path(c.name): c for c in schema if family.owns(c) and c.name != family.json_column}
        texts = read_parquet(place, [family.json_column]).column(0)
        kinds_by_name: dict[str, str] = {}
        where = f"the column {family.json_column!r} of {place}"
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
