"""Queries over the views of `connections.py`: checks before they run, and errors with advice.

A `QuerySession` keeps its connections; Ctrl-C stops its queries.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ...store.dynamic.values import OpaqueValue, freeze_value
from ...store.errors import QueryError, StoreAccessError
from ...store.files.access import check_process
from ...store.layout import EPISODES, RUNS, STEPS, TABLES
from ...store.names import has_utf8
from ...store.snapshot import Snapshot
from ..context import Parameters, ReadContext
from ..corruption import check_readable, name_damaged, steps_places
from .connections import add_macros, check_frame_function, check_has_steps, connect, macros_for
from .macros import TRANSITIONS, WITH_NEXT
from .rollout_views import MESSAGES, TOKENS
from .sources import run_interruptible
from .text import (
    element_zero,
    explained,
    has_texts_or_long_integers,
    named_words,
    names_run_keys,
    opens_query,
)

_LIST_AS_NUMBER = re.compile(r"cast \(\w+(?:\[\])+ -> DOUBLE\)")


_COLUMNS = """SELECT table_name, column_name, data_type FROM duckdb_columns()
    WHERE NOT internal AND table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY table_name, column_index"""
_FUNCTIONS = """SELECT function_name, any_value(parameters), bool_and(internal) FROM duckdb_functions()
    WHERE regexp_full_match(function_name, '[a-z][a-z0-9_]*') GROUP BY 1 ORDER BY 3, 1"""


def plain_parameters(parameters: Parameters | None) -> Parameters | None:
    """Parameters as DuckDB takes them: numpy scalars as Python's, enums as their values, paths as texts.

    Raises:
        QueryError: they are no list and no mapping.
    """
    if parameters is None:
        return None
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping):
        raise QueryError(
            f"parameters={parameters!r:.200}: expected a list of values for ? and $1, or a mapping for $name."
        )
    if isinstance(parameters, Mapping):
        return {name: _plain(value) for name, value in parameters.items()}
    return [_plain(value) for value in parameters]


def _plain(value: Any) -> Any:
    """Return a parameter as a store keeps such a value; DuckDB gets other values unchanged."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    kept = freeze_value(value)
    if isinstance(kept, np.generic):
        return kept.item()
    return value if isinstance(kept, OpaqueValue) else kept


def check_text(text: str) -> None:
    """Refuse what cannot be SQL text, and an element 0, which DuckDB answers with NULL.

    Raises:
        QueryError: the text is none, or not in UTF-8; it reads an element 0 of an observation or action.
    """
    if not isinstance(text, str):
        raise QueryError(f"A query of type {type(text).__name__} was given; expected SQL text.")
    if not has_utf8(text):
        raise QueryError(f"{text!r} is no text in UTF-8, which SQL is written in.")
    zero = element_zero(text)
    if zero is not None:
        raise QueryError(
            f"{zero} is NULL in SQL, where lists count from 1. Macros count from 0, as charts and statistics "
            "do: obs(0), act(0), obs('arm', 0) of a Dict."
        )


