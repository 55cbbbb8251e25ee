"""The SQL box: one query at a time on a connection that can do no harm, which can be stopped."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from ...store.errors import QueryError
from ..sql.interrupting import carry_out_until
from ..sql.query import run_sql
from ..view import EpisodeView

MOST_ROWS = 1_000


@dataclass(frozen=True)
class Result:
    """What a query gave.

    Attributes:
        table: its first rows, at most as many as were asked for.
        complete: whether these are all.
        seconds: how long it took.
    """

    table: pa.Table
    complete: bool
    seconds: float


class Queries:
    """Queries over one version; closed with it.

    Args:
        view: what the tables show.
    """

    def __init__(self, view: EpisodeView) -> None:
        self._view = view
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._busy = threading.Lock()

    def run(self, text: str, stopped: threading.Event, most: int = MOST_ROWS) -> Result:
        """Run a query and take its first rows. Called from a thread of its own.

        Args:
            text: the query.
            stopped: ends it when it is set, also before it has begun.
            most: how many rows to take.

        Raises:
            QueryError: it is not valid, failed, was stopped, or another one of this page is running.
            CorruptStoreError: a file is damaged; the message names it.
        """
        if not self._busy.acquire(blocking=False):
            raise QueryError("A query is running. Wait for it, or stop it.")
        try:
            started = time.perf_counter()
            table = self._unless(stopped, text, most + 1)
            return Result(table.slice(0, most), table.num_rows <= most, time.perf_counter() - started)
        finally:
            self._busy.release()

    def _unless(self, stopped: threading.Event, text: str, most: int) -> pa.Table:
        try:
            if not stopped.is_set():
                return carry_out_until(stopped, lambda: self._rows(text, most), self._interrupt)
        except QueryError:
            if not stopped.is_set():
                raise
        raise QueryError("The query was stopped.")

    def _rows(self, text: str, most: int) -> pa.Table:
        if self._connection is None:
            self._connection = self._view.connect(read_only=True)
        try:
            view = self._view
            relation = run_sql(view._reader.snapshot, self._connection, text, view._segments)
            # Only DuckDB knows how to end a plan early; a limit behind EXPLAIN or PIVOT is no query.
            reader: Any = relation.to_arrow_reader(most)
            return _first(reader, most)
        except (duckdb.Error, pa.ArrowException) as error:
            raise QueryError(f"The query failed while it ran: {error}") from error

    def _interrupt(self) -> None:
        # While the connection is being made there is none; what stops the query asks again and again.
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        """Let go of the connection, once no query runs."""
        with self._busy:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _first(reader: pa.RecordBatchReader, most: int) -> pa.Table:
    """The first rows of a stream; the rest is not asked for."""
    batches, count = [], 0
    for batch in reader:
        batches.append(batch)
        count += batch.num_rows
        if count >= most:
            break
    return pa.Table.from_batches(batches, reader.schema).slice(0, most)
