"""The namespace `rl` of Polars, held against loops and against SQL, on frames in any order."""

# pyright: reportAttributeAccessIssue=false
# Polars' namespaces are found at run time.

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import episodelake as el
from claimed_stores import (
    ODD_REWARDS,
    cartpole,
    columns_with_odd_names,
    odd_rewards,
    plain_returns_to_go,
    record,
    treasure,
)

NUMBERS = st.one_of(st.none(), st.floats(-100, 100), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, el.EpisodeStore]:
    """Stores of real environments and of odd values, only read."""
    root = tmp_path_factory.mktemp("polars")
    return {
        "cartpole": cartpole(root / "cartpole"),
        "blackjack": record(root / "blackjack", lambda: gymnasium.make("Blackjack-v1"), 12),
        "treasure": treasure(root / "treasure", 5),
        "rewards": odd_rewards(root / "rewards"),
        "names": columns_with_odd_names(root / "names"),
        "empty": el.create(root / "empty", gymnasium.make("CartPole-v1")),
    }


def plain_sums(values: list[float | None], gamma: float, n: int) -> list[float | None]:
    """The discounted sum of each value and the n - 1 after it, where None counts as 0 and stays None."""
    sums: list[float | None] = []
    for start, own in enumerate(values):
        total = 0.0
        for value in reversed(values[start : start + n]):
            total = (0.0 if value is None else value) + gamma * total
        sums.append(None if own is None else total)
    return sums


def same(found: list[float | None], expected: list[float | None]) -> None:
    """Equal with None where None is, NaN where NaN is."""
    assert [value is None for value in found] == [value is None for value in expected]
    numbers = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    np.testing.assert_allclose([a for a, _ in numbers], [b for _, b in numbers], rtol=1e-9, atol=1e-9)


