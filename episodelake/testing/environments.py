"""A scripted environment that keeps what it showed, and the comparison of that with a stored episode."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from .infos import same_info
from .values import extreme_value, overwrite, own, same, stack


@dataclass
class PlayedEpisode:
    """One episode as a plain loop sees it: T+1 observations and infos, and T of all others."""

    observations: list[Any]
    infos: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)
    seed: int | None = None
    options: Any = None

    @property
    def done(self) -> bool:
        """Whether the environment has ended it."""
        return bool(self.actions) and (self.terminations[-1] or self.truncations[-1])

    @property
    def end_reason(self) -> str:
        """The reason that its flags imply."""
        if not self.done:
            return "cut"
        return "terminated" if self.terminations[-1] else "truncated"

    def cut(self, length: int) -> PlayedEpisode:
        """Return its first `length` transitions."""
        steps = {name: getattr(self, name)[:length] for name in _STEPS}
        rows = {name: getattr(self, name)[: length + 1] for name in ("observations", "infos")}
        return PlayedEpisode(**rows, **steps, seed=self.seed, options=self.options)


_STEPS = ("actions", "rewards", "terminations", "truncations")


def script(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    infos: Sequence[Mapping[Any, Any]] = ({},),
    rewards: Sequence[Any] = (1.0, -0.0, 0.1, -2.5),
) -> list[PlayedEpisode]:
    """Return one episode of each length with extreme values of the spaces; ends take turns.

    Args:
        lengths: transitions of each episode.
        infos, rewards: are taken in turn.
    """
    random, episodes = np.random.default_rng(seed), []
    for space in (observation_space, action_space):
        space.seed(seed)
    each_info, each_reward = itertools.cycle(infos), itertools.cycle(rewards)
    for number, length in enumerate(lengths):
        flags = [False] * (length - 1)
        ending = number % 3
        episodes.append(
            PlayedEpisode(
                [extreme_value(observation_space, random) for _ in range(length + 1)],
                [dict(next(each_info)) for _ in range(length + 1)],
                [extreme_value(action_space, random) for _ in range(length)],
                [next(each_reward) for _ in range(length)],
                [*flags, ending != 1],
                [*flags, ending != 0],
            )
        )
    return episodes


class ScriptedEnv(gymnasium.Env):
    """An environment that plays given episodes in turn and keeps what a plain loop around it sees.

    `history` has a `PlayedEpisode` for each reset: what the environment gave, and the actions that it got.
    All that it gives are copies.

    Args:
        episodes: the script.
        reuses: overwrite, with every call, all that the call before gave and the action that it got.

    Attributes:
        raw: whether batches must hand its values over as they are, whatever dtypes its spaces have.
    """

    raw = False

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        episodes: Sequence[PlayedEpisode],
        *,
        reuses: bool = False,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.episodes, self.reuses = list(episodes), reuses
        self.history: list[PlayedEpisode] = []
        self.calls = self.closed = 0
        self._given: list[Any] = []

    @property
    def script(self) -> PlayedEpisode:
        """The episode that is played now."""
        return self.episodes[(len(self.history) - 1) % len(self.episodes)]

    @property
    def t(self) -> int:
        """The time step."""
        return len(self.history[-1].actions) if self.history else 0

    @property
    def waiting(self) -> bool:
        """Whether the next call must be a reset."""
        return not self.history or self.history[-1].done

    def action(self) -> Any:
        """Return the next action of the script; after the end of an episode the last one again."""
        return own(self.script.actions[min(self.t, len(self.script.actions) - 1)])

    def ended(self) -> int:
        """Return how many episodes have ended."""
        return sum(rollout.done for rollout in self.history)

    def recorded(self) -> list[PlayedEpisode]:
        """Return the episodes of at least one step."""
        return [rollout for rollout in self.history if rollout.actions]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin the next episode of the script."""
        super().reset(seed=seed)
        self.history.append(PlayedEpisode([], [], seed=seed, options=own(options)))
        if options is not None:
            options.clear()
        return self._give(0)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        """Show the next row of the script."""
        rollout, script, t = self.history[-1], self.script, self.t
        assert not rollout.done, "a step after the end of an episode"
        self.calls += 1
        rollout.actions.append(own(action))
        reward, flags = own(script.rewards[t]), (script.terminations[t], script.truncations[t])
        rollout.rewards.append(script.rewards[t])
        rollout.terminations.append(flags[0])
        rollout.truncations.append(flags[1])
        observation, info = self._give(t + 1)
        if self.reuses:
            overwrite(action)
        return observation, reward, *flags, info

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1

    def _give(self, row: int) -> tuple[Any, Any]:
        rollout, script = self.history[-1], self.script
        rollout.observations.append(script.observations[row])
        rollout.infos.append(script.infos[row])
        if self.reuses:
            for each in self._given:
                overwrite(each)
        self._given = [own(script.observations[row]), own(script.infos[row])]
        return self._given[0], self._given[1]


