"""`Page`: the output of a command, for terminals and for pipes, as text or as JSON (RFC 8259).

On a terminal a page has colour, tables that fit the window and highlighted code. Anywhere else it is plain
text: no escape sequences, no lines drawn around things, tables separated by tabs (or set with spaces).

JSON has no form for some values: NaN and infinities are the texts "NaN", "Infinity" and "-Infinity"; moments
are ISO 8601 in UTC; bytes are base64; a map is a list of pairs; spans of time are seconds.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ...readers.amounts import size_text
from .charts import ASCII, BLOCKS, BLOCKS_PLAIN, Glyphs
from .grid import GAP, NULL, SPELLED, Grid, aligned, clean, fitted, grid_of, number_text

INDENT = 2


class Page:
    """One command's output.

    Args:
        tabs: separate the cells of tables by tabs where there is no terminal; otherwise align with spaces.

    Attributes:
        console: the rich console behind it, for progress bars.
        is_terminal: whether it writes for a terminal.
    """

    def __init__(self, tabs: bool = True) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        self.is_terminal = self.console.is_terminal and not self.console.is_dumb_terminal
        self._tabs = tabs
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

    @property
    def glyphs(self) -> Glyphs:
        """The characters for charts, by the encoding of the output."""
        if not self.console.encoding.lower().startswith("utf"):
            return ASCII
        return BLOCKS if self.is_terminal else BLOCKS_PLAIN

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line; long lines wrap on a terminal."""
        self.parts((text, style))

    def parts(self, *parts: tuple[str, str]) -> None:
        """Write one line of parts, each with its style."""
        if self.is_terminal:
            self._print(Text.assemble(*((clean(text), style) for text, style in parts)))
        else:
            self._plain("".join(clean(text) for text, _ in parts))

    def heading(self, text: str) -> None:
        """Begin a section; a line is left free above it."""
        if self._begun:
            self.line()
        if self.is_terminal:
            self._print(Rule(Text(clean(text), "bold cyan"), align="left", style="cyan"))
        else:
            self._plain(f"== {clean(text)} ==")

    def pairs(self, pairs: Sequence[tuple[str, object]]) -> None:
        """Write names with their values, one a line; a text may have several lines."""
        texts = [(clean(name), self.number(value)) for name, value in pairs]
        if not self.is_terminal:
            for name, text in texts:
                self._plain(f"{name}\t{clean(text)}")
            return
        table = Table.grid(padding=(0, GAP))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in texts:
            table.add_row(name, Text("\n".join(map(clean, text.split("\n")))))
        self._print(table, width=self.width)

    def table(self, grid: Grid) -> None:
        """Write a table."""
        if not grid.headers:
            return
        if not self.is_terminal:
            lines = ["\t".join(row) for row in (grid.headers, *grid.rows)] if self._tabs else aligned(grid)
            for line in lines:
                self._plain(line)
            return
        # Text is hard to read beyond 120 columns; a table takes the whole window.
        grid, left_out = fitted(grid, self.console.width, self.glyphs.cut)
        lines = aligned(grid)
        self._print(Text(lines[0], "bold"), no_wrap=True)
        rule = self.glyphs.rule * max(len(line) for line in lines)
        self._print(Text(rule[: self.console.width], "bright_black"), no_wrap=True)
        for line in lines[1:]:
            self._print(Text(line), no_wrap=True, overflow="crop")
        if left_out:
            columns = "1 column does" if len(left_out) == 1 else f"{len(left_out)} columns do"
            self.note(f"{columns} not fit: {', '.join(left_out)}. A wider window or fewer columns show them.")

    def grid(self, data: pl.DataFrame | pa.Table) -> Grid:
        """Return data as a table of texts: rounded on a terminal, in full elsewhere."""
        return grid_of(
            data.to_arrow() if isinstance(data, pl.DataFrame) else data, exact=not self.is_terminal
        )

    def frame(self, data: pl.DataFrame | pa.Table) -> None:
        """Write data as a table."""
        self.table(self.grid(data))

    def number(self, value: object) -> str:
        """Return a number as text: shortened for people, in full for scripts."""
        if value is None:
            return NULL
        if self.is_terminal and isinstance(value, float):
            return number_text(value)
        return f"{value:,}" if self.is_terminal and isinstance(value, int) else str(value)

    def size(self, size: int) -> str:
        """Return a number of bytes as text."""
        return size_text(size) if self.is_terminal else f"{size} bytes"

    def code(self, text: str, language: str) -> None:
        """Write code or SQL."""
        if self.is_terminal:
            # Slow to import: as long as the rest of rich.
            from rich.syntax import Syntax

            syntax = Syntax(text, language, theme="ansi_dark", background_color="default", word_wrap=True)
            self._print(Padding(syntax, (0, 0, 0, INDENT)))
        else:
            for line in text.splitlines():
                self._plain(" " * INDENT + line)

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

    def _plain(self, text: str) -> None:
        self.raw(text)


