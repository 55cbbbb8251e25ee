"""`Grid`: a table of texts, made from Arrow data and cut to the width of a terminal.

Query results come in as Arrow tables. For a terminal numbers are rounded to what the eye can use; for a pipe
they are written in full, so that a script reads back what is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from rich.cells import cell_len, set_cell_size

NULL = "NULL"
#: Columns of episodes and steps that people look for, and columns that only programs use.
USED = ("position", "length", "episode_return", "end_reason", "seed", "episode_id", "t", "reward", "name")
PLUMBING = ("segment", "row_start", "row_count", "wide_seed", "env_index", "number", "options", "run_id")
GAP = 2
NARROWEST = 16

_NUMBER = re.compile(r"/[0-9]{6,9}$")
_BYTES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
#: Characters that reverse the direction of a line, break it, or are invisible.
_UNSEEN = (0x00AD, 0x061C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x2070))
_UNSEEN += (0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080))
#: Escapes of these characters, as in JSON and Python.
SPELLED = {code: f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}" for code in _UNSEEN}
_CONTROLS = _BYTES | SPELLED | {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Attributes:
        headers: one per column.
        rows: cells, each row as long as `headers`.
        right: whether a column is set flush right, as numbers are.
        first: the columns that a narrow terminal keeps, the most important one first; by default those of
            `USED`, or else the last column, then those from the left, and those of `PLUMBING` last.
        chart: the column of a drawing, which is never shortened; None if there is none.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    first: tuple[str, ...] = ()
    chart: str | None = None

    @staticmethod
    def of(headers: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool] = ()) -> Grid:
        """Return a grid of values that are texts or print as such."""
        cells = tuple(tuple(clean(str(cell)) for cell in row) for row in rows)
        return Grid(tuple(map(clean, headers)), cells, tuple(right) or (False,) * len(headers))


def clean(text: str) -> str:
    """Escape control characters, so that data neither breaks a line nor controls a terminal.

    Characters that reverse the direction of writing, or are invisible, are escaped too.
    """
    return text.translate(_CONTROLS)


def grid_of(table: pa.Table, exact: bool) -> Grid:
    """Return the cells of an Arrow table as texts.

    Args:
        table: any Arrow table.
        exact: write numbers and times in full; otherwise about six digits.
    """
    columns = []
    for column in table.columns:
        write = writer(column.type, exact)
        columns.append([clean(write(value)) for value in _values(column)])
    rows = tuple(zip(*columns, strict=True)) if columns else ()
    return Grid(tuple(map(clean, table.column_names)), rows, tuple(map(_is_number, table.schema.types)))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit != "ns":
        # pyarrow would import pandas for timestamps, which takes a quarter of a second; Polars imports
        # pyarrow.compute for a series.
        return pl.DataFrame(pa.table([column], names=["moment"])).to_series().to_list()
    return column.to_pylist()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def writer(kind: pa.DataType, exact: bool, inside: bool = False) -> Callable[[Any], str]:
    """Return how values of an Arrow type are written; `inside` a list or struct, texts stand in quotes."""
    write = _write_known(kind, exact, inside)
    return lambda value: NULL if value is None else write(value)


def _write_known(kind: pa.DataType, exact: bool, inside: bool) -> Callable[[Any], str]:
    if pa.types.is_float32(kind) and exact:
        return lambda value: str(np.float32(value))
    if pa.types.is_floating(kind):
        return repr if exact else number_text
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_timestamp(kind):
        return lambda value: moment_text(value, exact)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: f"<{len(value)} bytes>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = writer(kind.value_type, exact, inside=True)
        return lambda values: f"[{', '.join(map(element, values))}]"
    if pa.types.is_struct(kind):
        parts = {part.name: writer(part.type, exact, inside=True) for part in kind}
        return lambda value: (
            "{" + ", ".join(f"{name}: {write(value[name])}" for name, write in parts.items()) + "}"
        )
    if pa.types.is_map(kind):
        key, item = (writer(part, exact, inside=True) for part in (kind.key_type, kind.item_type))
        return lambda pairs: "{" + ", ".join(f"{key(name)}: {item(value)}" for name, value in pairs) + "}"
    if inside and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return lambda value: json.dumps(value, ensure_ascii=False)
    return str


def number_text(value: float) -> str:
    """Return a number with about six digits; no digit before the point is dropped.

    >>> number_text(0.123456789), number_text(-200.0), number_text(1234567.5)
    ('0.123457', '-200.0', '1234567.5')
    """
    if not np.isfinite(value) or value == 0:
        return str(float(value))
    if 1e5 <= abs(value) < 1e15 or (abs(value) < 1e15 and value == int(value)):
        return f"{value:.1f}"
    return f"{value:.6g}"


def moment_text(moment: datetime, exact: bool) -> str:
    """Return a time, ISO 8601; to the millisecond and without its zone unless `exact`."""
    if exact:
        return moment.isoformat()
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def fitted(grid: Grid, width: int, cut: str) -> tuple[Grid, tuple[str, ...]]:
    """Cut a grid to a terminal's width.

    Wide cells are shortened first; if that is not enough, columns in the middle are left out.

    Returns:
        The grid, and the names of the columns that were left out.
    """
    limit = _limit(grid, width)
    if limit is None:
        kept = _kept(grid, width)
        left_out = tuple(name for index, name in enumerate(grid.headers) if index not in kept)
        narrow = _select(grid, kept)
        return _shorten(narrow, _limit(narrow, width) or NARROWEST, cut), left_out
    return _shorten(grid, limit, cut), ()


def _widths(grid: Grid) -> list[int]:
    return [
        max([cell_len(header), *(cell_len(row[index]) for row in grid.rows)])
        for index, header in enumerate(grid.headers)
    ]


def _limit(grid: Grid, width: int) -> int | None:
    """Return the largest width of a cell with which all columns fit; None if cells would get too narrow."""
    room, widths = width - GAP * (len(grid.headers) - 1), _widths(grid)
    for limit in range(max(width, NARROWEST), NARROWEST - 1, -1):
        if sum(_cut_widths(grid, widths, limit)) <= room:
            return limit
    return None


def _cut_widths(grid: Grid, widths: Sequence[int], limit: int) -> list[int]:
    """Return the widths of the columns with their cells shortened to a limit."""
    pairs = zip(grid.headers, widths, strict=True)
    return [each if header == grid.chart else min(each, limit) for header, each in pairs]


def _by_importance(grid: Grid) -> list[int]:
    """Return the columns, the most important first."""
    named = [grid.headers.index(name) for name in grid.first if name in grid.headers]
    if not named:
        used = [grid.headers.index(name) for name in USED if name in grid.headers]
        named = used if len(used) > 1 else [len(grid.headers) - 1]
    others = [index for index in range(len(grid.headers)) if index not in named]
    return [*named, *sorted(others, key=lambda index: grid.headers[index] in PLUMBING)]


def _kept(grid: Grid, width: int) -> list[int]:
    """Columns that fit when cells are at their narrowest: the most important ones."""
    kept, room = [], width + GAP
    widths = _cut_widths(grid, _widths(grid), NARROWEST)
    for index in _by_importance(grid):
        need = widths[index] + GAP
        if kept and need > room:
            break
        kept.append(index)
        room -= need
    return sorted(kept)


def _select(grid: Grid, columns: Sequence[int]) -> Grid:
    return Grid(
        tuple(grid.headers[index] for index in columns),
        tuple(tuple(row[index] for index in columns) for row in grid.rows),
        tuple(grid.right[index] for index in columns),
        chart=grid.chart,
    )


def _shorten(grid: Grid, limit: int, cut: str) -> Grid:
    def short(text: str) -> str:
        if cell_len(text) <= limit:
            return text
        # The number at the end distinguishes the ids of one run.
        number = _NUMBER.search(text)
        tail = number[0] if number is not None and limit > len(number[0]) + 3 else ""
        return set_cell_size(text, limit - 1 - len(tail)) + cut + tail

    def shortened(row: Sequence[str]) -> tuple[str, ...]:
        pairs = zip(grid.headers, row, strict=True)
        return tuple(text if header == grid.chart else short(text) for header, text in pairs)

    return Grid(shortened(grid.headers), tuple(map(shortened, grid.rows)), grid.right)


def aligned(grid: Grid) -> list[str]:
    """Return the grid as lines of text, columns set with spaces."""
    widths = _widths(grid)
    lines = []
    for row in (grid.headers, *grid.rows):
        cells = []
        for text, width, right in zip(row, widths, grid.right, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if right else text + space)
        lines.append((" " * GAP).join(cells).rstrip())
    return lines
