"""A multi-agent episode as recovery finds it in a dead writer's journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import CorruptStoreError
from ..journal.recovered_episode import FoundEpisode, Outcomes
from ..schema import StepSchema
from ..segments.episode_record import AgentRecord, EpisodeRecord, end_reason_of, team_flags, team_return


@dataclass
class FoundTeam(FoundEpisode):
    """A multi-agent episode as its journal rows and events tell it, up to the row last read.

    Attributes:
        schema: the store's.
        told: the events that introduced its agents, by index.
        lanes: the part of each agent.
        env_step: steps of the environment at the last row.
    """

    schema: StepSchema | None = None
    told: dict[int, dict[str, Any]] = field(default_factory=dict)
    lanes: dict[int, FoundEpisode] = field(default_factory=dict)
    env_step: int = 0

    def introduce(self, event: dict[str, Any]) -> None:
        """Read the event that says who an agent is.

        Raises:
            CorruptStoreError: it names no agent, or a group that the store does not have.
        """
        groups = 0 if self.schema is None else len(self.schema.groups)
        agent, name, group = (event.get(key) for key in ("agent", "agent_id", "group"))
        if agent is None or agent < 0 or name is None or group is None or not 0 <= group < groups:
            raise CorruptStoreError(f"A journal tells of an agent that the store cannot have: {event}.")
        # A batch may stand in the journal twice, so the same agent may be introduced again.
        known = {told["agent_id"]: index for index, told in self.told.items()}
        if known.get(name, agent) != agent:
            raise CorruptStoreError(f"A journal tells of one agent under two numbers: {event}.")
        self.told.setdefault(agent, event)

    def add(self, outcomes: Outcomes, start: int, stop: int, agent: int = 0) -> None:
        """Count the rows of one agent; rows of one that was never introduced do not count."""
        if agent not in self.told:
            return
        self.lanes.setdefault(agent, FoundEpisode(self.begin)).add(outcomes, start, stop)
        if outcomes.env_step is not None:
            self.env_step = max(self.env_step, int(outcomes.env_step[start:stop].max()))
        self.steps = self.env_step if any(lane.steps for lane in self.lanes.values()) else 0

    def record(self, number: int, now: int) -> EpisodeRecord:
        """Return the episode's row."""
        said = (self.end or {}).get("flags") or []
        agents: list[AgentRecord] = []
        for index in range(len(self.lanes)):
            if index not in self.lanes:
                break
            lane, told = self.lanes[index], self.told[index]
            flags = (lane.terminated, lane.truncated)
            if not lane.steps and index < len(said):
                # Flags of an agent that never acted stand on no row.
                flags = _flags(said[index])
            agents.append(
                AgentRecord(told["agent_id"], told["group"], lane.steps, self._return_of(lane), *flags)
            )
        flags = team_flags(agents)
        reason = (self.end or {}).get("reason") or end_reason_of(*flags, "interrupted")
        total = team_return([agent.episode_return for agent in agents], self._objectives)
        return self.as_record(number, now, tuple(agents), total, flags, reason)

    @property
    def _objectives(self) -> int | None:
        shape = () if self.schema is None else self.schema.reward_shape
        return shape[0] if shape else None

    def _return_of(self, lane: FoundEpisode) -> float | list[float]:
        if lane.steps or self._objectives is None:
            return lane.episode_return
        return [0.0] * self._objectives


def _flags(said: Any) -> tuple[bool, bool]:
    """Return the flags that an event tells of an agent; unset if it tells something else."""
    if not isinstance(said, list) or len(said) != 2:
        return False, False
    return said[0] is True, said[1] is True
