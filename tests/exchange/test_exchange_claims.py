"""The promises of import and export: nothing is lost in silence, and no error of a library shows."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from effort import examples
from exchange_episodes import webdataset_differences, write_random

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


def store_of(path: Path, observation: spaces.Space, action: spaces.Space, **options: Any) -> el.EpisodeStore:
    """A store with one episode of one transition, of zeros."""
    card = options.pop("card", None)
    store = el.create(path, observation_space=observation, action_space=action, card=card)
    codec = {"observation": observation, "action": action}
    values = {name: [zero(space)] * (2 if name == "observation" else 1) for name, space in codec.items()}
    with store.writer() as writer:
        writer.write_episode(
            observations=stacked(values["observation"]),
            actions=stacked(values["action"]),
            rewards=[1.0],
            **{"terminations": True, "truncations": False, **options},
        )
    return store.refresh()


def zero(space: spaces.Space) -> Any:
    """A value of zeros."""
    if isinstance(space, spaces.Dict):
        return {key: zero(part) for key, part in space.spaces.items()}
    return np.zeros(space.shape or (), space.dtype)


def stacked(values: list[Any]) -> Any:
    """Values as a batch."""
    if isinstance(values[0], dict):
        return {key: stacked([value[key] for value in values]) for key in values[0]}
    return np.stack(values)


BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


@FURTHER
def test_samples_of_webdataset_hold_whatever_episodes_have(tmp_path: Path) -> None:
    """Odd stores, read by tarfile and NumPy: every array, column, seed and metadata are in a sample."""

    @settings(max_examples=examples(15), deadline=None)
    @given(st.integers(0, 10**6))
    def written(seed: int) -> None:
        folder = tmp_path / str(time.monotonic_ns())
        store = write_random(folder / "store", random.Random(seed))
        try:
            assert not webdataset_differences(store, folder)
        finally:
            shutil.rmtree(folder)

    written()


@pytest.mark.parametrize("data_format", ["arrow", pytest.param("parquet", marks=FURTHER)])
def test_arrays_without_items_do_not_crash_arrow(tmp_path: Path, data_format: str) -> None:
    """Minari divides by their size inside Arrow, which ends the process; they are refused before."""
    store = store_of(tmp_path / "store", spaces.Box(0, 1, (0,), np.float32), BOX)
    with pytest.raises(
        el.errors.DatasetError, match=r"cannot hold observation, whose shape \(0,\) has no item"
    ):
        store.export(tmp_path / "out", format="minari", data_format=data_format)
    assert os.listdir(tmp_path) == ["store"]


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


@pytest.mark.parametrize(("name", "options"), [("minari", {}), ("robomimic", {})])
def test_a_key_with_a_slash_is_no_path_of_hdf5(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """It would come back as a nest of groups."""
    store = store_of(tmp_path / "store", spaces.Dict({"arm/left": BOX, "b": BOX}), BOX)
    with pytest.raises(el.errors.DatasetError, match="arm/left"):
        store.export(tmp_path / "out", format=name, **options)


def test_annotations_of_steps_are_columns_of_a_table(tmp_path: Path) -> None:
    """With a value for each transition."""
    store = store_of(tmp_path / "store", BOX, BOX)
    keys = ("episode_id", "t")
    store.annotate(store.steps.select(*keys, quality=pl.col("t") / 2).collect(), keys)
    assert not store.refresh().export(tmp_path / "out", format="csv").lost.get("the annotation quality")
    assert pl.read_csv(tmp_path / "out")["quality"].to_list() == [0.0]


def test_integers_beyond_64_bits_are_kept_or_counted(tmp_path: Path) -> None:
    """Neither rounded to floats, nor written as the addresses of Python's objects."""
    infos = [{"big": 2**70, "mixed": 2**63}, {"big": 2**70, "mixed": 1}]
    store = store_of(tmp_path / "store", BOX, BOX, infos=infos, seed=2**70)
    assert not webdataset_differences(store, tmp_path)
    assert store[0].info_arrays == {"big": [2**70] * 2, "mixed": [2**63, 1]}
    report = store.export(tmp_path / "out", format="minari")
    assert report.lost["a seed beyond 64 bits"] == 1
    assert report.lost["info.big, which is not a number or text at every step"] == 2


#: robomimic names each array of observations.
ONE_ARRAY = {"spaces: observations of one array come back as a Dict with a key for it": 1}


def test_robomimic_keeps_columns_of_single_numbers(tmp_path: Path) -> None:
    """The number at the last observation is lost."""
    store = store_of(tmp_path / "store", BOX, BOX, extra={"own": np.array([3, 4])})
    report = store.export(tmp_path / "out.hdf5", format="robomimic")
    assert dict(report.lost) == {"the step columns of a last observation": 1, **ONE_ARRAY}
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert np.array_equal(file["data/demo_0/own"], [3])  # type: ignore[arg-type]


def test_minari_refuses_a_text_with_nul(tmp_path: Path) -> None:
    """HDF5 ends a text there; the message has the part of the space."""
    store = el.create(tmp_path / "store", observation_space=spaces.Dict(say=spaces.Text(3)), action_space=BOX)
    with store.writer() as writer:
        writer.write_episode(
            observations={"say": ["a", "b\0"]},
            actions=np.zeros((1, 2), np.float32),
            rewards=[1.0],
            terminations=True,
            truncations=False,
        )
    with pytest.raises(el.errors.DatasetError, match=r"observation\.say of episode 0: a text has"):
        store.refresh().export(tmp_path / "out", format="minari")


