"""DuckDB over a snapshot: a connection with the views `runs`, `episodes`, `steps` and `transitions`.

The views name the files of the snapshot, so DuckDB prunes columns and row groups as on bare files and sees no
row that the snapshot does not show.
"""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from ..store.errors import QueryError
from ..store.layout import EPISODES, RUNS, STEPS, TABLES
from ..store.parquet import open_parquet
from ..store.snapshot import Snapshot
from .frames import episodes_frame
from .sources import Sources, quote

_CHOSEN = "_chosen_episodes"
_POSITION = "_position"
#: MULTI is a PIVOT, which DuckDB carries out in several statements.
_QUERIES = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI}


def connect(
    snapshot: Snapshot, positions: np.ndarray | None, *, read_only: bool = False
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB with the four views on the episodes at `positions` (None: all).

    Args:
        read_only: the connection can read these views and compute, and nothing else.

    Raises:
        CorruptStoreError: a file of episodes or runs is damaged; the message names it. Files of steps are
            checked when `run_sql` reads them, or now if their pages are to be; DuckDB itself checks less.
    """
    for table in TABLES if snapshot.layout.check_pages else (RUNS, EPISODES):
        snapshot.places(table)
    sources = Sources(snapshot, confined=read_only)
    connection = sources.connection
    chosen = positions is not None or (snapshot.episode_count > 0 and snapshot.hidden_rows)
    if chosen:
        table = episodes_frame(snapshot, positions).select("episode_id", "run_id").collect().to_arrow()
        connection.register("_chosen_source", table)
        connection.execute(f"CREATE TEMP TABLE {_CHOSEN} AS SELECT * FROM _chosen_source")
        connection.unregister("_chosen_source")
    keys = {EPISODES: "episode_id", STEPS: "episode_id", RUNS: "run_id"}
    for name in (EPISODES, STEPS, RUNS):
        body = sources.table(name)
        if chosen:
            body = f"SELECT * FROM ({body}) SEMI JOIN {_CHOSEN} USING ({keys[name]})"
        elif name == RUNS and not snapshot.newest:
            body = f"SELECT * FROM ({body}) SEMI JOIN {EPISODES} USING (run_id)"
        try:
            connection.execute(f"CREATE VIEW {name} AS {body}")
        except duckdb.Error:
            check_files(snapshot, name)
            raise
    connection.execute("CREATE VIEW transitions AS SELECT * FROM steps WHERE terminated IS NOT NULL")
    if read_only:
        sources.confine()
    return connection


def run_sql(snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.DuckDBPyRelation:
    """Bind a query to the views of `connect`.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
        QueryError: the text does not parse or names what is not there; the message has DuckDB's reason and
            the available columns.
    """
    if not isinstance(text, str):
        raise QueryError(f"A query of type {type(text).__name__} was given; expected SQL text.")
    try:
        kinds = [statement.type for statement in connection.extract_statements(text)]
        if len(kinds) > 1:
            raise QueryError(
                f"{text!r} holds {len(kinds)} statements, and only the last would give its result: expected "
                "one query. Ask them one after the other."
            )
        if kinds and not set(kinds) <= _QUERIES:
            raise QueryError(
                f"{text!r} is not a query: expected SELECT, FROM, WITH, DESCRIBE, SUMMARIZE or EXPLAIN. "
                "Use a connection of your own, from connect(), for other statements."
            )
        if _may_read_steps(text):
            snapshot.places(STEPS)
        relation = connection.sql(text)
    except duckdb.Error as error:
        if not isinstance(error, duckdb.ProgrammingError):
            for table in TABLES:
                check_files(snapshot, table)
        raise QueryError(f"{error}\n{_available(snapshot)}") from error
    if relation is None:
        raise QueryError(f"The text {text!r} holds no query, such as SELECT ... FROM episodes.")
    return relation


def _may_read_steps(text: str) -> bool:
    """Whether a query names the steps; where DuckDB cannot tell, it may."""
    try:
        # On a connection without our views, which would be looked into instead of named.
        with duckdb.connect(":memory:") as bare:
            names = bare.get_table_names(text)
    except duckdb.Error:
        return True
    return not names.isdisjoint((STEPS, "transitions"))


def check_files(snapshot: Snapshot, table: str) -> None:
    """Open every file of a table; an engine that failed on one may not have said which.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    for group in snapshot.groups(table):
        for place in group.places:
            open_parquet(place)


def _available(snapshot: Snapshot) -> str:
    lines = [f"  {name}: {', '.join(snapshot.shown_schema(name).names)}" for name in TABLES]
    hint = 'Names with a dot need double quotes, as in "info.x".'
    newer = snapshot.newer_version()
    if newer is not None:
        hint += f" This shows version {snapshot.version}; refresh() moves to version {newer}."
    return "Available (transitions has the columns of steps):\n" + "\n".join(lines) + f"\n{hint}"


def positions_where(snapshot: Snapshot, candidates: np.ndarray | None, condition: str) -> np.ndarray:
    """Positions of the episodes (among `candidates`) that fulfil an SQL condition, in their order.

    Raises:
        QueryError: the condition does not parse or names a column that is not there.
    """
    snapshot.places(EPISODES)
    sources = Sources(snapshot)
    connection = sources.connection
    try:
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
        rows = connection.view("_positioned")
        expression = duckdb.SQLExpression(condition)
        (kind,) = rows.select(expression).types
        if kind != "BOOLEAN":
            raise QueryError(
                f"The condition {condition!r} gives {kind}; expected a comparison or other BOOLEAN."
            )
        found = rows.filter(expression).select(_POSITION).order(_POSITION)
        result = np.asarray(found.fetchnumpy()[_POSITION], np.int64)
    except (duckdb.Error, ValueError) as error:
        if isinstance(error, QueryError):
            raise
        check_files(snapshot, EPISODES)
        raise QueryError(
            f"The condition {condition!r} is not valid: {error}\n{available_episodes(snapshot)}"
        ) from error
    finally:
        connection.close()
    return result if candidates is None else candidates[np.isin(candidates, result)]


def available_episodes(snapshot: Snapshot) -> str:
    """The hint that names the columns of the episodes table."""
    columns = ", ".join(snapshot.episodes_schema.names)
    vector = (
        " episode_return is a vector here: compare one objective, episode_return[1] in SQL (from 1), "
        'pl.col("episode_return").list.get(0) in Polars.'
    )
    return f"Available columns of episodes: {columns}. In SQL, names with a dot need double quotes." + (
        vector if snapshot.schema.reward_shape else ""
    )
