"""`AECRecorder`: what it records is what PettingZoo's own loop over the same seeded environment saw."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
import pytest
from mpe2 import simple_adversary_v3
from pettingzoo import AECEnv

import episodelake as el
from agent_environments import Turns
from episodelake.testing.adapters import case
from faults.teams import TEAM_SPACES, InTurn, TeamScript, untrue_team
from plain_agents import check_agents, failing_once, play_turns, random_policy

REAL = {
    "tic-tac-toe": lambda: pettingzoo.make("aec", "classic/tictactoe_v3"),
    "connect four": lambda: pettingzoo.make("aec", "classic/connect_four_v3"),
    "leduc": lambda: pettingzoo.make("aec", "classic/leduc_holdem_v4"),
    "texas": lambda: pettingzoo.make("aec", "classic/texas_holdem_v4", num_players=3),
    "adversary": lambda: simple_adversary_v3.env(max_cycles=5),
    "pong": lambda: pettingzoo.make("aec", "butterfly/cooperative_pong_v6", max_cycles=4),
    "turns": Turns,
}


def record(store: el.EpisodeStore, env: Any, seeds: range, **options: Any) -> el.EpisodeStore:
    """Record one episode for each seed, by the policy of that seed."""
    with store.record(env, **options) as recorder:
        for seed in seeds:
            play_turns(recorder, random_policy(recorder, seed), seed)
    return store.refresh()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", REAL)
def test_real_environments_are_recorded_as_a_plain_loop_sees_them(name: str, tmp_path: Path) -> None:
    """Every agent's observations (with masks), actions, cumulative rewards, flags and infos come back."""
    make = REAL[name]
    store = record(el.create(tmp_path / "store", make()), make(), range(4))
    plain = make()
    for seed, episode in enumerate(store):
        lanes = play_turns(plain, random_policy(plain, seed), seed)
        check_agents(episode, lanes)
        turns = sum(len(lane.actions) for lane in lanes.values())
        assert (episode.seed, episode.length) == (seed, turns)
        assert episode.end_reason in ("terminated", "truncated")
    assert not store.verify().faults


def test_the_last_observation_of_every_agent_is_kept(tmp_path: Path) -> None:
    """A loop that stops at the first done, as many do, loses neither the loser's last row nor its reward."""
    env = REAL["tic-tac-toe"]()
    store = el.create(tmp_path / "store", env)
    with store.record(env) as recorder:
        recorder.reset(seed=0)
        for square in (0, 3, 1, 4, 2):
            recorder.step(square)
        # player_1 has three in a row; nobody steps the dead agents.
    episode = store.refresh()[0]
    assert episode.agent_returns == {"player_1": 1.0, "player_2": -1.0}
    assert episode.agent_lengths == {"player_1": 3, "player_2": 2}
    assert (episode.terminated, episode.end_reason, episode.length) == (True, "terminated", 5)
    assert episode.agent("player_2").observations["observation"][-1, :, :, 1].sum() == 3
    assert not store.verify().faults


