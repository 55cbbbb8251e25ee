"""Replaying a recorded episode in its environment, and comparing what comes out bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from .readers.episode import Episode


@dataclass(frozen=True)
class Replay:
    """What a replay was compared on, and whether it came out the same.

    Attributes:
        transitions: of the recorded episode.
        observations, rewards, flags: whether these are the recorded ones, in dtype, shape and every byte.
    """

    transitions: int
    observations: bool
    rewards: bool
    flags: bool

    @property
    def same(self) -> bool:
        """Whether everything is as recorded."""
        return self.observations and self.rewards and self.flags

    def words(self) -> tuple[str, str, str]:
        """How many observations, rewards and flags were compared, and the verdict on each."""
        return (
            _verdict(self.transitions + 1, self.observations),
            _verdict(self.transitions, self.rewards),
            _verdict(2 * self.transitions, self.flags),
        )


def _verdict(count: int, same: bool) -> str:
    return f"{count} {'same' if same else 'DIFFER'}"


def replay(episode: Episode, env: gymnasium.Env) -> Replay:
    """Reset an environment with the episode's seed, take its actions, and compare with what was recorded.

    Args:
        episode: of a space of Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these.
        env: an environment of the same kind; it is left where the episode ended.
    """
    observation, _ = env.reset(seed=episode.seed, options=episode.options)
    observations, rewards, terminations, truncations = [observation], [], [], []
    for action in episode.actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(float(reward))
        terminations.append(terminated)
        truncations.append(truncated)
        if terminated or truncated:
            break
    recorded = list(_leaves(episode.observations))
    again = [np.array(part) for part in zip(*(list(_leaves(each)) for each in observations), strict=True)]
    return Replay(
        transitions=episode.length,
        observations=_same(recorded, again),
        rewards=_same([episode.rewards], [np.array(rewards)]),
        flags=_same(
            [episode.terminations, episode.truncations], list(map(np.array, (terminations, truncations)))
        ),
    )


def _leaves(value: Any) -> Iterator[Any]:
    """The parts of a nested value, in a fixed order."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key])
    elif isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _same(recorded: Sequence[np.ndarray], again: Sequence[np.ndarray]) -> bool:
    """Whether arrays are equal in dtype, shape and bytes: -0.0 is not 0.0, and NaN is itself."""
    return len(recorded) == len(again) and all(
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        for one, other in zip(recorded, again, strict=True)
    )
