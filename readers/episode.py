"""`Episode`: one rollout, and everything that can be done with it; `MultiAgentEpisode` and `AgentEpisode`.

Charts, pictures, replays and cards are made from the values of the base, `EpisodeData`, so none of them needs
this module. An agent's rows look like those of a single-agent episode, so an `AgentEpisode` reads them as
one; the `MultiAgentEpisode` gathers what its agents give into mappings by agent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..store.agents import Lanes, lanes_of
from ..store.common.arguments import known_name, missing_attribute, suggest
from ..store.common.optional_packages import require
from ..store.dynamic.column_groups import EXTRA
from ..store.errors import InvalidArgumentError
from ..store.schema import ENV_STEP, StepSchema
from ..store.spaces.arrow import values_of
from .blocks import Block, BlockPart, BlockReader
from .context import EpisodeRowReader
from .episode_data import EpisodeData, stack

if TYPE_CHECKING:
    from .charts.chart import AnyChart
    from .charts.signals import Signal
    from .pictures.images import Steps
    from .pictures.video import EpisodeVideo
    from .replaying.replay import ReplayReport


class Episode(EpisodeData):
    """One episode of a snapshot: T transitions, T+1 observations.

    It can be pickled while the files of its version are there.

    Attributes:
        position: its position in the snapshot.
        length: number of transitions T.
    """

    # Type checkers find names that are not there by themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that has the names most like an unknown one."""
            raise missing_attribute(self, name, "episode")

        # Else it could be iterated over, item by item.
        __iter__ = None

    def __getitem__(self, name: str) -> Any:
        """Return an attribute by its name, as of a dict of arrays: `episode["observations"]`.

        Raises:
            InvalidArgumentError: it has no such attribute, or only a method.
        """
        public = isinstance(name, str) and not name.startswith("_")
        there = public and (name in vars(self) or hasattr(type(self), name))
        if there and not callable(getattr(type(self), name, None)):
            return getattr(self, name)
        text = f"An episode has no item {name!r:.100}."
        if there:
            raise InvalidArgumentError(f"{text} Call episode.{name}().")
        if not public:
            raise InvalidArgumentError(f"{text} Take rows of episode.frame(), or of episode.observations.")
        names = [each for each in dir(type(self)) if not each.startswith("_")]
        raise InvalidArgumentError(text + suggest(name, names, "episode"))

    def agent(self, agent_id: str) -> Episode:
        """Return one agent of a multi-agent episode, as an episode of its own.

        Raises:
            InvalidArgumentError: the episode has no such agent.
        """
        raise InvalidArgumentError(f"{self.id!r} has a single agent, and no {agent_id!r}.")

    def plot(self, signals: Sequence[str] | None = None) -> AnyChart:
        """Return the episode over its steps: reward, actions, and the numbers of the observation.

        Args:
            signals: what to draw instead: "reward", "action", "observation", "info", "policy", columns such
                as "observation.place", or some numbers of one, as "observation[2]" or "observation[8:12]".

        Returns:
            A chart of Altair with a panel for each element (for each column where that would be more than
            twelve; a heat map for a column of 9 to 512 numbers); zooming in one zooms in all. Discrete
            actions of many steps are ticks. Beyond 2,000 steps it holds the smallest and the largest value of
            equal stretches, and its subtitle says so.

        Raises:
            NothingToDrawError: nothing of it is a few numbers at every step.
            InvalidArgumentError: there is no such signal.
            MissingPackageError: Altair is not installed.
            CorruptStoreError: the steps are damaged.
        """
        require("altair", "A chart")
        from .charts.episode_chart import draw_episode

        return draw_episode(self, signals)

    def signals(self, columns: Sequence[str] | None = None) -> list[Signal]:
        """Return the parts of the episode that are a few numbers at every step, to draw with another library.

        Args:
            columns: those of `plot`; None for reward, actions and observation. A column that is no signal
                (images, texts, more than eight numbers that are not named) gives none.

        Returns:
            A signal for each number. Of several agents, those of each agent.

        Raises:
            CorruptStoreError: the steps are damaged; the message names the file.
        """
        from .charts.signals import ROOTS, signals_of

        return signals_of(self, ROOTS if columns is None else columns)

    def frames(
        self, steps: Steps = None, *, column: str | None = None, layout: str | None = None, env: Any = None
    ) -> np.ndarray:
        """Frames of the episode as one array.

        Args:
            steps: which: None for all T+1, a step t, a slice, or a sequence of steps; negative ones count
                from the end.
            column, layout, env: as for `video`.

        Returns:
            uint8, shape (n, H, W, 3), owned by the caller; of one step n is 1. Of recorded images only the
            row groups that hold the steps are read.

        Raises:
            as for `video`.
        """
        from .pictures.video import all_frames

        return all_frames(self.video(steps, column=column, layout=layout, env=env))

    def video(
        self,
        steps: Steps = None,
        *,
        column: str | None = None,
        layout: str | None = None,
        env: Any = None,
        fps: float | None = None,
    ) -> EpisodeVideo:
        """Return a video of the episode: of its recorded images, or else of a replay in its environment.

        It shows itself in a notebook; `.save("episode.mp4")` writes it, and `.gif` and `.png`. A replay takes
        the recorded actions in the environment, made again as by `EpisodeStore.make_env` without trust, and
        compares what comes with the record: `report` says where they differ, and a `RuntimeWarning` does.

        Args:
            steps: which steps: None for all, a slice such as `slice(0, 500, 2)`, or a sequence.
            column: the image to show where an observation has several, such as "observation.camera".
            layout: what the axes of the image are, such as "CHW", where its shape does not tell; of "KHW",
                stacked images, the last is shown.
            env: an environment with `render_mode="rgb_array"` to replay in, even where images were recorded.
                The caller keeps it and closes it.
            fps: frames per second; None for what the environment says (`metadata["render_fps"]`), or 30.

        Raises:
            NothingToDrawError: there are no images, and the environment cannot be made again; the message
                says why.
            EnvUnavailableError: the environment renders no images.
            InvalidArgumentError: no such column, layout or step; the episode has several agents and no `env`.
        """
        from .pictures.video import make_video

        return make_video(self, steps, column, layout, env, fps)

    def replay(self, env: Any = None, *, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
        """Reset an environment with the recorded seed and options, take the recorded actions, and compare.

        Args:
            env: an environment of the same kind (a `gymnasium.Env`); None to make that of the run again, as
                `EpisodeStore.make_env` does without trust, and to close it afterwards.
            rtol, atol: how far numbers may be apart, as for `numpy.isclose`; with 0 for both they are
                compared exactly. NaN equals NaN.

        Returns:
            The first step at which an observation, a reward, terminated or truncated differs, if any does.
            Infos are not compared, nor are frames that are stored as lossy video. An episode that was cut is
            played to where it was cut.

        Raises:
            InvalidArgumentError: `env` is no single environment.
            SpaceMismatchError: its spaces are not those of the store.
            EnvUnavailableError, UntrustedEnvError: without `env`, it cannot be made again.
        """
        from .replaying.replay import replay

        return replay(self, env, rtol, atol)

    def _repr_html_(self) -> str:
        """Return a card: what is known of the episode, its signals, and some frames of images."""
        from .charts.cards import episode_card

        return episode_card(self)

    def __repr__(self) -> str:
        """Id, length, return and end reason in one line."""
        return (
            f"Episode({self.id!r}, length={self.length}, episode_return={self.episode_return}, "
            f"end_reason={self.end_reason!r})"
        )


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
        """Pickle the episode, and which agent this is."""
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
        steps = values_of(self._block.table([field], 0, self.length + 1).column(0))
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
        return cls(rows, position, *blocks.single(position), blocks.snapshot.place(position)[2])

    @property
    def _row_count(self) -> int:
        return self._count

    def agent(self, agent_id: str) -> AgentEpisode:
        """Return one agent as an episode of its own.

        Raises:
            InvalidArgumentError: the episode has no such agent.
        """
        known_name(
            agent_id, self._members, f"The episode {self.id!r} has no agent {agent_id!r}.", "Its agents are"
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
        from .replaying.team_replay import replay_team

        return replay_team(self, env, rtol, atol)

    def __repr__(self) -> str:
        """Id, length, return, end reason and agents in one line."""
        return (
            f"MultiAgentEpisode({self.id!r}, length={self.length}, episode_return={self.episode_return}, "
            f"end_reason={self.end_reason!r}, agents={list(self.agents)})"
        )
