"""The seals of one run, worked off in order by a thread of their own, or by a caller that waits for them.

A seal stays at the head of the queue until both of its commits are made and the session has let go of its
episodes. One that fails or is interrupted is tried again once its error was raised: with the next request,
when a recording thread waits for it, or after `flush_seconds`. Seals after it wait, since the segments of a
run are committed in order. Errors are kept for the recording thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import pyarrow as pa

from ...store.errors import StoreNotFoundError
from ...store.handle import StoreHandle
from ...store.journal.episodes import EpisodeColumns
from ...store.journal.records import RunHeader
from ...store.maintenance.reopening import seal_reopened
from ...store.manifest import check_identity
from ...store.segments.seal import Seal, Tables, commit_run, seal_segment


class SealQueue:
    """Seals of one run.

    Args:
        store: the store.
        tables: its tables, used by no other thread.
        header: the run.
        lock: the session's; callers that look at the queue's seals hold it.
        sealed: called with each seal after its commits; may be called with the same seal again.

    Attributes:
        committed: the number of the last segment that was committed; -1 before the first.
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

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread behind the seal that it works on, and wait for it."""
        self._stopping = True
        self._bell.put(self._failures)
        join(self._thread)

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

    def add(
        self,
        records: EpisodeColumns,
        journal: Path,
        parts: Sequence[Path],
        bulk: Sequence[pa.RecordBatch] = (),
    ) -> None:
        """Put a seal behind the others."""
        segment = self._jobs[-1].segment if self._jobs else self.committed
        self._jobs.append(Seal(self._header, segment + 1, records, journal, parts, bulk))
        self.wake()

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
                commit_run(self._tables, self._header, None)
            seal = seal_reopened if job.records.continued else seal_segment
            seal(self._store, self._tables, job)
        except StoreNotFoundError as error:
            # The log is not the one that this run has committed to. Read again, it would look like any other.
            self._replaced = error
            raise

    def finish(self) -> None:
        """Work off all that is left, on this thread, and raise the first error.

        Raises:
            StoreAccessError, ConcurrentCommitError: a seal failed; it stays in the queue, call again.
        """
        self._failure = None
        self.work()
        self.raise_failure()


def join(thread: threading.Thread) -> None:
    """Wait for the end of a thread, unless it never began or is this one."""
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join()


def _with_journal(error: StoreNotFoundError, journal: Path) -> StoreNotFoundError:
    """Add to the error of a store that is gone where the episodes are that were not sealed."""
    if not journal.is_dir():
        return StoreNotFoundError(f"{error} The journal {journal} was deleted or moved with the store.")
    return StoreNotFoundError(
        f"{error} The journal {journal} keeps the episodes that were not sealed. Once this process has "
        f"ended, episodelake.recover(store, journals={str(journal.parent)!r}) seals them into a store with "
        "the same spaces."
    )
