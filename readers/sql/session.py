"""Queries over the views of `connections.py`: checks before they run, and errors with advice.

A `QuerySession` keeps its connections; Ctrl-C stops its queries.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ...store.common.compatibility import json_plan
from ...store.dynamic.column_groups import METADATA
from ...store.dynamic.values import OpaqueValue, freeze_value, load_objects
from ...store.errors import QueryError
from ...store.layout import EPISODES, RUNS, STEPS, TABLES
from ...store.names import has_utf8
from ...store.snapshot import Snapshot
from ..context import Parameters, ReadContext
from ..damaged_files import check_plan, name_damaged, steps_places
from ..frames import collect_table, table_frame
from .advice import advice
from .connections import add_macros, connect, macros_for, step_columns
from .macros import TRANSITIONS, WITH_NEXT, next_columns
from .sources import run_interruptible
from .text import element_zero, explained, identifiers, named_words, names_run_keys, opens_query, star_without

_LIST_AS_NUMBER = re.compile(r"cast \(\w+(?:\[\])+ -> DOUBLE\)")
_EXACT_IN_DOUBLE = 2**53
_MOST_PLANS = 128
_LONG_INTEGER = re.compile(r"(?<![\w.])[0-9]{16,}(?![\w.])")
_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
#: DuckDB would list what the views are made of too.
_TABLES_QUERY = (
    "SELECT view_name AS name FROM duckdb_views() "
    "WHERE NOT internal AND NOT starts_with(view_name, '_') ORDER BY name"
)


_COLUMNS = """SELECT table_name, column_name, data_type FROM duckdb_columns()
    WHERE NOT internal AND table_name NOT LIKE '\\_%' ESCAPE '\\' ORDER BY table_name, column_index"""
_FUNCTIONS = """SELECT function_name, any_value(parameters), bool_and(internal) FROM duckdb_functions()
    WHERE regexp_full_match(function_name, '[a-z][a-z0-9_]*') GROUP BY 1 ORDER BY 3, 1"""


def sql_names(connection: duckdb.DuckDBPyConnection) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
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


def wants_next(snapshot: Snapshot, text: str) -> bool:
    """Return whether a query over `transitions` names a column of the next row, or the macro that reads one.

    In a query that names `transitions_with_next` or `transitions_of` too, those have such columns.
    """
    if "next_" not in text.casefold():
        return False
    names = identifiers(text)
    following = {name.casefold() for name in next_columns(step_columns(snapshot)).values()}
    return (
        TRANSITIONS in names
        and names.isdisjoint({WITH_NEXT, "transitions_of"})
        and not names.isdisjoint({*following, "next_obs"})
    )


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


def refuse_rounded(snapshot: Snapshot, kind: str, text: str, parameters: Parameters | None = None) -> None:
    """Refuse to compare an integer that no double holds with metadata that show such integers as doubles:
    rounding makes other numbers equal.

    Args:
        snapshot: what is asked.
        kind: such as "The filter".
        text: the query, or an expression of Polars as text.
        parameters: its values.
    """
    given = plain_parameters(parameters) or ()
    values = given.values() if isinstance(given, Mapping) else given
    integers = [value for value in values if isinstance(value, int | np.integer)]
    numbers = [int(n) for n in (*integers, *_LONG_INTEGER.findall(text)) if abs(int(n)) > _EXACT_IN_DOUBLE]
    for table in (EPISODES, RUNS) if numbers else ():
        for column in snapshot.filled_schema(table):
            shown = METADATA.owns(column) and column.type == pa.float64() and column.name in text
            if shown and _has_rounded(snapshot, table, column.name):
                raise QueryError(
                    f"{kind} compares {column.name!r} with {numbers[0]}. The column shows integers as "
                    "doubles, since one is beyond 64 bits or another value has a fraction, so other integers "
                    "would be equal too. Record such numbers as text, or choose the episodes in Python by "
                    "their metadata."
                )


def _has_rounded(snapshot: Snapshot, table: str, name: str) -> bool:
    """Return whether a column of doubles shows an integer that was rounded."""
    if name in snapshot.overflow(table):
        return True
    frame = table_frame(snapshot, table)
    if METADATA.json_column not in frame.collect_schema():
        return False
    texts = collect_table(snapshot, table, frame.select(METADATA.json_column)).to_series().drop_nulls()
    path = METADATA.path(name)
    for value in load_objects(texts.to_list(), f"the column {METADATA.json_column!r}"):
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if type(value) is int and abs(value) > _EXACT_IN_DOUBLE:
            return True
    return False


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


def _in_parts(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    """Return whether DuckDB runs a query as several statements, as it does a PIVOT.

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
            f"{text!r} is not a query: expected SELECT, FROM, WITH, DESCRIBE, SUMMARIZE or EXPLAIN. "
            "Use a connection of your own, from connect(), for other statements."
        )
    return kinds[:1] == [duckdb.StatementType.MULTI]


