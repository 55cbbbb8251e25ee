"""DuckDB over a snapshot: a connection with the views `runs`, `episodes`, `steps` and `transitions`, and the
macros of `macros.py`.

The views name the files of the snapshot, so DuckDB prunes columns and row groups as on bare files and sees no
row that the snapshot does not show.
"""

from __future__ import annotations

import re

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ...store.errors import CorruptStoreError, QueryError
from ...store.layout import EPISODES, RUNS, STEPS, TABLES
from ...store.names import has_utf8
from ...store.snapshot import Snapshot
from ..damaged_files import check_files, name_damaged, steps_places
from ..frames import episodes_frame
from .interrupting import carry_out
from .macros import TRANSITIONS, WITH_NEXT, Macro, following_columns, macros_of, statements
from .names_nearby import advice, missing_next
from .sources import Sources
from .text import explained, is_whole, named_words, opens_query, quote, with_source

_CHOSEN = "_chosen_episodes"
_POSITION = "_position"
#: A connection that may only read keeps the rows of so many episodes in its memory.
_MOST_KEPT = 2_000_000
_LIST_AS_NUMBER = re.compile(r"cast \(\w+(?:\[\])+ -> DOUBLE\)")
_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
#: DuckDB would list what the views are made of too.
_TABLES_QUERY = (
    "SELECT view_name AS name FROM duckdb_views() "
    "WHERE NOT internal AND NOT starts_with(view_name, '_') ORDER BY name"
)


