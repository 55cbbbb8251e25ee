"""Columns of episodes in batches: those of a plain loop over the table, in every unit, order and cache."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import polars as pl
import pytest
import torch

import episodelake as el
from loader_batches import small_row_groups
from loader_world import make_views

KEYS = ["episode_return", "length", "score", "score_present", "run_id", "level", "level_present"]
UNITS: list[tuple[Any, bool]] = [
    (el.Transitions(), False),
    (el.NSteps(3), False),
    (el.Deltas({"reward": [-1, 0]}), False),
    (el.Windows(4, pad="left", burn_in=1), True),
    (el.Episodes(), True),
]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, el.EpisodeView]]:
    """Views of one store, in small row groups, whose episodes have a text of their own or none."""
    with pytest.MonkeyPatch.context() as patch:
        small_row_groups(patch)
        made = make_views(tmp_path_factory.mktemp("episode-columns") / "store")
        store = made["all"]
        level = pl.when(pl.col("length") > 2).then(pl.format("level {} \u00e9", "length"))
        store.annotate(store.episodes.select("episode_id", level=level))
        store.refresh()
        yield {"all": store, "some": store.filter(pl.col("score") != 1)[::-1]}


def expected(view: el.EpisodeView) -> list[dict[str, Any]]:
    """The values of each episode, from the table."""
    rows = view.episodes.collect().to_dicts()
    return [
        {
            "episode_return": row["episode_return"],
            "length": row["length"],
            "score": row["score"] or 0,
            "score_present": row["score"] is not None,
            "run_id": row["run_id"],
            "level": row["level"] or "",
            "level_present": row["level"] is not None,
        }
        for row in rows
    ]


def assert_values(batches: Any, rows: list[dict[str, Any]], *, steps: bool, own: tuple[str, ...] = ()) -> int:
    """Each unit of the batches has the values of its episode, zeros or "" where its mask is False."""
    count = 0
    for batch in batches:
        for number, episode in enumerate(np.asarray(batch["episode"]).tolist()):
            for key in KEYS:
                found = np.asarray(batch[key])[number]
                if not steps or key in own:
                    assert found.tolist() == rows[episode][key]
                    continue
                mask = np.asarray(batch["mask"])[number]
                blank = type(rows[episode][key])()
                assert found.tolist() == [rows[episode][key] if real else blank for real in mask]
            count += 1
    return count


@pytest.mark.parametrize("cache", ["memory", "mmap", "stream"])
def test_every_unit_has_the_values_of_its_episode(views: dict[str, Any], tmp_path: Path, cache: str) -> None:
    """In all units, orders, caches and views, also after a resume."""
    place = el.Cache(cache, folder=tmp_path) if cache == "mmap" else el.Cache(cache)
    if cache == "stream":
        place = el.Cache(cache, buffer_bytes=4000)
    for view in views.values():
        rows = expected(view)
        for units, steps in UNITS:
            own = ("length",) if isinstance(units, el.Episodes) else ()
            keys = [*KEYS, "episode", "reward", *(["mask"] if steps else [])]
            for shuffle in (False, True) if view is views["some"] else (True,):
                made = dict(units=units, columns=keys, shuffle=shuffle, seed=3, cache=place)
                loader = view.loader(5, **made)
                assert assert_values(loader, rows, steps=steps, own=own) == loader.units
                next(iter(loader))
                resumed = view.loader(5, **made)
                resumed.load_state_dict(loader.state_dict())
                one, two = next(iter(loader)), next(iter(resumed))
                assert all((one[key] == two[key]).all() for key in KEYS)
    drawn = views["all"].loader(7, columns=[*KEYS, "episode"], weights="steps", cache="memory")
    assert assert_values(drawn, expected(views["all"]), steps=False) == drawn.units


def test_an_annotation_that_changes_is_mapped_again(views: dict[str, Any], tmp_path: Path) -> None:
    """Values of a mapped column are those of the version."""
    view = views["all"]
    cache = el.Cache("mmap", folder=tmp_path)
    for value in (1, 2):
        view.annotate(view.episodes.select("episode_id", mark=pl.lit(value)))
        view.refresh()
        assert {
            mark for batch in view.loader(64, columns=["mark"], cache=cache) for mark in batch["mark"]
        } == {value}


def test_texts_reach_torch_as_arrays_and_transforms_map_them(views: dict[str, Any]) -> None:
    """Texts stay numpy arrays beside tensors, also from workers; a transform makes numbers of them."""
    view = views["all"]
    rows, keys = expected(view), [*KEYS, "episode"]
    assert_values(view.loader(5, columns=keys, output="torch"), rows, steps=False)
    loaded = view.loader(5, columns=keys, shuffle=True, output="torch").torch_loader(num_workers=1)
    assert assert_values(loaded, rows, steps=False) == view.loader(5).units
    assert_values(pickle.loads(pickle.dumps(view.loader(5, columns=keys))), rows, steps=False)
    for output in ("jax", "tensordict"):
        with pytest.raises(el.errors.InvalidArgumentError, match="level"):
            next(iter(view.loader(5, columns=["level"], output=output)))

    def tokens(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "level": np.array([len(text) for text in batch["level"]])}

    for output in ("torch", "jax", "tensordict"):
        batch = next(iter(view.loader(5, columns=["level", "episode"], transforms=[tokens], output=output)))
        found = np.asarray(batch["level"]).tolist()
        assert found == [len(rows[int(episode)]["level"]) for episode in batch["episode"]]
    assert isinstance(next(iter(view.loader(5, columns=keys, output="torch")))["length"], torch.Tensor)


def test_texts_of_other_widths_are_mixed(views: dict[str, Any]) -> None:
    """A mixture takes loaders whose longest texts differ."""
    one, two = views["all"].filter("length < 9"), views["all"].filter("length >= 9")
    mixed = el.mix([(view.loader(4, columns=["level"]), 0.5) for view in (one, two)], 8)
    assert {len(text) for text in next(iter(mixed))["level"]} <= {0, 9, 10}


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


def test_texts_of_steps_are_those_of_the_table(tmp_path: Path) -> None:
    """Infos, columns that were added later, and where they are, in each row of units, from every cache."""
    spaces = {"observation_space": gym.spaces.Box(0, 1, (1,)), "action_space": gym.spaces.Discrete(2)}
    store = el.create(tmp_path / "s", **spaces)
    with store.writer() as writer:
        for length in (3, 1, 5, 2):
            episode = writer.begin(np.zeros(1, np.float32), {"said": f"begin {length}"})
            for t in range(length):
                info = {} if t % 2 else {"said": "caf\u00e9" * t}
                episode.append(0, 0.0, np.zeros(1, np.float32), info=info, terminated=t == length - 1)
            writer.seal()
    store.refresh()
    captions = store.steps.select(
        "episode_id", "t", caption=pl.when(pl.col("t") > 0).then(pl.format("at {}", "t"))
    )
    store.annotate(captions.collect(), on=("episode_id", "t"))
    store.refresh()
    steps = store.steps.collect()
    rows = [steps.filter(pl.col("episode_id") == key) for key in store.episodes.collect()["episode_id"]]
    keys = ["info.said", "next_info.said", "info.said_present", "caption", "episode", "t"]
    for cache in (
        el.Cache(),
        el.Cache("mmap", folder=tmp_path / "cache"),
        el.Cache("stream", buffer_bytes=1000),
    ):
        for batch in store.loader(3, columns=keys, shuffle=True, cache=cache):
            for number, (episode, t) in enumerate(zip(batch["episode"], batch["t"], strict=True)):
                said, captions = rows[episode]["info.said"], rows[episode]["caption"]
                found = [batch[key][number] for key in keys[:4]]
                assert found == [
                    said[int(t)] or "",
                    said[int(t) + 1] or "",
                    said[int(t)] is not None,
                    captions[int(t)] or "",
                ]
        for batch in store.loader(4, el.Episodes(), columns=["caption", "length", "episode"], cache=cache):
            for episode in el.unpadded(batch):
                own = rows[episode["episode"]]["caption"][:-1].fill_null("").to_list()
                assert episode["caption"].tolist() == own
            assert set(batch["caption"][1, 1:]) == {""}
