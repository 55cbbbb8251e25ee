"""`Page`: the output of a command, for terminals and for pipes, as text or as JSON.

On a terminal a page has colour, and tables that fit the window. Anywhere else it is plain text: no escape
sequences, no lines drawn around things, tables separated by tabs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ...plugin import size_text
from ..result import Report
from .cells import NULL, Amount, Column, clean, columns_of, moment_text, number_text
from .json_text import json_of
from .sparkline import ASCII, BLOCKS, Line, sparkline
from .table import GAP, USED, fitted_table

INDENT = 2
#: The shortest and the longest sparkline; between them they fill the window.
SHORTEST_LINE, LONGEST_LINE = 16, 60
LINE_IN_A_PIPE = 40


class Page:
    """One command's output.

    Attributes:
        console: the rich console behind it.
        is_terminal: whether it writes for a terminal.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.is_terminal = self.console.is_terminal and not self.console.is_dumb_terminal
        self._begun = False

    @property
    def width(self) -> int:
        """Columns to fill; beyond 120 lines are hard to read."""
        return min(self.console.width, 120) if self.is_terminal else 80

    @property
    def height(self) -> int:
        """Lines of the terminal."""
        return self.console.height

    @contextlib.contextmanager
    def paged(self, wanted: bool) -> Iterator[None]:
        """Show what is written meanwhile in the user's pager, if that is wanted and there is a terminal."""
        if not (wanted and self.is_terminal and sys.stdin.isatty()):
            yield
            return
        with self.console.pager(styles=True):
            yield

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line; long lines wrap on a terminal."""
        if self.is_terminal:
            self._print(Text(clean(text), style))
        else:
            self.raw(clean(text))

    def heading(self, text: str, color: str = "cyan") -> None:
        """Begin a section; a line is left free above it."""
        if self._begun:
            self.line()
        if self.is_terminal:
            self._print(Rule(Text(clean(text), f"bold {color}"), align="left", style=color))
        else:
            self.raw(f"== {clean(text)} ==")

    def pairs(self, pairs: Sequence[tuple[str, object]]) -> None:
        """Write names with their values, one a line; a text may have several lines."""
        texts = [(clean(name), self.text(value)) for name, value in pairs]
        if not self.is_terminal:
            for name, text in texts:
                self.raw(f"{name}\t{clean(text)}")
            return
        table = Table.grid(padding=(0, GAP))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in texts:
            table.add_row(name, Text("\n".join(map(clean, text.split("\n")))))
        self._print(table, width=self.width)

    def table(self, rows: Sequence[Mapping[str, object]], first: Sequence[str] = USED) -> None:
        """Write a table of values. Numbers are set flush right; a `Line` is drawn.

        Args:
            rows: all with the same keys, which are the headers.
            first: the columns that a narrow terminal keeps, the most important one first.
        """
        values = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        lines = {name: cells for name, cells in values.items() if isinstance(cells[0], Line)}
        texts = {
            name: [clean(self.text(each)) for each in cells]
            for name, cells in values.items()
            if name not in lines
        }
        width = LINE_IN_A_PIPE
        if self.is_terminal:
            others = [max(map(cell_len, (name, *cells))) + GAP for name, cells in texts.items()]
            width = min(max(self.console.width - sum(others), SHORTEST_LINE), LONGEST_LINE)
        levels = BLOCKS if self._is_utf() else ASCII
        for name, cells in lines.items():
            texts[name] = [sparkline(each, width, levels) for each in cells if isinstance(each, Line)]
        columns = [
            Column(clean(name), texts[name], any(isinstance(each, int | float | Amount) for each in cells))
            for name, cells in values.items()
        ]
        self._write(columns, (*lines, *first))

    def frame(self, data: pl.DataFrame | pa.Table, first: Sequence[str] = USED) -> None:
        """Write data as a table; `first` is that of `table`."""
        table = data.to_arrow() if isinstance(data, pl.DataFrame) else data
        self._write(columns_of(table, exact=not self.is_terminal), first)

    def _write(self, columns: Sequence[Column], first: Sequence[str]) -> None:
        if not columns:
            return
        if not self.is_terminal:
            for row in zip(*([each.name, *each.cells] for each in columns), strict=True):
                self.raw("\t".join(row))
            return
        # Text is hard to read beyond 120 columns; a table takes the whole window.
        table, left_out = fitted_table(columns, self.console.width, first, ellipsis=self._is_utf())
        self._print(table)
        if left_out:
            number = "1 column does" if len(left_out) == 1 else f"{len(left_out)} columns do"
            self.note(f"{number} not fit: {', '.join(left_out)}. A wider window or fewer columns show them.")

    def _is_utf(self) -> bool:
        return self.console.encoding.lower().startswith("utf")

    def text(self, value: object) -> str:
        """Return a value as text: numbers and moments shortened for people, in full for scripts."""
        if value is None:
            return NULL
        if isinstance(value, datetime):
            return moment_text(value, not self.is_terminal)
        if isinstance(value, bool | Mapping):
            return json_of(value)
        if self.is_terminal and isinstance(value, float):
            return number_text(value)
        return f"{value:,}" if self.is_terminal and isinstance(value, int) else str(value)

    def size(self, size: int) -> Amount:
        """Return a number of bytes as text."""
        return Amount(size_text(size) if self.is_terminal else f"{size} bytes")

    def block(self, text: str, style: str = "") -> None:
        """Write a text of several lines, indented, so that none of them passes for a heading."""
        lines = [clean(line) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n")]
        if self.is_terminal:
            self._print(Padding(Text("\n".join(lines), style), (0, 0, 0, INDENT)), width=self.width)
            return
        for line in lines:
            self.raw(" " * INDENT + line)

    def note(self, text: str) -> None:
        """Write a remark beside the result: on the terminal, else on standard error."""
        if self.is_terminal:
            self._print(Text(clean(text), "bright_black"))
        else:
            print(clean(text), file=sys.stderr)

    def raw(self, text: str, end: str = "\n") -> None:
        """Write text unchanged, also on a terminal, for other programs.

        The caller has escaped control characters, as JSON and the texts of CSV do.
        """
        self._begun = True
        print(text, file=self.console.file, end=end)

    def _print(self, *parts: Any, **settings: Any) -> None:
        """Write on the terminal."""
        self._begun = True
        self.console.print(*parts, **settings)


def report_error(message: str) -> None:
    """Write an error to standard error, with colour if that is a terminal."""
    _report("Error", "bold red", message)


def report_warning(message: str) -> None:
    """Write to standard error what is wrong while the command continues."""
    _report("Warning", "bold yellow", message)


def _report(kind: str, style: str, message: str) -> None:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    lines = [clean(line) for line in message.splitlines()]
    if console.is_terminal:
        console.print(Text.assemble((f"{kind}: ", style), "\n".join(lines)))
    else:
        print(f"{kind}: " + "\n".join(lines), file=sys.stderr)


def print_report(report: Report, *, as_json: bool) -> None:
    """Print the report of a command: as text, or as JSON.

    JSON is one object for a mapping or a dataclass, and a list of objects, one a line, for rows.
    """
    page, value = Page(), report.value
    has_rows = isinstance(value, pl.DataFrame | list)
    if as_json and has_rows:
        before = "["
        for row in value.iter_rows(named=True) if isinstance(value, pl.DataFrame) else value:
            page.raw(before + json_of(row), end="")
            before = ",\n "
        page.raw("[]" if before == "[" else "]")
    elif as_json:
        page.raw(json_of(value, indent=2))
    elif report.write is not None:
        report.write(page, value)
    elif isinstance(value, pl.DataFrame | list):
        if isinstance(value, pl.DataFrame):
            page.frame(value)
        else:
            page.table(value)
        if report.empty and not len(value):
            page.note(report.empty)
    else:
        facts = value if isinstance(value, Mapping) else vars(value)
        page.pairs(
            [
                (name.replace("_", " "), page.size(each) if "bytes" in name or name == "size" else each)
                for name, each in facts.items()
            ]
        )
