"""Collection from environments of PettingZoo, compared with plain loops over the same seeded environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pettingzoo
import pytest

import episodelake as el
from agent_environments import Comings
from episodelake.testing.adapters import case
from strategies import same


def scout(observation: Any, info: Any, state: Any) -> Any:
    """A recurrent policy of a scout; its state says how often it was asked in this episode."""
    asked = 0 if state is None else state["asked"][0]
    return int(observation.sum() + asked) % 3, {"asked": asked}, {"asked": np.array([asked + 1])}


def tank(observation: Any, info: Any, state: Any) -> Any:
    """A policy of a tank, without a state."""
    fuel = float(observation["fuel"])
    return np.array([np.sin(fuel), 0.25], np.float32), {"distribution": {"mean": fuel}}


POLICIES = {"scout": scout, "tank": tank}


def el_end(step: el.types.StepData, longest: int) -> el.types.StepData:
    """End an episode after so many of an agent's steps."""
    return el.types.StepData(**{**vars(step), "end": step.t == longest})


def test_statistics_by_agent_add_up(tmp_path: Path) -> None:
    """A sum has the agents of both calls; one that was only in the second has NaN and 0 in the first."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    short = el.collect(env, None, store, episodes=1, step_callback=lambda step: el_end(step, 1))
    whole = el.collect(env, None, store, episodes=2, seed=1)
    total = sum([short, whole])
    assert isinstance(total, el.types.CollectStats) and total.episodes == 3
    rows = duckdb.sql(
        "select agents, agent_returns, agent_lengths "
        f"from '{tmp_path}/store/episodes/*.parquet' order by ended_at"
    ).fetchall()
    assert total.agent_returns.keys() == set(env.possible_agents) and len(rows) == 3
    for agent, returns in total.agent_returns.items():
        tables = [dict(zip(row[0], zip(*row[1:], strict=True), strict=True)) for row in rows]
        expected = [table.get(agent, (np.nan, 0)) for table in tables]
        assert np.array_equal(returns, [each for each, _ in expected], equal_nan=True)
        assert total.agent_lengths[agent].tolist() == [length for _, length in expected]
    assert np.isnan(total.agent_returns["tank_1"][0])
    assert total.frame()["agents"].to_list() == [list(total.agent_returns)] and "scout_1" in str(total)


def test_random_moves_keep_to_the_mask(tmp_path: Path) -> None:
    """Without a policy the boards of tic-tac-toe are played by the rules, and a seed repeats them."""
    board = pettingzoo.make("aec", "classic/tictactoe_v3")
    store = el.create(tmp_path / "store", board)
    for _ in range(2):
        el.collect(board, None, store, episodes=10, seed=5)
    store.refresh()
    for episode in store:
        squares = [square for own in episode.actions.values() for square in own.tolist()]
        assert len(squares) == len(set(squares)) >= 5
    for first, second in zip(store[:10], store[10:], strict=True):
        assert all(same(first.actions[agent], second.actions[agent]) for agent in first.agents)
    assert len({str(episode.actions) for episode in store[:10]}) > 5


def test_hooks_by_agent(tmp_path: Path) -> None:
    """`explore`, `map_action` and `initial_state` may be mappings by agent and by group."""
    store = el.create(tmp_path / "store", Comings())
    policy = el.Policy(
        POLICIES,
        initial_state={"scout_1": {"asked": np.array([50])}},
        map_action={"tank": lambda action: action / 2},
        explore={
            "tank_1": lambda action, generator: action + generator.normal(0, 0.01, 2).astype(np.float32)
        },
    )
    el.collect(Comings(), policy, store, episodes=2)
    for episode in store.refresh():
        noise = {}
        for name in ("tank_0", "tank_1"):
            own = episode.agent(name)
            raw = np.stack(list(own.policy["raw_action"])[: own.length])
            noise[name] = np.abs(raw / 2 - own.actions).max()
        assert noise["tank_0"] == 0 < noise["tank_1"] < 0.1
        assert list(episode.agent("scout_1").policy["asked"])[:2] == [50, 51]
        assert "raw_action" not in episode.agent("scout_0").policy


NAMELESS: list[tuple[Any, dict[str, Any], str]] = [
    ({"scout": scout}, {}, "policy has no entry for the agent 'tank_0' of the group 'tank'"),
    ({**POLICIES, "plane": tank}, {}, r"policy has the key 'plane'; the agents are .*'scout_0'.*'tank'"),
    ({**POLICIES, "tank": 3}, {}, "policy is int, which cannot be called"),
    (el.Policy(POLICIES, map_action={"plane": abs}), {}, "map_action has the key 'plane'"),
    (
        el.Policy(POLICIES, map_action_inverse={"plane": abs}),
        {},
        "map_action_inverse has the key 'plane'",
    ),
    (el.Policy(POLICIES, initial_state=3), {}, "initial_state=3: expected a mapping"),
    ({**POLICIES, "tank": el.Policy(tank)}, {}, "policy is Policy, .* Wrap the whole mapping in one"),
    (POLICIES, {"autoreset_mode": "NextStep"}, "autoreset_mode"),
]
ANSWERS: list[tuple[Any, str]] = [
    (1, "actions of the type int; expected a mapping by agent, of .*'scout_0', 'tank_0'"),
    ({"scout_0": 1}, r"actions of \['scout_0'\]; expected them by agent"),
    (({"scout_0": 1, "tank_0": np.zeros(2, np.float32)}, {"value": {"x": 1}}), "extras of"),
    (({"scout_0": 1, "tank_0": np.zeros(2, np.float32)}, None, 3), "states of the type int"),
]


def test_mappings_and_answers_that_name_no_agent(tmp_path: Path) -> None:
    """Mappings are refused before anything is played, and no run is left; answers say what was expected."""
    env = Comings()
    store = el.create(tmp_path / "store", env)
    for policy, options, words in NAMELESS:
        with case(words), pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.collect(env, policy, store, steps=1, **options)
    assert store.refresh().runs.collect().is_empty() and env.agents == []
    for answer, words in ANSWERS:
        with case(words), pytest.raises(el.errors.InvalidArgumentError, match=words):
            el.collect(env, lambda observations, infos, states, answer=answer: answer, store, steps=1)


def test_a_mapping_is_for_several_agents(tmp_path: Path) -> None:
    """For an environment with one agent it is refused."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"policy is a mapping, which is for the agents"):
        el.collect(env, {"scout": scout}, store, steps=1)


@pytest.mark.further
def test_agents_in_workers(tmp_path: Path) -> None:
    """Each worker plays an environment of its own; statistics by agent are joined."""
    store = el.create(tmp_path / "store", Comings())
    stats = el.collect(Comings, POLICIES, store, episodes=5, workers=2, seed=1)
    assert stats.episodes == 5 == len(store.refresh())
    returns = store.sql("select unnest(agents) as agent, unnest(agent_returns) from episodes").fetchall()
    for agent, own in stats.agent_returns.items():
        assert sorted(own.tolist()) == sorted(total for name, total in returns if name == agent)
