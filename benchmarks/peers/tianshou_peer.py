"""Tianshou's side of the collecting benchmark: a process that does one job per line of JSON.

It runs in a virtual environment of its own; see `peer_process`. Tianshou's collectors take vector
environments of their own kind, which reset single members, so the native environment is dressed as one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv

from cartpoles import balance, make_native

PACKAGES = ("tianshou", "torch", "numpy", "gymnasium")


class Balancing(Policy):
    """The policy of the benchmark."""

    def __init__(self, action_space: gym.Space) -> None:
        super().__init__(action_space=action_space)

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        """Choose an action for each observation."""
        return Batch(act=balance(batch.obs))


class Native:
    """The natively vectorised CartPole with the methods that a collector of Tianshou calls."""

    is_async = False

    def __init__(self, count: int) -> None:
        self._envs = make_native(count)
        self.env_num = count
        self.action_space = [self._envs.single_action_space] * count
        self._empty = np.array([{} for _ in range(count)], object)

    def __len__(self) -> int:
        return self.env_num

    def reset(self, env_id: Any = None, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        """Reset all, or those with these indices."""
        if env_id is None or self._envs.state is None:
            observations, _ = self._envs.reset(**arguments)
            return observations, self._empty
        envs = self._envs
        size = (4, len(env_id))
        envs.state[:, env_id] = envs.np_random.uniform(low=envs.low, high=envs.high, size=size)
        envs.steps[env_id] = 0
        envs.prev_done[env_id] = False
        return envs.state.T[env_id].astype(np.float32), self._empty[env_id]

    def step(self, action: np.ndarray, env_id: Any = None) -> tuple[Any, ...]:
        """Step all of them."""
        *outcome, _ = self._envs.step(np.asarray(action, np.int64))
        return *outcome, self._empty


def versions() -> dict:
    """Say which versions are installed."""
    return {name: version(name) for name in PACKAGES}


def bare(kind: str, count: int, steps: int) -> dict:
    """Run the same policy in the same environments, resets included, with nothing collected."""
    envs = _make(kind, count)
    observations, _ = envs.reset()
    start = time.perf_counter()
    for _ in range(steps // count):
        observations, _, terminated, truncated, _ = envs.step(balance(observations))
        done = np.flatnonzero(terminated | truncated)
        if len(done):
            observations = observations.copy()
            observations[done], _ = envs.reset(done)
    return {"seconds": time.perf_counter() - start}


def collect(kind: str, count: int, steps: int) -> dict:
    """Collect so many steps into a replay buffer that holds them all."""
    envs: Any = _make(kind, count)
    policy = Balancing(gym.spaces.Discrete(2))
    collector = Collector(policy, envs, VectorReplayBuffer(steps, count))
    collector.reset()
    start = time.perf_counter()
    found = collector.collect(n_step=steps)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "steps": int(found.n_collected_steps)}


def _make(kind: str, count: int) -> Any:
    if kind == "native":
        return Native(count)
    return DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(count)])


COMMANDS: dict[str, Callable[..., dict]] = {"versions": versions, "bare": bare, "collect": collect}


def main() -> None:
    """Answer commands until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        command = json.loads(line)
        job = COMMANDS[command.pop("do")]
        print(json.dumps(job(**command)), file=answers)


if __name__ == "__main__":
    main()
