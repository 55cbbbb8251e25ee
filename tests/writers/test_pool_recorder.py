"""The recorder of pools: partial batches in any order, against rollouts of each environment alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import episodelake as el
from episodelake.testing.adapters import case
from nasty_environments import Nested
from pools import Pool, small
from strategies import same


def test_what_came_before_the_recorder_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """Steps of environments whose reset was not seen are no transitions; they are told of once."""
    pool = small((3, 3), 2)
    store = el.create(tmp_path / "store", pool)
    still = np.zeros((2, 2), np.float32)
    pool.async_reset()
    pool.recv()
    pool.step(still)
    recorder = store.record(pool)
    with pytest.warns(RuntimeWarning, match="reset was not seen"):
        recorder.step(still)
    for _ in range(4):
        recorder.step(still)
    recorder.close()
    assert [episode.observations[:, 0].tolist() for episode in store.refresh()] == [[0, 1, 2]] * 2


def test_actions_that_do_not_fit_are_not_sent(tmp_path: Path) -> None:
    """A wrong batch, dtype or index is refused before the pool sees it."""
    for number, (actions, ids) in enumerate(
        [
            (np.zeros((1, 2), np.float32), [0, 1]),
            (np.zeros((2, 2)), [0, 1]),
            (np.zeros((2, 2), np.float32), [0, 0]),
            (np.zeros((2, 2), np.float32), [0, 2]),
            (np.zeros((2, 2), np.float32), [0.0, 1.0]),
        ]
    ):
        with case((actions, ids)):
            _check_actions_that_do_not_fit_are_not_sent(tmp_path / str(number), actions, ids)


def _check_actions_that_do_not_fit_are_not_sent(tmp_path: Path, actions: Any, ids: Any) -> None:
    pool = small((3, 3), 2)
    store = el.create(tmp_path / "store", pool)
    with store.record(pool) as recorder:
        recorder.async_reset()
        recorder.recv()
        with pytest.raises(el.errors.SpaceMismatchError):
            recorder.send(actions, ids)
        assert pool.ready == []
        recorder.step(np.zeros((2, 2), np.float32))
    assert [episode.length for episode in store.refresh()] == [1, 1]


def test_other_pools_are_refused(tmp_path: Path) -> None:
    """Spaces that are not the store's, and a pool without a number of environments."""
    store = el.create(tmp_path / "store", small((3,), 1))
    with pytest.raises(el.errors.SpaceMismatchError, match="observation_space"):
        store.record(Pool([Nested()], 1))
    nameless = small((3,), 1)
    nameless.num_envs = None  # type: ignore[assignment]
    with pytest.raises(el.errors.InvalidArgumentError, match="how many environments"):
        store.record(nameless)


@pytest.mark.further
def test_the_real_envpool_is_recorded_as_it_serves(tmp_path: Path) -> None:
    """CartPole of EnvPool, two of six at a time: every episode is what the batches said of it."""
    envpool = pytest.importorskip("envpool")
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=6, batch_size=2, seed=3)
    store = el.create(tmp_path / "store", pool)
    rng = np.random.default_rng(0)
    seen: dict[int, list[tuple[Any, ...]]] = {index: [] for index in range(6)}
    sent: dict[int, Any] = {}
    with store.record(pool) as recorder:
        recorder.async_reset()
        for _ in range(400):
            observations, rewards, terminated, truncated, info = recorder.recv()
            ids = info["env_id"].copy()
            for place, index in enumerate(ids.tolist()):
                row = observations[place].copy(), rewards[place], terminated[place], truncated[place]
                seen[index].append((*row, int(info["elapsed_step"][place]), sent.get(index)))
            actions = rng.integers(2, size=2)
            sent.update(zip(ids.tolist(), actions.tolist(), strict=True))
            recorder.send(actions, ids)
    store.refresh()
    assert store.verify().faults == ()
    for index, rows in seen.items():
        starts = [place for place, row in enumerate(rows) if row[4] == 0] + [len(rows)]
        parts = [rows[start:stop] for start, stop in pairwise(starts)]
        own = sorted((e for e in store if e.env_index == index), key=lambda e: e.number)
        parts = [part for part in parts if len(part) > 1]
        assert len(own) == len(parts)
        for episode, part in zip(own, parts, strict=True):
            assert same(episode.observations, np.array([row[0] for row in part]))
            assert episode.actions.tolist() == [row[5] for row in part[1:]]
            assert episode.rewards.tolist() == [row[1] for row in part[1:]]
            assert (episode.terminated, episode.truncated) == (part[-1][2], part[-1][3])
