"""Messages of commands that Ctrl-C ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl
import typer

from ..._store import EpisodeStore, open_store
from .page import report_error

INTERRUPTED = 130


@contextlib.contextmanager
def interruptible(told: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C, report the condition of the store in one line, and end with status 130."""
    # Polars restarts system calls after Ctrl-C, so waiting for a lock or the terminal would not end.
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(signal.SIGINT, True)
    try:
        yield
    except KeyboardInterrupt:
        report_error(f"Interrupted. {told()}")
        raise typer.Exit(INTERRUPTED) from None


def unchanged() -> str:
    """Return the message of a command that has changed nothing."""
    return "The store is as it was."


@dataclass
class Change:
    """An operation of one commit; after Ctrl-C it reports whether the commit was made.

    Attributes:
        path: the store.
        storage: how to reach it.
        operation: the name of the commit in the history.
        before: the version before the change; None until the store is open.
    """

    path: str
    storage: dict[str, str] | None
    operation: str
    before: int | None = None

    def open(self) -> EpisodeStore:
        """Open the store, and note its version."""
        store = open_store(self.path, storage_options=self.storage)
        self.before = store.version
        return store

    def told(self) -> str:
        """Return whether the commit was made."""
        if self.before is None:
            return unchanged()
        history = open_store(self.path, storage_options=self.storage).history()
        made = history.filter((pl.col("version") > self.before) & (pl.col("operation") == self.operation))
        if made.height:
            return f"The change was committed before that, as version {made['version'].min()}."
        return unchanged()
