"""Multi-agent episodes: `MultiAgentEpisode`, and `AgentEpisode`, one agent of it with the API of an episode.

An agent's rows look like those of a single-agent episode, so an `AgentEpisode` reads them as one; the
`MultiAgentEpisode` gathers what its agents give into mappings by agent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any, Self

import numpy as np

from ..store.agents import Lanes, lanes_of
from ..store.dynamic.column_groups import EXTRA
from ..store.errors import InvalidArgumentError
from ..store.schema import ENV_STEP, StepSchema
from .blocks import Block, BlockPart, BlockReader
from .context import EpisodeRowReader
from .episode import Episode
from .episode_data import stack
from .replaying.replay import ReplayReport
from .replaying.team_replay import replay_team


def make_episode(rows: EpisodeRowReader, position: int, block: Block, start: int, count: int) -> Episode:
    """Return the episode at a position, whose `count` rows begin at row `start` of a block."""
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

    def __init__(self, whole: MultiAgentEpisode, index: int, lanes: Lanes, block: BlockPart) -> None:
        super().__init__(whole._rows, whole.position, block, 0, int(lanes.length[index]))
        self._whole = whole
        self._index = index
        self._flagged = lanes.flags[index]
        self.agent_id: str = lanes.agent[index].as_py()
        self._group_index = int(lanes.group[index])
        self.group = whole._rows.snapshot.schema.groups[lanes.group[index]].name

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the whole episode, and which agent this is."""
        return self._whole.agent, (self.agent_id,)

    @property
    def episode_return(self) -> float | list[float]:
        """Sum of the agent's rewards in order of time; a list for vector rewards."""
        return self._value("agent_returns")[self._index]

    @property
    def terminated(self) -> bool:
        """True if the environment reported that the agent terminated."""
        return bool(self._flagged[0])

    @property
    def truncated(self) -> bool:
        """True if the environment reported that the agent was truncated."""
        return bool(self._flagged[1])

    @property
    def end_reason(self) -> str:
        """The reason that its flags imply; without any, `interrupted` if the episode was, else `cut`."""
        if self.terminated:
            return "terminated"
        if self.truncated:
            return "truncated"
        return "interrupted" if self._whole.end_reason == "interrupted" else "cut"

    @cached_property
    def env_steps(self) -> np.ndarray:
        """int64, shape (T+1,): the step of the environment at each observation; read-only."""
        field = self._rows.snapshot.schema.steps.field(ENV_STEP)
        steps = self._block.table([field], 0, self.length + 1).column(0).to_numpy()
        steps.flags.writeable = False
        return steps

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
        """Raise an error: the values that come to one agent depend on the actions of the others.

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


def _by_agent(name: str, doc: str) -> Any:
    """Return a property of a multi-agent episode: an attribute of each agent, by agent."""
    by_agent = cached_property(lambda episode: episode._each(attrgetter(name)))
    by_agent.__doc__ = doc
    return by_agent


class MultiAgentEpisode(Episode):
    """An episode of several agents: `agents` names them, `agent(name)` gives each as an episode of its own.

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

    @classmethod
    def _restored(cls, rows: EpisodeRowReader, position: int) -> Self:
        blocks = BlockReader(rows.snapshot)
        return cls(rows, position, *blocks.single(position), blocks.place(position)[2])

    @property
    def _row_count(self) -> int:
        return self._count

    def agent(self, agent_id: str) -> AgentEpisode:
        """Return one agent as an episode of its own.

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
        schema = self._rows.snapshot.schema
        table, index = self._rows.find(self.position)
        lanes, members = lanes_of(table.slice(index, 1), schema.groups), {}
        for index, name in enumerate(lanes.agent.to_pylist()):
            start, count = self._start + int(lanes.offset[index]), int(lanes.length[index]) + 1
            block = BlockPart(self._block, slice(start, start + count))
            members[name] = AgentEpisode(self, index, lanes, block)
        return members

    def flattened(self, column: str = "observation") -> dict[str, Any]:
        """By agent, its observations or actions as vectors; see `Episode.flattened`."""
        return self._each(lambda agent: agent.flattened(column))

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

    observations = _by_agent("observations", "By agent, its T+1 observations; see `Episode.observations`.")
    actions = _by_agent("actions", "By agent, its T actions.")
    rewards = _by_agent("rewards", "By agent, its T rewards.")
    terminations = _by_agent("terminations", "By agent, its T flags `terminated`.")
    truncations = _by_agent("truncations", "By agent, its T flags `truncated`.")
    infos = _by_agent("infos", "By agent, its T+1 infos.")
    policy = _by_agent("policy", "By agent, the outputs of the policy.")
    extra = _by_agent("extra", "By agent, the user's own columns.")
    step_annotations = _by_agent("step_annotations", "By agent, the columns that its steps got later.")

    @cached_property
    def states(self) -> Any:
        """The environment's `state()` before its first step and after each, if it was recorded.

        Stacked where the values are arrays of one shape, else a list; None if it was not recorded.
        """
        extras = self._dynamic(EXTRA, 0, self._count)
        schema = self._rows.snapshot.schema
        steps = self._block.table([schema.steps.field(ENV_STEP)], self._start, self._count).column(0)
        states = {
            step: row["state"] for step, row in zip(steps.to_pylist(), extras, strict=True) if "state" in row
        }
        return stack([states[step] for step in sorted(states)]) if states else None

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
        return replay_team(self, env, rtol, atol)

    def __repr__(self) -> str:
        """Id, length, return, end reason and agents in one line."""
        return (
            f"MultiAgentEpisode({self.id!r}, length={self.length}, episode_return={self.episode_return}, "
            f"end_reason={self.end_reason!r}, agents={list(self.agents)})"
        )
