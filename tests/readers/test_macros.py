"""SQL that knows episodes: every macro and view against plain loops over episodes that were rebuilt."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st

import episodelake as el
from agent_environments import Comings
from effort import examples, looped
from episodelake.readers.sql import connections
from episodelake.readers.sql.session import QuerySession
from episodelake.readers.sql.sources import run_interruptible
from episodelake.testing.adapters import case
from plain_agents import play_parallel, random_policy
from plain_returns import close, returns_to_go
from real_environments import NUMBERED_SPACES
from waiting import PATIENCE

GAMMAS = (0.0, 1e-200, 0.02, 0.5, 0.99, 1 - 1e-12, 1.0)
NESTED = Dict(
    {
        "arm": Dict({"angles": Box(-9, 9, (2, 3), np.float32), "Grip": Discrete(3)}),
        "a.b": Box(-9, 9, (2,), np.float64),
        'say "hi"': Box(-9, 9, (2,), np.float64),
        "观测": Box(-9, 9, (2,), np.float64),
        "pair": Tuple((Box(-9, 9, (1,), np.float32), MultiDiscrete([3, 4]))),
        "camera": Box(0, 255, (4, 4, 3), np.uint8),
    }
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """CartPole by random actions in two runs: terminated, truncated and cut episodes, some by a reset."""
    path = tmp_path_factory.mktemp("macros") / "store"
    made = el.create(path, gymnasium.make("CartPole-v1"))
    for run in range(2):
        env = gymnasium.make("CartPole-v1", max_episode_steps=18)
        with made.record(env, run=f"run{run}") as recorder:
            recorder.action_space.seed(run)
            for seed in range(9):
                recorder.reset(seed=seed)
                recorder.seal()  # so that there are many files
                for _ in range(8 if seed == 3 else 1000):
                    if any(recorder.step(recorder.action_space.sample())[2:4]):
                        break
    assert {row[0] for row in made.refresh().sql("select distinct end_reason from episodes").fetchall()} == {
        *("terminated", "truncated", "cut")
    }
    return made


@pytest.fixture(scope="module", params=["whole", "filtered", "reversed"])
def view(store: el.EpisodeStore, request: pytest.FixtureRequest) -> el.EpisodeView:
    """The store, some of its episodes, and the same in another order."""
    chosen = {"whole": store, "filtered": store.filter("number % 3 <> 1"), "reversed": store[::-2]}
    return chosen[request.param]


@pytest.fixture(scope="module", params=[False, True], ids=["own", "read only"])
def ask(view: el.EpisodeView, request: pytest.FixtureRequest) -> Any:
    """Ask a query of the view, on either kind of connection; rows come back."""
    return lambda text: view.sql(text, read_only=request.param).fetchall()


# Returns


@pytest.mark.sample
@pytest.mark.parametrize("gamma", GAMMAS)
def test_returns_to_go(view: el.EpisodeView, ask: Any, gamma: float) -> None:
    """Each transition has the discounted sum to the end of its own episode, and the last row has none."""
    rows = ask(f"select episode_id, t, return_to_go from returns_to_go({gamma!r}) order by 1, 2")
    wanted = [
        (episode.id, t, value)
        for episode in sorted(view, key=lambda episode: episode.id)
        for t, value in enumerate(returns_to_go(episode.rewards.tolist(), gamma))
    ]
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]
    assert all(close(row[2], right[2], 100) for row, right in zip(rows, wanted, strict=True))


def rewarded(path: Path, episodes: list[list[float]]) -> el.EpisodeStore:
    """A store with episodes of these rewards."""
    store = el.create(path, **NUMBERED_SPACES)
    with store.writer() as writer:
        for rewards in episodes:
            flags = np.zeros(len(rewards), bool)
            writer.write_episode(
                observations=np.zeros((len(rewards) + 1, 2), np.float32),
                actions=np.zeros(len(rewards), np.int64),
                rewards=np.array(rewards),
                terminations=flags,
                truncations=flags,
            )
    return store.refresh()


REWARDS = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e300])


@settings(max_examples=examples(12), deadline=None)
@given(
    st.lists(st.lists(REWARDS, min_size=1, max_size=30), min_size=1, max_size=4),
    st.sampled_from(GAMMAS) | st.floats(0, 1),
)
def test_returns_with_odd_rewards(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[list[float]], gamma: float
) -> None:
    """NaN and infinities reach the steps before them in their own episode and no others, as in Polars."""
    store = rewarded(tmp_path_factory.mktemp("odd") / "store", episodes)
    rows = store.sql(f"select return_to_go from returns_to_go({gamma!r}) order by episode_id, t").fetchall()
    frame = store.steps.rl.returns_to_go(gamma).rl.transitions().sort("episode_id", "t").collect()
    wanted = [value for rewards in episodes for value in returns_to_go(rewards, gamma)]
    scale = sum(abs(value) for rewards in episodes for value in rewards if math.isfinite(value))
    assert all(close(row[0], right, scale) for row, right in zip(rows, wanted, strict=True))
    assert all(close(got, right, scale) for got, right in zip(frame["return_to_go"], wanted, strict=True))
    firsts = dict(store.sql(f"from discounted_return({gamma!r})").fetchall())
    for episode, rewards in zip(store, episodes, strict=True):
        assert close(firsts[episode.id], returns_to_go(rewards, gamma)[0], scale)


def test_long_episodes_do_not_lose_their_end(tmp_path: Path) -> None:
    """With 3,000 steps and gamma 0.5, whose powers vanish, every step has its own return to go."""
    rewards = np.random.default_rng(0).standard_normal(3000).tolist()
    store = rewarded(tmp_path / "store", [rewards])
    rows = store.sql("select return_to_go from returns_to_go(0.5) order by t").fetchall()
    assert np.allclose([row[0] for row in rows], returns_to_go(rewards, 0.5), rtol=1e-12, atol=1e-12)


@looped(
    "call",
    ["returns_to_go(1.01)", "discounted_return(-0.1)", "returns_to_go(NULL)", "returns_to_go('nan'::double)"],
)
def test_a_gamma_out_of_range_is_refused(store: el.EpisodeStore, call: str) -> None:
    """A gamma outside 0 to 1 is an error that says so, not a wrong number."""
    with pytest.raises((duckdb.Error, el.errors.QueryError), match="expected a number from 0 to 1"):
        store.sql(f"from {call}").fetchall()


@pytest.mark.sample
@pytest.mark.parametrize("episodes", [1, 3, 100])
def test_moving_return(view: el.EpisodeView, ask: Any, episodes: int) -> None:
    """The mean of an episode's return and those before it in its run, by number."""
    rows = ask(f"select run_id, number, moving_return from moving_return({episodes}) order by 1, 2")
    runs: dict[str, list[el.Episode]] = {}
    for episode in view:
        runs.setdefault(episode.run_id, []).append(episode)
    wanted = []
    for run_id in sorted(runs):
        returns = []
        for episode in sorted(runs[run_id], key=lambda episode: episode.number):
            returns.append(episode.episode_return)
            wanted.append((run_id, episode.number, np.mean(returns[-episodes:])))
    assert [row[:2] for row in rows] == [row[:2] for row in wanted]
    assert [row[2] for row in rows] == pytest.approx([row[2] for row in wanted])
    frame = view.episodes.rl.moving_return(episodes).sort("run_id", "number").collect()
    assert frame["moving_return"].to_list() == pytest.approx([row[2] for row in wanted])


