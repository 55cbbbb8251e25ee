"""Runs queries of the command line so that Ctrl-C stops them, and writes their results as tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import duckdb

from .._store import EpisodeStore
from ..readers.amounts import counted
from ..readers.sql.interrupting import carry_out
from ..readers.sql.query import connect, run_sql
from .grid import grid_of
from .page import Page

Result = TypeVar("Result")


class QueryRun:
    """A connection whose queries can be interrupted.

    Args:
        connection: with the tables of a store.
        store: the store, whose names errors tell.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, store: EpisodeStore) -> None:
        self.connection = connection
        self._snapshot = store.selection().snapshot

    @staticmethod
    def of(store: EpisodeStore) -> QueryRun:
        """With a connection that sees nothing but the store, for many queries."""
        return QueryRun(store.connect(read_only=True), store)

    @staticmethod
    def once(store: EpisodeStore) -> QueryRun:
        """The same, for a single query: it begins at once."""
        snapshot = store.selection().snapshot
        return QueryRun(connect(snapshot, None, read_only=True, keep_rows=False), store)

    def bind(self, text: str) -> duckdb.DuckDBPyRelation:
        """Parse a query and look up what it names.

        Raises:
            QueryError: it is not valid; the message names what there is.
        """
        return self.carry_out(lambda: run_sql(self._snapshot, self.connection, text))

    def carry_out(self, work: Callable[[], Result]) -> Result:
        """Do something with a relation of this connection while the main thread waits for Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; DuckDB has stopped, and the connection can be used again.
        """
        return carry_out(work, self.connection.interrupt)


def write_result(page: Page, run: QueryRun, text: str, limit: int) -> None:
    """Carry out a query and write its result as a table of at most `limit` rows; 0 for all."""
    relation = run.bind(text)
    # One row more tells whether there are more, so that only then they are counted.
    found = run.carry_out((relation.limit(limit + 1) if limit else relation).to_arrow_table)
    shown = found.slice(0, limit) if limit else found
    page.table(grid_of(shown, exact=not page.is_terminal))
    if found.num_rows > shown.num_rows:
        rest = run.carry_out(lambda: relation.aggregate("count(*)").fetchall())[0][0] - shown.num_rows
        page.note(f"{counted(rest, 'more row')}; show more with --limit N, all with --limit 0.")
