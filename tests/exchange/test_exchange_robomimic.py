"""robomimic files (tests/data/exchange/make_robomimic.py): its trajectories are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el

DATA = Path(__file__).parents[1] / "data" / "exchange"
FILE = DATA / "robomimic.hdf5"
NAMES = ("object", "robot0_eef_pos")


def check(store: el.EpisodeStore, read: dict[str, np.ndarray]) -> None:
    """Compare a store with the trajectories that robomimic reads."""
    for index, episode in enumerate(store):
        for name in NAMES:
            assert np.array_equal(episode.observations[name][:-1], read[f"{index}/obs/{name}"])
            assert np.array_equal(episode.observations[name][1:], read[f"{index}/next_obs/{name}"])
        assert np.array_equal(episode.actions, read[f"{index}/actions/"])
        assert np.array_equal(episode.rewards, read[f"{index}/rewards/"])
        assert np.array_equal(episode.terminations, read[f"{index}/dones/"] == 1)
        assert np.array_equal(np.stack(episode.extra["states"][: episode.length]), read[f"{index}/states/"])


def test_trajectories_are_those_that_robomimic_reads(tmp_path: Path) -> None:
    """In the order of their numbers, with states, masks, attributes and the arguments of the environment."""
    report = el.import_dataset(FILE, tmp_path / "store")
    assert (report.format, report.episodes, dict(report.lost)) == ("robomimic", 3, {})
    store = el.open(tmp_path / "store")
    check(store, np.load(DATA / "robomimic.npz"))
    assert [episode.end_reason for episode in store] == ["terminated", "cut", "terminated"]
    assert [episode.metadata["splits"] for episode in store] == [["train"], ["valid"], ["50", "train"]]
    assert store[1].metadata["model_file"] == "<mujoco model='2'/>"
    assert store.card == {"env_args": {"env_name": "Lift", "type": 1, "env_kwargs": {"freq": 20}}}
    assert el.import_dataset(FILE, store).present == 3


def changed(path: Path, *without: str, **replaced: Any) -> Path:
    """A copy of the file without some names, and with other arrays in demo_2."""
    path.write_bytes(FILE.read_bytes())
    with h5py.File(path, "r+") as file:
        for name in without:
            del file[name]
        for name, value in replaced.items():
            del file[f"data/demo_2/{name}"]
            file[f"data/demo_2/{name}"] = value
    return path


@pytest.mark.further
def test_dones_before_the_last_row_are_counted(tmp_path: Path) -> None:
    """They end no episode."""
    without = [f"data/demo_{number}/next_obs" for number in (0, 2, 10)]
    path = changed(tmp_path / "a.hdf5", *without, dones=np.array([0, 1, 1, 1, 1]))
    report = el.import_dataset(path, tmp_path / "store")
    assert report.lost["dones before the last row"] == 3
    store = el.open(tmp_path / "store")
    assert [(each.length, each.end_reason) for each in store] == [(n, "terminated") for n in (3, 5, 4)]


@pytest.mark.parametrize(
    ("without", "replaced", "message"),
    [
        (["data/demo_2/obs"], {}, r"demo_2 has no obs; it has .*\. robomimic's dataset_states_to_obs\.py"),
        ([], {"actions": np.zeros((4, 2))}, r"demo_2: actions has 4 rows, but rewards has 5"),
        ([], {"dones": np.full(5, 3.0)}, r"demo_2: dones: row 0 is 3\.0"),
        (["data/demo_2/obs/object"], {}, r"demo_2: obs has no object; it has robot0_eef_pos"),
    ],
)
@pytest.mark.further
def test_damaged_files_are_refused(
    tmp_path: Path, without: list[str], replaced: dict[str, Any], message: str
) -> None:
    """With the demonstration, and nothing is written; `on_error="skip"` leaves it out."""
    path = changed(tmp_path / "a.hdf5", *without, **replaced)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(path, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    report = el.import_dataset(path, tmp_path / "store", on_error="skip")
    assert report.episodes == 2
    assert [key for key, _ in report.skipped] == ["demo_2"]


@pytest.mark.further
def test_observations_of_one_array_get_the_name_that_is_asked_for(tmp_path: Path) -> None:
    """An import with the space of the store gives them back."""
    box = spaces.Box(-9, 9, (3,), np.float32)
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with store.writer() as writer:
        writer.begin(values[0]).append(values[0], 1.0, values[1])
    store.refresh().export(tmp_path / "out.hdf5", format="robomimic", observation_key="state")
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert [*file["data/demo_0/obs"]] == ["state"]
    el.import_dataset(tmp_path / "out.hdf5", tmp_path / "back", observation_space=box)
    assert np.array_equal(el.open(tmp_path / "back")[0].observations, values)
