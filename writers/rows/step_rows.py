"""Single rows: the row source of writers and recorders that take one step at a time.

    begin / room().add_step / end -> row buffer -> session -> journal

Appending a step touches only the row buffer. An episode is finished once it is among the session's finished
ones and no longer open here, so an interrupted `end` can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ...store.common.arguments import whole_number
from ...store.dynamic.column_groups import ColumnSet
from ...store.errors import RecorderStateError, StoreAccessError
from ...store.journal.episodes import EndReason, EpisodeFacts, EpisodeRecord, end_reason_of, timestamp_now
from ...store.journal.records import begin_event, end_event
from ...store.recovery.reopening import UnfinishedEpisode
from ..session.row_source import ArrivedRows, JournalRows, RowObserver
from ..session.session import RunSession
from .arrivals import NOT_PLAIN, ArrivalBuffer, LiveEpisode, check_agents

_FIRST_ROWS = 256


class StepRows:
    """The rows of a run that come one by one; several episodes may be open at once.

    Args:
        session: the session that takes the rows.

    Raises:
        InvalidArgumentError: the store is for several agents.
    """

    many_agents = False
    buffer_class: type[ArrivalBuffer] = ArrivalBuffer
    #: The recording thread writes a full buffer itself.
    full = False

    def __init__(self, session: RunSession[Any]) -> None:
        check_agents(session.store, many=self.many_agents)
        self._session = session
        self._schema = session.store.schema
        self._flush_steps = session.options.flush_steps
        self._chosen_infos: Callable[[Mapping], Mapping] | None = None
        self.buffer = self._new_buffer(_FIRST_ROWS)
        self._events: list[dict[str, Any]] = []
        self._live: dict[int, LiveEpisode] = {}
        self.observer: RowObserver | None = None
        # The episodes that ended since the observer pulled, with whether they were discarded.
        self._observed_ends: list[tuple[int, bool]] = []

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
        self._session.check_usable()
        if extra:
            self._schema.check_extra(extra)
        facts = EpisodeFacts.of(seed, options, metadata)
        episode = LiveEpisode(self._session.take_numbers(), env_index, timestamp_now(), facts)
        if self._schema.reward_shape:
            episode.episode_return = [0.0] * self._schema.reward_shape[0]
        begun = begin_event(episode.number, env_index, episode.started_at, facts)
        with self._session.lock:
            self.room().add_reset(episode, observation, info, extra)
            self._live[episode.number] = episode
            self._events.append(begun)
        self._flush_by_count()
        return episode

    def resume(self, reopened: UnfinishedEpisode) -> LiveEpisode:
        """Start an episode with the rows of one of the store, which go to the journal at once.

        Raises:
            StoreAccessError: the rows cannot be read, or the journal cannot be written; no episode was
                started.
            CorruptStoreError: the rows are damaged; no episode was started.
        """
        session, number = self._session, self._session.take_numbers()
        episode = LiveEpisode(number, reopened.env_index, reopened.started_at, reopened.facts)
        episode.length = episode.continued = reopened.length
        episode.episode_return = reopened.episode_return
        events = [begin_event(number, reopened.env_index, reopened.started_at, reopened.facts)]
        numbers = {number}
        with session.lock:
            try:
                for batch in reopened.arrivals(number):
                    session.write([JournalRows([(batch, events)], numbers, lambda: None)])
                    events = []
                self._live[number] = episode
            except BaseException:
                self._live.pop(number, None)
                session.journal.give_up(numbers)
                self._events.append({"event": "discard", "number": number})
                raise
        return episode

    def choose_infos(self, chosen: Callable[[Mapping], Mapping]) -> None:
        """Store of each info what this function returns."""
        self._chosen_infos = chosen
        self.buffer.choose_infos(chosen)

    def room(self, rows: int = 1) -> ArrivalBuffer:
        """Return the row buffer, with room for this many more rows.

        A step is recorded in two calls of it: `put_action` before the environment sees the action, and
        `add_step` with what came back.
        """
        buffer = self.buffer
        if buffer.count + rows <= buffer.capacity:
            return buffer
        self._session.check_process()
        if self.observer is not None:
            self.observer.pull()
        with self._session.lock:
            self._session.write_rows()
            self.buffer = self._new_buffer(self.buffer.next_capacity, rows)
        return self.buffer

    def _new_buffer(self, capacity: int, rows: int = 0) -> ArrivalBuffer:
        buffer = self.buffer_class(self._schema, capacity, rows)
        buffer.choose_infos(self._chosen_infos)
        if self._flush_steps is not None and not self.many_agents:
            # Set here, so that a run without the option does nothing for it in any step.
            buffer.plain = NOT_PLAIN
            buffer.add_step = partial(self._add_step, buffer.add_step)  # type: ignore[method-assign]
        return buffer

    def _add_step(self, add: Callable[..., None], *step: Any) -> None:
        add(*step)
        self._flush_by_count()

    def _flush_by_count(self) -> None:
        """Bring rows to the journal if `flush_steps` of them wait, or the end of an episode after them."""
        if self._flush_steps is None:
            return
        waiting = self.buffer.count - self.buffer.flushed
        if waiting < self._flush_steps and (waiting or not self._events):
            return
        try:
            with self._session.lock:
                self._session.write_rows()
        except StoreAccessError:
            # The step is recorded. The next one finds no room, tries again, and raises before it is made.
            self.buffer.capacity = self.buffer.count

    def end(
        self,
        episode: LiveEpisode,
        otherwise: EndReason = "cut",
        metadata: Mapping | None = None,
        late: Mapping | None = None,
    ) -> EpisodeRecord | None:
        """Finish an episode; one without a step of its own leaves nothing and gives None.

        Args:
            otherwise: the end reason if no flag is set.
            metadata: added to the metadata given at the begin.
            late: policy values that belong to the last observation.
        """
        self._session.check_process()
        with self._session.lock:
            if not self.is_live(episode):
                raise RecorderStateError(
                    f"Episode {self._session.episode_id(episode.number)} has ended already."
                )
            if episode.length == episode.continued or episode.discarded:
                self.discard(episode)
                return None
            record = _record(episode, otherwise, episode.facts.with_metadata(metadata))
            ended = end_event(record)
            if late:
                self.room().add_late(episode, late)
            self._session.finished.add(record)
            self._events.append(ended)
            del self._live[episode.number]
            if self.observer is not None:
                self._observed_ends.append((episode.number, False))
            self._session.seal_if_due()
        self._flush_by_count()
        return record

    def recorded(self, number: int, rows: int, columns: Sequence[ColumnSet]) -> list[pa.RecordBatch]:
        """Return the rows of the newest episode so far.

        Args:
            number: the episode.
            rows: how many it has.
            columns: as for `ArrivalBuffer.batch`.

        Raises:
            StoreAccessError: it is long, and the journal cannot be written or read; nothing is lost.
        """
        self._session.check_process()
        with self._session.lock:
            first = self.buffer.first_of(number)
            if first is not None and self.buffer.count - first >= rows:
                return [self.buffer.batch(first, self.buffer.count, columns)]
            return self._session.journalled(number)

    def is_live(self, episode: LiveEpisode) -> bool:
        """Return whether an episode has begun and not ended."""
        return episode.number in self._live

    def discard(self, episode: LiveEpisode) -> None:
        """Give up an episode, unless it has ended: none of its rows will be sealed.

        A call that was interrupted may be repeated, and `end` then gives the episode up as well.
        """
        self._session.check_process()
        with self._session.lock:
            if self.is_live(episode):
                episode.discarded = True
            if episode.discarded:
                self._session.finished.forget((episode.number,))
                self._events.append({"event": "discard", "number": episode.number})
                if self.observer is not None:
                    self._observed_ends.append((episode.number, True))
                self._live.pop(episode.number, None)

    def complete(self) -> None:
        """Do nothing: a single row counts at once."""

    def arrived(self) -> Iterator[ArrivedRows]:
        """Yield the rows that no observer has taken; see `ObservableRows`."""
        # In this order: the rows of these episodes are complete.
        ended = self._observed_ends[:]
        del self._observed_ends[: len(ended)]
        if ended or self.buffer.observed < self.buffer.count:
            yield self.buffer.arrived(ended)

    @property
    def ended(self) -> bool:
        """False: an episode that ends is among the session's at once."""
        return False

    @property
    def open(self) -> Collection[int]:
        """The numbers of the episodes that have not ended."""
        return self._live

    @property
    def live(self) -> Collection[LiveEpisode]:
        """The episodes that have not ended."""
        return self._live.values()

    def pending(self, before: float) -> Iterator[JournalRows]:
        """Yield all complete rows and events; see `RowSource`."""
        buffer, events = self.buffer, self._events
        stop, events_written = buffer.count, len(events)
        if stop == buffer.flushed and not events_written:
            return
        batch = buffer.batch(buffer.flushed, stop, self._session.columns)
        numbers = buffer.numbers(buffer.flushed, stop)
        done = partial(self._written, buffer, stop, events, events_written)
        yield JournalRows([(batch, events[:events_written])], numbers, done)

    def _written(
        self, buffer: ArrivalBuffer, stop: int, events: list[dict[str, Any]], events_written: int
    ) -> None:
        buffer.flushed = stop
        if self._events is events:
            self._events = events[events_written:]

    def end_all(self) -> None:
        """End the open episodes, as `cut` if no flag is set."""
        for episode in list(self._live.values()):
            self.end(episode)


