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
from episodelake.testing.format_cases import write_episodes
from episodelake.testing.format_values import SPACES
from test_cli import printed

DATA = Path(__file__).parents[1] / "data" / "exchange"


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
    """Items of one length and of several, empty ones, and what is no list, with other bytes around them."""
    data, start = b"\x0a\x01" + content + b"\x0a\x01a", 2
    stop = start + len(content)

    def outcome(read: Callable[[], Any]) -> list[bytes] | None:
        try:
            items = read()
            return items if isinstance(items, list) else items.tolist()
        except (IndexError, ValueError):
            return None

    single = outcome(
        lambda: [tfrecord._content_of(data, field) for field in tfrecord._fields(data, start, stop)]
    )
    assert outcome(lambda: tfrecord._byte_items(data, start, stop)) == single


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
        for key in kept:  # where one has 0.0, the other may have -0.0
            assert written[key].dtype == expected[key].dtype and np.array_equal(written[key], expected[key])
        # Our rewards are float64, so they are bytes.
        rewards = np.frombuffer(b"".join(written["steps/reward"]))  # type: ignore[arg-type]
        assert np.array_equal(rewards, expected["steps/reward"])


@pytest.mark.further
def test_the_command_line_exports(tmp_path: Path) -> None:
    """`episodelake export --format rlds` and its options."""
    write_episodes(tmp_path / "store")
    words = ("--option", "images=raw", "--option", "name=run")
    info: Any = json.loads(
        printed(
            "export", str(tmp_path / "store"), str(tmp_path / "out"), "--format", "rlds", *words, "--json"
        )
    )
    assert (info["episodes"], info["steps"]) == (3, 6)
    assert json.loads((tmp_path / "out/dataset_info.json").read_text())["name"] == "run"


@pytest.mark.further
@pytest.mark.parametrize("change", ["card", "spaces", "facts"])
def test_a_damaged_export_is_told(tmp_path: Path, change: str) -> None:
    """The spaces in the file beside the records must fit the records."""
    write_episodes(tmp_path / "store", SPACES["dict"]).export(tmp_path / "out", format="rlds")
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
