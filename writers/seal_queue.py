"""The seals of one run: worked off in order, by the background thread or by whoever waits for them.

A seal that fails stays at the head of the queue and is tried again with the next request; seals after it
wait, since the segments of a run are committed in order. What went wrong is kept for the recording thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ..store.handle import StoreHandle
from ..store.journal import RunHeader
from ..store.sealer import Seal, Tables, commit_run, seal


class SealQueue:
    """Seals of one run.

    Args:
        store: the store.
        tables: its tables, used by no other thread.
        header: the run.
        sealed: called with each seal after its commits.
    """

    def __init__(
        self, store: StoreHandle, tables: Tables, header: RunHeader, sealed: Callable[[Seal], None]
    ) -> None:
        self._schema = store.schema
        self._tables = tables
        self._header = header
        self._sealed = sealed
        self._jobs: deque[Seal] = deque()
        self._guard = threading.Lock()
        self._failure: Exception | None = None

    @property
    def waiting(self) -> bool:
        """Whether there is something to do that has not failed."""
        return bool(self._jobs) and self._failure is None

    @property
    def backlog(self) -> int:
        """How many seals are not committed yet."""
        return len(self._jobs)

    def add(self, job: Seal) -> None:
        """Put a seal behind the others."""
        self._jobs.append(job)

    def fail(self, error: Exception) -> None:
        """Keep an error of the background thread for the recording thread."""
        self._failure = error

    def raise_failure(self) -> None:
        """Raise what went wrong since the last call, if anything did."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def work(self) -> None:
        """Work off the queue; the first seal that fails stays and stops the others."""
        with self._guard:
            while self.waiting:
                job = self._jobs[0]
                try:
                    if job.segment == 0:
                        commit_run(self._tables, self._header, None)
                    seal(self._tables, self._schema, job)
                    self._jobs.popleft()
                    self._sealed(job)
                except Exception as error:  # whatever it is, it must reach the recording thread
                    self._failure = error

    def finish(self) -> None:
        """Work off all that is left, on this thread, and raise what goes wrong.

        Raises:
            StoreAccessError, ConcurrentCommitError: a seal failed; it stays in the queue, call again.
        """
        self._failure = None
        self.work()
        self.raise_failure()
