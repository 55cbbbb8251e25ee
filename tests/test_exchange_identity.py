"""Source keys tell datasets apart by what they hold, not by their names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.tfrecord import masked_crc
from episodelake.writers.importing.dataset import fingerprint

FURTHER = pytest.mark.further
DATA = Path(__file__).parent / "data" / "exchange"
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
#: Targets of exports: the names of files or folders, and options.
EXPORTED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "minari": ("minari", "walk", {}),
    "minari arrow": ("minari", "walk", {"data_format": "arrow"}),
    "d4rl": ("d4rl", "walk.hdf5", {}),
    "d3rlpy": ("d3rlpy", "walk.h5", {}),
    "robomimic": ("robomimic", "walk.hdf5", {}),
    "lerobot": ("lerobot", "walk", {}),
    "rllib rows": ("rllib", "walk", {"kind": "rows"}),
    "rllib episodes": ("rllib", "walk", {"kind": "episodes"}),
    "parquet": ("parquet", "walk.parquet", {}),
    "csv": ("csv", "walk.csv", {}),
}


def recorded(folder: Path, start: float) -> el.EpisodeStore:
    """A store with two truncated episodes that differ from those of another start in one value."""
    store = el.create(folder, observation_space=BOX, action_space=spaces.Box(-1, 1, (1,), np.float32))
    with store.writer() as writer:
        for number in range(2):
            observations = np.arange(10, dtype=np.float32).reshape(5, 2)
            observations[3, 0] = start + number
            writer.write_episode(
                observations=observations,
                actions=np.zeros((4, 1), np.float32),
                rewards=np.zeros(4),
                terminations=False,
                truncations=True,
            )
    return store.refresh()


@pytest.mark.parametrize(
    "kind",
    ["parquet", *(pytest.param(each, marks=FURTHER) for each in EXPORTED if each != "parquet")],
)
def test_copies_are_recognised_and_other_data_are_not_confused(tmp_path: Path, kind: str) -> None:
    """A dataset of the same name with another value adds its episodes; a renamed copy adds none."""
    format, name, options = EXPORTED[kind]
    target = el.create(
        tmp_path / "target", observation_space=BOX, action_space=spaces.Box(-1, 1, (1,), np.float32)
    )
    for start in (0.5, 70.5):
        folder = tmp_path / str(start)
        recorded(folder / "store", start).export(folder / name, format=format, **options)
        assert el.import_dataset(folder / name, target, cast="same_kind").episodes == 2
    (tmp_path / "copies").mkdir()
    copy = shutil.move(tmp_path / "70.5" / name, tmp_path / "copies" / f"other-{name}")
    report = el.import_dataset(copy, target, cast="same_kind")
    assert (report.episodes, report.present) == (0, 2)


@pytest.mark.further
def test_records_of_rlds_with_one_name_and_version_are_told_apart(tmp_path: Path) -> None:
    """Their `dataset_info.json` are equal; one record has another byte."""
    first, second = tmp_path / "a" / "walk", tmp_path / "b" / "moved"
    for folder in (first, second):
        shutil.copytree(next((DATA / "rlds").rglob("features.json")).parent, folder)
    assert el.import_dataset(first, tmp_path / "store").episodes
    assert el.import_dataset(second, tmp_path / "store").episodes == 0
    info = json.loads((second / "dataset_info.json").read_bytes())
    (file, *_) = sorted(second.glob(f"*{info['splits'][0]['name']}*tfrecord*"))
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[:8], "little")
    record = content[12 : 12 + size]
    place = record.rindex(b"\x3f\x00\x00", 0, size)
    record[place + 1] ^= 1
    content[12 : 12 + size] = record
    content[12 + size : 16 + size] = masked_crc(bytes(record)).to_bytes(4, "little")
    file.write_bytes(content)
    assert el.import_dataset(second, tmp_path / "store").episodes


@pytest.mark.further
def test_a_data_set_that_grows_keeps_its_identity(tmp_path: Path) -> None:
    """The rows of a new episode, of a table and of RLlib's, bring in that one alone."""
    rows = [
        {"eps_id": f"e{e}", "t": t, "obs": [float(e), t / 4], "actions": t % 2, "rewards": 0.0}
        for e in range(3)
        for t in range(3)
    ]
    extra = [{**row, "new_obs": [row["obs"][0], row["obs"][1] + 0.25]} for row in rows]
    for name in ("table", "rllib"):
        words: dict[str, Any] = {"format": name}
        if name == "table":
            words["mapping"] = el.ColumnMapping(
                observation="obs", action="actions", reward="rewards", episode="eps_id", step="t"
            )
        for count in (2, 3):
            pq.write_table(pa.Table.from_pylist(extra[: 3 * count]), tmp_path / "rows.parquet")
            report = el.import_dataset(tmp_path / "rows.parquet", tmp_path / name, **words)
            assert (report.episodes, report.present) == ((2, 0) if count == 2 else (1, 2))


def test_fingerprints_tell_values_shapes_and_nesting_apart() -> None:
    """Equal values in other containers, shapes or dtypes differ; equal ones are equal in another process."""
    array = np.arange(6, dtype=np.int64)
    different: list[Any] = [
        array,
        array.reshape(2, 3),
        array.astype(np.int32),
        array.tolist(),
        {"a": array},
        {"b": array},
        [array],
        [array, []],
        b"ab",
        "ab",
        ["a", "b"],
        None,
        0,
        False,
        0.0,
        float("nan"),
    ]
    assert len({fingerprint(part) for part in different}) == len(different)
    assert fingerprint(array, {"x": ["y", None]}) == fingerprint(array.copy(), {"x": ["y", None]})
    assert fingerprint(np.array([object()])) == fingerprint([object()])
    assert fingerprint("a", "b") != fingerprint("ab")
