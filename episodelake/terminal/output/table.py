"""Tables for a terminal: rich draws them, with the columns that fit the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from .cells import Column

GAP = 2
#: Columns of episodes and steps that people look for, and columns that only programs use.
USED = ("position", "length", "episode_return", "end_reason", "seed", "episode_id", "t", "reward", "name")
PLUMBING = (
    *("segment", "row_start", "row_count", "wide_seed", "env_index", "number", "options", "run_id"),
    *("store_id", "store_version"),
)
#: Columns with ids, of which the number at the end stays.
IDS = ("episode_id", "run_id", "run", "series", "name", "run.name")
#: The width to which cells are shortened, and that up to which those of important columns are not. Ids have
#: up to half of the window.
SHORT, WHOLE = 16, 30


def fitted_table(
    columns: Sequence[Column], width: int, first: Sequence[str], *, ellipsis: bool
) -> tuple[Table, list[str]]:
    """Return a table of the most important columns, and the names of those that do not fit.

    Args:
        columns: of texts.
        width: of the window.
        first: names, the most important one first, after the column that names the rows: that at the left.
        ellipsis: mark where a text is cut.
    """
    columns = [*columns]
    order = sorted(range(len(columns)), key=lambda index: (index > 0, _rank(columns[index].name, first)))
    kept, room, whole = [], width + GAP, set()
    for index in order:
        column = columns[index]
        full = max(map(cell_len, (column.name, *column.cells)))
        if column.name in IDS:
            most = max(min(width // 2, room - GAP), len(column.name))
            column = columns[index] = replace(
                column, cells=[_short_id(id, most, ellipsis) for id in column.cells]
            )
            full = max(map(cell_len, (column.name, *column.cells)))
            whole.add(index)
        if column.name in first[:1] or ((index == 0 or column.name in first) and full <= WHOLE):
            whole.add(index)
        need = (full if index in whole else min(full, SHORT)) + GAP
        if kept and need > room:
            break
        kept.append(index)
        room -= need
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, GAP - 1, 0, 0),
        header_style="bold",
        border_style="bright_black",
    )

    def short(text: str) -> Text:
        return Text(text, no_wrap=True, overflow="ellipsis" if ellipsis else "crop")

    for index in sorted(kept):
        column = columns[index]
        justify = "right" if column.right else "left"
        table.add_column(short(column.name), justify=justify, no_wrap=index in whole)
    for row in zip(*(columns[index].cells for index in sorted(kept)), strict=True):
        table.add_row(*map(short, row))
    return table, [column.name for index, column in enumerate(columns) if index not in kept]


def _short_id(text: str, width: int, ellipsis: bool) -> str:
    """Return an id that is shortened as commands take it: the beginning of its run, and its number."""
    if cell_len(text) <= width:
        return text
    run, slash, number = text.rpartition("/")
    end = f"{'…' if ellipsis else ''}{slash}{number}" if slash else "…" if ellipsis else ""
    return set_cell_size(run or text, max(width - cell_len(end), 1)) + end


def _rank(name: str, first: Sequence[str]) -> int:
    if name in first:
        return first.index(name)
    return len(first) + (name in PLUMBING)
