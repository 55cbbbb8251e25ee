"""Evaluation of policies in the environment."""

from __future__ import annotations

from typing import Protocol

import gymnasium
import numpy as np
import torch

from .recording import ENVIRONMENT

#: Far from the seeds of the recorded episodes, so that evaluation uses new ones.
FIRST_SEED = 1_000_000


class Policy(Protocol):
    """Plays several episodes at once."""

    def begin(self, episodes: int) -> None:
        """Forget what was played: so many episodes begin."""
        ...

    def act(self, observation: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        """Actions, int64 (n,).

        Args:
            observation: float32, (n, d).
            reward: float32, (n,), for the action before; 0 at the beginning.
        """
        ...


@torch.no_grad()
def play(policy: Policy, episodes: int = 20, first_seed: int = FIRST_SEED) -> np.ndarray:
    """The returns of whole episodes, float64 (episodes,), of environments with seeds from `first_seed` on."""
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(ENVIRONMENT)] * episodes)
    observation, _ = envs.reset(seed=list(range(first_seed, first_seed + episodes)))
    policy.begin(episodes)
    returns, reward = np.zeros(episodes), np.zeros(episodes)
    running = np.ones(episodes, bool)
    while running.any():
        action = policy.act(torch.as_tensor(observation), torch.as_tensor(reward, dtype=torch.float32))
        observation, reward, terminated, truncated, _ = envs.step(action.numpy())
        returns += reward * running
        # Environments whose episode has ended continue, but do not count.
        running &= ~(terminated | truncated)
    envs.close()
    return returns
