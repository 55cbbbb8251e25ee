"""A run session: the one path from values that arrive to segments of the store.

    recorder or writer -> row source -> journal part -> (background) seal -> tables

Recording touches only the row source; a background thread brings rows to the journal after `flush_seconds`
at the latest, another seals finished episodes by size and by age. Whatever was not sealed when the process
dies is in the journal and is recovered by the next writer.

An interrupt may come between any two lines. An episode is finished once it is in `finished` and its source no
longer names it as open; it stays there until the segment that contains it is committed, and only then does
its journal go. The content of the next seal follows from these and from the queue, so an interrupted call can
be repeated. Rows that come to the journal twice are recognised by their place in the run.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import pyarrow as pa

from ...store.dynamic.column_groups import STEP_GROUPS, ColumnSet
from ...store.errors import RecorderStateError, StoreAccessError, StoreNotFoundError
from ...store.frames.ffmpeg import check_encoder
from ...store.journal.episodes import timestamp_now
from ...store.journal.records import RunHeader
from ...store.layout import check_identity, episode_id
from ...store.schema import StoreHandle
from ...store.segments.seal import Seal, Tables, commit_run
from ...store.tables.annotation_files import PROPERTY, parse_annotations
from .journal import NotCopyable, RunJournal, SessionOptions
from .row_source import JournalRows, RowSource
from .seal_queue import BulkEpisodes, FinishedEpisodes, SealQueue, columns_of, join

Rows = TypeVar("Rows", bound=RowSource)

_FIRST_SEGMENT_BYTES = 16 << 20
#: The sessions of this process, to find those whose close has failed.
_sessions: weakref.WeakSet[RunSession[Any]] = weakref.WeakSet()
_sessions_lock = threading.Lock()


def _forget_sessions() -> None:
    """Drop the sessions of the parent in a forked child, and a lock that a thread of it may have held."""
    global _sessions_lock
    _sessions_lock = threading.Lock()
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_sessions)


class RunSession(NotCopyable, Generic[Rows]):
    """One run of one writer.

    Args:
        store: the store.
        header: the run.
        options: how to treat the disk.
        rows: makes the row source.
        owner: the writer or recorder of the run. When it is garbage collected unclosed, the background thread
            closes the run, which keeps everything recorded, and a `ResourceWarning` says so.

    Attributes:
        rows: the row source.
        lock: held by any thread that changes what the background threads use.
        finished: the episodes that ended, until they are committed.
        seals, journal: the queue of their seals, and the run's journal.
        columns: the run's columns of info, policy and extra.
        closing: whether `close` has begun; nothing more is recorded then.

    Raises:
        InvalidArgumentError: the row source is not for a store of this kind, or PyAV lacks its encoder.
        MissingPackageError: the store has video, and PyAV is not installed.
        StoreAccessError: the journal could not be created.
    """

    def __init__(
        self,
        store: StoreHandle,
        header: RunHeader,
        options: SessionOptions,
        rows: Callable[[RunSession[Any]], Rows],
        owner: object,
    ) -> None:
        self.header = header
        self.options = options
        self.closed = False
        self._process = os.getpid()
        self._tables = Tables.open(store.layout)
        self._tables.check_writable()
        for encoding in store.schema.encodings.values():
            check_encoder(encoding)
        annotations = self._tables.episodes.properties().get(PROPERTY)
        annotated = frozenset(parse_annotations(annotations, store.layout.root) if annotations else ())
        self.store = replace(store, cast=options.cast, annotated=annotated)
        self.rows = rows(self)
        committed = list(self._tables.steps.schema)
        self.columns = [ColumnSet(group, committed) for group in STEP_GROUPS]
        self._next_number = 0
        self.finished = FinishedEpisodes()
        # The first segments of a run are smaller: episodes show early, and sealing runs beside recording.
        self._seal_at = min(_FIRST_SEGMENT_BYTES, options.segment_bytes)
        self._last_seal = time.monotonic()
        self.closing = self._finishing = self._abandoned = False
        # A fork may copy it locked by a thread that the child lacks: callers check the process first.
        self.lock = threading.RLock()
        # Held by the thread that closes it: the writer's, or one that needs to know what the run has stored.
        self._close_lock = threading.RLock()
        # Wakes the background thread. A simple queue may be used in a finalizer, whatever locks are held.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.seals = SealQueue(store, self._tables, header, self.lock, self._sealed)
        self._keeper = threading.Thread(target=self._keep, name=f"episodelake {header.run_id}", daemon=True)
        self.journal = RunJournal(store.layout, header, sync=options.durability == "fsync")
        try:
            # Before the threads start: from then on only its close ends them.
            weakref.finalize(owner, self._abandon).atexit = False
            self.seals.start()
            self._keeper.start()
            atexit.register(self.close)
            with _sessions_lock:
                _sessions.add(self)
        except BaseException:
            self.closed = True
            self.seals.stop()
            self._end_keeper()
            self.journal.leave()
            raise

    def _abandon(self) -> None:
        if not self.owned:
            return
        self._abandoned = not self.closed
        # Of a closed run, too: an interrupt may have come between its end and that of its thread.
        self.wake()
        if self._abandoned:
            message = f"The run {self.header.run_id!r} was never closed; it is closed in the background."
            warnings.warn(message, ResourceWarning, stacklevel=2)

    def take_numbers(self, count: int = 1) -> int:
        """Reserve the numbers of new episodes and return the first of them; one thread at a time."""
        self._next_number += count
        return self._next_number - count

    @property
    def next_number(self) -> int:
        """The number of the next episode."""
        return self._next_number

    def episode_id(self, number: int) -> str:
        """Return the id of an episode of this run."""
        return episode_id(self.header.run_id, number)

    @property
    def owned(self) -> bool:
        """Whether this process made it; a forked one must leave it alone."""
        return os.getpid() == self._process

    @property
    def is_abandoned(self) -> bool:
        """Whether its writer was garbage collected unclosed."""
        return self._abandoned

    def check_usable(self) -> None:
        """Raise if nothing more can be recorded now.

        Raises:
            RecorderStateError: the session is closed or belongs to another process.
            StoreAccessError, ConcurrentCommitError: a background thread failed; nothing is lost, go on or
                close.
        """
        if self.closed:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} is closed. Open a new writer to record more."
            )
        if self.closing:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} is closing: close() failed or was interrupted. "
                "Call it again, and open a new writer to record more."
            )
        self.check_process()
        self.seals.raise_failure()

    def check_process(self) -> None:
        """Raise `RecorderStateError` in a process that was forked from the one of the session."""
        if not self.owned:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} belongs to the process {self._process}, not to this one, "
                "which was forked from it. Open a writer in each process, and start processes with 'spawn'."
            )

    def wake(self) -> None:
        """Have the background thread bring rows to the journal now."""
        if self._bell.empty():
            self._bell.put(None)

    def seal_if_due(self) -> None:
        """Request a seal if enough has been recorded since the last; the caller holds the lock."""
        finished = self.finished
        due = self.journal.unsealed_bytes + finished.memory_bytes >= self._seal_at
        # While a segment is written, episodes gather for the next.
        if due or (self.options.seal_now(finished.episodes, finished.steps) and not self.seals.backlog):
            try:
                self._request_seal()
            except Exception as error:
                # The episode is recorded; the error is raised where repeating the call does no harm.
                self.seals.fail(error)

    def confirm_discard(self, numbers: set[int]) -> None:
        """Write the discard of these episodes to the journal if it has rows of them.

        A recovery would otherwise bring them back as `interrupted`.

        Raises:
            StoreAccessError: the journal could not be written; the next flush writes the discard.
        """
        with self.lock:
            if self.journal.holding(numbers):
                self.flush()

    def flush(self) -> None:
        """Bring everything recorded so far to the journal, as durably as `durability` says.

        With "fsync" it then survives the machine, otherwise the process.

        Raises:
            StoreAccessError: the journal could not be written; nothing is lost, call again.
            RecorderStateError: the session is closed or belongs to another process.
        """
        if self.closed:
            self.check_usable()
        self.check_process()
        with self.lock:
            self.write_rows(math.inf)
            self.journal.check()
            self.seal_if_due()

    def write_rows(self, before: float = -math.inf) -> None:
        """Bring all complete rows and events to the journal; the caller holds the lock.

        On failure they stay and are tried again, those being written exactly as they were.

        Args:
            before: the rows of whole episodes stay in memory unless they came before this moment of
                `time.monotonic`.
        """
        self.write(self.rows.pending(before))

    def journalled(self, number: int) -> list[pa.RecordBatch]:
        """Bring all complete rows to the journal, and return those of one episode that is not sealed.

        Raises:
            StoreAccessError: the journal cannot be written or read; nothing is lost.
        """
        self.check_process()
        with self.lock:
            self.write_rows(math.inf)
            return list(self.journal.rows_of(number))

    def write(self, batches: Iterable[JournalRows]) -> None:
        """Bring these rows to the journal, after all that are there; the caller holds the lock."""
        self.check_process()
        try:
            self.journal.finish_write()
            for rows in batches:
                self.journal.write(rows)
        except StoreAccessError:
            # The journal of a local store goes with the store.
            check_identity(self.store.layout)
            raise

    def seal(self) -> None:
        """Seal all finished episodes now, and wait until readers can see them.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; the journal keeps everything, call again.
            RecorderStateError: the session is closed or belongs to another process.
        """
        if self.closed:
            self.check_usable()
        self.check_process()
        with self.lock:
            self.seals.retry()
            self._request_seal()
        try:
            self.seals.finish()
        except BaseException:
            # The process may end before the next attempt.
            with self.lock, contextlib.suppress(Exception):
                self.write_rows(math.inf)
            raise

    def _request_seal(self) -> None:
        self.write_rows()
        self.journal.check()
        # Those that are open still are about to finish; those in the queue wait for their commits.
        finished = self.finished.without(lambda number: number in self.rows.open or self.seals.holds(number))
        if not finished:
            return
        self.journal.close_part()
        records = columns_of(finished)
        bulk = [batch for each in finished if isinstance(each, BulkEpisodes) for batch in each.batches]
        self.seals.add(records, self.journal.directory, self.journal.holding(records.numbers), bulk)
        self.finished.taken()
        self._seal_at = min(2 * self._seal_at, self.options.segment_bytes)
        self._last_seal = time.monotonic()

    def _sealed(self, job: Seal) -> None:
        """Let go of committed episodes; the queue holds the lock."""
        # A recovery that took the journal before the commits has used the segment's number.
        self.journal.check()
        self.finished.forget(job.records.numbers)
        self.journal.forget(job.records.numbers)
        # Episodes that ended since the seal began had no seal requested: it was in the queue until now.
        if self.options.seals_by_count and (self.finished or self.rows.ended):
            self.wake()

    def _keep(self) -> None:
        """Flush on request and by age, seal by age, close abandoned runs; runs in the background thread."""
        pause = min(self.options.flush_seconds, self.options.seal_seconds, threading.TIMEOUT_MAX)
        while not self.closed and not self._abandoned:
            try:
                with contextlib.suppress(Empty):
                    self._bell.get(timeout=pause)
                with self.lock:
                    self._tick()
            except BaseException as error:  # whatever it is, it must reach the recording thread
                self.seals.fail(error)
        if self._abandoned:
            self._close_abandoned()

    def _tick(self) -> None:
        if self._finishing or self.closed or self._abandoned:
            return
        now = time.monotonic()
        if self.options.durability != "none":
            overdue = now - self.options.flush_seconds
            finished = self.finished
            if finished.memory_bytes >= _FIRST_SEGMENT_BYTES and finished.memory_since < overdue:
                # They make a segment: the journal is needed only if that takes long.
                self._request_seal()
            else:
                self.write_rows(overdue)
                finished.memory_since = max(finished.memory_since, overdue)
        elif self.rows.full or (self.options.seals_by_count and self.rows.ended):
            self.write_rows()
        self.seal_if_due()
        if self.seals.waiting:
            self.seals.wake()
        # While a segment is written, episodes gather for the next.
        due = now - self._last_seal >= self.options.seal_seconds and not self.seals.waiting
        if due and (self.finished or self.rows.ended):
            self._request_seal()

    def close(self) -> None:
        """End open episodes (`cut` if no flag is set), seal everything, and finish the run.

        A second call does nothing. If sealing fails or is interrupted the session stays open: the journal
        keeps everything and `close` may be called again. If the journal is no longer this run's, the session
        is closed and the error says so.

        Raises:
            StoreAccessError, ConcurrentCommitError
        """
        if self._abandoned:
            join(self._keeper)
        if not self.owned:
            return
        if not self.closed:
            with self._close_lock:
                self._close()
        self._end_keeper()
        atexit.unregister(self.close)

    def _close(self) -> None:
        if self.closed:
            return
        self.closing = True
        try:
            self._finish()
        except (StoreAccessError, StoreNotFoundError):
            if not self.journal.is_ours:
                self._leave_journal()
                self.journal.check()
            raise

    def _finish(self) -> None:
        self.rows.end_all()
        # A first segment that is sealed only now comes with the run's end: one commit of the run is enough.
        self.seals.ended_at = timestamp_now()
        self.seal()
        if self.seals.committed >= 0:
            check_identity(self.store.layout)
            commit_run(self._tables, self.header, self.seals.ended_at)
        with self.lock:
            self._finishing = True
        self.seals.stop()
        with self.lock:
            self._check_all_sealed()
            self.journal.remove()
            # The background thread ends after this only: it closes what an interrupt leaves behind before.
            self.closed = True

    def _check_all_sealed(self) -> None:
        left = len(self.rows.open) + len(self.finished) + self.rows.ended
        if left:
            raise RecorderStateError(
                f"{left} episodes of the run {self.header.run_id!r} are not in a segment yet, so its journal "
                f"{self.journal.directory} stays. Call close() again, or episodelake.recover(path) once this "
                "process has ended."
            )

    def _end_keeper(self) -> None:
        """Wait for the end of the background thread of a closed run."""
        self.wake()
        join(self._keeper)

    def _close_abandoned(self) -> None:
        """Close for a writer that is gone; where that fails, leave the journal to the next writer."""
        # A thread that closes it already waits for this one.
        if not self._close_lock.acquire(blocking=False):
            return
        try:
            self.close()
        except BaseException as error:
            self._leave_journal()
            message = f"The run {self.header.run_id!r} could not be closed: {error} Its journal stays."
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        finally:
            self._close_lock.release()

    def _leave_journal(self) -> None:
        with self.lock, contextlib.suppress(Exception):
            self.closed = True
            self.journal.close_part()
        self.seals.stop()
        self._end_keeper()
        self.journal.leave()
        atexit.unregister(self.close)


def finish_closing(store: StoreHandle) -> None:
    """Finish the runs of a store whose writers in this process are closing, or are gone unclosed.

    Their episodes are stored, but in no table yet.

    Raises:
        StoreAccessError, ConcurrentCommitError: one cannot be finished for now; it keeps its episodes.
    """
    with _sessions_lock:
        sessions = list(_sessions)
    for session in sessions:
        ours = session.store.manifest.store_id == store.manifest.store_id
        if ours and (session.closing or session.is_abandoned):
            session.close()
