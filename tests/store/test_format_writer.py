"""docs/format.md says enough to write a store: one that was written by it alone is one of ours."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import polars as pl
import pytest

import episodelake as el
import independent_journal_writer as journal
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


def test_a_tag_of_a_writer_of_the_page_is_one_of_ours(tmp_path: Path) -> None:
    """A tag written by the page's rules opens its version, and its changed byte is an error."""
    path = tmp_path / "store"
    independent_writer.create(path)
    run = independent_writer.begin_run(path, "other")
    for number in range(2):
        independent_writer.add_segment(run, number, number, [played(number)])
    independent_writer.tag(path, "first", el.open(path).version - 1)
    assert len(el.open(path, version="first")) == 1 and el.open(path).verify().ok
    file = path / "tags" / "first.json"
    file.write_bytes(file.read_bytes().replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(el.errors.CorruptStoreError, match="checksum"):
        el.open(path, version="first")


def test_two_writers_of_the_page_commit_one_after_the_other(tmp_path: Path) -> None:
    """A number of a commit that is taken is left to the other, and the next one is tried."""
    path = tmp_path / "store"
    independent_writer.create(path)
    assert not independent_writer._commit(path, "steps", 0, [], "WRITE", {})
    with pytest.raises(FileExistsError):
        independent_writer.create(path)


def test_a_journal_of_a_writer_of_the_page_is_recovered(tmp_path: Path) -> None:
    """Finished episodes come back with what their events told, the unfinished one as interrupted."""
    path = tmp_path / "store"
    independent_writer.create(path)
    run = independent_writer.begin_run(path, "journalled")
    first, second, third = (played(seed) for seed in range(3))
    rows = [journal.arrivals(number, rollout) for number, rollout in enumerate((first, second, third))]
    late = {"_number": 0, "_kind": journal.LATE, "policy.value": -1.0}
    moment = run.started_at
    begins = [
        {
            "event": "begin",
            "number": 0,
            "env_index": 0,
            "started_at": moment,
            "seed": 0,
            "metadata": '{"a":1}',
        },
        {"event": "begins", "number": [1, 2], "env_index": [1, 2], "started_at": [moment] * 2},
    ]
    told = '{"b":{"$tuple":[2]}}'
    end = {"event": "end", "number": 0, "ended_at": moment + 5, "reason": "cut", "metadata": told}
    ends = {"event": "ends", "number": [1], "ended_at": [moment + 7]}
    # The rows alternate. The first episode is cut after five steps, the last one's writer dies after three.
    early = [rows[0][0], rows[1][0], rows[2][0], *rows[0][1:6], *rows[2][1:4]]
    frames = [
        journal.schema_frame(run),
        journal.batch_frame(0, early, begins),
        journal.batch_frame(len(early), [*rows[1][1:], late], [end, ends]),
    ]
    journal.write_part(run, frames, ended=False)
    journal.die(run)

    (found,) = el.recover(path)
    assert (found.run_id, found.episodes, found.interrupted) == (run.id, 3, 1)
    store = el.open(path)
    assert store.runs.collect()["metadata.rate"].to_list() == [float("inf")]
    by_number = {episode.number: episode for episode in store}
    assert [by_number[number].end_reason for number in range(3)] == [
        "cut",
        "terminated" if second.terminated else "truncated",
        "interrupted",
    ]
    for number, rollout in enumerate((first, second, third)):
        length = {0: 5, 2: 3}.get(number, len(rollout.actions))
        episode = by_number[number]
        assert episode.observations.tolist() == list(rollout.observations)[: length + 1]
        assert episode.actions.tolist() == list(rollout.actions)[:length]
        values = [float(t) for t in range(length)] + ([-1.0] if number == 0 else [])
        assert episode.policy["value"].tolist() == values
    assert (by_number[0].seed, by_number[0].metadata) == (0, {"b": (2,)})
    assert (by_number[1].env_index, by_number[1].seed) == (1, None)
    assert store.verify().ok and not run.journal.exists()
    assert len(assert_agree(path)) == 3