def _is_query(connection: duckdb.DuckDBPyConnection, kind: duckdb.StatementType, text: str) -> bool:
    """Return whether a statement only reads. EXPLAIN ANALYZE runs the statement that it explains."""
    if kind == duckdb.StatementType.EXPLAIN:
        asked = [statement.type for statement in connection.extract_statements(explained(text))]
        return asked == [duckdb.StatementType.SELECT]
    # MULTI is a PIVOT, which DuckDB carries out in several statements, or a table made of one.
    if kind == duckdb.StatementType.MULTI:
        return opens_query(explained(text))
    return kind == duckdb.StatementType.SELECT


def plan_with(connection: duckdb.DuckDBPyConnection, parameters: Parameters | None, text: str) -> str:
    """Return the plan of a query with parameters as JSON; nothing is run."""
    return connection.execute(f"EXPLAIN (FORMAT json) {text}", parameters).fetchall()[0][1]


def _tables_read(snapshot: Snapshot, text: str) -> tuple[str, ...]:
    """Return the tables whose files a query may have read; a name put together in it, it may miss."""
    reading = {macro.name for macro in macros_for(snapshot) if STEPS in macro.reads}
    reading |= {STEPS, TRANSITIONS, WITH_NEXT, "query", "query_table"}
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
        self._connections: dict[tuple[bool, ...], duckdb.DuckDBPyConnection] = {}
        #: Plans by text, since the episodes that queries see do not change.
        self._plans: dict[str, str] = {}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection of most of its queries."""
        return self._connect(None)

    def _connect(
        self,
        words: Collection[str] | None,
        *,
        with_next: bool = False,
        through_arrow: bool = False,
        run_keys: bool = False,
    ) -> duckdb.DuckDBPyConnection:
        """Return a connection with the macros that are named in a query; None for all."""
        options = (with_next, through_arrow, run_keys)
        if options not in self._connections:
            for table in (RUNS, EPISODES):
                self._context.snapshot.places(table)
            self._connections[options] = connect(
                self._context,
                read_only=self._read_only,
                keep_rows=self._keep_rows and not with_next,
                check_steps=False,
                through_arrow=through_arrow,
                with_next=with_next,
                run_keys=run_keys,
                words=(),
            )
        add_macros(self._connections[options], words)
        return self._connections[options]

    def sql(self, text: str, parameters: Parameters | None = None) -> duckdb.DuckDBPyRelation:
        """Parse a query, look up what it names, and check the pages of the columns that it reads.

        A query that chooses a few rows of very much unchecked data reads through Arrow, which checks pages.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
            QueryError: the text does not parse or names what is not there; the message begins with the
                nearest names, and has DuckDB's reason and all that is available.
        """
        snapshot, segments = self._context.snapshot, self._context.segments
        check_text(text)
        parameters = plain_parameters(parameters)
        self._refuse_rounded(text, parameters)
        if _SHOW_TABLES.fullmatch(text):
            text = _TABLES_QUERY
        try:
            with_next = wants_next(snapshot, text)
            following = next_columns(step_columns(snapshot)).values() if with_next else ()
            asked = star_without(text, TRANSITIONS, following) if with_next else text
            words = named_words(text)
            run_keys = names_run_keys(text)
            connection = self._connect(words, with_next=with_next, run_keys=run_keys)
            in_parts = _in_parts(connection, text)
            tables = self._tables_read(text)
            if STEPS in tables:
                steps_places(snapshot, segments)
            if in_parts:
                # DuckDB runs a part of it to learn the columns, so no plan shows what is read.
                check_plan(snapshot, None, tables, segments)
            relation = connection.sql(asked, params=parameters)
            plan = None if relation is None else json_plan(relation)
            if plan and parameters is None:
                plan = partial(self._known_plan, asked, plan)
            if relation is not None and not check_plan(snapshot, plan, tables, segments, may_decline=True):
                through_arrow = self._connect(
                    words, with_next=with_next, through_arrow=True, run_keys=run_keys
                )
                relation = through_arrow.sql(asked, params=parameters)
        except duckdb.Error as error:
            name_damaged(snapshot, error, self._tables_read(text), segments)
            raise QueryError(self._advice(text, str(error))) from error
        if relation is None:
            raise QueryError(f"The text {text!r} holds no query, such as SELECT ... FROM episodes.")
        return relation

    def _known_plan(self, text: str, plan: Callable[[], str]) -> str:
        """Return the plan of a query; `plan` makes it where the text is new."""
        if text not in self._plans:
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            self._plans[text] = plan()
        return self._plans[text]

    def _refuse_rounded(self, text: str, parameters: Parameters | None) -> None:
        refuse_rounded(self._context.snapshot, "The query", text, parameters)

    def _tables_read(self, text: str) -> tuple[str, ...]:
        return _tables_read(self._context.snapshot, text)

    def _advice(self, text: str, reason: str) -> str:
        snapshot = self._context.snapshot
        return advice(snapshot, text, reason, macros_for(snapshot))

    def _failure(self, text: str, error: duckdb.Error) -> QueryError:
        """Return the error of a query that failed as it ran.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
        """
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
            # Only DuckDB knows how to end a plan early; a limit behind EXPLAIN or PIVOT is no query.
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
