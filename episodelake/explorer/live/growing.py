"""Episodes that are being recorded: their list, and single ones as episodes that grow.

An unsealed episode is read as recovery would: its rows are copied into a journal of its own, in memory, from
which a store with this episode alone is recovered, again each time that it has grown.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ... import Episode, EpisodeStore
from ..._store import create_described
from ...errors import EpisodelakeError, NothingToDrawError
from ...plugin.files import locate
from ...readers.unsealed import FollowedJournal, JournalFollower, Unsealed, UnsealedEpisode
from ...store.journal.packed_columns import Packer
from ...store.journal.reading import JournalBatch
from ...store.journal.row_index import RowSpans
from ...store.journal.run_journal import PartWriter, part_path, sealed_numbers
from ...store.recovery.recovery import recover
from ..listing import EpisodeList

#: Seconds between polls; a pause lasts at least this many times as long as the poll took.
POLL = 0.5
REST = 5.0
#: Larger episodes can be opened only when they are sealed.
MOST_BYTES = 512 << 20
#: Seconds after which a copy goes that no page has asked for; pages ask with every poll.
_KEPT = 60.0
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
            sealed = sealed_numbers(journal, episodes.store.context.snapshot.last_segment(run_id))
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
                copy = _GrowingEpisode(self._store, episode.directory, episode.record.number)
                self._copies[episode_id] = copy
            try:
                return copy.episode()
            finally:
                copy.asked = time.monotonic()
                if self._timer is None:
                    self._start_timer()

    def drop_unused(self, seconds: float = _KEPT) -> None:
        """Delete the copies that no page has asked for in the last seconds."""
        with self._copying:
            latest = time.monotonic() - seconds
            for episode_id in [each for each, copy in self._copies.items() if copy.asked <= latest]:
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


class _TooLargeError(NothingToDrawError):
    """An unsealed episode is larger than what is copied, or than the memory that is free."""

    def __init__(self) -> None:
        super().__init__("This episode is too large to be shown before it is sealed.")


class _GrowingEpisode:
    """One unsealed episode.

    Args:
        store: its store.
        journal: the folder of its run's journal.
        number: its number in the run.

    Attributes:
        asked: when a page last asked for it.
    """

    def __init__(self, store: EpisodeStore, journal: Path, number: int) -> None:
        self._manifest = store.handle.manifest
        self._directory = journal
        self._number = number
        self._episode: Episode | None = None
        self._too_large = False
        self._part: PartWriter | None = None
        self._earliest = self.asked = 0.0
        self._begin()

    def _begin(self) -> None:
        """Read the journal from its beginning, into a new part."""
        self._journal = FollowedJournal(self._directory)
        self._folder = _new_folder()
        self._packer = Packer()
        self._rows = 0
        self._grown = self._cut = False

    def episode(self) -> Episode | None:
        """Return the episode as far as it was recorded; None if it has no step yet."""
        if self._too_large:
            raise _TooLargeError
        started = time.monotonic()
        if started < self._earliest:
            return self._episode
        try:
            for batch in self._journal.batches():
                self._copy(batch)
            if self._grown and self._part is not None:
                self._episode = self._recovered(self._part.path) or self._episode
                self._grown = False
        except BaseException as error:
            # A batch may be missing in what was copied.
            self.close()
            self._begin()
            self._too_large = isinstance(error, _TooLargeError)
            raise
        finally:
            self._earliest = time.monotonic() + max(POLL, REST * (time.monotonic() - started))
        return self._episode

    def _copy(self, batch: JournalBatch) -> None:
        """Append what a batch has of the episode to its own journal."""
        events = [_own(event) for event in batch.events() if event["number"] == self._number]
        spans = RowSpans.of(batch.rows, batch.source)
        places = np.flatnonzero(spans.numbers == self._number)
        # Recovery cuts an episode where rows may be missing.
        self._cut |= batch.after_gap and self._part is not None
        if self._cut or not (events or len(places)):
            return
        if self._part is None:
            self._part = self._new_part()
        limits = zip(spans.starts[places].tolist(), spans.stops[places].tolist(), strict=True)
        rows = pa.concat_batches([spans.rows(*each).unpacked() for each in [(0, 0), *limits]])
        # Besides the part, a store is made of it.
        needed = self._part.size + 2 * rows.nbytes
        if self._part.size > MOST_BYTES or needed > shutil.disk_usage(self._folder).free:
            raise _TooLargeError
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
        path = _new_folder()
        store = create_described(path, self._manifest)
        journal = store.handle.layout.journals / part.parent.name
        journal.mkdir()
        (journal / part.name).hardlink_to(part)
        try:
            recover(store.handle)
            store = store.refresh()
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        # Pages read it for as long as they show the episode.
        weakref.finalize(store.context.snapshot, shutil.rmtree, path, ignore_errors=True).atexit = False
        return store[0] if len(store) else None

    def close(self) -> None:
        """Delete what was copied; episodes that were returned stay readable."""
        with contextlib.suppress(EpisodelakeError):
            if self._part is not None:
                self._part.close()
        self._part = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _new_folder() -> Path:
    """Return the place of a folder in memory that is not made yet."""
    place = locate(f"memory://unsealed/{next(_names)}").local
    assert place is not None
    return place


def _own(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without the episode that it continues, which is in another store."""
    return {key: value for key, value in event.items() if key not in ("continues", "continued_steps")}
