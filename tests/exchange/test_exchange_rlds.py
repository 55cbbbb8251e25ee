"""RLDS datasets: written by TFDS (`data/exchange/make_rlds.py`), read without TensorFlow, and damaged."""

from __future__ import annotations

import json
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.exchange.rlds.tfrecord import crc32c, masked_crc, read_example

DATA = Path(__file__).parents[1] / "data" / "exchange"
KEYS = [f"{split}/{number}" for split in ("train", "val") for number in (0, 1)]
LENGTHS = {"0": 5, "1": 3}


def expected(name: str, key: str, column: str) -> np.ndarray:
    """What TFDS reads of a column in all steps of an episode."""
    facts = EXPECTED[name]
    return np.stack([facts[f"{key}/{t}/{column}"] for t in range(LENGTHS[key[-1]])])


EXPECTED = {name: dict(np.load(DATA / name / "expected.npz")) for name in ("rlds", "openx")}


@pytest.mark.parametrize(("name", "missing"), [("rlds", False), ("openx", True)])
def test_a_dataset_of_tfds_comes_in_as_tfds_reads_it(tmp_path: Path, name: str, missing: bool) -> None:
    """Every step of four episodes in two splits; PNG exactly, JPEG as near as its decoders are."""
    folder = DATA / name / "walk" / "1.0.0"
    report = el.import_dataset(folder, tmp_path / "store", last_observation="missing")
    assert (report.format, report.episodes, report.steps) == ("rlds", 4, 16 if missing else 12)
    if missing:
        assert report.lost == {"frames of lossy JPEG": 16, "a last observation, which the source lacks": 4}
    else:
        assert report.lost == {"the action of a last step, which is zero: taken as an observation alone": 4}
    store = el.open(tmp_path / "store")
    for key, episode in zip(KEYS, store, strict=True):
        seen: Any = episode.observations
        for column in ("state", "mode"):
            assert np.array_equal(seen[column], expected(name, key, column))
        apart = np.abs(seen["image"].astype(int) - expected(name, key, "image"))
        assert apart.max() <= (2 if missing else 0)
        assert np.array_equal(episode.actions, expected(name, key, "action")[: episode.length])
        assert np.array_equal(episode.rewards, expected(name, key, "reward")[: episode.length])
        assert episode.has_last_observation is not missing
        assert episode.metadata["level"] == EXPECTED[name][f"{key}/level"]
        assert episode.metadata["split"] == key.partition("/")[0]
        assert episode.metadata.get("language_instruction") == ("pick it up" if missing else None)
        assert episode.extra["rlds"]["observation"]["language"][1] == "seen 1"
    assert [episode.end_reason for episode in store] == ["terminated", "truncated"] * 2
    assert store.card["citation"] == "Nobody, 2026"
    assert not store.verify().faults
    again = el.import_dataset(folder, store, last_observation="missing")
    assert (again.episodes, again.present) == (0, 4)


def test_a_file_of_records_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two episodes in each of two files, both read twice: one opening finds the records, one reads them."""
    opened: list[str] = []
    original = Path.open

    def spy(self: Path, *args: Any, **options: Any) -> Any:
        opened.append(self.name)
        return original(self, *args, **options)

    monkeypatch.setattr(Path, "open", spy)
    el.import_dataset(DATA / "rlds/walk/1.0.0", tmp_path / "store")
    counts = Counter(name for name in opened if "tfrecord" in name)
    assert list(counts.values()) == [4, 4]


@pytest.mark.parametrize(
    ("last_step", "last_observation", "lengths", "ends"),
    [
        ("observation", "drop", [4, 2], ["terminated", "truncated"]),
        ("transition", "drop", [4, 2], ["cut", "cut"]),
        ("transition", "repeat", [5, 3], ["terminated", "truncated"]),
    ],
)
@pytest.mark.further
def test_the_caller_decides_what_a_last_step_is(
    tmp_path: Path, last_step: Any, last_observation: Any, lengths: list[int], ends: list[str]
) -> None:
    """An observation ends the episode as it says; a transition is dropped, or its observation repeated."""
    el.import_dataset(
        DATA / "rlds/walk/1.0.0", tmp_path / "s", last_step=last_step, last_observation=last_observation
    )
    episodes = [(episode.length, episode.end_reason) for episode in el.open(tmp_path / "s")]
    assert episodes == list(zip(lengths, ends, strict=True)) * 2


def copied(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of a dataset, and its first file of records."""
    folder = tmp_path / "copy"
    shutil.copytree(DATA / "rlds/walk/1.0.0", folder)
    return folder, folder / "walk-train.tfrecord-00000-of-00001"


