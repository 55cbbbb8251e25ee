"""While a command of the command line works: its progress bar, and what it says if Ctrl-C ends it.

The commands hand what `progress_bar` yields to the store, which calls it as it goes. In a pipe nothing is
drawn.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .._store import EpisodeStore, open_store
from ..store.maintenance.operation import Progress as Tell
from .page import report_error

INTERRUPTED = 130


@contextlib.contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Tell]:
    """Draw a bar on standard error while the block runs, and take it away afterwards.

    Args:
        title: what is being done.
        unit: what is counted.

    Yields:
        What the store's methods take as `progress`: called with how much is done and how much there is.
        Until its first call the bar says only that something is going on.
    """
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    shown = console.is_terminal and not console.is_dumb_terminal
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        bar = progress.add_task(title, total=None)

        def tell(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        yield tell


@contextlib.contextmanager
def interruptible(told: Callable[[], str]) -> Iterator[None]:
    """Say in one line how Ctrl-C left the store, and end with status 130."""
    # Polars, once imported, lets calls that wait go on after Ctrl-C; a lock or the terminal would not let go.
    signal.siginterrupt(signal.SIGINT, True)
    try:
        yield
    except KeyboardInterrupt:
        report_error(f"Interrupted. {told()}")
        raise typer.Exit(INTERRUPTED) from None


def unchanged() -> str:
    """What a command says that changes nothing, or has not yet."""
    return "The store is as it was."


@dataclass
class Change:
    """An operation that shows in one commit or not at all; it finds out which after Ctrl-C.

    Attributes:
        path: the store that is changed.
        storage: how to reach it.
        operation: what its history calls the commit.
        before: the version before; None until the store is open.
    """

    path: str
    storage: dict[str, str] | None
    operation: str
    before: int | None = None

    def open(self) -> EpisodeStore:
        """Open the store that is about to be changed."""
        store = open_store(self.path, storage_options=self.storage)
        self.before = store.version
        return store

    def told(self) -> str:
        """Whether the commit was made."""
        if self.before is None:
            return unchanged()
        history = open_store(self.path, storage_options=self.storage).history()
        made = history.filter((pl.col("version") > self.before) & (pl.col("operation") == self.operation))
        if made.height:
            return f"The change was committed before that, as version {made['version'].min()}."
        return unchanged()