# Errors. Those of the library end with hints for Python, such as `store.make_env(trust=True)`: users of the
# shell see the option with the same effect, or that the advice needs Python.

_TRUSTED = 'Then: episode.video(env=store.make_env(trust=True, render_mode="rgb_array")).'
#: Patterns in messages, and their replacements.
_WORDS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (
            r"Create one with episodelake\.create\.",
            "Check the path; `episodelake demo` makes stores.",
        ),
        (r", or create a store with episodelake\.create\.", "."),
        (r"refresh\(\) moves to version (\d+)", r"version \1 is newer, which the path without @ shows"),
        (r"call make_env\(trust=True\) and pass the environment on; or make it yourself\.", "add --trust."),
        (rf" {re.escape(_TRUSTED)}", ""),
        (r"Make the environment yourself, and pass it where one is needed: ", "In Python make it yourself: "),
        (r"To replay it in one of your own: ", "In Python it can be replayed in one of your own: "),
        (
            r"Choose one, episode\.agent\((['\"])(.+?)\1\)\.video\(\), or replay .*$",
            r"Choose one: --agent \2.",
        ),
        (r"replay the episode in an environment of PettingZoo, (store\[)", r"in Python, replay all with \1"),
        (r"\bcolumn=(['\"])(.+?)\1", r"--column \2"),
        (r"with column=:", "with --column:"),
        (
            r"For images, look at episode\.video\(\)\.",
            "For images: `show PATH EPISODE --frames FILE`.",
        ),
        (r"store\.filter\(\"(.+?)\"\)", r'--filter "\1"'),
        (
            r"Use a connection of your own, from connect\(\), for other statements\.",
            "`episodelake sql` only asks, and changes nothing; --output FILE writes a result.",
        ),
        (
            r"this connection, read_only=True, sees nothing else\. Without read_only a query may read other "
            r"files too\.",
            "`episodelake sql` sees nothing else. In Python store.query(...) may read other files too; or "
            "write the result with --output, and ask DuckDB itself.",
        ),
        (r"\bthe view (is empty|has (?:no|\d+) episodes)", r"the store \1"),
        (r"\bverify\(\) names", "`episodelake verify` names"),
        (r"Run verify\.", "Run `episodelake verify`."),
        (r"\bits storage_options\b", "its --storage-option"),
        (r"^storage_options: ", "--storage-option: "),
    )
)


def for_shell(message: str) -> str:
    """Return a message with advice for a shell.

    >>> for_shell("There are several images. Name one with column=: a, b.")
    'There are several images. Name one with --column: a, b.'
    """
    for pattern, replacement in _WORDS:
        message = pattern.sub(replacement, message)
    return message


def report_error(message: str) -> None:
    """Write an error to standard error, with colour if that is a terminal."""
    _report("Error", "bold red", message)


def report_warning(message: str) -> None:
    """Write to standard error what is wrong while the command continues."""
    _report("Warning", "bold yellow", message)


def _report(kind: str, style: str, message: str) -> None:
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    lines = [clean(line) for line in for_shell(message).splitlines()]
    if console.is_terminal:
        console.print(Text.assemble((f"{kind}: ", style), "\n".join(lines)))
    else:
        print(f"{kind}: " + "\n".join(lines), file=sys.stderr)


#: JSON itself escapes those below the space; beyond 16 bits it takes two escapes.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(127, 160)}
_CONTROLS |= {code: json.dumps(chr(code))[1:-1] for code in SPELLED}


def plain(value: Any) -> Any:
    """Return a value in the types of JSON.

    >>> plain({"a": float("nan"), "b": (1, b"x")})
    {'a': 'NaN', 'b': [1, 'eA==']}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _unbounded(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        # DuckDB's sums of whole numbers come as decimals of any size.
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _unbounded(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def json_of(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text; no control character of the data is left to steer a terminal."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return text.translate(_CONTROLS)


def emit(report: Any, write: Callable[[Page, Any], None], *, as_json: bool) -> None:
    """Print a report: as JSON, or as text by a function of the page and the report.

    JSON is one object for a mapping or a dataclass, and a list of objects, one a line, for a list or a frame.
    """
    page = Page()
    if not as_json:
        write(page, report)
    elif isinstance(report, pl.DataFrame | list):
        before = "["
        for row in report.iter_rows(named=True) if isinstance(report, pl.DataFrame) else report:
            page.raw(before + json_of(row), end="")
            before = ",\n "
        page.raw("[]" if before == "[" else "]")
    else:
        page.raw(json_of(report, indent=2))
