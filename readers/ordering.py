"""The order of episodes by a column of their table."""

from __future__ import annotations

import numpy as np
import polars as pl
import polars.exceptions

from ..store.errors import QueryError
from .context import ReadContext
from .frames import collect_episodes, positioned_episodes
from .sql.conditions import available_episodes

_KEY = "_key"


def sort_episodes(context: ReadContext, by: str | pl.Expr, *, descending: bool) -> ReadContext:
    """Sort episodes by a column or an expression over the episodes table; see `EpisodeView.sort`.

    Raises:
        QueryError: the expression is not valid, names a column that is not there, or gives lists.
        CorruptStoreError: a file of episodes is damaged; the message names it.
    """
    if not isinstance(by, str | pl.Expr):
        raise QueryError(
            f"sort() got by={by!r:.200} of type {type(by).__name__}; expected the name of a column or a "
            "Polars expression."
        )
    key = pl.col(by) if isinstance(by, str) else by
    snapshot, positions = context.snapshot, context.positions
    frame = positioned_episodes(snapshot, positions)
    try:
        values = collect_episodes(snapshot, frame.select(key.alias(_KEY)))[_KEY]
    except polars.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise QueryError(f"Cannot sort by {by!s}: {reason}\n{available_episodes(snapshot)}") from error
    if values.dtype.is_nested():
        raise QueryError(
            f"Cannot sort by {by!s}, which holds lists. Sort by one element, such as pl.col(...).list.get(0)."
        )
    count = len(context)
    if len(values) != count:
        raise QueryError(
            f"Cannot sort {count:,} episodes by {by!s}, which gives {len(values):,} values. Sort by one for "
            "each episode."
        )
    order = sorted_positions(values, descending)
    return context.choose(order if positions is None else positions[order])


def sorted_positions(column: pl.Series, descending: bool) -> np.ndarray:
    """Positions, int64, in the order of a column: equal values by position, nulls last, NaN above numbers."""
    kind = column.dtype
    plain = kind.is_integer() or (kind.is_float() and not column.is_nan().any())
    if plain and not column.null_count():
        values = column.to_numpy()
        if descending:
            values = -values if kind.is_float() else ~values
        return _sorted_numbers(values)
    order = pl.arg_sort_by(_KEY, descending=descending, nulls_last=True, maintain_order=True)
    return column.alias(_KEY).to_frame().select(order).to_series().to_numpy().astype(np.int64)


def _sorted_numbers(values: np.ndarray) -> np.ndarray:
    """Their positions from the lowest to the highest, equal ones by position.

    numpy's unstable sort uses wide instructions: sorting twice takes half the time of one stable sort.
    """
    order = np.argsort(values)
    ranked = values[order]
    differs = np.zeros(len(order), np.int64)
    differs[1:] = ranked[1:] != ranked[:-1]
    groups = np.cumsum(differs) * len(order)
    keys = groups + order
    keys.sort()
    return keys - groups
