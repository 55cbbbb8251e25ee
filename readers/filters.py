"""Choose the episodes of a context that fulfil a condition, sort them, or check that all can be used.

Conditions in SQL are confined to the store: they reach no file, variable or setting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ..store.common.arguments import flag, suggest
from ..store.errors import CorruptStoreError, InvalidArgumentError, QueryError
from ..store.layout import EPISODES, RUNS, STEPS, TABLES
from ..store.snapshot import Snapshot
from .context import Parameters, ReadContext, SqlCondition, refresh_hint
from .corruption import name_damaged, steps_places
from .formatting import counted
from .frames import POSITION, collect_episodes, episodes_frame, positioned_episodes
from .sql.advice import advice
from .sql.beside import refuse_inexact, refuse_rounded
from .sql.connections import add_steps, check_frame_function, check_has_steps, macros_for
from .sql.macros import TRANSITIONS, WITH_NEXT
from .sql.rollout_views import rollout_columns, rollout_names
from .sql.session import QuerySession, check_text, plain_parameters
from .sql.sources import SqlSources, run_interruptible
from .sql.text import RUN, named_words, names_run_keys, run_keys

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
        sources = SqlSources(snapshot, segments, spill=False)
        connection = sources.connection

    def fulfilling() -> np.ndarray:
        if sources is not None:
            _confined_views(snapshot, sources, candidates, words if with_steps else None)
        return _fulfilling(snapshot, connection, asked)

    try:
        positions = run_interruptible(fulfilling, connection.interrupt)
    except BaseException as error:
        connection.close()
        if isinstance(error, QueryError) or not isinstance(error, duckdb.Error | ValueError):
            raise
        if isinstance(error, duckdb.Error):
            check_frame_function(connection, error)
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
    snapshot: Snapshot, sources: SqlSources, candidates: np.ndarray | None, words: frozenset[str] | None
) -> None:
    """Create what a condition may see, and close the connection off from everything else.

    Args:
        snapshot, sources, candidates: as for `positions_where`.
        words: of a condition that reads steps, for the macros that it names; None for any other.
    """
    connection = sources.connection
    names = _further_columns(snapshot)
    body = f"SELECT *{names}, row_number() OVER () - 1 AS {POSITION} FROM ({sources.table(EPISODES)})"
    if candidates is not None:
        chosen = np.zeros(snapshot.episode_count, bool)
        chosen[candidates] = True
        connection.register("_choice", pa.table({_CHOSEN: chosen}))
        # Takes half the time of a hash join of the positions.
        body = f"SELECT * EXCLUDE ({_CHOSEN}) FROM (({body}) POSITIONAL JOIN _choice) WHERE {_CHOSEN}"
    sources.create_view("_positioned", body)
    # So that a subquery in the condition sees the same episodes.
    sources.create_view(EPISODES, f"SELECT * EXCLUDE ({POSITION}) FROM _positioned")
    sources.create_view(RUNS, sources.table(RUNS))
    if words is not None:
        steps_places(snapshot, sources.segments)
        position_of = f"SELECT episode_id FROM _positioned WHERE {POSITION} = _place"
        choice = f"SEMI JOIN {EPISODES} USING (episode_id)"
        whole = ReadContext.of(snapshot)
        context = whole if candidates is None else whole.choose(candidates)
        add_steps(sources, context, choice, position_of, words, check=False)
        check_has_steps(connection)
    sources.confine()


def _names_of_rollouts(snapshot: Snapshot) -> dict[str, str]:
    """Return further names of columns of episodes; empty for a store of other episodes than rollouts."""
    there = snapshot.episodes_schema.names
    return rollout_names(there) if snapshot.of_rollouts else {}


def _further_columns(snapshot: Snapshot) -> str:
    """Return the end of a list of columns of episodes: those by further names."""
    return rollout_columns(snapshot.episodes_schema.names) if snapshot.of_rollouts else ""


def _fulfilling(
    snapshot: Snapshot,
    connection: duckdb.DuckDBPyConnection,
    asked: SqlCondition,
) -> np.ndarray:
    """Positions of the episodes that fulfil a condition, in any order."""
    condition, parameters = asked.text, plain_parameters(asked.parameters)
    # Raises if it is anything but one expression, which is then safe within brackets.
    duckdb.SQLExpression(condition)
    refuse_inexact([snapshot], "The filter", condition, parameters, condition=True)
    rows = f"_positioned AS {EPISODES}"
    if names_run_keys(condition):
        rows = f"({SqlSources.with_run(snapshot, 'FROM _positioned', f'FROM {RUNS}')}) AS {EPISODES}"
    result = connection.execute(f"SELECT ({condition}\n) AS kind FROM {rows} LIMIT 0", parameters)
    kind = str(result.description[0][1]) if result.description else ""
    if kind != "BOOLEAN":
        raise QueryError(f"The condition {condition!r} gives {kind}; expected a comparison or other BOOLEAN.")
    query = f"SELECT {POSITION} FROM {rows} WHERE ({condition}\n)"
    return np.asarray(connection.execute(query, parameters).fetchnumpy()[POSITION], np.int64)


def invalid_expression(
    snapshot: Snapshot, problem: str, expression: pl.Expr, error: pl.exceptions.PolarsError
) -> QueryError:
    """Return the error of an expression over the episodes table that Polars refused."""
    columns = snapshot.episodes_schema.names
    near = [_meant(snapshot, name) for name in expression.meta.root_names() if name not in columns]
    # Without the plan of the query, and Polars' list of columns, which has one of ours among them.
    reason = str(error).partition("\n")[0].partition("; valid columns")[0]
    return QueryError(
        f"{problem}: {reason}.{near[0] if near else ''}\n{available_episodes(snapshot)}"
        + refresh_hint(snapshot)
    )


def _meant(snapshot: Snapshot, name: str) -> str:
    """Return the end of a message about an unknown column of episodes."""
    prefix, _, key = name.partition(".")
    if (column := _names_of_rollouts(snapshot).get(name)) is not None:
        return f" It is the column {column} of episodes. SQL text has both names."
    if prefix != RUN or not key:
        return suggest(name, snapshot.episodes_schema.names)
    known = run_keys(snapshot)
    if key not in known:
        return f" No run has a key {key!r}.{suggest(key, list(known))}"
    return (
        " It is metadata of runs, which an expression over episodes does not see. Write SQL text, as in "
        f'filter("{name} = ...") and sort("{name}"), or join store.runs by run_id.'
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


def filter_episodes(
    context: ReadContext, condition: pl.Expr | str | SqlCondition, parameters: Parameters | None = None
) -> ReadContext:
    """Return the episodes that fulfil a condition, in their order; see `EpisodeView.filter`.

    Raises:
        QueryError: the condition is not valid, and the message lists the columns that are there; or it has an
            integer that the column it compares shows rounded.
    """
    condition = SqlCondition.of(condition, parameters, "a filter")
    if isinstance(condition, SqlCondition):
        positions = positions_where(context.snapshot, context.positions, condition)
    else:
        refuse_rounded(context.snapshot, condition)
        positions = _matching(context, condition)
    conditions = None if context.conditions is None else (*context.conditions, condition)
    return context.choose(positions, conditions)


def _matching(context: ReadContext, condition: pl.Expr) -> np.ndarray:
    snapshot = context.snapshot
    frame = positioned_episodes(snapshot, context.positions).filter(condition).select(POSITION)
    try:
        matches = collect_episodes(snapshot, frame)
    except pl.exceptions.PolarsError as error:
        raise invalid_expression(snapshot, "The filter is not valid", condition, error) from error
    return matches[POSITION].to_numpy().astype(np.int64)


def check_episodes(context: ReadContext, *, finished: bool, unique: bool) -> None:
    """Refuse episodes that are unfinished, repeated, or have gaps; see `EpisodeView.check`."""
    snapshot = context.snapshot
    frame = positioned_episodes(snapshot, context.all_positions)
    keyed = unique and frame.collect_schema().get(_SOURCE_KEY) == pl.String
    columns = ["episode_id", "terminated", "truncated", *([_SOURCE_KEY] if keyed else [])]
    rows = collect_episodes(snapshot, frame.select(columns))
    gaps = rows.filter(pl.Series(_with_gaps(context), dtype=pl.Boolean))
    if len(gaps):
        raise CorruptStoreError(
            f"The steps of {_some(gaps)} are not numbered t = 0, 1, 2, ...: the files are damaged. "
            "verify() names them."
        )
    ended = pl.col("terminated").fill_null(False) | pl.col("truncated").fill_null(False)
    cut = rows.filter(~ended) if finished else rows.clear()
    if len(cut):
        raise InvalidArgumentError(
            f"{_some(cut)} did not finish: neither terminated nor truncated. Leave them out with "
            "filter('terminated or truncated'), or allow them with check(finished=False)."
        )
    if keyed:
        key = pl.col(_SOURCE_KEY)
        again = rows.filter(key.is_not_null() & ~key.is_first_distinct())
        if len(again):
            raise InvalidArgumentError(
                f"Duplicate source key: {_some(again)} repeats that of an earlier episode, such as "
                f"{again[_SOURCE_KEY][0]!r}. Keep the first of each with "
                f"filter(pl.col({_SOURCE_KEY!r}).is_null() | pl.col({_SOURCE_KEY!r}).is_first_distinct()), "
                "or allow them with check(unique=False)."
            )


_SOURCE_KEY = "metadata.source_key"


def _some(rows: pl.DataFrame) -> str:
    named = ", ".join(map(repr, rows["episode_id"].head(3)))
    return f"{counted(len(rows), 'episode')} ({named}{', ...' if len(rows) > 3 else ''})"


def _with_gaps(context: ReadContext) -> np.ndarray:
    """Return whose steps, or an agent's, are not numbered from 0 without a gap: bool, one per episode.

    Memory: the numbers of the steps of one segment.
    """
    pointers = context.snapshot.pointers.chosen(context.all_positions)
    gaps = np.zeros(len(context), bool)
    for index in np.unique(pointers.segment):
        own = np.flatnonzero(pointers.segment == index)
        starts, counts = pointers.row_start[own], pointers.row_count[own]
        file = context.blocks.file(pointers.segments[index])
        file.groups_of(0, int((starts + counts).max()))
        table = file.read(range(len(file.starts) - 1), ["t"])
        if not table.column_names:
            raise CorruptStoreError(f"The file {file.path} has no column 't'.")
        t = table.column(0).fill_null(-1).to_numpy()
        wrong = np.diff(t, prepend=-1) != 1
        if context.snapshot.schema.groups:
            wrong &= t != 0
        before = np.concatenate([[0], np.cumsum(wrong)])
        gaps[own] = (t[starts] != 0) | (before[starts + counts] > before[starts + 1])
    return gaps


_KEY = "_key"
_NAME = re.compile(r"[\w.%]+")


def sort_episodes(
    context: ReadContext,
    by: str | pl.Expr | Sequence[str | pl.Expr],
    *,
    descending: bool | Sequence[bool],
) -> ReadContext:
    """Sort episodes by columns or expressions over the episodes table; see `EpisodeView.sort`.

    Raises:
        QueryError: an expression is not valid, names a column that is not there, or gives lists.
        CorruptStoreError: a file of episodes is damaged; the message names it.
    """
    keys = [by] if isinstance(by, str | pl.Expr) or not isinstance(by, Sequence) else list(by)
    each = isinstance(descending, list | tuple | np.ndarray)
    given: Iterable[Any] = descending if each else [descending] * len(keys)  # type: ignore[assignment]
    flags = [flag("descending", value) for value in given]
    if not keys:
        raise QueryError("sort([]) names nothing to sort by: expected at least one column or expression.")
    if len(flags) != len(keys):
        raise QueryError(
            f"sort() got {counted(len(keys), 'key')} and {counted(len(flags), 'flag')} in descending="
            f"{descending!r:.200}; expected one flag for all, or one for each."
        )
    values = [_values(context, key) for key in keys]
    table = pl.DataFrame([value.alias(f"{_KEY}{number}") for number, value in enumerate(values)])
    sorting = pl.arg_sort_by(table.columns, descending=flags, nulls_last=True, maintain_order=True)
    order = table.select(sorting).to_series().to_numpy().astype(np.int64)
    return context.choose(order if context.positions is None else context.positions[order])


def _values(context: ReadContext, by: str | pl.Expr) -> pl.Series:
    """Return the value of each episode by which it is sorted."""
    if not isinstance(by, str | pl.Expr):
        raise QueryError(
            f"sort() got by={by!r:.200} of type {type(by).__name__}; expected the name of a column, an SQL "
            "expression or a Polars expression, or a list of those."
        )
    snapshot = context.snapshot
    frame = positioned_episodes(snapshot, context.positions)
    if isinstance(by, str):
        by = _names_of_rollouts(snapshot).get(by, by)
    key = pl.col(by) if isinstance(by, str) else by
    try:
        named = isinstance(by, str) and by in frame.collect_schema()
        if isinstance(by, str) and not named and (not _NAME.fullmatch(by) or names_run_keys(by)):
            values = _sql_values(context, by)
        else:
            values = collect_episodes(snapshot, frame.select(key.alias(_KEY)))[_KEY]
    except pl.exceptions.PolarsError as error:
        raise invalid_expression(snapshot, f"Cannot sort by {by!s}", key, error) from error
    if values.dtype.is_nested():
        raise QueryError(
            f"Cannot sort by {by!s}, which holds lists. Sort by one element, such as pl.col(...).list.get(0)."
        )
    if len(values) != len(context):
        raise QueryError(
            f"Cannot sort {counted(len(context), 'episode')} by {by!s}, which gives "
            f"{counted(len(values), 'value')}. Sort by one for each episode."
        )
    return values


def _sql_values(context: ReadContext, text: str) -> pl.Series:
    """Return the value of an SQL expression for each episode, in the order of the context."""
    try:
        # Raises if it is anything but one expression, which is then safe within brackets.
        duckdb.SQLExpression(text)
    except duckdb.Error as error:
        raise QueryError(f"Cannot sort by {text!r}, which is no SQL expression: {error}") from error
    session = QuerySession(context, keep_rows=False)
    try:
        names = _further_columns(context.snapshot)
        rows = f"(SELECT *{names} FROM episodes) AS episodes" if names else "episodes"
        values = session.query(f"SELECT episode_id, ({text}\n) AS {_KEY} FROM {rows}")
    finally:
        session.close()
    snapshot = context.snapshot
    ids = collect_episodes(snapshot, episodes_frame(snapshot, context.positions).select("episode_id"))
    return ids.join(values, on="episode_id", how="left", maintain_order="left")[_KEY]
