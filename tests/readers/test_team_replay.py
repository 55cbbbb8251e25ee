"""Replaying multi-agent episodes: what is the same, and which agent and step differ first."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from mpe2 import simple_adversary_v3, simple_spread_v3, simple_tag_v3
from pettingzoo.utils import parallel_to_aec

import episodelake as el
from agent_environments import Comings, Turns
from effort import some, with_folders
from episodelake.testing.adapters import case
from faults.teams import AGENTS, TEAM_SPACES, InTurn, TeamScript, Together
from plain_agents import play_parallel, play_turns, random_policy

REAL = {
    "spread": lambda: simple_spread_v3.parallel_env(max_cycles=7),
    "tag": lambda: simple_tag_v3.parallel_env(max_cycles=5, num_adversaries=2),
    "comings": Comings,
    "zombies": lambda: pettingzoo.make("parallel", "butterfly/knights_archers_zombies_v11", max_cycles=30),
    "connect four": lambda: pettingzoo.make("aec", "classic/connect_four_v3"),
    "leduc": lambda: pettingzoo.make("aec", "classic/leduc_holdem_v4"),
    "adversary": lambda: simple_adversary_v3.env(max_cycles=5),
    "turns": Turns,
}


def play(env: Any, seed: int, steps: int = 10_000) -> None:
    """Play one episode, or its beginning, by the policy of its seed."""
    loop = play_turns if callable(getattr(env, "last", None)) else play_parallel
    loop(env, random_policy(env, seed), seed, steps)


@pytest.mark.parametrize("cases", some(REAL, 3))
def test_real_environments_replay(tmp_path: Path, cases: Any) -> None:
    """Whole episodes and one that was cut come out as recorded, one after the other in one environment."""
    for folder, name in with_folders(cases, tmp_path):
        with case(name):
            make = REAL[name]
            store = el.create(folder / "store", make())
            with store.record(make()) as recorder:
                for seed in range(3):
                    play(recorder, seed)
                play(recorder, 3, 1)
            store.refresh()
            reports = store.replay(make())
            assert [(report.same, report.compared) for report in reports] == [(True, len(e)) for e in store]
            assert [report.seed for report in reports] == list(range(4))
            assert reports[-1].transitions == 1
            assert "1 transitions replayed, all the same" in str(reports[-1])


@pytest.mark.parametrize("name", ["connect four", "turns"])
def test_a_loop_that_leaves_dead_agents_alone_replays(name: str, tmp_path: Path) -> None:
    """What agents saw at the end may depend on whether the dead were stepped; either way is the same."""
    make = REAL[name]
    plain = make()
    turns = sum(len(lane.actions) for lane in play_turns(plain, random_policy(plain, 5), 5).values())
    store = el.create(tmp_path / "store", make())
    with store.record(make()) as recorder:
        play(recorder, 5, turns)
        recorder.reset(seed=6)
    (episode,) = store.refresh()
    assert episode.length == turns and episode.end_reason in ("terminated", "truncated")
    assert episode.replay(make()).same


LONG = {False: TeamScript(1, 600, "terminated"), True: TeamScript(1, 600, "terminated", turns=True)}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, el.Episode]:
    """A long episode of agents that act at once, and one of turns."""
    found: dict[bool, el.Episode] = {}
    for turns, script in LONG.items():
        store = el.create(tmp_path_factory.mktemp("scripted") / "store", agents=TEAM_SPACES)
        with store.record((InTurn if turns else Together)({1: script})) as recorder:
            play(recorder, 1)
        (found[turns],) = store.refresh()
    return found


class Other(TeamScript):
    """A script that differs from step `at` on, in what one agent gets."""

    at = 0
    what = ""
    agent = ""

    def observation(self, agent: str, step: int) -> np.ndarray:
        """One more from then on."""
        found = super().observation(agent, step)
        found[1] += self.what == "observation" and agent == self.agent and step >= self.at
        return found

    def reward(self, agent: str, step: int) -> float:
        """A quarter more from then on."""
        more = self.what == "reward" and agent == self.agent and step >= self.at
        return super().reward(agent, step) + 0.25 * more

    def flags(self, agent: str, step: int) -> tuple[bool, bool]:
        """Truncated from then on."""
        more = self.what == "truncated" and agent == self.agent and step >= self.at
        return (False, True) if more else super().flags(agent, step)


# Whose turn it is once an agent is gone before its time is the environment's affair.
CHANGES = [(turns, what) for turns in (False, True) for what in ("observation", "reward", "truncated")][:-1]


_THE_FIRST_AGENT_AND_STEP_THAT_: Any = [
    *itertools.product(CHANGES, [("scout_0", 3), ("scout_1", 4), ("scout_1", 257), ("scout_0", 600)])
]


@pytest.mark.parametrize("cases", some(_THE_FIRST_AGENT_AND_STEP_THAT_))
def test_the_first_agent_and_step_that_differ_are_found(scripted: dict[bool, el.Episode], cases: Any) -> None:
    """One value of one agent that is changed from a step on is named with that step."""
    for (turns, what), (agent, at) in cases:
        with case((turns, what, agent, at)):
            other = Other(1, 600, "terminated", turns=turns)
            for name, value in (("at", at), ("what", what), ("agent", agent)):
                object.__setattr__(other, name, value)
            report = scripted[turns].replay((InTurn if turns else Together)({1: other}))
            # In turns an agent is told of it when it is next selected; the last rows all come at the end.
            place, count = AGENTS.index(agent), len(AGENTS)
            step = at if not turns else min(at + (place - at) % count, 600)
            first = report.first_difference
            assert first is not None
            assert (first.agent, first.step, report.compared) == (agent, step, step - 1)
            group = "tank" if agent == "tank_0" else "scout"
            leaf = f"{group}.observation" if what == "observation" else what
            assert leaf in [difference.leaf for difference in report.differences if difference.agent == agent]
            assert f"step {step}: {agent} " in str(report)


def test_other_agents_and_other_turns_are_told(scripted: dict[bool, el.Episode]) -> None:
    """An agent that does not come, and a turn that is another's, are differences of their own."""

    class Lonely(Together):
        """The second scout never comes."""

        def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
            """As ever, without it."""
            result = super().step(actions)
            self.agents = [agent for agent in self.agents if agent != "scout_1"]
            return tuple({a: v for a, v in part.items() if a != "scout_1"} for part in result)  # type: ignore

    (difference,) = scripted[False].replay(Lonely(LONG_BY_KEY[False])).differences
    assert (difference.step, difference.leaf, difference.agent) == (2, "agents", None)
    assert difference.expected == sorted(AGENTS) and difference.got == ["scout_0", "tank_0"]

    class Hurried(InTurn):
        """The tank's third turn is left out."""

        def step(self, action: Any) -> None:
            """As ever, but after seven turns."""
            super().step(action)
            if self.t == 7:
                self.agent_selection = "scout_1"

    report = scripted[True].replay(Hurried(LONG_BY_KEY[True]))
    found = [(each.step, each.leaf, each.expected, each.got) for each in report.differences]
    assert (7, "agent_selection", "tank_0", "scout_1") in found


