"""Open a store to look at it, and go on where some of its files are damaged.

Commands work out all that they will say before they print; `explored` can therefore begin again without the
files that turned out to be damaged, and names these on standard error. What it leaves out depends on what is
asked: rows of episodes and runs everywhere; steps only of commands that go through them all, whose result
then lacks some: `explored_steps` says so, and they end with status 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import duckdb
import numpy as np
import polars.exceptions
import pyarrow as pa
import typer

from .._store import EpisodeStore
from ..readers.amounts import counted
from ..store.errors import CorruptStoreError, EpisodeNotFoundError
from ..store.journal import is_live, journal_folders
from ..store.layout import Layout
from ..store.snapshot import Snapshot
from .arguments import open_store_at
from .commands import FAILED
from .page import report_warning

Result = TypeVar("Result")

#: So many live runs are named.
LIVE_SHOWN = 3
#: What reading a damaged file raises, whoever reads it.
READING_ERRORS = (CorruptStoreError, duckdb.Error, pa.ArrowException, polars.exceptions.PolarsError)


@dataclass(frozen=True)
class Explored:
    """A store that is being looked at.

    Positions are those of the whole store, whatever was left out: they mean the same in every command.

    Attributes:
        store: the store, without its damaged files.
        damaged: what is wrong with each file that was left out.
        whole: int64, of each episode that is left its position in the whole store; None if all are.
        count: number of episodes of the whole store.
    """

    store: EpisodeStore
    damaged: tuple[str, ...] = ()
    whole: np.ndarray | None = None
    count: int = 0

    def here(self, key: int | str) -> int | str:
        """Where the episode of a position in the whole store is among those that are left; ids stay.

        Raises:
            EpisodeNotFoundError: its row is in a damaged file.
        """
        if self.whole is None or isinstance(key, str) or not -self.count <= key < self.count:
            return key
        found = np.flatnonzero(self.whole == key % self.count)
        if not len(found):
            raise EpisodeNotFoundError(
                f"The episode at position {key} is in a damaged file of episodes, which is left out."
            )
        return int(found[0])

    def position(self, here: int) -> int:
        """The position in the whole store of an episode among those that are left."""
        return here if self.whole is None else int(self.whole[here])


def explored(
    path: str, storage: Sequence[str] | None, work: Callable[[Explored], Result], *, tell_live: bool = True
) -> Result:
    """Open a store and work on it; again without the damaged files of its small tables, if there are any.

    Args:
        path, storage: where the store is, and how it is reached.
        work: what is done with it.
        tell_live: of a store without episodes, say which runs are being recorded.

    Raises:
        CorruptStoreError: what the work needs is damaged itself.
    """
    store = open_store_at(path, storage)
    if tell_live:
        _tell_live(store)
    return _explored(store, work, steps=False)[0]


def explored_steps(
    path: str, storage: Sequence[str] | None, work: Callable[[Explored], Result]
) -> tuple[Result, bool]:
    """The same for work that reads steps of any episode: damaged files of steps are left out too.

    Returns:
        The result, and whether it has all steps; see `end`.
    """
    store = open_store_at(path, storage)
    _tell_live(store)
    return _explored(store, work, steps=True)


def live_told(runs: Sequence[str]) -> str:
    """Which runs are being recorded, and when their episodes show."""
    listed = ", ".join(runs[:LIVE_SHOWN]) + (" and others" if len(runs) > LIVE_SHOWN else "")
    when = "Episodes show once they are sealed, about a minute after they ended."
    return f"{counted(len(runs), 'live run')}: {listed}. {when}"


def live_runs(layout: Layout) -> list[str]:
    """The runs that a live writer records, in this process or another."""
    return [folder.name for folder in journal_folders(layout.journals) if is_live(folder)]


def _tell_live(store: EpisodeStore) -> None:
    snapshot = store.selection().snapshot
    if snapshot.newest and not snapshot.episode_count:
        runs = live_runs(snapshot.layout)
        if runs:
            report_warning(live_told(runs))


def end(complete: bool) -> None:
    """End a command whose result lacks steps with status 1: a number of fewer rows is not what was asked."""
    if not complete:
        raise typer.Exit(FAILED)


def _explored(store: EpisodeStore, work: Callable[[Explored], Result], *, steps: bool) -> tuple[Result, bool]:
    try:
        return work(Explored(store)), True
    except READING_ERRORS:
        before = store.selection().snapshot
        damaged = tuple(store.leave_out_damaged(steps=steps))
        if not damaged:
            raise
    for each in damaged:
        report_warning(each)
    after = store.selection().snapshot
    result = work(Explored(store, damaged, _whole(before, after), before.episode_count))
    return result, not after.lost_segments


def _whole(before: Snapshot, after: Snapshot) -> np.ndarray | None:
    """Positions in the whole store of the episodes in the files that are left; None if that is all files."""
    kept = {file.name for file in after.episode_files}
    if len(kept) == len(before.episode_files):
        return None
    left = [np.full(file.rows, file.name in kept) for file in before.episode_files]
    return np.flatnonzero(np.concatenate(left))
