"""Connections over some episodes: the views `runs`, `episodes`, `steps`, `transitions` and the macros.

The views name the files of the snapshot, so DuckDB prunes columns and row groups as on bare files and sees no
row that the snapshot does not show. Everything that asks DuckDB, charts and conditions too, creates its views
here.
"""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakKeyDictionary

import duckdb
import numpy as np

from ...store.errors import CorruptStoreError, StoreAccessError, StoreUnavailableError
from ...store.layout import EPISODES, RUNS, STEPS
from ...store.snapshot import Snapshot
from ..context import ReadContext
from ..corruption import steps_places
from ..frames import collect_episodes, episodes_frame
from .frame_function import FrameFunction
from .macros import FRAME_AT, TRANSITIONS, WITH_NEXT, Macro, macros_of, statements, with_following
from .rollout_views import rollout_macros, rollout_views
from .sources import SqlSources, close_at_exit, run_interruptible, sql_type
from .text import is_whole, literal, quote

Words = Collection[str] | None
_CHOSEN = "_chosen_episodes"
_POSITION = "_position"
#: Most episodes whose rows a connection keeps in memory.
_MOST_KEPT = 2_000_000
_macros: WeakKeyDictionary[Snapshot, tuple[Macro, ...]] = WeakKeyDictionary()
#: Functions whose query may use a macro that its text does not name.
_OF_NAMES = {"query", "query_table", "duckdb_functions", "pg_proc"}
#: Why a connection lacks the steps, where the system refused a file of them.
_refused: WeakKeyDictionary[duckdb.DuckDBPyConnection, StoreAccessError] = WeakKeyDictionary()
#: The statements that create the macros which a connection lacks, by name.
_pending: WeakKeyDictionary[duckdb.DuckDBPyConnection, dict[str, str]] = WeakKeyDictionary()
#: What `frame_at` calls.
_frame_functions: WeakKeyDictionary[duckdb.DuckDBPyConnection, FrameFunction] = WeakKeyDictionary()


