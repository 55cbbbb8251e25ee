"""Episodes of a journal, collected row by row and event by event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..dynamic.values import load_json
from ..errors import CorruptStoreError
from ..journal.episodes import (
    AgentRecord,
    Continued,
    EndReason,
    EpisodeFacts,
    EpisodeRecord,
    add_in_order,
    end_reason_of,
    team_flags,
    team_return,
)
from ..journal.packed_columns import plain_type
from ..journal.reading import JournalBatch
from ..journal.row_index import RowSpans
from ..schema import ENV_STEP, FLAGS, JOURNAL_KIND, LAST_OBSERVATION, MISSING, REWARD, STEP_ROW, StepSchema


@dataclass(frozen=True)
class Outcomes:
    """Rewards and flags of the transitions of a batch, rows of one lane together.

    Attributes:
        stepped: bool: which rows have a transition.
        rewards: float64, shape (n,) or (n, k).
        terminated, truncated: bool.
        env_step: int64, steps of the environment, in a multi-agent store.
    """

    stepped: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    env_step: np.ndarray | None = None

    @staticmethod
    def of(runs: RowSpans, schema: StepSchema) -> Outcomes:
        """Read them; a row without a transition has zeros."""
        rows = runs.rows(0, runs.batch.num_rows).rows
        stepped = rows.column(JOURNAL_KIND.name).to_numpy() == STEP_ROW
        rewards = np.zeros((len(stepped), *schema.reward_shape))
        rewards[stepped] = schema.reward.decode([rows.column(REWARD).filter(pa.array(stepped))])
        terminated, truncated = (
            rows.column(name).fill_null(False).to_numpy(zero_copy_only=False) for name in FLAGS
        )
        counted = rows.column(ENV_STEP).fill_null(0).to_numpy() if schema.groups else None
        return Outcomes(stepped, rewards, terminated, truncated, counted)


@dataclass
class RecoveredEpisode:
    """An episode as of its journal rows and events, up to the row last read.

    Attributes:
        begin, end: its events.
        source: the part that it began in; no part of its own for an agent.
    """

    begin: dict[str, Any]
    source: Path | None = None
    end: dict[str, Any] | None = None
    steps: int = 0
    episode_return: float | list[float] = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def continues(self) -> Continued | None:
        """The episode of the store that it continues."""
        continued = self.begin.get("continues")
        return None if continued is None else Continued(continued, self.begin.get("continued_steps") or 0)

    @property
    def grew(self) -> bool:
        """Whether it has a step that no segment has."""
        return self.steps > (0 if self.continues is None else self.continues.length)

    def introduce(self, event: dict[str, Any]) -> None:
        """Refuse an event that introduces an agent: only multi-agent stores have it."""
        raise CorruptStoreError(f"A journal of a store without agents has an event of one: {event}.")

    def add(self, outcomes: Outcomes, start: int, stop: int, agent: int = 0) -> None:
        """Add the rows `[start, stop)` of a batch."""
        stepped = start + np.flatnonzero(outcomes.stepped[start:stop])
        if not len(stepped):
            return
        self.episode_return = add_in_order(self.episode_return, outcomes.rewards[stepped])
        self.steps += len(stepped)
        self.terminated = bool(outcomes.terminated[stepped[-1]])
        self.truncated = bool(outcomes.truncated[stepped[-1]])

    def record(self, number: int, now: int) -> EpisodeRecord:
        """Return the episode's row."""
        flags = (self.terminated, self.truncated)
        reason = (self.end or {}).get("reason") or end_reason_of(*flags, "interrupted")
        return self.as_record(number, now, (), self.episode_return, flags, reason)

    def as_record(
        self,
        number: int,
        now: int,
        agents: tuple[AgentRecord, ...],
        episode_return: float | list[float],
        flags: tuple[bool, bool],
        reason: EndReason,
    ) -> EpisodeRecord:
        """Return a row from the episode's events and the sums of its rows."""
        end = self.end or {}
        metadata = (self.end or self.begin).get("metadata")
        return EpisodeRecord(
            number=number,
            env_index=self.begin.get("env_index"),
            started_at=self.begin.get("started_at", now),
            ended_at=end.get("ended_at", now),
            length=self.steps,
            episode_return=episode_return,
            terminated=flags[0],
            truncated=flags[1],
            end_reason=reason,
            facts=EpisodeFacts(
                self.begin.get("seed"),
                self.begin.get("options"),
                load_json(metadata, "the journal") if metadata else {},
                self.continues,
                end.get(LAST_OBSERVATION.name) == MISSING,
            ),
            agents=agents,
        )


