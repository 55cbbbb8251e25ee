"""Stores with several segments for tests of loaders, and comparing what loaders give byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import episodelake as el
from episodelake.store.segments import steps_file as sealing

PLACES = ["episode", "t"]
BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
NESTED = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (4, 3), np.uint8), pair=gym.spaces.Tuple([gym.spaces.Discrete(5), BOX])
)


def flat(tree: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a nested value with their names."""
    if isinstance(tree, dict | tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from flat(part, f"{name}.{key}")
    else:
        yield name, tree


def assert_identical(found: Iterable[Any], expected: Iterable[Any]) -> int:
    """Both give the same batches: names, dtypes, shapes and bytes; returns how many there are."""
    count = 0
    for one, other in zip(found, expected, strict=True):
        ours, theirs = dict(flat(one)), dict(flat(other))
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape, name
            assert array.tobytes() == theirs[name].tobytes(), name
        count += 1
    return count


def places(batches: Iterable[Any]) -> list[tuple[int, int]]:
    """Which units some batches hold, as (episode, t)."""
    return [
        pair for batch in batches for pair in zip(batch["episode"].tolist(), batch["t"].tolist(), strict=True)
    ]


def all_places(store: el.EpisodeView) -> list[tuple[int, int]]:
    """Every transition of a view, in order."""
    return [(number, t) for number, episode in enumerate(store) for t in range(episode.length)]


def segmented_store(path: Any, lengths: list[int], space: gym.Space, per_segment: int = 5) -> el.EpisodeStore:
    """A store of episodes of given lengths with random contents, a segment for every few of them.

    Callers that want several row groups in a segment make them small with `small_row_groups`.
    """
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    store = el.create(path, observation_space=space, action_space=action_space)
    space.seed(1), action_space.seed(2)
    rng = np.random.default_rng(3)
    with store.writer(run="segments") as writer:
        for number, length in enumerate(lengths):
            episode = writer.begin(space.sample(), info={"x": 0.5})
            for t in range(length):
                ended = t == length - 1 and number % 3
                episode.append(
                    action_space.sample(),
                    float(rng.normal()),
                    space.sample(),
                    terminated=ended == 1,
                    truncated=ended == 2,
                    info={"x": float(t)} if t % 2 else {},
                    policy={"value": rng.normal(size=2)},
                )
            episode.end()
            if number % per_segment == per_segment - 1:
                writer.seal()
    return store.refresh()


def random_store(
    path: Path, lengths: list[int], endings: list[str], space: gym.Space, seed: int = 0
) -> el.EpisodeStore:
    """A store of episodes of given lengths and endings, with random contents, in segments of two episodes."""
    action_space = gym.spaces.Discrete(7)
    store = el.create(path, observation_space=space, action_space=action_space)
    space.seed(seed), action_space.seed(seed)
    rng = np.random.default_rng(seed)
    with store.writer(run="random") as writer:
        for number, (length, ending) in enumerate(zip(lengths, endings, strict=True)):
            episode = writer.begin(space.sample())
            for t in range(length):
                last = t == length - 1
                episode.append(
                    action_space.sample(),
                    float(rng.normal()),
                    space.sample(),
                    terminated=last and ending in ("terminated", "both"),
                    truncated=last and ending in ("truncated", "both"),
                )
            episode.end()
            if number % 2:
                writer.seal()
    return store.refresh()


def small_row_groups(monkeypatch: pytest.MonkeyPatch, rows: int = 24) -> None:
    """Row groups of a few rows, so that small stores have many, and long episodes span several."""
    monkeypatch.setattr(sealing, "GROUP_ROWS", rows)
