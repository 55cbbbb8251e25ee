"""`TeamWriter`: episodes of several agents from arrays or step by step equal what a recorder made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agent_environments as environments
import episodelake as el
import plain_agents as plain

BOX, DISCRETE = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(3)
PARTS = ("observations", "actions", "rewards", "terminations", "truncations")


def recorded(path: Path, env_type: type) -> el.EpisodeStore:
    """A store with episodes of a recorder, whole ones and some that were cut."""
    store = el.create(path, env_type())
    with store.record(env_type()) as env:
        for seed, steps in enumerate((10_000, 1, 4, 10_000)):
            play = plain.play_parallel if env_type is environments.Comings else plain.play_turns
            play(env, plain.random_policy(env, seed), seed, steps)
    return store.refresh()


def arrays(part: Any) -> dict[str, Any]:
    """The arrays of an agent as `write_episode` takes them."""
    return {
        **{name: getattr(part, name) for name in PARTS},
        "infos": part.infos,
        "env_steps": part.env_steps,
    }


def same_tree(found: Any, expected: Any) -> None:
    """Both are the same nested arrays."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same_tree(found[key], expected[key])
        return
    np.testing.assert_array_equal(found, expected)


def check_same(found: el.EpisodeStore, expected: el.EpisodeStore) -> None:
    """Both stores have the same episodes."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, el.MultiAgentEpisode) and isinstance(other, el.MultiAgentEpisode)
        assert one.agents == other.agents
        assert (one.length, one.episode_return) == (other.length, other.episode_return)
        assert (one.end_reason, one.seed) == (other.end_reason, other.seed)
        for name in one.agents:
            mine, theirs = one.agent(name), other.agent(name)
            for part in PARTS:
                same_tree(getattr(mine, part), getattr(theirs, part))
            assert mine.env_steps.tolist() == theirs.env_steps.tolist()
            assert (mine.terminated, mine.truncated) == (theirs.terminated, theirs.truncated)
            assert len(mine.infos) == len(theirs.infos)
            for info, other_info in zip(mine.infos, theirs.infos, strict=True):
                same_tree(info, other_info)
    assert not found.verify().faults


@pytest.mark.parametrize("env_type", [environments.Comings, environments.Turns])
def test_write_episode(tmp_path: Path, env_type: type) -> None:
    """Arrays of each agent make the episode that a recorder made, with agents that come and go."""
    store = recorded(tmp_path / "recorded", env_type)
    copy = el.create(tmp_path / "copy", env_type())
    with copy.team_writer(run="copy") as writer:
        for episode in store:
            row = writer.write_episode(
                {name: arrays(episode.agent(name)) for name in episode.agents}, seed=episode.seed
            )
            assert (row.length, row.episode_return) == (episode.length, episode.episode_return)
            assert row.end_reason == episode.end_reason
    check_same(copy.refresh(), store)


def pick(tree: Any, index: int) -> Any:
    """An item of a nested value."""
    return {key: pick(value, index) for key, value in tree.items()} if isinstance(tree, dict) else tree[index]


@pytest.mark.parametrize("env_type", [environments.Comings, environments.Turns])
def test_steps(tmp_path: Path, env_type: type) -> None:
    """So do steps, each with the agents that act and those that appear."""
    store = recorded(tmp_path / "recorded", env_type)
    copy = el.create(tmp_path / "copy", env_type())
    with copy.team_writer() as writer:
        for episode in store:
            members = {name: episode.agent(name) for name in episode.agents}

            def at(step: int, members: dict[str, Any] = members) -> dict[str, int]:
                found = {name: np.flatnonzero(part.env_steps == step) for name, part in members.items()}
                return {name: int(rows[0]) for name, rows in found.items() if len(rows)}

            begin = at(0)
            team = writer.begin(
                {name: pick(members[name].observations, 0) for name in begin},
                {name: members[name].infos[0] for name in begin},
                seed=episode.seed,
            )
            for step in range(1, episode.length + 1):
                rows = at(step)
                acting = {name: row - 1 for name, row in rows.items() if row}
                if not rows:
                    continue
                team.append(
                    {name: pick(members[name].actions, t) for name, t in acting.items()},
                    {name: members[name].rewards[t] for name, t in acting.items()},
                    {name: pick(members[name].observations, row) for name, row in rows.items()},
                    {name: members[name].terminations[t] for name, t in acting.items()},
                    {name: members[name].truncations[t] for name, t in acting.items()},
                    {name: members[name].infos[row] for name, row in rows.items()},
                )
            team.end()
    if env_type is environments.Comings:
        check_same(copy.refresh(), store)
    else:
        assert [each.agent_returns for each in copy.refresh()] == [each.agent_returns for each in store]


def two(path: Path) -> el.EpisodeStore:
    """A store of two groups of one agent each."""
    return el.create(path, agents={"a": (BOX, DISCRETE), "b": (BOX, gym.spaces.Discrete(5))})


def one_step(**changed: Any) -> dict[str, Any]:
    """The arrays of an agent that acts once."""
    given = {"observations": np.ones((2, 2), np.float32), "actions": [1], "rewards": [0.5]}
    return {**given, "terminations": [True], "truncations": [False], **changed}


def test_values_by_agent(tmp_path: Path) -> None:
    """Policy values, columns of one's own, an agent that never acts, a new name and metadata are kept."""
    store = two(tmp_path / "store")
    idle = one_step(
        observations=np.zeros((1, 2), np.float32), actions=[], rewards=[], terminations=True, truncations=[]
    )
    idle["actions"], idle["truncations"] = np.zeros(0, np.int64), False
    with store.team_writer() as writer:
        first = one_step(policy={"value": [0.25]}, extra={"height": [1.0, 2.0]})
        row = writer.write_episode({"o'x": first, "b": idle}, groups={"o'x": "a"}, metadata={"level": 3})
        assert (row.length, row.metadata) == (1, {"level": 3})
        team = writer.begin({"a": np.zeros(2, np.float32)}, extra={"a": {"height": 7.0}})
        team.append({"a": 2}, {"a": 1.0}, {"a": np.ones(2, np.float32)}, policy={"a": {"value": 0.5}})
        assert team.agents == ("a",)
    first, second = store.refresh()
    assert isinstance(first, el.MultiAgentEpisode) and isinstance(second, el.MultiAgentEpisode)
    assert first.agents == ("o'x", "b") and first.agent_lengths == {"o'x": 1, "b": 0}
    assert first.agent("b").terminated and first.end_reason == "terminated"
    assert first.policy["o'x"]["value"].tolist() == [0.25]
    assert first.extra["o'x"]["height"].tolist() == [1.0, 2.0]
    assert second.end_reason == "cut" and second.policy["a"]["value"].tolist() == [0.5]
    assert not store.verify().faults


