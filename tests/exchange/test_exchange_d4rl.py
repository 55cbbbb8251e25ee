"""D4RL files: where episodes end, what their last observation is, and what goes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import episodelake as el

ROWS, TERMINALS, TIMEOUTS = 40, (4, 5, 30), (12,)


def d4rl_file(path: Path, *without: str, **replaced: Any) -> dict[str, np.ndarray]:
    """A file of four whole episodes and a rest, as D4RL lays it out, and its columns."""
    random = np.random.default_rng(0)
    walk = random.normal(size=(ROWS + 1, 3)).astype(np.float32)
    columns: dict[str, Any] = {
        "observations": walk[:-1],
        "actions": random.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "rewards": random.normal(size=ROWS).astype(np.float32),
        "terminals": np.isin(np.arange(ROWS), TERMINALS),
        "timeouts": np.isin(np.arange(ROWS), TIMEOUTS),
        "next_observations": np.where(
            np.isin(np.arange(ROWS), TERMINALS + TIMEOUTS)[:, None], np.float32(9), walk[1:]
        ),
        "infos/qpos": random.normal(size=(ROWS, 2)),
        "infos/goal/x": np.arange(ROWS),
        "infos/pose": random.normal(size=(ROWS, 2, 2)).astype(np.float32),
        "metadata/algorithm": "SAC",
        "metadata/policy/nonlinearity": b"relu",
        "metadata/policy/fc0/weight": np.zeros((10, 10)),
    }
    columns = {name: value for name, value in (columns | replaced).items() if name not in without}
    with h5py.File(path, "w") as file:
        for name, value in columns.items():
            file[name] = value
    return columns


def cut(columns: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """The rows of each episode, by a plain loop over the flags."""
    pieces, start = [], 0
    for row in range(ROWS):
        if columns["terminals"][row] or ("timeouts" in columns and columns["timeouts"][row]):
            pieces.append((start, row + 1))
            start = row + 1
    return [*pieces, (start, ROWS)]


def test_next_observations_end_the_episodes(tmp_path: Path) -> None:
    """All rows come in, infos stand beside their observations, and metadata go to the card."""
    columns = d4rl_file(tmp_path / "hopper.hdf5")
    report = el.import_dataset(tmp_path / "hopper.hdf5", tmp_path / "store")
    assert (report.format, report.episodes, report.steps) == ("d4rl", 5, ROWS)
    assert dict(report.lost) == {"metadata/policy/fc0/weight, an array too large for the card": 1}
    store = el.open(tmp_path / "store")
    assert store.card == {"algorithm": "SAC", "policy/nonlinearity": "relu"}
    assert [episode.end_reason for episode in store] == [
        "terminated", "terminated", "truncated", "terminated", "cut",
    ]  # fmt: skip
    for episode, (start, stop) in zip(store, cut(columns), strict=True):
        last = columns["next_observations"][stop - 1 : stop]
        assert np.array_equal(
            episode.observations, np.concatenate([columns["observations"][start:stop], last])
        )
        assert np.array_equal(episode.actions, columns["actions"][start:stop])
        assert np.array_equal(episode.rewards, columns["rewards"][start:stop].astype(np.float64))
        assert [row["goal"]["x"] for row in episode.infos[:-1]] == list(range(start, stop))
        assert np.array_equal([row["qpos"] for row in episode.infos[:-1]], columns["infos/qpos"][start:stop])
        poses = [row["pose"] for row in episode.infos[:-1]]
        assert np.array_equal(poses, columns["infos/pose"][start:stop]) and poses[0].dtype == np.float32
        assert episode.infos[-1] == {}
    assert el.import_dataset(tmp_path / "hopper.hdf5", store).present == 5


@pytest.mark.further
def test_files_of_version_0_end_at_terminals_only(tmp_path: Path) -> None:
    """They have no timeouts; the report says what cannot be known, and the rest is cut."""
    columns = d4rl_file(tmp_path / "v0.hdf5", "timeouts")
    report = el.import_dataset(tmp_path / "v0.hdf5", tmp_path / "store")
    assert any("no timeouts" in what for what in report.lost)
    # The walk is not continuous at the row that was a timeout.
    assert report.lost["a next observation that differs from the observation of the next row"] == 1
    store = el.open(tmp_path / "store")
    assert [episode.length for episode in store] == [stop - start for start, stop in cut(columns)]
    assert [episode.truncated for episode in store] == [False] * 4
    assert store[-1].end_reason == "cut"


@pytest.mark.further
def test_timeouts_without_terminals_end_episodes(tmp_path: Path) -> None:
    """As in maze2d, whose terminals are all zero."""
    d4rl_file(tmp_path / "maze2d.hdf5", terminals=np.zeros(ROWS), **{"timeouts": np.arange(ROWS) % 20 == 19})
    el.import_dataset(tmp_path / "maze2d.hdf5", tmp_path / "store")
    assert [(e.length, e.end_reason) for e in el.open(tmp_path / "store")] == [(20, "truncated")] * 2


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"actions": np.zeros((ROWS - 1, 2))}, r"actions has 39 rows, but observations has 40"),
        pytest.param(
            {"infos/qpos": np.zeros((ROWS + 2, 2))}, r"infos/qpos has 42 rows", marks=pytest.mark.further
        ),
        ({"timeouts": np.full(ROWS, np.nan)}, r"timeouts: row 0 is nan; expected 0 or 1"),
        pytest.param(
            {"terminals": np.zeros((ROWS, 2))}, r"terminals has shape \(40, 2\)", marks=pytest.mark.further
        ),
        ({"observations": np.full(ROWS, b"x")}, r"observation_space="),
        ({"next_observations": np.zeros((ROWS, 4), np.float32)}, r"next_observations cannot be read"),
    ],
)
@pytest.mark.further
def test_damaged_files_are_refused(tmp_path: Path, replaced: dict[str, Any], message: str) -> None:
    """With the column or row, and nothing is written."""
    d4rl_file(tmp_path / "a.hdf5", **replaced)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(tmp_path / "a.hdf5", tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.further
def test_truncated_and_unknown_files_are_refused(tmp_path: Path) -> None:
    """A file that ends early cannot be opened; one without its columns says which."""
    d4rl_file(tmp_path / "a.hdf5")
    whole = (tmp_path / "a.hdf5").read_bytes()
    (tmp_path / "a.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(el.errors.DatasetError, match="truncated file"):
        el.import_dataset(tmp_path / "a.hdf5", tmp_path / "store")
    with pytest.raises(el.errors.DatasetError, match=r"a\.hdf5 cannot be read"):
        el.import_dataset(tmp_path / "a.hdf5", tmp_path / "store", format="d4rl")
    d4rl_file(tmp_path / "b.hdf5", "terminals", "actions")
    with pytest.raises(el.errors.DatasetError, match="it has no actions, terminals"):
        el.import_dataset(tmp_path / "b.hdf5", tmp_path / "store")
    with pytest.raises(el.errors.DatasetError, match="it has no actions, terminals"):
        el.import_dataset(tmp_path / "b.hdf5", tmp_path / "store", format="d4rl")
