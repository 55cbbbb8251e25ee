"""Episodes that are being recorded: their list, and single ones as episodes that grow.

One of each for all pages: they poll the journals, and keep the copies of episodes that pages show.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from ... import Episode, EpisodeStore
from ...errors import EpisodelakeError
from ...plugin import GrowingEpisode, JournalFollower, Unsealed, UnsealedEpisode
from ..listing import EpisodeList

#: Seconds between polls; a pause lasts at least this many times as long as the poll took.
POLL = 0.5
REST = 5.0
#: Seconds after which a copy goes that no page has asked for; pages ask with every poll.
_KEPT = 60.0
#: The states of unsealed episodes.
RECORDING, ENDED, STOPPED = "recording", "waits for its seal", "its writer is gone"


def state_of(episode: UnsealedEpisode) -> str:
    """Return the state of an unsealed episode."""
    if not episode.live:
        return STOPPED
    return ENDED if episode.ended else RECORDING


class Recordings:
    """The unsealed episodes of a store. One for all pages; safe to use from several threads.

    Args:
        store: the store.

    Attributes:
        unsealed: those of the last poll.
    """

    def __init__(self, store: EpisodeStore) -> None:
        self.unsealed = Unsealed()
        self._store = store
        self._follower = JournalFollower(store.handle)
        self._lock, self._copying = threading.Lock(), threading.Lock()
        self._earliest = 0.0
        self._copies: dict[str, GrowingEpisode] = {}
        self._asked: dict[str, float] = {}
        self._timer: threading.Timer | None = None
        self._numbers: tuple[EpisodeList | None, dict[str, np.ndarray]] = None, {}

    def look(self, episodes: EpisodeList, now: Callable[[], float] = time.monotonic) -> Unsealed:
        """Poll the journals, unless the last poll was a moment ago.

        Args:
            episodes: those that the pages list, which are sealed.
            now: the clock.

        Returns:
            What cannot be read for now stays as it was; `problems` says why.
        """
        if not self._lock.acquire(blocking=False):
            return self.unsealed
        started = now()
        try:
            if started >= self._earliest:
                if self._numbers[0] is not episodes:
                    self._numbers = episodes, {}
                try:
                    self.unsealed = self._follower.poll(self._sealed)
                except EpisodelakeError as error:
                    self.unsealed = replace(self.unsealed, problems=(str(error),))
                finally:
                    self._earliest = now() + max(POLL / 2, REST * (now() - started))
        finally:
            self._lock.release()
        return self.unsealed

    def _sealed(self, journal: Path) -> np.ndarray:
        """Return the numbers of the episodes of a run that are sealed, also of those deleted since."""
        episodes, numbers = self._numbers
        assert episodes is not None
        run_id = journal.name
        if run_id not in numbers:
            listed = episodes.frame.filter(pl.col("run_id") == run_id)["number"]
            sealed = self._follower.sealed(journal, episodes.store.context.snapshot)
            numbers[run_id] = np.array([*listed, *sealed], np.int64)
        return numbers[run_id]

    def gone(self) -> dict[str, np.ndarray]:
        """Return the episodes that no journal keeps, by run; they are listed until `forget`."""
        with self._lock:
            return self._follower.gone()

    def forget(self, gone: dict[str, np.ndarray]) -> None:
        """Drop episodes, since the pages list those of them that were sealed."""
        with self._lock:
            self._follower.forget(gone)

    def find(self, episode_id: str) -> UnsealedEpisode | None:
        """Return an unsealed episode by its id."""
        run_id, _, number = episode_id.rpartition("/")
        return self._follower.find(run_id, int(number)) if number.isdecimal() else None

    def episode(self, episode_id: str) -> Episode | None:
        """Return an unsealed episode as far as it was recorded: the same object until it has grown.

        Returns:
            None if there is no such episode, or it has no step yet.

        Raises:
            EpisodelakeError: its journal cannot be read, or it is too large.
        """
        with self._copying:
            copy = self._copies.get(episode_id)
            if copy is None:
                episode = self.find(episode_id)
                if episode is None:
                    return None
                copy = GrowingEpisode(self._store.handle, episode)
                self._copies[episode_id] = copy
            try:
                return copy.episode()
            finally:
                self._asked[episode_id] = time.monotonic()
                if self._timer is None:
                    self._start_timer()

    def drop_unused(self, seconds: float = _KEPT) -> None:
        """Delete the copies that no page has asked for in the last seconds."""
        with self._copying:
            latest = time.monotonic() - seconds
            for episode_id in [each for each in self._copies if self._asked[each] <= latest]:
                self._copies.pop(episode_id).close()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._copies:
                self._start_timer()

    def _start_timer(self) -> None:
        # No page polls after the last one was closed.
        self._timer = threading.Timer(_KEPT, self.drop_unused)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        """Delete what was copied."""
        self.drop_unused(0.0)
