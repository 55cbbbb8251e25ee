"""Single rows of multi-agent episodes: each agent's arrivals make a lane of the episode.

The PettingZoo recorders and `TeamWriter` are its fronts. What one step of the environment brought to all
agents goes into the row buffer under one lock, so the journal never holds a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...store.agents import is_agent_name
from ...store.errors import InvalidArgumentError
from ...store.journal.episodes import EndReason, EpisodeFacts, EpisodeRecord, timestamp_now
from ...store.journal.records import begin_event
from .agent_arrivals import AgentArrivals, Arrival, LiveAgent, LiveTeam
from .arrivals import LiveEpisode
from .step_rows import StepRows


class AgentRows(StepRows):
    """The rows of one multi-agent run; see `StepRows`.

    Raises:
        InvalidArgumentError: the store is for one agent.
    """

    many_agents = True
    buffer_class = AgentArrivals

    def begin_team(
        self, *, seed: int | None = None, options: Mapping | None = None, metadata: Mapping | None = None
    ) -> LiveTeam:
        """Start an episode; its agents come with their first arrivals."""
        self._session.check_usable()
        facts = EpisodeFacts.of(seed, options, metadata)
        team = LiveTeam(self._session.take_numbers(), 0, timestamp_now(), facts)
        begun = begin_event(team.number, 0, team.started_at, facts)
        with self._session.lock:
            self._live[team.number] = team
            self._events.append(begun)
        self._flush_by_count()
        return team

    def group_of(self, agent: str, groups: Mapping[str, str] | None) -> int:
        """Return the index of an agent's group where its spaces are not known.

        Args:
            agent: its name.
            groups: the names of groups by agent.

        Raises:
            InvalidArgumentError: the name is no text, there is no such group, or it is not the agent's.
        """
        if not is_agent_name(agent):
            raise InvalidArgumentError(f"The agents of a store are named by text; got {agent!r}.")
        known = self._schema.groups
        names = [group.name for group in known]
        declared = [number for number, group in enumerate(known) if agent in group.agents]
        given = (groups or {}).get(agent)
        fitting = [names.index(given)] if given in names else range(len(names)) if given is None else []
        chosen = [number for number in fitting if not declared or number in declared]
        if len(chosen) != 1:
            problem = "is new to the store" if given is None else f"cannot be in a group {given!r}"
            raise InvalidArgumentError(
                f"The agent {agent!r} {problem}. Name its group: groups={{{agent!r}: {names[0]!r}}}; the "
                f"groups are {', '.join(names)}."
            )
        return chosen[0]

    def newcomer(self, team: LiveTeam, agent_id: str, group: int, others: int = 0) -> LiveAgent:
        """Return an agent that is about to appear; it counts once its first arrival is recorded.

        Args:
            others: how many newcomers of the same step come before it.
        """
        agent = LiveAgent(team.number, 0, timestamp_now(), team.facts)
        agent.agent_id, agent.index, agent.group = agent_id, len(team.agents) + others, group
        if self._schema.reward_shape:
            agent.episode_return = [0.0] * self._schema.reward_shape[0]
        return agent

    def arrivals(self, rows: int) -> AgentArrivals:
        """Return the row buffer, with room for this many more rows."""
        return cast(AgentArrivals, self.room(rows))

    def reserve(self, rows: int) -> None:
        """Make sure that this many rows fit without a visit to the disk.

        Raises:
            StoreAccessError: the journal could not be written; nothing is lost, call again.
        """
        if self.buffer.count + rows > self.buffer.capacity:
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
                self._schema.check_extra(arrival.extra)
        newcomers = [a.agent for a in arrivals if a.agent.agent_id not in team.agents]
        self._session.check_process()
        with self._session.lock:
            buffer = self.arrivals(len(arrivals))
            count = len(self._events)
            try:
                # Known before its rows are: an agent without rows can be taken back, rows without one cannot.
                for agent in newcomers:
                    team.agents[agent.agent_id] = agent
                    self._events.append(_agent_event(agent))
                buffer.add_all(env_step, arrivals)
            except BaseException:
                del self._events[count:]
                for agent in newcomers:
                    team.agents.pop(agent.agent_id, None)
                raise
            team.length = env_step
        self._flush_by_count()

    def update_totals(self, team: LiveTeam) -> None:
        """Work out the return and the flags of an episode from its agents', as of now."""
        shape = self._schema.reward_shape
        team.update_totals(shape[0] if shape else None)

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
        self._session.check_process()
        with self._session.lock:
            still = self.is_live(episode)
            for name, values in (late or {}).items() if still else ():
                agent = episode.agents.get(name)
                if agent is not None and values:
                    self.arrivals(1).add_late_of(agent, episode.length, values)
            self.update_totals(episode)
            if not episode.transitions:
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
