"""The SQL box: one query at a time, with a time and a limit of rows."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pyarrow as pa

from .._store import EpisodeStore
from ..readers.sql.session import QuerySession
from ..store.errors import QueryError

MOST_ROWS = 1_000


@dataclass(frozen=True)
class Result:
    """Result of a query.

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
        store: pinned at the version.
    """

    def __init__(self, store: EpisodeStore) -> None:
        self._session = QuerySession(store.context)
        self._busy = threading.Lock()

    def run(self, text: str, stopped: threading.Event, most: int = MOST_ROWS) -> Result:
        """Run a query and return its first rows. Called in a thread of its own.

        Args:
            text: the query.
            stopped: stops the query when it is set, also before its start.
            most: the most rows to return.

        Raises:
            QueryError: it is invalid, failed, was stopped, or another query of this page is running.
            CorruptStoreError: a file is damaged; the message names it.
        """
        if not self._busy.acquire(blocking=False):
            raise QueryError("A query is running. Wait for it, or stop it.")
        try:
            started = time.perf_counter()
            table = self._session.first_rows(text, most + 1, stopped)
            return Result(table.slice(0, most), table.num_rows <= most, time.perf_counter() - started)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Close the connection, once no query runs."""
        with self._busy:
            self._session.close()
