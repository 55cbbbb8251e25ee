"""RLDS datasets that we write: byte for byte what TFDS writes, and back without a difference."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import episodelake as el
from episodelake.exchange.rlds import tfrecord
from episodelake.exchange.rlds.tfrecord import (
    read_example,
    read_record,
    record_offsets,
    write_example,
    write_record,
)
from exported_store import rich_store, same
from test_cli import printed

DATA = Path(__file__).parents[1] / "data" / "exchange"
#: What `info` of an exported store has, and RLDS does not hold.
UNHELD = ("deep", "some")


def records(file: Path) -> list[bytes]:
    """The records of a file, by the lengths in it."""
    data, examples = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        examples.append(data[12 : 12 + length])
        data = data[16 + length :]
    return examples


@pytest.mark.parametrize("name", ["rlds", "openx"])
def test_records_are_encoded_as_tensorflow_encodes_them(name: str) -> None:
    """Reading a file that TFDS wrote and writing it again gives the same bytes."""
    file = next((DATA / name).glob("walk/1.0.0/*.tfrecord*"))
    target = io.BytesIO()
    with file.open("rb") as source:
        for offset in record_offsets(file):
            record = read_record(source, offset)
            assert write_example(read_example(record)) == record
            write_record(target, record)
    assert target.getvalue() == file.read_bytes()


def message(item: bytes) -> bytes:
    """An item of a `BytesList`; all lengths are below 128."""
    return bytes([0x0A, len(item)]) + item


@given(
    st.lists(st.binary(max_size=3) | st.just(b"abc") | st.just(message(b"a"))).map(
        lambda items: b"".join(map(message, items))
    )
    | st.binary(max_size=12)
)
def test_lists_of_bytes_are_read_as_field_by_field(content: bytes) -> None:
    """Items of one length and of several, empty ones, and what is no list."""

    def outcome(read: Callable[[], Any]) -> list[bytes] | None:
        try:
            items = read()
            return items if isinstance(items, list) else items.tolist()
        except (IndexError, ValueError):
            return None

    single = outcome(lambda: [bytes(item) for _, item in tfrecord._fields(memoryview(content))])
    assert outcome(lambda: tfrecord._byte_items(memoryview(content))) == single


def test_a_dataset_of_tfds_is_exported_as_tfds_wrote_it(tmp_path: Path) -> None:
    """Its features have the same encoding, and its records the same values; frames stay lossless PNG."""
    source = DATA / "rlds/walk/1.0.0"
    el.import_dataset(source, tmp_path / "store")
    report = el.open(tmp_path / "store").export(tmp_path / "walk" / "1.0.0", format="rlds")
    assert report.files == (
        "dataset_info.json",
        "episodelake.json",
        "features.json",
        "walk-train.tfrecord-00000-of-00001",
    )
    ours, theirs = (
        json.loads((folder / "features.json").read_text())["featuresDict"]["features"]["steps"]
        for folder in (tmp_path / "walk" / "1.0.0", source)
    )
    ours, theirs = (each["sequence"]["feature"]["featuresDict"]["features"] for each in (ours, theirs))
    for side in ("image", "state", "mode"):
        assert (
            ours["observation"]["featuresDict"]["features"][side]
            == (theirs["observation"]["featuresDict"]["features"][side])
        )
    kept = ("steps/action", "steps/observation/state", "steps/observation/mode", "steps/is_first")
    kept = (*kept, "steps/is_last", "steps/is_terminal")
    originals = [
        each for split in ("train", "val") for file in source.glob(f"*{split}*") for each in records(file)
    ]
    for mine, original in zip(records(tmp_path / report.target / report.files[-1]), originals, strict=True):
        written, expected = read_example(mine), read_example(original)
        assert all(same(written[key], expected[key]) for key in kept)
        # Our rewards are float64, so they are bytes.
        rewards = np.frombuffer(b"".join(written["steps/reward"]))  # type: ignore[arg-type]
        assert np.array_equal(rewards, expected["steps/reward"])


def test_everything_comes_back_but_what_is_listed(tmp_path: Path) -> None:
    """Spaces, dtypes, infos, seeds, options, metadata and card; in files of limited size."""
    store = rich_store(tmp_path / "store")
    report = store.export(tmp_path / "walk", format="rlds", shard_bytes=9000)
    assert len([file for file in report.files if "tfrecord" in file]) > 1
    assert {what.partition(",")[0]: count for what, count in report.lost.items()} == {
        "that an episode was cut": 2,
        "that an episode that terminated was truncated as well": 1,
        **{f"info.{key}": 5 for key in ("deep.x%2Ey", "some")},
    }
    assert (report.episodes, report.steps) == (5, 15)
    assert dict(el.import_dataset(tmp_path / "walk", tmp_path / "again").lost) == {}
    again = el.open(tmp_path / "again")
    assert (again.observation_space, again.action_space) == (store.observation_space, store.action_space)
    assert again.card == store.card
    for back, expected in zip(again, store, strict=True):
        for name in (
            "observations",
            "actions",
            "rewards",
            "seed",
            "options",
            "extra",
            "policy",
            "terminated",
        ):
            assert same(getattr(back, name), getattr(expected, name)), name
        infos = {key: part for key, part in expected.info_arrays.items() if key not in UNHELD}
        assert same(back.info_arrays, infos)
        metadata = {key: part for key, part in back.metadata.items() if not key.startswith("source_")}
        assert same(metadata, expected.metadata)
        assert back.truncated is not back.terminated


@pytest.mark.further
def test_frames_may_stay_raw_and_last_observations_missing(tmp_path: Path) -> None:
    """An episode without its last observation ends with a transition, and comes back as it was."""
    space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(3))
    frames = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), np.uint8)
    with store.writer() as writer:
        writer.write_episode(
            observations=frames,
            actions=np.array([1, 2, 0]),
            rewards=np.array([np.nan, -0.0, 1.5]),
            terminations=True,
            truncations=False,
            infos={"cost": np.arange(3.0)},
            last_observation="missing",
        )
    report = store.refresh().export(tmp_path / "3d frames", format="rlds", images="raw")
    assert "dataset_3d_frames-train.tfrecord-00000-of-00001" in report.files
    assert dict(report.lost) == {"that an episode lacks its last observation: it ends with a transition": 1}
    el.import_dataset(tmp_path / "3d frames", tmp_path / "again")
    (episode,) = el.open(tmp_path / "again")
    assert not episode.has_last_observation and episode.terminated
    assert same(episode.observations, frames)
    assert np.array_equal(episode.rewards, [np.nan, -0.0, 1.5], equal_nan=True)
    assert same(episode.info_arrays, {"cost": np.arange(3.0)})


@pytest.mark.further
def test_what_rlds_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Before anything is written: spaces, options, an empty view, and losses with `strict`."""
    store = rich_store(tmp_path / "store")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"images": "jpeg"}, "images='jpeg' is unknown"),
        ({"shard_bytes": 0}, "shard_bytes=0"),
        ({"version": 1}, "version=1"),
        ({"name": "1walk"}, "name='1walk'"),
    ]
    for options, message in refused:
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            store.export(tmp_path / "out", format="rlds", **options)
    with pytest.raises(el.errors.DatasetError, match="rlds cannot hold everything: that an episode was cut"):
        store.export(tmp_path / "out", format="rlds", strict=True)
    ragged = spaces.Sequence(spaces.Discrete(3))
    other = el.create(tmp_path / "other", observation_space=ragged, action_space=spaces.Discrete(3))
    with other.writer() as writer:
        episode = writer.begin(ragged.sample())
        episode.append(0, 0.0, ragged.sample())
    with pytest.raises(el.errors.DatasetError, match="RLDS cannot hold observation, which is Sequence"):
        other.refresh().export(tmp_path / "out", format="rlds")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "store"]


