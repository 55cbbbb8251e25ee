"""Stores with every way to end, and their transitions as a plain loop finds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import episodelake as el

BOX = spaces.Box(-9, 9, (3,), np.float32)
DICT = spaces.Dict({"x": BOX, "n": spaces.Discrete(9)})
SPACES = {
    "box": (BOX, spaces.Discrete(5)),
    "dict": (DICT, spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))),
}
#: terminated and truncated of the last transitions, and the lengths.
ENDS = [(True, False, 4), (False, True, 3), (False, False, 2), (True, True, 5), (False, False, 1)]


def written_store(path: Path, kind: str) -> el.EpisodeStore:
    """A store of five episodes with random values."""
    observation_space, action_space = SPACES[kind]
    random = np.random.default_rng(3)
    for seed, space in enumerate((observation_space, action_space)):
        space.seed(seed)
    store = el.create(path, observation_space=observation_space, action_space=action_space)
    with store.writer() as writer:
        for terminated, truncated, length in ENDS:
            episode = writer.begin(observation_space.sample(), info={"cost": 0.0})
            for step in range(length):
                last = step == length - 1
                episode.append(
                    action_space.sample(),
                    float(random.normal()),
                    observation_space.sample(),
                    terminated=terminated and last,
                    truncated=truncated and last,
                    info={"cost": float(step + 1)},
                    policy={"value": float(step)},
                )
            if not (terminated or truncated):
                episode.end()
    return store.refresh()


def plain_transitions(store: el.EpisodeStore) -> list[dict[str, Any]]:
    """The transitions one by one; the last of an episode without a flag counts as truncated."""
    rows = []
    for number, episode in enumerate(store):
        for step in range(episode.length):
            terminated = bool(episode.terminations[step])
            truncated = bool(episode.truncations[step])
            if step == episode.length - 1 and not terminated:
                truncated = True
            rows.append(
                {
                    "observation": at(episode.observations, step),
                    "action": at(episode.actions, step),
                    "reward": float(episode.rewards[step]),
                    "next_observation": at(episode.observations, step + 1),
                    "terminated": terminated,
                    "truncated": truncated,
                    "done": terminated or truncated,
                    "episode": number,
                }
            )
    return rows


def at(values: Any, step: int) -> Any:
    """The value of a step."""
    if isinstance(values, Mapping):
        return {key: at(part, step) for key, part in values.items()}
    return values[step]


def tree_equal(found: Any, expected: Any) -> bool:
    """Whether nested values are equal, whatever their library."""
    if isinstance(expected, Mapping):
        return set(found.keys()) == set(expected) and all(
            tree_equal(found[key], part) for key, part in expected.items()
        )
    return np.array_equal(np.asarray(found), expected)