# Places and times


@pytest.mark.sample
def test_episode_at(view: el.EpisodeView, ask: Any) -> None:
    """Positions are those of the view, from either end; one beyond them is an error, as `view[place]` is."""
    for place in (*range(len(view)), *range(-len(view), 0)):
        assert ask(f"select episode_id from episode_at({place})") == [(view[place].id,)]
    for place in (len(view), -len(view) - 1):
        with pytest.raises(duckdb.Error, match=f"at position {place}; positions go from -{len(view)} to"):
            ask(f"from episode_at({place})")


_PLACES_THAT_ARE_NONE_ARE_TOLD: Any = [
    ("from episode_at('no such id')", "takes a position, such as 0 or -1, and not no such id"),
    ("from episode_at(0.5)", "takes a position, such as 0 or -1, and not 0.5"),
    ("from episode_at(null)", "takes a position, such as 0 or -1, and not NULL"),
    ("from step_at(-1)", "step is -1; expected a whole number of at least 0"),
    ("from step_at('no such id')", "step is no such id; expected a whole number"),
    ("from step_at(null)", "step is NULL; expected a whole number"),
    ("from transitions_of('no such id')", "there is no episode no such id here"),
    ("select count(*) from transitions_of('no such id')", "there is no episode no such id here"),
    ("select 1 from transitions_of('no such id') limit 1", "there is no episode no such id here"),
    ("from transitions_of((select max(episode_id) from episodes where false))", "no episode NULL here"),
]


@pytest.mark.sample
def test_places_that_are_none_are_told(ask: Any) -> None:
    """A wrong id or place is an error, and not an episode without rows."""
    for text, told in _PLACES_THAT_ARE_NONE_ARE_TOLD:
        with case((text, told)), pytest.raises(duckdb.Error, match=told):
            ask(text)


