"""The connection of DuckDB and the SQL text that names the files of a snapshot in it.

`run_interruptible` does all work that this library asks of DuckDB. In the main thread DuckDB's own calls
notice Ctrl-C between pieces of work, which may be long, and raise a plain `RuntimeError`; short ones may lose
it altogether. Here the work runs in a thread of its own while the caller waits for it and for Ctrl-C.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ...store.files import Place
from ...store.files.access import check_process
from ...store.layout import EPISODES, STEPS, TABLES
from ...store.names import STEP, next_name
from ...store.snapshot import Snapshot
from ...store.tables.overflow import Overflow
from ...store.tables.table_files import FileGroup
from ..corruption import name_damaged, steps_places
from .text import RUN, literal, quote, run_keys

if TYPE_CHECKING:
    import duckdb

Result = TypeVar("Result")
_SECONDS = 0.05


def run_interruptible(
    work: Callable[[], Result],
    interrupt: Callable[[], None] = lambda: None,
    stopped: threading.Event | None = None,
) -> Result:
    """Do work on a connection; an interrupt of the caller stops it, and the connection can be used again.

    Args:
        work: called once, in another thread.
        interrupt: the connection's `interrupt`; by default an interrupt waits for the end of the work. An
            interrupt that comes before a query has begun is lost, so it is called until the work has ended.
        stopped: stops the work when it is set, for a caller that Ctrl-C does not reach.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the work has ended.
        StoreAccessError: this process was forked from one that has used a store.
    """
    # In a forked child DuckDB would wait for threads that are not there.
    check_process()
    outcome: Future[Any] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        # An interrupt may come while the thread starts: the work is then cancelled, or waited for.
        threading.Thread(target=run, name="episodelake-query", daemon=True).start()
        # In short waits: on some systems one without an end is not interrupted.
        while not outcome.done():
            if stopped is not None and stopped.is_set():
                interrupt()
            wait([outcome], _SECONDS)
    except BaseException:
        while not (outcome.cancel() or outcome.done()):
            interrupt()
            wait([outcome], _SECONDS)
        raise
    return outcome.result()


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


_numbers = itertools.count()
#: Open connections that have functions of ours; at the interpreter's end DuckDB would print that they leak.
_with_functions: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()


def close_at_exit(connection: duckdb.DuckDBPyConnection) -> None:
    """Close a connection that has functions of ours when the interpreter ends."""
    _with_functions.add(connection)


@atexit.register
def _close() -> None:
    for connection in list(_with_functions):
        connection.close()


class SqlSources:
    """One DuckDB connection, and the SQL text that names the tables of a snapshot in it.

    Args:
        snapshot: the version to show.
        segments: the steps files to read; None for all of the snapshot.
        confined: read local files through Arrow too, for a connection that `confine` is to close off.
        keep: tables whose columns stay in memory once a query has read them through Arrow.
        spill: DuckDB may spill to a temporary folder; False where `confine` is to follow.
        connection: one that other sources have made; None for a new one.

    Attributes:
        through_arrow: whether files are read through Arrow; the first query that reads them checks footers.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        segments: frozenset[str] | None = None,
        *,
        confined: bool = False,
        keep: frozenset[str] = frozenset(),
        spill: bool = True,
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> None:
        made = connection or run_interruptible(lambda: open_connection(spill and not confined))
        self.connection: duckdb.DuckDBPyConnection = made
        self.snapshot = snapshot
        self.segments = segments
        #: Functions of the connection by the column whose overflow they read.
        self._functions: dict[tuple[str, str], str] = {}
        self.through_arrow = confined or snapshot.layout.root.local is None
        if snapshot.layout.root.local is None:
            # Now, and not as an error of DuckDB's in the first query: refuse options that pyarrow lacks.
            snapshot.layout.root.filesystem()
        self._keep = keep
        self._paths: list[Place] = []
        #: The names of files that the connection reads through Arrow.
        self._registered_names: set[str] = set()

    def confine(self) -> None:
        """Take settings, extensions, Python's variables and all but the store's files from the connection."""
        if self._paths:
            self.connection.execute(f"SET allowed_paths = {self.path_list(self._paths)}")
        for name, value in _CONFINED.items():
            self.connection.execute(f"SET {name} = '{value}'")

    def carry_out(self, work: Callable[[], Result]) -> Result:
        """Work on the connection in another thread, so that Ctrl-C is noticed; it waits for the work."""
        return run_interruptible(work)

    def create_view(self, name: str, body: str) -> None:
        """Create a view of the connection, or replace it.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
            StoreAccessError: DuckDB could not read a file.
        """
        import duckdb

        try:
            self.connection.execute(f"CREATE OR REPLACE VIEW {name} AS {body}")
        except duckdb.Error as error:
            # Other views read the steps.
            name_damaged(self.snapshot, error, {name if name in TABLES else STEPS}, self.segments)
            raise

    @staticmethod
    def with_run(snapshot: Snapshot, episodes: str, runs: str, using: Sequence[str] = ("run_id",)) -> str:
        """Return a query for rows of episodes with the column `run`: the name and the metadata of each run.

        A column of episodes that is called so stays as it is.

        Args:
            snapshot: has the columns of both tables.
            episodes, runs: queries for their rows.
            using: the columns by which an episode names its run.
        """
        if RUN in snapshot.shown_schema(EPISODES).names:
            return episodes
        fields = ", ".join(f"{literal(key)}: {quote(name)}" for key, name in run_keys(snapshot).items())
        names = ", ".join(using)
        return (
            f"SELECT * FROM ({episodes}) LEFT JOIN (SELECT {names}, {{{fields}}} AS {RUN} FROM ({runs})) "
            f"USING ({names})"
        )

    @staticmethod
    def path_list(places: Sequence[Place]) -> str:
        """Return an expression for the paths of files, which DuckDB parses sooner than a list of literals."""
        # Paths are normal, so none has this in it.
        return f"string_split({literal('/./'.join(map(str, places)))}, '/./')"

    @staticmethod
    def scan(places: Sequence[Place], *options: str) -> str:
        """Return a call that reads files, whose statistics leave out NaN."""
        arguments = [SqlSources.path_list(places), "can_have_nan = true", *options]
        return f"read_parquet({', '.join(arguments)})"

    @staticmethod
    def null_column(field: pa.Field) -> str:
        """Return an SQL column of NULLs with the name and the type of a field."""
        return f"NULL::{sql_type(field.type)} AS {quote(field.name)}"

    def table(self, name: str) -> str:
        """Return a query for all rows and columns of a table; columns that a file lacks are NULL."""
        text = self._table(name, name)
        return self._annotated(text) if name == STEPS else text

    def _table(self, table: str, name: str) -> str:
        """Return a query for a table, all numbers of a column in it.

        Args:
            table: one of the three.
            name: the name of its files in the connection.
        """
        schema, overflow = self.snapshot.table_schema(table), self.snapshot.overflow(table)
        if self.through_arrow:
            places = partial(_checked, self.snapshot, self.segments, table)
            text = self._registered(name, schema, places)
        else:
            text = self._files(name, schema, self._groups(table))
        if not overflow:
            return text
        columns = ", ".join(f"{self._filled(of)} AS {quote(of.column.name)}" for of in overflow.values())
        return f"SELECT * REPLACE ({columns}) FROM ({text})"

    def _filled(self, overflow: Overflow) -> str:
        """Return an expression for a column with the numbers that the JSON column has."""
        kind, function = sql_type(overflow.type), f"_numbers_{next(_numbers)}"
        known = self._functions.setdefault((overflow.group.prefix, overflow.column.name), function)
        if known == function:
            carried: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
            self.connection.create_function(function, overflow.numbers, ["VARCHAR"], kind, **carried)
            close_at_exit(self.connection)
        column, texts = quote(overflow.column.name), quote(overflow.json_column)
        return f"coalesce({column}::{kind}, CASE WHEN {texts} IS NOT NULL THEN {known}({texts}) END)"

    def steps_with(self, columns: str) -> str:
        """Return a query for columns that are computed over the rows of steps in the files' order."""
        text = self._table(STEPS, "steps_in_order")
        # Annotations are joined, which may change the order: they come last.
        return self._annotated(f"SELECT {columns} FROM ({text})", following=True)

    def _annotated(self, text: str, *, following: bool = False) -> str:
        """Return the steps with the columns that annotations add; with those of the next row if asked for."""
        snapshot, keys = self.snapshot, self.snapshot.schema.step_keys
        using = ", ".join(name for name, _ in keys)
        same = " AND ".join(f"_steps.{name} = _next.{name}" for name, _ in keys if name != STEP)
        for number, annotation in enumerate(snapshot.annotation_files.annotations.values()):
            named = snapshot.readable(snapshot.segments)
            segments = [name for name in named if self._is_read(name)]
            places = snapshot.annotation_places(annotation.name, segments)
            schema = annotation.schema(keys)
            group = FileGroup(tuple(places), frozenset(schema.names))
            added = self._files(f"annotation_{number}", schema, [group] if places else [])
            column, after = annotation.name, next_name(annotation.name) if following else None
            known = column in snapshot.steps_schema.names
            hidden = [name for name in (column, after) if known and name is not None]
            shown = f"_steps.* EXCLUDE ({', '.join(map(quote, hidden))})" if hidden else "_steps.*"
            joined = f"LEFT JOIN ({added}) AS _added USING ({using})"
            shown += f", _added.{quote(column)}"
            if after is not None:
                shown += f", _next.{quote(column)} AS {quote(after)}"
                joined += f" LEFT JOIN ({added}) AS _next ON {same} AND _next.t = _steps.t + 1"
            text = f"SELECT {shown} FROM ({text}) AS _steps {joined}"
        return text

    def _groups(self, table: str) -> list[FileGroup]:
        """Return the files by the columns they have: few groups, whatever the order in which runs brought
        columns.

        The episodes keep their order, which positions count by.
        """
        groups = list(self.snapshot.groups(table))
        if table == EPISODES:
            return groups
        by_columns: dict[frozenset[str], list[Place]] = {}
        for group in groups:
            places = [place for place in group.places if table != STEPS or self._is_read(place.name)]
            by_columns.setdefault(group.columns, []).extend(places)
        return [FileGroup(tuple(places), columns) for columns, places in by_columns.items() if places]

    def _is_read(self, segment: str) -> bool:
        return self.segments is None or segment in self.segments

    def _files(self, name: str, schema: pa.Schema, groups: list[FileGroup]) -> str:
        if not groups:
            return f"SELECT {', '.join(map(self.null_column, schema))} WHERE false"
        places = [place for group in groups for place in group.places]
        if self.through_arrow:
            return self._registered(name, schema, lambda: places)
        for place in places:
            place.check_plain()
        parts = []
        for group in groups:
            # Qualified, since DuckDB takes a bare name that is also a macro's parameter for a conflict.
            columns = ", ".join(
                f"_files.{quote(field.name)}" if field.name in group.columns else self.null_column(field)
                for field in schema
            )
            self._paths += group.places
            parts.append(f"SELECT {columns} FROM {self.scan(group.places)} AS _files")
        return " UNION ALL ".join(parts)

    def _registered(
        self,
        name: str,
        schema: pa.Schema,
        places: Callable[[], Sequence[Place]],
        partitions: Sequence[Any] | None = None,
    ) -> str:
        """Return a query for files that DuckDB reads through Arrow.

        Args:
            name: of the files in the connection.
            schema: their columns.
            places: returns the files; called by the first query that reads them.
            partitions: for each file, an expression that gives it columns which it lacks.
        """
        if name not in self._registered_names:
            self._registered_names.add(name)
            root = self.snapshot.layout.root
            # DuckDB keeps them where Python's garbage collector sees no cycle: they may not refer to the
            # connection, nor to these sources.
            files = cache(lambda: _dataset(root, schema, places(), partitions))
            kept = name in self._keep
            self.connection.register(f"_files_of_{name}", _deferred(schema, files, kept=kept))
        return f"SELECT * FROM _files_of_{name}"


