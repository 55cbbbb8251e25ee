"""The learners' training data: CartPole, played by policies from harmful to fair.

All policies push in the direction of a weighted sum of the observation, and sometimes at random.
`mean_return` is the baseline for the learners: the mean return of the recorded episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import episodelake as el

ENVIRONMENT = "CartPole-v1"
ENVIRONMENTS_AT_ONCE = 10


@dataclass
class Behaviour:
    """Linear policy with random actions: pushes right where the weighted sum of the observation is positive.

    Attributes:
        weights: of position, velocity, angle and angular velocity.
        randomness: the share of actions that are drawn, from 0 to 1.
    """

    weights: tuple[float, float, float, float]
    randomness: float

    def seed(self, number: int) -> None:
        """Seed the generator; called by `el.collect`."""
        self._generator = np.random.default_rng(number)

    def __call__(self, observation: np.ndarray, info: Mapping[str, Any], state: Any) -> np.ndarray:
        """Actions, int64 (n,), for observations (n, 4)."""
        action = (observation @ np.array(self.weights) > 0).astype(np.int64)
        drawn = self._generator.random(len(action)) < self.randomness
        return np.where(drawn, self._generator.integers(0, 2, len(action)), action)


BEHAVIOURS = {
    "random": Behaviour((0, 0, 0, 0), 1.0),
    "contrary": Behaviour((0, 0, -1, -1), 0.6),
    "leaning": Behaviour((0, 0, 1, 0), 0.2),
    "steadying": Behaviour((0, 0, 1, 1), 0.5),
}


def record(folder: str | Path, episodes: int = 50, seed: int = 0) -> el.EpisodeStore:
    """Make a store and record `episodes` episodes of each behaviour into it, a run for each.

    The same seed gives the same episodes.
    """
    envs = gymnasium.make_vec(ENVIRONMENT, num_envs=ENVIRONMENTS_AT_ONCE, vectorization_mode="sync")
    store = el.create(folder, envs)
    for number, (name, behaviour) in enumerate(BEHAVIOURS.items()):
        # Unbiased: the first episodes to end would be the short ones.
        el.collect(
            envs, behaviour, store, episodes=episodes, seed=seed + 1000 * number, run=name, quotas=True
        )
    envs.close()
    return store.refresh()


def mean_return(episodes: el.EpisodeView) -> float:
    """The mean return of some episodes."""
    return float(episodes.episodes.select("episode_return").collect()["episode_return"].to_numpy().mean())
