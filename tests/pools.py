"""A pool of small environments, and what one of them does alone."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from nasty_environments import SmallEnv


class Pool:
    """A pool of our own: environments that become ready in an order that a seed decides.

    An environment that is done is reset by its next action, which is dropped, as EnvPool does it.
    """

    def __init__(self, envs: list[gym.Env], batch_size: int, seed: int = 0) -> None:
        self.envs, self.batch_size = envs, batch_size
        self.num_envs = len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.rng = np.random.default_rng(seed)
        self.ready: list[tuple[int, tuple[Any, ...]]] = []
        self.elapsed = [0] * len(envs)
        self.done = [True] * len(envs)
        self.closed = 0

    def async_reset(self) -> None:
        """Reset all, seeded by their index."""
        self.ready = []
        for index in range(self.num_envs):
            self._reset(index, seed=10 + index)

    def _reset(self, index: int, **arguments: Any) -> None:
        observation, _ = self.envs[index].reset(**arguments)
        self.elapsed[index], self.done[index] = 0, False
        self.ready.append((index, (copy.deepcopy(observation), 0.0, False, False, 0)))

    def send(self, action: Any, env_id: Any = None) -> None:
        """Step each of the environments, or reset it if it is done."""
        ids = np.arange(self.num_envs) if env_id is None else np.asarray(env_id)
        singles = iterate_actions(self.action_space, action, len(ids))
        for index, own in zip(ids.tolist(), singles, strict=True):
            if self.done[index]:
                self._reset(index)
                continue
            env: Any = self.envs[index]
            result = (*copy.deepcopy(env.step(own))[:4], env.t)
            self.elapsed[index] += 1
            self.done[index] = bool(result[2] or result[3])
            self.ready.append((index, result))

    def recv(self) -> tuple[Any, ...]:
        """Return some that are ready."""
        order = self.rng.permutation(len(self.ready))[: self.batch_size].tolist()
        chosen = [self.ready[place] for place in order]
        self.ready = [each for place, each in enumerate(self.ready) if place not in order]
        ids = np.array([index for index, _ in chosen], np.int32)
        space, results = self.observation_space, [result for _, result in chosen]
        batch = create_empty_array(space, len(chosen), fn=np.zeros)
        observations = concatenate(space, [result[0] for result in results], batch)
        infos = {
            "env_id": ids,
            "elapsed_step": np.array([self.elapsed[index] for index in ids], np.int32),
            "t": np.array([result[4] for result in results]),
        }
        rewards = np.array([result[1] for result in results], np.float32)
        return observations, rewards, *(np.array([r[k] for r in results], bool) for k in (2, 3)), infos

    def step(self, action: Any, env_id: Any = None) -> tuple[Any, ...]:
        """Send and receive."""
        self.send(action, env_id)
        return self.recv()

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def iterate_actions(space: gym.Space, actions: Any, count: int) -> list[Any]:
    """Return single actions of a batch."""
    if isinstance(space, spaces.Box):
        return list(actions)
    return list(iterate(gym.vector.utils.batch_space(space, count), actions))


def play(pool: Any, batches: int, taken: dict[int, list[Any]], seed: int = 0) -> None:
    """Play a pool for some batches, and note the actions of each environment in the order it got them."""
    pool.action_space.seed(seed)
    for _ in range(batches):
        ids = pool.recv()[-1]["env_id"].copy()
        singles = [pool.action_space.sample() for _ in ids]
        for index, action in zip(ids.tolist(), singles, strict=True):
            taken.setdefault(index, []).append(copy.deepcopy(action))
        batch = create_empty_array(pool.action_space, len(ids), fn=np.zeros)
        pool.send(concatenate(pool.action_space, singles, batch), ids)


def small(lengths: tuple[int, ...], batch_size: int) -> Pool:
    """Return a pool of small environments."""
    return Pool([SmallEnv(length) for length in lengths], batch_size)
