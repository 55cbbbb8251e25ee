"""`episodelake ls` and `head`: episodes, sorted and filtered, a page at a time; the first rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import polars as pl
import typer

from .._store import EpisodeStore
from ..readers.amounts import counted
from ..readers.frames import POSITION, positioned_episodes
from ..readers.sql.names_nearby import near_names
from ..readers.view import EpisodeView
from ..store.errors import QueryError
from .arguments import AsJson, Columns, Condition, StorageOptions, StorePath, column_names
from .commands import LOOK, command
from .completion import TABLE_NAMES, columns_of, complete_columns, complete_tables
from .exploring import Explored, end, explored, explored_steps
from .grid import grid_of
from .json_text import write_rows
from .page import Page

POSITION_NAME = "position"
IN_A_PIPE = 100
#: Names that are offered for one that is not there.
NEAREST = 3
#: Lines of a terminal that are not rows: header, rule, the note below, the prompt that follows.
AROUND = 5
STANDARD = ("episode_id", "length", "episode_return", "end_reason", "seed", "started_at")
#: What a narrow terminal keeps.
IMPORTANT = (POSITION_NAME, "length", "episode_return", "end_reason", "seed", "episode_id")

LS_EXAMPLES = """\
episodelake ls data/cartpole --sort episode_return --descending
episodelake ls data/cartpole --filter "length < 15 AND end_reason = 'terminated'"
episodelake ls data/cartpole --columns length,metadata.policy --offset 100
episodelake ls data/cartpole --json | jq -r '.[].episode_id'"""

HEAD_EXAMPLES = """\
episodelake head data/cartpole
episodelake head data/cartpole runs
episodelake head data/cartpole transitions --rows 3 --columns t,action,reward"""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    command(app, LOOK, LS_EXAMPLES, name="ls")(ls)
    command(app, LOOK, HEAD_EXAMPLES)(head)


def ls(
    path: StorePath,
    condition: Condition = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by this column of episodes; NULLs come last.",
            show_default=False,
            autocompletion=complete_columns,
        ),
    ] = None,
    descending: Annotated[bool, typer.Option("--descending", "-d", help="The largest first.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Show so many episodes; 0 shows all. Else a screenful, in a pipe 100, with --json all.",
            show_default=False,
        ),
    ] = None,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many episodes first.")] = 0,
    columns: Columns = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """List episodes: filtered, sorted, a page at a time.

    The column position is what `show` takes besides the id.
    """
    page = Page()
    count = _row_limit(page, limit, as_json=as_json)
    rows, total = explored(
        path,
        storage,
        lambda opened: _listed(opened, condition, (sort, descending), (offset, count), column_names(columns)),
    )
    if as_json:
        write_rows(page, rows.iter_rows(named=True))
        return
    with page.paged(limit == 0 and rows.height > page.height):
        grid = grid_of(rows.to_arrow(), exact=not page.is_terminal)
        page.table(replace(grid, first=() if columns else IMPORTANT))
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
    """The rows that are to be shown, and how many there are in all."""
    store = opened.store
    known = columns_of(store, "episodes")
    chosen = checked_columns(columns, ["position", *known], "episodes") or [
        name for name in STANDARD if name in known
    ]
    sort, descending = order
    check_column(sort, ["position", *known], "episodes")
    view = store if condition is None else store.filter(condition)
    frame = _positioned(view).rename({POSITION: POSITION_NAME})
    position = pl.col(POSITION_NAME).cast(pl.Int64)
    if opened.whole is not None:
        position = pl.lit(pl.Series(opened.whole)).gather(position)
    frame = frame.with_columns(position.alias(POSITION_NAME))
    if sort is not None:
        key = pl.col(sort)
        if isinstance(frame.collect_schema()[sort], pl.List):
            key = key.list.sum()
        frame = frame.sort(key, descending=descending, nulls_last=True, maintain_order=True)
    elif descending:
        frame = frame.reverse()
    offset, count = part
    shown = [POSITION_NAME, *(name for name in chosen if name != POSITION_NAME)]
    return frame.slice(offset, count).select(shown).collect(), len(view)


def _positioned(view: EpisodeView) -> pl.LazyFrame:
    return positioned_episodes(view._reader.snapshot, view._positions)


def checked_columns(names: Sequence[str] | None, known: Sequence[str], table: str) -> list[str] | None:
    """The columns that were asked for.

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


def meant(name: str, known: Sequence[str]) -> str:
    """Which names may have been meant by one that is not there, and all there are, as ends of a message."""
    near = near_names(name, known, NEAREST)
    nearest = f" Did you mean {', '.join(near)}?" if near else ""
    return f"{nearest} There are: {', '.join(known)}."


def _place_told(offset: int, shown: int, total: int) -> str:
    if not total:
        return "No episodes."
    if not shown:
        return f"None left: there are {counted(total, 'episode')}."
    if shown == total:
        return f"{counted(total, 'episode')}."
    told = f"Episodes {offset + 1:,} to {offset + shown:,} of {total:,}."
    return told if offset + shown >= total else f"{told} The next page: --offset {offset + shown}."


def head(
    path: StorePath,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="steps, episodes, runs or transitions.",
            autocompletion=complete_tables,
        ),
    ] = "steps",
    rows: Annotated[int, typer.Option("--rows", "-n", min=0, help="Show so many rows.")] = 10,
    columns: Columns = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Show the first rows of a table.

    The tables are steps, episodes, runs and transitions.
    """
    if table not in TABLE_NAMES:
        raise typer.BadParameter(
            f"there is no table {table!r}.{meant(table, TABLE_NAMES)}", param_hint="TABLE"
        )
    page = Page()
    found, complete = explored_steps(
        path, storage, lambda opened: _first_rows(opened.store, table, rows, column_names(columns))
    )
    if as_json:
        write_rows(page, found.iter_rows(named=True))
    else:
        page.table(grid_of(found.to_arrow(), exact=not page.is_terminal))
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
