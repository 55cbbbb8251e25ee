"""docs/format.md says enough to write a store: one that was written by it alone is one of ours."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import polars as pl
import pytest

import episodelake as el
import independent_writer
from independent_checks import assert_agree, play_some


def played(seed: int) -> independent_writer.Rollout:
    """An episode of CartPole, played in a plain loop."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=20)
    env.action_space.seed(seed)
    observations, actions, rewards = [env.reset(seed=seed)[0].tolist()], [], []
    while True:
        actions.append(int(env.action_space.sample()))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation.tolist())
        rewards.append(float(reward))
        if terminated or truncated:
            return independent_writer.Rollout(observations, actions, rewards, terminated, seed)


def test_a_store_of_a_writer_of_the_page_is_one_of_ours(tmp_path: Path) -> None:
    """It is read and verified, another run is recorded into it by us, and it is compacted."""
    path = tmp_path / "store"
    rollouts = [played(seed) for seed in range(6)]
    independent_writer.create(path)
    run = independent_writer.begin_run(path, "other")
    independent_writer.add_segment(run, 0, 0, rollouts[:4])
    independent_writer.add_segment(run, 1, 4, rollouts[4:])
    independent_writer.add_segment(run, 1, 4, rollouts[4:])  # once more: no effect

    store = el.open(path)
    assert store.verify().ok and len(store) == 6
    for episode, rollout in zip(store, rollouts, strict=True):
        assert episode.observations.tolist() == list(rollout.observations)
        assert (episode.actions.tolist(), episode.rewards.tolist()) == (rollout.actions, rollout.rewards)
        assert (episode.terminated, episode.seed) == (rollout.terminated, rollout.seed)
        assert episode.replay(gymnasium.make("CartPole-v1", max_episode_steps=20)).same
    assert store.runs.select("name", pl.col("ended_at").is_null()).collect().rows() == [("other", True)]
    assert [entry["steps"] for entry in store.history().to_dicts()][:2] == [
        sum(len(rollout.actions) for rollout in part) for part in (rollouts[4:], rollouts[:4])
    ]

    with store.record(gymnasium.make("CartPole-v1"), run="ours") as recorder:
        play_some(recorder, range(2), 0)
    independent_writer.add_segment(run, 2, 6, rollouts[:1])
    store.refresh().compact()
    independent_writer.end_run(run)
    assert store.refresh().verify().ok
    assert store.runs.select("name", pl.col("ended_at").is_null()).sort("name").collect().rows() == [
        ("other", False),
        ("ours", False),
    ]
    assert len(assert_agree(path)) == 9


def test_two_writers_of_the_page_commit_one_after_the_other(tmp_path: Path) -> None:
    """A number of a commit that is taken is left to the other, and the next one is tried."""
    path = tmp_path / "store"
    independent_writer.create(path)
    assert not independent_writer._commit(path, "steps", 0, [], "WRITE", {})
    with pytest.raises(FileExistsError):
        independent_writer.create(path)
