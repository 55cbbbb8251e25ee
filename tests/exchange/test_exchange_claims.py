"""The promises of import and export: nothing is lost in silence, and no error of a library shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from effort import with_folders
from episodelake.testing.adapters import case

FURTHER = pytest.mark.further
DATA = Path(__file__).parents[1] / "data" / "exchange"
ROWS = {
    "episode": [0, 0, 1, 1],
    "t": [0, 1, 0, 1],
    "observation": [1.0, 2.0, 3.0, 4.0],
    "action": [0, 1, 0, 1],
    "reward": [1.0] * 4,
    "terminated": [False, True, False, True],
}


BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


@FURTHER
def test_minari_reads_arrow_episodes_of_32767_steps_whole(tmp_path: Path) -> None:
    """Of a longer one its reader takes a part, so the export refuses it."""
    import minari

    store = el.create(tmp_path / "store", observation_space=BOX, action_space=BOX)
    for length in (32_767, 32_768):
        with store.writer() as writer:
            writer.write_episode(
                observations=np.zeros((length + 1, 2), np.float32),
                actions=np.zeros((length, 2), np.float32),
                rewards=np.arange(length),
                terminations=True,
                truncations=False,
            )
    store.refresh()
    store[:1].export(tmp_path / "out", format="minari", data_format="arrow")
    (read,) = minari.MinariDataset(tmp_path / "out" / "data").iterate_episodes()
    assert np.array_equal(read.rewards, store[0].rewards)
    with pytest.raises(el.errors.DatasetError, match=r"has 32,768 steps; .* Minari reads up to 32,767"):
        store.export(tmp_path / "no", format="minari", data_format="parquet")


def test_robomimic_keeps_columns_of_single_numbers(tmp_path: Path) -> None:
    """The number at the last observation is lost."""
    store = el.create(tmp_path / "store", observation_space=BOX, action_space=BOX)
    with store.writer() as writer:
        episode = writer.begin(np.zeros(2, np.float32), extra={"own": 3})
        episode.append(np.zeros(2, np.float32), 1.0, np.zeros(2, np.float32), True, extra={"own": 4})
    report = store.refresh().export(tmp_path / "out.hdf5", format="robomimic")
    assert report.lost["the step columns of a last observation"] == 1
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert np.array_equal(file["data/demo_0/own"], [3])  # type: ignore[arg-type]


def test_csv_reads_infinities_and_booleans_of_vectors(tmp_path: Path) -> None:
    """DuckDB takes a column of `inf` for dates."""
    values = np.array([[np.inf, -np.inf], [np.inf, 2.5], [np.inf, np.nan]])
    store = el.create(
        tmp_path / "store",
        observation_space=spaces.Box(-np.inf, np.inf, (2,), np.float64),
        action_space=spaces.MultiBinary(2),
    )
    with store.writer() as writer:
        writer.write_episode(
            observations=values,
            actions=np.array([[0, 1], [1, 1]], np.int8),
            rewards=[1.0, -np.inf],
            terminations=False,
            truncations=True,
        )
    store.refresh().export(tmp_path / "out.csv", format="csv")
    el.import_dataset(tmp_path / "out.csv", tmp_path / "back")
    back = el.open(tmp_path / "back")[0]
    assert np.array_equal(back.observations, values, equal_nan=True)
    assert back.actions.tolist() == [[0, 1], [1, 1]] and back.rewards.tolist() == [1.0, -np.inf]


def test_rows_of_a_table_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    """Next observations that are not those of the next row, and metadata and seeds that change."""
    rows = {
        **ROWS,
        "next_observation": [2.0, 5.0, 7.0, 6.0],
        "truncated": [False] * 4,
        "metadata.driver": ["ann", "bob", "cid", "cid"],
        "seed": [1, 1, 2, 3],
        "next_goal": [0, 1, 2, 3],
    }
    report = el.import_dataset(pl.DataFrame(rows), tmp_path / "store")
    assert dict(report.lost) == {
        "the column next_goal, which the mapping leaves out": 4,
        "a next observation that differs from the observation of the next row": 1,
        "values of metadata.driver that differ from the first of their episode": 1,
        "values of seed that differ from the first of their episode": 1,
    }


def test_a_damaged_table_is_refused_with_its_place(tmp_path: Path) -> None:
    """No store is left behind."""
    cases: list[Any] = [
        ({"observation": [1.0, None, 3.0, 4.0]}, r"Episode 0, row 1.*'observation'.* NULL"),
        ({"observation": [None, 1.0, 3.0, 4.0]}, r"Episode 0, row 0.*'observation'.* NULL"),
        ({"observation": [[1.0, 2.0], [1.0], [3.0, 3.0], [4.0, 4.0]]}, "Episode 0, row 1.*shape"),
        ({"action": [None, 1, 0, 1]}, "Episode 0, row 0: `action` is NULL"),
        ({"terminated": [True, True, False, True]}, "Episode 0: `terminated` is set in its row 0"),
        ({"terminated": [0, 1, 0, 2]}, "`terminated` has the value 2"),
        ({"seed": [1.5, 1.5, 3.0, 3.0]}, "`seed` are no whole numbers"),
        ({"observation": [2**64 - 1, 0, 1, 2]}, "uint64 suggests no space"),
    ]
    for folder, (changed, message) in with_folders(cases, tmp_path):
        with case((changed, message)):
            table = pl.DataFrame({**ROWS, **changed}, strict=False)
            if "uint64" in message:
                table = table.with_columns(pl.Series("observation", changed["observation"], dtype=pl.UInt64))
            with pytest.raises(el.EpisodelakeError, match=message):
                el.import_dataset(table, folder / "store")
            assert not (folder / "store").exists()


@FURTHER
def test_a_dataset_with_fewer_episodes_than_it_counts_is_refused(tmp_path: Path) -> None:
    """LeRobot's episodes.jsonl, cut at the end of a line; skipping lists what is missing."""
    shutil.copytree(DATA / "lerobot-v21", tmp_path / "source")
    file = tmp_path / "source" / "meta" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    call: dict[str, Any] = {"last_observation": "missing"}
    with pytest.raises(el.errors.DatasetError, match=f"counts {len(lines)} episodes; meta/episodes has"):
        el.import_dataset(tmp_path / "source", tmp_path / "store", **call)
    report = el.import_dataset(tmp_path / "source", tmp_path / "store", on_error="skip", **call)
    assert report.episodes == len(lines) - 1 and "cut, or is missing" in report.skipped[0][1]
