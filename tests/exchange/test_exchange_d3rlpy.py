"""d3rlpy files, which d3rlpy wrote (tests/data/exchange/make_d3rlpy.py): its transitions are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el

DATA = Path(__file__).parents[1] / "data" / "exchange"
LACKS = "a last observation, which the source lacks"
UNUSED = "an action and reward beside a last observation, which lead to none"


def transitions(store: el.EpisodeStore) -> list[tuple[Any, ...]]:
    """Every transition, as d3rlpy makes them: without a next observation where one terminates."""
    rows = []
    for episode in store:
        seen = episode.observations
        if isinstance(seen, tuple):
            seen = np.concatenate([part.reshape(len(part), -1) for part in seen], axis=1)
        for t in range(episode.length):
            ends = bool(episode.terminations[t])
            following = np.zeros_like(seen[0]) if ends else seen[t + 1]
            rows.append((seen[t], episode.actions[t], episode.rewards[t], following, float(ends)))
    return rows


@pytest.mark.parametrize(
    ("name", "ends", "unused"),
    [
        ("continuous", ["terminated", "terminated", "cut", "terminated", "cut"], 2),
        pytest.param(
            "discrete", ["terminated", "terminated", "cut", "terminated", "cut"], 2, marks=pytest.mark.further
        ),
        ("tuple", ["terminated", "cut"], 1),
        ("v1", ["terminated", "terminated", "truncated", "terminated", "truncated"], 2),
    ],
)
def test_transitions_are_those_that_d3rlpy_picks(
    tmp_path: Path, name: str, ends: list[str], unused: int
) -> None:
    """Observation, action, reward, next observation and terminal of each, and how episodes ended."""
    report = el.import_dataset(DATA / f"d3rlpy_{name}.h5", tmp_path / "store", last_observation="missing")
    assert (report.format, dict(report.lost)) == ("d3rlpy", {UNUSED: unused, LACKS: ends.count("terminated")})
    store = el.open(tmp_path / "store")
    assert [episode.end_reason for episode in store] == ends
    assert [episode.has_last_observation for episode in store] == [end != "terminated" for end in ends]
    expected = np.load(DATA / f"d3rlpy_{name}.npz")
    assert np.bincount(expected["episode"]).tolist() == [episode.length for episode in store]
    for index, ours in enumerate(transitions(store)):
        names = ("observation", "action", "reward", "next_observation", "terminal")
        for key, value in zip(names, ours, strict=True):
            assert np.array_equal(np.ravel(expected[key][index]), np.ravel(value)), (index, key)
    if name in ("discrete", "v1"):
        assert store.action_space == spaces.Discrete(4)


BOX = spaces.Box(-9, 9, (3,), np.float32)


#: Actions of two steps, and whether d3rlpy takes them for discrete ones.
ACTIONS = [
    (spaces.Box(-9, 9, (2,), np.float32), [[0.5, 1], [1, 2]], False),
    (spaces.Box(-9, 9, (2,), np.float32), [[-3, 1], [1, 2]], True),
    (spaces.Box(-3e9, 3e9, (1,), np.float64), [[2.5e9], [1]], False),
    (spaces.Box(-9, 9, (1,), np.int8), [[-3], [4]], True),
    (spaces.MultiDiscrete([3, 4]), [[0, 1], [1, 2]], True),
    (spaces.Discrete(5), [0, 4], False),
]


def store_of_actions(path: Path, space: spaces.Space, actions: list[Any]) -> el.EpisodeStore:
    """A store with an episode of these actions, and one of others."""
    store = el.create(path, observation_space=BOX, action_space=space)
    others = np.zeros_like(actions) if space.dtype.kind == "i" else np.full_like(actions, 0.25, np.float64)
    with store.writer() as writer:
        for each in (np.array(actions), others):
            writer.write_episode(
                observations=np.zeros((3, 3), np.float32),
                actions=each.astype(space.dtype),
                rewards=np.zeros(2),
                terminations=True,
                truncations=False,
            )
    return store.refresh()


def test_exports_state_where_d3rlpy_takes_actions_for_discrete_ones(tmp_path: Path) -> None:
    """`ReplayBuffer.load` looks at the first episode; tests/exchange/test_conversion_peers.py compares it."""
    for index, (space, actions, discrete) in enumerate(ACTIONS):
        store = store_of_actions(tmp_path / f"store{index}", space, actions)
        lost = store.export(tmp_path / f"{index}.h5", format="d3rlpy").lost
        assert any("actions are not discrete" in each for each in lost) == discrete, space


def test_writes_that_fail_end_the_export_alone(tmp_path: Path) -> None:
    """HDF5 would crash the process when it closes such a file."""
    resource = pytest.importorskip("resource")
    store = store_of_actions(tmp_path / "store", *ACTIONS[0][:2])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limits[1]))
    try:
        with pytest.raises(el.errors.StoreAccessError, match=r"out\.h5: File too large"):
            store.export(tmp_path / "out.h5", format="d3rlpy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "out.h5").exists()


def changed(path: Path, **replaced: Any) -> Path:
    """A copy of a file with other arrays; None deletes one."""
    path.write_bytes((DATA / "d3rlpy_continuous.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        for name, value in replaced.items():
            del file[name]
            if value is not None:
                file[name] = value
    return path


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (
            {"actions_2": np.zeros((2, 2), np.float32)},
            r"episode 2 has 6 observations, 2 actions and 6 rewards",
        ),
        ({"rewards_3": None}, r"episode 3 has no rewards_3"),
        ({"terminated_1": np.nan}, r"terminated_1: row 0 is nan; expected 0 or 1"),
        pytest.param({"version": "2.0"}, r"version 2\.0; expected 2\.1", marks=pytest.mark.further),
    ],
)
@pytest.mark.further
def test_damaged_files_are_refused(tmp_path: Path, replaced: dict[str, Any], message: str) -> None:
    """With the episode, and nothing is written."""
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(changed(tmp_path / "a.h5", **replaced), tmp_path / "store")
    assert not (tmp_path / "store").exists()