@given(
    st.lists(st.lists(NUMBERS, min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from([0.5, 0.9, 1.0]),
)
def test_discounted_sums_are_those_of_a_loop(episodes: list[list[float | None]], gamma: float) -> None:
    """`discounted` over episodes is the double loop for each, with None, NaN and infinities anywhere."""
    frame = pl.DataFrame(
        [(str(place), value) for place, values in enumerate(episodes) for value in values],
        schema={"episode_id": pl.String, "x": pl.Float64},
        orient="row",
    )
    found = frame.select(pl.col("x").rl.discounted(gamma).over("episode_id"))["x"].to_list()
    same(found, [value for values in episodes for value in plain_sums(values, gamma, len(values))])


@given(
    st.lists(st.one_of(st.none(), st.floats(-100, 100)), min_size=1, max_size=9),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_n_step_sums_are_those_of_a_loop(values: list[float | None], n: int, gamma: float) -> None:
    """`n_step` adds the value and the n - 1 after it, fewer at the end, for n beyond the end too."""
    frame = pl.DataFrame({"episode_id": ["a"] * len(values), "x": pl.Series(values, dtype=pl.Float64)})
    found = frame.select(pl.col("x").rl.n_step(n, gamma).over("episode_id"))["x"].to_list()
    same(found, plain_sums(values, gamma, n))


@given(
    st.lists(st.one_of(st.none(), st.floats(-100, 100)), min_size=1, max_size=9),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_moving_averages_are_those_of_a_loop(values: list[float | None], alpha: float) -> None:
    """`ema` begins with the first value, passes over None and keeps it."""
    mean, expected = None, []
    for value in values:
        if value is not None:
            mean = value if mean is None else alpha * value + (1 - alpha) * mean
        expected.append(None if value is None else mean)
    frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.Float64)})
    same(frame.select(pl.col("x").rl.ema(alpha))["x"].to_list(), expected)


def test_neighbours_stop_at_the_border(stores: dict[str, el.EpisodeStore]) -> None:
    """`next` and `previous` are null beyond the episode, for numbers, lists and several rows."""
    frame = stores["cartpole"].steps.with_columns(
        following=pl.col("observation").rl.next().over("episode_id"),
        before=pl.col("action").rl.previous(2).over("episode_id"),
    )
    for (key,), rows in frame.collect().partition_by("episode_id", as_dict=True).items():
        episode = stores["cartpole"][str(key)]
        rows = rows.sort("t")
        assert rows["following"][-1] is None
        np.testing.assert_array_equal(np.stack(rows["following"][:-1].to_list()), episode.observations[1:])
        assert rows["before"].to_list() == [None, None, *episode.actions[: episode.length - 1]]


@pytest.mark.parametrize("name", ["cartpole", "blackjack", "treasure", "names"])
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_frames_find_episodes_in_any_order(
    stores: dict[str, el.EpisodeStore], name: str, gamma: float
) -> None:
    """Returns to go of shuffled steps are those of the loop, row for row."""
    shuffled = stores[name].steps.collect().sample(fraction=1, shuffle=True, seed=7)
    found = shuffled.rl.returns_to_go(gamma).filter(pl.col("action").is_not_null())
    totals = dict(shuffled.rl.discounted_return(gamma).select("episode_id", "discounted_return").iter_rows())
    assert found.height == sum(episode.length for episode in stores[name])
    for episode in stores[name]:
        expected = [np.atleast_1d(value) for value in plain_returns_to_go(episode.rewards, gamma)]
        rows = found.filter(pl.col("episode_id") == episode.id).sort("t")["return_to_go"].to_list()
        np.testing.assert_allclose([np.atleast_1d(value) for value in rows], expected, rtol=1e-9)
        np.testing.assert_allclose(np.atleast_1d(totals[episode.id]), expected[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["cartpole", "treasure", "names", "blackjack"])
def test_polars_and_sql_say_the_same(stores: dict[str, el.EpisodeStore], name: str) -> None:
    """Each frame method and the macro of its name agree on every row of every kind of store."""
    store = stores[name]
    for method, macro, keys in (
        (store.steps.rl.discounted_return(0.9), "discounted_return(0.9)", ["episode_id"]),
        (store.episodes.rl.moving_return(3), "moving_return(3)", ["episode_id"]),
        (store.steps.rl.first_hit(pl.col("t") == 4), "first_hit(t = 4)", ["episode_id"]),
        (store.steps.rl.step_percentiles(pl.col("t") * 1.0), "step_percentiles(t)", ["t"]),
        (store.steps.rl.with_next_observation(), "transitions_with_next", ["episode_id", "t"]),
    ):
        expected = store.sql(f"FROM {macro}").pl().sort(keys)
        found = method.collect().sort(keys).select(expected.columns)
        assert_frame_equal(found, expected, check_dtypes=False, rel_tol=1e-9)


def test_percentiles_with_nan_are_the_same_in_both(stores: dict[str, el.EpisodeStore]) -> None:
    """Where rewards are NaN or infinite, SQL and Polars agree on all but quantiles beside an infinity."""
    expected = stores["rewards"].sql("FROM step_percentiles(reward)").pl().sort("t")
    found = stores["rewards"].steps.rl.step_percentiles("reward").collect().sort("t")
    for column in expected.columns:
        values = expected[column].to_numpy()
        between = np.isinf(values) & (column in ("p10", "p90"))
        np.testing.assert_allclose(found[column].to_numpy()[~between], values[~between], rtol=1e-9)


def test_rewards_that_are_not_finite_keep_to_their_episodes(stores: dict[str, el.EpisodeStore]) -> None:
    """NaN and infinities reach the steps before them and no other episode."""
    found = stores["rewards"].transitions.with_columns(
        g=pl.col("reward").rl.discounted(0.9).over("episode_id")
    )
    for episode, rewards in zip(stores["rewards"], ODD_REWARDS, strict=True):
        if 1e308 in rewards:
            continue  # a sum that overflows where a loop adds up, and not where the discount comes first
        values = found.filter(pl.col("episode_id") == episode.id).collect()["g"].to_list()
        np.testing.assert_allclose(values, list(plain_returns_to_go(np.array(rewards), 0.9)), rtol=1e-12)


def test_everything_is_lazy_and_streams(stores: dict[str, el.EpisodeStore]) -> None:
    """Methods of a LazyFrame give LazyFrames, and the streaming engine gives the same rows."""
    steps = stores["cartpole"].steps
    for lazy in (
        steps.rl.returns_to_go(0.9),
        steps.rl.n_step(3, 0.9),
        steps.rl.discounted_return(0.9),
        steps.rl.with_next_observation(),
        steps.rl.transitions(),
        steps.rl.step_percentiles("reward"),
    ):
        assert isinstance(lazy, pl.LazyFrame)
        keys = [key for key in ("episode_id", "t") if key in lazy.collect_schema()]
        assert lazy.collect(engine="streaming").sort(keys).equals(lazy.collect().sort(keys))


def test_views_and_empty_frames(stores: dict[str, el.EpisodeStore]) -> None:
    """A filtered view's frames have its episodes alone; an empty store's have columns and no rows."""
    view = stores["cartpole"].filter("end_reason = 'cut'")
    found = view.steps.rl.discounted_return().collect()
    assert found["episode_id"].to_list() == [episode.id for episode in view]
    for method in ("returns_to_go", "discounted_return", "transitions", "with_next_observation"):
        frame = getattr(stores["empty"].steps.rl, method)().collect()
        assert frame.height == 0 and "episode_id" in frame.columns
    assert stores["empty"].episodes.rl.moving_return(3).collect().height == 0
    assert stores["empty"].steps.rl.step_percentiles("reward").collect().height == 0


def test_a_hundred_thousand_episodes(tmp_path: Path) -> None:
    """Sums of 100,000 short episodes are numpy's, and none leaks into its neighbour."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 100_000)
    rewards = random.normal(size=lengths.sum())
    episode = np.repeat(np.arange(len(lengths)), lengths)
    t = np.arange(len(rewards)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    frame = pl.DataFrame({"episode_id": episode, "t": t, "reward": rewards})
    total, expected = 0.0, np.empty_like(rewards)
    for place in range(len(rewards) - 1, -1, -1):
        last = place + 1 == len(rewards) or episode[place + 1] != episode[place]
        total = rewards[place] + (0.0 if last else 0.99 * total)
        expected[place] = total
    found = frame.lazy().select(pl.col("reward").rl.discounted(0.99).over("episode_id")).collect()["reward"]
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-9)


def test_one_long_episode_is_exact() -> None:
    """A million rows with a strong discount lose nothing: no power of gamma underflows or overflows."""
    values = np.random.default_rng(1).normal(size=1_000_000)
    frame = pl.DataFrame({"x": values})
    for gamma in (0.1, 0.9999):
        total, expected = 0.0, np.empty_like(values)
        for place in range(len(values) - 1, -1, -1):
            total = values[place] + gamma * total
            expected[place] = total
        found = frame.select(pl.col("x").rl.discounted(gamma))["x"].to_numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_first_hits_in_groups_and_frames(stores: dict[str, el.EpisodeStore]) -> None:
    """`first_hit` of an expression and of a frame find the first t of a loop, null where there is none."""
    store = stores["cartpole"]
    condition = pl.col("observation").list.get(2).abs() > 0.1
    expected: dict[str, int | None] = defaultdict(lambda: None)
    for row in store.steps.sort("episode_id", "t", descending=True).collect().iter_rows(named=True):
        expected[row["episode_id"]] = (
            row["t"] if abs(row["observation"][2]) > 0.1 else expected[row["episode_id"]]
        )
    by_frame = dict(store.steps.rl.first_hit(condition).collect().select("episode_id", "t").iter_rows())
    grouped = store.steps.group_by("episode_id").agg(hit=condition.rl.first_hit()).collect()
    assert by_frame == dict(grouped.iter_rows()) == dict(expected)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("discounted", (1.5,)),
        ("discounted", (-0.1,)),
        ("discounted", (math.nan,)),
        ("n_step", (0,)),
        ("ema", (0.0,)),
    ],
)
def test_numbers_out_of_range_are_told(method: str, words: tuple[float, ...]) -> None:
    """A discount, a number of steps and a weight out of range are errors before anything is read."""
    with pytest.raises(el.errors.InvalidArgumentError):
        getattr(pl.col("reward").rl, method)(*words)


def test_frames_without_episodes_are_told(stores: dict[str, el.EpisodeStore]) -> None:
    """A frame that lacks the columns of steps or of episodes gets an error of ours that names them."""
    strange = pl.LazyFrame({"x": [1.0]})
    for call in (
        lambda: strange.rl.returns_to_go(0.9),
        lambda: strange.rl.with_next_observation(),
        lambda: strange.rl.discounted_return(),
        lambda: strange.rl.moving_return(3),
        lambda: strange.rl.first_hit(pl.col("x") > 0),
        lambda: stores["cartpole"].steps.rl.step_percentiles("retrun").collect(),
    ):
        with pytest.raises((el.errors.QueryError, pl.exceptions.ColumnNotFoundError)):
            call()
