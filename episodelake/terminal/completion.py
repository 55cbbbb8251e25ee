"""What the shell completes: stores, ids of episodes, columns and tables.

The shell runs the program at every press of the tab key, so only what comes quickly is offered. What goes
wrong offers nothing: there is nobody to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import polars.exceptions

from .._store import EpisodeStore, open_store
from ..store.errors import EpisodelakeError
from ..store.layout import EPISODES, RUNS, STEPS

#: How many ids are offered at once.
OFFERED = 50

TABLE_NAMES = ("steps", "episodes", "runs", "transitions")


def complete_episodes(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin so, with how long the episodes were and how they ended."""
    store = opened(ctx)
    if store is None:
        return []
    found = store.episodes.filter(pl.col("episode_id").str.starts_with(incomplete))
    columns = ("episode_id", "length", "end_reason")
    try:
        rows = found.select(columns).head(OFFERED).collect().rows()
    except polars.exceptions.PolarsError:
        return []
    return [(episode, f"{length} steps, {reason}") for episode, length, reason in rows]


def complete_columns(ctx: Any, incomplete: str) -> list[str]:
    """Columns of episodes (or of the table that was named), after the last comma."""
    store = opened(ctx)
    if store is None:
        return []
    return after_comma(
        columns_of(store, ctx.params.get("table") or (_words(ctx)[1:] or [EPISODES])[0]), incomplete
    )


def after_comma(names: Sequence[str], incomplete: str) -> list[str]:
    """Of some names those that begin as the text behind the last comma, each with what stands before it."""
    before, comma, start = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(start) and name not in given]


def complete_tables(incomplete: str) -> list[str]:
    """The tables."""
    return [name for name in TABLE_NAMES if name.startswith(incomplete)]


def columns_of(store: EpisodeStore, table: str) -> list[str]:
    """The columns that a table shows."""
    snapshot = store.selection().snapshot
    return snapshot.shown_schema({RUNS: RUNS, EPISODES: EPISODES}.get(table, STEPS)).names


def _words(ctx: Any) -> list[str]:
    """The arguments where the line ends in an option without its value, and so was not taken apart."""
    return list(ctx.args)


def opened(ctx: Any) -> EpisodeStore | None:
    """The store that the line names; None where there is none."""
    path = ctx.params.get("path") or next(iter(_words(ctx)), None)
    if not path or "://" in path:
        return None
    try:
        return open_store(path)
    except (EpisodelakeError, OSError):
        return None