@pytest.mark.further
def test_the_command_line_exports(tmp_path: Path) -> None:
    """`episodelake export --format rlds` and its options."""
    rich_store(tmp_path / "store")
    words = ("--option", "images=raw", "--option", "name=run")
    info: Any = json.loads(
        printed(
            "export", str(tmp_path / "store"), str(tmp_path / "out"), "--format", "rlds", *words, "--json"
        )
    )
    assert (info["episodes"], info["steps"]) == (5, 15)
    assert json.loads((tmp_path / "out/dataset_info.json").read_text())["name"] == "run"


@pytest.mark.further
@pytest.mark.parametrize("change", ["card", "spaces", "facts"])
def test_a_damaged_export_is_told(tmp_path: Path, change: str) -> None:
    """The spaces in the file beside the records must fit the records."""
    rich_store(tmp_path / "store").export(tmp_path / "out", format="rlds")
    file = tmp_path / "out" / ("features.json" if change == "facts" else "episodelake.json")
    content = json.loads(file.read_text())
    if change == "card":
        del content["card"]
    elif change == "facts":
        del content["featuresDict"]["features"]["episode_metadata"]["featuresDict"]["features"]["episodelake"]
    else:
        content["action_space"] = content["observation_space"]
    file.write_text(json.dumps(content))
    with pytest.raises(el.errors.DatasetError, match="our export writes"):
        el.import_dataset(tmp_path / "out", tmp_path / "again")
