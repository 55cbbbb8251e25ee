"""`ChartSession`: a connection for the tables that a chart is aggregated from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import duckdb
import pyarrow as pa

from ..store.errors import CorruptStoreError, NothingToDrawError
from ..store.layout import EPISODES, RUNS, TABLES
from ..store.snapshot import Snapshot
from .context import ReadContext, refresh_hint
from .filters import available_episodes
from .sql.connections import check_has_steps, connect
from .sql.session import QuerySession
from .sql.sources import run_interruptible


class ChartSession:
    """A DuckDB connection of its own, for the tables that a chart is aggregated from; `with` closes it.

    Args:
        context: the episodes.
        steps: provide all tables; else only `episodes` and `runs`, which needs no file of steps.

    Raises:
        NothingToDrawError: there are no episodes.
        CorruptStoreError: a file is damaged.
        StoreAccessError: a file cannot be read.
    """

    def __init__(self, context: ReadContext, *, steps: bool) -> None:
        self.check_any(context)
        self.snapshot = context.snapshot
        self._tables = TABLES if steps else (EPISODES, RUNS)
        self._segments = context.segments if steps else None
        # Rows of chosen episodes are picked from their files once, and not by each query.
        kept = not steps and context.positions is not None
        with self._naming_files():
            self._connection = connect(context, steps=steps, keep_rows=kept, words=())
            check_has_steps(self._connection)

    @staticmethod
    def check_any(context: ReadContext) -> None:
        """Refuse a view without episodes.

        Raises:
            NothingToDrawError: it has none.
        """
        if not len(context):
            raise NothingToDrawError(
                "There is nothing to draw: there are no episodes. Record some, or choose with a wider filter."
                + refresh_hint(context.snapshot)
            )

    @staticmethod
    def available(snapshot: Snapshot) -> str:
        """Return the hint that names the columns of the episodes table, for errors."""
        return available_episodes(snapshot)

    def rows(self, text: str) -> list[dict[str, Any]]:
        """Run a statement, and return its rows by name of column; see `table`."""
        return self.table(text).to_pylist()

    def table(self, text: str) -> pa.Table:
        """Run a statement; of one that is no query, return a table without columns.

        Raises:
            CorruptStoreError: a file is damaged; the message names it, where that is known.
            StoreAccessError: a file cannot be read.
        """

        def ask() -> pa.Table:
            relation = self._connection.sql(text)
            return pa.table({}) if relation is None else relation.to_arrow_table()

        with self._naming_files():
            return run_interruptible(ask, self._connection.interrupt)

    @contextlib.contextmanager
    def _naming_files(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.InterruptException, duckdb.OutOfMemoryException):
            raise
        except duckdb.Error as error:
            # The statements are ours, so it is a file: one that does not hold what its schema says, or one
            # for which the connection has no view.
            QuerySession.name_damaged(self.snapshot, error, self._tables, self._segments)
            raise CorruptStoreError(
                f"The store {self.snapshot.layout.root} cannot be read: {error}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
