"""Stores of frames, arrays and vectors of several dtypes, with splits and a card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gymnasium import spaces

import episodelake as el

SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (16, 12, 3), np.uint8),
        "depth": spaces.Box(0, 255, (9, 8), np.uint8),
        "stack": spaces.Box(0, 255, (4, 8, 8), np.uint8),
        "grid": spaces.Box(-1, 1, (2, 3), np.float16),
        "speed": spaces.Box(0, 9, (3,), np.uint8),
        "n": spaces.Discrete(4),
        "word": spaces.Text(5),
    }
)
ACTIONS = spaces.Box(-1, 1, (2,), np.float64)
CARD = {
    "title": 'The "walk" | ü\x7f',
    "description": "Random.\n---\nWalks.",
    "license": "MIT",
    "env_spec": '{"id": "Walk-v0"}',
}
#: Terminated, truncated, the transitions, and the split.
EPISODES = [(True, False, 4, "train"), (False, True, 3, "test"), (False, False, 2, "train")]


def recorded(path: Path, space: spaces.Space = SPACE) -> el.EpisodeStore:
    """Three episodes with random values."""
    space.seed(0)
    ACTIONS.seed(1)
    store = el.create(path, observation_space=space, action_space=ACTIONS, card=CARD)
    with store.writer() as writer:
        for seed, (terminated, truncated, length, split) in enumerate(EPISODES):
            begun = {"info": {"cost": -1.0}, "seed": seed, "metadata": {"split": split}}
            episode = writer.begin(space.sample(), **begun)
            for step in range(length):
                last = step == length - 1
                episode.append(
                    ACTIONS.sample(),
                    float(step),
                    space.sample(),
                    terminated=terminated and last,
                    truncated=truncated and last,
                    info={"cost": float(step)},
                )
            if not (terminated or truncated):
                episode.end()
    return store.refresh()
