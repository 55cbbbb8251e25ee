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


def run_interruptible(
    work: Callable[[], Result],
    interrupt: Callable[[], None] = lambda: None,
    stopped: threading.Event | None = None,
) -> Result:
    """Do work on a connection; an interrupt of the caller stops it, and the connection can be used again.

    Args:
        work: called once, in another thread.
        interrupt: the connection's `interrupt`; by default an interrupt waits for the end of the work. An
            interrupt that comes before a query has begun is lost, so it is called until the work has ended.
        stopped: stops the work when it is set, for a caller that Ctrl-C does not reach.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the work has ended.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    try:
        # An interrupt may come while the thread starts: the work is then cancelled, or waited for.
        threading.Thread(target=run, name="episodelake-query", daemon=True).start()
        # In short waits: on some systems one without an end is not interrupted.
        while not outcome.done():
            if stopped is not None and stopped.is_set():
                interrupt()
            wait([outcome], _SECONDS)
    except BaseException:
        while not (outcome.cancel() or outcome.done()):
            interrupt()
            wait([outcome], _SECONDS)
        raise
    return outcome.result()
