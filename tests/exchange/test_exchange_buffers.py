"""Replay buffers as Tianshou, Stable-Baselines3 and TorchRL save them, against the rows that were added.

The files are those of `tests/data/exchange/make_buffers.py`. `test_exchange_buffer_peers.py` compares
objects in memory, which need these packages.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

import episodelake as el

DATA = Path(__file__).parents[1] / "data" / "exchange"
SIZE = 20
BEGUN = "the beginning of the first episode of a full buffer, whose rows newer ones may have replaced"
DROPPED = "a last transition, whose next observation is missing"


def added() -> tuple[dict[str, np.ndarray], list[tuple[int, int, int]]]:
    """The rows that were added, and the lane, first row and end of each episode that the buffers keep."""
    with np.load(DATA / "buffers.npz") as file:
        rows = dict(file)
    steps = len(rows["rew"])
    episodes = []
    for lane in range(2):
        start = steps - SIZE
        for row in range(start, steps):
            if rows["terminated"][row, lane] or rows["truncated"][row, lane] or row == steps - 1:
                episodes.append((lane, start, row + 1))
                start = row + 1
    return rows, episodes


@pytest.mark.parametrize("name", ["tianshou.hdf5", pytest.param("torchrl-dumps", marks=pytest.mark.further)])
def test_a_file_has_the_rows_that_were_added(tmp_path: Path, name: str) -> None:
    """From the oldest on, environment by environment, with infos at the observation that they came with."""
    rows, expected = added()
    report = el.import_dataset(DATA / name, tmp_path / "store")
    assert (report.format, dict(report.lost)) == (name.partition(".")[0].partition("-")[0], {BEGUN: 2})
    store = el.open(tmp_path / "store")
    assert len(store) == len(expected)
    for episode, (lane, start, stop) in zip(store, expected, strict=True):
        last = rows["obs_next"][stop - 1 : stop, lane]
        assert np.array_equal(episode.observations, np.concatenate([rows["obs"][start:stop, lane], last]))
        assert np.array_equal(episode.actions, rows["act"][start:stop, lane])
        assert np.array_equal(episode.rewards, rows["rew"][start:stop, lane])
        ends = rows["terminated"][stop - 1, lane], rows["truncated"][stop - 1, lane]
        assert (episode.terminated, episode.truncated) == ends
        assert [row.get("cost") for row in episode.infos] == [None, *rows["cost"][start:stop, lane]]
    steps = store.steps.filter(pl.col("action").is_not_null()).collect()
    logits = np.concatenate([rows["logits"][start:stop, lane] for lane, start, stop in expected])
    assert np.array_equal(steps["policy.logits"].to_list(), logits)
    assert store.episodes.collect()["env_index"].to_list() == [lane for lane, _, _ in expected]
    assert el.import_dataset(DATA / name, store).present == len(expected)


@pytest.mark.further
def test_tianshou_pickles_are_not_read(tmp_path: Path) -> None:
    """Infos of objects are lost, observations of objects are refused."""
    for name in ("_meta/info/cost", "_meta/obs"):
        path = tmp_path / "a.hdf5"
        shutil.copy(DATA / "tianshou.hdf5", path)
        with h5py.File(path, "r+") as file:
            del file[name]
            file[name] = np.frombuffer(b"no pickle", np.int8)
            file[name].attrs["__data_type__"] = "pickled_ndarray"
        if name == "_meta/obs":
            with pytest.raises(el.errors.DatasetError, match="obs has the dtype object"):
                el.import_dataset(path, tmp_path / "store")
        else:
            report = el.import_dataset(path, tmp_path / "store", dry_run=True)
            assert report.lost["info.cost, whose values are no numbers"] == 1
    assert not (tmp_path / "store").exists()


def test_sb3_pickles_need_trust(tmp_path: Path) -> None:
    """A pickle is recognised by its first bytes, and read only with `trust`, by the package itself."""
    with pytest.raises(
        el.errors.DatasetError, match=r"sb3_buffer\.pkl is pickled, .* run any code. Pass trust=True"
    ):
        el.import_dataset(DATA / "sb3_buffer.pkl", tmp_path / "store")
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04 any other pickle")
    with pytest.raises(el.errors.DatasetError, match="no known format"):
        el.import_dataset(tmp_path / "a.pkl", tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.peers
def test_a_pickle_of_sb3_has_the_rows_that_were_added(tmp_path: Path) -> None:
    """From the oldest on; what was truncated and terminated is terminated."""
    pytest.importorskip("stable_baselines3")
    rows, expected = added()
    report = el.import_dataset(DATA / "sb3_buffer.pkl", tmp_path / "store", trust=True)
    assert dict(report.lost) == {BEGUN: 2}
    for episode, (lane, start, stop) in zip(el.open(tmp_path / "store"), expected, strict=True):
        assert np.array_equal(episode.observations[:-1], rows["obs"][start:stop, lane])
        assert np.array_equal(episode.observations[-1], rows["obs_next"][stop - 1, lane])
        assert np.array_equal(episode.rewards, rows["rew"][start:stop, lane].astype(np.float32))
        assert episode.terminated == rows["terminated"][stop - 1, lane]
        assert episode.truncated == (rows["truncated"][stop - 1, lane] and not episode.terminated)


def ted(rows: int = 12, every: int = 4, **following: Any) -> TensorDict:
    """Transitions of episodes of `every` steps."""
    random = np.random.default_rng(0)
    done = torch.arange(rows)[:, None] % every == every - 1
    walk = torch.from_numpy(random.normal(size=(rows + 1, 3)).astype(np.float32))
    given = {
        "observation": walk[1:],
        "reward": torch.ones(rows, 1),
        "terminated": done,
        "done": done,
        **following,
    }
    return TensorDict(
        {
            "observation": walk[:-1],
            "action": torch.arange(rows) % 3,
            "next": {name: value for name, value in given.items() if value is not None},
        },
        [rows],
    )


def test_torchrl_in_memory(tmp_path: Path) -> None:
    """Trajectories that take turns are put in order, and one without a flag is cut where its id changes."""
    data = ted(rows=10)
    turns = torch.arange(10).reshape(2, 5).T.reshape(-1)
    data["collector", "traj_ids"] = torch.arange(10) // 5
    data["next", "terminated"], data["next", "done"] = torch.zeros(2, 10, 1, dtype=torch.bool)
    data["next", "truncated"] = torch.arange(10)[:, None] == 4
    report = el.import_dataset(data[turns], tmp_path / "store")
    assert dict(report.lost) == {}
    episodes = list(el.open(tmp_path / "store"))
    assert [(each.length, each.end_reason) for each in episodes] == [(5, "truncated"), (5, "cut")]
    for episode, start in zip(episodes, (0, 5), strict=True):
        assert np.array_equal(episode.observations[:-1], data["observation"][start : start + 5])
        assert np.array_equal(episode.observations[-1], data["next", "observation"][start + 4])


@pytest.mark.further
def test_torchrl_numbers_that_numpy_lacks(tmp_path: Path) -> None:
    """They are widened, as for recorders; gradients are dropped."""
    data = ted()
    for keys in (("observation",), ("next", "observation")):
        data[keys] = data[keys].bfloat16().requires_grad_()
    el.import_dataset(data, tmp_path / "store")
    (first, *_) = el.open(tmp_path / "store")
    assert first.observations.dtype == np.float32
    assert np.array_equal(first.observations[:4], data["observation"][:4].detach().float().numpy())


def test_torchrl_next_observations_that_are_missing(tmp_path: Path) -> None:
    """`last_observation` decides for zeros behind all flags, NaN, or no key; zeros behind some are values."""
    data = ted()
    done = data["next", "done"][:, 0]
    given = data["next", "observation"]
    rows = torch.arange(12)[:, None]
    cases = {
        "zeros": (torch.where(done[:, None], 0.0, given), [3, 3, 3]),
        "some": (torch.where(rows == 3, 0.0, given), [4, 4, 4]),
        "nan": (torch.where(rows == 3, torch.nan, given), [3, 4, 4]),
        "none": (None, [3, 3, 3]),
    }
    for name, (following, lengths) in cases.items():
        report = el.import_dataset(ted(observation=following), tmp_path / name, last_observation="drop")
        assert [episode.length for episode in el.open(tmp_path / name)] == lengths
        assert report.lost.get(DROPPED, 0) == 12 - sum(lengths)


@pytest.mark.further
def test_torchrl_keys_and_padding(tmp_path: Path) -> None:
    """The caller names observations, padding is left out, and counters are infos."""
    data = ted().reshape(3, 4)
    data["pixels"] = torch.arange(12 * 4, dtype=torch.uint8).reshape(3, 4, 2, 2)
    data["collector", "mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    data["next", "step_count"] = torch.arange(12).reshape(3, 4, 1)
    options = {"mapping": {"observation": "pixels"}, "last_observation": "missing"}
    el.import_dataset(data, tmp_path / "store", **options)
    store = el.open(tmp_path / "store")
    assert [(each.length, each.end_reason) for each in store] == [(4, "terminated"), (2, "cut"), (1, "cut")]
    assert np.array_equal(store[1].observations, data["pixels"][1, :2])
    assert [row.get("step_count") for row in store[1].infos] == [None, 4, 5]
    steps = store.steps.filter(pl.col("action").is_not_null()).collect()
    assert np.array_equal(steps["policy.observation"].to_list()[4:6], data["observation"][1, :2])
    with pytest.raises(el.errors.InvalidArgumentError, match="other keys"):
        el.import_dataset(data, store, mapping={"obs": "pixels"})
    with pytest.raises(el.errors.DatasetError, match="has no pixel; it has"):
        el.import_dataset(data, store, mapping={"observation": "pixel"})


@pytest.mark.further
def test_torchrl_done_alone_is_cut(tmp_path: Path) -> None:
    """It does not tell why an episode ended; with one of the flags it gives the other."""
    report = el.import_dataset(ted(terminated=None), tmp_path / "a")
    assert sum(report.lost.values()) == 3
    assert {episode.end_reason for episode in el.open(tmp_path / "a")} == {"cut"}
    el.import_dataset(ted(terminated=torch.zeros(12, 1, dtype=torch.bool)), tmp_path / "b")
    assert {episode.end_reason for episode in el.open(tmp_path / "b")} == {"truncated"}


@pytest.mark.further
def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    """A file that is too short, and a folder without an action, name themselves."""
    shutil.copytree(DATA / "torchrl-dumps", tmp_path / "a")
    (tmp_path / "a" / "storage" / "action.memmap").write_bytes(b"12")
    with pytest.raises(el.errors.DatasetError, match="a cannot be read"):
        el.import_dataset(tmp_path / "a", tmp_path / "store")
    meta = tmp_path / "a" / "storage" / "meta.json"
    entries = json.loads(meta.read_text())
    del entries["action"]
    meta.write_text(json.dumps(entries))
    with pytest.raises(el.errors.DatasetError, match="expected TED"):
        el.import_dataset(tmp_path / "a", tmp_path / "store")


@pytest.mark.further
def test_episodes_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    """Many episodes are written at a time; the one whose action is no action of the space is named."""
    data = ted()
    data["action"] = torch.zeros(12, 2, dtype=torch.int8)
    data["action"][5, 1] = 2
    space = spaces.MultiBinary(2)
    with pytest.raises(el.errors.SpaceMismatchError, match="Episode 1, row"):
        el.import_dataset(data, tmp_path / "a", action_space=space)
    report = el.import_dataset(data, tmp_path / "b", action_space=space, on_error="skip")
    assert (report.episodes, [key for key, _ in report.skipped]) == (2, ["1"])
    assert [episode.length for episode in el.open(tmp_path / "b")] == [4, 4]
