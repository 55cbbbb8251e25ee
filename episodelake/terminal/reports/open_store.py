"""Open the store of a command, and continue where files are damaged or the user presses Ctrl-C.

Commands compute their whole output before they print, so `explored` can retry without the files that turn
out to be damaged, and names these on standard error. It leaves out damaged files of episodes and runs, and
for commands that read all steps also those of steps: their result is then incomplete, and the status 1.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import typer

from ... import EpisodeStore, EpisodeView
from ... import open as open_store
from ...errors import CorruptStoreError, EpisodeNotFoundError
from ...plugin import Journals, Snapshot, counted, suggest
from ...plugin.files import exists, options_of, refuse_unused
from ..command import FAILED, INTERRUPTED, failure
from ..output.page import report_warning

# Polars restarts system calls after Ctrl-C, so waiting for a lock or the terminal would not end.
signal.siginterrupt(signal.SIGINT, True)

_VERSIONED = re.compile(r"(?P<path>.+)@(?P<version>[A-Za-z0-9_.-]+)")


def storage_options(given: Sequence[str] | None) -> dict[str, str] | None:
    """Return the repeated `--storage-option KEY=VALUE` as one dictionary; None where there is none."""
    options = {}
    for each in given or ():
        key, separator, value = each.partition("=")
        if not key or not separator:
            # The text may hold a secret, so the message leaves it out.
            raise typer.BadParameter("expected KEY=VALUE.", param_hint="--storage-option")
        options[key] = value
    return options or None


def options_for(given: Sequence[str] | None, path: str, *beside: str) -> Mapping[str, str] | None:
    """Return the `--storage-option`s that a path has a use for, of a command that takes others beside it.

    Raises:
        InvalidArgumentError: none of them has.
    """
    options = storage_options(given)
    refuse_unused(options, path, *beside)
    return options_of(options, path)


def open_store_at(
    path: str, storage: Sequence[str] | None = None, *, beside: Sequence[str] = ()
) -> EpisodeStore:
    """Open what a PATH names.

    Args:
        path: a folder or a URL; `@` and a version or a tag may follow it.
        storage: the `--storage-option`s.
        beside: other places that the options may be for.

    Raises:
        StoreNotFoundError, VersionNotFoundError: there is none.
    """
    place, version = split_version(path)
    number = int(version) if version is not None and version.isdigit() else version
    return open_store(place, number, storage_options=options_for(storage, place, *beside))


def open_newest(path: str, storage: Sequence[str] | None) -> EpisodeStore:
    """Open the newest version of a store, for commands that change it; PATH names no version."""
    return open_store(path, storage_options=storage_options(storage))


def split_version(path: str) -> tuple[str, str | None]:
    """Return a path and the version after its last `@`; a folder that exists is taken as it is.

    >>> split_version("data/cartpole@12"), split_version("s3://user@host/store")
    (('data/cartpole', '12'), ('s3://user@host/store', None))
    """
    scheme, separator, rest = path.rpartition("://")
    match = _VERSIONED.fullmatch(rest)
    if match is None or (separator and "/" not in match["path"]):
        return path, None
    if not separator and exists(path):
        return path, None
    return scheme + separator + match["path"], match["version"]


Result = TypeVar("Result")

#: The most live runs that are named.
LIVE_SHOWN = 3


@dataclass(frozen=True)
class Explored:
    """An open store without its damaged files.

    Positions are those of the whole store, so they mean the same in every command.

    Attributes:
        store: the store, without its damaged files.
        damaged: the error of each file that was left out.
        whole: int64, of each episode that is left its position in the whole store; None if all are.
        count: number of episodes of the whole store.
    """

    store: EpisodeStore
    damaged: tuple[str, ...] = ()
    whole: np.ndarray | None = None
    count: int = 0

    def chosen(self, condition: str | None) -> EpisodeView:
        """Return the episodes that fulfil a condition; None for all."""
        return self.store if condition is None else self.store.filter(condition)

    def here(self, key: int | str) -> int | str:
        """Return the position of an episode among the remaining ones, from that in the whole store; ids stay.

        Raises:
            EpisodeNotFoundError: its row is in a damaged file.
        """
        if self.whole is None or isinstance(key, str) or not -self.count <= key < self.count:
            return key
        positions = np.flatnonzero(self.whole == key % self.count)
        if not len(positions):
            raise EpisodeNotFoundError(
                f"The episode at position {key} is in a damaged file of episodes, which is left out."
            )
        return int(positions[0])

    def position(self, here: int) -> int:
        """Return the position in the whole store of an episode among the remaining ones."""
        return here if self.whole is None else int(self.whole[here])


def reading_errors() -> tuple[type[Exception], ...]:
    """Return the errors of reading a damaged file, of all engines, for an `except` clause."""
    import duckdb

    return CorruptStoreError, duckdb.Error, pa.ArrowException, pl.exceptions.PolarsError


def explored(
    path: str,
    storage: Sequence[str] | None,
    work: Callable[[Explored], Result],
    *,
    steps: bool = False,
    name_live: bool = True,
) -> tuple[Result, int]:
    """Open a store and work on it; retry without its damaged files, if there are any.

    Args:
        path, storage: the store, and how to reach it.
        work: a function of the open store.
        steps: leave out files of steps too, for work that reads the steps of any episode.
        name_live: name the runs whose episodes wait for recovery, and for a store without episodes those that
            are being recorded.

    Returns:
        The result, and the exit status: 1 where a file of steps was left out.

    Raises:
        CorruptStoreError: a file that the work needs is damaged.
    """
    store = open_store_at(path, storage)
    if name_live:
        _name_live(store)
    try:
        return work(Explored(store)), 0
    except reading_errors():
        before = store.selection().snapshot
        damaged = tuple(store.leave_out_damaged(steps=steps))
        if not damaged:
            raise
    for each in damaged:
        report_warning(each)
    after = store.selection().snapshot
    result = work(Explored(store, damaged, _whole(before, after), before.episode_count))
    return result, FAILED if after.lost_segments else 0


def live_message(runs: Sequence[str]) -> str:
    """Return the message that names the live runs."""
    when = "Episodes show once they are sealed, about a minute after they ended."
    return f"{counted(len(runs), 'live run')}: {_first(runs)}. {when}"


def left_message(runs: Sequence[str], store: str) -> str:
    """Return the message that names runs whose writers died."""
    how = f"`episodelake recover {shlex.quote(store)}` adds their last episodes"
    return f"{counted(len(runs), 'run')} ended without closing: {_first(runs)}; {how}."


def _first(runs: Sequence[str]) -> str:
    return ", ".join(runs[:LIVE_SHOWN]) + (" and others" if len(runs) > LIVE_SHOWN else "")


def meant(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the nearest names, and all that exist."""
    return f"{suggest(name, known)} There are: {', '.join(known)}."


