"""Episodes that are being recorded: their list, and single ones as episodes that grow.

An unsealed episode is read as recovery would: its rows are copied into a journal of its own, in memory, from
which a store with this episode alone is recovered, again each time that it has grown.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..._store import EpisodeStore, create_described
from ...readers.episode import Episode
from ...store.errors import NothingToDrawError
from ...store.files.locating import memory_place
from ...store.journal.packed_columns import Packer
from ...store.journal.reading import JournalBatch
from ...store.journal.row_index import RowSpans
from ...store.journal.run_journal import PartWriter, part_path
from ...store.maintenance.recovery import recover
from ..listing import EpisodeList
from .journals import FollowedJournal, JournalFollower, Unsealed, UnsealedEpisode

#: Seconds between polls; a pause lasts at least this many times as long as the poll took.
POLL = 0.5
REST = 5.0
#: Larger episodes can be opened only when they are sealed.
MOST_BYTES = 512 << 20
_KEPT_COPIES = 4
#: The states of unsealed episodes.
RECORDING, ENDED, STOPPED = "recording", "waits for its seal", "its writer is gone"
_names = itertools.count()


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
        self._copies: dict[str, _GrowingEpisode] = {}
        self._numbers: tuple[EpisodeList | None, dict[str, np.ndarray]] = None, {}

    def look(self, episodes: EpisodeList, now: Callable[[], float] = time.monotonic) -> Unsealed:
        """Poll the journals, unless the last poll was a moment ago.

        Args:
            episodes: those that the pages list, which are sealed.
            now: the clock.

        Raises:
            StoreAccessError: a journal cannot be read for now.
        """
        if not self._lock.acquire(blocking=False):
            return self.unsealed
        started = now()
        try:
            if started >= self._earliest:
                if self._numbers[0] is not episodes:
                    self._numbers = episodes, {}
                self.unsealed = self._follower.poll(self._sealed)
                self._earliest = now() + max(POLL / 2, REST * (now() - started))
        finally:
            self._lock.release()
        return self.unsealed

    def _sealed(self, run_id: str) -> np.ndarray:
        episodes, numbers = self._numbers
        assert episodes is not None
        if run_id not in numbers:
            numbers[run_id] = episodes.frame.filter(pl.col("run_id") == run_id)["number"].to_numpy()
        return numbers[run_id]

    def gone(self) -> list[str]:
        """Return the runs whose journals were removed; their episodes are listed until `forget`."""
        with self._lock:
            return self._follower.gone()

    def forget(self, run_ids: list[str]) -> None:
        """Drop runs, since the pages list what they had."""
        with self._lock:
            self._follower.forget(run_ids)

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
            copy, episode = self._copies.pop(episode_id, None), self.find(episode_id)
            if copy is None:
                if episode is None:
                    return None
                journal = self._follower.journal_of(episode)
                copy = _GrowingEpisode(self._store, journal, episode.record.number)
            self._copies[episode_id] = copy
            while len(self._copies) > _KEPT_COPIES:
                self._copies.pop(next(iter(self._copies))).close()
            return copy.episode()

    def close(self) -> None:
        """Delete what was copied."""
        with self._copying:
            while self._copies:
                self._copies.popitem()[1].close()


class _GrowingEpisode:
    """One unsealed episode.

    Args:
        store: its store.
        journal: of its run, not read before.
        number: its number in the run.
    """

    def __init__(self, store: EpisodeStore, journal: FollowedJournal, number: int) -> None:
        self._manifest = store.handle.manifest
        self._journal = journal
        self._number = number
        place = memory_place(f"unsealed/{next(_names)}").local
        assert place is not None
        self._folder = place
        self._packer = Packer()
        self._part: PartWriter | None = None
        self._rows = 0
        self._grown = False
        self._stores: list[Path] = []
        self._episode: Episode | None = None
        self._earliest = 0.0

    def episode(self) -> Episode | None:
        """Return the episode as far as it was recorded; None if it has no step yet."""
        started = time.monotonic()
        if started < self._earliest:
            return self._episode
        for batch in self._journal.batches():
            self._copy(batch)
        if self._grown and self._part is not None:
            self._grown = False
            self._episode = self._recovered(self._part.path) or self._episode
        self._earliest = time.monotonic() + max(POLL, REST * (time.monotonic() - started))
        return self._episode

    def _copy(self, batch: JournalBatch) -> None:
        """Append what a batch has of the episode to its own journal."""
        events = [_own(event) for event in batch.events() if event["number"] == self._number]
        spans = RowSpans.of(batch.rows, batch.source)
        places = np.flatnonzero(spans.numbers == self._number)
        if not events and not len(places):
            return
        if self._part is None:
            self._part = self._new_part()
        if self._part.size > MOST_BYTES:
            raise NothingToDrawError("This episode is too large to be shown before it is sealed.")
        limits = zip(spans.starts[places].tolist(), spans.stops[places].tolist(), strict=True)
        rows = pa.concat_batches([spans.rows(*each).unpacked() for each in [(0, 0), *limits]])
        self._part.append(self._packer.packed(rows), events, self._rows)
        self._rows += rows.num_rows
        self._grown = True

    def _new_part(self) -> PartWriter:
        header = self._journal.header
        assert header is not None
        folder = self._folder / header.run_id
        folder.mkdir(parents=True)
        return PartWriter(part_path(folder, 0), header, sync=False)

    def _recovered(self, part: Path) -> Episode | None:
        """Return the episode from a new store; None if it has no step."""
        path = self._folder / f"store-{next(_names)}"
        store = create_described(path, self._manifest)
        journal = store.handle.layout.journals / part.parent.name
        journal.mkdir()
        (journal / part.name).hardlink_to(part)
        recover(store.handle)
        # The pages may still read the store before this one.
        self._stores.append(path)
        while len(self._stores) > 2:
            shutil.rmtree(self._stores.pop(0), ignore_errors=True)
        store = store.refresh()
        return store[0] if len(store) else None

    def close(self) -> None:
        """Delete the copies."""
        if self._part is not None:
            self._part.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _own(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without the episode that it continues, which is in another store."""
    return {key: value for key, value in event.items() if key not in ("continues", "continued_steps")}