def test_an_id_of_another_view_is_told(store: el.EpisodeStore) -> None:
    """An episode that the view leaves out is none of its own."""
    with pytest.raises(duckdb.Error, match=f"there is no episode {store[0].id} here"):
        store[1:].sql(f"from transitions_of('{store[0].id}')").fetchall()


@pytest.mark.sample
def test_transitions_of_ids_from_a_table(view: el.EpisodeView, ask: Any) -> None:
    """The ids may stand in a table: each episode has its own transitions, and one wrong id is told."""
    lengths = {episode.id: episode.length for episode in view}
    beside = "select e.episode_id, count(*) from episodes e, transitions_of(e.episode_id) group by 1"
    within = "select episode_id, (select count(*) from transitions_of(e.episode_id)) from episodes e"
    assert dict(ask(beside)) == dict(ask(within)) == lengths
    ids = f"(values ('{view[0].id}'), ('no such id')) e(id)"
    with pytest.raises(duckdb.Error, match="there is no episode no such id here"):
        ask(f"select count(*) from {ids}, transitions_of(e.id)")


def test_transitions_of_prunes_files(store: el.EpisodeStore) -> None:
    """The steps are read with a condition that DuckDB applies to the files, whatever else is looked up."""
    ((_, plan),) = store.sql(f"explain from transitions_of('{store[2].id}')").fetchall()
    plan = "".join(part.strip(" │") for part in plan.splitlines())
    assert plan.count(f"episode_id = '{store[2].id}'") == 2  # of the steps, and of the episodes


@pytest.mark.sample
def test_step_at(view: el.EpisodeView, ask: Any) -> None:
    """The n-th transition of each run, counting its episodes one after the other."""
    for step in (0, 1, 40, 99, 10_000):
        wanted = set()
        for run_id in {episode.run_id for episode in view}:
            left = step
            for episode in sorted(
                (one for one in view if one.run_id == run_id), key=lambda episode: episode.number
            ):
                if left < episode.length:
                    wanted.add((run_id, episode.id, episode.number, left))
                    break
                left -= episode.length
        assert set(ask(f"from step_at({step})")) == wanted


_FIRST_HIT: Any = [
    ("obs(3) > 0.8", lambda episode, t: episode.observations[t][3] > 0.8),
    ("act_is = 1", None),
    ("action = 1 and t > 2", lambda episode, t: t < len(episode) and episode.actions[t] == 1 and t > 2),
    ("terminated", lambda episode, t: t < len(episode) and episode.terminations[t]),
]


@pytest.mark.sample
def test_first_hit(view: el.EpisodeView, ask: Any) -> None:
    """The first t at which a condition holds, the last observation included; NULL where it never does."""
    for condition, holds in _FIRST_HIT:
        with case((condition, holds)):
            if holds is None:
                with pytest.raises(el.errors.QueryError):
                    view.sql(f"from first_hit({condition})")
                continue
            wanted = {
                episode.id: next((t for t in range(len(episode) + 1) if holds(episode, t)), None)
                for episode in view
            }
            assert dict(ask(f"from first_hit({condition})")) == wanted


# Distributions


def test_step_percentiles(view: el.EpisodeView, ask: Any) -> None:
    """For each t, the spread over the episodes that have an observation then."""
    rows = ask("from step_percentiles(obs(2)) order by t")
    values: dict[int, list[float]] = {}
    for episode in view:
        for t, observation in enumerate(episode.observations):
            values.setdefault(t, []).append(float(observation[2]))
    assert [row[:2] for row in rows] == [(t, len(values[t])) for t in sorted(values)]
    for t, _, mean, *quantiles in rows:
        assert mean == pytest.approx(np.mean(values[t]))
        assert quantiles == pytest.approx(np.quantile(values[t], [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]))
    frame = view.steps.rl.step_percentiles(pl.col("observation").list.get(2)).collect()
    assert [list(row) for row in frame.rows()] == [pytest.approx(list(row)) for row in rows]


def test_step_histogram(view: el.EpisodeView, ask: Any) -> None:
    """Equal bins from the smallest to the largest value hold what numpy's hold."""
    rows = ask("from step_histogram(obs(0), bins := 7)")
    values = np.concatenate([episode.observations[:, 0] for episode in view]).astype(float)
    counts, edges = np.histogram(values, 7)
    assert [row[2] for row in rows] == counts.tolist()
    assert [row[0] for row in rows] + [rows[-1][1]] == pytest.approx(edges.tolist())
    ((_, _, count),) = ask("from step_histogram(1, 1)")
    assert count == len(values)


