"""How DuckDB reaches the files of a snapshot.

A local store's files are read by DuckDB itself. Files on an object store, and those of a connection that may
only read the store, come through Arrow datasets: DuckDB then needs neither an extension nor access to files.
"""

from __future__ import annotations

import contextlib

import duckdb
import pyarrow as pa

from ...store.layout import EPISODES, STEPS
from ...store.places import Place
from ...store.snapshot import FileGroup, Snapshot
from .interrupting import carry_out
from .text import literal, quote

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
    "enable_external_access": "false",
    "lock_configuration": "true",
}


class Sources:
    """One DuckDB connection, and the SQL text that names the tables of a snapshot in it.

    Args:
        snapshot: what to show.
        segments: the steps files to read; None for all of the snapshot.
        confined: reach the files through Arrow, so that the connection can be closed off with `confine`.
    """

    def __init__(
        self, snapshot: Snapshot, segments: frozenset[str] | None = None, *, confined: bool = False
    ) -> None:
        self.connection = carry_out(lambda: _opened(confined))
        self._snapshot = snapshot
        self.segments = segments
        self._through_arrow = confined or snapshot.layout.root.local is None

    def confine(self) -> None:
        """Take every access to files, extensions, settings and Python's variables from the connection."""
        for name, value in _CONFINED.items():
            self.connection.execute(f"SET {name} = '{value}'")

    def table(self, name: str) -> str:
        """A query for all rows and columns of a table; columns that a file lacks are NULL."""
        text = self._files(name, self._snapshot.table_schema(name), self._groups(name))
        return self._annotated(text) if name == STEPS else text

    def steps_with(self, columns: str) -> str:
        """A query for the steps with more columns, computed over the rows in the files' order."""
        snapshot = self._snapshot
        text = self._files("steps_in_order", snapshot.table_schema(STEPS), self._groups(STEPS))
        # Annotations are joined, which may change the order: they come last.
        return self._annotated(f"SELECT *, {columns} FROM ({text})")

    def _annotated(self, text: str) -> str:
        """The steps with the columns that annotations add."""
        snapshot, keys = self._snapshot, self._snapshot.schema.step_keys
        using = ", ".join(name for name, _ in keys)
        for number, annotation in enumerate(snapshot.annotation_files.annotations.values()):
            named = snapshot.readable(snapshot.pointers.segments)
            segments = [name for name in named if self._is_read(name)]
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

    def _groups(self, table: str) -> list[FileGroup]:
        """The files by the columns they have: few groups, whatever the order in which runs brought columns.

        The episodes keep their order, which positions count by.
        """
        groups = list(self._snapshot.groups(table))
        if table == EPISODES:
            return groups
        found: dict[frozenset[str], list[Place]] = {}
        for group in groups:
            places = [place for place in group.places if table != STEPS or self._is_read(place.name)]
            found.setdefault(group.columns, []).extend(places)
        return [FileGroup(tuple(places), columns) for columns, places in found.items() if places]

    def _is_read(self, segment: str) -> bool:
        return self.segments is None or segment in self.segments

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
            paths = ", ".join(literal(str(place)) for place in group.places)
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


def _opened(confined: bool) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    # It would be printed among a script's own output as soon as a query takes two seconds. In a notebook
    # without ipywidgets there is no bar, and the setting cannot be changed.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")
    if confined:
        # Before anything is read: once it was used, the folder cannot be changed.
        connection.execute("SET temp_directory = ''")
    return connection


def type_name(kind: pa.DataType) -> str:
    """DuckDB's name of a column type of the store."""
    return f"{type_name(kind.value_type)}[]" if pa.types.is_list(kind) else _NAMES[kind]
