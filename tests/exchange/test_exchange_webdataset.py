"""WebDataset shards, read by tarfile, NumPy and Pillow alone."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import episodelake as el
from episodelake.store.dynamic.values import load_json
from episodelake.testing.values import same
from exported_store import rich_store


def samples(folder: Path) -> dict[str, dict[str, Any]]:
    """The samples of all shards by key; their members by what follows the first dot, without case."""
    members: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.tar")):
        with tarfile.open(file) as shard:
            for member in shard:
                assert (member.mtime, member.uid, member.uname, member.mode) == (0, 0, "", 0o644)
                key, _, name = member.name.partition(".")
                reader = shard.extractfile(member)
                assert reader is not None
                parts = members.setdefault(key, {})
                assert name.lower() not in parts
                parts[name.lower()] = decoded(name, reader.read())
    return members


def decoded(name: str, data: bytes) -> Any:
    """The content of a member, by its suffix."""
    suffix = name.rpartition(".")[2]
    if suffix == "npy":
        return np.load(io.BytesIO(data), allow_pickle=False)
    if suffix == "png":
        return np.asarray(Image.open(io.BytesIO(data)))
    return data.decode() if suffix == "txt" else load_json(data.decode(), name)


def seen(episode: Any) -> dict[str, Any]:
    """Observations and actions of an episode by the names that their members must have."""
    values = episode.observations
    return {
        "observation.arm.a%2eb%2fc.npy": values["arm"]["a.b/c"],
        "observation.arm.a.npy": values["arm"]["A"],
        "observation.a.npy": values["A"],
        "observation.%61.npy": values["a"],
        "observation.flags.npy": values["flags"],
        "observation.bits.npy": values["bits"],
        "observation.front.npy": values["front"],
        "observation.pair.0.npy": values["pair"][0],
        "observation.wide.npy": values["wide"],
        "observation.none.npy": values["none"],
        "action.0.npy": episode.actions[0],
        "action.1.npy": episode.actions[1],
    }


def test_a_sample_is_an_episode(tmp_path: Path) -> None:
    """Arrays of T+1 and T rows, texts as lists, and all else in one JSON object; nothing is lost."""
    store = rich_store(tmp_path / "store")
    report = store.export(tmp_path / "out", format="webdataset", shard_episodes=2, strict=True)
    assert report.files == ("episodelake.json", *(f"shard-00000{index}.tar" for index in range(3)))
    written = samples(tmp_path / "out")
    assert list(written) == [f"{index:08d}" for index in range(5)]
    for parts, episode in zip(written.values(), store, strict=True):
        for name, expected in seen(episode).items():
            assert same(parts[name], expected), name
        assert parts["observation.pair.1.json"] == episode.observations["pair"][1]
        assert same(parts["reward.npy"], episode.rewards)
        assert same(parts["terminated.npy"], episode.terminations)
        assert same(parts["truncated.npy"], episode.truncations)
        infos = episode.info_arrays
        for name in ("cost", "ok", "count", "force", "grid"):
            assert same(parts[f"info.{name}.npy"], infos[name])
        assert parts["info.say.json"] == infos["say"]
        assert same(parts["policy.value.npy"], episode.policy["value"])
        assert same(parts["frame.npy"], episode.extra["frame"])
        facts = parts["json"]
        assert facts["steps"] == {"info.deep.x%2Ey": infos["deep"]["x.y"], "info.some": infos["some"]}
        for name in ("length", "end_reason", "seed", "options"):
            assert facts[name] == getattr(episode, name)
        assert same(facts["metadata"], episode.metadata)
    about = json.loads((tmp_path / "out/episodelake.json").read_text())
    assert (about["samples"], about["card"]) == ([2, 2, 1], store.card)
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    store.export(tmp_path / "out", format="webdataset", shard_episodes=2, overwrite=True)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == first


@pytest.mark.parametrize("images", ["png", pytest.param("raw", marks=pytest.mark.further)])
def test_a_sample_is_a_transition(tmp_path: Path, images: str) -> None:
    """With the observation before and after it, in shards of limited size."""
    store = rich_store(tmp_path / "store")
    options: Mapping[str, Any] = {"layout": "transitions", "shard_bytes": 1 << 17, "images": images}
    report = store.export(tmp_path / "out", format="webdataset", strict=True, **options)
    shards = [(tmp_path / "out" / name).stat().st_size for name in report.files if name.endswith("tar")]
    assert len(shards) > 2 and max(shards) <= 1 << 17
    written = samples(tmp_path / "out")
    assert len(written) == report.steps == 15
    for number, episode in enumerate(store):
        values, columns = episode.observations, seen(episode)
        infos, policy = episode.infos, episode.policy["value"]
        front = "front.png" if images == "png" else "front.npy"
        gray = values["gray"] if images == "raw" else values["gray"][..., 0]
        del columns["observation.front.npy"]
        for t in range(episode.length):
            parts = written[f"{number:08d}-{t:08d}"]
            assert all(same(parts[name], np.asarray(column[t])) for name, column in columns.items())
            for name, at in (("observation", t), ("next_observation", t + 1)):
                assert np.array_equal(parts[f"{name}.{front}"], values["front"][at])
                assert np.array_equal(parts[f"{name}.{front.replace('front', 'gray')}"], gray[at])
                assert parts[f"{name}.pair.1.txt"] == values["pair"][1][at]
            assert parts["reward.npy"] == episode.rewards[t]
            facts = parts["json"]
            assert (facts["t"], facts["terminated"]) == (t, bool(episode.terminations[t]))
            assert (facts["truncated"], facts["end_reason"]) == (
                bool(episode.truncations[t]),
                episode.end_reason,
            )
            assert same(facts["info"], infos[t]) and same(facts["next_info"], infos[t + 1])
            assert facts["policy"] == {"value": policy[t]} and facts["extra"]["mark"] == t
            assert (facts["seed"], facts["options"]) == (episode.seed, episode.options)


@pytest.mark.further
def test_samples_of_episodes_without_their_last_observation(tmp_path: Path) -> None:
    """Those of transitions need the observation after them."""
    store = el.create(
        tmp_path / "store", observation_space=spaces.Box(-1, 1, (2,)), action_space=spaces.Discrete(3)
    )
    with store.writer() as writer:
        for length in (3, 1):
            writer.write_episode(
                observations=np.zeros((length, 2), np.float32),
                actions=np.arange(length) % 3,
                rewards=np.zeros(length),
                terminations=True,
                truncations=False,
                last_observation="missing",
            )
    store = store.refresh()
    store.export(tmp_path / "whole", format="webdataset", strict=True)
    first = samples(tmp_path / "whole")["00000000"]
    assert len(first["observation.npy"]) == 3 and not first["json"]["has_last_observation"]
    report = store.export(tmp_path / "parts", format="webdataset", layout="transitions")
    assert (report.episodes, report.steps) == (1, 2)
    written = samples(tmp_path / "parts")
    assert list(written) == ["00000000-00000000", "00000000-00000001"]
    assert {"next_observation.npy", "action.npy"} <= written["00000000-00000001"].keys()
    assert "next_action.npy" not in written["00000000-00000001"]


@pytest.mark.further
def test_long_names_and_others_than_ascii_are_kept(tmp_path: Path) -> None:
    """They need an extended header, which tarfile and so WebDataset read."""
    names = ("größe", "x" * 150)
    space = spaces.Dict({name: spaces.Discrete(3) for name in names})
    store = el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(3))
    with store.writer() as writer:
        episode = writer.begin({name: 1 for name in names})
        episode.append(0, 1.0, {name: 2 for name in names}, terminated=True)
    store.refresh().export(tmp_path / "out", format="webdataset")
    (parts,) = samples(tmp_path / "out").values()
    assert all(np.array_equal(parts[f"observation.{name}.npy"], [1, 2]) for name in names)
