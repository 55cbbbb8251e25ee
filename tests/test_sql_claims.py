"""The macros and views of a connection, held against loops over rebuilt episodes of many kinds of stores."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import episodelake as el
from claimed_stores import (
    ODD_REWARDS,
    cartpole,
    columns_with_odd_names,
    odd_rewards,
    plain_returns_to_go,
    raw_steps,
    record,
    treasure,
)

GAMMAS = (0.0, 0.5, 0.99, 1.0)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """Stores of real environments and of odd values, only read."""
    root = tmp_path_factory.mktemp("sql")
    return {
        "cartpole": cartpole(root / "cartpole"),
        "blackjack": record(root / "blackjack", lambda: gymnasium.make("Blackjack-v1"), 12),
        "taxi": record(root / "taxi", lambda: gymnasium.make("Taxi-v4")),
        "pendulum": record(root / "pendulum", lambda: gymnasium.make("Pendulum-v1"), 3),
        "treasure": treasure(root / "treasure", 5),
        "rewards": odd_rewards(root / "rewards"),
        "names": columns_with_odd_names(root / "names"),
        "empty": el.create(root / "empty", gymnasium.make("CartPole-v1")),
    }


def by_episode(rows: list[tuple]) -> dict[str, list[tuple]]:
    """Rows gathered by their first cell, sorted by the rest."""
    gathered: dict[str, list[tuple]] = defaultdict(list)
    for key, *rest in rows:
        gathered[key].append(tuple(rest))
    return {key: sorted(values, key=lambda row: row[0]) for key, values in gathered.items()}


@pytest.mark.sample
@pytest.mark.parametrize("name", ["cartpole", "blackjack", "taxi", "pendulum", "treasure", "names", "empty"])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_returns_to_go_and_discounted_returns(
    stores: dict[str, el.EpisodeStore], name: str, gamma: float
) -> None:
    """Both are the sums of a double loop over the rewards, each objective for itself."""
    store = stores[name]
    found = by_episode(
        store.sql(f"SELECT episode_id, t, return_to_go FROM returns_to_go({gamma})").fetchall()
    )
    totals = dict(
        store.sql(f"SELECT episode_id, discounted_return FROM discounted_return({gamma})").fetchall()
    )
    assert set(found) == set(totals) == {episode.id for episode in store}
    for episode in store:
        expected = [np.atleast_1d(value) for value in plain_returns_to_go(episode.rewards, gamma)]
        assert [row[0] for row in found[episode.id]] == list(range(episode.length))
        np.testing.assert_allclose([np.atleast_1d(row[1]) for row in found[episode.id]], expected, rtol=1e-9)
        np.testing.assert_allclose(np.atleast_1d(totals[episode.id]), expected[0], rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 0.99, 1.0])
def test_rewards_that_are_not_finite_reach_the_steps_before_them_alone(
    stores: dict[str, el.EpisodeStore], gamma: float
) -> None:
    """NaN and infinities spread to earlier steps, never to later ones and never to other episodes."""
    found = by_episode(
        stores["rewards"].sql(f"SELECT episode_id, t, return_to_go FROM returns_to_go({gamma})").fetchall()
    )
    totals = dict(
        stores["rewards"]
        .sql(f"SELECT episode_id, discounted_return FROM discounted_return({gamma})")
        .fetchall()
    )
    for episode, rewards in zip(stores["rewards"], ODD_REWARDS, strict=True):
        expected = list(plain_returns_to_go(np.array(rewards), gamma))
        np.testing.assert_allclose(
            [row[1] for row in found[episode.id]], expected, rtol=1e-12, equal_nan=True
        )
        np.testing.assert_allclose(totals[episode.id], expected[0], rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", ["cartpole", "blackjack", "treasure", "names", "rewards"])
def test_transitions_come_with_what_followed(stores: dict[str, el.EpisodeStore], name: str) -> None:
    """`transitions_with_next` has every transition once, with the observation of the raw row after it."""
    store = stores[name]
    raw = {(row["episode_id"], row["t"]): row for row in raw_steps(Path(store.path))}
    leaves = [column for column in store.steps.collect_schema() if column.split(".")[0] == "observation"]
    rows = store.sql("FROM transitions_with_next").pl().to_dicts()
    assert len(rows) == sum(episode.length for episode in store)
    for row in rows:
        following = raw[row["episode_id"], row["t"] + 1]
        for leaf in leaves:
            np.testing.assert_array_equal(row[f"next_{leaf}"], following[leaf])
            np.testing.assert_array_equal(row[leaf], raw[row["episode_id"], row["t"]][leaf])


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


@pytest.mark.parametrize("query", ["SELECT obs(4) FROM steps", "SELECT obs(-5) FROM steps"])
def test_an_element_that_is_not_there_is_told(stores: dict[str, el.EpisodeStore], query: str) -> None:
    """An index beyond the observation is an error and never a column of NULL."""
    with pytest.raises(Exception, match="obs"):
        stores["cartpole"].sql(query).fetchall()


def test_a_part_that_is_not_there_is_told(stores: dict[str, el.EpisodeStore]) -> None:
    """A misspelt key of a Dict is an error that lists those that there are."""
    with pytest.raises(Exception, match="UPPER"):
        stores["names"].sql("SELECT obs('Upper', 0) FROM steps").fetchall()


def test_first_hits_are_the_first_and_null_where_there_is_none(stores: dict[str, el.EpisodeStore]) -> None:
    """`first_hit` has one row per episode: the first t of a loop, the last row included, else NULL."""
    store = stores["cartpole"]
    found = dict(store.sql("FROM first_hit(abs(obs(2)) > 0.1)").fetchall())
    for episode in store:
        hits = np.flatnonzero(np.abs(episode.observations[:, 2]) > np.float32(0.1))
        assert found[episode.id] == (int(hits[0]) if len(hits) else None)
    never = store.sql("FROM first_hit(reward > 5)").fetchall()
    assert sorted(never) == sorted((episode.id, None) for episode in store)
    assert {t for _, t in stores["rewards"].sql("FROM first_hit(isnan(reward))").fetchall()} == {1, None}


def test_moving_returns_stay_in_their_run(stores: dict[str, el.EpisodeStore]) -> None:
    """The moving mean begins anew with each run and covers so many episodes, fewer at the beginning."""
    for name, width in (("cartpole", 3), ("cartpole", 1), ("treasure", 2), ("cartpole", 1000)):
        runs: dict[str, list[np.ndarray]] = defaultdict(list)
        expected = {}
        for episode in sorted(stores[name], key=lambda episode: (episode.run_id, episode.number)):
            runs[episode.run_id].append(np.asarray(episode.rewards).sum(axis=0))
            expected[episode.id] = np.mean(runs[episode.run_id][-width:], axis=0)
        found = stores[name].sql(f"SELECT episode_id, moving_return FROM moving_return({width})").fetchall()
        assert len(found) == len(expected)
        for key, value in found:
            np.testing.assert_allclose(value, expected[key], rtol=1e-9)


def test_percentiles_of_each_step_are_those_of_numpy(stores: dict[str, el.EpisodeStore]) -> None:
    """Per-step percentiles are numpy's over the episodes that got so far, in the order of t."""
    store = stores["pendulum"]
    rows = store.sql("FROM step_percentiles(reward)").pl().sort("t").to_dicts()
    rewards = [episode.rewards for episode in store]
    assert [row["t"] for row in rows] == list(range(max(map(len, rewards))))
    for row in rows:
        values = [line[row["t"]] for line in rewards if len(line) > row["t"]]
        expected = [
            len(values),
            np.mean(values),
            np.min(values),
            *np.quantile(values, [0.1, 0.5, 0.9]),
            np.max(values),
        ]
        names = ("episodes", "mean", "minimum", "p10", "median", "p90", "maximum")
        assert [row[name] for name in names] == pytest.approx(expected)
    cut = stores["cartpole"].sql("SELECT t, episodes FROM step_percentiles(reward)").fetchall()
    lengths = [episode.length for episode in stores["cartpole"]]
    assert dict(cut) == {t: sum(length > t for length in lengths) for t in range(max(lengths))}