@pytest.mark.further
def test_a_damaged_record_is_named_or_skipped(tmp_path: Path) -> None:
    """A flipped bit fails its checksum; the other episodes come in with `on_error="skip"`."""
    folder, file = copied(tmp_path)
    data = bytearray(file.read_bytes())
    data[300] ^= 1
    file.write_bytes(data)
    with pytest.raises(el.errors.DatasetError, match="the record at byte 0 is damaged; its checksum differs"):
        el.import_dataset(folder, tmp_path / "store")
    report = el.import_dataset(folder, tmp_path / "store", on_error="skip")
    assert [key for key, _ in report.skipped] == ["train/0"] and report.episodes == 3


@pytest.mark.further
def test_truncated_files_and_other_formats_are_told(tmp_path: Path) -> None:
    """The file and the record are named; the target is not made."""
    folder, file = copied(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    with pytest.raises(
        el.errors.DatasetError, match=r"walk-train.*record 1 ends at byte 2876, the file at 2869"
    ):
        el.import_dataset(folder, tmp_path / "store")
    file.write_bytes(whole[:3])
    with pytest.raises(el.errors.DatasetError, match="is truncated in record 0"):
        el.import_dataset(folder, tmp_path / "store2")
    file.write_bytes(b"\x01" + whole[1:])
    with pytest.raises(el.errors.DatasetError, match="the length of record 0 is damaged"):
        el.import_dataset(folder, tmp_path / "store3")
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "riegeli"}))
    with pytest.raises(el.errors.DatasetError, match="fileFormat is 'riegeli'; only tfrecord can be read"):
        el.import_dataset(folder, tmp_path / "store4")
    info["splits"][0]["filepathTemplate"] = "../{DATASET}"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(el.errors.DatasetError, match="leads out of the dataset"):
        el.import_dataset(folder, tmp_path / "store5")
    with pytest.raises(el.errors.DatasetError, match="give the folder of the version"):
        el.import_dataset(DATA / "rlds/walk", tmp_path / "store6", format="rlds")


def test_checksums_are_those_of_the_standard() -> None:
    """Known values of RFC 3720, and records that TensorFlow wrote."""
    known = {b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, b"": 0}
    assert {data: crc32c(data) for data in known} == known
    data = (DATA / "rlds/walk/1.0.0/walk-val.tfrecord-00000-of-00001").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert struct.unpack("<I", data[8:12])[0] == masked_crc(data[:8])
    assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked_crc(data[12 : 12 + length])


@pytest.mark.further
def test_integers_of_all_sizes_are_read_and_nonsense_is_refused() -> None:
    """Packed and single ones, also negative; bytes that are no message raise a `DatasetError`."""

    def message(field: int, content: bytes) -> bytes:
        return bytes([field << 3 | 2, len(content)]) + content

    def varint(value: int) -> bytes:
        value &= (1 << 64) - 1
        values = []
        while value > 127:
            values.append(value & 127 | 128)
            value >>= 7
        return bytes([*values, value])

    numbers = [0, 1, 127, 128, 300, -1, -(1 << 63), (1 << 63) - 1]
    packed = message(1, b"".join(map(varint, numbers)))
    single = b"".join(b"\x08" + varint(number) for number in numbers)
    for content in (packed, single):
        entry = message(1, b"n") + message(2, message(3, content))
        values = read_example(message(1, message(1, entry)))
        assert list(values["n"]) == numbers
    for nonsense in (b"\xff", b"\x0a\xff\xff", b"\x0f", b"hello world"):
        with pytest.raises(el.errors.DatasetError, match=r"no tf\.train\.Example"):
            read_example(nonsense)


