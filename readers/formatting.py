"""Amounts in words, for charts, cards and the command line, and tables for notebooks."""

from __future__ import annotations

import html

import polars as pl


def counted(number: int, noun: str) -> str:
    """Return a number of things with their name.

    >>> counted(1, "episode"), counted(2000, "episode")
    ('1 episode', '2,000 episodes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(size: float) -> str:
    """Return a number of bytes for people, in decimal units.

    >>> size_text(999), size_text(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def frame_html(title: str, frame: pl.DataFrame, note: str = "") -> str:
    """Return a table as HTML, with all columns, below a title and above a note, which are plain text."""
    with pl.Config(
        tbl_rows=40,
        tbl_cols=-1,
        fmt_str_lengths=60,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_hide_dtype_separator=True,
    ):
        table = frame._repr_html_()
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<p><code>{html.escape(title)}</code></p>{table}{below}"
