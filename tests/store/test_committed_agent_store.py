"""The committed store of several agents must open for ever, and say what it said on the day it was made.

What it must say stands beside it in `expected.json`, which plain loops wrote; see
`make_committed_agent_store.py`. Nothing here plays an environment.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import episodelake as el
from agent_environments import SPACES
from test_committed_store import plain

FOLDER = Path(__file__).parents[1] / "data" / "format-1-agents"
EXPECTED = json.loads((FOLDER / "expected.json").read_text("utf-8"))
SEALED = [*EXPECTED["together"], *EXPECTED["turns"]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the committed store, since a writer or a recovery changes it."""
    return Path(shutil.copytree(FOLDER / "store", tmp_path / "store"))


def total(rewards: list[dict[str, str]]) -> float:
    """The sum of rewards of expected.json, in their order."""
    return sum((float.fromhex(reward["float"]) for reward in rewards), 0.0)


def check(episode: el.Episode, expected: dict[str, Any]) -> None:
    """Check an episode against its part of expected.json."""
    assert isinstance(episode, el.MultiAgentEpisode)
    assert (episode.seed, episode.length) == (expected["seed"], expected["length"])
    assert episode.end_reason == expected["end_reason"]
    assert episode.agents == tuple(expected["agents"])
    for name, wanted in expected["agents"].items():
        agent = episode.agent(name)
        assert agent.env_steps.tolist() == wanted["env_steps"]
        assert plain(agent.observations) == wanted["observations"]
        assert plain(agent.actions.tolist()) == wanted["actions"]
        assert plain(agent.rewards.tolist()) == wanted["rewards"]
        assert agent.episode_return == total(wanted["rewards"])
        assert agent.terminations.tolist() == wanted["terminations"]
        assert agent.truncations.tolist() == wanted["truncations"]
        assert plain(agent.infos) == wanted["infos"]
        asked = agent.policy["asked"].tolist() if "asked" in agent.policy else []
        assert asked == wanted["asked"]


def test_the_committed_store_of_agents_opens_as_it_was(path: Path) -> None:
    """Groups, spaces and every agent of every sealed episode come back exactly; nothing is written."""
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    store = el.open(path)
    found = {agent: group for group in store.agent_groups for agent in group.agents}
    assert {agent: (group.observation_space, group.action_space) for agent, group in found.items()} == SPACES
    assert len(store) == len(SEALED)
    for episode, expected in zip(store, SEALED, strict=True):
        check(episode, expected)
    # The steps made, and how many agents there were.
    states = [[0, 2], [1, 2], [2, 3], [3, 2], [4, 2], [5, 2], [6, 2], [7, 1], [8, 0]]
    assert [episode.states.tolist() for episode in store[:3]] == [states] * 3
    assert store[3].states is None
    assert [fault.kind for fault in store.verify().faults] == ["journal"]
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_the_committed_store_of_agents_answers_queries(path: Path) -> None:
    """SQL and Polars, on the raw files too, give each agent's rows and returns."""
    store = el.open(path)
    wanted = [
        (episode["seed"], name, len(agent["rewards"]), total(agent["rewards"]))
        for episode in SEALED
        for name, agent in sorted(episode["agents"].items())
    ]
    query = """
        select * from (
            select seed, unnest(agents) as agent, unnest(agent_lengths), unnest(agent_returns) from episodes
        ) order by seed, agent
    """
    assert store.sql(query).fetchall() == wanted
    counted = store.transitions.group_by("episode_id", "agent_id").agg(pl.len(), pl.col("reward").sum())
    sums = sorted(counted.select("agent_id", "len").collect().rows())
    assert sums == sorted((agent, length) for _, agent, length, _ in wanted if length)
    raw = pl.read_delta(str(FOLDER / "store" / "steps"))
    assert raw.height == sum(length + 1 for _, _, length, _ in wanted)
    assert (
        raw["scout.observation"]
        .is_null()
        .equals(raw["tank.observation.fuel"].is_not_null(), check_names=False)
    )


def test_the_journal_of_agents_is_recovered(path: Path) -> None:
    """What the killed run left is found: a finished episode, and one without the turns that still waited."""
    (run,) = el.recover(path)
    assert run.run_id.startswith("killed-") and (run.episodes, run.interrupted) == (2, 1)
    store = el.open(path)
    found = [episode for episode in store if episode.run_id == run.run_id]
    for episode, expected in zip(found, EXPECTED["killed"], strict=True):
        check(episode, expected)
    assert not store.verify().faults
    assert el.recover(path) == []


def test_the_committed_store_of_agents_is_small() -> None:
    """It stays small enough to be committed."""
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 300_000
