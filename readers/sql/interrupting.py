"""Queries that Ctrl-C stops: `EpisodeView.query` carries one out here.

DuckDB's own calls notice Ctrl-C between pieces of work, which may be long, and raise a plain `RuntimeError`.
Here the query runs in a thread of its own while the caller waits, so that the interrupt reaches it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import duckdb

Result = TypeVar("Result")
_SECONDS = 0.05


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], Result]) -> Result:
    """Do work on a connection; an interrupt of the caller stops it, and the connection can be used again.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the work has ended.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="episodelake-query", daemon=True).start()
    try:
        # In short waits: on some systems one without an end is not interrupted.
        while not outcome.done():
            wait([outcome], _SECONDS)
    except BaseException:
        while not outcome.done():
            connection.interrupt()
            wait([outcome], _SECONDS)
        raise
    return outcome.result()
