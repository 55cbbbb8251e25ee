"""How DuckDB reaches the files of a snapshot.

A local store's files are read by DuckDB itself. Files on an object store, and those of a connection that may
only read the store, come through Arrow datasets: DuckDB then needs neither an extension nor access to files.
"""

from __future__ import annotations

import contextlib

import duckdb
import pyarrow as pa

from ..store.layout import EPISODES, STEPS
from ..store.snapshot import FileGroup, Snapshot

_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
}
_CONFINED = {
    "python_enable_replacements": "false",
    "temp_directory": "",
    "enable_external_access": "false",
    "lock_configuration": "true",
}


class Sources:
    """One DuckDB connection, and the SQL text that names the tables of a snapshot in it.

    Args:
        snapshot: what to show.
        confined: reach the files through Arrow, so that the connection can be closed off with `confine`.
    """

    def __init__(self, snapshot: Snapshot, *, confined: bool = False) -> None:
        self.connection = duckdb.connect(":memory:")
        self.connection.execute("SET TimeZone = 'UTC'")
        # It would be printed among a script's own output as soon as a query takes two seconds. In a notebook
        # without ipywidgets there is no bar, and the setting cannot be changed.
        with contextlib.suppress(duckdb.InvalidInputException):
            self.connection.execute("SET enable_progress_bar = false")
        self._snapshot = snapshot
        self._through_arrow = confined or snapshot.layout.root.local is None

    def confine(self) -> None:
        """Take every access to files, extensions, settings and Python's variables from the connection."""
        for name, value in _CONFINED.items():
            self.connection.execute(f"SET {name} = '{value}'")

    def table(self, name: str) -> str:
        """A query for all rows and columns of a table; columns that a file lacks are NULL."""
        text = self._files(name, self._snapshot.table_schema(name), _by_columns(self._snapshot, name))
        return self._annotated(text) if name == STEPS else text

    def steps_with(self, columns: str) -> str:
        """A query for the steps with more columns, computed over the rows in the files' order."""
        snapshot = self._snapshot
        text = self._files("steps_in_order", snapshot.table_schema(STEPS), _by_columns(snapshot, STEPS))
        # Annotations are joined, which may change the order: they come last.
        return self._annotated(f"SELECT *, {columns} FROM ({text})")

    def _annotated(self, text: str) -> str:
        """The steps with the columns that annotations add."""
        snapshot, keys = self._snapshot, self._snapshot.schema.step_keys
        using = ", ".join(name for name, _ in keys)
        for number, annotation in enumerate(snapshot.annotation_files.annotations.values()):
            segments = snapshot.readable(snapshot.pointers.segments)
            places = snapshot.annotation_places(annotation.name, segments)
            schema = annotation.schema(keys)
            group = FileGroup(tuple(places), frozenset(schema.names))
            added = self._files(f"annotation_{number}", schema, [group] if places else [])
            hidden = (
                ""
                if annotation.name not in self._snapshot.steps_schema.names
                else (f"EXCLUDE ({quote(annotation.name)})")
            )
            text = (
                f"SELECT steps.* {hidden}, added.{quote(annotation.name)} FROM ({text}) AS steps "
                f"LEFT JOIN ({added}) AS added USING ({using})"
            )
        return text

    def _files(self, name: str, schema: pa.Schema, groups: list[FileGroup]) -> str:
        if not groups:
            columns = ", ".join(f"NULL::{type_name(field.type)} AS {quote(field.name)}" for field in schema)
            return f"SELECT {columns} WHERE false"
        for place in (place for group in groups for place in group.places):
            place.check_plain()
        if self._through_arrow:
            return self._dataset(name, schema, groups)
        parts = []
        for group in groups:
            columns = ", ".join(
                quote(field.name)
                if field.name in group.columns
                else f"NULL::{type_name(field.type)} AS {quote(field.name)}"
                for field in schema
            )
            paths = ", ".join(_text(str(place)) for place in group.places)
            parts.append(f"SELECT {columns} FROM read_parquet([{paths}])")
        return " UNION ALL ".join(parts)

    def _dataset(self, name: str, schema: pa.Schema, groups: list[FileGroup]) -> str:
        root = self._snapshot.layout.root
        filesystem, base = root.filesystem()
        paths = [base + str(place).removeprefix(str(root)) for group in groups for place in group.places]
        schema = pa.schema([field.remove_metadata() for field in schema])
        # Imported where it is needed: it brings pandas along wherever that is installed.
        import pyarrow.dataset

        checked = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
        kind = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=checked)
        dataset = pyarrow.dataset.dataset(paths, schema=schema, filesystem=filesystem, format=kind)
        self.connection.register(f"_files_of_{name}", dataset)
        return f"SELECT * FROM _files_of_{name}"


def _by_columns(snapshot: Snapshot, table: str) -> list[FileGroup]:
    """The files by the columns they have: few groups, whatever the order in which runs brought columns.

    The episodes keep their order, which positions count by.
    """
    groups = list(snapshot.groups(table))
    if table == EPISODES:
        return groups
    places = {}
    for group in groups:
        places[group.columns] = (*places.get(group.columns, ()), *group.places)
    return [FileGroup(found, columns) for columns, found in places.items()]


def quote(name: str) -> str:
    """A column name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def type_name(kind: pa.DataType) -> str:
    """DuckDB's name of a column type of the store."""
    return f"{type_name(kind.value_type)}[]" if pa.types.is_list(kind) else _NAMES[kind]