def test_action_histogram_of_discrete_actions(view: el.EpisodeView, ask: Any) -> None:
    """Each action of the space has a row, with how often it was taken."""
    counts = Counter(int(action) for episode in view for action in episode.actions)
    total = sum(counts.values())
    assert ask("from action_histogram()") == [(a, counts[a], counts[a] / total) for a in (0, 1)]


def test_actions_that_were_never_taken_are_counted(tmp_path: Path) -> None:
    """An action that nobody took has a row with 0."""
    store = rewarded(tmp_path / "store", [[1.0, 2.0]])
    first, *others = store.sql("from action_histogram()").fetchall()
    assert first[1:] == (2, 1.0) and others and all(row[1:] == (0, 0.0) for row in others)


# Elements, next observations


def nested_store(path: Path) -> el.EpisodeStore:
    """Three episodes of sampled values of a nested space, with a nested action."""
    actions = Dict({"push": Box(-1, 1, (2,), np.float32), "mode": Discrete(3, start=5)})
    store = el.create(path, observation_space=NESTED, action_space=actions)
    NESTED.seed(0)
    actions.seed(0)
    with store.writer() as writer:
        for length in (3, 1, 4):
            episode = writer.begin(NESTED.sample())
            for t in range(length):
                episode.append(actions.sample(), float(t), NESTED.sample())
            episode.end()
    return store.refresh()


def test_elements_of_nested_spaces(tmp_path: Path) -> None:
    """`obs`, `next_obs` and `act` count from 0 in every dimension and name leaves by their keys."""
    store = nested_store(tmp_path / "store")
    rows = store.sql("""
        select obs('arm.angles', 1, 2), obs('arm.angles', -2, -1), obs('a.b', 1), obs('pair.1', 0),
            obs('arm.Grip'), obs('say "hi"', 1), obs('观测', 0),
            next_obs('arm.angles', 0, 1), act('push', -1), act('mode')
        from transitions_with_next order by episode_id, t
    """).fetchall()
    wanted = []
    for episode in store:
        seen, done = episode.observations, episode.actions
        for t in range(len(episode)):
            angles = seen["arm"]["angles"]
            wanted.append(
                (
                    *(angles[t, 1, 2], angles[t, 0, 2], seen["a.b"][t, 1], seen["pair"][1][t, 0]),
                    *(seen["arm"]["Grip"][t], seen['say "hi"'][t, 1], seen["观测"][t, 0]),
                    *(angles[t + 1, 0, 1], done["push"][t, 1], done["mode"][t]),
                )
            )
    assert rows == [tuple(map(float, row)) for row in wanted]


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("obs('arm.angles', 2, 0)", ["obs", "outside the shape (2, 3)", "observation.arm.angles"]),
        ("obs('leg', 0)", ["obs", "'a.b'", "'pair.1'"]),
        ("act('push', -3)", ["act", "(2,)"]),
    ],
)
def test_elements_that_are_not_there(tmp_path: Path, expression: str, named: list[str]) -> None:
    """An index or a part that the space has not is an error that says what it has."""
    store = nested_store(tmp_path / "store")
    with pytest.raises((duckdb.Error, el.errors.QueryError)) as caught:
        store.sql(f"select {expression} from steps").fetchall()
    assert all(name in str(caught.value) for name in named)


def test_the_nth_element_of_a_list(view: el.EpisodeView, ask: Any) -> None:
    """From 0 on, or from the end."""
    rows = ask("select nth(observation, 0), nth(observation, -1) from steps order by episode_id, t")
    episodes = sorted(view, key=lambda episode: episode.id)
    seen = np.concatenate([episode.observations for episode in episodes])
    assert rows == [(row[0], row[-1]) for row in seen.tolist()]


def test_elements_read_their_own_column_only(tmp_path: Path) -> None:
    """A part that a query does not name is not read."""
    store = nested_store(tmp_path / "store")
    with store.connect() as connection:
        row = connection.execute("explain select sum(obs('arm.angles', 1, 1)) from steps").fetchone()
    assert row is not None
    assert "arm.angles" in row[1] and "camera" not in row[1] and "a%2Eb" not in row[1]


def test_action_histogram_of_nested_actions(tmp_path: Path) -> None:
    """Each number of an action has bins between its bounds that hold what numpy's hold."""
    store = nested_store(tmp_path / "store")
    rows = store.sql("from action_histogram(bins := 4)").fetchall()
    values = {
        "action.push[1]": (np.concatenate([episode.actions["push"][:, 1] for episode in store]), (-1, 1)),
        "action.mode": (np.concatenate([episode.actions["mode"] for episode in store]), (5, 7)),
    }
    for name, (taken, bounds) in values.items():
        found = [row for row in rows if row[0] == name]
        counts, edges = np.histogram(taken.astype(float), 4, bounds)
        assert [row[3] for row in found] == counts.tolist()
        assert [row[1] for row in found] == pytest.approx(edges[:-1].tolist())
        assert sum(row[4] for row in found) == pytest.approx(1)