def _check_one_query(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """Refuse a text that holds several statements, or one that is no query.

    Raises:
        QueryError: the text is not one query.
    """
    kinds = [statement.type for statement in connection.extract_statements(text)]
    if len(kinds) > 1:
        raise QueryError(
            f"{text!r} holds {len(kinds)} statements, and only the last would give its result: expected one "
            "query. Ask them one after the other."
        )
    if kinds and not _is_query(connection, kinds[0], text):
        raise QueryError(
            f"{text!r} is not a query: expected SELECT, FROM, WITH, DESCRIBE, SUMMARIZE or EXPLAIN.",
            hint="Use a connection of your own, from connect(), for other statements.",
        )


def _is_query(connection: duckdb.DuckDBPyConnection, kind: duckdb.StatementType, text: str) -> bool:
    """Return whether a statement only reads. EXPLAIN ANALYZE runs the statement that it explains."""
    if kind == duckdb.StatementType.EXPLAIN:
        asked = [statement.type for statement in connection.extract_statements(explained(text))]
        return asked == [duckdb.StatementType.SELECT]
    # MULTI is a PIVOT, which DuckDB carries out in several statements, or a table made of one.
    if kind == duckdb.StatementType.MULTI:
        return opens_query(explained(text))
    return kind == duckdb.StatementType.SELECT


def _tables_read(snapshot: Snapshot, text: str) -> tuple[str, ...]:
    """Return the tables whose files a query may have read; a name put together in it, it may miss."""
    reading = {macro.name for macro in macros_for(snapshot) if STEPS in macro.reads}
    reading |= {STEPS, TRANSITIONS, WITH_NEXT, "query", "query_table"}
    if snapshot.of_rollouts:
        reading |= {MESSAGES, TOKENS}
    return (RUNS, EPISODES) if named_words(text).isdisjoint(reading) else TABLES


Result = TypeVar("Result")


class QuerySession:
    """Queries on connections as of `connect`, each made with the first query that needs it.

    Args:
        context: the episodes that its tables show.
        read_only: the queries see nothing but the store.
        keep_rows: hold the rows of episodes and runs in memory where the queries are `read_only`; a single
            query does not gain from it.
    """

    def __init__(self, context: ReadContext, *, read_only: bool = True, keep_rows: bool = True) -> None:
        self._context = context
        self._read_only = read_only
        self._keep_rows = keep_rows and read_only
        self._connections: dict[bool, duckdb.DuckDBPyConnection] = {}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection of most of its queries."""
        return self._connect(None)

    def _connect(
        self,
        words: Collection[str] | None,
        *,
        run_keys: bool = False,
    ) -> duckdb.DuckDBPyConnection:
        """Return a connection with the macros that are named in a query; None for all."""
        if run_keys not in self._connections:
            for table in (RUNS, EPISODES):
                self._context.snapshot.places(table)
            self._connections[run_keys] = connect(
                self._context,
                read_only=self._read_only,
                keep_rows=self._keep_rows,
                check_steps=False,
                run_keys=run_keys,
                words=(),
            )
        add_macros(self._connections[run_keys], words)
        return self._connections[run_keys]

    @staticmethod
    def names(connection: duckdb.DuckDBPyConnection) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """Return the names that a query over a connection may use, for completion.

        Returns:
            Columns and their types by table, and what each function is, our macros first.
        """
        tables: dict[str, dict[str, str]] = {}
        for table, column, kind in connection.execute(_COLUMNS).fetchall():
            tables.setdefault(table, {})[column] = kind
        functions = {
            name: "function" if internal else f"macro({', '.join(parameters or ())})"
            for name, parameters, internal in connection.execute(_FUNCTIONS).fetchall()
        }
        return tables, functions

    @staticmethod
    def name_damaged(
        snapshot: Snapshot,
        error: Exception | None,
        tables: Collection[str],
        segments: frozenset[str] | None = None,
    ) -> None:
        """Find the damaged file, if that is why a query failed. Every page of the files may have to be read.

        Args:
            snapshot: what was asked.
            error: what the engine said; None to read footers alone.
            tables: those that the query could have read.
            segments: those whose steps it could have read; None for all.

        Raises:
            CorruptStoreError: a file is damaged; the message names it, and says how to go on without.
            StoreAccessError: the engine could not read a file.
        """
        check_readable(snapshot, tables, segments)
        if error is not None:
            name_damaged(snapshot, error, tables, segments)

    @classmethod
    def for_threads(cls, context: ReadContext) -> ThreadSessions:
        """Return sessions of this kind over some episodes, for each thread its own."""
        return ThreadSessions(context, cls)

    def sql(self, text: str, parameters: Parameters | None = None) -> duckdb.DuckDBPyRelation:
        """Parse a query, look up what it names, and check the footers of the files that it reads.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
            StoreAccessError: a file cannot be read, or this process was forked from one that has used a
                store.
            QueryError: the text does not parse or names what is not there; the message begins with the
                nearest names, and has DuckDB's reason and all that is available.
        """
        snapshot, segments = self._context.snapshot, self._context.segments
        # In a forked child DuckDB would wait for threads that are not there.
        check_process()
        check_text(text)
        parameters = plain_parameters(parameters)
        if parameters or has_texts_or_long_integers(text):
            # Few queries need it, and it would take a third of the time to import this module.
            from .beside import refuse_inexact

            refuse_inexact(self._stores(), "The query", text, parameters, condition=False)
        try:
            connection = self._connect(named_words(text), run_keys=names_run_keys(text))
            _check_one_query(connection, text)
            if STEPS in self._tables_read(text):
                steps_places(snapshot, segments)
                self._check_has_steps(connection)
            relation = connection.sql(text, params=parameters)
        except duckdb.Error as error:
            self._check_frame_functions(error)
            name_damaged(snapshot, error, self._tables_read(text), segments)
            raise QueryError(self._advice(text, str(error))) from error
        if relation is None:
            raise QueryError(f"The text {text!r} holds no query, such as SELECT ... FROM episodes.")
        return relation

    def _check_has_steps(self, connection: duckdb.DuckDBPyConnection) -> None:
        try:
            check_has_steps(connection)
        except StoreAccessError:
            # The views of a connection last; the reason may not. A relation of the caller may hold it open.
            self._connections.clear()
            raise

    def _check_frame_functions(self, error: Exception) -> None:
        for connection in list(self._connections.values()):
            check_frame_function(connection, error)

    def _stores(self) -> Sequence[Snapshot]:
        """Return the snapshots whose rows queries see."""
        return [self._context.snapshot]

    def _tables_read(self, text: str) -> tuple[str, ...]:
        return _tables_read(self._context.snapshot, text)

    #: The tables that queries see; a store has macros beside them, which other tables lack.
    _tables: tuple[str, ...] | None = None

    def _advice(self, text: str, reason: str) -> str:
        from .advice import advice

        snapshot = self._context.snapshot
        if self._tables is not None:
            return advice(snapshot, text, reason, (), self._tables)
        return advice(snapshot, text, reason, macros_for(snapshot))

    def _failure(self, text: str, error: duckdb.Error) -> QueryError:
        """Return the error of a query that failed as it ran.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
            StoreAccessError, MissingPackageError: `frame_at` could not decode.
        """
        self._check_frame_functions(error)
        name_damaged(self._context.snapshot, error, self._tables_read(text), self._context.segments)
        hint = ""
        if _LIST_AS_NUMBER.search(str(error)):
            hint = " A list stands where a number is expected: name an element, such as reward[1] or obs(0)."
        return QueryError(f"The query failed: {error}{hint}")

    def query(self, text: str, parameters: Parameters | None = None) -> pl.DataFrame:
        """Return the result of a query; see `EpisodeView.query`."""
        try:
            return self.carry_out(lambda: self.sql(text, parameters).pl())
        except duckdb.Error as error:
            raise self._failure(text, error) from error

    def bind(self, text: str) -> duckdb.DuckDBPyRelation:
        """Do as `sql`, in another thread; Ctrl-C stops it.

        Raises:
            QueryError: it is not valid; the message names what there is.
        """
        return self.carry_out(lambda: self.sql(text))

    def carry_out(self, work: Callable[[], Result], stopped: threading.Event | None = None) -> Result:
        """Do something with these connections in another thread; they can be used again afterwards.

        Args:
            work: asks DuckDB.
            stopped: ends it when it is set, as Ctrl-C does in the main thread.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; DuckDB has stopped.
        """
        return run_interruptible(work, self._interrupt, stopped)

    def _interrupt(self) -> None:
        # While a connection is being made it is not here; `run_interruptible` calls again and again.
        for connection in list(self._connections.values()):
            connection.interrupt()

    def first_rows(self, text: str, most: int, stopped: threading.Event) -> pa.Table:
        """Return the first rows of a query, which is ended as soon as they are there.

        Raises:
            QueryError: it is not valid, failed, or was stopped.
            CorruptStoreError: a file is damaged; the message names it.
        """
        try:
            if not stopped.is_set():
                return self.carry_out(lambda: self._read(text, most), stopped)
        except QueryError:
            if not stopped.is_set():
                raise
        raise QueryError("The query was stopped.")

    def _read(self, text: str, most: int) -> pa.Table:
        try:
            # Only DuckDB knows how to end a plan early; a limit after EXPLAIN or PIVOT is no query.
            reader: Any = self.sql(text).to_arrow_reader(most)
            batches, count = [], 0
            for batch in reader:
                batches.append(batch)
                count += batch.num_rows
                if count >= most:
                    break
            return pa.Table.from_batches(batches, reader.schema).slice(0, most)
        except duckdb.Error as error:
            raise self._failure(text, error) from error
        except pa.ArrowException as error:
            raise QueryError(f"The query failed while it ran: {error}") from error

    def close(self) -> None:
        """Close the connections; another query makes new ones."""
        while self._connections:
            self._connections.popitem()[1].close()


class ThreadSessions:
    """Sessions of one kind over some episodes, for each thread its own.

    A result of DuckDB ends when its connection runs another query, hence one for each thread.
    """

    def __init__(self, context: ReadContext, kind: type[QuerySession] = QuerySession) -> None:
        self._context = context
        self._kind = kind
        self._of_thread = threading.local()

    def session(self, *, read_only: bool) -> QuerySession:
        """Return the calling thread's session."""
        mine: dict[Any, QuerySession] = self._of_thread.__dict__
        return mine.setdefault(read_only, self._kind(self._context, read_only=read_only))
