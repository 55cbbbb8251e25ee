"""`ParallelRecorder`: what it records is what a plain loop over the same seeded environment saw."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pettingzoo
import pytest
from mpe2 import simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3

import episodelake as el
from agent_environments import SPACES, Comings
from plain_agents import check_agents, play_parallel, random_policy

REAL = {
    "spread": lambda: simple_spread_v3.parallel_env(max_cycles=12),
    "tag": lambda: simple_tag_v3.parallel_env(max_cycles=9, num_adversaries=2),
    "speaker": lambda: simple_speaker_listener_v4.parallel_env(max_cycles=8),
    "pistonball": lambda: pettingzoo.make("parallel", "butterfly/pistonball_v6", n_pistons=5, max_cycles=6),
    # Long enough for knights to die before the others.
    "zombies": lambda: pettingzoo.make(
        "parallel",
        "butterfly/knights_archers_zombies_v11",
        max_cycles=150,
        num_archers=3,
        max_zombies=30,
        spawn_delay=5,
    ),
    "rock-paper-scissors": lambda: pettingzoo.make("parallel", "classic/rps_v2", num_actions=3, max_cycles=7),
    "comings": Comings,
}


def record(store: el.EpisodeStore, env: Any, seeds: range, **options: Any) -> el.EpisodeStore:
    """Record one episode for each seed, by the policy of that seed."""
    with store.record(env, **options) as recorder:
        for seed in seeds:
            play_parallel(recorder, random_policy(recorder, seed), seed)
    return store.refresh()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", REAL)
def test_real_environments_are_recorded_as_a_plain_loop_sees_them(name: str, tmp_path: Path) -> None:
    """Every agent's observations, actions, rewards, flags and infos are those of a plain loop."""
    make = REAL[name]
    store = record(el.create(tmp_path / "store", make()), make(), range(2))
    plain = make()
    for seed, episode in enumerate(store):
        lanes = play_parallel(plain, random_policy(plain, seed), seed)
        check_agents(episode, lanes)
        assert episode.seed == seed
        assert episode.length == max(lane.env_steps[-1] for lane in lanes.values())
        assert episode.end_reason in ("terminated", "truncated")
    assert not store.verify().faults


def test_agents_that_come_late_and_leave_early(tmp_path: Path) -> None:
    """Each agent's rows begin with its first observation and end with its last, in columns of its group."""
    env = Comings()
    store = record(el.create(tmp_path / "store", env), env, range(3))
    episode = store[0]
    assert episode.agents == ("scout_0", "tank_0", "scout_1", "tank_1")
    assert episode.agent_lengths == {"scout_0": 3, "tank_0": 7, "scout_1": 4, "tank_1": 2}
    assert episode.length == 8
    assert [episode.agent(agent).end_reason for agent in episode.agents] == [
        "terminated",
        "truncated",
        "terminated",
        "truncated",
    ]
    # Some were truncated, so the whole is; not all were terminated.
    assert (episode.terminated, episode.truncated, episode.end_reason) == (False, True, "truncated")
    assert [group.name for group in store.agent_groups] == ["scout", "tank"]
    rows = episode.frame()
    tanks = rows["agent_id"].str.starts_with("tank")
    assert (rows["tank.observation.fuel"].is_not_null() == tanks).all()
    assert (rows["scout.observation"].is_null() == tanks).all()
    assert episode.agent("tank_0").observations["view"].dtype == np.uint8
    assert episode.agent("tank_0").observations["view"].shape == (8, 3, 3, 1)


def test_states_stand_once_for_each_step_of_the_environment(tmp_path: Path) -> None:
    """With state=True the column `state` has the environment's state before and after each of its steps."""
    env = Comings()
    store = record(el.create(tmp_path / "store", env), env, range(2), state=True)
    plain = Comings()
    plain.reset(seed=0)
    expected = [plain.state()]
    while plain.agents:
        plain.step({agent: 0 for agent in plain.agents})
        expected.append(plain.state())
    assert store[0].states.dtype == np.int32
    assert np.array_equal(store[0].states, np.stack(expected))
    counted = store.sql("select episode_id, count(state), max(env_step) + 1 from steps group by 1").fetchall()
    assert all(found == steps for _, found, steps in counted)