def plain_loop(env: ScriptedEnv, transitions: int, seed: int | None = None) -> list[PlayedEpisode]:
    """Play an environment by a plain loop for so many steps; return copies of all that it saw."""
    episodes: list[PlayedEpisode] = []
    while transitions > 0:
        observation, info = env.reset(seed=None if episodes else seed)
        episodes.append(PlayedEpisode([own(observation)], [own(info)], seed=None if episodes else seed))
        while transitions > 0 and not episodes[-1].done:
            action = env.action()
            episodes[-1].actions.append(own(action))
            observation, reward, terminated, truncated, info = env.step(action)
            episodes[-1].observations.append(own(observation))
            episodes[-1].rewards.append(own(reward))
            episodes[-1].terminations.append(bool(terminated))
            episodes[-1].truncations.append(bool(truncated))
            episodes[-1].infos.append(own(info))
            transitions -= 1
    return episodes


def assert_recorded(episode: Any, plain: PlayedEpisode, env: gymnasium.Env) -> None:
    """Fail unless a stored episode is exactly what a plain loop saw.

    Args:
        episode: an `Episode`, or an agent of a multi-agent one.
        plain: the truth.
        env: gives the spaces.
    """
    check_episode(episode, plain, env, plain.infos)


def check_episode(episode: Any, plain: PlayedEpisode, env: gymnasium.Env, infos: Sequence[Any]) -> None:
    """Fail unless an episode is exactly what a plain loop saw."""
    assert len(episode) == episode.length == len(plain.actions)
    assert same(episode.observations, stack(env.observation_space, plain.observations))
    assert same(episode.actions, stack(env.action_space, plain.actions))
    check_outcomes(episode, plain)
    assert_infos(episode.infos, infos)


def check_outcomes(episode: Any, plain: PlayedEpisode) -> None:
    """Fail unless rewards, flags and what follows from them are those of a plain loop."""
    rewards = np.array([np.asarray(reward, np.float64).reshape(-1) for reward in plain.rewards])
    assert same(episode.rewards, rewards if episode.rewards.ndim > 1 else rewards[:, 0])
    with np.errstate(all="ignore"):
        total = sum(rewards)
    assert np.array_equal(np.atleast_1d(episode.episode_return), total, equal_nan=True)
    assert same(episode.terminations, np.array(plain.terminations, bool))
    assert same(episode.truncations, np.array(plain.truncations, bool))
    assert (episode.terminated, episode.truncated) == (plain.terminations[-1], plain.truncations[-1])
    assert episode.end_reason == plain.end_reason


def assert_infos(stored: Sequence[Any], plain: Sequence[Any]) -> None:
    """Fail unless each info came back as it must."""
    assert len(stored) == len(plain)
    for t, (stored_info, true) in enumerate(zip(stored, plain, strict=True)):
        assert same_info(stored_info, true), f"info {t}: {stored_info!r} instead of {true!r}"
