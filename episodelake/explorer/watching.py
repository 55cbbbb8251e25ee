"""The store that the page shows, at its newest version; polls for newer ones while writers are active."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .._store import EpisodeStore
from ..store.card import known_entries
from ..store.errors import CorruptStoreError, EpisodelakeError
from .colors import SeriesColors
from .listing import EpisodeList

#: Seconds between polls; a pause lasts at least this many times the loading of a version.
PAUSE = 2.0
REST = 5.0


@dataclass(frozen=True)
class Shown:
    """A version of the store, ready to be shown.

    Attributes:
        store: the open store, pinned at the version.
        episodes: its list.
        card: the entries of the dataset card that have a meaning, as texts.
        seconds: how long it took to load.
    """

    store: EpisodeStore
    episodes: EpisodeList
    card: dict[str, str]
    seconds: float


def load(store: EpisodeStore) -> Shown:
    """Read the list of an open store's episodes.

    Raises:
        CorruptStoreError: a file of episodes is damaged; the message names it.
    """
    started = time.perf_counter()
    try:
        card = known_entries(store.card)
    except CorruptStoreError as error:
        card = {"problem": str(error)}
    return Shown(store, EpisodeList(store), card, time.perf_counter() - started)


class Watch:
    """Keeps the newest version at hand. One for all pages of a server; safe to use from several threads.

    Args:
        store: an open store, which stays unchanged: other versions are opened beside it.

    Attributes:
        shown: the version to show.
        problem: why the newest version could not be read; None if it was.
        left_out: the errors of files that could not be read from the start; the rest is shown.
        colors: those of its runs, the same in every version and on all pages.
    """

    def __init__(self, store: EpisodeStore, *, pinned: bool = False) -> None:
        self.left_out: tuple[str, ...] = ()
        try:
            self.shown = load(store)
        except CorruptStoreError:
            self.shown = self._rest(store)
        self.problem: str | None = None
        self.colors = SeriesColors()
        self.colors.meet(self.shown.episodes.runs)
        self.pinned = pinned
        self._lock = threading.Lock()
        self._earliest = 0.0

    def _rest(self, store: EpisodeStore) -> Shown:
        """Return a store without its damaged files of episodes or runs."""
        left_out = tuple(store.leave_out_damaged())
        shown = load(store)
        self.left_out = left_out
        return shown

    def look(self, now: Callable[[], float] = time.monotonic) -> Shown:
        """Poll for a newer version, unless the last poll was a moment ago, and return the one to show.

        The error of an unreadable version is kept in `problem`, and the older version stays.
        """
        if self.pinned or not self._lock.acquire(blocking=False):
            return self.shown
        try:
            if now() < self._earliest:
                return self.shown
            snapshot = self.shown.store.context.snapshot
            if snapshot.newer_version() is not None:
                # Refresh a copy, since pages may still read the older version.
                newer = copy.copy(self.shown.store).refresh()
                self.shown = self._rest(newer) if self.left_out else load(newer)
                self.colors.meet(self.shown.episodes.runs)
            self.problem = None
        except EpisodelakeError as error:
            self.problem = str(error)
        finally:
            self._earliest = now() + max(PAUSE * 0.5, REST * self.shown.seconds)
            self._lock.release()
        return self.shown
