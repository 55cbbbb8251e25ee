"""Conditions on the episodes of a context: choose those that fulfil one, or check that all can be used."""

from __future__ import annotations

import numpy as np
import polars as pl
import polars.exceptions

from ..store.errors import CorruptStoreError, InvalidArgumentError, QueryError
from .context import Parameters, ReadContext, SqlCondition
from .frames import POSITION, collect_episodes, positioned_episodes
from .sql.conditions import available_episodes, positions_where


def filter_episodes(
    context: ReadContext, condition: pl.Expr | str | SqlCondition, parameters: Parameters | None = None
) -> ReadContext:
    """Return the episodes that fulfil a condition, in their order; see `EpisodeView.filter`.

    Raises:
        QueryError: the condition is not valid; the message lists the columns that are there.
    """
    if isinstance(condition, str):
        condition = SqlCondition(condition, parameters)
    elif parameters is not None:
        raise QueryError(
            f"parameters={parameters!r:.200} came with a filter of type {type(condition).__name__}; "
            "expected them with SQL text. Put the values into the expression."
        )
    if isinstance(condition, SqlCondition):
        positions = positions_where(context.snapshot, context.positions, condition)
    elif isinstance(condition, pl.Expr):
        positions = _matching(context, condition)
    else:
        raise QueryError(
            f"A filter of type {type(condition).__name__} was given; expected a Polars "
            f"expression or SQL text."
        )
    conditions = None if context.conditions is None else (*context.conditions, condition)
    return context.choose(positions, conditions)


def _matching(context: ReadContext, condition: pl.Expr) -> np.ndarray:
    snapshot = context.snapshot
    frame = positioned_episodes(snapshot, context.positions).filter(condition).select(POSITION)
    try:
        found = collect_episodes(snapshot, frame)
    except polars.exceptions.PolarsError as error:
        # Leave out the plan of the query, and Polars' list of columns, which has one of ours among them.
        reason = str(error).partition("\n")[0].partition("; valid columns")[0]
        raise QueryError(
            f"The filter is not valid: {reason}\n{available_episodes(snapshot)}{context.refresh_hint()}"
        ) from error
    return found[POSITION].to_numpy().astype(np.int64)


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
            f"{_some(gaps)} have steps that are not numbered t = 0, 1, 2, ...: the files are damaged. "
            "verify() names them."
        )
    ended = pl.col("terminated").fill_null(False) | pl.col("truncated").fill_null(False)
    cut = rows.filter(~ended) if finished else rows.clear()
    if len(cut):
        raise InvalidArgumentError(
            f"{_some(cut)} are not finished: neither terminated nor truncated. Leave them out with "
            "filter('terminated or truncated'), or allow them with check(finished=False)."
        )
    if keyed:
        key = pl.col(_SOURCE_KEY)
        again = rows.filter(key.is_not_null() & ~key.is_first_distinct())
        if len(again):
            raise InvalidArgumentError(
                f"{_some(again)} have the source key of an earlier one, such as "
                f"{again[_SOURCE_KEY][0]!r}. Keep the first of each with "
                f"filter(pl.col({_SOURCE_KEY!r}).is_null() | pl.col({_SOURCE_KEY!r}).is_first_distinct()), "
                "or allow them with check(unique=False)."
            )


_SOURCE_KEY = "metadata.source_key"


def _some(rows: pl.DataFrame) -> str:
    named = ", ".join(map(repr, rows["episode_id"].head(3)))
    return f"{len(rows)} episodes ({named}{', ...' if len(rows) > 3 else ''})"


def _with_gaps(context: ReadContext) -> np.ndarray:
    """Return whose steps, or an agent's, are not numbered from 0 without a gap: bool, one per episode.

    Memory: the numbers of the steps of one segment.
    """
    pointers = context.snapshot.pointers.chosen(context.all_positions)
    found = np.zeros(len(context), bool)
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
        found[own] = (t[starts] != 0) | (before[starts + counts] > before[starts + 1])
    return found
