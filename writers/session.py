"""A run session: the one path from values that arrive to segments of the store.

    begin / append / end -> row buffer -> journal part -> (background) seal -> tables

Every writer of this package is a thin front for a session. Appending a step touches only the row buffer; a
background thread brings rows into the journal after `flush_seconds` at the latest, and seals finished
episodes by size and by age. Whatever was not sealed when the process dies is in the journal and is recovered
by the next writer.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..store.arrivals import ArrivalBuffer, LiveEpisode
from ..store.errors import CorruptStoreError, InvalidArgumentError, RecorderStateError
from ..store.families import STEP_FAMILIES, ColumnSet, check_extra
from ..store.files import guard_access
from ..store.handle import StoreHandle
from ..store.journal import JournalLock, PartWriter, RunHeader, part_path, remove_journal
from ..store.layout import episode_id
from ..store.records import EndReason, EpisodeRecord, end_reason_of, timestamp_now
from ..store.recovery import recover
from ..store.sealer import Seal, Tables, commit_run, seal
from ..store.values import dump_json, freeze, freeze_value

_FIRST_SEGMENT_BYTES = 16 << 20

Durability = Literal["flush", "fsync", "none"]


@dataclass(frozen=True)
class SessionOptions:
    """How a session treats the disk.

    Attributes:
        durability: "flush" (rows survive the process), "fsync" (rows survive the machine) or "none"
            (rows reach the journal when the row buffer is full, no sooner).
        flush_seconds: rows reach the journal after this time at the latest; not used with "none".
        seal_seconds: finished episodes become visible to readers after about this time at the latest.
        segment_bytes: finished episodes are sealed as soon as the journal holds about this much.
    """

    durability: Durability = "flush"
    flush_seconds: float = 1.0
    seal_seconds: float = 60.0
    segment_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.durability not in ("flush", "fsync", "none"):
            raise InvalidArgumentError(
                f"durability={self.durability!r} is unknown; expected 'flush', 'fsync' or 'none'."
            )
        for name in ("flush_seconds", "seal_seconds", "segment_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise InvalidArgumentError(f"{name}={value!r}: expected a positive number.")


@dataclass
class _Part:
    """A journal part and the episodes that still need it."""

    path: Path
    pending: set[int] = field(default_factory=set)
    closed: bool = False


class RunSession:
    """One run of one writer.

    Args:
        store: the store.
        header: the run.
        options: how to treat the disk.

    Raises:
        StoreAccessError: the journal could not be created.
    """

    def __init__(self, store: StoreHandle, header: RunHeader, options: SessionOptions) -> None:
        layout, schema = store.layout, store.schema
        _recover_others(store)
        self.header = header
        self.options = options
        self._schema = schema
        self._tables = Tables.open(layout)
        committed = list(self._tables.steps.schema)
        self._columns = [ColumnSet(family, committed) for family in STEP_FAMILIES]
        self._directory = layout.journals / header.run_id
        with guard_access("create the journal", self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        lock = JournalLock.acquire(self._directory)
        if lock is None:
            raise RecorderStateError(f"The run {header.run_id!r} is being written already.")
        self._journal_lock = lock
        self._buffer = ArrivalBuffer(schema)
        self._flushed = 0
        self._events: list[dict[str, Any]] = []
        self._next_number = 0
        self._live: dict[int, LiveEpisode] = {}
        self._finished: list[EpisodeRecord] = []
        # Episodes whose rows must stay in the journal: live ones, and finished ones until they are sealed.
        self._needed: set[int] = set()
        self._writer: PartWriter | None = None
        self._parts: list[_Part] = []
        self._part_count = 0
        self._next_segment = 0
        self._jobs: deque[Seal] = deque()
        self._failure: Exception | None = None
        self._unsealed_bytes = 0
        # The first segments of a run are smaller: episodes show early, and sealing runs beside recording.
        self._seal_at = min(_FIRST_SEGMENT_BYTES, options.segment_bytes)
        self._last_seal = time.monotonic()
        self._process = os.getpid()
        self.closed = False
        self._stopping = False
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._seal_guard = threading.Lock()
        self._keeper = threading.Thread(target=self._keep, name=f"episodelake {header.run_id}", daemon=True)
        self._keeper.start()
        atexit.register(self._close_at_exit)

    # Recording

    def begin(
        self,
        observation: Any,
        info: Mapping | None,
        *,
        seed: int | None = None,
        options: Mapping | None = None,
        metadata: Mapping | None = None,
        env_index: int | None = 0,
        extra: Mapping | None = None,
    ) -> LiveEpisode:
        """Start an episode with its first observation.

        Raises:
            SpaceMismatchError: the observation does not fit; no episode was started.
            StoreAccessError, ConcurrentCommitError: an earlier seal failed in the background; nothing is
            lost.
        """
        self.check_usable()
        self._raise_failure()
        if extra:
            check_extra(extra)
        episode = LiveEpisode(
            self._next_number,
            env_index,
            timestamp_now(),
            None if seed is None else int(seed),
            None if options is None else dump_json(freeze_value(dict(options))),
            freeze(metadata or {}),
        )
        if self._schema.reward_shape:
            episode.episode_return = [0.0] * self._schema.reward_shape[0]
        with self._lock:
            self.room().add_reset(episode, observation, info, extra)
            self._events.append(_begin_event(episode))
            self._next_number += 1
            self._live[episode.number] = episode
            self._needed.add(episode.number)
        return episode

    def room(self) -> ArrivalBuffer:
        """The row buffer, with room for one more row.

        A step is recorded in two calls of it: `put_action` before the environment sees the action, and
        `add_step` with what came back.
        """
        if self._buffer.count == self._buffer.capacity:
            with self._lock:
                self._flush()
                self._buffer = ArrivalBuffer(self._schema)
                self._flushed = 0
        return self._buffer

    def end(
        self,
        episode: LiveEpisode,
        otherwise: EndReason = "cut",
        metadata: Mapping | None = None,
        late: Mapping | None = None,
    ) -> EpisodeRecord | None:
        """Finish an episode; one without a step leaves nothing and gives None.

        Args:
            otherwise: the end reason if no flag is set.
            metadata: added to the metadata given at the begin.
            late: policy values that belong to the last observation.
        """
        with self._lock:
            if self._live.pop(episode.number, None) is None:
                raise RecorderStateError(f"Episode {self.episode_id(episode)} has ended already.")
            if episode.length == 0:
                self._forget({episode.number})
                return None
            if late:
                self.room().add_late(episode, late)
            record = _record(episode, otherwise, freeze(metadata or {}))
            self._events.append(_end_event(record))
            self._finished.append(record)
            if self._unsealed_bytes >= self._seal_at:
                self._request_seal()
        return record

    def discard(self, episode: LiveEpisode) -> None:
        """Give up an episode: none of its rows will be sealed."""
        with self._lock:
            self._live.pop(episode.number, None)
            self._events.append({"event": "discard", "number": episode.number})
            self._forget({episode.number})

    def add_whole(self, record: EpisodeRecord, batch: pa.RecordBatch) -> None:
        """Record a finished episode whose arrivals are one batch already."""
        with self._lock:
            self._needed.add(record.number)
            self._append_to_journal(batch, [_begin_event(record), _end_event(record)], {record.number})
            self._finished.append(record)
            if self._unsealed_bytes >= self._seal_at:
                self._request_seal()

    def take_number(self) -> int:
        """Reserve the number of a new episode."""
        self.check_usable()
        self._raise_failure()
        with self._lock:
            self._next_number += 1
            return self._next_number - 1

    def columns(self) -> list[ColumnSet]:
        """The run's loose columns of info, policy and extra."""
        return self._columns

    def episode_id(self, episode: LiveEpisode | EpisodeRecord) -> str:
        """The id of an episode of this run."""
        return episode_id(self.header.run_id, episode.number)

    def check_usable(self) -> None:
        """Raise `RecorderStateError` if the session is closed or belongs to another process."""
        if self.closed:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} is closed. Open a new writer to record more."
            )
        if os.getpid() != self._process:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} belongs to the process {self._process}, not to "
                f"this one (it was "
                "forked). Open a writer of its own in each process."
            )

    # Journal

    def _flush(self) -> None:
        """Bring all complete rows and events into the journal; on failure they stay and are tried again."""
        stop = self._buffer.count
        if stop == self._flushed and not self._events:
            return
        batch = self._buffer.batch(self._flushed, stop, self._columns)
        self._append_to_journal(batch, self._events, self._buffer.numbers(self._flushed, stop))
        self._flushed = stop
        self._events = []

    def _append_to_journal(
        self, batch: pa.RecordBatch, events: list[dict[str, Any]], numbers: set[int]
    ) -> None:
        if self._writer is None:
            path = part_path(self._directory, self._part_count)
            self._writer = PartWriter(path, self.header, sync=self.options.durability == "fsync")
            self._parts.append(_Part(path))
            self._part_count += 1
        before = self._writer.size
        self._writer.append(batch, events)
        self._unsealed_bytes += self._writer.size - before
        self._parts[-1].pending |= {number for number in numbers if number in self._needed}

    def _forget(self, numbers: set[int]) -> None:
        """Parts no longer need to keep these episodes; delete the parts that nobody needs."""
        self._needed -= numbers
        for part in list(self._parts):
            part.pending -= numbers
            if part.closed and not part.pending:
                with guard_access("remove the sealed journal", part.path):
                    part.path.unlink(missing_ok=True)
                self._parts.remove(part)

    # Sealing

    def seal(self) -> None:
        """Seal all finished episodes now, and wait until readers can see them.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; the journal keeps everything, call again.
        """
        self.check_usable()
        with self._lock:
            self._flush()
            self._request_seal()
        self._failure = None
        self._work()
        self._raise_failure()

    def _request_seal(self) -> None:
        if not self._finished:
            return
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._parts[-1].closed = True
        numbers = {record.number for record in self._finished}
        parts = [part.path for part in self._parts if part.pending & numbers]
        self._jobs.append(Seal(self.header, self._next_segment, self._finished, parts))
        self._next_segment += 1
        self._finished = []
        self._unsealed_bytes = 0
        self._seal_at = min(2 * self._seal_at, self.options.segment_bytes)
        self._last_seal = time.monotonic()
        self._wake.notify()

    def _work(self) -> None:
        """Work off the seals in their order; the first that fails stays and stops the others."""
        with self._seal_guard:
            while self._jobs and self._failure is None:
                job = self._jobs[0]
                try:
                    if job.segment == 0:
                        commit_run(self._tables, self.header, None)
                    seal(self._tables, self._schema, job)
                except Exception as error:  # whatever it is, it must reach the caller's thread
                    self._failure = error
                    return
                with self._lock:
                    self._jobs.popleft()
                    self._forget({record.number for record in job.records})

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _keep(self) -> None:
        """The background thread: flush by age, seal on request and by age."""
        pause = min(self.options.flush_seconds, self.options.seal_seconds)
        while True:
            with self._lock:
                if not self._jobs and not self._stopping:
                    self._wake.wait(pause)
                if self._stopping:
                    return
                self._tick()
            if self._failure is None:
                self._work()

    def _tick(self) -> None:
        try:
            if self.options.durability != "none":
                self._flush()
            if self._finished and time.monotonic() - self._last_seal >= self.options.seal_seconds:
                self._request_seal()
        except Exception as error:  # whatever it is, it must reach the caller's thread
            self._failure = error

    # Closing

    def close(self) -> None:
        """End what is open (`cut` if no flag is set), seal everything, and finish the run.

        A second call does nothing. If sealing fails the session stays open: the journal keeps everything and
        `close` may be called again.

        Raises:
            StoreAccessError, ConcurrentCommitError
        """
        if self.closed or os.getpid() != self._process:
            return
        for episode in list(self._live.values()):
            self.end(episode)
        self._stop_keeper()
        self.seal()
        if self._next_segment:
            commit_run(self._tables, self.header, timestamp_now())
        with self._lock:
            if self._writer is not None:
                self._writer.close()
            remove_journal(self._directory)
            self._journal_lock.release()
            self.closed = True
        atexit.unregister(self._close_at_exit)

    def _stop_keeper(self) -> None:
        with self._lock:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    def _close_at_exit(self) -> None:
        self.close()