def foreign(folder: Path, episodes: list[tuple[list[float], list[float]]], *, observed: bool) -> Path:
    """An RLDS dataset of another program, by the actions and rewards of its episodes.

    With `observed`, each ends with a step that has an observation alone, and zeros for the rest.
    """
    space = spaces.Box(-9, 9, (1,), np.float32)
    store = el.create(folder / "source", observation_space=space, action_space=space)
    with store.writer() as writer:
        for actions, rewards in episodes:
            writer.write_episode(
                observations=np.arange(len(rewards) + observed, dtype=np.float32)[:, None],
                actions=np.array(actions, np.float32)[:, None],
                rewards=np.array(rewards),
                terminations=True,
                truncations=False,
                last_observation="present" if observed else "missing",
            )
    (folder / "walk").mkdir()
    store.refresh().export(folder / "walk/1.0.0", format="rlds")
    (folder / "walk/1.0.0/episodelake.json").unlink()
    return folder / "walk/1.0.0"


def test_last_steps_are_one_thing_for_the_whole_dataset(tmp_path: Path) -> None:
    """A terminal reward beside an action of zero makes all last steps transitions; zeros alone do not."""
    walks = [([1.0, 0.0], [0.0, 5.0]), ([2.0, 0.0], [0.0, 0.0]), ([3.0, 1.0], [0.0, 0.0])]
    source = foreign(tmp_path, walks, observed=False)
    report = el.import_dataset(source, tmp_path / "store", last_observation="missing")
    rows = [(each.actions[:, 0].tolist(), each.rewards.tolist()) for each in el.open(tmp_path / "store")]
    assert rows == walks
    assert not [what for what in report.lost if "zero" in what]
    padded = foreign(tmp_path / "padded", walks, observed=True)
    report = el.import_dataset(padded, tmp_path / "padded/store")
    rows = [
        (each.actions[:, 0].tolist(), each.rewards.tolist()) for each in el.open(tmp_path / "padded/store")
    ]
    assert rows == walks
    assert report.lost["the action of a last step, which is zero: taken as an observation alone"] == 3


def test_values_beside_a_last_observation_count_as_lost(tmp_path: Path) -> None:
    """Where the caller says that last steps are observations, an action or reward there is not kept."""
    source = foreign(tmp_path, [([1.0, 0.0], [0.0, 5.0]), ([2.0, 0.0], [0.0, 0.0])], observed=False)
    report = el.import_dataset(source, tmp_path / "store", last_step="observation")
    assert report.lost["an action and reward beside a last observation, which lead to none"] == 1
    assert report.steps == 2


@pytest.mark.parametrize("step", ["transition", "observation"])
def test_episodes_without_a_transition_count_as_lost(tmp_path: Path, step: Any) -> None:
    """An episode of one step does not stop an import, whatever its step is; the others come in."""
    source = foreign(tmp_path, [([1.0], [1.0]), ([2.0, 3.0], [1.0, 1.0]), ([4.0], [1.0])], observed=False)
    rule: Any = {"last_step": step, "last_observation": "drop"}
    for dry in (True, False):
        report = el.import_dataset(source, tmp_path / "store", dry_run=dry, **rule)
    word = "one transition, whose next observation is missing" if step == "transition" else "no transition"
    assert report.episodes == 1
    assert [count for what, count in report.lost.items() if word in what] == [2]
    again = el.import_dataset(source, tmp_path / "store", **rule)
    assert (again.episodes, again.present) == (0, 1)