def pairs(store: el.EpisodeView, rows: Iterator[Any] | list[Any]) -> None:
    """Compare (episode, t, observation, next observation) with the episodes."""
    wanted = [
        (episode.id, t, episode.observations[t].tolist(), episode.observations[t + 1].tolist())
        for episode in sorted(store, key=lambda episode: episode.id)
        for t in range(len(episode))
    ]
    assert list(rows) == wanted


def test_next_observations_of_agents(tmp_path: Path) -> None:
    """In a multi-agent store the next observation, and every sum, is the same agent's."""
    store = el.create(tmp_path / "store", Comings())
    with store.record(Comings()) as recorder:
        for seed in range(4):
            play_parallel(recorder, random_policy(recorder, seed), seed)
    store.refresh()
    names = [name for name in store.steps.collect_schema().names() if "observation" in name.split(".")]
    following = [name.replace("observation", "next_observation") for name in names]
    chosen = ", ".join(f'"{name}"' for name in ["episode_id", "agent_id", "t", *names, *following])
    rows = store.sql(f"select {chosen} from transitions_with_next order by episode_id, agent_id, t").pl()
    steps = {
        row[:3]: row[3:] for row in store.steps.select("episode_id", "agent_id", "t", *names).collect().rows()
    }
    assert rows.height == store.transitions.select(pl.len()).collect().item()
    for row in rows.rows():
        key, now, then = row[:3], row[3 : 3 + len(names)], row[3 + len(names) :]
        assert now == steps[key] and then == steps[(*key[:2], key[2] + 1)]
    assert rows.equals(
        store.steps.rl.with_next_observation()
        .select(rows.columns)
        .sort("episode_id", "agent_id", "t")
        .collect()
    )
    returns = store.sql("from returns_to_go(0.9) order by episode_id, agent_id, t").fetchall()
    hits = store.sql("from first_hit(t >= 1)").fetchall()
    members = [(episode, name) for episode in store for name in episode.agents]
    assert {row[:2] for row in hits} == {(episode.id, name) for episode, name in members}
    for episode, name in members:
        found = [row[4] for row in returns if row[:2] == (episode.id, name)]
        assert found == pytest.approx(returns_to_go(episode.agent(name).rewards.tolist(), 0.9))


@pytest.mark.parametrize("committed", ["format-1", "format-1-agents"])
def test_macros_of_committed_stores(committed: str, tmp_path: Path) -> None:
    """Every macro runs on stores of many kinds of columns, of several agents, and on empty views."""
    source = Path(__file__).parents[1] / "data" / committed / "store"
    store = el.open(shutil.copytree(source, tmp_path / "store"))
    el.recover(store.path)
    for view in (store.refresh(), store[:0]):
        known = view[0].id if len(view) else "none"
        for read_only in (False, True):
            for text in (
                "returns_to_go(0.5)",
                "discounted_return(0.5)",
                "moving_return(3)",
                "episode_at(0)",
                "step_at(2)",
                "first_hit(t = 1)",
                "step_percentiles(t)",
                "step_histogram(t)",
                "transitions_with_next",
                f"transitions_of('{known}')",
                "action_histogram()",
            ):
                view.sql(f"from {text}", read_only=read_only).fetchall()
    transitions = store.sql("select count(*) from transitions").fetchall()
    assert store.sql("select count(*) from transitions_with_next").fetchall() == transitions
    assert store.sql("select count(*) from returns_to_go()").fetchall() == transitions


def test_annotations_leave_next_observations_alone(store: el.EpisodeStore, tmp_path: Path) -> None:
    """On annotated steps, which are joined, next observations are still those of the next row."""
    own = el.open(shutil.copytree(store.path, tmp_path / "own"))
    keys = ["episode_id", "t"]
    own.annotate(own.steps.select(*keys, odd=pl.col("t") % 2).collect(), on=keys)
    own.refresh()
    text = "select episode_id, t, observation, next_observation from transitions_with_next order by all"
    pairs(own, own.sql(text).fetchall())
    assert own.sql("select count(*) from transitions_with_next where odd = t % 2").fetchall() == [
        (own.transitions.select(pl.len()).collect().item(),)
    ]


# Filters, errors, interruptions


