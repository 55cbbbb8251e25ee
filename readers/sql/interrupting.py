"""Work of DuckDB that Ctrl-C stops: all that this library asks of it is carried out here.

In the main thread DuckDB's own calls notice Ctrl-C between pieces of work, which may be long, and raise a
plain `RuntimeError`; short ones may lose it altogether. Here the work is done in a thread of its own while
the caller waits, so that no interrupt is lost and each reaches it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")
_SECONDS = 0.05


def _go_on() -> None:
    """For work that is short: its end is waited for."""


def carry_out(work: Callable[[], Result], interrupt: Callable[[], None] = _go_on) -> Result:
    """Do work on a connection; an interrupt of the caller stops it, and the connection can be used again.

    Args:
        work: called once, in another thread.
        interrupt: the connection's `interrupt`. An interrupt that comes before a query has begun is lost, so
            it is called until the work has ended.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the work has ended.
    """
    outcome = _begun(work)
    try:
        # In short waits: on some systems one without an end is not interrupted.
        while not outcome.done():
            wait([outcome], _SECONDS)
    except BaseException:
        while not outcome.done():
            interrupt()
            wait([outcome], _SECONDS)
        raise
    return outcome.result()


def carry_out_until(
    stopped: threading.Event, work: Callable[[], Result], interrupt: Callable[[], None]
) -> Result:
    """The same for a thread that Ctrl-C does not reach: an event stops the work, whenever it is set."""
    outcome = _begun(work)
    while not outcome.done():
        if stopped.is_set():
            interrupt()
        wait([outcome], _SECONDS)
    return outcome.result()


def _begun(work: Callable[[], Result]) -> Future[Any]:
    """What work will have given, or raised, that is done in a thread of its own."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="episodelake-query", daemon=True).start()
    return outcome
