"""OGBench files, from its environments (tests/data/exchange/make_ogbench.py): its transitions are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.writers.importing import npy

DATA = Path(__file__).parents[1] / "data" / "exchange"
NAVIGATE = DATA / "ogbench-navigate.npz"
UNUSED = "an action and reward beside a last observation, which lead to none"
NO_REWARDS = "rewards, which the source does not have: NaN"


@pytest.mark.parametrize(
    ("name", "lengths", "action", "extras"),
    [
        ("navigate", [8] * 4, spaces.Box(-np.inf, np.inf, (2,), np.float32), ["qpos", "qvel"]),
        ("visual", [4] * 2, spaces.Discrete(7), []),
    ],
)
def test_transitions_are_those_that_ogbench_loads(
    tmp_path: Path, name: str, lengths: list[int], action: spaces.Space, extras: list[str]
) -> None:
    """With the arrays beside them as step columns; rewards are NaN, and no end is invented."""
    report = el.import_dataset(DATA / f"ogbench-{name}.npz", tmp_path / "store")
    total = sum(lengths)
    assert (report.format, dict(report.lost)) == ("ogbench", {NO_REWARDS: total, UNUSED: len(lengths)})
    store = el.open(tmp_path / "store")
    assert [(episode.length, episode.end_reason) for episode in store] == [(n, "cut") for n in lengths]
    assert (store.action_space, np.isnan(store[0].rewards).all()) == (action, True)
    ours: dict[str, list[Any]] = {
        "observations": [episode.observations[:-1] for episode in store],
        "next_observations": [episode.observations[1:] for episode in store],
        "actions": [episode.actions for episode in store],
        **{key: [np.stack(episode.extra[key])[:-1] for episode in store] for key in extras},
    }
    loaded = np.load(DATA / f"ogbench-{name}-loaded.npz")
    assert set(loaded) == {*ours, "terminals"}
    for key, values in ours.items():
        assert np.array_equal(np.concatenate(values), loaded[key]), key
    assert np.flatnonzero(loaded["terminals"]).tolist() == (np.cumsum(lengths) - 1).tolist()
    assert el.import_dataset(DATA / f"ogbench-{name}.npz", store).present == len(lengths)


def arrays(**changed: Any) -> dict[str, np.ndarray]:
    """Return the arrays of the file, some of them changed."""
    return {**np.load(NAVIGATE), **changed}


def test_files_with_rewards_and_other_arrays(tmp_path: Path) -> None:
    """Row k has the reward of transition k; rows behind the last terminal are one more trajectory."""
    terminals = np.isin(np.arange(36), [8, 9, 20])
    rewards = np.arange(36.0) - 40
    changed = arrays(terminals=terminals, rewards=rewards, masks=rewards < 0, truncated=rewards)
    np.savez(tmp_path / "task-val.npz", **changed)
    report = el.import_dataset(tmp_path / "task-val.npz", tmp_path / "store")
    assert dict(report.lost) == {"an episode with an observation and no transition": 1, UNUSED: 3}
    store = el.open(tmp_path / "store")
    starts = [(0, 8), (10, 20), (21, 35)]
    assert [episode.rewards.tolist() for episode in store] == [rewards[a:b].tolist() for a, b in starts]
    for (start, stop), episode in zip(starts, store, strict=True):
        assert np.array_equal(episode.observations, changed["observations"][start : stop + 1])
        assert episode.extra["masks"].tolist() == [True] * (stop + 1 - start)
        assert episode.extra["ogbench"]["truncated"].tolist() == rewards[start : stop + 1].tolist()


def test_arrays_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compressed file, each of which begins where the one before it ended."""
    wanted: list[tuple[str, int, int]] = []
    read = npy.NpyFile.__getitem__

    def noted(self: npy.NpyFile, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            wanted.append((self.name, rows.start or 0, rows.stop))
        return read(self, rows)

    monkeypatch.setattr(npy.NpyFile, "__getitem__", noted)
    monkeypatch.setattr("episodelake.writers.importing.flat._PART_BYTES", 400)
    el.import_dataset(NAVIGATE, tmp_path / "store")
    blocks = [(start, stop) for name, start, stop in wanted if name == "qpos" and stop > 1]
    assert blocks == [(0, 9), (9, 18), (18, 27), (27, 36)]
    assert np.array_equal(
        np.concatenate([episode.observations for episode in el.open(tmp_path / "store")]),
        np.load(NAVIGATE)["observations"],
    )


def damaged(path: Path) -> None:
    """Change a byte in the middle of the observations."""
    data = bytearray(NAVIGATE.read_bytes())
    data[200] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (damaged, "observations cannot be read|observations ends too early"),
        (lambda path: path.write_bytes(NAVIGATE.read_bytes()[:900]), "file.npz cannot be read: BadZipFile"),
        (
            lambda path: np.savez(path, **arrays(qpos=np.ones(35))),
            "qpos has 35 rows, but observations has 36",
        ),
        (lambda path: np.savez(path, **arrays(terminals=np.full(36, 2))), "terminals: row 0 is 2"),
        (
            lambda path: np.savez(path, **arrays(qpos=np.array([None] * 36))),
            "qpos holds pickled objects; expected numbers",
        ),
        (
            lambda path: np.savez(path, **arrays(qpos=np.asfortranarray(np.ones((36, 2))))),
            "qpos is in Fortran order",
        ),
        (lambda path: np.savez(path, observations=[1], actions=[1]), "it has no terminals"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, write: Any, message: str) -> None:
    """With the array and the problem; nothing is left of the import."""
    write(tmp_path / "file.npz")
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(tmp_path / "file.npz", tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["file.npz"]
