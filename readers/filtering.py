"""Fewer episodes of a context: those that fulfil a condition over the episodes table."""

from __future__ import annotations

import numpy as np
import polars as pl
import polars.exceptions

from ..store.errors import QueryError
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
