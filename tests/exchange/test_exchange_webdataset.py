"""Shards of WebDataset: their members, sizes and bytes; the contract of formats reads what samples hold."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
from gymnasium import spaces

import episodelake as el
from episodelake.testing.format_cases import write_episodes
from episodelake.testing.format_compare import unlike
from episodelake.testing.format_values import SPACES, VECTOR
from webdataset_samples import sample_differences, samples, transitions

#: Names that need an escape, that differ in their case alone, and that need a longer header.
ODD = {"arm": spaces.Dict({"a.b/c": VECTOR, "A": VECTOR}), "a": VECTOR, "A": VECTOR, "größe": VECTOR}
ODD |= {"aB": VECTOR, "Ab": VECTOR}
ODD |= {"x" * 150: VECTOR, "front": SPACES["image"], "gray": SPACES["grey"], "pair": SPACES["tuple"]}
ENDS = [(4, True, False), (3, False, True), (2, False, False), (5, True, True), (1, False, False)]


def members(folder: Path) -> list[list[str]]:
    """The names of the members of each shard."""
    found = []
    for file in sorted(folder.glob("*.tar")):
        with tarfile.open(file) as shard:
            found.append(shard.getnames())
    return found


def recorded(path: Path) -> el.EpisodeStore:
    """Five episodes, one for each way to end."""
    return write_episodes(
        path, spaces.Dict(ODD), spaces.Tuple([VECTOR, spaces.Text(5)]), episodes=ENDS, card={"title": "T"}
    )


def test_a_sample_is_an_episode(tmp_path: Path) -> None:
    """Members have the names of the columns, and none differs from another in its case alone."""
    store = recorded(tmp_path / "store")
    report = store.export(tmp_path / "out", format="webdataset", shard_episodes=2, strict=True)
    assert report.files == ("episodelake.json", *(f"shard-00000{index}.tar" for index in range(3)))
    assert sample_differences(store, tmp_path / "out") == []
    assert sorted(name for name in members(tmp_path / "out")[0] if name.startswith("00000001")) == sorted(
        f"00000001.{name}"
        for name in (
            *("observation.A.npy", "observation.%61.npy", "observation.arm.A.npy"),
            *("observation.Ab.npy", "observation.%61%42.npy"),
            *("observation.arm.a%2Eb%2Fc.npy", "observation.front.npy", "observation.gray.npy"),
            *("observation.größe.npy", f"observation.{'x' * 150}.npy", "observation.pair.0.npy"),
            *("observation.pair.1.npy", "action.0.npy", "action.1.json", "reward.npy", "terminated.npy"),
            *("truncated.npy", "json"),
        )
    )
    about = json.loads((tmp_path / "out/episodelake.json").read_text())
    assert (about["samples"], about["card"]) == ([2, 2, 1], {"title": "T"})
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    store.export(tmp_path / "out", format="webdataset", shard_episodes=2, overwrite=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == first


def test_a_sample_is_a_transition(tmp_path: Path) -> None:
    """Its keys have the numbers of the episode and of the step; frames are PNG."""
    store = recorded(tmp_path / "store")
    store.export(
        tmp_path / "out", format="webdataset", layout="transitions", shard_bytes=1 << 16, strict=True
    )
    sizes = [file.stat().st_size for file in (tmp_path / "out").glob("*.tar")]
    assert len(sizes) > 2 and max(sizes) <= 1 << 16
    assert [*unlike(store, [*transitions(tmp_path / "out", store)])] == []
    found = samples(tmp_path / "out")
    assert list(found) == [f"{n:08d}-{t:08d}" for n, (length, *_) in enumerate(ENDS) for t in range(length)]
    gray = found["00000000-00000001"]["next_observation", "gray"]
    assert np.array_equal(gray, store[0].observations["gray"][2, ..., 0])
    names = {name.partition(".")[2] for name in members(tmp_path / "out")[0]}
    assert {"observation.front.png", "next_observation.gray.png", "action.1.txt"} <= names
