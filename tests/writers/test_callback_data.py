"""What callbacks are given beside the step: the environment, and the values of a finished episode."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv

import episodelake as el
from nasty_environments import SmallEnv, TwoGoals, new_store
from pools import Pool, play


def test_environments_that_are_elsewhere_are_none(tmp_path: Path) -> None:
    """Those of other processes and of pools."""
    seen: list[Any] = []
    store = el.create(tmp_path / "store", SmallEnv())
    with store.record(
        AsyncVectorEnv([SmallEnv] * 2), step_callback=lambda step: seen.append(step.env)
    ) as envs:
        envs.reset()
        envs.step(envs.action_space.sample())
    pool: Any = Pool([SmallEnv(3), SmallEnv(2)], 1)
    with store.record(pool, step_callback=lambda step: seen.append(step.env)) as ready:
        ready.async_reset()
        play(ready, 4, {0: [], 1: []})
    assert len(seen) == 8 and set(seen) == {None}


def simulator(step: el.types.StepData) -> dict[str, Any]:
    """Record the state of MuJoCo."""
    assert step.env is not None
    data = step.env.unwrapped.data
    return {"qpos": data.qpos.copy(), "qvel": data.qvel.copy()}


@pytest.mark.further
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("workers", [None, 2])
def test_workers_record_the_state_of_the_simulator(tmp_path: Path, vector: bool, workers: int | None) -> None:
    """Outcome again from its seed by a plain loop, each recorded episode has the states of MuJoCo."""
    pytest.importorskip("mujoco")
    store = el.create(tmp_path / "store", gym.make("InvertedPendulum-v5"))
    make = make_pendulums if vector else "InvertedPendulum-v5"
    el.collect(make, None, store, steps=60, seed=4, workers=workers, step_callback=simulator)
    checked = 0
    for episode in store.refresh():
        if episode.seed is None:
            continue
        env: Any = gym.make("InvertedPendulum-v5")
        env.reset(seed=episode.seed)
        for t in range(episode.length + 1):
            assert np.array_equal(episode.extra["qpos"][t], env.unwrapped.data.qpos)
            assert np.array_equal(episode.extra["qvel"][t], env.unwrapped.data.qvel)
            if t < episode.length:
                env.step(episode.actions[t])
        checked += 1
    assert checked == (workers or 1) * (2 if vector else 1)


def make_pendulums() -> Any:
    """The vector environment of a worker."""
    return gym.make_vec("InvertedPendulum-v5", 2, vectorization_mode="sync")


def test_vector_rewards_have_statistics_by_objective(tmp_path: Path) -> None:
    """A number for each."""
    env, found = TwoGoals(), []
    store = new_store(tmp_path, env, reward_shape=(2,))

    def note(episode: el.types.EpisodeSummary) -> None:
        kinds = "mean", "std", "min", "max"
        found.append((episode.rewards, [getattr(episode, f"reward_{kind}") for kind in kinds]))

    with store.record(env, episode_callback=note) as recorder:
        recorder.reset(seed=0)
        while not recorder.step(recorder.action_space.sample())[2]:
            pass
    ((rewards, measures),) = found
    assert np.array_equal(rewards, store.refresh()[0].rewards) and rewards.shape[1] == 2
    assert np.allclose(measures, [rewards.mean(0), rewards.std(0), rewards.min(0), rewards.max(0)])


def test_after_the_callback_nothing_more_is_read(tmp_path: Path) -> None:
    """What was read stays; the rest raises, as it does where there was no callback."""
    store, kept, late = el.create(tmp_path / "store", SmallEnv(3)), [], []
    with store.record(SmallEnv(3), episode_callback=late.append) as recorder:
        recorder.reset()
        while not recorder.step(recorder.action_space.sample())[2]:
            pass
    with pytest.raises(el.errors.RecorderStateError, match="while its episode callback runs"):
        late[0].rewards  # noqa: B018
    told: list[el.types.EpisodeSummary] = []
    read = lambda episode: kept.append(episode) or {"mean": episode.reward_mean}  # noqa: E731
    el.collect(SmallEnv, None, store, episodes=1, on_episode=told.append, episode_callback=read)
    assert pickle.loads(pickle.dumps(kept[0])) == kept[0]
    with pytest.raises(el.errors.RecorderStateError, match="can be read in an episode callback"):
        told[0].reward_mean  # noqa: B018
