"""Where the macros and views of SQL work: in older versions, joins and memory, with odd names and numbers."""

# pyright: reportAttributeAccessIssue=false
# Polars' namespaces are found at run time.

from __future__ import annotations

import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from claimed_stores import ODD_REWARDS, cartpole, columns_with_odd_names, odd_rewards, raw_steps, record


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """Stores of real environments and of odd values, only read."""
    root = tmp_path_factory.mktemp("views")
    return {
        "cartpole": cartpole(root / "cartpole"),
        "blackjack": record(root / "blackjack", lambda: gymnasium.make("Blackjack-v1"), 12),
        "rewards": odd_rewards(root / "rewards"),
        "names": columns_with_odd_names(root / "names"),
    }


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


def test_an_element_of_a_table_without_observations_says_where_they_are(
    stores: dict[str, el.EpisodeStore],
) -> None:
    """`obs` behind FROM episodes is told to stand behind FROM steps; no name is its own nearest."""
    with pytest.raises(el.errors.QueryError) as told:
        stores["cartpole"].sql("SELECT obs(0) FROM episodes")
    assert "Nearest: observation" not in str(told.value) and "FROM steps" in str(told.value)


def test_elements_of_observations_read_well(stores: dict[str, el.EpisodeStore]) -> None:
    """`obs` counts from 0, by the keys that the space has, and says so when there is no such element."""
    for query, expected in (
        ("SELECT obs(2) FROM steps ORDER BY episode_id, t", lambda row: row["observation"][2]),
        ("SELECT obs(3) FROM steps ORDER BY episode_id, t", lambda row: row["observation"][3]),
    ):
        raw = raw_steps(Path(stores["cartpole"].path))
        assert [value for (value,) in stores["cartpole"].sql(query).fetchall()] == [
            expected(row) for row in raw
        ]
    raw = raw_steps(Path(stores["names"].path))
    for key, column in (
        ("a.b", "observation.a%2Eb"),
        ('say "hi"', 'observation.say%20"hi"'),
        ("观测", "observation.观测"),
    ):
        found = stores["names"].sql(f"SELECT obs('{key}', 1) FROM steps ORDER BY episode_id, t").fetchall()
        assert [value for (value,) in found] == [row[column][1] for row in raw]
    cards = stores["blackjack"].sql("SELECT obs(1) FROM steps ORDER BY episode_id, t").fetchall()
    assert [value for (value,) in cards] == [
        row["observation.1"] for row in raw_steps(Path(stores["blackjack"].path))
    ]


@pytest.mark.parametrize(
    "call", ["step_histogram(reward, 0)", "step_histogram(reward, -2)", "moving_return(0)"]
)
def test_a_number_of_bins_or_episodes_that_is_none_is_told(
    stores: dict[str, el.EpisodeStore], call: str
) -> None:
    """No bins and no episodes are errors in the words of the macro, and no empty answer."""
    with pytest.raises(Exception, match=r"bins|episodes"):
        stores["cartpole"].sql(f"FROM {call}").fetchall()


def test_histograms_of_what_is_not_finite_count_what_is(stores: dict[str, el.EpisodeStore]) -> None:
    """Infinities and NaN among rewards do not spoil the bins of the others."""
    bins = stores["rewards"].sql("FROM step_histogram(reward, 4)").fetchall()
    finite = [value for line in ODD_REWARDS for value in line if math.isfinite(value)]
    assert all(math.isfinite(low) and math.isfinite(high) for low, high, _ in bins)
    assert sum(count for *_, count in bins) >= len(finite)
