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
from ..readers.amounts import counted
from ..store.errors import EpisodelakeError
from ..store.layout import EPISODES, RUNS, STEPS

#: How many ids are offered at once.
OFFERED = 50
#: Of the number at the end of an id.
DIGITS = 6

TABLE_NAMES = ("steps", "episodes", "runs", "transitions")


def complete_episodes(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin so, with how long the episodes were and how they ended.

    Where there are too many, what they begin with; behind the name of a run, its numbers.
    """
    store = opened(ctx)
    if store is None:
        return []
    try:
        return _offered(store, incomplete, incomplete) or _offered_of_run(store, incomplete)
    except polars.exceptions.PolarsError:
        return []


def _offered_of_run(store: EpisodeStore, incomplete: str) -> list[tuple[str, str]]:
    """The episodes of the only run of a name, as `lean/000019`."""
    name, slash, number = incomplete.partition("/")
    runs = store.runs.filter(pl.col("name") == name).select("run_id").collect()["run_id"].to_list()
    if not slash or len(runs) != 1:
        return []
    return _offered(store, f"{runs[0]}/{number}", incomplete)


def _offered(store: EpisodeStore, begin: str, typed: str) -> list[tuple[str, str]]:
    """What may follow: of ids that begin in a way, each with what was typed in place of that."""
    ids = pl.col("episode_id")
    found = store.episodes.filter(ids.str.starts_with(begin))
    rows = found.select("episode_id", "length", "end_reason").head(OFFERED + 1).collect().rows()
    if len(rows) <= OFFERED:
        return [(typed + each.removeprefix(begin), f"{length} steps, {end}") for each, length, end in rows]
    every, cut = found.select(ids).collect()["episode_id"], 1
    while cut < DIGITS and every.str.head(-cut).n_unique() > OFFERED:
        cut += 1
    counts = every.str.head(-cut).value_counts(name="episodes").sort("episode_id").head(OFFERED)
    return [(typed + each.removeprefix(begin), counted(number, "episode")) for each, number in counts.rows()]


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
