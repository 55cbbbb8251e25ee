"""Trajectories of imitation, which imitation wrote (tests/data/exchange/make_imitation.py): they are ours."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces

import episodelake as el

DATA = Path(__file__).parents[1] / "data" / "exchange"
FOLDER, NPZ = DATA / "imitation", DATA / "imitation.npz"
CODE = "info values that jsonpickle makes by running code: trust=True reads them"
UNKNOWN = "whether an episode was terminated or truncated"
ENDS = ["truncated", "terminated", "truncated", "truncated", "truncated", "truncated"]


def check(store: el.EpisodeStore) -> None:
    """Compare a store with the trajectories that imitation loads."""
    loaded = np.load(DATA / "imitation-loaded.npz")
    for index, episode in enumerate(store):
        assert np.array_equal(episode.observations, loaded[f"obs{index}"])
        assert np.array_equal(episode.actions, loaded[f"acts{index}"])
        assert np.array_equal(episode.rewards, loaded[f"rews{index}"])


def loaded_infos(names: int) -> list[list[list[Any]]]:
    """Return the first values of the infos that imitation loads, by trajectory and step."""
    loaded = json.loads(str(np.load(DATA / "imitation-loaded.npz")["infos"]))
    return [[values[:names] for values in trajectory] for trajectory in loaded]


def test_trajectories_of_a_folder_are_those_that_imitation_loads(tmp_path: Path) -> None:
    """With infos at the observations that they came with; numbers of NumPy among them are lost."""
    report = el.import_dataset(FOLDER, tmp_path / "store")
    assert (report.format, report.episodes, dict(report.lost)) == ("imitation", 6, {CODE: 107})
    store = el.open(tmp_path / "store")
    check(store)
    assert [episode.end_reason for episode in store] == ENDS
    assert store.action_space == spaces.Discrete(2)
    infos = [[[info["side"], info["inner"]["x"]] for info in episode.infos[1:]] for episode in store]
    assert infos == loaded_infos(2)
    assert store[0].infos[0] == {} and "terminal_observation" not in store[0].infos[-1]
    assert el.import_dataset(FOLDER, store).present == 6


def test_without_rewards_and_ends_nothing_is_invented(tmp_path: Path) -> None:
    """Rewards are NaN; without infos an end is "terminated" and counted, and a fragment is cut."""
    report = el.import_dataset(DATA / "imitation-fragments", tmp_path / "store")
    assert dict(report.lost) == {UNKNOWN: 1, "rewards, which the source does not have: NaN": 5}
    first, second = el.open(tmp_path / "store")
    assert (first.end_reason, second.end_reason) == ("terminated", "cut")
    assert np.isnan(first.rewards).all()
    random = np.random.default_rng(0)
    assert np.array_equal(first.observations, random.integers(0, 255, (4, 2, 3), dtype=np.uint8))
    assert np.array_equal(first.actions, random.normal(size=(3, 2)).astype(np.float32))


def test_files_of_older_releases_keep_their_pickled_infos_only_with_trust(tmp_path: Path) -> None:
    """Without trust no pickle is read, so the infos and the kinds of ends are lost."""
    report = el.import_dataset(NPZ, tmp_path / "plain")
    assert dict(report.lost) == {"infos, which are pickled: trust=True reads them": 107, UNKNOWN: 6}
    check(el.open(tmp_path / "plain"))
    report = el.import_dataset(NPZ, tmp_path / "trusted", trust=True)
    assert dict(report.lost) == {}
    store = el.open(tmp_path / "trusted")
    check(store)
    assert [episode.end_reason for episode in store] == ENDS
    infos = [[[i["side"], i["inner"]["x"], i["speed"]] for i in each.infos[1:]] for each in store]
    assert infos == loaded_infos(3)


@dataclass
class DictObs:
    """As imitation's class of this name."""

    inner: dict[str, Any]

    def unwrap(self) -> dict[str, Any]:
        """Return the arrays by name."""
        return self.inner


@dataclass
class Trajectory:
    """As imitation's class of this name; the suite of peers has the real one."""

    obs: Any
    acts: Any
    infos: Any
    terminal: bool


Trajectory.__module__ = "imitation.data.types"


