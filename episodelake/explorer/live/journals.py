"""Unsealed episodes, read from journals while these grow.

A writer is never disturbed: nothing here takes a lock, keeps a file open, or maps a file that may shrink. A
journal may vanish at any moment, since its writer removes it after the last seal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...store.errors import CorruptStoreError, StoreAccessError
from ...store.files import is_absent
from ...store.files.access import guard_access, state_of
from ...store.files.locks import is_held, other_host
from ...store.journal.episodes import EpisodeRecord, timestamp_now
from ...store.journal.reading import GrowingPart, JournalBatch
from ...store.journal.records import RunHeader
from ...store.journal.run_journal import DAMAGED_SUFFIX, journal_folders, lock_path, part_paths
from ...store.layout import episode_id
from ...store.maintenance.recovered_episodes import JournalEpisodes
from ...store.schema import StepSchema, StoreHandle


@dataclass(frozen=True)
class UnsealedEpisode:
    """An episode that only a journal holds.

    Attributes:
        header: its run.
        record: its row so far. Of one that goes on, the end reason means nothing.
        live: whether its writer lives; otherwise the next recovery seals it.
        ended: whether it has ended, and waits for its seal.
    """

    header: RunHeader
    record: EpisodeRecord
    live: bool
    ended: bool

    @property
    def id(self) -> str:
        """The id that it keeps when it is sealed."""
        return episode_id(self.header.run_id, self.record.number)


class FollowedJournal:
    """The journal of one run, read further with each call.

    Attributes:
        header: the run; None before its first row.
        gone: whether the journal was removed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.header: RunHeader | None = None
        self.gone = False
        self._parts: dict[Path, GrowingPart] = {}
        self._seen = 0

    def batches(self) -> Iterator[JournalBatch]:
        """Yield the batches that were written since the last call.

        Raises:
            StoreAccessError: a part cannot be read; call again.
            CorruptStoreError: a part holds what no journal holds.
        """
        paths = part_paths(self.directory)
        self._parts = {path: self._parts.get(path) or GrowingPart(path) for path in paths}
        for part in self._parts.values():
            try:
                for batch in part.batches(seen=self._seen):
                    self.header = self.header or part.header
                    yield batch
            except StoreAccessError as error:
                # Deleted after it was listed: its episodes are sealed.
                if not is_absent(error):
                    raise
            self._seen = max(self._seen, part.seen)


class _FollowedRun:
    """A run with its unsealed episodes."""

    def __init__(self, directory: Path, schema: StepSchema) -> None:
        self.journal = FollowedJournal(directory)
        self.live = False
        self.since = 0.0
        self._content = JournalEpisodes(schema)
        self._damaged = False

    def poll(self) -> None:
        """Read what was written since the last poll. A damaged journal is left to recovery."""
        lock = lock_path(self.journal.directory)
        self.live = is_held(lock) or other_host(lock) is not None
        with guard_access("look at the lock", lock):
            state = state_of(lock)
        self.since = self.since or (state.st_mtime if state else 0.0)
        try:
            for batch in () if self._damaged else self.journal.batches():
                self._content.add(batch)
        except CorruptStoreError:
            self._damaged = True

    def forget(self, sealed: np.ndarray) -> None:
        """Drop the episodes with these numbers."""
        episodes = self._content.episodes
        for number in np.intersect1d(np.array(list(episodes), np.int64), sealed).tolist():
            del episodes[number]

    def episodes(self, most: int) -> tuple[int, list[UnsealedEpisode]]:
        """Return how many episodes there are, and those that began last."""
        content = self._content.episodes
        last = heapq.nlargest(most, content, key=lambda number: content[number].begin.get("started_at", 0))
        return len(content), [each for number in last if (each := self.find(number)) is not None]

    def find(self, number: int) -> UnsealedEpisode | None:
        """Return an episode by its number."""
        header, episode = self.journal.header, self._content.episodes.get(number)
        if header is None or episode is None:
            return None
        record = episode.record(number, timestamp_now())
        return UnsealedEpisode(header, record, self.live, episode.end is not None)


@dataclass(frozen=True)
class Unsealed:
    """The unsealed episodes of a store.

    Attributes:
        writers: when each live writer began, in seconds since 1970.
        count: how many unsealed episodes there are.
        episodes: those that began last, the newest first.
    """

    writers: tuple[float, ...] = ()
    count: int = 0
    episodes: tuple[UnsealedEpisode, ...] = ()


class JournalFollower:
    """Follows all journals of a store on this machine. Not safe for several threads.

    Args:
        store: the store.
    """

    def __init__(self, store: StoreHandle) -> None:
        self._store = store
        self._runs: dict[str, _FollowedRun] = {}

    def poll(self, sealed: Callable[[str], np.ndarray], most: int = 100) -> Unsealed:
        """Read what was written since the last poll.

        Args:
            sealed: gives the numbers of the episodes of a run, by its id, that the reader shows already.
            most: how many episodes are listed.

        Raises:
            StoreAccessError: a folder or file cannot be read; call again.
        """
        folders = {
            folder.name: folder
            for folder in journal_folders(*self._store.layout.journal_places)
            if not folder.name.endswith(DAMAGED_SUFFIX)
        }
        for name, folder in folders.items():
            self._runs.setdefault(name, _FollowedRun(folder, self._store.schema))
        episodes: list[UnsealedEpisode] = []
        total = 0
        for name, run in self._runs.items():
            run.journal.gone = name not in folders
            run.poll()
            run.forget(sealed(name))
            count, last = run.episodes(most)
            total += count
            episodes += last
        episodes.sort(key=lambda episode: episode.record.started_at, reverse=True)
        writers = tuple(sorted(run.since for run in self._runs.values() if run.live))
        return Unsealed(writers, total, tuple(episodes[:most]))

    def gone(self) -> list[str]:
        """Return the runs whose journals were removed; their episodes are listed until `forget`."""
        return [name for name, run in self._runs.items() if run.journal.gone]

    def forget(self, run_ids: list[str]) -> None:
        """Drop runs."""
        for run_id in run_ids:
            self._runs.pop(run_id, None)

    def find(self, run_id: str, number: int) -> UnsealedEpisode | None:
        """Return an unsealed episode as of the last poll."""
        run = self._runs.get(run_id)
        return None if run is None else run.find(number)

    def journal_of(self, episode: UnsealedEpisode) -> FollowedJournal:
        """Return the journal that holds an episode, to be read from its beginning."""
        return FollowedJournal(self._runs[episode.header.run_id].journal.directory)
