"""The lists of `episodelake ls` and `head`: episodes a page at a time, and the first rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from ..._store import EpisodeStore
from ...readers.amounts import counted
from ...readers.view import EpisodeView
from ...store.errors import QueryError
from ..choices import columns_of
from ..output.page import Page, write_rows
from .opening import Explored, end, explored, explored_steps, meant

POSITION_NAME = "position"
IN_A_PIPE = 100
#: Lines of a terminal beside the rows: header, rule, the note below, the next prompt.
AROUND = 5
STANDARD = ("episode_id", "length", "episode_return", "end_reason", "seed", "started_at")
#: The columns that a narrow terminal keeps.
IMPORTANT = (POSITION_NAME, "length", "episode_return", "end_reason", "seed", "episode_id")


def list_episodes(
    path: str,
    storage: Sequence[str] | None,
    condition: str | None,
    order: tuple[str | None, bool],
    part: tuple[int, int | None],
    columns: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """List episodes; see `episodelake ls`.

    Args:
        path, storage: the store.
        condition: an SQL condition over the episodes.
        order: the column to sort by, and whether the largest come first.
        part: how many episodes to skip, and how many to show; None for the default of the output.
        columns: the columns to show.
        as_json: print JSON.
    """
    page = Page()
    offset, limit = part
    count = _row_limit(page, limit, as_json=as_json)
    rows, total = explored(
        path, storage, lambda opened: _listed(opened, condition, order, (offset, count), columns)
    )
    if as_json:
        write_rows(page, rows.iter_rows(named=True))
        return
    with page.paged(limit == 0 and rows.height > page.height):
        page.table(replace(page.grid(rows), first=() if columns else IMPORTANT))
    page.note(_place_told(offset, rows.height, total))


def _row_limit(page: Page, given: int | None, *, as_json: bool) -> int | None:
    if given is not None:
        return given or None
    if as_json:
        return None
    return max(page.height - AROUND, 5) if page.is_terminal else IN_A_PIPE


def _listed(
    opened: Explored,
    condition: str | None,
    order: tuple[str | None, bool],
    part: tuple[int, int | None],
    columns: Sequence[str] | None,
) -> tuple[pl.DataFrame, int]:
    """Return the rows to show, and the number of all rows."""
    store = opened.store
    known = columns_of(store, "episodes")
    chosen = checked_columns(columns, ["position", *known], "episodes") or [
        name for name in STANDARD if name in known
    ]
    sort, descending = order
    check_column(sort, ["position", *known], "episodes")
    view = opened.chosen(condition)
    ordered = view if sort in (None, POSITION_NAME) else _sorted(view, str(sort), descending=descending)
    if ordered is view and descending:
        ordered = view[::-1]
    offset, count = part
    page = ordered[offset : None if count is None else offset + count]
    positions = page.positions if opened.whole is None else opened.whole[page.positions]
    # This hides a user's own column of the same name, which SQL still shows.
    frame = page.episodes.with_columns(pl.Series(POSITION_NAME, positions, pl.Int64))
    shown = [POSITION_NAME, *(name for name in chosen if name != POSITION_NAME)]
    return frame.select(shown).collect(), len(view)


def _sorted(view: EpisodeView, column: str, *, descending: bool) -> EpisodeView:
    """Sort by a column; lists, such as several objectives, by their sums."""
    listed = view.episodes.collect_schema()[column].is_nested()
    return view.sort(pl.col(column).list.sum() if listed else column, descending=descending)


def checked_columns(names: Sequence[str] | None, known: Sequence[str], table: str) -> list[str] | None:
    """Return the columns that were asked for.

    Raises:
        QueryError: there is no such column; the message names those that are nearest.
    """
    for name in names or ():
        check_column(name, known, table)
    return None if names is None else list(dict.fromkeys(names))


def check_column(name: str | None, known: Sequence[str], table: str) -> None:
    """Refuse a column that a table lacks."""
    if name is None or name in known:
        return
    raise QueryError(f"There is no column {name!r} in {table}.{meant(name, known)}")


def _place_told(offset: int, shown: int, total: int) -> str:
    if not total:
        return "No episodes."
    if not shown:
        return f"None left: there are {counted(total, 'episode')}."
    if shown == total:
        return f"{counted(total, 'episode')}."
    told = f"Episodes {offset + 1:,} to {offset + shown:,} of {total:,}."
    return told if offset + shown >= total else f"{told} The next page: --offset {offset + shown}."


def list_rows(
    path: str,
    storage: Sequence[str] | None,
    table: str,
    rows: int,
    columns: Sequence[str] | None,
    *,
    as_json: bool,
) -> None:
    """List the first rows of a table; see `episodelake head`."""
    page = Page()
    found, complete = explored_steps(
        path, storage, lambda opened: _first_rows(opened.store, table, rows, columns)
    )
    if as_json:
        write_rows(page, found.iter_rows(named=True))
    else:
        page.frame(found)
        if not found.height and rows:
            page.note(f"The table {table} has no rows.")
    end(complete)


def _first_rows(store: EpisodeStore, table: str, count: int, columns: Sequence[str] | None) -> pl.DataFrame:
    chosen = checked_columns(columns, columns_of(store, table), table)
    # Every episode has a row of each table, so that many episodes are enough, and no other file is touched;
    # where files are left out, episodes may have none.
    few = table in ("steps", "transitions") and not store.selection().snapshot.lost_segments
    view = store[:count] if few else store
    frame: pl.LazyFrame = getattr(view, table).head(count)
    found: Any = (frame if chosen is None else frame.select(chosen)).collect()
    return found