def test_lists_of_trajectories_with_dict_observations(tmp_path: Path) -> None:
    """Discrete spaces reach over all trajectories, and every object is checked."""
    made = [
        Trajectory(
            DictObs({"place": np.arange(length + 1), "speed": np.ones((length + 1, 2), np.float32)}),
            np.arange(length),
            None,
            False,
        )
        for length in (2, 5)
    ]
    report = el.import_dataset(made, tmp_path / "store")
    assert (report.reason, report.episodes) == ("it is a list of imitation's Trajectory", 2)
    store = el.open(tmp_path / "store")
    assert store.action_space == spaces.Discrete(5)
    assert store.observation_space["place"].dtype == np.int64
    assert store[1].observations["place"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(el.errors.DatasetError, match="Trajectory 1 is a dict"):
        el.import_dataset([made[0], {}], tmp_path / "other")
    with pytest.raises(el.errors.DatasetError, match="Trajectory 0: acts is a list; expected an array"):
        el.import_dataset([Trajectory(np.ones(3), [1, 2], None, True)], tmp_path / "other")


def rewritten(folder: Path, change: Callable[[dict[str, list[Any]]], None]) -> None:
    """Change the columns of the copied dataset."""
    path = folder / "data-00000-of-00001.arrow"
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    columns = table.to_pydict()
    change(columns)
    with pa.ipc.new_stream(path, table.schema.remove_metadata()) as stream:
        stream.write_table(pa.table(columns, table.schema.remove_metadata()))


def ragged(columns: dict[str, list[Any]]) -> None:
    """Add a number to one observation."""
    columns["obs"][1][3].append(0.0)


def short(columns: dict[str, list[Any]]) -> None:
    """Leave out an info."""
    columns["infos"][2].pop()


def broken(columns: dict[str, list[Any]]) -> None:
    """Break the text of an info."""
    columns["infos"][2][0] = "{"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (ragged, r"trajectory 1: obs has rows of different lengths: \[4, 5\]"),
        (short, "trajectory 2 has 17 infos for 18 actions"),
        (broken, "trajectory 2: an info is no JSON"),
    ],
)
def test_damaged_trajectories_are_named(tmp_path: Path, change: Any, message: str) -> None:
    """They are skipped if asked."""
    shutil.copytree(FOLDER, tmp_path / "copy")
    rewritten(tmp_path / "copy", change)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(tmp_path / "copy", tmp_path / "store")
    report = el.import_dataset(tmp_path / "copy", tmp_path / "store", on_error="skip")
    assert (report.episodes, len(report.skipped)) == (5, 1)


def test_code_in_a_source_does_not_run(tmp_path: Path) -> None:
    """Infos that call a function are lost, and pickles are refused."""
    marker = tmp_path / "ran"
    call = {"py/reduce": [{"py/function": "pathlib.Path.touch"}, {"py/tuple": [str(marker)]}]}

    def calling(columns: dict[str, list[Any]]) -> None:
        columns["infos"] = [[json.dumps({"x": [{"y": call}]})] * len(each) for each in columns["infos"]]

    shutil.copytree(FOLDER, tmp_path / "copy")
    rewritten(tmp_path / "copy", calling)
    report = el.import_dataset(tmp_path / "copy", tmp_path / "store")
    assert dict(report.lost) == {CODE: 107, UNKNOWN: 6} and not el.open(tmp_path / "store")[0].infos[1]
    old = tmp_path / "old.pkl"
    old.write_bytes(pickle.dumps([1]))
    with pytest.raises(el.errors.DatasetError, match="format='imitation' and trust=True"):
        el.import_dataset(old, tmp_path / "pickled")
    with pytest.raises(
        el.errors.DatasetError, match=r"old\.pkl is pickled, and reading a pickle can run any code"
    ):
        el.import_dataset(old, tmp_path / "pickled", format="imitation")
    arrays = dict(np.load(NPZ, allow_pickle=True))
    np.savez(tmp_path / "objects.npz", **{**arrays, "obs": arrays["obs"].astype(object)})
    with pytest.raises(el.errors.DatasetError, match="obs holds pickled objects"):
        el.import_dataset(tmp_path / "objects.npz", tmp_path / "pickled")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("state.json", b"{}", "KeyError: '_data_files'"),
        ("state.json", b'{"_data_files": [], "_indices_files": [1]}', "names indices"),
        ("data-00000-of-00001.arrow", b"ARROW", "cannot be read"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """With the folder and the problem."""
    shutil.copytree(FOLDER, tmp_path / "copy")
    (tmp_path / "copy" / name).write_bytes(content)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(tmp_path / "copy", tmp_path / "store")
