"""Where the macros and views of SQL work: in filtered and older views, joins, memory, with several agents."""

# pyright: reportAttributeAccessIssue=false
# Polars' namespaces are found at run time.

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from claimed_stores import cartpole, plain_returns_to_go


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """Two runs of CartPole, only read."""
    return {"cartpole": cartpole(tmp_path_factory.mktemp("views") / "cartpole")}


def test_macros_see_what_the_view_shows(stores: dict[str, el.EpisodeStore]) -> None:
    """In a filtered, a sliced and a filtered slice's connection every macro keeps to its episodes."""
    store = stores["cartpole"]
    for view in (
        store.filter("end_reason = 'truncated'"),
        store[2:11],
        store[4:].filter(pl.col("length") > 12),
    ):
        ids = {episode.id for episode in view}
        assert 0 < len(ids) < len(store)
        for macro in (
            "returns_to_go()",
            "discounted_return()",
            "first_hit(true)",
            "moving_return()",
            "transitions_with_next",
        ):
            assert {key for (key,) in view.sql(f"SELECT DISTINCT episode_id FROM {macro}").fetchall()} == ids
        counts = view.sql("SELECT sum(count) FROM action_histogram()").fetchall()
        assert counts == [(sum(episode.length for episode in view),)]


def test_macros_work_confined_joined_and_in_older_versions(stores: dict[str, el.EpisodeStore]) -> None:
    """They are there in a read-only connection, in joins and windows, and in a version opened again."""
    store = stores["cartpole"]
    with store.connect(read_only=True) as connection:
        rows = connection.sql(
            "SELECT e.end_reason, max(d.discounted_return) FROM discounted_return(0.9) d "
            "JOIN episodes e USING (episode_id) GROUP BY 1"
        ).fetchall()
    assert {reason for reason, _ in rows} == {episode.end_reason for episode in store}
    older = el.open(store.path, version=1)
    assert older.sql("SELECT count(*) FROM discounted_return()").fetchall() == [(len(older),)]
    assert older.sql("SELECT max(moving_return) FROM moving_return(1)").fetchall()[0][0] == 30


def test_memory_stores_and_columns_named_like_macros(tmp_path: Path) -> None:
    """A store in memory has them too; infos called obs, returns_to_go or t do not get in their way."""
    store = el.create(
        "memory://claims-sql", observation_space=spaces.Box(-9, 9, (2,)), action_space=spaces.Discrete(2)
    )
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


def test_each_agent_is_an_episode_of_its_own() -> None:
    """With several agents, sums, first hits and next observations are those of each agent's own loop."""
    store = el.open(Path(__file__).parent / "data" / "format-1-agents" / "store")
    agents = {(episode.id, name): episode.agent(name) for episode in store for name in episode.agents}
    totals = store.sql(
        "SELECT episode_id, agent_id, discounted_return FROM discounted_return(0.9)"
    ).fetchall()
    polars = store.steps.rl.discounted_return(0.9).collect()
    expected = {
        key: next(plain_returns_to_go(agent.rewards, 0.9)) for key, agent in agents.items() if agent.length
    }
    for rows in (totals, polars.select("episode_id", "agent_id", "discounted_return").rows()):
        found = {(episode, agent): total for episode, agent, total in rows if (episode, agent) in expected}
        assert found == pytest.approx(expected)
    pairs = store.sql(
        "SELECT episode_id, agent_id, count(*) FROM transitions_with_next GROUP BY ALL"
    ).fetchall()
    assert {(e, a): n for e, a, n in pairs} == {
        key: agent.length for key, agent in agents.items() if agent.length
    }
    never = store.sql("SELECT count(*), count(t) FROM first_hit(t > 100000)").fetchall()
    assert never == [(len(agents), 0)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(next_observation) FROM transitions",
        'SELECT count(next_obs(0)) FROM "transitions"',
        "SELECT count(next_observation) FROM (FROM transitions) JOIN episodes USING (episode_id)",
        "SELECT count(b.next_observation) FROM transitions a JOIN transitions b USING (episode_id, t)",
        "SELECT count(t.next_observation[1]) FROM transitions AS t",
        "WITH late AS (SELECT next_observation FROM transitions) SELECT count(*) FROM late",
    ],
)
def test_transitions_know_the_next_observation(stores: dict[str, el.EpisodeStore], query: str) -> None:
    """A query finds next observations under the name transitions, in every place where a table may stand."""
    expected = [(sum(episode.length for episode in stores["cartpole"]),)]
    assert stores["cartpole"].sql(query).fetchall() == expected
    assert stores["cartpole"].sql(query, read_only=True).fetchall() == expected


def test_misspelt_macros_name_the_nearest(stores: dict[str, el.EpisodeStore]) -> None:
    """A macro that is not there is a QueryError with the one that was meant."""
    for wrong, meant in (("discounted_returns(0.9)", "discounted_return"), ("first_hits(true)", "first_hit")):
        with pytest.raises(el.errors.QueryError, match=meant):
            stores["cartpole"].sql(f"FROM {wrong}")


def test_an_element_of_a_table_without_observations_says_where_they_are(
    stores: dict[str, el.EpisodeStore],
) -> None:
    """`obs` behind FROM episodes is told to stand behind FROM steps; no name is its own nearest."""
    with pytest.raises(el.errors.QueryError) as told:
        stores["cartpole"].sql("SELECT obs(0) FROM episodes")
    assert "Nearest: observation" not in str(told.value) and "FROM steps" in str(told.value)
