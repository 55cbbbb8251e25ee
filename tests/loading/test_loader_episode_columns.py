"""Columns of episodes and texts in batches, beside the rules of `LoaderContract`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest

import episodelake as el
from loader_batches import BOX, random_store
from loader_stores import make_world


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeView:
    """Episodes that have a text of their own or none."""
    return make_world(tmp_path_factory.mktemp("episode-columns") / "store").views["early"]


def test_an_annotation_that_changes_is_mapped_again(tmp_path: Path) -> None:
    """Values of a mapped column are those of the version."""
    store = random_store(tmp_path / "store", [3, 2], ["cut"] * 2, BOX)
    cache = el.Cache("mmap", folder=tmp_path / "cache")
    for value in (1, 2):
        store.annotate(store.episodes.select("episode_id", mark=pl.lit(value)))
        (batch,) = store.refresh().loader(64, columns=["mark"], cache=cache)
        assert set(batch["mark"]) == {value}


@pytest.mark.further
def test_texts_are_refused_by_name_and_transforms_map_them(view: el.EpisodeView) -> None:
    """JAX and TensorDicts have no texts; a transform makes numbers of them."""
    levels = [level or "" for level in view.episodes.collect()["level"]]

    def tokens(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "level": np.array([len(text) for text in batch["level"]])}

    for output in ("jax", "tensordict"):
        with pytest.raises(el.errors.InvalidArgumentError, match="level"):
            next(iter(view.loader(5, columns=["level"], output=output)))
        loader = view.loader(5, columns=["level", "episode"], transforms=[tokens], output=output)
        batch = next(iter(loader))
        assert np.asarray(batch["level"]).tolist() == [
            len(levels[int(number)]) for number in batch["episode"]
        ]


def test_texts_of_other_widths_are_mixed(view: el.EpisodeView) -> None:
    """A mixture takes loaders whose longest texts differ."""
    one, two = view.filter("length < 9"), view.filter("length >= 9")
    mixed = el.mix([(part.loader(4, columns=["level"]), 0.5) for part in (one, two)], 8)
    assert {len(text) for text in next(iter(mixed))["level"]} <= {0, 9, 10}


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_values_of_other_episodes_may_be_longer(tmp_path: Path, cache: Any) -> None:
    """Texts and lists of episodes that a view leaves out do not matter, also in the same row group."""
    store = random_store(tmp_path / "store", [2], ["cut"], BOX)
    with store.writer() as writer:
        for size in (1, 3, 2, 3):
            episode = writer.begin(np.zeros(3, np.float32), {"said": "x" * size, "all": [0.5] * size})
            episode.append(0, float(size), np.zeros(3, np.float32))
            episode.end()
    store.refresh()
    for size in (1, 2, 3):
        chosen = store.filter(pl.col("episode_return") == size)
        (batch,) = chosen.loader(9, columns=["info.said", "info.all"], cache=cache)
        assert batch["info.said"].tolist() == ["x" * size] * len(chosen)
        assert batch["info.all"].tolist() == [[0.5] * size] * len(chosen)


def test_columns_of_episodes_that_cannot_be_loaded_are_told(tmp_path: Path) -> None:
    """Metadata of several kinds, an unknown name and a loader that follows are errors."""
    spaces = {"observation_space": gym.spaces.Box(0, 1, (1,)), "action_space": gym.spaces.Discrete(2)}
    store = el.create(tmp_path / "s", **spaces)
    with store.writer() as writer:
        for k in (1, "x", 2.5):
            writer.write_episode(
                observations=np.zeros((2, 1), np.float32),
                actions=[0],
                rewards=[1.0],
                terminations=True,
                truncations=False,
                metadata={"k": k, "task": f"pick {k}", "speed": math.pi},
            )
    store.refresh()
    (batch,) = store.loader(8, columns=["metadata.task", "metadata.speed"])
    assert batch["metadata.task"].tolist() == ["pick 1", "pick x", "pick 2.5"]
    assert batch["metadata.speed"].tolist() == [math.pi] * 3
    with pytest.raises(el.errors.InvalidArgumentError, match="different kinds"):
        store.loader(8, columns=["metadata.k"])
    with pytest.raises(el.errors.InvalidArgumentError, match=r"metadata\.task"):
        store.loader(8, columns=["metadata.tsk"])
    with pytest.raises(el.errors.InvalidArgumentError, match="while the store is followed"):
        store.loader(8, columns=["metadata.task"], follow=el.Follow())
