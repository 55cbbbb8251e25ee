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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..store.agent_arrivals import arrival_buffer
from ..store.arrivals import ArrivalBuffer, LiveEpisode
from ..store.episode_events import begin_event, end_event
from ..store.errors import (
    CorruptStoreError,
    EpisodelakeError,
    InvalidArgumentError,
    RecorderStateError,
)
from ..store.families import STEP_FAMILIES, ColumnSet, check_extra
from ..store.files import guard_access, sync_path
from ..store.handle import StoreHandle
from ..store.journal import JournalLock, RunHeader, remove_journal
from ..store.layout import episode_id
from ..store.record_columns import EpisodeColumns
from ..store.records import (
    EndReason,
    EpisodeFacts,
    EpisodeRecord,
    end_reason_of,
    timestamp_now,
)
from ..store.recovery import recover
from ..store.sealer import Seal, Tables, commit_run
from .journal_parts import JournalParts
from .options import SessionOptions
from .seal_queue import SealQueue

_FIRST_ROWS = 256
#: Patient: a process that looks at a lock may be stopped while it has it.
_CLAIMS = 3000
_CLAIM_SECONDS = 0.01
_FIRST_SEGMENT_BYTES = 16 << 20


class RunSession:
    """One run of one writer.

    Args:
        store: the store.
        header: the run.
        options: how to treat the disk.

    Raises:
        InvalidArgumentError: the store is for several agents.
        StoreAccessError: the journal could not be created.
    """

    many_agents = False

    def __init__(self, store: StoreHandle, header: RunHeader, options: SessionOptions) -> None:
        _check_agents(store, many=self.many_agents)
        _recover_others(store)
        self.header = header
        self.options = options
        self.closed = False
        self._schema = store.schema
        self.store = store
        self._process = os.getpid()
        self._tables = Tables.open(store.layout)
        committed = list(self._tables.steps.schema)
        self.columns = [ColumnSet(family, committed) for family in STEP_FAMILIES]
        self._directory = store.layout.journals / header.run_id
        self._journal_lock = _claim(self._directory)
        self._parts = JournalParts(self._directory, header, sync=options.durability == "fsync")
        self._buffer = arrival_buffer(self._schema, _FIRST_ROWS)
        self._flushed = 0
        self._rows_before = 0
        self._events: list[dict[str, Any]] = []
        self._next_number = 0
        self._live: dict[int, LiveEpisode] = {}
        # Records here; columns of many in a session of blocks.
        self._finished: list[Any] = []
        self._next_segment = 0
        # The first segments of a run are smaller: episodes show early, and sealing runs beside recording.
        self._seal_at = min(_FIRST_SEGMENT_BYTES, options.segment_bytes)
        self._last_seal = time.monotonic()
        self._stopping = False
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._seals = SealQueue(store, self._tables, header, self._sealed)
        self._keeper = threading.Thread(target=self._keep, name=f"episodelake {header.run_id}", daemon=True)
        self._keeper.start()
        atexit.register(self.close)

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
        if extra:
            check_extra(extra)
        episode = LiveEpisode(
            number=self._next_number,
            env_index=env_index,
            started_at=timestamp_now(),
            facts=EpisodeFacts.of(seed, options, metadata),
        )
        if self._schema.reward_shape:
            episode.episode_return = [0.0] * self._schema.reward_shape[0]
        begun = begin_event(episode.number, env_index, episode.started_at, episode.facts)
        with self._lock:
            self._next_number += 1
            self.room().add_reset(episode, observation, info, extra)
            self._parts.need(episode.number)
            self._live[episode.number] = episode
            self._events.append(begun)
        return episode

    def room(self, rows: int = 1) -> ArrivalBuffer:
        """The row buffer, with room for so many more rows.

        A step is recorded in two calls of it: `put_action` before the environment sees the action, and
        `add_step` with what came back.
        """
        if self._buffer.count + rows > self._buffer.capacity:
            with self._lock:
                self._flush()
                self._rows_before += self._buffer.count
                self._buffer = arrival_buffer(self._schema, self._buffer.next_capacity, rows)
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
        self._check_process()
        with self._lock:
            if episode.number not in self._live:
                raise RecorderStateError(f"Episode {self.episode_id(episode)} has ended already.")
            if episode.length == 0:
                self.discard(episode)
                return None
            facts = episode.facts.with_metadata(metadata)
            record = _record(episode, otherwise, facts)
            ended = end_event(record)
            if late:
                self.room().add_late(episode, late)
            del self._live[episode.number]
            self._events.append(ended)
            self._finish(record)
        return record

    def _finish(self, record: EpisodeRecord) -> None:
        self._finished.append(record)
        if self._parts.unsealed_bytes >= self._seal_at:
            try:
                self._request_seal()
            except EpisodelakeError as error:
                # The episode is recorded; the trouble is raised where repeating the call does no harm.
                self._seals.fail(error)

    def discard(self, episode: LiveEpisode) -> None:
        """Give up an episode: none of its rows will be sealed."""
        with self._lock:
            self._live.pop(episode.number, None)
            self._events.append({"event": "discard", "number": episode.number})
            self._parts.forget({episode.number})

    def add_whole(self, record: EpisodeRecord, batches: Sequence[pa.RecordBatch]) -> None:
        """Record a finished episode whose arrivals are batches already.

        Raises:
            StoreAccessError: the journal could not be written; nothing was recorded.
        """
        facts = EpisodeFacts(record.seed, record.options, record.metadata)
        events = [begin_event(record.number, record.env_index, record.started_at, facts)]
        self._check_process()
        with self._lock:
            self._parts.need(record.number)
            try:
                *earlier, last = batches
                for batch in earlier:
                    self._parts.append(batch, events, [record.number], self._take_rows(batch.num_rows))
                    events = []
                events.append(end_event(record))
                self._parts.append(last, events, [record.number], self._take_rows(last.num_rows))
            except BaseException:
                self._events.append({"event": "discard", "number": record.number})
                self._parts.forget({record.number})
                raise
            self._finish(record)

    def _take_rows(self, count: int) -> int:
        """Number the next rows that go to the journal beside the buffer; the buffer's own come behind
        them.
        """
        self._flush()
        first = self._rows_before + self._flushed
        self._rows_before += count
        return first

    def take_number(self) -> int:
        """Reserve the number of a new episode."""
        self.check_usable()
        with self._lock:
            self._next_number += 1
            return self._next_number - 1

    def episode_id(self, episode: LiveEpisode | EpisodeRecord) -> str:
        """The id of an episode of this run."""
        return episode_id(self.header.run_id, episode.number)

    def check_usable(self) -> None:
        """Raise if nothing more can be recorded now.

        Raises:
            RecorderStateError: the session is closed or belongs to another process.
            StoreAccessError, ConcurrentCommitError: the background thread failed; nothing is lost, go on
                or close.
        """
        if self.closed:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} is closed. Open a new writer to record more."
            )
        self._check_process()
        self._seals.raise_failure()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RecorderStateError(
                f"The run {self.header.run_id!r} belongs to the process {self._process}, not to "
                f"this one, which was "
                "forked from it. Open a writer in each process, and start processes with 'spawn'."
            )

    # Journal and seals

    def _flush(self) -> None:
        """Bring all complete rows and events into the journal; on failure they stay and are tried again."""
        self._check_process()
        stop = self._buffer.count
        if stop == self._flushed and not self._events:
            return
        batch = self._buffer.batch(self._flushed, stop, self.columns)
        events = list(self._events)
        numbers = self._buffer.numbers(self._flushed, stop)
        self._parts.append(batch, events, numbers, self._rows_before + self._flushed)
        self._flushed = stop
        del self._events[: len(events)]

    def seal(self) -> None:
        """Seal all finished episodes now, and wait until readers can see them.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; the journal keeps everything, call again.
            RecorderStateError: the session is closed or belongs to another process.
        """
        if self.closed:
            self.check_usable()
        with self._lock:
            self._flush()
            self._request_seal()
        self._seals.finish()

    def _request_seal(self) -> None:
        if not self._finished:
            return
        self._flush()
        self._parts.close_part()
        records = self._take_finished()
        self._seals.add(Seal(self.header, self._next_segment, records, self._parts.holding(records.numbers)))
        self._next_segment += 1
        self._seal_at = min(2 * self._seal_at, self.options.segment_bytes)
        self._last_seal = time.monotonic()
        self._wake.notify()

    def _take_finished(self) -> EpisodeColumns:
        """The episodes for the next seal; those that finish from now on are for the one after it."""
        finished, self._finished = self._finished, []
        return EpisodeColumns.of(finished)

    def _sealed(self, job: Seal) -> None:
        with self._lock:
            self._parts.forget(job.records.numbers)

    def _keep(self) -> None:
        """The background thread: flush by age, seal on request and by age."""
        pause = min(self.options.flush_seconds, self.options.seal_seconds)
        while True:
            with self._lock:
                if not self._seals.waiting and not self._stopping:
                    self._wake.wait(pause)
                if self._stopping:
                    return
                self._tick()
            self._seals.work()

    def _tick(self) -> None:
        try:
            if self.options.durability != "none":
                self._flush()
            if self._finished and time.monotonic() - self._last_seal >= self.options.seal_seconds:
                self._request_seal()
        except Exception as error:  # whatever it is, it must reach the recording thread
            self._seals.fail(error)

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
            self._parts.close_part()
            remove_journal(self._directory)
            self._journal_lock.release(remove=True)
            self.closed = True
        atexit.unregister(self.close)

    def _stop_keeper(self) -> None:
        with self._lock:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()


