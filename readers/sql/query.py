"""Queries over the views of `connections.py`: checks before they run, and errors with advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np

from ...store.compatibility import json_plan
from ...store.dynamic.values import OpaqueValue, freeze_value
from ...store.errors import QueryError
from ...store.layout import EPISODES, RUNS, STEPS, TABLES
from ...store.names import has_utf8
from ...store.snapshot import Snapshot
from ..context import Parameters, ReadContext
from ..damaged_files import name_damaged, steps_places
from ..page_guard import check_plan
from .connections import macros_for, step_columns
from .macros import TRANSITIONS, WITH_NEXT, next_columns
from .names_nearby import advice
from .text import explained, identifiers, named_words, opens_query

_LIST_AS_NUMBER = re.compile(r"cast \(\w+(?:\[\])+ -> DOUBLE\)")
_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
#: DuckDB would list what the views are made of too.
_TABLES_QUERY = (
    "SELECT view_name AS name FROM duckdb_views() "
    "WHERE NOT internal AND NOT starts_with(view_name, '_') ORDER BY name"
)


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


def bind(
    context: ReadContext,
    connect: Callable[..., duckdb.DuckDBPyConnection],
    text: str,
    parameters: Parameters | None = None,
) -> duckdb.DuckDBPyRelation:
    """Bind a query to the views on some episodes, and check the pages of the columns that it reads.

    Args:
        context: the episodes.
        connect: gives a connection with their views; takes `with_next` and `through_arrow` as
            `connections.connect` does. One through Arrow answers queries that choose a few rows of very much
            unchecked data.
        parameters: values of `?`, `$1` or `$name` in the text.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
        QueryError: the text does not parse or names what is not there; the message begins with the nearest
            names, and has DuckDB's reason and all that is available.
    """
    snapshot, segments = context.snapshot, context.segments
    check_text(text)
    parameters = plain_parameters(parameters)
    if _SHOW_TABLES.fullmatch(text):
        text = _TABLES_QUERY
    try:
        with_next = wants_next(snapshot, text)
        connection = connect(with_next=with_next)
        kinds = [statement.type for statement in connection.extract_statements(text)]
        if len(kinds) > 1:
            raise QueryError(
                f"{text!r} holds {len(kinds)} statements, and only the last would give its result: expected "
                "one query. Ask them one after the other."
            )
        if kinds and not _is_query(connection, kinds[0], text):
            raise QueryError(
                f"{text!r} is not a query: expected SELECT, FROM, WITH, DESCRIBE, SUMMARIZE or EXPLAIN. "
                "Use a connection of your own, from connect(), for other statements."
            )
        tables = _tables_read(snapshot, text)
        if STEPS in tables:
            steps_places(snapshot, segments)
        if kinds and kinds[0] == duckdb.StatementType.MULTI:
            # DuckDB carries out a part of it to learn the columns, so that no plan tells what is read.
            check_plan(snapshot, None, tables, segments)
        relation = connection.sql(text, params=parameters)
        if relation is not None and not check_plan(
            snapshot, json_plan(relation), tables, segments, may_decline=True
        ):
            relation = connect(with_next=with_next, through_arrow=True).sql(text, params=parameters)
    except duckdb.Error as error:
        name_damaged(snapshot, error, _tables_read(snapshot, text), segments)
        raise QueryError(advice(snapshot, text, str(error), macros_for(snapshot))) from error
    if relation is None:
        raise QueryError(f"The text {text!r} holds no query, such as SELECT ... FROM episodes.")
    return relation


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
    """Refuse what cannot be SQL text.

    Raises:
        QueryError: the text is none, or not in UTF-8.
    """
    if not isinstance(text, str):
        raise QueryError(f"A query of type {type(text).__name__} was given; expected SQL text.")
    if not has_utf8(text):
        raise QueryError(f"{text!r} is no text in UTF-8, which SQL is written in.")


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


def failure(context: ReadContext, text: str, error: duckdb.Error) -> QueryError:
    """Return the error of a query that failed as it ran.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    name_damaged(context.snapshot, error, _tables_read(context.snapshot, text), context.segments)
    hint = ""
    if _LIST_AS_NUMBER.search(str(error)):
        hint = " A list stands where a number is expected: name an element, such as reward[1] or obs(0)."
    return QueryError(f"The query failed: {error}{hint}")


def _tables_read(snapshot: Snapshot, text: str) -> tuple[str, ...]:
    """Return the tables whose files a query may have read; a name put together in it, it may miss."""
    reading = {macro.name for macro in macros_for(snapshot) if STEPS in macro.reads}
    reading |= {STEPS, TRANSITIONS, WITH_NEXT, "query", "query_table"}
    return (RUNS, EPISODES) if named_words(text).isdisjoint(reading) else TABLES