@dataclass
class RecoveredTeam(RecoveredEpisode):
    """A multi-agent episode rebuilt from the journal, up to the row last read.

    Attributes:
        schema: the store's.
        introductions: the events that introduced its agents, by index.
        lanes: the part of each agent.
        env_step: steps of the environment at the last row.
    """

    schema: StepSchema | None = None
    introductions: dict[int, dict[str, Any]] = field(default_factory=dict)
    lanes: dict[int, RecoveredEpisode] = field(default_factory=dict)
    env_step: int = 0

    def introduce(self, event: dict[str, Any]) -> None:
        """Read the event that introduces an agent.

        Raises:
            CorruptStoreError: it names no agent, or a group that the store does not have.
        """
        groups = 0 if self.schema is None else len(self.schema.groups)
        agent, name, group = (event.get(key) for key in ("agent", "agent_id", "group"))
        if agent is None or agent < 0 or name is None or group is None or not 0 <= group < groups:
            raise CorruptStoreError(f"A journal has an agent that is not in the store: {event}.")
        # A batch may stand in the journal twice, so the same agent may be introduced again.
        known = {other["agent_id"]: index for index, other in self.introductions.items()}
        if known.get(name, agent) != agent:
            raise CorruptStoreError(f"A journal has one agent under two numbers: {event}.")
        self.introductions.setdefault(agent, event)

    def add(self, outcomes: Outcomes, start: int, stop: int, agent: int = 0) -> None:
        """Count the rows of one agent; rows of one that was never introduced do not count."""
        if agent not in self.introductions:
            return
        self.lanes.setdefault(agent, RecoveredEpisode(self.begin)).add(outcomes, start, stop)
        if outcomes.env_step is not None:
            self.env_step = max(self.env_step, int(outcomes.env_step[start:stop].max()))
        self.steps = self.env_step if any(lane.steps for lane in self.lanes.values()) else 0

    def record(self, number: int, now: int) -> EpisodeRecord:
        """Return the episode's row."""
        ended = (self.end or {}).get("flags") or []
        agents: list[AgentRecord] = []
        for index in range(len(self.lanes)):
            if index not in self.lanes:
                break
            lane, known = self.lanes[index], self.introductions[index]
            flags = (lane.terminated, lane.truncated)
            if not lane.steps and index < len(ended):
                # Flags of an agent that never acted stand on no row.
                flags = _flags(ended[index])
            agents.append(
                AgentRecord(known["agent_id"], known["group"], lane.steps, self._return_of(lane), *flags)
            )
        flags = team_flags(agents)
        reason = (self.end or {}).get("reason") or end_reason_of(*flags, "interrupted")
        total = team_return([agent.episode_return for agent in agents], self._objectives)
        return self.as_record(number, now, tuple(agents), total, flags, reason)

    @property
    def _objectives(self) -> int | None:
        shape = () if self.schema is None else self.schema.reward_shape
        return shape[0] if shape else None

    def _return_of(self, lane: RecoveredEpisode) -> float | list[float]:
        if lane.steps or self._objectives is None:
            return lane.episode_return
        return [0.0] * self._objectives


def _flags(pair: Any) -> tuple[bool, bool]:
    """Return an agent's flags in an event; unset if they are none."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False, False
    return pair[0] is True, pair[1] is True


class JournalEpisodes:
    """The episodes of a journal as of the batches that were added.

    Attributes:
        episodes: by number; those that were discarded are left out.
    """

    def __init__(self, schema: StepSchema) -> None:
        self.episodes: dict[int, RecoveredEpisode] = {}
        self._schema = schema
        self._lost: set[int] = set()

    def add(self, batch: JournalBatch) -> None:
        """Add the batch that follows.

        Raises:
            CorruptStoreError: it does not fit the store's spaces, or its events are impossible.
        """
        self._check_columns(batch)
        if batch.after_gap:
            # Rows of the episodes that were open before the gap do not follow on: they end where it begins.
            self._lost |= {number for number, episode in self.episodes.items() if episode.end is None}
        events = batch.events()
        self._begin(events, batch.source)
        self._add_rows(batch)
        for event in events:
            if event["event"] == "end" and self._takes(event["number"]):
                self.episodes[event["number"]].end = event
            elif event["event"] == "discard":
                self.episodes.pop(event["number"], None)

    def _takes(self, number: int) -> bool:
        return number in self.episodes and number not in self._lost

    def _check_columns(self, batch: JournalBatch) -> None:
        known = {column.name: plain_type(column.type) for column in batch.rows.schema}
        for column in self._schema.journal:
            if known.get(column.name) != column.type:
                raise CorruptStoreError(
                    f"The journal part {batch.source} has {known.get(column.name, 'nothing')} as its column "
                    f"{column.name!r}; the store's spaces want {column.type}."
                )

    def _begin(self, events: Iterable[dict[str, Any]], source: Path) -> None:
        schema = self._schema
        for event in events:
            if event["event"] == "begin":
                team = RecoveredTeam(event, source, schema=schema) if schema.groups else None
                self.episodes.setdefault(event["number"], team or RecoveredEpisode(event, source))
            elif event["event"] == "agent" and self._takes(event["number"]):
                self.episodes[event["number"]].introduce(event)

    def _add_rows(self, batch: JournalBatch) -> None:
        spans = RowSpans.of(batch.rows, batch.source)
        outcomes = Outcomes.of(spans, self._schema)
        columns = (spans.numbers, spans.agents, spans.starts, spans.stops)
        for number, agent, start, stop in zip(*(each.tolist() for each in columns), strict=True):
            if self._takes(number):
                self.episodes[number].add(outcomes, start, stop, agent)