def test_macros_work_joined_and_in_older_versions(store: el.EpisodeStore) -> None:
    """On a connection that only reads, in a join, and in a version opened again."""
    with store.connect(read_only=True) as connection:
        rows = connection.sql(
            "SELECT e.end_reason, max(d.discounted_return) FROM discounted_return(0.9) d "
            "JOIN episodes e USING (episode_id) GROUP BY 1"
        ).fetchall()
    assert {reason for reason, _ in rows} == {episode.end_reason for episode in store}
    older = el.open(store.path, version=3)
    assert 0 < len(older) < len(store)
    assert older.sql("SELECT count(*) FROM discounted_return()").fetchall() == [(len(older),)]
    best = max(episode.episode_return for episode in older)
    assert older.sql("SELECT max(moving_return) FROM moving_return(1)").fetchall() == [(best,)]


def test_memory_stores_and_columns_named_like_macros(tmp_path: Path) -> None:
    """A store in memory has them too; infos called obs, returns_to_go or t do not get in their way."""
    store = el.create("memory://macros", observation_space=Box(-9, 9, (2,)), action_space=Discrete(2))
    with store.writer(run="memory") as writer:
        writer.write_episode(
            observations=np.arange(8, dtype=np.float32).reshape(4, 2),
            actions=[0, 1, 0],
            rewards=[1.0, 2.0, 3.0],
            terminations=True,
            truncations=False,
            infos={
                "obs": [1, 2, 3, 4],
                "returns_to_go": [1, 2, 3, 4],
                "t": [5, 6, 7, 8],
                "gamma": [0, 0, 0, 0],
            },
            metadata={"place": 3, "episode_id": "mine", "length": 99},
        )
    store.refresh()
    assert store.sql("SELECT return_to_go FROM returns_to_go(0.5) ORDER BY t").fetchall() == [
        (2.75,),
        (3.5,),
        (3.0,),
    ]
    assert store.sql('SELECT obs(1), "info.obs" FROM steps ORDER BY t').fetchall() == [
        (1, 1),
        (3, 2),
        (5, 3),
        (7, 4),
    ]
    assert store.sql("SELECT length FROM episode_at(-1)").fetchall() == [(3,)]


def test_conditions_of_filters_may_use_macros(store: el.EpisodeStore) -> None:
    """A filter's subquery may read the steps and the macros, of the episodes that are filtered."""
    some = store.filter("number > 1")
    found = some.filter("episode_id in (select episode_id from first_hit(obs(3) > 0.8) where t is not null)")
    wanted = [episode.id for episode in some if (episode.observations[:, 3] > 0.8).any()]
    assert [episode.id for episode in found] == wanted and wanted
    counted = some.filter("(select count(distinct episode_id) from steps) = " + str(len(some)))
    assert len(counted) == len(some)


def test_nearest_names_come_first(store: el.EpisodeStore) -> None:
    """The message for a wrong name begins with the nearest right ones of its kind; then DuckDB's reason."""
    cases: list[Any] = [
        ("select retrun from episodes", "There is no column 'retrun'. Nearest: episode_return (of episodes)"),
        (
            "select obsrevation from steps",
            "There is no column 'obsrevation'. Nearest: observation (of steps)",
        ),
        ("select lenght from steps", "There is no column 'lenght'. Nearest: length (of episodes)"),
        ("from transition", "There is no table 'transition'. Nearest: transitions, transitions_with_next.\n"),
        ("from episods", "There is no table 'episods'. Nearest: episodes.\n"),
        ("from returns_togo(0.9)", "There is no function 'returns_togo'. Nearest: returns_to_go"),
        ("select osb(0) from steps", "There is no function 'osb'. Nearest: obs(i0)"),
        ("select e.seeds from episodes e", "There is no column 'seeds'. Nearest: seed (of episodes)"),
        (
            "select next_observation from steps",
            "next_observation is a column of transitions_with_next, which",
        ),
        ("select xqzw from steps", "There is no column 'xqzw', nor any name like it.\n"),
        (
            "from first_hit(length > 3)",
            "length is a column of episodes, which is not read here. Queries JOIN",
        ),
        ("select obs(seed) from steps", "seed is a column of episodes, which is not read here."),
        ("select obs(0, 1) from steps", "Binder Error: Macro obs() does not support the supplied arguments."),
    ]
    for text, first in cases:
        with case((text, first)):
            for read_only in (False, True):
                with pytest.raises(el.errors.QueryError) as caught:
                    store.sql(text, read_only=read_only)
                assert str(caught.value).startswith(first), str(caught.value)
                assert "Error: " in str(caught.value)
            with pytest.raises(el.errors.QueryError) as caught:
                store.filter("lenght > 3")
            assert str(caught.value).startswith("There is no column 'lenght'. Nearest: length")