def test_what_does_not_fit(tmp_path: Path) -> None:
    """An error names the agent; nothing of the step or the episode is recorded, and the writer goes on."""
    store = two(tmp_path / "store")
    here, there = np.zeros(2, np.float32), np.ones(2, np.float32)
    with store.team_writer() as writer:
        for arrays_, message in [
            ({"a": one_step(actions=[1, 2])}, "'a': actions"),
            ({"a": one_step(reward=[1])}, "the key 'reward'"),
            ({"a": {"observations": [here]}}, "lacks actions"),
            ({"c": one_step()}, "'c' is new to the store"),
            ({"a": one_step(env_steps=[1, 2])}, "begins at step 0"),
            ({"a": one_step(env_steps=[2, 2])}, "ascending"),
            ({"a": one_step(extra={"B": [1, 2]})}, "a group of agents has it"),
            ({}, "No agent has a transition"),
        ]:
            with pytest.raises(el.EpisodelakeError, match=message):
                writer.write_episode(arrays_)
        with pytest.raises(el.errors.SpaceMismatchError):
            writer.write_episode({"a": one_step(), "b": one_step(observations=np.zeros((2, 3)))})
        with pytest.raises(el.errors.InvalidArgumentError, match="cannot be in a group 'b'"):
            writer.write_episode({"a": one_step()}, groups={"a": "b"})
        with pytest.raises(el.errors.InvalidArgumentError, match="at least one agent"):
            writer.begin({})
        team = writer.begin({"a": here})
        for given, message in [
            (({"b": 1}, {"b": 0}, {"b": here}), "'b'. act"),
            (({"a": 1}, {}, {"a": there}), "rewards has none"),
            (({"a": 1}, {"a": 0}, {}), "observations has none"),
            (({"a": 1}, {"a": 0, "b": 0}, {"a": there}), "rewards has the agents"),
            (({"a": 1}, {"a": 0}, {"a": there}, {"b": True}), "terminations has the agents"),
            (({"a": 1}, {"a": 0}, {"a": there}, None, None, {"b": {}}), "infos has the agents"),
        ]:
            with pytest.raises(el.errors.InvalidArgumentError, match=message):
                team.append(*given)
        with pytest.raises(el.errors.SpaceMismatchError):
            team.append({"a": 1}, {"a": 0}, {"a": there, "b": np.zeros(3)})
        team.append({"a": 1}, {"a": 2.0}, {"a": there, "b": here})
        with pytest.raises(el.errors.InvalidArgumentError, match="do not act"):
            team.append({"a": 1}, {"a": 0}, {"a": there, "b": here})
        team.append({"a": 1}, {"a": 0}, {"a": there}, {"a": True})
        with pytest.raises(el.errors.InvalidArgumentError, match="not there"):
            team.append({"a": 1}, {"a": 0}, {"a": there})
        team.append({"b": 4}, {"b": 1}, {"b": there}, {"b": True})
        with pytest.raises(el.errors.RecorderStateError, match="has ended"):
            team.append({"b": 4}, {"b": 1}, {"b": there})
        assert team.end().length == 3
        with pytest.raises(el.errors.RecorderStateError, match="ended already"):
            team.end()
        with pytest.raises(el.errors.RecorderStateError, match="No agent of the episode acted"):
            writer.begin({"a": here}).end()
    (episode,) = store.refresh()
    assert episode.rewards["a"].tolist() == [2.0, 0.0] and episode.agent("b").env_steps.tolist() == [1, 3]
    assert episode.end_reason == "terminated" and not store.verify().faults
    single = el.create(tmp_path / "single", observation_space=BOX, action_space=DISCRETE)
    with pytest.raises(el.errors.InvalidArgumentError, match="store for one agent"):
        single.team_writer()
    with pytest.raises(el.errors.InvalidArgumentError, match="team_writer"):
        store.writer()
