"""The handler for Isaac Lab's recorder, called as its `RecorderManager` calls one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import episodelake as el
from episodelake.integrations.isaaclab import StoreFileHandler

COUNT = 5


class EpisodeData:
    """Isaac Lab's: nested dicts of tensors, and what the recorder sets."""

    def __init__(self, seed: int | None = None, success: bool | None = None) -> None:
        self.data: dict[str, Any] = {}
        self.seed, self.success = seed, success

    def is_empty(self) -> bool:
        """Return whether nothing was recorded."""
        return not self.data

    def add(self, key: str, value: torch.Tensor) -> None:
        """Append the value of a step."""
        *groups, name = key.split("/")
        inner = self.data
        for group in groups:
            inner = inner.setdefault(group, {})
        rows = [inner[name]] if name in inner else []
        inner[name] = torch.cat([*rows, value.unsqueeze(0)])


def recorded(seed: int, count: int = COUNT) -> EpisodeData:
    """Return an episode with the terms of `ActionStateRecorderManagerCfg`."""
    generator = torch.Generator().manual_seed(seed)
    episode = EpisodeData(seed=seed, success=seed % 2 == 0)
    episode.add("initial_state/articulation/robot/joint_position", torch.rand(9, generator=generator))
    for _ in range(count):
        episode.add("actions", torch.rand(7, generator=generator))
        episode.add("obs/joint_pos", torch.rand(9, generator=generator))
        episode.add("obs/cam", torch.randint(0, 255, (4, 4, 3), dtype=torch.uint8, generator=generator))
        episode.add("states/articulation/robot/joint_position", torch.rand(9, generator=generator))
        episode.add("processed_actions", torch.rand(7, generator=generator))
    return episode


def in_hdf5(path: Path, episodes: list[EpisodeData]) -> None:
    """Write the file of Isaac Lab's own handler."""

    def write(group: Any, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, Mapping):
                write(group.create_group(name), value)
            else:
                group.create_dataset(name, data=value.cpu().numpy(), compression="gzip")

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"total": COUNT, "env_args": json.dumps({"env_name": "Isaac-Lift", "type": 2})})
        for index, episode in enumerate(episodes):
            demo = data.create_group(f"demo_{index}")
            demo.attrs.update(
                num_samples=len(episode.data["actions"]), seed=episode.seed, success=episode.success
            )
            write(demo, episode.data)


def test_episodes_are_those_of_the_file_that_isaac_lab_writes(tmp_path: Path) -> None:
    """With the same values, step columns and metadata; a second recorder adds a run."""
    episodes = [recorded(seed, COUNT + seed) for seed in (1, 2)]
    handler = StoreFileHandler()
    handler.create(f"{tmp_path}/logs/dataset", env_name="Isaac-Lift")
    handler.add_env_args({"sim_args": {"dt": 0.01, "decimation": 2}})
    handler.write_episode(EpisodeData())
    for number, episode in enumerate(episodes, 1):
        handler.write_episode(episode)
        handler.flush()
        assert (handler.get_num_episodes(), handler.get_env_name()) == (number, "Isaac-Lift")
    handler.close()
    handler.close()
    in_hdf5(tmp_path / "dataset.hdf5", episodes)
    report = el.import_dataset(tmp_path / "dataset.hdf5", tmp_path / "imported")
    assert dict(handler.lost) == dict(report.lost)
    store = el.open(tmp_path / "logs/dataset")
    assert store.runs.collect()["metadata.env_args.sim_args.dt"].to_list() == [0.01]
    for ours, theirs in zip(store, el.open(tmp_path / "imported"), strict=True):
        for name in ("observations", "actions", "rewards", "extra"):
            assert str(getattr(ours, name)) == str(getattr(theirs, name))
        keys = ("seed", "success", "initial_state")
        assert [ours.metadata[key] for key in keys] == [theirs.metadata[key] for key in keys]
    assert np.array_equal(store[1].actions, episodes[1].data["actions"].numpy())
    again = StoreFileHandler()
    again.create(f"{tmp_path}/logs/dataset")
    again.write_episode(recorded(3))
    again.close()
    assert (len(store.refresh()), len(store.runs.collect())) == (3, 2)


def test_recorded_episodes_survive_their_process(tmp_path: Path) -> None:
    """A handler that is never closed leaves a journal, which a recovery brings into the store."""
    handler = StoreFileHandler()
    handler.create(str(tmp_path / "store"))
    handler.write_episode(recorded(1))
    handler.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    el.recover(tmp_path / "copy")
    assert len(el.open(tmp_path / "copy")) == 1
    handler.close()


def test_handlers_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    """To read, to record before `create`, a second path, and an episode that does not fit the store."""
    handler = StoreFileHandler()
    with pytest.raises(el.errors.InvalidArgumentError, match=r"Call create\(file_path\) first"):
        handler.write_episode(recorded(1))
    with pytest.raises(el.errors.InvalidArgumentError, match=r"episodelake\.open"):
        handler.load_episode("demo_0", "cpu")
    handler.create(str(tmp_path / "store"))
    with pytest.raises(el.errors.InvalidArgumentError, match="already"):
        handler.create(str(tmp_path / "other"))
    handler.add_env_args({"seed": {1, 2}})
    with pytest.raises(el.errors.InvalidArgumentError, match=r"add_env_args.* is not JSON"):
        handler.write_episode(recorded(1))
    handler.add_env_args({"seed": [1, 2]})
    handler.write_episode(recorded(1))
    wrong = recorded(2)
    wrong.data["actions"] = wrong.data["actions"][:, :3]
    with pytest.raises(el.errors.SpaceMismatchError):
        handler.write_episode(wrong)
    short = recorded(3)
    short.data["obs"]["joint_pos"] = short.data["obs"]["joint_pos"][:-1]
    with pytest.raises(el.errors.DatasetError, match="joint_pos"):
        handler.write_episode(short)
    handler.close()
    assert len(el.open(tmp_path / "store")) == 1
