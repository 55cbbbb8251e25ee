"""A run session of multi-agent episodes: each agent's arrivals make a lane of the episode.

The PettingZoo recorders are its fronts. What one step of the environment brought to all agents goes into the
row buffer under one lock, so the journal never holds a part of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..store.agent_arrivals import AgentArrivals, Arrival, LiveAgent, LiveTeam
from ..store.arrivals import LiveEpisode
from ..store.episode_events import begin_event
from ..store.families import check_extra
from ..store.records import EndReason, EpisodeFacts, EpisodeRecord, timestamp_now
from .session import RunSession


class AgentSession(RunSession):
    """One run of one multi-agent recorder; see `RunSession`."""

    many_agents = True

    @property
    def owned(self) -> bool:
        """Whether this process made it; a forked one must leave it alone."""
        return os.getpid() == self._process

    def begin_team(
        self, *, seed: int | None = None, options: Mapping | None = None, metadata: Mapping | None = None
    ) -> LiveTeam:
        """Start an episode; its agents come with their first arrivals."""
        self.check_usable()
        facts = EpisodeFacts.of(seed, options, metadata)
        with self._lock:
            team = LiveTeam(self._next_number, 0, timestamp_now(), facts)
            self._next_number += 1
            self._parts.need(team.number)
            self._live[team.number] = team
            self._events.append(begin_event(team.number, 0, team.started_at, facts))
        return team

    def newcomer(self, team: LiveTeam, agent_id: str, group: int, others: int = 0) -> LiveAgent:
        """An agent that is about to appear; it counts once its first arrival is recorded.

        Args:
            others: how many newcomers of the same step come before it.
        """
        agent = LiveAgent(team.number, 0, timestamp_now(), team.facts)
        agent.agent_id, agent.index, agent.group = agent_id, len(team.agents) + others, group
        if self._schema.reward_shape:
            agent.episode_return = [0.0] * self._schema.reward_shape[0]
        return agent

    def arrivals(self, rows: int) -> AgentArrivals:
        """The row buffer, with room for so many more rows."""
        return cast(AgentArrivals, self.room(rows))

    def reserve(self, rows: int) -> None:
        """Make sure that so many rows fit without a visit to the disk.

        Raises:
            StoreAccessError: the journal could not be written; nothing is lost, call again.
        """
        if self._buffer.count + rows > self._buffer.capacity:
            # Twice as many, so that heavy rows do not come here with every step.
            self.room(2 * rows)

    def record(self, team: LiveTeam, env_step: int, arrivals: Sequence[Arrival]) -> None:
        """Record what one step of the environment brought, all of it or nothing.

        Args:
            env_step: steps that the environment has made in this episode.

        Raises:
            SpaceMismatchError: a value does not fit its space; nothing was recorded.
        """
        for arrival in arrivals:
            if arrival.extra:
                check_extra(arrival.extra)
        newcomers = [a.agent for a in arrivals if a.agent.agent_id not in team.agents]
        with self._lock:
            buffer = self.arrivals(len(arrivals))
            told = len(self._events)
            try:
                # Known before its rows are: an agent without rows can be taken back, rows of nobody cannot.
                for agent in newcomers:
                    team.agents[agent.agent_id] = agent
                    self._events.append(_agent_event(agent))
                buffer.add_all(env_step, arrivals)
            except BaseException:
                del self._events[told:]
                for agent in newcomers:
                    team.agents.pop(agent.agent_id, None)
                raise
            team.length = env_step

    def settle(self, team: LiveTeam) -> None:
        """Work out the return and the flags of an episode from its agents', as of now."""
        shape = self._schema.reward_shape
        team.settle(shape[0] if shape else None)

    def end(
        self,
        episode: LiveEpisode,
        otherwise: EndReason = "cut",
        metadata: Mapping | None = None,
        late: Mapping | None = None,
    ) -> EpisodeRecord | None:
        """Finish an episode; one in which no agent made a transition leaves nothing.

        Args:
            late: by agent, policy values that belong to its last observation.
        """
        assert isinstance(episode, LiveTeam)
        with self._lock:
            self._check_process()
            still = episode.number in self._live
            for name, values in (late or {}).items() if still else ():
                agent = episode.agents.get(name)
                if agent is not None and values:
                    self.arrivals(1).add_late_of(agent, episode.length, values)
            self.settle(episode)
            if not any(agent.length for agent in episode.agents.values()):
                episode.length = 0
            return super().end(episode, otherwise, metadata)


def _agent_event(agent: LiveAgent) -> dict[str, Any]:
    return {
        "event": "agent",
        "number": agent.number,
        "agent": agent.index,
        "agent_id": agent.agent_id,
        "group": agent.group,
    }
