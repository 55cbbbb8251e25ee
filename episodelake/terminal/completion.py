"""Completion by the shell: stores, ids of episodes, columns, tables and charts.

The shell runs the program at every press of the tab key, so this module imports little. Errors offer nothing,
since they would garble the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..readers.amounts import counted
from ..store.errors import EpisodelakeError

if TYPE_CHECKING:
    from .._store import EpisodeStore

#: The file that makes a folder a store, as in `store/layout.py`, which takes long to load.
MANIFEST = "store.json"
#: The most ids that are offered at once.
OFFERED = 50
#: Characters that bash would interpret.
_SPECIAL = re.compile(r"([\s\\\"'`$&|;<>()\[\]{}*?!#])")


def escape_for_bash() -> None:
    """Escape completions for bash, which takes them as text of the line."""
    try:
        from typer._completion_classes import BashComplete
    except ImportError:
        # The class is typer's own, and may move in a later release.
        return
    BashComplete.format_completion = lambda self, item: escaped(item.value)


def escaped(name: str) -> str:
    r"""Return a name as it is typed in bash.

    >>> print(escaped("~/my stores/cart'pole"))
    ~/my\ stores/cart\'pole
    """
    return _SPECIAL.sub(r"\\\1", name)


def complete_stores(incomplete: str) -> list[tuple[str, str]]:
    """Folders that begin like this; stores are marked.

    The shell adds a space behind a single candidate. If that is a folder on the way to a store, offer its
    contents instead.
    """
    folders = _folders(incomplete)
    while len(folders) == 1 and folders[0][0].endswith("/"):
        within = _folders(folders[0][0])
        if not within:
            break
        folders = within
    return folders


def _folders(incomplete: str) -> list[tuple[str, str]]:
    """Return the folders that begin like this; a slash follows those that are not stores."""
    folder, _, start = incomplete.rpartition("/")
    base = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".").expanduser()
    prefix = incomplete[: len(incomplete) - len(start)]
    try:
        folders = sorted(entry for entry in base.iterdir() if entry.is_dir() and entry.name.startswith(start))
    except OSError:
        return []
    return [
        (f"{prefix}{entry.name}", "a store")
        if (entry / MANIFEST).exists()
        else (f"{prefix}{entry.name}/", "")
        for entry in folders
        if start.startswith(".") or not entry.name.startswith(".")
    ]


def complete_episodes(ctx: Any, incomplete: str) -> list[tuple[str, str]]:
    """Ids that begin like this, with lengths and end reasons; behind the name of a run, its numbers.

    If there are too many ids, their common beginnings are offered.
    """
    store = opened(ctx)
    if store is None:
        return []
    import polars as pl

    try:
        return _offered(store, incomplete, incomplete) or _offered_of_run(store, incomplete)
    except pl.exceptions.PolarsError:
        return []


def _offered_of_run(store: EpisodeStore, incomplete: str) -> list[tuple[str, str]]:
    """Return the episodes of the only run of a name, as `lean/000019`."""
    name, slash, number = incomplete.partition("/")
    named = store.runs.select("run_id", "name").collect().rows()
    runs = [run_id for run_id, known in named if known == name]
    if not slash or len(runs) != 1:
        return []
    return _offered(store, f"{runs[0]}/{number}", incomplete)


def _offered(store: EpisodeStore, begin: str, typed: str) -> list[tuple[str, str]]:
    """Return the completions of ids that start with `begin`, with `typed` in its place."""
    import polars as pl

    from ..store.layout import EPISODE_DIGITS

    ids = pl.col("episode_id")
    episodes = store.episodes.filter(ids.str.starts_with(begin))
    rows = episodes.select("episode_id", "length", "end_reason").head(OFFERED + 1).collect().rows()
    if len(rows) <= OFFERED:
        return [(typed + each.removeprefix(begin), f"{length} steps, {end}") for each, length, end in rows]
    every, cut = episodes.select(ids).collect()["episode_id"], 1
    while cut < EPISODE_DIGITS and every.str.head(-cut).n_unique() > OFFERED:
        cut += 1
    counts = every.str.head(-cut).value_counts(name="episodes").sort("episode_id").head(OFFERED)
    return [(typed + each.removeprefix(begin), counted(number, "episode")) for each, number in counts.rows()]


def complete_columns(ctx: Any, incomplete: str) -> list[str]:
    """Columns of episodes, or of the table that the line names, after the last comma."""
    store = opened(ctx)
    if store is None:
        return []
    of_episodes = ["episodes"] if ctx.info_name == "plot" else _words(ctx)[1:]
    table = ctx.params.get("table") or (of_episodes or ["episodes"])[0]
    shown = table if table in ("runs", "episodes") else "steps"
    from .reports.listing import run_columns

    of_run = run_columns(store) if table == "episodes" else ()
    return _after_comma([*store.context.snapshot.shown_schema(shown).names, *of_run], incomplete)


def complete_measured(ctx: Any, incomplete: str) -> list[str]:
    """Columns of steps that `stats` can measure, after the last comma."""
    store = opened(ctx)
    if store is None:
        return []
    from .reports.statistics import measurable_columns

    return _after_comma(measurable_columns(store.context.snapshot), incomplete)


def complete_formats(ctx: Any, incomplete: str) -> list[str]:
    """Names of the formats that `import` reads, or that `export` writes."""
    from ..exchange import formats

    role = "writes" if ctx.info_name == "export" else "reads"
    names = formats().filter(role)["name"].to_list()
    return [name for name in names if name.startswith(incomplete)]


def complete_tags(ctx: Any, incomplete: str) -> list[str]:
    """Tags of the store that the line names."""
    store = opened(ctx)
    return [] if store is None else [name for name in store.tags if name.startswith(incomplete)]


def _after_comma(names: Sequence[str], incomplete: str) -> list[str]:
    """Complete the name behind the last comma; names that stand before it are not offered again."""
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
    from .._store import open_store

    try:
        return open_store(path)
    except (EpisodelakeError, OSError):
        return None
