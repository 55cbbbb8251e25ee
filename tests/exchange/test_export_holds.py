"""Each thing that a store can hold comes back from each format, or is named in its losses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from effort import some, with_folders
from episodelake.testing.adapters import case

OBSERVATION = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def store_at(path: Path, observation: spaces.Space = OBSERVATION, **given: Any) -> el.EpisodeStore:
    """An empty store."""
    return el.create(path, observation_space=observation, action_space=ACTION, **given)


def write(store: el.EpisodeStore, run: dict[str, Any] | None = None, **given: Any) -> el.EpisodeStore:
    """Write an episode of two transitions in a run of its own."""
    count = 2 if given.get("last_observation") == "missing" else 3
    arrays = {"terminations": True, "truncations": False, **given}
    kind: Any = store.observation_space.dtype
    facts: dict[str, Any] = run or {}
    with store.writer(**facts) as writer:
        writer.write_episode(
            observations=np.arange(2 * count).reshape(count, 2).astype(kind),
            actions=np.ones((2, 1), np.float32),
            rewards=[0.1, 0.2],
            **arrays,
        )
    return store.refresh()


def test_an_export_of_an_import_names_no_run(tmp_path: Path) -> None:
    """The run of an import stands in the source keys; a chain of exports holds what the first one did."""
    store = write(store_at(tmp_path / "store"), {"run": "ppo", "metadata": {"lr": 0.5}})
    for number in range(2):
        store.export(tmp_path / f"{number}.parquet", format="parquet", strict=True)
        el.import_dataset(tmp_path / f"{number}.parquet", tmp_path / f"back-{number}")
        store = el.open(tmp_path / f"back-{number}")
        metadata = {key: value for key, value in store[0].metadata.items() if not key.startswith("source_")}
        assert metadata == {"run": "ppo", "run_metadata": {"lr": 0.5}}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_that_lerobot_rounds_are_counted(tmp_path: Path, kind: Any) -> None:
    """LeRobot reads float64 as float32: values that change are lost, others are not."""
    store = store_at(tmp_path / "store", spaces.Box(-np.inf, np.inf, (2,), kind))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.array([[0.1, 0.5], [np.nan, 1 / 3], [0, 1]], kind),
            actions=np.ones((2, 1), np.float32),
            rewards=[0.5, 0.25],
            terminations=True,
            truncations=False,
        )
    lost = store.refresh().export(tmp_path / "out", format="lerobot").lost
    rounded = {what: count for what, count in lost.items() if "float32" in what}
    expected = {"digits of observation.state, which LeRobot reads as float32": 2}
    assert rounded == (expected if kind is np.float64 else {})


def test_integers_that_rerun_rounds_are_counted(tmp_path: Path) -> None:
    """Plots are doubles: integers beyond 53 bits change, of the other columns none."""
    pytest.importorskip("rerun")
    store = store_at(tmp_path / "store", spaces.Box(-(2**62), 2**62, (2,), np.int64))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.array([[2**53 + 1, 2**53], [1, 2**62 - 1], [0, 1]]),
            actions=np.ones((2, 1), np.float32),
            rewards=[0.5, 0.25],
            terminations=True,
            truncations=False,
            infos=[{"n": 2**60 + 1}, {"n": 3}, {"n": 4}],
        )
    lost = store.refresh().export(tmp_path / "out", format="rerun").lost
    assert lost["digits of integers in observation, which are doubles in Rerun"] == 2
    assert lost["digits of integers in info.n, which are doubles in Rerun"] == 1


_ANNOTATIONS_ARE_COUNTED_WHERE_: Any = [
    *itertools.product(
        ["^good$", "*", "^r[ab]$", "plain"], [slice(None), slice(2, None), slice(None, None, -1)]
    )
]


@pytest.mark.parametrize("cases", some(_ANNOTATIONS_ARE_COUNTED_WHERE_))
def test_annotations_are_counted_where_they_have_a_value(tmp_path: Path, cases: Any) -> None:
    """Whatever an annotation is called, as many are lost as the exported episodes have values."""
    for folder, (name, chosen) in with_folders(cases, tmp_path):
        with case((name, chosen)):
            store = store_at(folder / "store")
            for _ in range(4):
                write(store)
            store = store.refresh()
            for position, names in {0: [name], 3: [name, "ra"]}.items():
                store.label(position, **dict.fromkeys(names, True))
            view = store.refresh()[chosen]
            lost = view.export(folder / "out", format="webdataset").lost
            told = {key: number for key, number in lost.items() if key.startswith("the annotation")}
            expected = {
                f"the annotation {name}": len({0, 3} & set(view.positions.tolist())),
                "the annotation ra": 1,
            }
            assert told == expected