@FURTHER
def test_metadata_do_not_overwrite_the_attributes_of_robomimic(tmp_path: Path) -> None:
    """`num_samples` of an episode and `total` of the card count what the file holds."""
    metadata = {"num_samples": 99, "level": 2, "big": 2**70, "splits": ["train", 3]}
    store = store_of(tmp_path / "store", BOX, BOX, metadata=metadata)
    report = store.export(tmp_path / "out.hdf5", format="robomimic")
    lost = {"metadata.num_samples": 1, "metadata.big": 1, "metadata.splits": 1}
    assert dict(report.lost) == lost | ONE_ARRAY
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert dict(file["data/demo_0"].attrs) == {"num_samples": 1, "level": 2}
    el.import_dataset(tmp_path / "out.hdf5", tmp_path / "back")
    assert el.open(tmp_path / "back")[0].metadata["splits"] == ["train"]


def test_minari_gives_back_texts_options_and_nested_metadata(tmp_path: Path) -> None:
    """Texts of HDF5 are texts, not bytes; what attributes do not hold is counted."""
    facts = {"deep": {"a": 1.5, "none": None}, "names": ["x", "y"], "a/b": 1}
    info = [{"phase": "größe", "mixed": 1}, {"phase": "b", "mixed": "x"}]
    options = {"level": {"gap": None, "low": 2}}
    store = store_of(tmp_path / "store", BOX, BOX, metadata=facts, infos=info, options=options, seed=2**63)
    for data_format in ("hdf5", "arrow"):
        report = store.export(tmp_path / data_format, format="minari", data_format=data_format)
        el.import_dataset(tmp_path / data_format, tmp_path / f"back-{data_format}")
        back = el.open(tmp_path / f"back-{data_format}")[0]
        lost = {"info.mixed, which is not a number or text at every step": 2}
        expected = {**facts}, options
        if data_format == "hdf5":
            lost |= {"options.level.gap": 1, "metadata.deep.none": 1, "metadata.a/b": 1}
            expected = {"deep": {"a": 1.5}, "names": ["x", "y"]}, {"level": {"low": 2}}
        assert dict(report.lost) == lost
        assert [row["phase"] for row in back.infos] == ["größe", "b"]
        metadata = {key: value for key, value in back.metadata.items() if not key.startswith("source_")}
        assert (metadata, back.options, back.seed) == (*expected, 2**63)


@FURTHER
def test_rows_of_rllib_keep_their_dtypes(tmp_path: Path) -> None:
    """So does an import; a policy value that one episode lacks is left out of all."""
    store = store_of(tmp_path / "store", BOX, spaces.Discrete(3), policy={"value": [1.0]})
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((2, 2), np.float32),
            actions=[1],
            rewards=[1.0],
            terminations=True,
            truncations=False,
        )
    report = store.refresh().export(tmp_path / "out", format="rllib")
    assert report.lost["policy.value, which other episodes do not have in this form"] == 1
    schema = pq.read_schema(tmp_path / "out" / "000000.parquet")
    assert str(schema.field("obs").type.value_type) == "float"
    again = el.import_dataset(tmp_path / "out", tmp_path / "back")
    assert again.episodes == 2 and again.observation_space.dtype == np.float32


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"episode": [0.0, 0.0, float("nan"), 1.0]}, "`episode` is NaN in row 2"),
        ({"t": [0, 2, 0, 1]}, "Episode 0 .* a gap: step 2 follows 0"),
        ({"t": [0, 1, 1, 1]}, "Episode 1 .* step 1 twice"),
        ({"observation": [1.0, None, 3.0, 4.0]}, r"Episode 0, row 1.*'observation'.* NULL"),
        ({"observation": [None, 1.0, 3.0, 4.0]}, r"Episode 0, row 0.*'observation'.* NULL"),
        ({"observation": [[1.0, 2.0], [1.0], [3.0, 3.0], [4.0, 4.0]]}, "Episode 0, row 1.*shape"),
        ({"action": [None, 1, 0, 1]}, "Episode 0, row 0: `action` is NULL"),
        ({"terminated": [True, True, False, True]}, "Episode 0: `terminated` is set in its row 0"),
        ({"terminated": [0, 1, 0, 2]}, "`terminated` has the value 2"),
        ({"seed": [1.5, 1.5, 3.0, 3.0]}, "`seed` are no whole numbers"),
        ({"observation": [2**64 - 1, 0, 1, 2]}, "uint64 suggests no space"),
    ],
)
def test_a_damaged_table_is_refused_with_its_place(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    """No store is left behind."""
    table = pl.DataFrame({**ROWS, **changed}, strict=False)
    if "uint64" in message:
        table = table.with_columns(pl.Series("observation", changed["observation"], dtype=pl.UInt64))
    with pytest.raises(el.EpisodelakeError, match=message):
        el.import_dataset(table, tmp_path / "store")
    assert not (tmp_path / "store").exists()


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
