"""The lists of `episodelake ls` and `head`: episodes a page at a time, and the first rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from ... import EpisodeStore, EpisodeView
from ...errors import QueryError
from ...plugin import collected, counted, quote
from ...plugin.columns import METADATA
from ..output.page import Page
from .open_store import Explored, meant
from .store_figures import has_hidden_names

POSITION_NAME = "position"
IN_A_PIPE = 100
#: Lines of a terminal beside the rows: header, rule, the note below, the next prompt.
AROUND = 5
STANDARD = ("episode_id", "length", "episode_return", "end_reason", "seed", "started_at")
#: The columns that a narrow terminal keeps.
IMPORTANT = (POSITION_NAME, "episode_id", "episode_return", "length", "run.name", "end_reason", "seed")


@dataclass(frozen=True)
class Listing:
    """The episodes that `ls` lists.

    Attributes:
        condition: an SQL condition over the episodes; None for all.
        order_by, descending: the column to sort by, and whether the largest come first.
        offset, count: how many episodes to skip, and how many to list; None for all.
        columns: the columns to show; None for the usual ones.
        names: add the names of runs to the usual columns, where an id lacks its name.
    """

    condition: str | None
    order_by: str | None
    descending: bool
    offset: int
    count: int | None
    columns: Sequence[str] | None
    names: bool = False

    def rows(self, opened: Explored) -> tuple[pl.DataFrame, int]:
        """Return the rows to show, and the number of all rows."""
        own, of_run = columns_of(opened.store, "episodes"), run_columns(opened.store)
        known = [*own, *(name for name in of_run if name not in own)]
        columns = checked_columns(self.columns, [POSITION_NAME, *known], "episodes") or [
            name for name in STANDARD if name in own
        ]
        if self.names and self.columns is None and has_hidden_names(opened.store):
            columns.append("run.name")
        check_column(self.order_by, [POSITION_NAME, *known], "episodes")
        view = ordered = opened.chosen(self.condition)
        if self.order_by not in (None, POSITION_NAME):
            ordered = _sorted(view, str(self.order_by), of_run, descending=self.descending)
        elif self.descending:
            ordered = view[::-1]
        page = ordered[self.offset : None if self.count is None else self.offset + self.count]
        positions = page.positions if opened.whole is None else opened.whole[page.positions]
        # This hides a user's own column of the same name, which SQL still shows.
        frame = page.episodes.with_columns(pl.Series(POSITION_NAME, positions, pl.Int64))
        keys = {name: of_run[name] for name in columns if name not in own and name in of_run}
        if keys:
            runs = opened.store.runs.select("run_id", **{name: pl.col(key) for name, key in keys.items()})
            frame = frame.join(runs, on="run_id", how="left", maintain_order="left")
        return collected(frame.select(*dict.fromkeys([POSITION_NAME, *columns]))), len(view)


def row_limit(page: Page, given: int | None, *, as_json: bool) -> int | None:
    """Return how many episodes to list; None for all."""
    if given is not None:
        return given or None
    if as_json:
        return None
    return max(page.height - AROUND, 5) if page.is_terminal else IN_A_PIPE


def write_episodes(page: Page, rows: pl.DataFrame, listing: Listing, total: int) -> None:
    """Write the episodes of a listing, through the pager if all were asked for and do not fit."""
    with page.paged(listing.count is None and rows.height > page.height):
        page.frame(rows, first=listing.columns or IMPORTANT)
    page.note(_place(listing.offset, rows.height, total))


def _sorted(view: EpisodeView, column: str, of_run: Mapping[str, str], *, descending: bool) -> EpisodeView:
    """Sort by a column; lists, such as several objectives, by their sums."""
    schema = view.episodes.collect_schema()
    if column not in schema and column in of_run:
        return view.sort(f"run.{quote(column.removeprefix('run.'))}", descending=descending)
    listed = schema[column].is_nested()
    return view.sort(pl.col(column).list.sum() if listed else column, descending=descending)


def checked_columns(names: Sequence[str] | None, known: Sequence[str], table: str) -> list[str] | None:
    """Return the columns that were asked for.

    Raises:
        QueryError: there is no such column; the message names those that are nearest.
    """
    for name in names or ():
        check_column(name, known, table)
    return None if names is None else list(names)


def check_column(name: str | None, known: Sequence[str], table: str) -> None:
    """Refuse a column that a table lacks."""
    if name is None or name in known:
        return
    raise QueryError(f"There is no column {name!r} in {table}.{meant(name, known)}")


def columns_of(store: EpisodeStore, table: str) -> list[str]:
    """Return the columns that a table shows."""
    shown = table if table in ("runs", "episodes") else "steps"
    return store.context.snapshot.shown_schema(shown).names


def run_columns(store: EpisodeStore) -> dict[str, str]:
    """Return the columns `run.<key>` of a listing, each with its column of `runs`."""
    keys = [name for name in columns_of(store, "runs") if name.startswith(METADATA.prefix)]
    return {"run.name": "name"} | {f"run.{name.removeprefix(METADATA.prefix)}": name for name in keys}


def _place(offset: int, shown: int, total: int) -> str:
    if not total:
        return "No episodes."
    if not shown:
        return f"None left: there are {counted(total, 'episode')}."
    if shown == total:
        return f"{counted(total, 'episode')}."
    last = offset + shown
    more = "" if last >= total else f" The next page: --offset {last}."
    return f"Episodes {offset + 1:,} to {last:,} of {total:,}.{more}"


def first_rows(store: EpisodeStore, table: str, count: int, columns: Sequence[str] | None) -> pl.DataFrame:
    """Return the first rows of a table."""
    chosen = checked_columns(columns, columns_of(store, table), table)
    # Every episode has a row of each table, so that many episodes are enough, and no other file is touched;
    # where files are left out, episodes may have none.
    few = table in ("steps", "transitions") and not store.selection().snapshot.lost_segments
    view = store[:count] if few else store
    frame: pl.LazyFrame = getattr(view, table).head(count)
    return collected(frame if chosen is None else frame.select(chosen))