def _checked(snapshot: Snapshot, segments: frozenset[str] | None, table: str) -> list[Place]:
    """Return the files of a table, footers checked; of the steps, those of some segments (None: all)."""
    if table != STEPS:
        return snapshot.places(table)
    used = snapshot.segments
    return steps_places(snapshot, [each for each in used if segments is None or each in segments])


def _dataset(
    root: Place, schema: pa.Schema, places: Sequence[Place], partitions: Sequence[Any] | None
) -> Any:
    for place in places:
        place.check_plain()
    filesystem, base = root.filesystem()
    paths = [base + str(place).removeprefix(str(root)) for place in places]
    # Imported where it is needed: it brings pandas along wherever that is installed.
    import pyarrow.dataset

    checked = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
    kind = pyarrow.dataset.ParquetFileFormat(default_fragment_scan_options=checked)
    dataset: Any = pyarrow.dataset.FileSystemDataset
    return dataset.from_paths(paths, _plain(schema), kind, filesystem, partitions=partitions)


def _deferred(schema: pa.Schema, files: Callable[[], Any], *, kept: bool) -> Any:
    """Return a dataset that opens its files in the first query that reads them.

    Args:
        schema: its columns.
        files: returns the dataset of the files.
        kept: hold the columns that queries have read in memory.
    """
    import pyarrow.dataset

    columns: dict[str, pa.ChunkedArray] = {}

    def rows(names: Sequence[str]) -> Any:
        missing = [name for name in names if name not in columns]
        if missing:
            # Of many files: scans of many small chunks take longer.
            columns.update(zip(missing, files().to_table(missing).combine_chunks().columns, strict=True))
        return pyarrow.dataset.dataset(pa.table({name: columns[name] for name in names}))

    class Deferred(pyarrow.dataset.InMemoryDataset):
        """Nothing but the schema; DuckDB calls `scanner` for each scan of a query."""

        def scanner(self, columns: list[str] | None = None, **options: Any) -> Any:
            if not kept:
                return files().scanner(columns=columns, **options)
            # A condition has no list of its columns: too many here are only slower.
            text = str(options.get("filter"))
            used = [name for name in schema.names if columns is None or name in columns or name in text]
            return rows(used or schema.names[:1]).scanner(columns=columns, **options)

    return Deferred(pa.Table.from_batches([], _plain(schema)))


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, which DuckDB would take for types of extensions."""
    return pa.schema([field.remove_metadata() for field in schema])


def open_connection(spill: bool = True) -> duckdb.DuckDBPyConnection:
    """Open DuckDB in memory.

    Args:
        spill: it may write temporary files.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    # It would be printed among a script's own output as soon as a query takes two seconds. In a notebook
    # without ipywidgets there is no bar, and the setting cannot be changed.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")
    if not spill:
        # Before anything is read: once it was used, the folder cannot be changed.
        connection.execute("SET temp_directory = ''")
    return connection


def sql_type(kind: pa.DataType) -> str:
    """Return the name that DuckDB has for a column type of the store."""
    return f"{sql_type(kind.value_type)}[]" if pa.types.is_list(kind) else _NAMES[kind]
