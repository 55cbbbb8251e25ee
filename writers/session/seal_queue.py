"""Finished episodes of a run on their way to the tables: those that wait, and the queue of their seals."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa

from ...store.errors import StoreNotFoundError
from ...store.files import is_folder
from ...store.journal.episodes import EpisodeColumns, EpisodeRecord
from ...store.journal.records import RunHeader
from ...store.layout import check_identity
from ...store.recovery.reopening import seal_reopened
from ...store.schema import StoreHandle
from ...store.segments.seal import Seal, Tables, commit_run, seal_segment, write_ahead

_PAUSE = 0.002


@dataclass(frozen=True)
class BulkEpisodes:
    """Episodes written as a whole, with all of their rows.

    The rows stay in memory until a segment takes them. Where that does not happen soon, or a caller waits for
    `flush()`, they go to the journal like those of any other episode.

    Attributes:
        episodes: the episodes, in order.
        batches: their finished rows, in the columns of the journal; they own their memory. At least one.
        since: when they were recorded, by `time.monotonic`.
    """

    episodes: EpisodeColumns
    batches: Sequence[pa.RecordBatch]
    since: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> int:
        """The number of the first episode."""
        return int(self.episodes.number[0])

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    @cached_property
    def nbytes(self) -> int:
        """The size of the rows in bytes."""
        return sum(batch.get_total_buffer_size() for batch in self.batches)


Ended = EpisodeRecord | EpisodeColumns | BulkEpisodes


class FinishedEpisodes:
    """Finished episodes of a run, until the segment that contains them is committed.

    Attributes:
        memory_bytes: the size of the rows that are in memory only and that no seal has taken.
        memory_since: when the oldest of these came, by `time.monotonic`, or earlier.
        episodes, steps: how many episodes no seal has taken, and their steps; at least.
        taken_episodes, taken_steps: how many seals have taken.
    """

    def __init__(self) -> None:
        self.memory_bytes = 0
        self.memory_since = math.inf
        self.episodes = self.steps = self.taken_episodes = self.taken_steps = 0
        # Columns of many stand under the first of their numbers.
        self._ended: dict[int, Ended] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, ended: EpisodeRecord | EpisodeColumns) -> None:
        """Add what ended; a second time it changes nothing."""
        if isinstance(ended, EpisodeRecord):
            self._ended[ended.number] = ended
            self._count(1, ended.length)
        else:
            self._ended[int(ended.number[0])] = ended
            self._count(len(ended.number), int(ended.length.sum()))

    def _count(self, episodes: int, steps: int) -> None:
        self.episodes += episodes
        self.steps += steps

    def add_bulk(self, bulk: BulkEpisodes) -> None:
        """Add whole episodes whose rows stay in memory; a second time it changes nothing."""
        if self._ended.get(bulk.number) is bulk:
            return
        self._ended[bulk.number] = bulk
        if not self.memory_bytes:
            self.memory_since = bulk.since
        self.memory_bytes += bulk.nbytes
        self._count(len(bulk.episodes.number), int(bulk.episodes.length.sum()))

    def taken(self) -> None:
        """Count everything as taken by a seal."""
        self.taken_episodes += self.episodes
        self.taken_steps += self.steps
        self.memory_bytes = self.episodes = self.steps = 0

    def bulk(self) -> Iterator[BulkEpisodes]:
        """Yield those whose rows are in memory."""
        return (each for each in list(self._ended.values()) if isinstance(each, BulkEpisodes))

    def journalled(self, bulk: BulkEpisodes) -> None:
        """Let go of rows in memory, since the journal has them."""
        # A seal that has them may have been committed between two attempts.
        if self._ended.get(bulk.number) is bulk:
            self._ended[bulk.number] = bulk.episodes
            self.memory_bytes = max(0, self.memory_bytes - bulk.nbytes)

    def take_back(self, bulk: BulkEpisodes) -> bool:
        """Forget episodes with all rows in memory; if the journal has some, keep them and return False."""
        if self._ended.get(bulk.number) is not bulk:
            return False
        del self._ended[bulk.number]
        self.memory_bytes = max(0, self.memory_bytes - bulk.nbytes)
        self._count(-len(bulk.episodes.number), -int(bulk.episodes.length.sum()))
        return True

    def forget(self, numbers: Collection[int]) -> None:
        """Forget episodes that are committed or discarded; columns go with the first of their numbers."""
        for number in numbers:
            self._ended.pop(number, None)

    def without(self, left_out: Callable[[int], bool]) -> list[Ended]:
        """Return all but some, by the first of their numbers."""
        return [each for number, each in self._ended.items() if not left_out(number)]


def columns_of(ended: Sequence[Ended]) -> EpisodeColumns:
    """Join what ended, in order; at least one."""
    parts: list[EpisodeColumns] = []
    for kind, group in groupby(ended, type):
        if kind is EpisodeRecord:
            parts.append(EpisodeColumns.of(list(group)))  # type: ignore[arg-type]
        else:
            parts += [each.episodes if isinstance(each, BulkEpisodes) else each for each in group]  # type: ignore[misc]
    return EpisodeColumns.joined(parts)


class SealQueue:
    """The seals of one run, worked off in order by a thread of their own, or by a caller that waits for them.

    A seal stays at the head of the queue until both of its commits are made and the session has let go of its
    episodes. One that fails or is interrupted is tried again once its error was raised: with the next
    request, when a recording thread waits for it, or after `flush_seconds`. Seals after it wait, since the
    segments of a run are committed in order. Errors are kept for the recording thread.

    A second thread writes the steps files of seals that wait. It commits nothing and its errors do not count:
    a seal without a file in its turn writes it then. So the order of commits, retries and what a crash leaves
    are those of one thread, but for files that no table lists. At most two files are written at a time.

    Args:
        store: the store.
        tables: its tables, changed by no other thread.
        header: the run.
        lock: the session's; callers that look at the queue's seals hold it.
        sealed: called with each seal after its commits; may be called with the same seal again.

    Attributes:
        committed: the number of the last segment that was committed; -1 before the first.
        ended_at: when the run ended, in microseconds since 1970, UTC; None while it goes on.
    """

    def __init__(
        self,
        store: StoreHandle,
        tables: Tables,
        header: RunHeader,
        lock: threading.RLock,
        sealed: Callable[[Seal], None],
    ) -> None:
        self.committed = -1
        self.ended_at: int | None = None
        self._store = store
        self._tables = tables
        self._header = header
        self._lock = lock
        self._sealed = sealed
        self._jobs: deque[Seal] = deque()
        self._guard = threading.Lock()
        self._failure: BaseException | None = None
        self._replaced: StoreNotFoundError | None = None
        self._stopping = False
        # Requests to work, each with the number of failures before it: a failure answers all earlier ones.
        self._bell: SimpleQueue[int] = SimpleQueue()
        self._failures = 0
        self._thread = threading.Thread(
            target=self._run, name=f"episodelake seals {header.run_id}", daemon=True
        )
        self._added: SimpleQueue[None] = SimpleQueue()
        self._ahead = threading.Thread(
            target=self._run_ahead, name=f"episodelake segments {header.run_id}", daemon=True
        )

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._ahead.start()

    def stop(self) -> None:
        """Stop the threads after their current seals, and wait for them."""
        self._stopping = True
        self._bell.put(self._failures)
        self._added.put(None)
        join(self._thread)
        join(self._ahead)

    def wake(self) -> None:
        """Have the thread work off what waits, unless a failure has yet to be raised."""
        if self._failure is None:
            self._bell.put(self._failures)

    def _run(self) -> None:
        while not self._stopping:
            try:
                if self._bell.get() == self._failures and not self._stopping:
                    self.work()
            except BaseException as error:  # whatever it is, it must reach the recording thread
                self.fail(error)

    def _run_ahead(self) -> None:
        while not self._stopping:
            with contextlib.suppress(BaseException):
                self._added.get()
                self._write_ahead()

    def _write_ahead(self) -> None:
        """Write the steps files of the seals after the first; their errors are left to their turns."""
        for job in list(self._jobs)[1:]:
            with contextlib.suppress(Exception):
                if not self._stopping:
                    write_ahead(self._store, self._tables, job)

    @property
    def waiting(self) -> bool:
        """Whether there is something to do that has not failed."""
        return bool(self._jobs) and self._failure is None

    @property
    def backlog(self) -> int:
        """How many seals are not committed yet."""
        return len(self._jobs)

    def holds(self, number: int) -> bool:
        """Return whether an episode is in a seal of the queue."""
        return any(number in job.records.numbers for job in self._jobs)

    def about_to_take(self, number: int) -> bool:
        """Return whether a segment with this episode is being written, and no other waits after it."""
        return self.waiting and self.backlog == 1 and self.holds(number)

    def await_backlog(self, most: int) -> None:
        """Wait until at most this many seals are not committed, or one has failed; so memory is bounded."""
        if self.backlog > most:
            # After a failure the thread sleeps.
            self.wake()
        while self.backlog > most and self.waiting:
            time.sleep(_PAUSE)

    def add(
        self,
        records: EpisodeColumns,
        journal: Path,
        parts: Sequence[Path],
        bulk: Sequence[pa.RecordBatch] = (),
    ) -> None:
        """Put a seal after the others."""
        segment = self._jobs[-1].segment if self._jobs else self.committed
        self._jobs.append(Seal(self._header, segment + 1, records, journal, parts, bulk, own=True))
        self.wake()
        self._added.put(None)

    def fail(self, error: BaseException) -> None:
        """Keep an error of the background thread for the recording thread."""
        self._failures += 1
        self._failure = error

    def raise_failure(self) -> None:
        """Raise the error kept since the last call, if there is one."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def work(self) -> None:
        """Work off the queue; the first seal that fails stays and stops the others."""
        with self._guard:
            while self.waiting:
                job = self._jobs[0]
                try:
                    if self._replaced is not None:
                        raise self._replaced
                    check_identity(self._tables.layout)
                    while job.ahead.is_under_way:
                        # Not in a thread that may be interrupted, between taking a lock and giving it back.
                        if threading.current_thread() is self._thread:
                            self._write_ahead()
                        time.sleep(_PAUSE)
                    self._commit(job)
                    with self._lock:
                        self._sealed(job)
                        self.committed = job.segment
                        self._jobs.popleft()
                except StoreNotFoundError as error:
                    self.fail(_with_journal(error, job.journal))
                except Exception as error:  # whatever it is, it must reach the recording thread
                    self.fail(error)

    def _commit(self, job: Seal) -> None:
        try:
            if job.segment == 0:
                commit_run(self._tables, self._header, self.ended_at)
            seal = seal_reopened if job.records.continued else seal_segment
            seal(self._store, self._tables, job)
        except StoreNotFoundError as error:
            # The log is not the one that this run has committed to. Read again, it would look like any other.
            self._replaced = error
            raise

    def retry(self) -> None:
        """Have a seal that has failed tried again; its error is forgotten, a new attempt has its own."""
        self._failure = None

    def finish(self) -> None:
        """Work off all that is left, on this thread, and raise the first error, whichever thread met it.

        Raises:
            StoreAccessError, ConcurrentCommitError: a seal failed; it stays in the queue, call again.
        """
        self.work()
        self.raise_failure()


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, unless it never began or is this one."""
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join()


def _with_journal(error: StoreNotFoundError, journal: Path) -> StoreNotFoundError:
    """Add to the error of a store that is gone where the episodes are that were not sealed."""
    if not is_folder(journal):
        return StoreNotFoundError(f"{error} The journal {journal} was deleted or moved with the store.")
    return StoreNotFoundError(
        f"{error} The journal {journal} keeps the episodes that were not sealed. Once this process has "
        f"ended, episodelake.recover(store, journals={str(journal.parent)!r}) seals them into a store with "
        "the same spaces."
    )
