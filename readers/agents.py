"""Multi-agent episodes: `MultiAgentEpisode`, and `AgentEpisode`, one agent of it with the API of an episode.

An agent's rows look like those of a single-agent episode, so an `AgentEpisode` reads them as one; the
`MultiAgentEpisode` gathers what its agents give into mappings by agent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ..store.errors import InvalidArgumentError
from ..store.families import EXTRA, merge_rows
from ..store.lanes import Lanes, lanes_of
from ..store.schema import ENV_STEP, StepSchema
from .blocks import Block, LaneBlock
from .episode import Episode, stack
from .episode_rows import EpisodeRowReader
from .replaying.replay import ReplayReport
from .replaying.run_envs import run_envs
from .replaying.team_replay import api_of, replay_team


def make_episode(rows: EpisodeRowReader, position: int, block: Block, start: int, count: int) -> Episode:
    """The episode at a position, whose `count` rows begin at row `start` of a block."""
    if rows.snapshot.schema.groups:
        return MultiAgentEpisode(rows, position, block, start, count)
    return Episode(rows, position, block, start, count - 1)


class AgentEpisode(Episode):
    """One agent of a multi-agent episode: its T transitions and T+1 observations, with the API of `Episode`.

    `id`, `seed`, `options`, `metadata` and the times are the whole episode's. An agent that appeared and
    never acted has T = 0 and one observation.

    Attributes:
        agent_id: the agent's name.
        group: the name of its group.
    """

    def __init__(self, whole: MultiAgentEpisode, index: int, lanes: Lanes, block: LaneBlock) -> None:
        super().__init__(whole._rows, whole.position, block, 0, int(lanes.length[index]))
        self._whole = whole
        self._index = index
        self._flagged = lanes.flags[index]
        self.agent_id: str = lanes.agent[index].as_py()
        self._group_index = int(lanes.group[index])
        self.group = whole._rows.snapshot.schema.groups[lanes.group[index]].name

    @property
    def episode_return(self) -> float | list[float]:
        """Sum of the agent's rewards in order of time; a list for vector rewards."""
        return self._value("agent_returns")[self._index]

    @property
    def terminated(self) -> bool:
        """Whether the environment said that the agent has terminated."""
        return bool(self._flagged[0])

    @property
    def truncated(self) -> bool:
        """Whether the environment said that the agent was truncated."""
        return bool(self._flagged[1])

    @property
    def end_reason(self) -> str:
        """What the agent's flags say; without any, `interrupted` if the episode was, else `cut`."""
        if self.terminated:
            return "terminated"
        if self.truncated:
            return "truncated"
        return "interrupted" if self._whole.end_reason == "interrupted" else "cut"

    @cached_property
    def env_steps(self) -> np.ndarray:
        """int64, shape (T+1,): how many steps the environment had made at each observation; read-only."""
        field = self._rows.snapshot.schema.steps.field(ENV_STEP)
        found = self._block.table([field], 0, self.length + 1).column(0).to_numpy()
        found.flags.writeable = False
        return found

    @property
    def agent_schema(self) -> StepSchema:
        """The agent's spaces and columns, as those of a single-agent store."""
        schema = self._rows.snapshot.schema
        return schema.parts[self._group_index]

    @property
    def _own_schema(self) -> StepSchema:
        return self.agent_schema

    @property
    def _moments(self) -> np.ndarray:
        return self.env_steps

    def replay(self, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
        """Refused: what comes to one agent depends on what the others do.

        Raises:
            InvalidArgumentError: always; `MultiAgentEpisode.replay` replays all of them.
        """
        raise InvalidArgumentError(
            f"{self.agent_id!r} cannot be replayed alone. Replay the whole episode: "
            f"store[{self.id!r}].replay(env)."
        )

    def __repr__(self) -> str:
        """Id, agent, length, return and end reason in one line."""
        return (
            f"AgentEpisode({self.id!r}, {self.agent_id!r}, length={self.length}, "
            f"episode_return={self.episode_return}, end_reason={self.end_reason!r})"
        )


class MultiAgentEpisode(Episode):
    """An episode of several agents; `agent(name)` gives each as an episode of its own.

    `length` is the number of steps that the environment made, `episode_return` the sum over the agents. What
    an `Episode` gives by step (`observations`, `actions`, `rewards`, flags, `infos`, `policy`, `extra`,
    `step_annotations`) is here a mapping from each agent to what `agent(name)` gives.

    Attributes:
        length: number of steps of the environment.
    """

    def __init__(self, rows: EpisodeRowReader, position: int, block: Block, start: int, count: int) -> None:
        super().__init__(rows, position, block, start, 0)
        self._count = count
        self.length = self._value("length")

    @property
    def _row_count(self) -> int:
        return self._count

    @cached_property
    def _lanes(self) -> Lanes:
        table, index = self._rows.find(self.position)
        return lanes_of(table.slice(index, 1), self._rows.snapshot.schema)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents, in the order in which they appeared."""
        return tuple(self._members)

    def agent(self, agent_id: str) -> AgentEpisode:
        """One agent as an episode of its own.

        Raises:
            InvalidArgumentError: the episode has no such agent.
        """
        if agent_id not in self._members:
            raise InvalidArgumentError(
                f"The episode {self.id!r} has no agent {agent_id!r}; its agents are {', '.join(self.agents)}."
            )
        return self._members[agent_id]

    @cached_property
    def _members(self) -> dict[str, AgentEpisode]:
        lanes, parts = self._lanes, self._rows.snapshot.schema.parts
        found = {}
        for index, name in enumerate(lanes.agent.to_pylist()):
            start, count = self._start + int(lanes.offset[index]), int(lanes.length[index]) + 1
            block = LaneBlock(self._block, start, count, parts[lanes.group[index]])
            found[name] = AgentEpisode(self, index, lanes, block)
        return found

    def _each(self, get: Callable[[AgentEpisode], Any]) -> dict[str, Any]:
        return {name: get(member) for name, member in self._members.items()}

    @property
    def agent_lengths(self) -> dict[str, int]:
        """Number of transitions of each agent."""
        return self._each(lambda agent: agent.length)

    @property
    def agent_returns(self) -> dict[str, float | list[float]]:
        """Sum of the rewards of each agent."""
        return self._each(lambda agent: agent.episode_return)

    @cached_property
    def observations(self) -> Any:
        """By agent, its T+1 observations; see `Episode.observations`."""
        return self._each(lambda agent: agent.observations)

    @cached_property
    def actions(self) -> Any:
        """By agent, its T actions."""
        return self._each(lambda agent: agent.actions)

    @cached_property
    def rewards(self) -> Any:
        """By agent, its T rewards."""
        return self._each(lambda agent: agent.rewards)

    @cached_property
    def terminations(self) -> Any:
        """By agent, its T flags `terminated`."""
        return self._each(lambda agent: agent.terminations)

    @cached_property
    def truncations(self) -> Any:
        """By agent, its T flags `truncated`."""
        return self._each(lambda agent: agent.truncations)

    @cached_property
    def infos(self) -> Any:
        """By agent, its T+1 infos."""
        return self._each(lambda agent: agent.infos)

    @cached_property
    def policy(self) -> Any:
        """By agent, what the policy said."""
        return self._each(lambda agent: agent.policy)

    @cached_property
    def extra(self) -> Any:
        """By agent, the user's own columns."""
        return self._each(lambda agent: agent.extra)

    @cached_property
    def step_annotations(self) -> Any:
        """By agent, the columns that its steps got later."""
        return self._each(lambda agent: agent.step_annotations)

    @cached_property
    def states(self) -> Any:
        """What the environment's `state()` was before its first step and after each, if that was recorded.

        Stacked where the values are arrays of one shape, else a list; None if it was not recorded.
        """
        fields = [field for field in self._columns if EXTRA.owns(field)]
        if not fields:
            return None
        schema = self._rows.snapshot.schema
        steps = self._block.table([schema.steps.field(ENV_STEP)], self._start, self._count).column(0)
        extras = merge_rows(EXTRA, self._block.table(fields, self._start, self._count))
        found = {
            step: row["state"] for step, row in zip(steps.to_pylist(), extras, strict=True) if "state" in row
        }
        return stack([found[step] for step in sorted(found)]) if found else None

    def replay(self, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
        """Reset an environment of PettingZoo as the episode was, and let all agents act as they did.

        Args:
            env: an environment of the same kind and API. It cannot be made again from the store, since such
                environments keep no spec.
            rtol, atol: as for `Episode.replay`.

        Returns:
            The first step of the environment at which an observation, a reward or a flag of an agent
            differs, or which agents are there, or whose turn it is.

        Raises:
            InvalidArgumentError: `env` is no environment of that API.
            SpaceMismatchError: an agent's spaces are not those of the store.
            EnvUnavailableError: there is no `env`.
        """
        if env is None:
            return super().replay(env, rtol=rtol, atol=atol)
        kept = run_envs(self._rows.snapshot).get(self.run_id)
        return replay_team(self, env, api_of(kept.spec if kept else None), rtol, atol)

    def __repr__(self) -> str:
        """Id, length, return, end reason and agents in one line."""
        return (
            f"MultiAgentEpisode({self.id!r}, length={self.length}, episode_return={self.episode_return}, "
            f"end_reason={self.end_reason!r}, agents={list(self.agents)})"
        )