def test_histograms_lose_no_value(stores: dict[str, el.EpisodeStore]) -> None:
    """Action counts are those of a Counter; bins of numbers add up to all values."""
    for name in ("cartpole", "taxi", "treasure"):
        expected = Counter(int(action) for episode in stores[name] for action in episode.actions)
        rows = stores[name].sql("SELECT action, count, share FROM action_histogram()").fetchall()
        assert {action: count for action, count, _ in rows} == expected
        assert math.isclose(sum(share for *_, share in rows), 1)
    actions = sum(episode.length for episode in stores["pendulum"])
    assert stores["pendulum"].sql("SELECT sum(count) FROM action_histogram()").fetchall() == [(actions,)]
    for name in ("pendulum", "cartpole"):
        bins = stores[name].sql("FROM step_histogram(reward, 7)").fetchall()
        assert sum(count for *_, count in bins) == sum(episode.length for episode in stores[name])
        assert all(low < high for low, high, _ in bins) or len(bins) == 1


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


def test_places_from_both_ends(stores: dict[str, el.EpisodeStore]) -> None:
    """`episode_at` finds what `store[i]` finds, from the end too, in views as well."""
    store = stores["cartpole"]
    for place in (0, 7, len(store) - 1, -1, -len(store)):
        assert store.sql(f"SELECT episode_id FROM episode_at({place})").fetchall() == [(store[place].id,)]
    view = store[3:9]
    assert view.sql("SELECT episode_id FROM episode_at(0)").fetchall() == [(store[3].id,)]
    assert view.sql("SELECT episode_id FROM episode_at(-1)").fetchall() == [(store[8].id,)]
    chosen = store[5]
    rows = store.sql(f"SELECT t, reward FROM transitions_of('{chosen.id}') ORDER BY t").fetchall()
    assert rows == [(t, reward) for t, reward in enumerate(chosen.rewards)]


