"""Unsealed episodes, read from journals while these grow.

A writer is never disturbed: nothing here keeps a file open or maps a file that may shrink, and a look at a
lock shares it for a moment, for which those who take it wait. A journal may vanish at any moment, since its
writer removes it after the last seal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..store.errors import CorruptStoreError, EpisodelakeError, MissingFileError
from ..store.files import stat_or_none
from ..store.files.locks import holder
from ..store.journal.episodes import EpisodeRecord, timestamp_now
from ..store.journal.reading import GrowingPart, JournalBatch
from ..store.journal.records import RunHeader
from ..store.journal.run_journal import DAMAGED_SUFFIX, journal_folders, lock_path, part_paths, sealed_numbers
from ..store.layout import episode_id
from ..store.recovery.recovered_episodes import JournalEpisodes
from ..store.schema import StepSchema, StoreHandle
from ..store.snapshot import Snapshot


@dataclass(frozen=True)
class UnsealedEpisode:
    """An episode that only a journal holds.

    Attributes:
        directory: the journal of its run.
        header: its run.
        record: its row so far. Of one that goes on, the end reason means nothing.
        live: whether its writer lives; otherwise the next recovery seals it.
        ended: whether it has ended, and waits for its seal.
    """

    directory: Path
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
            CorruptStoreError: a part is not one of a journal.
        """
        paths = part_paths(self.directory)
        self._parts = {path: self._parts.get(path) or GrowingPart(path) for path in paths}
        whole = True
        for part in self._parts.values():
            try:
                for batch in part.batches(after_gap=not whole, seen=self._seen):
                    self.header = self.header or part.header
                    yield batch
                whole = part.ended
            except MissingFileError:
                pass  # deleted after it was listed: its episodes are sealed
            finally:
                self._seen = max(self._seen, part.seen)

    def has(self, part: Path | None) -> bool:
        """Return whether a part was there at the last call of `batches`."""
        return not self.gone and part in self._parts


class _FollowedRun:
    """A run with its unsealed episodes."""

    def __init__(self, directory: Path, schema: StepSchema) -> None:
        self.journal = FollowedJournal(directory)
        self.live = False
        self.since = 0.0
        self._content = JournalEpisodes(schema)
        self._damaged = False

    def poll(self) -> None:
        """Read what was written since the last poll. A damaged journal is left to recovery, and one of
        another host to that.
        """
        lock = lock_path(self.journal.directory)
        self.live, other_host = holder(lock)
        if other_host is not None:
            return
        state = stat_or_none(lock)
        self.since = self.since or (state.st_mtime if state else 0.0)
        try:
            for batch in () if self._damaged else self.journal.batches():
                self._content.add(batch)
        except CorruptStoreError:
            self._damaged = True

    def gone(self) -> np.ndarray:
        """Return the numbers of the episodes that the journal no longer keeps: sealed or discarded ones."""
        episodes = self._content.episodes.items()
        return np.array([number for number, each in episodes if not self.journal.has(each.source)], np.int64)

    def forget(self, numbers: np.ndarray) -> None:
        """Drop the episodes with these numbers."""
        episodes = self._content.episodes
        for number in np.intersect1d(np.array(list(episodes), np.int64), numbers).tolist():
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
        return UnsealedEpisode(self.journal.directory, header, record, self.live, episode.end is not None)


@dataclass(frozen=True)
class Unsealed:
    """The unsealed episodes of a store.

    Attributes:
        writers: when each live writer began, in seconds since 1970.
        count: how many unsealed episodes there are.
        episodes: those that began last, the newest first.
        problems: why some may be missing.
    """

    writers: tuple[float, ...] = ()
    count: int = 0
    episodes: tuple[UnsealedEpisode, ...] = ()
    problems: tuple[str, ...] = ()


class JournalFollower:
    """Follows all journals of a store on this machine. Not safe for several threads.

    Args:
        store: the store.
    """

    def __init__(self, store: StoreHandle) -> None:
        self._store = store
        self._runs: dict[str, _FollowedRun] = {}

    def poll(self, sealed: Callable[[Path], np.ndarray], most: int = 100) -> Unsealed:
        """Read what was written since the last poll. A run that cannot be read stays as it was.

        Args:
            sealed: gives the numbers of the episodes of a run, by its journal, that are sealed in the version
                that the reader shows.
            most: how many episodes are listed.

        Raises:
            StoreAccessError: the journals cannot be listed; call again.
        """
        folders = {
            folder.name: folder
            for folder in journal_folders(*self._store.layout.journal_places)
            if not folder.name.endswith(DAMAGED_SUFFIX)
        }
        for name, folder in folders.items():
            self._runs.setdefault(name, _FollowedRun(folder, self._store.schema))
        episodes: list[UnsealedEpisode] = []
        problems: list[str] = []
        total = 0
        for name, run in self._runs.items():
            run.journal.gone = name not in folders
            try:
                run.poll()
                run.forget(sealed(run.journal.directory))
            except EpisodelakeError as error:
                problems.append(str(error))
            count, last = run.episodes(most)
            total += count
            episodes += last
        episodes.sort(key=lambda episode: episode.record.started_at, reverse=True)
        writers = tuple(sorted(run.since for run in self._runs.values() if run.live))
        return Unsealed(writers, total, tuple(episodes[:most]), tuple(problems))

    @staticmethod
    def sealed(journal: Path, snapshot: Snapshot) -> set[int]:
        """Return the numbers of the episodes of a run, by its journal, that the segments of a version took.

        Raises:
            StoreAccessError: the journal cannot be read.
        """
        return sealed_numbers(journal, snapshot.last_segment(journal.name))

    def gone(self) -> dict[str, np.ndarray]:
        """Return the episodes that no journal keeps, by run; they are listed until `forget`."""
        return {name: run.gone() for name, run in self._runs.items()}

    def forget(self, gone: dict[str, np.ndarray]) -> None:
        """Drop episodes, and runs that have none left and whose journals were removed."""
        for run_id, numbers in gone.items():
            run = self._runs[run_id]
            run.forget(numbers)
            if run.journal.gone and not run.episodes(1)[0]:
                del self._runs[run_id]

    def find(self, run_id: str, number: int) -> UnsealedEpisode | None:
        """Return an unsealed episode as of the last poll."""
        run = self._runs.get(run_id)
        return None if run is None else run.find(number)