def test_an_agent_without_an_action_leaves_the_environment_alone(tmp_path: Path) -> None:
    """The error names it, the environment is not stepped, and recording goes on."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    good = {"scout_0": 1, "tank_0": np.zeros(2, np.float32)}
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        with pytest.raises(el.errors.SpaceMismatchError, match="no entry for tank_0"):
            recorder.step({"scout_0": 1})
        with pytest.raises(el.errors.InvalidArgumentError, match="no agent 'bomber'"):
            recorder.log("bomber", value=1.0)
        assert env._step == 0
        recorder.step(good)
    assert store.refresh()[0].agent_lengths == {"scout_0": 1, "tank_0": 1}


class Misfit(Comings):
    """Gives one agent an observation of a wrong shape at its third step."""

    def _observation(self, agent: str) -> Any:
        if agent == "tank_0" and self._step == 3:
            return {"view": np.zeros((9, 9, 1), np.uint8), "fuel": np.float64(0)}
        return super()._observation(agent)


def test_a_step_that_does_not_fit_is_not_in_the_journal(tmp_path: Path) -> None:
    """A process that dies after such a step leaves nothing of it for any agent."""
    env = Misfit()
    store = el.create(tmp_path / "store", env)
    recorder = store.record(env)
    with pytest.raises(el.errors.SpaceMismatchError):
        play_parallel(recorder, random_policy(recorder, 0), 0)
    recorder.session.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    recorder.close()
    el.recover(tmp_path / "killed")
    killed = el.open(tmp_path / "killed")
    assert killed[0].agent_lengths == {"scout_0": 2, "tank_0": 2, "scout_1": 0}
    assert killed[0].length == 2 and not killed.verify().faults


class Vanishing(Comings):
    """The tank is gone after its second step: no observation, no reward, no flag."""

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """As before, without the tank."""
        result = super().step(actions)
        if self._step == 3:
            self.agents = []
        for found in result if self._step == 3 else ():
            found.pop("tank_0", None)
        return result


def test_an_agent_that_vanishes_keeps_what_it_had(tmp_path: Path) -> None:
    """No flag is invented for it, and the episode ends with the last agent all the same."""
    env = Vanishing()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        while recorder.agents:
            recorder.step({agent: recorder.action_space(agent).sample() for agent in recorder.agents})
        with pytest.raises(el.errors.RecorderStateError, match="has ended"):
            recorder.step({})
    episode = store.refresh()[0]
    assert episode.agent_lengths == {"scout_0": 3, "tank_0": 2, "scout_1": 1}
    assert episode.agent("scout_0").end_reason == "terminated"
    assert episode.agent("tank_0").end_reason == episode.end_reason == "cut"
    assert not store.verify().faults


def test_agents_that_nobody_announced(tmp_path: Path) -> None:
    """An agent that is not among the possible ones is recorded if a group has its spaces."""
    few = Comings()
    few.possible_agents = ["scout_0", "tank_0"]
    store = record(el.create(tmp_path / "store", few), few, range(1))
    assert [group.agents for group in store.agent_groups] == [("scout_0",), ("tank_0",)]
    env = Comings()
    check_agents(store[0], play_parallel(env, random_policy(env, 0), 0))
    assert store[0].agent("tank_1").group == "tank" and not store.verify().faults
    lone = Comings()
    lone.possible_agents = ["scout_0"]
    with (
        el.create(tmp_path / "lone", lone).record(lone) as recorder,
        pytest.raises(el.errors.SpaceMismatchError, match="'tank_0' has the spaces"),
    ):
        recorder.reset(seed=0)


class Returning(Comings):
    """An agent that had left is back three steps later."""

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        """As before, and then the scout is back."""
        result = super().step(actions)
        if self._step == 5:
            self.agents.append("scout_0")
            result[0]["scout_0"] = np.zeros(2, np.float32)
        return result


def test_an_agent_may_not_come_back(tmp_path: Path) -> None:
    """A clear error; what was recorded stays."""
    env = Returning()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder, pytest.raises(el.errors.RecorderStateError, match="came back"):
        play_parallel(recorder, random_policy(recorder, 0), 0)
    assert store.refresh()[0].length == 4
    assert not store.verify().faults


def test_the_wrong_store_or_environment_is_refused(tmp_path: Path) -> None:
    """A store for one agent takes no team, a team's store no single agent, and other spaces are named."""
    single = el.create(
        tmp_path / "single", observation_space=SPACES["scout_0"][0], action_space=SPACES["scout_0"][1]
    )
    with pytest.raises(el.errors.InvalidArgumentError, match="store for one agent"):
        single.record(Comings())
    team = el.create(tmp_path / "team", Comings())
    with pytest.raises(el.errors.InvalidArgumentError, match="store for several agents"):
        team.writer()
    with pytest.raises(el.errors.SpaceMismatchError, match="'agent_0'"):
        team.record(simple_spread_v3.parallel_env())
    with pytest.raises(el.errors.InvalidArgumentError, match="possible_agents"):
        nameless = Comings()
        nameless.possible_agents = []
        el.create(tmp_path / "nameless", nameless)
    assert not (tmp_path / "nameless").exists()
    with pytest.raises(el.errors.InvalidArgumentError, match="those of a single agent"):
        el.create(tmp_path / "both", Comings(), action_space=SPACES["scout_0"][1])
    with pytest.raises(el.errors.InvalidArgumentError, match="env="):
        el.create(tmp_path / "class", [Comings()])
    with pytest.raises(el.errors.InvalidArgumentError, match="named by text"):
        el.create(tmp_path / "numbers", agents={1: SPACES["scout_0"]})  # type: ignore[dict-item]
    with pytest.raises(el.errors.InvalidArgumentError, match="agents="):
        el.create(tmp_path / "odd", agents={"red": "space"})  # type: ignore[dict-item]