def test_steps_of_a_run_are_counted_through_its_episodes(stores: dict[str, el.EpisodeStore]) -> None:
    """`step_at` finds the episode in which a run made its n-th step."""
    store = stores["cartpole"]
    (first, *_) = sorted({episode.run_id for episode in store})
    made = [
        (episode.id, t)
        for episode in sorted(store, key=lambda episode: episode.number)
        if episode.run_id == first
        for t in range(episode.length)
    ]
    for step in (0, 17, 18, 40, len(made) - 1):
        rows = store.sql(f"SELECT episode_id, t FROM step_at({step}) WHERE run_id = '{first}'").fetchall()
        assert rows == [made[step]]


def test_an_empty_store_answers_with_no_rows(stores: dict[str, el.EpisodeStore]) -> None:
    """Every macro of a store without episodes gives columns and no rows."""
    for macro in (
        "returns_to_go(0.9)",
        "discounted_return()",
        "first_hit(reward > 0)",
        "moving_return(5)",
        "episode_at(0)",
        "step_at(0)",
        "step_percentiles(obs(0))",
        "step_histogram(reward)",
        "transitions_of('none')",
        "transitions_with_next",
    ):
        assert stores["empty"].sql(f"FROM {macro}").fetchall() == []
    assert {row[1] for row in stores["empty"].sql("FROM action_histogram()").fetchall()} <= {0}


@pytest.mark.parametrize("arguments", ["-0.1", "1.5", "NULL", "'nan'::double"])
def test_a_discount_that_is_none_is_told(stores: dict[str, el.EpisodeStore], arguments: str) -> None:
    """A discount outside 0 to 1 is an error and not a sum that grows without bounds or is NULL."""
    with pytest.raises(Exception, match=r"gamma|discount|DOUBLE"):
        stores["cartpole"].sql(f"FROM returns_to_go({arguments})").fetchall()
