"""Replaying a recorded episode in an environment, and finding the first step that differs.

A `Game` plays an episode; `team_replay` has those of several agents. Videos render the steps of a game.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from ...store.common.arguments import expect, real_number
from ...store.errors import SpaceMismatchError
from ...store.schema import StepSchema
from ...store.spaces import same_space
from ...store.spaces.codec import single_value
from ..episode_data import EpisodeData
from .comparison import Difference, GameComparison, Outcome
from .environment import remake_env
from .run_envs import RunEnv

#: Steps that are played before they are compared.
BATCH = 256


@dataclass(frozen=True)
class ReplayReport:
    """Result of a replay.

    Attributes:
        episode_id: the episode.
        seed: of its reset; None if it has none, so that its start cannot be repeated.
        transitions: of the recorded episode; of several agents, steps of the environment.
        compared: transitions that were played and found the same. Fewer than there are, and no difference,
            only where a crash lost turns that agents were waiting on.
        differences: all values that differ at the first step at which any does; empty if all are the same.
    """

    episode_id: str
    seed: int | None
    transitions: int
    compared: int
    differences: tuple[Difference, ...] = ()

    @classmethod
    def of(cls, episode: EpisodeData, compared: int, differences: Sequence[Difference] = ()) -> ReplayReport:
        """Return the report on an episode."""
        return cls(episode.id, episode.seed, episode.length, max(0, compared), tuple(differences))

    @property
    def same(self) -> bool:
        """True if all values came out as recorded."""
        return not self.differences

    @property
    def first_difference(self) -> Difference | None:
        """The first value that differs, or None."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        """Return the number of compared transitions, the differences, and a note on a missing seed."""
        if self.same:
            lines = [f"{self.episode_id}: {self.compared} transitions replayed, all the same."]
            if self.compared < self.transitions:
                lines.append(f"  {self.transitions - self.compared} more were not recorded in full.")
        else:
            lines = [f"{self.episode_id}: differs after {self.compared} of {self.transitions} transitions."]
            lines += [f"  {difference}" for difference in self.differences]
        if self.seed is None:
            lines.append("  The episode has no seed, so the environment may have started elsewhere.")
        return "\n".join(lines)


def replay(episode: EpisodeData, env: Any = None, rtol: float = 0.0, atol: float = 0.0) -> ReplayReport:
    """Reset an environment as the episode was, take its actions, and compare.

    Args:
        episode: of one agent.
        env: left where the episode ended, or up to 256 steps after the first difference; None to make that
            of the run again, and to close it.
        rtol, atol: how far numbers may be apart, as for `numpy.isclose`; with 0 for both they are compared
            exactly. NaN equals NaN.

    Raises:
        InvalidArgumentError: `env` is no single environment, or a tolerance is negative.
        SpaceMismatchError: the environment's spaces are not those of the store.
        EnvUnavailableError, UntrustedEnvError: without `env`, it cannot be made again.
    """
    if env is None:
        snapshot = episode._rows.snapshot
        with contextlib.closing(
            remake_env(snapshot, RunEnv.chosen(RunEnv.of_runs(snapshot), episode.run_id), stacklevel=3)
        ) as made:
            return replay(episode, made, rtol, atol)
    return SoloGame(episode, env, rtol, atol).finish()


def check_spaces(env: gymnasium.Env, schema: StepSchema) -> None:
    """Refuse an environment of other spaces.

    Raises:
        SpaceMismatchError: they are not those of the store.
    """
    pairs = {
        "observation": (env.observation_space, schema.observation_space),
        "action": (env.action_space, schema.action_space),
    }
    for name, (given, expected) in pairs.items():
        if not same_space(given, expected):
            raise SpaceMismatchError(
                f"The environment's {name} space is {given}; the episode's is {expected}. Replay it in an "
                "environment of the same kind, with the same wrappers."
            )


class Game(ABC):
    """An episode that is played again in an environment step by step, and compared as it goes.

    Args:
        episode: the episode.
        env: what it is played in.
        members: by name, the agents to compare; `None` names the episode of a single one.
        rtol, atol: as for `replay`.

    Attributes:
        made: steps that the environment has made.
    """

    def __init__(
        self, episode: EpisodeData, env: Any, members: Mapping[Any, EpisodeData], rtol: float, atol: float
    ) -> None:
        real_number("rtol", rtol)
        real_number("atol", atol)
        self.made = 0
        self._episode = episode
        self._env = env
        self._comparison = GameComparison(members, rtol, atol)

    def play(self) -> Iterator[int]:
        """Yield `made`: 0 after the reset, then after each step, until either side ends."""
        for _ in self._moves():
            if self.made % BATCH == 0:
                self._comparison.differences()
            yield self.made

    @abstractmethod
    def _moves(self) -> Iterator[None]:
        """Play, with a pause after the reset and after each step."""

    def report(self) -> ReplayReport:
        """Return the outcome so far."""
        differences = self._comparison.differences()
        same = differences[0].step - 1 if differences else self.made
        return ReplayReport.of(self._episode, same, differences)

    def finish(self) -> ReplayReport:
        """Play to the end, or up to `BATCH` steps after the first difference."""
        for made in self.play():
            if made % BATCH == 0 and self._comparison.differences():
                break
        return self.report()


class SoloGame(Game):
    """An episode of one agent; arguments and errors as for `replay`, but with an environment."""

    def __init__(self, episode: EpisodeData, env: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
        single = isinstance(env, gymnasium.Env) and not isinstance(env, VectorEnv)
        expect(single, "env", env, "one gymnasium.Env")
        check_spaces(env, episode.schema)
        super().__init__(episode, env, {None: episode}, rtol, atol)

    def _moves(self) -> Iterator[None]:
        """See `Game._moves`."""
        episode = self._episode
        observation, _ = self._env.reset(seed=episode.seed, options=episode.options)
        self._comparison.add(None, 0, Outcome(observation))
        yield
        for t in range(episode.length):
            # An environment may write into the action it is given.
            action = copy.deepcopy(single_value(episode.actions, t))
            observation, reward, terminated, truncated, info = self._env.step(action)
            flags = (bool(terminated), bool(truncated))
            if any(flags) and "final_obs" in info:
                observation = info["final_obs"]
            self.made += 1
            self._comparison.add(None, self.made, Outcome(observation, reward, flags))
            yield
            if any(flags):
                return
