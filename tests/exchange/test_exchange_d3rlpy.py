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


@pytest.mark.further
def test_last_transitions_of_terminated_episodes_can_be_dropped(tmp_path: Path) -> None:
    """With their rewards, which the report counts; an episode of one transition then leaves nothing."""
    report = el.import_dataset(DATA / "d3rlpy_continuous.h5", tmp_path / "store", last_observation="drop")
    assert dict(report.lost) == {
        "a last transition, whose next observation is missing": 2,
        "a reward other than 0 of a last transition, whose next observation is missing": 2,
        "an episode of one transition, whose next observation is missing": 1,
        UNUSED: 2,
    }
    assert [(e.length, e.end_reason) for e in el.open(tmp_path / "store")] == [
        (4, "cut"), (5, "cut"), (4, "cut"), (5, "cut"),
    ]  # fmt: skip


def filled(path: Path, observation: spaces.Space, action: spaces.Space) -> el.EpisodeStore:
    """A store with an episode of each ending, and one without its last observation."""
    store = el.create(path, observation_space=observation, action_space=action, card={"title": "T"})
    observation.seed(0)
    action.seed(0)
    with store.writer() as writer:
        for length, ends, seen in (
            (3, (True, False), 4),
            (1, (False, True), 2),
            (70, (False, False), 71),
            (5, (True, False), 5),
            (4, (False, False), 4),
        ):
            samples = [observation.sample() for _ in range(seen)]
            whole = np.stack(samples) if isinstance(observation, spaces.Box) else None
            writer.write_episode(
                observations=tuple(map(np.stack, zip(*samples, strict=True))) if whole is None else whole,
                actions=np.stack([action.sample() for _ in range(length)]),
                rewards=np.arange(length) + 0.1,
                terminations=ends[0],
                truncations=ends[1],
                last_observation="present" if seen > length else "missing",
                seed=4,
            )
    return store.refresh()


BOX = spaces.Box(-9, 9, (3,), np.float32)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (BOX, spaces.Discrete(3)),
        pytest.param(
            spaces.Tuple([BOX, spaces.Box(0, 255, (2, 2), np.uint8)]), BOX, marks=pytest.mark.further
        ),
    ],
)
@pytest.mark.further
def test_a_store_goes_out_to_d3rlpy_and_comes_back(
    tmp_path: Path, observation: spaces.Space, action: spaces.Space
) -> None:
    """The same transitions; what d3rlpy does not hold is listed."""
    store = filled(tmp_path / "store", observation, action)
    report = store.export(tmp_path / "out.h5", format="d3rlpy")
    assert dict(report.lost) == {
        "the seed of an episode": 5,
        "the last observation of an episode that terminated": 1,
        "that an episode was truncated, not cut": 1,
        "a last transition, whose next observation is missing": 1,
        "title of the card": 1,
        "spaces, which an import infers from the values": 2,
    }
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["num_episodes"][()] == 5 and file["version"][()] == b"2.1"
        rows = [(len(file[f"rewards_{i}"]), bool(file[f"terminated_{i}"][()])) for i in range(5)]
        assert rows == [(3, True), (2, False), (71, False), (5, True), (4, False)]
        assert file["actions_1"][1].tolist() == [0] * len(file["actions_1"][1])
    back = el.import_dataset(
        tmp_path / "out.h5",
        tmp_path / "back",
        last_observation="missing",
        observation_space=observation,
        action_space=action,
    )
    assert dict(back.lost) == {UNUSED: 1, LACKS: 2}
    ours, theirs = transitions(store[:4]), transitions(el.open(tmp_path / "back")[:4])
    assert str(ours) == str(theirs)


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


@pytest.mark.further
def test_tuples_repeat_their_last_observation(tmp_path: Path) -> None:
    """Each part of it, as rows of the file."""
    report = el.import_dataset(DATA / "d3rlpy_tuple.h5", tmp_path / "store", last_observation="repeat")
    assert report.lost["a last observation, which repeats the one before"] == 1
    first = el.open(tmp_path / "store")[0]
    assert first.terminated and first.has_last_observation
    with h5py.File(DATA / "d3rlpy_tuple.h5") as file:
        for index, part in enumerate(first.observations):
            expected = file[f"observations_0_{index}"][()]
            assert np.array_equal(part[:-1], expected) and np.array_equal(part[-1], expected[-1])
