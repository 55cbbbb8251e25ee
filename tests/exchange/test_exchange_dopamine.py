"""Replay buffers that Dopamine wrote (tests/data/exchange/make_dopamine.py): the rows added are ours."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el

DATA = Path(__file__).parents[1] / "data" / "exchange"
EDGE = "the beginning of the first episode of a full buffer, whose rows newer ones may have replaced"
DROPPED = "a last transition, whose next observation is missing"
BETWEEN = "rows that the ring had overwritten before the next checkpoint"


def check(store: el.EpisodeStore, added: Any, starts: list[int]) -> None:
    """Compare episodes with the rows that were added, from a row of each on."""
    assert len(store) == len(starts)
    for start, episode in zip(starts, store, strict=True):
        rows = slice(start, start + episode.length)
        assert np.array_equal(episode.observations[: episode.length], added["observation"][rows])
        assert np.array_equal(episode.actions, added["action"][rows])
        assert np.array_equal(episode.rewards, added["reward"][rows])


def test_rows_of_a_ring_are_joined_across_checkpoints(tmp_path: Path) -> None:
    """Without the padding, each once, and with every transition that Dopamine samples."""
    report = el.import_dataset(DATA / "dopamine-ring", tmp_path / "store", last_observation="missing")
    assert (report.format, dict(report.lost)) == (
        "dopamine",
        {EDGE: 1, "a last observation, which the source lacks": 7},
    )
    store, added = el.open(tmp_path / "store"), np.load(DATA / "dopamine-ring.npz")
    check(store, added, [10, 19, 20, 40, 49, 65, 76])
    assert [(episode.length, episode.end_reason) for episode in store] == [
        (9, "terminated"), (1, "terminated"), (20, "truncated"), (9, "terminated"), (16, "terminated"),
        (11, "truncated"), (9, "cut"),
    ]  # fmt: skip
    assert np.array_equal(np.stack(store[2].extra["q"]), added["q"][20:40])
    assert (store.action_space, store.observation_space.shape) == (spaces.Discrete(6), (4, 3))
    ours = {}
    for episode in store:
        frames = [frame.tobytes() for frame in episode.observations]
        rest = ([*frames[1:], None], episode.actions, episode.rewards, episode.terminations)
        ours |= dict(zip(frames, zip(*rest, strict=True), strict=True))
    states, following = added["sampled_state"][..., -1], added["sampled_next_state"][..., -1]
    rest = (added[f"sampled_{name}"] for name in ("action", "reward", "terminal"))
    assert len(states) > 30
    for state, after, action, reward, terminal in zip(states, following, *rest, strict=True):
        # Dopamine samples the padding behind an episode without a terminal, too.
        if state.any():
            assert ours[state.tobytes()] == (None if terminal else after.tobytes(), action, reward, terminal)
    assert el.import_dataset(DATA / "dopamine-ring", store, last_observation="missing").present == 7


def test_logs_of_a_whole_run_have_every_row(tmp_path: Path) -> None:
    """Of all episodes, the last log among them; here without the last transitions."""
    report = el.import_dataset(DATA / "dopamine-logged", tmp_path / "store", last_observation="drop")
    assert report.lost[DROPPED] == 8
    store = el.open(tmp_path / "store")
    lengths = [6, 11, 3, 17, 30, 8, 13, 5]
    assert [(e.length, e.end_reason) for e in store] == [(length - 1, "cut") for length in lengths]
    check(store, np.load(DATA / "dopamine-logged.npz"), np.cumsum([0, *lengths[:-1]]).tolist())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the logs."""
    return shutil.copytree(DATA / "dopamine-logged", tmp_path / "copy")


def test_rows_that_no_checkpoint_has_cut_an_episode(tmp_path: Path, copy: Path) -> None:
    """Those behind them are another episode, and both edges are counted."""
    for path in copy.glob("*.1.gz"):
        path.unlink()
    report = el.import_dataset(copy, tmp_path / "store", last_observation="missing")
    assert report.lost[BETWEEN] == 38 and report.lost[EDGE] == 1
    store = el.open(tmp_path / "store")
    check(store, np.load(DATA / "dopamine-logged.npz"), [0, 6, 17, 20, 65, 67, 75, 88])
    assert [episode.end_reason for episode in store] == [*["terminated"] * 3, "cut", *["terminated"] * 4]


def rewrite(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a file."""
    path = folder / name
    with gzip.open(path) as file:
        data = file.read()
    with gzip.open(path, "wb") as file:
        file.write(change(data))


def padding(data: bytes) -> bytes:
    """Let a row of padding have an action."""
    actions = bytearray(data)
    actions[128 + 4 * 10] = 3
    return bytes(actions)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "add_count_ckpt.1.gz").unlink(), "Checkpoint 1 has no add_count"),
        (lambda folder: (folder / "$store$_action_ckpt.1.gz").unlink(), "Checkpoint 1 has no action"),
        (
            lambda folder: os.truncate(folder / "$store$_observation_ckpt.2.gz", 300),
            r"observation_ckpt\.2\.gz cannot be read: EOFError",
        ),
        (
            lambda folder: rewrite(folder, "$store$_reward_ckpt.0.gz", lambda data: data[:-40]),
            r"reward_ckpt\.0\.gz ends too early",
        ),
        (
            lambda folder: rewrite(folder, "$store$_action_ckpt.1.gz", padding),
            "Checkpoint 1: the 3 rows after an episode are not zero",
        ),
    ],
)
def test_damaged_folders_are_refused(
    tmp_path: Path, copy: Path, damage: Callable[[Path], Any], message: str
) -> None:
    """With the file and the problem."""
    damage(copy)
    with pytest.raises(el.errors.DatasetError, match=message):
        el.import_dataset(copy, tmp_path / "store")
    assert not (tmp_path / "store").exists()


class Calls:
    """Makes a pickle call `Path.touch`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_ends_of_episodes_are_read_without_running_code(tmp_path: Path, copy: Path) -> None:
    """Sets of Python's numbers and of NumPy's are read, and other pickles refused."""
    marker = tmp_path / "ran"
    refused = [Calls(marker), {1, Calls(marker)}, [1, 2], {"1"}, {1.5}]
    for protocol, content in enumerate(refused):
        with gzip.open(copy / "episode_end_indices_ckpt.0.gz", "wb") as file:
            pickle.dump(content, file, protocol=protocol)
        with pytest.raises(el.errors.DatasetError, match="set of whole numbers"):
            el.import_dataset(copy, tmp_path / "store")
    assert not marker.exists()
    for protocol, number in ((0, int), (3, np.int64), (5, np.int32)):
        with gzip.open(copy / "episode_end_indices_ckpt.0.gz", "wb") as file:
            pickle.dump({number(8), number(23)}, file, protocol=protocol)
        report = el.import_dataset(copy, tmp_path / f"store{protocol}", last_observation="missing")
        assert report.episodes == 8