def _name_live(store: EpisodeStore) -> None:
    snapshot = store.selection().snapshot
    if not snapshot.newest:
        return
    journals = Journals.of(snapshot.layout)
    if journals.left:
        report_warning(left_message(journals.left, store.url))
    if journals.live and not snapshot.episode_count:
        report_warning(live_message(journals.live))


def _whole(before: Snapshot, after: Snapshot) -> np.ndarray | None:
    """Positions in the whole store of the episodes in the files that are left; None if that is all files."""
    kept = {file.name for file in after.episode_files}
    if len(kept) == len(before.episode_files):
        return None
    left = [np.full(file.rows, file.name in kept) for file in before.episode_files]
    return np.flatnonzero(np.concatenate(left))


@contextlib.contextmanager
def changed(path: str, storage: Sequence[str] | None, operation: str) -> Iterator[EpisodeStore]:
    """Open a store for an operation of one commit; after Ctrl-C, report a commit that was made.

    Args:
        path, storage: the store, and how to reach it.
        operation: the name of the commit in the history.
    """
    store = open_newest(path, storage)
    before = store.version
    try:
        yield store
    except KeyboardInterrupt:
        history = open_newest(path, storage).history()
        made = history.filter(pl.col("version") > before, operation=operation)
        if made.is_empty():
            raise
        message = f"Interrupted. The change was committed before that, as version {made['version'].min()}."
        raise failure(message, INTERRUPTED) from None
