"""The store that the page shows: its newest version, looked for again and again while somebody writes."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...store.errors import CorruptStoreError, EpisodelakeError
from ..view import EpisodeView
from .colors import SeriesColors
from .listing import EpisodeList

#: Seconds between two looks, and how much longer than the loading of a version the pause is.
PAUSE = 2.0
REST = 5.0


@dataclass(frozen=True)
class Shown:
    """A version of the store, ready to be shown.

    Attributes:
        store: the open store, pinned at the version. Nobody moves it.
        episodes: its list.
        seconds: how long it took to load.
    """

    store: Any
    episodes: EpisodeList
    seconds: float

    @property
    def view(self) -> EpisodeView:
        """All its episodes."""
        return self.store


def load(store: Any) -> Shown:
    """Read the list of an open store's episodes.

    Raises:
        CorruptStoreError: a file of episodes is damaged; the message names it.
    """
    started = time.perf_counter()
    return Shown(store, EpisodeList(store), time.perf_counter() - started)


class Watch:
    """Keeps the newest version at hand. One for all pages of a server; safe to use from several threads.

    Args:
        store: an open store. It stays as it is: other versions are opened beside it.

    Attributes:
        shown: the version to show.
        problem: why the newest version could not be read; None if it was.
        left_out: what is wrong with files that could not be read from the start; the rest is shown.
        colors: those of its runs, the same in every version and on all pages.
    """

    def __init__(self, store: Any, *, pinned: bool = False) -> None:
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

    def _rest(self, store: Any) -> Shown:
        """What can be read of a store with damaged files of episodes or runs."""
        left_out = tuple(store.leave_out_damaged())
        shown = load(store)
        self.left_out = left_out
        return shown

    def look(self, now: Callable[[], float] = time.monotonic) -> Shown:
        """Look for a newer version, unless that was a moment ago, and return the one to show.

        What goes wrong with a newer version is kept in `problem`, and the older one stays.
        """
        if self.pinned or not self._lock.acquire(blocking=False):
            return self.shown
        try:
            if now() < self._earliest:
                return self.shown
            snapshot = self.shown.store._reader.snapshot
            if snapshot.newer_version() is not None:
                # A copy moves on alone, and pages that still read the older version are not disturbed.
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