def connect(
    snapshot: Snapshot, positions: np.ndarray | None, *, read_only: bool = False, keep_rows: bool = True
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB with the views on the episodes at `positions` (None: all), and the macros.

    Args:
        read_only: the connection can read these views and compute, and nothing else.
        keep_rows: one that may only read holds the rows of episodes and runs in memory, which many queries
            gain from and a single one does not.

    Raises:
        CorruptStoreError: a file of episodes or runs is damaged; the message names it. Files of steps are
            checked when `run_sql` reads them, or now if their pages are to be; DuckDB itself checks less.
        KeyboardInterrupt: the caller was interrupted; there is no connection.
    """
    keep_rows = keep_rows and read_only and snapshot.episode_count <= _MOST_KEPT
    return carry_out(lambda: _connected(snapshot, positions, read_only, keep_rows))


def _connected(
    snapshot: Snapshot, positions: np.ndarray | None, read_only: bool, keep_rows: bool
) -> duckdb.DuckDBPyConnection:
    for table in (RUNS, EPISODES):
        snapshot.places(table)
    segments = None if positions is None else snapshot.segments_of(positions)
    if snapshot.layout.check_pages:
        steps_places(snapshot, segments)
    sources = Sources(snapshot, segments, confined=read_only)
    connection = sources.connection
    chosen = positions is not None or (snapshot.episode_count > 0 and snapshot.hidden_rows)
    if chosen:
        _register_chosen(connection, _chosen_episodes(snapshot, positions), read_only=read_only)
    keys = {EPISODES: "episode_id", RUNS: "run_id"}
    for name in (EPISODES, RUNS):
        body = sources.table(name)
        if chosen:
            body = f"SELECT * FROM ({body}) SEMI JOIN {_CHOSEN} USING ({keys[name]})"
        elif name == RUNS and not snapshot.newest:
            body = f"SELECT * FROM ({body}) SEMI JOIN {EPISODES} USING (run_id)"
        if keep_rows:
            body = _kept(connection, name, body)
        _create_view(snapshot, connection, name, body)
    count = snapshot.episode_count if positions is None else len(positions)
    macros = macros_of(snapshot.schema, _position_of(count, chosen))
    try:
        _add_steps(snapshot, sources, f"SEMI JOIN {_CHOSEN} USING (episode_id)" if chosen else "")
    except (CorruptStoreError, OSError):
        # Queries over the other tables go on; `run_sql` names the file in those that read steps.
        macros = tuple(macro for macro in macros if STEPS not in macro.reads)
    _add_macros(connection, macros)
    if read_only:
        sources.confine()
    return connection


def _chosen_episodes(snapshot: Snapshot, positions: np.ndarray | None) -> pa.Table:
    """Ids of the episodes at `positions` and of their runs, in this order."""
    ids = episodes_frame(snapshot, None).select("episode_id", "run_id").collect()
    return (ids if positions is None else ids[positions]).with_row_index(_POSITION).to_arrow()


def _register_chosen(connection: duckdb.DuckDBPyConnection, chosen: pa.Table, *, read_only: bool) -> None:
    """The chosen episodes as a table of the connection, or as one that no query can change."""
    if read_only:
        connection.register(_CHOSEN, chosen)
        return
    connection.register("_chosen_source", chosen)
    connection.execute(f"CREATE TEMP TABLE {_CHOSEN} AS SELECT * FROM _chosen_source")
    connection.unregister("_chosen_source")


def _kept(connection: duckdb.DuckDBPyConnection, name: str, body: str) -> str:
    """Rows in memory, since every query of the files through Arrow decodes their columns again.

    About 300 bytes an episode. They stay Arrow's: a table of DuckDB could be changed by a query, such as
    `WITH gone AS (DELETE FROM ... RETURNING *) FROM gone`. Where a file is damaged, it is read by each query
    after all: those that do not need what is damaged are answered.
    """
    try:
        rows = connection.sql(body).to_arrow_table()
    except duckdb.Error:
        return body
    connection.register(f"_kept_{name}", rows)
    return f"SELECT * FROM _kept_{name}"


def _create_view(snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, name: str, body: str) -> None:
    try:
        connection.execute(f"CREATE VIEW {name} AS {body}")
    except duckdb.Error:
        check_files(snapshot, name)
        raise


def _position_of(count: int, chosen: bool) -> str:
    """A query for the id of the episode at the parameter `place`, one of `count` episodes.

    A place that none of them has is an error, as `store[place]` is; where there are none, it has no row.
    """
    given, said = "try_cast(place AS BIGINT)", "coalesce(place::VARCHAR, 'NULL')"
    no_number = (
        f"'episode_at takes a position, such as 0 or -1, and not ' || {said} || "
        f"'; an id stands in FROM {EPISODES} WHERE episode_id = ...'"
    )
    beyond = f"'there is no episode at position ' || {said} || '; positions go from {-count} to {count - 1}'"
    wanted = f"""
        CASE WHEN {count} = 0 THEN 0
        WHEN NOT {is_whole("place")} THEN error({no_number})::BIGINT
        WHEN {given} BETWEEN 0 AND {count - 1} THEN {given}
        WHEN {given} BETWEEN {-count} AND -1 THEN {given} + {count}
        ELSE error({beyond})::BIGINT END"""
    if chosen:
        return f"SELECT episode_id FROM {_CHOSEN} WHERE {_POSITION} = {wanted}"
    return f"SELECT episode_id FROM {EPISODES} LIMIT 1 OFFSET {wanted}"


def _add_steps(snapshot: Snapshot, sources: Sources, choice: str) -> None:
    """The views of steps, those that `choice` leaves."""
    connection = sources.connection
    following = sources.steps_with(following_columns(snapshot.schema))
    _create_view(snapshot, connection, STEPS, f"SELECT * FROM ({sources.table(STEPS)}) {choice}")
    of_steps = f"SELECT * FROM {STEPS} WHERE terminated IS NOT NULL"
    _create_view(snapshot, connection, TRANSITIONS, of_steps)
    with_next = f"SELECT * FROM ({following}) {choice} WHERE terminated IS NOT NULL"
    _create_view(snapshot, connection, WITH_NEXT, with_next)


def _add_macros(connection: duckdb.DuckDBPyConnection, macros: tuple[Macro, ...]) -> None:
    for statement in statements(macros):
        connection.execute(statement)


def macros_for(snapshot: Snapshot) -> tuple[Macro, ...]:
    """The macros that a connection to a snapshot has."""
    return macros_of(snapshot.schema, "")


def run_sql(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    text: str,
    segments: frozenset[str] | None = None,
) -> duckdb.DuckDBPyRelation:
    """Bind a query to the views of `connect`.

    Args:
        segments: those that hold the steps of the connection's episodes; None for all of the snapshot.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
        QueryError: the text does not parse or names what is not there; the message begins with the nearest
            names, and has DuckDB's reason and all that is available.
    """
    _check_text(text)
    if _SHOW_TABLES.fullmatch(text):
        text = _TABLES_QUERY
    try:
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
        if _may_read_steps(snapshot, text):
            steps_places(snapshot, segments)
        relation = _bound(snapshot, connection, text)
    except duckdb.Error as error:
        name_damaged(snapshot, error, _tables_read(snapshot, text), segments)
        raise QueryError(advice(snapshot, text, str(error), macros_for(snapshot))) from error
    if relation is None:
        raise QueryError(f"The text {text!r} holds no query, such as SELECT ... FROM episodes.")
    return relation


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise QueryError(f"A query of type {type(text).__name__} was given; expected SQL text.")
    if not has_utf8(text):
        raise QueryError(f"{text!r} is no text in UTF-8, which SQL is written in.")


def _is_query(connection: duckdb.DuckDBPyConnection, kind: duckdb.StatementType, text: str) -> bool:
    """Whether a statement asks and changes nothing. EXPLAIN ANALYZE carries out what follows it."""
    if kind == duckdb.StatementType.EXPLAIN:
        asked = [statement.type for statement in connection.extract_statements(explained(text))]
        return asked == [duckdb.StatementType.SELECT]
    # MULTI is a PIVOT, which DuckDB carries out in several statements, or a table made of one.
    if kind == duckdb.StatementType.MULTI:
        return opens_query(explained(text))
    return kind == duckdb.StatementType.SELECT


def _bound(
    snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, text: str
) -> duckdb.DuckDBPyRelation | None:
    """The relation of a query. Where it asks transitions for a next observation, they get one."""
    try:
        return connection.sql(text)
    except duckdb.BinderException as error:
        if missing_next(snapshot, str(error)) is None:
            raise
        try:
            return connection.sql(with_source(text, TRANSITIONS, f"FROM {WITH_NEXT}"))
        except duckdb.ParserException:
            # The text has no place for it, or transitions of its own.
            raise error from None


def fetch(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    text: str,
    segments: frozenset[str] | None = None,
) -> pl.DataFrame:
    """The result of a query over the views of `connect`, with the arguments of `run_sql`.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
        QueryError: the text is not valid, as `run_sql` says, or the query failed as it ran.
        KeyboardInterrupt: the caller was interrupted; the connection can be used again.
    """
    try:
        return carry_out(lambda: run_sql(snapshot, connection, text, segments).pl(), connection.interrupt)
    except duckdb.Error as error:
        name_damaged(snapshot, error, _tables_read(snapshot, text), segments)
        hint = ""
        if _LIST_AS_NUMBER.search(str(error)):
            hint = " A list stands where a number is expected: name an element, such as reward[1] or obs(0)."
        raise QueryError(f"The query failed: {error}{hint}") from error


def _may_read_steps(snapshot: Snapshot, text: str) -> bool:
    """Whether a text names the steps, or a macro that reads them; a name put together in it, it may miss."""
    reading = {macro.name for macro in macros_for(snapshot) if STEPS in macro.reads}
    return not named_words(text).isdisjoint({STEPS, TRANSITIONS, WITH_NEXT, "query", "query_table"} | reading)


def _tables_read(snapshot: Snapshot, text: str) -> tuple[str, ...]:
    """The tables whose files a query may have read."""
    return TABLES if _may_read_steps(snapshot, text) else (RUNS, EPISODES)


def positions_where(snapshot: Snapshot, candidates: np.ndarray | None, condition: str) -> np.ndarray:
    """Positions of the episodes (among `candidates`) that fulfil an SQL condition, in their order.

    Raises:
        QueryError: the condition does not parse or names a column that is not there.
    """
    _check_text(condition)
    snapshot.places(EPISODES)
    with_steps = _asks_steps(snapshot, condition)
    segments = snapshot.segments_of(candidates) if with_steps and candidates is not None else None
    sources = Sources(snapshot, segments)
    try:
        found = carry_out(
            lambda: _fulfilling(snapshot, sources, candidates, condition, with_steps=with_steps),
            sources.connection.interrupt,
        )
    except (duckdb.Error, ValueError) as error:
        if isinstance(error, QueryError):
            raise
        if isinstance(error, duckdb.Error):
            name_damaged(snapshot, error, TABLES if with_steps else (RUNS, EPISODES), segments)
        raise QueryError(
            advice(snapshot, condition, f"The condition {condition!r} is not valid: {error}", (), (EPISODES,))
            + _vector_hint(snapshot)
        ) from error
    finally:
        sources.connection.close()
    return found if candidates is None else candidates[np.isin(candidates, found)]


def _fulfilling(
    snapshot: Snapshot, sources: Sources, candidates: np.ndarray | None, condition: str, *, with_steps: bool
) -> np.ndarray:
    """Positions of the episodes that fulfil a condition, which may read steps, in their order."""
    connection = sources.connection
    columns = ", ".join(quote(field.name) for field in snapshot.episodes_schema)
    numbered = f"{columns}, row_number() OVER () - 1 AS {_POSITION}"
    body = f"SELECT {numbered} FROM ({sources.table(EPISODES)})"
    if candidates is not None:
        connection.register("_candidates", pa.table({_POSITION: candidates}))
        body = f"SELECT * FROM ({body}) SEMI JOIN _candidates USING ({_POSITION})"
    connection.execute(f"CREATE VIEW _positioned AS {body}")
    # So that a subquery in the condition sees the same episodes.
    connection.execute(f"CREATE VIEW {EPISODES} AS SELECT {columns} FROM _positioned")
    connection.execute(f"CREATE VIEW {RUNS} AS {sources.table(RUNS)}")
    if with_steps:
        _add_what_is_read(snapshot, sources)
    rows = connection.view("_positioned")
    expression = duckdb.SQLExpression(condition)
    (kind,) = rows.select(expression).types
    if kind != "BOOLEAN":
        raise QueryError(f"The condition {condition!r} gives {kind}; expected a comparison or other BOOLEAN.")
    found = rows.filter(expression).select(_POSITION).order(_POSITION)
    return np.asarray(found.fetchnumpy()[_POSITION], np.int64)


def _asks_steps(snapshot: Snapshot, condition: str) -> bool:
    """Whether a condition has a subquery over steps, or calls a macro, which may read them."""
    macros = {macro.name for macro in macros_for(snapshot)}
    return not named_words(condition).isdisjoint({STEPS, TRANSITIONS, WITH_NEXT} | macros)


def _add_what_is_read(snapshot: Snapshot, sources: Sources) -> None:
    """The steps of the episodes, and the macros."""
    steps_places(snapshot, sources.segments)
    _add_steps(snapshot, sources, f"SEMI JOIN {EPISODES} USING (episode_id)")
    position_of = f"SELECT episode_id FROM _positioned WHERE {_POSITION} = place"
    _add_macros(sources.connection, macros_of(snapshot.schema, position_of))


def available_episodes(snapshot: Snapshot) -> str:
    """The hint that names the columns of the episodes table."""
    columns = ", ".join(snapshot.episodes_schema.names)
    told = f"Available columns of episodes: {columns}. In SQL, names with a dot need double quotes."
    return told + _vector_hint(snapshot).replace("\n", " ")


def _vector_hint(snapshot: Snapshot) -> str:
    """How a return of several objectives is compared; empty where there is but one."""
    if not snapshot.schema.reward_shape:
        return ""
    return (
        "\nepisode_return is a vector here: compare one objective, episode_return[1] in SQL (from 1), "
        'pl.col("episode_return").list.get(0) in Polars.'
    )
