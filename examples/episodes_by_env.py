"""Single transitions of several environments to episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import episodelake as el


class EpisodesByEnv:
    """The unfinished episode of each environment.

    An episode begins with the first transition of its environment. It ends where the environment says so; if
    the next transition begins at another observation, the environment was reset, and the episode ends as cut.

    Args:
        writer: records the episodes. Those that are unfinished when it closes are stored as cut.
    """

    def __init__(self, writer: el.EpisodeWriter) -> None:
        self._writer = writer
        self._open: dict[int, tuple[el.types.OpenEpisode, Any]] = {}

    def add(
        self,
        env_index: int,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        *,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Record one transition; `info` came with `next_observation`."""
        episode, last = self._open.pop(env_index, (None, None))
        if episode is not None and not _equal(last, observation):
            episode.end()
            episode = None
        if episode is None:
            episode = self._writer.begin(observation, env_index=env_index)
        episode.append(action, reward, next_observation, terminated, truncated, info, policy)
        if terminated or truncated:
            episode.end()
        else:
            self._open[env_index] = (episode, _copied(next_observation))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_equal(one[key], other[key]) for key in one)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def _copied(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: _copied(value) for key, value in observation.items()}
    return np.array(observation)