def connect(
    context: ReadContext,
    *,
    read_only: bool = False,
    keep_rows: bool = False,
    steps: bool = True,
    check_steps: bool = True,
    run_keys: bool = False,
    words: Words = None,
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB with the views on some episodes, and the macros.

    Args:
        read_only: the connection can read these views and compute, and nothing else.
        keep_rows: hold the rows of runs, and the columns of episodes that queries read, in memory, unless
            there are millions, for many queries that would otherwise decode them again.
        steps: create the views of steps, and the macros; without them no file of steps is needed.
        check_steps: check the footers of steps files now, where DuckDB reads them itself; where one is
            damaged, queries over steps fail with its name. A `QuerySession` checks them before each query, so
            its connections can do without.
        run_keys: give `episodes` the column `run`, a STRUCT of the name and the metadata of its run.
        words: create only the macros of these names; `add_macros` creates others. None for all.

    Raises:
        CorruptStoreError: a file of episodes or runs is damaged, or the store was opened to check all pages
            and one of a steps file is; the message names it. Files that are read through Arrow are checked by
            the first query that reads them, which then fails with the same message.
        KeyboardInterrupt: the caller was interrupted; there is no connection.
    """
    snapshot, positions = context.snapshot, context.positions
    keep_rows = keep_rows and snapshot.episode_count <= _MOST_KEPT
    segments = context.segments if steps else None
    # Columns of all rows of episodes are kept as queries read them.
    keep = frozenset([EPISODES] if keep_rows and positions is None else [])
    sources = SqlSources(snapshot, segments, confined=read_only, keep=keep)
    connection = sources.connection
    checked = not sources.through_arrow or snapshot.layout.check_pages

    def connected() -> duckdb.DuckDBPyConnection:
        for table in (RUNS, EPISODES) if checked else ():
            snapshot.places(table)
        if steps and snapshot.layout.check_pages:
            steps_places(snapshot, sources.segments)
        hidden = steps and snapshot.episode_count > 0 and snapshot.hidden_rows
        chosen = positions is not None or hidden
        if chosen:
            _register_chosen(snapshot, connection, positions, read_only)
        if steps:
            choice = f"SEMI JOIN {_CHOSEN} USING (episode_id)" if chosen else ""
            position_of = _position_of(len(context), chosen)
            _add_empty(sources, EPISODES)
            add_steps(sources, context, choice, position_of, words, check=check_steps and checked)
        for name, key in ((EPISODES, "episode_id"), (RUNS, "run_id")):
            body = sources.table(name)
            if chosen and name not in keep:
                body = f"SELECT * FROM ({body}) SEMI JOIN {_CHOSEN} USING ({key})"
            elif name == RUNS and not snapshot.newest:
                body = f"SELECT * FROM ({body}) SEMI JOIN {EPISODES} USING (run_id)"
            if keep_rows and name not in keep:
                body = _kept(connection, name, body)
            if run_keys and name == EPISODES:
                body = SqlSources.with_run(snapshot, body, sources.table(RUNS))
            sources.create_view(name, body)
        if read_only:
            sources.confine()
        return connection

    return run_interruptible(connected)


def _register_chosen(
    snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, positions: np.ndarray | None, read_only: bool
) -> None:
    """Register the ids of the episodes at `positions` and of their runs as a table, in this order.

    Of a read-only connection no query can change it.
    """
    ids = collect_episodes(snapshot, episodes_frame(snapshot, None).select("episode_id", "run_id"))
    chosen = (ids if positions is None else ids[positions]).with_row_index(_POSITION).to_arrow()
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


def _position_of(count: int, chosen: bool) -> str:
    """Return a query for the id of the episode at the parameter `_place`, one of `count` episodes.

    A place that none of them has is an error, as `store[place]` is; where there are none, it has no row.
    """
    given, said = "try_cast(_place AS BIGINT)", "coalesce(_place::VARCHAR, 'NULL')"
    no_number = (
        f"'episode_at takes a position, such as 0 or -1, and not ' || {said} || "
        f"'; for an id use FROM {EPISODES} WHERE episode_id = ...'"
    )
    beyond = f"'there is no episode at position ' || {said} || '; positions go from {-count} to {count - 1}'"
    wanted = f"""
        CASE WHEN {count} = 0 THEN 0
        WHEN NOT {is_whole("_place")} THEN error({no_number})::BIGINT
        WHEN {given} BETWEEN 0 AND {count - 1} THEN {given}
        WHEN {given} BETWEEN {-count} AND -1 THEN {given} + {count}
        ELSE error({beyond})::BIGINT END"""
    if chosen:
        return f"SELECT episode_id FROM {_CHOSEN} WHERE {_POSITION} = {wanted}"
    return f"SELECT episode_id FROM {EPISODES} LIMIT 1 OFFSET {wanted}"


def add_steps(
    sources: SqlSources, context: ReadContext, choice: str, position_of: str, words: Words, *, check: bool
) -> None:
    """Create the views of the steps that `choice` keeps, and macros.

    Where a file of steps is damaged, queries over the other tables go on; those over steps name the file.

    Args:
        context: the episodes whose steps `choice` keeps.
        choice: the end of a query over steps, such as a SEMI JOIN.
        position_of: see `Macro.at`.
        words: the macros to create, as for `add_macros`.
        check: as `check_steps` of `connect`.
    """
    snapshot, connection = sources.snapshot, sources.connection
    # DuckDB binds a view or macro when it is created, and again in each query: here without any file.
    _add_empty(sources, STEPS)
    sources.create_view(TRANSITIONS, f"SELECT * FROM {STEPS} WHERE terminated IS NOT NULL")
    if snapshot.of_rollouts:
        # An annotation of steps may have the name, and not the type, of a part of messages.
        annotated = [each.name for each in snapshot.annotation_files.annotations.values()]
        recorded = set(snapshot.filled_schema(STEPS).names).difference(annotated)
        annotations = {STEPS: annotated, EPISODES: snapshot.episode_annotations}
        views = rollout_views(recorded, snapshot.shown_schema(EPISODES).names, annotations)
        for name, body in views.items():
            sources.create_view(name, body)
    _pending[connection] = dict(statements(macros_for(snapshot, position_of)))
    _frame_functions[connection] = FrameFunction(context)
    add_macros(connection, words)
    try:
        if check:
            steps_places(snapshot, sources.segments)
        following = sources.steps_with(with_following(snapshot.table_schema(STEPS).names))
        sources.create_view(STEPS, f"SELECT * FROM ({sources.table(STEPS)}) {choice}")
        sources.create_view(WITH_NEXT, f"SELECT * FROM ({following}) {choice} WHERE terminated IS NOT NULL")
    except StoreUnavailableError:
        # The views of a connection last; the reason does not.
        raise
    except (CorruptStoreError, StoreAccessError) as error:
        if isinstance(error, StoreAccessError):
            _refused[connection] = error
        for name in (STEPS, WITH_NEXT):
            _add_empty(sources, name, str(error))


def check_frame_function(connection: duckdb.DuckDBPyConnection, error: Exception) -> None:
    """Raise the error of our tree that `frame_at` raised in a query, for the one of DuckDB that has its text.

    Raises:
        as for `FrameFunction.check`.
    """
    if connection in _frame_functions:
        _frame_functions[connection].check(error)


def check_has_steps(connection: duckdb.DuckDBPyConnection) -> None:
    """Refuse to read steps on a connection that lacks them.

    Raises:
        StoreAccessError: the system refused a file of steps as their views were made.
    """
    if connection in _refused:
        raise _refused[connection]


def add_macros(connection: duckdb.DuckDBPyConnection, words: Words) -> None:
    """Create the macros that a connection lacks, of those with names among `words`; None for all.

    Some are megabytes of text where the action has many numbers, so a query creates what it names.
    """
    pending = _pending.get(connection, {})
    if words is None or not _OF_NAMES.isdisjoint(words):
        words = tuple(pending)
    for name in [name for name in pending if name in words]:
        if name == FRAME_AT:
            _frame_functions[connection].register(connection)
            close_at_exit(connection)
        connection.execute(pending[name])
        del pending[name]


def _add_empty(sources: SqlSources, name: str, reason: str | None = None) -> None:
    """Create a view of no rows with the columns of a table; with a reason, reading it fails."""
    shown = sources.snapshot.shown_schema(EPISODES if name == EPISODES else STEPS)
    # Not NULL beside an error: DuckDB evaluates no other condition where one on a NULL is false.
    value = "NULL" if reason is None else f"error({literal(reason)})"
    columns = ", ".join(f"{value}::{sql_type(field.type)} AS {quote(field.name)}" for field in shown)
    condition = "false" if reason is None else f"{value}::BOOLEAN"
    sources.create_view(name, f"SELECT {columns} WHERE {condition}")


def macros_for(snapshot: Snapshot, position_of: str = "") -> tuple[Macro, ...]:
    """Return the macros that a connection to a snapshot has, made once for each snapshot.

    Args:
        position_of: see `Macro.at`.
    """
    if snapshot not in _macros:
        macros = macros_of(snapshot.schema, snapshot.shown_schema(STEPS).names)
        _macros[snapshot] = (*macros, *rollout_macros()) if snapshot.of_rollouts else macros
    return tuple(macro.at(position_of) for macro in _macros[snapshot])
