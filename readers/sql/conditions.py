"""Episodes that fulfil a condition: SQL text over the episodes table, confined to the store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from weakref import WeakKeyDictionary

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ...store.common.suggestions import suggest
from ...store.errors import QueryError
from ...store.layout import EPISODES, RUNS, STEPS, TABLES
from ...store.snapshot import Snapshot
from ..context import SqlCondition, refresh_hint
from ..damaged_files import name_damaged, steps_places
from ..page_guard import check_plan
from .advice import advice
from .connections import add_macros, add_steps, create_view, macros_for
from .macros import TRANSITIONS, WITH_NEXT
from .session import check_text, plain_parameters, plan_with
from .sources import Sources, run_interruptible
from .text import named_words

_POSITION = "_position"
_CHOSEN = "_chosen"
#: Behind the error of `end_reason = truncated`, which compares two columns.
_TEXTS = "\nTexts stand in single quotes, as in end_reason = 'truncated'."
#: Idle connections by snapshot and process, each confined to all episodes of the snapshot. Opening a
#: connection takes longer than most conditions.
_idle: WeakKeyDictionary[Snapshot, dict[int, duckdb.DuckDBPyConnection]] = WeakKeyDictionary()


def positions_where(snapshot: Snapshot, candidates: np.ndarray | None, asked: SqlCondition) -> np.ndarray:
    """Positions of the episodes (among `candidates`) that fulfil an SQL condition, in their order.

    The condition sees the store's tables. It can reach no other file, no variable of Python and no setting.

    Raises:
        QueryError: the condition does not parse or names a column that is not there.
    """
    condition = asked.text
    check_text(condition)
    snapshot.places(EPISODES)
    # A subquery may read steps, and so may a macro.
    reading = {STEPS, TRANSITIONS, WITH_NEXT} | {macro.name for macro in macros_for(snapshot)}
    words = named_words(condition)
    with_steps = not words.isdisjoint(reading)
    segments = snapshot.segments_of(candidates) if with_steps and candidates is not None else None
    tables = TABLES if with_steps else (RUNS, EPISODES)
    reusable = candidates is None and not with_steps
    connection = _idle.get(snapshot, {}).pop(os.getpid(), None) if reusable else None
    sources = None
    if connection is None:
        sources = Sources(snapshot, segments, spill=False)
        connection = sources.connection

    def fulfilling() -> np.ndarray:
        if sources is not None:
            _confined_views(snapshot, sources, candidates, words if with_steps else None)
        return _fulfilling(snapshot, connection, asked, tables, segments)

    try:
        positions = run_interruptible(fulfilling, connection.interrupt)
    except BaseException as error:
        connection.close()
        if isinstance(error, QueryError) or not isinstance(error, duckdb.Error | ValueError):
            raise
        if isinstance(error, duckdb.Error):
            name_damaged(snapshot, error, tables, segments)
        if isinstance(error, duckdb.PermissionException):
            raise QueryError(
                f"The condition {condition!r} reaches outside the store, which conditions may not: {error} "
                "Use sql(...) or a connection of your own, from connect(), to bring other data in."
            ) from error
        texts = _TEXTS if isinstance(error, duckdb.ConversionException) else ""
        raise QueryError(
            advice(snapshot, condition, f"The condition {condition!r} is not valid: {error}", (), (EPISODES,))
            + texts
            + _vector_hint(snapshot)
        ) from error
    if reusable:
        _idle.setdefault(snapshot, {})[os.getpid()] = connection
    else:
        connection.close()
    kept = np.zeros(snapshot.episode_count, bool)
    kept[positions] = True
    return np.flatnonzero(kept) if candidates is None else candidates[kept[candidates]]


def _confined_views(
    snapshot: Snapshot, sources: Sources, candidates: np.ndarray | None, words: frozenset[str] | None
) -> None:
    """Create what a condition may see, and close the connection off from everything else.

    Args:
        snapshot, sources, candidates: as for `positions_where`.
        words: of a condition that reads steps, for the macros that it names; None for any other.
    """
    connection = sources.connection
    body = f"SELECT *, row_number() OVER () - 1 AS {_POSITION} FROM ({sources.table(EPISODES)})"
    if candidates is not None:
        chosen = np.zeros(snapshot.episode_count, bool)
        chosen[candidates] = True
        connection.register("_choice", pa.table({_CHOSEN: chosen}))
        # Takes half the time of a hash join of the positions.
        body = f"SELECT * EXCLUDE ({_CHOSEN}) FROM (({body}) POSITIONAL JOIN _choice) WHERE {_CHOSEN}"
    create_view(snapshot, connection, "_positioned", body)
    # So that a subquery in the condition sees the same episodes.
    create_view(snapshot, connection, EPISODES, f"SELECT * EXCLUDE ({_POSITION}) FROM _positioned")
    create_view(snapshot, connection, RUNS, sources.table(RUNS))
    if words is not None:
        steps_places(snapshot, sources.segments)
        position_of = f"SELECT episode_id FROM _positioned WHERE {_POSITION} = _place"
        add_steps(sources, f"SEMI JOIN {EPISODES} USING (episode_id)", position_of, check=False)
        add_macros(connection, words)
    sources.confine()


def _fulfilling(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    asked: SqlCondition,
    tables: Sequence[str],
    segments: frozenset[str] | None,
) -> np.ndarray:
    """Positions of the episodes that fulfil a condition, in any order."""
    condition, parameters = asked.text, plain_parameters(asked.parameters)
    # Raises if it is anything but one expression, which is then safe within brackets.
    duckdb.SQLExpression(condition)
    result = connection.execute(f"SELECT ({condition}\n) AS kind FROM _positioned LIMIT 0", parameters)
    kind = str(result.description[0][1]) if result.description else ""
    if kind != "BOOLEAN":
        raise QueryError(f"The condition {condition!r} gives {kind}; expected a comparison or other BOOLEAN.")
    query = f"SELECT {_POSITION} FROM _positioned WHERE ({condition}\n)"
    check_plan(snapshot, partial(plan_with, connection, parameters, query), tables, segments)
    return np.asarray(connection.execute(query, parameters).fetchnumpy()[_POSITION], np.int64)


def invalid_expression(
    snapshot: Snapshot, problem: str, expression: pl.Expr, error: pl.exceptions.PolarsError
) -> QueryError:
    """Return the error of an expression over the episodes table that Polars refused."""
    columns = snapshot.episodes_schema.names
    near = [suggest(name, columns) for name in expression.meta.root_names() if name not in columns]
    # Without the plan of the query, and Polars' list of columns, which has one of ours among them.
    reason = str(error).partition("\n")[0].partition("; valid columns")[0]
    return QueryError(
        f"{problem}: {reason}.{near[0] if near else ''}\n{available_episodes(snapshot)}"
        + refresh_hint(snapshot)
    )


def available_episodes(snapshot: Snapshot) -> str:
    """Return the hint that names the columns of the episodes table."""
    columns = ", ".join(snapshot.episodes_schema.names)
    hint = _vector_hint(snapshot).replace("\n", " ")
    return f"Available columns of episodes: {columns}. In SQL, names with a dot need double quotes.{hint}"


def _vector_hint(snapshot: Snapshot) -> str:
    """Return a hint on comparing returns of several objectives; empty for a single one."""
    if not snapshot.schema.reward_shape:
        return ""
    return (
        "\nepisode_return is a vector here: compare one objective, episode_return[1] in SQL (from 1), "
        'pl.col("episode_return").list.get(0) in Polars.'
    )