class Folding(AECEnv):
    """The first player may end the game at once; the second is paid before it could act."""

    metadata: ClassVar[dict] = {"name": "folding_v0"}
    possible_agents: ClassVar[list] = ["one", "two"]

    def observation_space(self, agent: str) -> Any:
        """A number."""
        return Turns().observation_space("scout_0")

    def action_space(self, agent: str) -> Any:
        """Fold or go on."""
        return Turns().action_space("scout_0")

    def observe(self, agent: str) -> np.ndarray:
        """Nothing to see."""
        return np.zeros(2, np.float32)

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Begin with both."""
        self.agents = ["one", "two"]
        self.rewards = {"one": 0.0, "two": 0.0}
        self._cumulative_rewards = dict(self.rewards)
        self.terminations = {"one": False, "two": False}
        self.truncations = dict(self.terminations)
        self.infos: dict[str, dict] = {"one": {}, "two": {}}
        self.agent_selection = "one"

    def step(self, action: Any) -> None:
        """Fold."""
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0
        self.rewards = {"one": -2.0, "two": 2.0}
        self.terminations = {"one": True, "two": True}
        self._accumulate_rewards()
        self._deads_step_first()
        self.agent_selection = "two"


def test_what_an_agent_got_before_it_could_act_is_kept(tmp_path: Path) -> None:
    """An agent that never had a turn has T = 0, its flags, and its reward in the column initial_reward."""
    store = record(el.create(tmp_path / "store", Folding()), Folding(), range(2))
    episode = store[0]
    assert episode.agent_lengths == {"one": 1, "two": 0}
    assert episode.agent_returns == {"one": -2.0, "two": 0.0}
    assert episode.agent("two").terminated and episode.agent("two").end_reason == "terminated"
    assert (episode.terminated, episode.end_reason) == (True, "terminated")
    assert episode.extra["two"]["initial_reward"].tolist() == [2.0]
    assert not store.verify().faults


def test_flags_of_an_agent_that_never_acted_survive_a_crash(tmp_path: Path) -> None:
    """They stand on no row; recovery takes them from the end of the episode."""
    env = Folding()
    recorder = el.create(tmp_path / "store", env).record(env)
    for seed in range(2):
        play_turns(recorder, random_policy(recorder, seed), seed)
    recorder.session.flush()
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    recorder.close()
    el.recover(tmp_path / "killed")
    killed = el.open(tmp_path / "killed")
    # The second episode had not been ended by a reset: what is known of it stands in its rows.
    assert [episode.end_reason for episode in killed] == ["terminated", "interrupted"]
    assert killed[0].terminated and killed[0].agent("two").terminated
    assert not killed.verify().faults


def test_states_of_turns(tmp_path: Path) -> None:
    """With state=True there is one state before the first turn and one after each."""
    env = simple_adversary_v3.env(max_cycles=3)
    store = record(el.create(tmp_path / "store", env), env, range(1), state=True)
    plain = simple_adversary_v3.env(max_cycles=3)
    expected: list[np.ndarray] = []
    plain.reset(seed=0)
    policy = random_policy(plain, 0)
    expected.append(plain.state())
    for agent in plain.agent_iter():
        observation, _, terminated, truncated, info = plain.last()
        done = terminated or truncated
        plain.step(None if done else policy(agent, observation, info))
        if not done:
            expected.append(plain.state())
    assert np.array_equal(store[0].states, np.stack(expected))


def test_an_environment_without_state_says_so(tmp_path: Path) -> None:
    """state=True needs a state() that is implemented; the error comes at the first reset."""
    env = REAL["tic-tac-toe"]()
    with (
        el.create(tmp_path / "store", env).record(env, state=True) as recorder,
        pytest.raises(el.errors.InvalidArgumentError, match="does not implement state"),
    ):
        recorder.reset(seed=0)
    with pytest.raises(el.errors.InvalidArgumentError, match="state=True is for PettingZoo"):
        single = gymnasium.make("CartPole-v1")
        el.create(tmp_path / "single", single).record(single, state=True)


class Abrupt(Turns):
    """Says that all are done, and has no agents any more, within one turn."""

    def step(self, action: Any) -> None:
        """The turn of the selected agent; the last one leaves nobody to be told of it."""
        super().step(action)
        if self.agents and all(self.terminations[a] or self.truncations[a] for a in self.agents):
            self.agents = []


def test_agents_that_are_gone_at_once_have_their_last_turns(tmp_path: Path) -> None:
    """An environment that does not step its dead agents loses none of their turns."""
    for number, length in enumerate([1, 4, 9]):
        with case(length):
            _check_agents_that_are_gone_at_once_have_their_last_turns(tmp_path / str(number), length)


def _check_agents_that_are_gone_at_once_have_their_last_turns(tmp_path: Path, length: int) -> None:
    store = el.create(tmp_path / "store", Turns())
    with store.record(Abrupt(length)) as recorder:
        play_turns(recorder, random_policy(recorder, 1), 1)
    episode = store.refresh()[0]
    assert episode.length == sum(episode.agent_lengths.values()) == length
    assert episode.end_reason == "truncated"
    assert not store.verify().faults


@pytest.mark.parametrize("way", ["close", "step"])
def test_trouble_of_one_agent_costs_the_others_nothing(way: str, tmp_path: Path) -> None:
    """Where one agent's observation cannot be had or does not fit, the turns of the others are settled."""
    env = Turns()
    store = el.create(tmp_path / "store", env)
    recorder = store.record(env)
    play_turns(recorder, random_policy(recorder, 1), 1, 4)
    assert env.agent_selection == "scout_1"
    observe = env.observe

    def broken(agent: str) -> Any:
        if agent != ("scout_0" if way == "close" else "tank_0"):
            return observe(agent)
        if way == "close":
            raise ZeroDivisionError("broken")
        return np.zeros(7)

    env.observe = broken  # type: ignore[method-assign]
    if way == "close":
        with pytest.raises(ZeroDivisionError, match="broken"):
            recorder.close()
        wanted = {"scout_0": 1, "tank_0": 2, "scout_1": 0}
    else:
        with pytest.raises(el.errors.SpaceMismatchError, match=r"tank\.observation"):
            recorder.step(0)
        recorder.close()
        wanted = {"scout_0": 2, "tank_0": 1, "scout_1": 1}
    (episode,) = store.refresh()
    assert {agent: episode.agent_lengths.get(agent, 0) for agent in wanted} == wanted
    assert not store.verify().faults


@pytest.mark.parametrize("turns", (250, 256, 260))
def test_a_full_disk_at_the_end_costs_no_turn(
    turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that fails once, whatever rows are in hand, makes a call fail that can be made again."""
    store = el.create(tmp_path / "store", agents=TEAM_SPACES)
    script = TeamScript(1, 400, "terminated", turns=True)
    recorder = store.record(InTurn({1: script}), flush_seconds=1e6)
    recorder.reset(seed=1)
    for step in range(turns):
        recorder.log(value=-step / 4)
        recorder.step(script.action(recorder.agent_selection, step))
    failing_once(monkeypatch)
    with pytest.raises(el.errors.StoreAccessError, match="full"):
        recorder.close()
    recorder.close()
    (episode,) = store.refresh()
    assert (episode.length, episode.end_reason) == (turns, "cut")
    assert not list(untrue_team(episode, script))