def test_what_there_is_comes_last(store: el.EpisodeStore) -> None:
    """All columns of the tables that a query names are listed, and no others; of a function, the macros."""
    for text, listed in (
        ("select xqzw from episodes", "wide_seed"),
        ("select xqzw from transitions", "observation"),
        (
            "from xqzw",
            "Tables: runs, episodes, steps, transitions_with_next, transitions.\nColumns of runs: ",
        ),
        ("select xqzw(1)", "Macros: action_histogram(), "),
    ):
        with pytest.raises(el.errors.QueryError) as caught:
            store.sql(text)
        assert listed in str(caught.value)
        assert ("env_spec" in str(caught.value)) is (text == "from xqzw")


def test_a_locked_file_is_told(store: el.EpisodeStore) -> None:
    """A connection that may only read says that it sees the store alone, and how other files are read."""
    for text in ("from read_csv('other.csv')", "from 'other.csv'", "from read_text('other.csv')"):
        with pytest.raises(
            el.errors.QueryError,
            match=r"^'other.csv' is no part of the store, .* read-only queries see nothing else",
        ):
            store.sql(text, read_only=True)


def test_a_dotted_name_without_quotes_is_told(tmp_path: Path) -> None:
    """A column whose name has a dot, written without quotes, is answered with the quotes."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        episode = writer.begin([0, 0], {"clock": 1})
        episode.append(0, 0.0, [0, 0], info={"clock": 2})
        episode.end()
    for text in ("select info.clock from steps", "select max(info.clock) from steps where t > 0"):
        with pytest.raises(
            el.errors.QueryError, match=r'info.clock is one name: write it in double quotes, as "info'
        ):
            store.refresh().sql(text)

    with store.writer() as writer:
        episode = writer.begin([0, 0], {"episode": {"r": 1}})
        episode.append(0, 0.0, [0, 0])
        episode.end()
    with pytest.raises(el.errors.QueryError, match=r"^info\.episode\.r is one name: write it in"):
        store.refresh().sql("select info.episode.r from steps")


@looped(
    "query",
    [
        "select observation[0] from steps",
        "select s.action [ 0 ] from steps s",
        "select max(next_observation[0]) from transitions",
        "from episodes where episode_id in (select episode_id from steps where observation[0] > 0)",
    ],
)
def test_an_element_0_is_refused(store: el.EpisodeStore, query: str) -> None:
    """DuckDB would answer NULL; texts and element 1 are as they are."""
    with pytest.raises(el.errors.QueryError, match=r"\[0\] is NULL in SQL, .* obs\(0\)"):
        store.query(query)
    with pytest.raises(el.errors.QueryError, match=r"observation\[0\] is NULL in SQL"):
        store.filter("(select count(*) from steps where observation[0] > 0) > 0")
    first = store.query("select observation[1] as x, 'observation[0]' as name from steps where t = 0")
    assert first["name"].unique().to_list() == ["observation[0]"]
    assert sorted(first["x"]) == sorted(float(episode.observations[0, 0]) for episode in store)


@looped(
    ("query", "value"),
    [
        ("with t as (select map {0: 7} as action) select action[0] from t", 7),
        ("with t as (select map {0: 7} action from steps limit 1) select action[0] from t", 7),
        ("select observation[0]::int from (select '[7, 8]'::json as observation from steps limit 1)", 7),
        ('select any_value(t.action[0]) from steps as s, (select map {0: 7} "action") as t', 7),
    ],
)
def test_an_element_0_of_other_values(store: el.EpisodeStore, query: str, value: int) -> None:
    """Maps and JSON that the query itself names so have an element 0."""
    assert store.query(query).item() == value


LONG = """
import os, signal, sys, threading
import episodelake as el

