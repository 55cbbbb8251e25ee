"""Completion by the shell: ids of episodes, columns, formats and tags. The shell itself completes paths.

The shell runs the program at every press of the tab key, so this module imports little. Errors offer nothing,
since they would garble the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import EpisodelakeError

if TYPE_CHECKING:
    from .. import EpisodeStore

#: The most ids that are offered at once.
OFFERED = 50


def complete_episodes(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Return the first ids that begin like this; after the name of a run, its own."""
    store = opened(ctx)
    if store is None:
        return []
    import polars as pl

    from ..plugin import collected

    name, slash, number = incomplete.partition("/")
    try:
        named = collected(store.runs.select("run_id", "name")).rows()
        runs = {run_id for run_id, known in named if known == name}
        begin = f"{runs.pop()}/{number}" if slash and len(runs) == 1 else incomplete
        episodes = store.episodes.filter(pl.col("episode_id").str.starts_with(begin)).head(OFFERED)
        rows = collected(episodes.select("episode_id", "length", "end_reason")).rows()
    except (pl.exceptions.PolarsError, EpisodelakeError, OSError):
        return []
    return [(incomplete + each.removeprefix(begin), f"{length} steps, {end}") for each, length, end in rows]


def complete_columns(ctx: Any, incomplete: str) -> list[str]:
    """Columns of episodes, or of the table that the line names, after the last comma."""
    store = opened(ctx)
    if store is None:
        return []
    tables = {"plot": "episodes", "stats": "steps"}
    table = tables.get(ctx.info_name) or ctx.params.get("table") or [*_words(ctx)[1:], "episodes"][0]
    from .reports.listing import columns_of, run_columns

    of_run = run_columns(store) if table == "episodes" else ()
    return _after_comma([*columns_of(store, table), *of_run], incomplete)


def complete_formats(ctx: Any, incomplete: str) -> list[str]:
    """Names of the formats that `import` reads, or that `export` writes."""
    from .. import formats

    role = "writes" if ctx.info_name == "export" else "reads"
    names = formats().filter(role)["name"].to_list()
    return [name for name in names if name.startswith(incomplete)]


def complete_tags(ctx: Any, incomplete: str) -> list[str]:
    """Tags of the store that the line names."""
    store = opened(ctx)
    return [] if store is None else [name for name in store.tags if name.startswith(incomplete)]


def _after_comma(names: Sequence[str], incomplete: str) -> list[str]:
    """Complete the name after the last comma; names before it are not offered again."""
    before, comma, start = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(start) and name not in given]


def _words(ctx: Any) -> list[str]:
    """Return the arguments of a line that ends in an option without its value, which is not parsed."""
    return list(ctx.args)


def opened(ctx: Any) -> EpisodeStore | None:
    """Return the store that the line names; None if there is none."""
    path = ctx.params.get("path") or next(iter(_words(ctx)), None)
    if not path or "://" in path:
        return None
    from .. import open as open_store

    try:
        return open_store(path)
    except (EpisodelakeError, OSError):
        return None
