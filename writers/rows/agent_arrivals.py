"""The row buffer of multi-agent episodes: each row is an arrival of one agent.

An agent's rows in an episode make a *lane*, which looks like the rows of a single-agent episode. A `LiveTeam`
is an episode that is being recorded, a `LiveAgent` one of its lanes. What one step of the environment brought
to all agents is added as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...store.journal.episodes import AgentRecord, team_flags, team_return
from ...store.schema import StepSchema
from .arrivals import ArrivalBuffer, LiveEpisode


@dataclass(slots=True)
class LiveAgent(LiveEpisode):
    """One agent of an episode that is being recorded; `number` is the episode's.

    Attributes:
        agent_id: its name.
        index: counts the agents of the episode in the order in which they appeared.
        group: the index of its group.
        gone: whether nothing more can come from it.
    """

    agent_id: str = ""
    index: int = 0
    group: int = 0
    gone: bool = False

    def record(self) -> AgentRecord:
        """Return what is known of it."""
        flags = (self.terminated, self.truncated)
        return AgentRecord(self.agent_id, self.group, self.length, self.episode_return, *flags)


@dataclass(slots=True)
class LiveTeam(LiveEpisode):
    """A multi-agent episode that is being recorded; `length` counts steps of the environment.

    Attributes:
        agents: its agents in the order in which they appeared.
    """

    agents: dict[str, LiveAgent] = field(default_factory=dict)

    @property
    def transitions(self) -> int:
        """How many transitions its agents have made."""
        return sum(agent.length for agent in self.agents.values())

    def agent_records(self) -> tuple[AgentRecord, ...]:
        """Return what is known of its agents."""
        return tuple(agent.record() for agent in self.agents.values())

    def update_totals(self, objectives: int | None) -> None:
        """Work out the episode's return and flags from its agents'."""
        records = self.agent_records()
        self.terminated, self.truncated = team_flags(records)
        self.episode_return = team_return([record.episode_return for record in records], objectives)


class Arrival(NamedTuple):
    """The outcome for one agent of a step of the environment, or of its reset.

    Attributes:
        agent: whose it is.
        observation, info: what came.
        outcome: action, reward, terminated and truncated of the transition that led here; None for the
            agent's first observation.
        policy: what was logged for the action.
        extra: the user's own columns.
    """

    agent: LiveAgent
    observation: Any
    info: Mapping[str, Any] | None
    outcome: tuple[Any, Any, bool, bool] | None = None
    policy: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] | None = None


class AgentArrivals(ArrivalBuffer):
    """Rows of one multi-agent run that are not in the journal yet."""

    def __init__(self, schema: StepSchema, capacity: int, fewest: int = 0) -> None:
        super().__init__(schema, capacity, fewest)
        self._grouped = len(schema.groups) > 1
        self._agents = np.zeros(self.capacity, np.int32)
        self._env_steps = np.zeros(self.capacity, np.int64)

    def check_action(self, agent: LiveAgent, action: Any) -> None:
        """Raise if an action does not fit the agent's space; the row it is tried in is put again later.

        Raises:
            SpaceMismatchError: it does not fit.
        """
        self.put_action(self.count, (agent.group, action) if self._grouped else action)

    def add_all(self, env_step: int, arrivals: Sequence[Arrival]) -> None:
        """Add what one step of the environment brought, all of it or nothing.

        Args:
            env_step: how many steps the environment has made in this episode.
            arrivals: there must be room for them.

        Raises:
            SpaceMismatchError: a value does not fit its space; nothing was added.
        """
        first = self.count
        before = [
            (a.agent, a.agent.length, a.agent.episode_return, a.agent.terminated, a.agent.truncated)
            for a in arrivals
        ]
        try:
            for arrival in arrivals:
                self._add(env_step, arrival)
        except BaseException:
            for row in range(self.count - 1, first - 1, -1):
                self._clear(row)
            self.count = first
            for agent, length, total, terminated, truncated in before:
                agent.length, agent.episode_return = length, total
                agent.terminated, agent.truncated = terminated, truncated
            raise

    def _add(self, env_step: int, arrival: Arrival) -> None:
        agent, row = arrival.agent, self.count
        self._agents[row] = agent.index
        self._env_steps[row] = env_step
        observation = (agent.group, arrival.observation) if self._grouped else arrival.observation
        if arrival.outcome is None:
            self.add_reset(agent, observation, arrival.info, arrival.extra)
            return
        action, reward, terminated, truncated = arrival.outcome
        self.check_action(agent, action)
        self.add_step(
            agent,
            reward,
            observation,
            terminated,
            truncated,
            arrival.info,
            arrival.policy,
            arrival.extra,
        )

    def add_late_of(self, agent: LiveAgent, env_step: int, policy: Mapping[str, Any]) -> None:
        """Add what was logged about an agent's last observation.

        Raises:
            SpaceMismatchError: it is no mapping; nothing was added.
        """
        self._agents[self.count] = agent.index
        self._env_steps[self.count] = env_step
        self.add_late(agent, policy)

    def _agent_arrays(self, start: int, stop: int) -> list[pa.Array]:
        return [pa.array(self._agents[start:stop]), pa.array(self._env_steps[start:stop])]
