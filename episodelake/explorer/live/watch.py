"""The stores that pages show: the newest version of one, and the list of those of a lake."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ... import Episode, EpisodeStore
from ...errors import CorruptStoreError, EpisodelakeError
from ...plugin import Unsealed
from ...types import Lake
from ..checkup import Checkup
from ..labels import ENTRY, LabelQueue
from ..listing import EpisodeList, SeriesColors
from ..pictures.sheets import Sheets
from .growing import Recordings, state_of
from .lake_figures import LakeFigures

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
        fps, labels: the card's frames per second and keys of labels, unchecked; None where it has none.
        seconds: how long it took to load.
    """

    store: EpisodeStore
    episodes: EpisodeList
    card: dict[str, str]
    fps: Any
    labels: Any
    seconds: float


def load(store: EpisodeStore) -> Shown:
    """Read the list of an open store's episodes.

    Raises:
        CorruptStoreError: a file of episodes is damaged; the message names it.
    """
    started = time.perf_counter()
    try:
        content = store.card
        card, entries = content.texts(), (content.get("fps"), content.get(ENTRY))
    except CorruptStoreError as error:
        card, entries = {"problem": str(error)}, (None, None)
    return Shown(store, EpisodeList(store), card, *entries, time.perf_counter() - started)


class Watch:
    """Keeps the newest version at hand. One for all pages of a server; safe to use from several threads.

    Args:
        store: an open store, which stays unchanged: other versions are opened beside it.

    Attributes:
        shown: the version to show.
        problem: why the newest version could not be read; None if it was.
        left_out: the errors of files that could not be read from the start; the rest is shown.
        recordings: what writers of this machine record now.
        colors: those of its runs, the same in every version and on all pages.
        sheets: small pictures of its episodes.
        labels: those of its pages; None unless pages may label episodes.
    """

    def __init__(self, store: EpisodeStore, *, pinned: bool = False, writable: bool = False) -> None:
        self.left_out: tuple[str, ...] = ()
        try:
            self.shown = load(store)
        except CorruptStoreError:
            self.shown = self._rest(store)
        self.problem: str | None = None
        self.sheets = Sheets(self.shown.store, self.find)
        self.colors = SeriesColors()
        self.colors.meet(self.shown.episodes.runs)
        self.pinned = pinned
        self._lock = threading.Lock()
        self._earliest = 0.0
        self.recordings = Recordings(store)
        self._checkup: Checkup | None = None
        self.labels = LabelQueue(store, Path.cwd()) if writable else None

    def find(self, episode_id: str) -> Episode | None:
        """Return an episode of the version that is shown; None if it is gone."""
        shown = self.shown
        position = shown.episodes.position_of(episode_id)
        return None if position is None else shown.store[position]

    def checkup(self) -> Checkup:
        """Return the health of the version that is shown, or of one before while the checkups take long."""
        last, shown = self._checkup, self.shown.store
        if last is None or (
            last.version != shown.version
            and last.ended is not None
            and time.monotonic() - last.ended > REST * last.seconds
        ):
            self._checkup = last = Checkup(shown, last)
        return last

    def close(self) -> None:
        """Stop what runs in the background."""
        if self._checkup is not None:
            self._checkup.stop()
        self.recordings.close()
        if self.labels is not None:
            self.labels.close()

    def recorded(self, now: Callable[[], float] = time.monotonic) -> Unsealed:
        """Return the unsealed episodes as of now or a moment ago; of a fixed version none."""
        if not self.pinned:
            self.recordings.look(self.shown.episodes, now)
        return self.recordings.unsealed

    def state_of(self, episode_id: str) -> str | None:
        """Return the state of an unsealed episode, "" of a sealed one, and None of one that is gone."""
        if self.shown.episodes.position_of(episode_id) is not None:
            return ""
        episode = self.recordings.find(episode_id)
        return None if episode is None else state_of(episode)

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
            gone = self.recordings.gone()
            if self.shown.store.context.snapshot.newer_version() is not None:
                # Refresh a copy, since pages may still read the older version.
                newer = copy.copy(self.shown.store).refresh()
                self.shown = self._rest(newer) if self.left_out else load(newer)
                self.colors.meet(self.shown.episodes.runs)
            self.recordings.forget(gone)
            self.problem = None
        except EpisodelakeError as error:
            self.problem = str(error)
        finally:
            self._earliest = now() + max(PAUSE * 0.5, REST * self.shown.seconds)
            self._lock.release()
        return self.shown


#: The stores of a lake that are kept open for pages.
_KEPT_STORES = 8


class LakeWatch:
    """Keeps the list of a lake's stores at hand. One for all pages; safe to use from several threads.

    Attributes:
        lake: the lake, which only this object uses.
        stores: the list to show, as `Lake.stores` returns it.
        problem: why the lake could not be looked at again; None if it was.
        writable: whether pages may label episodes.
        figures: the curves and the health of its stores, once a page has looked.
        colors: those of charts of SQL results.
    """

    def __init__(self, lake: Lake, *, writable: bool = False) -> None:
        self.lake = lake
        self.writable = writable
        self.problem: str | None = None
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._watches: dict[str, Watch] = {}
        self.figures, self.colors = LakeFigures(lake), SeriesColors()
        started = time.monotonic()
        self.stores = lake.stores()
        self._rest(started, started)

    def _rest(self, started: float, ended: float) -> None:
        self._earliest = ended + max(PAUSE * 0.5, REST * (ended - started))

    def look(self, now: Callable[[], float] = time.monotonic) -> pl.DataFrame:
        """Look at the lake again, unless the last look was a moment ago, and return the list to show."""
        started = now()
        if started < self._earliest or not self._lock.acquire(blocking=False):
            return self.stores
        try:
            self.stores, self.problem = self.lake.refresh().stores(), None
            self.figures.look(self.stores)
        except EpisodelakeError as error:
            self.problem = str(error)
        finally:
            self._rest(started, now())
            self._lock.release()
        return self.stores

    def store(self, name: str) -> Watch:
        """Return the watch of a store, by its name; those used last stay open.

        Raises:
            EpisodelakeError: there is no such store, or it cannot be read.
        """
        with self._opening:
            watch = self._watches.pop(name, None)
            if watch is None or watch.problem is not None:
                watch = Watch(self.lake[name], writable=self.writable)
            self._watches[name] = watch
            while len(self._watches) > _KEPT_STORES:
                self._watches.pop(next(iter(self._watches))).close()
            return watch

    def close(self) -> None:
        """Stop what runs in the background."""
        self.figures.close()
        for watch in self._watches.values():
            watch.close()
