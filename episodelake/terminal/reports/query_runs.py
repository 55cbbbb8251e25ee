"""Writes results of queries as tables of the command line; Ctrl-C stops a query."""

from __future__ import annotations

from ...readers.amounts import counted
from ...readers.sql.session import QuerySession
from ..output.page import Page


def write_result(page: Page, session: QuerySession, text: str, limit: int) -> None:
    """Carry out a query and write its result as a table of at most `limit` rows; 0 for all."""
    relation = session.bind(text)
    # One row more tells whether there are more, so that only then they are counted.
    found = session.carry_out((relation.limit(limit + 1) if limit else relation).to_arrow_table)
    shown = found.slice(0, limit) if limit else found
    page.frame(shown)
    if found.num_rows > shown.num_rows:
        rest = session.carry_out(lambda: relation.aggregate("count(*)").fetchall())[0][0] - shown.num_rows
        page.note(f"{counted(rest, 'more row')}; show more with --limit N, all with --limit 0.")