def _recover_others(store: StoreHandle) -> None:
    """Seal what dead writers left; a journal that cannot be read must not keep this writer from working."""
    try:
        recover(store.layout, store.schema)
    except CorruptStoreError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=5)


def _begin_event(episode: LiveEpisode | EpisodeRecord) -> dict[str, Any]:
    return {
        "event": "begin",
        "number": episode.number,
        "env_index": episode.env_index,
        "started_at": episode.started_at,
        "seed": episode.seed,
        "options": episode.options,
        "metadata": dump_json(episode.metadata) if episode.metadata else None,
    }


def _end_event(record: EpisodeRecord) -> dict[str, Any]:
    return {
        "event": "end",
        "number": record.number,
        "ended_at": record.ended_at,
        "reason": record.end_reason,
        "metadata": dump_json(record.metadata) if record.metadata else None,
    }


def _record(episode: LiveEpisode, otherwise: EndReason, metadata: dict[Any, Any]) -> EpisodeRecord:
    reason = end_reason_of(episode.terminated, episode.truncated, otherwise)
    return EpisodeRecord(
        number=episode.number,
        env_index=episode.env_index,
        started_at=episode.started_at,
        ended_at=timestamp_now(),
        length=episode.length,
        episode_return=episode.episode_return,
        terminated=episode.terminated,
        truncated=episode.truncated,
        end_reason=reason,
        seed=episode.seed,
        options=episode.options,
        metadata={**episode.metadata, **metadata},
    )