read_only = sys.argv[2] == "read only"
text = "select sum(sin(a.i * b.i)) from range(1000000) a(i), range(1000000) b(i)"
for seconds in (0.0, 0.01, 0.03, 0.06, 0.12, 0.5):
    # A new connection each time: the interrupt may come while it is made.
    store = el.open(sys.argv[1])
    try:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
        store.query(text, read_only=read_only)
    except KeyboardInterrupt:
        print("stopped")
    print(store.query("select count(*) from episodes", read_only=read_only).item())
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["own", "read only"])
def test_ctrl_c_stops_a_query_and_the_store_answers_on(store: el.EpisodeStore, kind: str) -> None:
    """An interrupt at any time ends a query with KeyboardInterrupt, and the next one is answered."""
    command = [sys.executable, "-c", textwrap.dedent(LONG), str(store.path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == ["stopped", str(len(store))] * 6, done.stderr


@pytest.mark.parametrize("started", [False, True])
def test_an_interrupt_while_the_thread_starts_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    """Work whose thread was just started has ended when the interrupt is raised; other work never begins."""
    begins, ended, start = threading.Event(), threading.Event(), threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        if started:
            start(self)
            assert begins.wait(PATIENCE)
        raise KeyboardInterrupt

    def work() -> None:
        begins.set()
        time.sleep(0.2)
        ended.set()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_interruptible(work)
    assert (begins.is_set(), ended.is_set()) == (started, started)


def test_interrupt_from_another_thread(store: el.EpisodeStore) -> None:
    """`connection.interrupt()` stops a query of an own connection, which answers the next one."""
    with store.connect() as connection:
        ended = threading.Event()

        def interrupt() -> None:
            # One that comes before the query runs is of no effect.
            while not ended.wait(0.05):
                connection.interrupt()

        other = threading.Thread(target=interrupt)
        other.start()
        try:
            with pytest.raises(duckdb.InterruptException):
                connection.execute(
                    "select sum(sin(a.i * b.i)) from range(1000000) a(i), range(1000000) b(i)"
                ).fetchall()
        finally:
            ended.set()
            other.join(PATIENCE)
        assert connection.execute("select count(*) from episodes").fetchone() == (len(store),)


def test_query_gives_frames_and_errors_of_the_tree(store: el.EpisodeStore) -> None:
    """`query` gives a Polars frame, and what fails only as it runs is a QueryError too."""
    for read_only in (False, True):
        frame = store.query("select length from episodes order by all", read_only=read_only)
        assert frame["length"].to_list() == sorted(len(episode) for episode in store)
        with pytest.raises(el.errors.QueryError, match="outside the shape"):
            store.query("select obs(4) from steps", read_only=read_only)


def test_macros_are_made_once_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one snapshot, whatever is asked; a large action makes no large text, and its histogram names each
    number.
    """
    made: list[int] = []
    build = connections.macros_of
    monkeypatch.setattr(connections, "macros_of", lambda *given: made.append(1) or build(*given))
    action = Box(-1, 1, (50, 40, 25), np.float32)
    box = Box(-9, 9, (1,))
    store = el.create(tmp_path / "store", observation_space=box, action_space=action)
    with store.writer() as writer:
        episode = writer.begin(np.zeros(1, np.float32))
        episode.append(np.zeros((50, 40, 25), np.float32), 1.0, np.zeros(1, np.float32))
    store.refresh()
    for _ in range(3):
        assert len(store.filter("length > 0")) == 1
        assert len(store.filter("length in (select t + 1 from steps)")) == 1
        assert store.query("select count(*) from episode_at(0)").item() == 1
    assert len(made) == 1
    assert sum(len(macro.body) for macro in connections.macros_for(store.context.snapshot)) < 20_000
    names = store.query("select distinct action from action_histogram(bins := 1)")["action"].to_list()
    assert set(names) == {f"action[{i}, {j}, {k}]" for i in range(50) for j in range(40) for k in range(25)}


def test_a_query_creates_the_macros_that_it_names(tmp_path: Path) -> None:
    """No statement of DuckDB holds the text of a macro that the query does not name; named ones are there."""
    limits = np.arange(1, 3001, dtype=np.float32)
    observations = gymnasium.spaces.Box(-1, 1, (1,), np.float64)
    actions = gymnasium.spaces.Box(-limits, limits)
    store = el.create(tmp_path / "store", observation_space=observations, action_space=actions)
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((2, 1)),
            actions=np.ones((1, 3000), np.float32),
            rewards=[2.0],
            terminations=True,
            truncations=False,
        )
    store.refresh()

    def macros(session: QuerySession) -> set[str]:
        (connection,) = session._connections.values()
        found = connection.sql("select distinct function_name from duckdb_functions() where not internal")
        return {name for (name,) in found.fetchall()} - {"_numbers_0"}

    session = QuerySession(store.context)
    assert session.query("select count(*) from steps").item() == 2 and macros(session) == set()
    assert session.query("from RETURNS_TO_GO()")["return_to_go"].to_list() == [2.0]
    assert session.query("select act(2999) as x from transitions")["x"].to_list() == [1.0]
    assert macros(session) == {"returns_to_go", "act"}
    for text in ("from query('from first_' || 'hit(true)')", "from query_table('steps')"):
        assert session.query(text).height
    assert "action_histogram" in macros(session)
    with store.connect() as connection:
        assert connection.sql("select count(*) from action_histogram()").fetchall() == [(60000,)]
    assert len(store.filter("episode_id in (select episode_id from first_hit(reward > 1))")) == 1
    session.close()
