"""The environments of the recording benchmark and the loop that steps them, the same on both sides.

Imported by the main process and by peer processes, so it needs only numpy and gymnasium.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

from trajectories import spaces

EPISODE_LENGTH = 1000
HALFCHEETAH_INFO = ("x_position", "x_velocity", "reward_forward", "reward_ctrl")


class Synthetic(gym.Env):
    """An environment that does no work: 17 float64 observations, 6 float32 actions, an empty info.

    Every step hands out a row of a table, so whatever a recorder costs is plain to see. Episodes are cut by
    truncation after 1000 steps.
    """

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces("control")
        generator = np.random.default_rng(0)
        self._observations = list(generator.standard_normal((EPISODE_LENGTH + 1, 17)))
        self._rewards = generator.standard_normal(EPISODE_LENGTH + 1).tolist()
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Start again at the first row of the table."""
        super().reset(seed=seed)
        self._t = 0
        return self._observations[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Hand out the next row of the table; the action changes nothing."""
        self._t = t = self._t + 1
        return self._observations[t], self._rewards[t], False, t == EPISODE_LENGTH, {}


class Replay(gym.Env):
    """One episode of another environment, replayed from memory: real values and infos at no cost."""

    def __init__(self, env: gym.Env) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        actions = make_actions(env)
        self._reset = env.reset(seed=0)
        self._results: list[tuple[Any, ...]] = []
        while not self._results or not (self._results[-1][2] or self._results[-1][3]):
            self._results.append(env.step(actions[len(self._results) % len(actions)]))
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Return what the environment returned for the first reset."""
        super().reset(seed=seed)
        self._t = 0
        return self._reset

    def step(self, action: Any) -> tuple[Any, ...]:
        """Return what the environment returned at this step; the action changes nothing."""
        result = self._results[self._t]
        self._t += 1
        return result


def make(name: str) -> gym.Env:
    """Make `synthetic`, `halfcheetah` or `halfcheetah-replayed`."""
    if name == "synthetic":
        return Synthetic()
    if name == "halfcheetah":
        return gym.make("HalfCheetah-v5")
    if name == "halfcheetah-replayed":
        return Replay(gym.make("HalfCheetah-v5"))
    raise ValueError(f"unknown environment: {name!r}")


def make_actions(env: gym.Env) -> list[Any]:
    """Sample the actions beforehand, outside the measured loop."""
    env.action_space.seed(0)
    return [env.action_space.sample() for _ in range(1024)]


def run_steps(env: gym.Env, actions: list[Any], steps: int) -> None:
    """Take `steps` steps, seeding every reset with the number of the episode."""
    episode = 0
    env.reset(seed=episode)
    for number in range(steps):
        _, _, terminated, truncated, _ = env.step(actions[number & 1023])
        if (terminated or truncated) and number + 1 < steps:
            episode += 1
            env.reset(seed=episode)


def seconds_stepping(env: gym.Env, actions: list[Any], steps: int) -> float:
    """Return the seconds that the loop needs to take `steps` steps."""
    start = time.perf_counter()
    run_steps(env, actions, steps)
    return time.perf_counter() - start
