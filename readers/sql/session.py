"""`QuerySession`: queries over some episodes on connections that it keeps, and that can be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import duckdb
import polars as pl
import pyarrow as pa

from ...store.errors import QueryError
from ..context import Parameters, ReadContext
from .connections import connect
from .interrupting import run_interruptible
from .query import bind, failure

Result = TypeVar("Result")


class QuerySession:
    """Queries on connections as of `connect`, each made with the first query that needs it.

    Args:
        context: the episodes that its tables show.
        read_only: the queries see nothing but the store.
        keep_rows: hold the rows of episodes and runs in memory where the queries are `read_only`; a single
            query does not gain from it.
    """

    def __init__(self, context: ReadContext, *, read_only: bool = True, keep_rows: bool = True) -> None:
        self._context = context
        self._read_only = read_only
        self._keep_rows = keep_rows and read_only
        self._connections: dict[tuple[bool, bool], duckdb.DuckDBPyConnection] = {}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection of most of its queries."""
        return self._connect()

    def _connect(self, *, with_next: bool = False, through_arrow: bool = False) -> duckdb.DuckDBPyConnection:
        options = (with_next, through_arrow)
        if options not in self._connections:
            self._connections[options] = connect(
                self._context,
                read_only=self._read_only,
                keep_rows=self._keep_rows and not with_next,
                check_steps=False,
                through_arrow=through_arrow,
                with_next=with_next,
            )
        return self._connections[options]

    def sql(self, text: str, parameters: Parameters | None = None) -> duckdb.DuckDBPyRelation:
        """Parse a query and look up what it names; see `EpisodeView.sql`."""
        return bind(self._context, self._connect, text, parameters)

    def query(self, text: str, parameters: Parameters | None = None) -> pl.DataFrame:
        """Return the result of a query; see `EpisodeView.query`."""
        try:
            return self.carry_out(lambda: self.sql(text, parameters).pl())
        except duckdb.Error as error:
            raise failure(self._context, text, error) from error

    def bind(self, text: str) -> duckdb.DuckDBPyRelation:
        """Do as `sql`, in another thread; Ctrl-C stops it.

        Raises:
            QueryError: it is not valid; the message names what there is.
        """
        return self.carry_out(lambda: self.sql(text))

    def carry_out(self, work: Callable[[], Result], stopped: threading.Event | None = None) -> Result:
        """Do something with these connections in another thread; they can be used again afterwards.

        Args:
            work: asks DuckDB.
            stopped: ends it when it is set, as Ctrl-C does in the main thread.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; DuckDB has stopped.
        """
        return run_interruptible(work, self._interrupt, stopped)

    def _interrupt(self) -> None:
        # While a connection is being made it is not here; `run_interruptible` calls again and again.
        for connection in list(self._connections.values()):
            connection.interrupt()

    def first_rows(self, text: str, most: int, stopped: threading.Event) -> pa.Table:
        """Return the first rows of a query, which is ended as soon as they are there.

        Raises:
            QueryError: it is not valid, failed, or was stopped.
            CorruptStoreError: a file is damaged; the message names it.
        """
        try:
            if not stopped.is_set():
                return self.carry_out(lambda: self._read(text, most), stopped)
        except QueryError:
            if not stopped.is_set():
                raise
        raise QueryError("The query was stopped.")

    def _read(self, text: str, most: int) -> pa.Table:
        try:
            # Only DuckDB knows how to end a plan early; a limit behind EXPLAIN or PIVOT is no query.
            reader: Any = self.sql(text).to_arrow_reader(most)
            batches, count = [], 0
            for batch in reader:
                batches.append(batch)
                count += batch.num_rows
                if count >= most:
                    break
            return pa.Table.from_batches(batches, reader.schema).slice(0, most)
        except (duckdb.Error, pa.ArrowException) as error:
            raise QueryError(f"The query failed while it ran: {error}") from error

    def close(self) -> None:
        """Close the connections; another query makes new ones."""
        while self._connections:
            self._connections.popitem()[1].close()


class ThreadSessions:
    """Sessions over some episodes, for each thread its own.

    A result of DuckDB ends when its connection runs another query, hence one for each thread.
    """

    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self._of_thread = threading.local()

    def session(self, *, read_only: bool) -> QuerySession:
        """Return the calling thread's session."""
        mine: dict[Any, QuerySession] = self._of_thread.__dict__
        return mine.setdefault(read_only, QuerySession(self._context, read_only=read_only))