def _check_agents(store: StoreHandle, *, many: bool) -> None:
    if many and not store.schema.groups:
        raise InvalidArgumentError(
            f"{store.layout.root} is a store for one agent; the environment has several. Create a store for "
            "it with episodelake.create(path, env)."
        )
    if store.schema.groups and not many:
        agents = ", ".join(agent for group in store.schema.groups for agent in group.agents)
        raise InvalidArgumentError(
            f"{store.layout.root} is a store for several agents ({agents}). Record a PettingZoo environment "
            "into it, with EpisodeStore.record."
        )


def _claim(directory: Path) -> JournalLock:
    """Take the lock of a new run, then make its journal directory."""
    with guard_access("create the journal", directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquired(directory)
        if lock is None:
            raise RecorderStateError(f"The run {directory.name!r} is being written already.")
        try:
            directory.mkdir()
            sync_path(directory.parent)
        except BaseException:
            lock.release(remove=True)
            raise
    return lock


def _acquired(directory: Path) -> JournalLock | None:
    """The lock of a new run; a recovery may hold it to see whether it is a stray one."""
    for _ in range(_CLAIMS):
        lock = JournalLock.acquire(directory)
        if lock is not None:
            return lock
        time.sleep(_CLAIM_SECONDS)
    return None


def _recover_others(store: StoreHandle) -> None:
    """Seal what dead writers left; a journal that cannot be read must not keep this writer from working."""
    try:
        recover(store.layout, store.schema)
    except CorruptStoreError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=5)


def _record(episode: LiveEpisode, otherwise: EndReason, facts: EpisodeFacts) -> EpisodeRecord:
    return EpisodeRecord(
        number=episode.number,
        env_index=episode.env_index,
        started_at=episode.started_at,
        ended_at=timestamp_now(),
        length=episode.length,
        episode_return=episode.episode_return,
        terminated=episode.terminated,
        truncated=episode.truncated,
        end_reason=end_reason_of(episode.terminated, episode.truncated, otherwise),
        seed=facts.seed,
        options=facts.options,
        metadata=facts.metadata,
        agents=episode.agent_records(),
    )