@dataclass(frozen=True)
class EpisodeRow:
    """A finished episode, as a row of the episodes table.

    Attributes:
        episode_id, run_id, number: its names.
        length: transitions T.
        episode_return: sum of the rewards in order of time; a list for vector rewards.
        terminated, truncated: the flags of the last transition.
        end_reason: "terminated", "truncated" or "cut".
        seed: the seed it was begun with, or None.
        metadata: its metadata.
    """

    episode_id: str
    run_id: str
    number: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool
    end_reason: EndReason
    seed: int | None
    metadata: dict[Any, Any]

    @staticmethod
    def of(session: RunSession[Any], record: EpisodeRecord) -> EpisodeRow:
        """Return a finished episode of a run."""
        return EpisodeRow(
            episode_id=session.episode_id(record.number),
            run_id=session.header.run_id,
            number=record.number,
            length=record.length,
            episode_return=record.episode_return,
            terminated=record.terminated,
            truncated=record.truncated,
            end_reason=record.end_reason,
            seed=record.facts.seed,
            metadata=record.facts.metadata,
        )


def env_index_of(value: int | None) -> int | None:
    """Return the index of an episode's environment, None where it has none.

    Raises:
        InvalidArgumentError: it is no whole number from 0 on.
    """
    return None if value is None else whole_number("env_index", value, 0, 2**63 - 1)


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
        facts=facts,
        agents=episode.agent_records(),
    )
