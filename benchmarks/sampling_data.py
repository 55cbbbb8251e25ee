"""The data of the sampling benchmarks, and the checks of what a sampler hands out.

Every peer makes its own copy, in its own format, from the same seed; nothing is passed between processes.
The first number of an observation says which observation it is, so that a batch can be checked without the
data: the one after it is one larger, and observations of one episode share a quotient. This module is
imported on both sides, so it needs numpy and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

OBSERVATION_SIZE = 17
ACTION_SIZE = 6
FRAME_SHAPE = (84, 84, 4)


@dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    observations (T+1, 17), actions (T, 6) and rewards (T,) are float32; the flags say how it ended. Even
    episodes are terminated, odd ones truncated.
    """

    number: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool

    @property
    def length(self) -> int:
        """Transitions."""
        return len(self.rewards)

    def flags(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `terminated` and `truncated` of each transition, both (T,) bool."""
        terminations, truncations = np.zeros(self.length, bool), np.zeros(self.length, bool)
        terminations[-1], truncations[-1] = self.terminated, not self.terminated
        return terminations, truncations


def episodes(steps: int, length: int, seed: int = 0) -> Iterator[Episode]:
    """Make `steps // length` episodes one after the other, so that nobody holds them twice."""
    random = np.random.default_rng(seed)
    for number in range(steps // length):
        observations = random.standard_normal((length + 1, OBSERVATION_SIZE), np.float32)
        observations[:, 0] = number * (length + 1) + np.arange(length + 1)
        yield Episode(
            number,
            observations,
            random.standard_normal((length, ACTION_SIZE), np.float32),
            random.standard_normal(length, np.float32),
            terminated=number % 2 == 0,
        )


def frames(count: int, seed: int = 0) -> np.ndarray:
    """Make (count, 84, 84, 4) uint8 frames that hold nothing but noise."""
    return np.random.default_rng(seed).integers(0, 256, (count, *FRAME_SHAPE), np.uint8)


def bytes_of(steps: int, length: int) -> int:
    """Return the bytes of all observations, actions and rewards, each held once, and two flags a step."""
    observations = (steps // length) * (length + 1) * OBSERVATION_SIZE * 4
    return observations + steps * (ACTION_SIZE * 4 + 4 + 2)


def check_transitions(observations: Any, following: Any, terminated: Any) -> None:
    """Raise ValueError unless each next observation follows its observation.

    Where the transition is terminated the next observation may be anything: d3rlpy hands out zeros.
    """
    now, after = np.asarray(observations)[:, 0], np.asarray(following)[:, 0]
    going_on = ~np.asarray(terminated).reshape(-1).astype(bool)
    if not np.array_equal(after[going_on], now[going_on] + 1):
        raise ValueError("a next observation is not the one after its observation")


def check_windows(observations: Any, length: int) -> None:
    """Raise ValueError unless each window, (windows, window, 17), is a run of steps of one episode."""
    ids = np.asarray(observations)[:, :, 0]
    if not (np.diff(ids, axis=1) == 1).all():
        raise ValueError("a window skips a step")
    if ((ids[:, 0] // (length + 1)) != (ids[:, -1] // (length + 1))).any():
        raise ValueError("a window crosses the end of an episode")