LONG_BY_KEY = {turns: {1: script} for turns, script in LONG.items()}


def test_tolerances(scripted: dict[bool, el.Episode]) -> None:
    """Numbers may be apart as for numpy.isclose."""
    other = Other(1, 600, "terminated")
    for name, value in (("at", 5), ("what", "reward"), ("agent", "scout_0")):
        object.__setattr__(other, name, value)
    assert not scripted[False].replay(Together({1: other}), atol=0.2).same
    assert scripted[False].replay(Together({1: other}), atol=0.3).same
    with pytest.raises(el.errors.InvalidArgumentError, match="tol=-1: expected a finite number"):
        scripted[False].replay(Together({1: other}), atol=-1)


@pytest.mark.parametrize("cases", some(range(3, 12), 3))
def test_an_interrupted_episode_is_played_as_far_as_its_turns_are_known(tmp_path: Path, cases: Any) -> None:
    """A crash may lose turns that agents were waiting on; what is there replays, and the report says so."""
    for folder, turns in with_folders(cases, tmp_path):
        with case(turns):
            script = TeamScript(1, 30, "terminated", turns=True)
            recorder = el.create(folder / "store", agents=TEAM_SPACES).record(InTurn({1: script}))
            recorder.reset(seed=1)
            for step in range(turns):
                recorder.step(script.action(recorder.agent_selection, step))
            recorder.session.flush()
            shutil.copytree(folder / "store", folder / "killed")
            recorder.close()
            el.recover(folder / "killed")
            (killed,), (whole,) = el.open(folder / "killed"), el.open(folder / "store")
            assert killed.end_reason == "interrupted" and killed.length == turns
            report = killed.replay(InTurn({1: script}))
            # Of the last turns, one of each agent but the selected one had no outcome yet.
            assert report.same and report.compared == turns - 2
            assert "2 more were not recorded in full" in str(report)
            assert whole.replay(InTurn({1: script})).compared == turns


def test_what_cannot_be_replayed_is_refused(scripted: dict[bool, el.Episode]) -> None:
    """No environment, one of another kind, API or spaces, and one agent alone: errors that say what to do."""
    episode = scripted[False]
    assert isinstance(episode, el.MultiAgentEpisode)
    with pytest.raises(el.errors.EnvUnavailableError, match="PettingZoo"):
        episode.replay()
    with pytest.raises(el.errors.InvalidArgumentError, match="expected an environment of PettingZoo"):
        episode.replay(gymnasium.make("CartPole-v1"))
    with pytest.raises(el.errors.InvalidArgumentError, match="aec_to_parallel"):
        episode.replay(parallel_to_aec(Comings()))
    with pytest.raises(el.errors.InvalidArgumentError, match="whole episode"):
        episode.agent("scout_0").replay(Together(LONG_BY_KEY[False]))
    with pytest.raises(el.errors.SpaceMismatchError, match="scout_0"):
        episode.replay(Comings())
    with pytest.raises(el.errors.SpaceMismatchError, match="no agent 'scout_0'"):
        episode.replay(simple_spread_v3.parallel_env())
