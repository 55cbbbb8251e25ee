"""The namespace `rl` of Polars: right in every row of every episode, lazy, and the same as the SQL macros."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import episodelake as el
from claimed_stores import cartpole, columns_with_odd_names, odd_rewards, record, treasure
from effort import examples, looped
from episodelake.testing.adapters import case
from plain_returns import close, n_step_returns, returns_to_go
from waiting import PATIENCE

GAMMAS = st.sampled_from([0.0, 1e-300, 1e-9, 0.04, 0.5, 0.9, 0.99, 1 - 1e-9, 1 - 1e-15, 1.0]) | st.floats(
    0, 1
)
FINITE = st.floats(-1e6, 1e6)
ODD = st.sampled_from([math.nan, math.inf, -math.inf])
EPISODES = st.lists(st.lists(FINITE, min_size=1, max_size=40), min_size=1, max_size=6)
#: A reward may be missing, of steps or of other columns.
GAPPED = st.lists(st.lists(FINITE | st.none(), min_size=1, max_size=12), min_size=1, max_size=4)
ODD_EPISODES = st.lists(st.lists(FINITE | ODD, min_size=1, max_size=12), min_size=1, max_size=4)


def steps_of(episodes: Sequence[Sequence[float | None]]) -> pl.DataFrame:
    """A frame like steps: T+1 rows per episode, the last without a reward."""
    rows = [
        {"episode_id": f"e{number}", "t": t, "reward": reward, "observation": number * 1000 + t}
        for number, rewards in enumerate(episodes)
        for t, reward in enumerate([*rewards, None])
    ]
    frame = pl.DataFrame(rows, schema_overrides={"reward": pl.Float64})
    return frame.with_columns(terminated=pl.when(pl.col("reward").is_not_null()).then(False))


def by_episode(frame: pl.DataFrame, column: str) -> list[list[Any]]:
    """A column, episode by episode in the order of t."""
    return [part[column].to_list() for _, part in frame.sort("t").group_by("episode_id", maintain_order=True)]


def check_sums(found: list[list[Any]], wanted: list[list[Any]], episodes: list[list[Any]]) -> None:
    """Compare with a plain loop; the last row of each episode has none."""
    for got, right, rewards in zip(found, wanted, episodes, strict=True):
        scale = sum(abs(reward) for reward in rewards if reward is not None and math.isfinite(reward))
        assert got[-1] is None
        assert all(close(one, other, scale) for one, other in zip(got[:-1], right, strict=True)), (got, right)


@given(EPISODES | ODD_EPISODES | GAPPED, GAMMAS, st.booleans())
def test_discounted_sums_are_those_of_a_loop(
    episodes: list[list[Any]], gamma: float, streaming: bool
) -> None:
    """`discounted` sums to the episode's end, for every gamma, with odd values and gaps, on both engines."""
    frame = steps_of(episodes)
    plan = frame.lazy().with_columns(pl.col("reward").rl.discounted(gamma).over("episode_id").alias("found"))
    found = plan.collect(engine="streaming" if streaming else "in-memory")
    wanted = [returns_to_go(rewards, gamma) for rewards in episodes]
    check_sums(by_episode(found, "found"), wanted, episodes)


@given(EPISODES | GAPPED, st.integers(1, 50), GAMMAS)
def test_n_step_sums_are_those_of_a_loop(episodes: list[list[Any]], n: int, gamma: float) -> None:
    """`n_step` sums n rewards, fewer at the end of an episode, and none of the next one."""
    found = steps_of(episodes).rl.n_step(n, gamma)
    wanted = [n_step_returns(rewards, n, gamma) for rewards in episodes]
    check_sums(by_episode(found, "n_step_return"), wanted, episodes)


@given(EPISODES | GAPPED, st.floats(0.001, 1))
def test_the_moving_average_is_that_of_a_loop(episodes: list[list[Any]], alpha: float) -> None:
    """`ema` begins anew with each episode, at its first value, and passes over gaps."""
    frame = steps_of(episodes).with_columns(pl.col("reward").rl.ema(alpha).over("episode_id").alias("found"))
    wanted = []
    for rewards in episodes:
        mean, averages = None, []
        for reward in rewards:
            if reward is not None:
                mean = reward if mean is None else alpha * reward + (1 - alpha) * mean
            averages.append(None if reward is None else mean)
        wanted.append(averages)
    check_sums(by_episode(frame, "found"), wanted, episodes)


@given(EPISODES, st.integers(1, 3), st.randoms())
def test_frame_methods_do_not_depend_on_the_order_of_rows(
    episodes: list[list[float]], n: int, random: Any
) -> None:
    """On shuffled rows, returns to go and next observations are those of the ordered frame."""
    frame = steps_of(episodes)
    order = list(range(frame.height))
    random.shuffle(order)
    shuffled = frame[order]
    keys = ["episode_id", "t"]
    for one, other in (
        (shuffled.rl.returns_to_go(0.9), frame.rl.returns_to_go(0.9)),
        (shuffled.rl.with_next_observation(), frame.rl.with_next_observation()),
        (shuffled.rl.n_step(n, 0.9), frame.rl.n_step(n, 0.9)),
    ):
        assert one.sort(keys).equals(other.sort(keys))
    paired = frame.rl.with_next_observation()
    assert paired["next_observation"].to_list() == [value + 1 for value in paired["observation"]]
    assert paired.height == sum(map(len, episodes))


@given(EPISODES, st.sampled_from(["in-memory", "streaming"]))
def test_next_observations_that_are_not_there_are_told(episodes: list[list[float]], engine: Any) -> None:
    """Of transitions alone, no plan that asks for next observations gives rows, whatever it selects."""
    frame = steps_of(episodes)
    transitions = frame.rl.transitions()
    if not transitions.height:
        return
    plan = transitions.lazy().rl.with_next_observation()
    for asked in (plan, plan.select("t"), plan.select("next_observation")):
        with pytest.raises(el.errors.QueryError, match=r"Take it of store\.steps"):
            asked.collect(engine=engine)
    with pytest.raises(el.errors.QueryError, match="filter afterwards"):
        frame.filter(pl.col("t") < 1).rl.with_next_observation()
    whole = frame.lazy().rl.with_next_observation()
    assert whole.filter(pl.col("t") < 1).collect(engine=engine)["next_observation"].null_count() == 0
    assert whole.collect_schema().names() == [*frame.columns, "next_observation"]


def test_neighbours_stay_within_an_episode() -> None:
    """`next` and `previous` are null where the episode has ended or not begun."""
    frame = steps_of([[1.0, 2.0], [3.0]]).with_columns(
        pl.col("observation").rl.next().over("episode_id").alias("next"),
        pl.col("observation").rl.previous(2).over("episode_id").alias("before"),
    )
    assert frame["next"].to_list() == [1, 2, None, 1001, None]
    assert frame["before"].to_list() == [None, None, 0, None, None]


def test_first_hits() -> None:
    """`first_hit` gives the first t at which a condition holds, and null where it never does."""
    frame = steps_of([[0.0, 5.0, 9.0], [0.0], [7.0]])
    found = frame.rl.first_hit(pl.col("reward") > 4).sort("episode_id")
    assert found["t"].to_list() == [1, None, 0]
    assert frame.lazy().rl.first_hit(pl.col("observation") % 1000 == 1).collect()["t"].to_list() == [1] * 3
    grouped = frame.group_by("episode_id").agg(hit=(pl.col("reward") > 4).rl.first_hit()).sort("episode_id")
    assert grouped["hit"].to_list() == [1, None, 0]


@given(st.lists(FINITE | ODD, min_size=1, max_size=30), st.integers(1, 12))
def test_moving_returns_are_those_of_a_loop(returns: list[float], episodes: int) -> None:
    """`moving_return` averages an episode and those before it in its run; what is odd stays in its window."""
    frame = pl.DataFrame({"run_id": "r", "number": range(len(returns)), "episode_return": returns})
    found = frame[::-1].rl.moving_return(episodes).sort("number")["moving_return"]
    for number, got in enumerate(found):
        window = returns[max(0, number - episodes + 1) : number + 1]
        scale = max((abs(value) for value in returns if math.isfinite(value)), default=1)
        assert close(got, sum(window) / len(window), 1e3 * scale)


def vector_store(path: Path) -> el.EpisodeStore:
    """Two episodes with rewards of two objectives."""
    space = gymnasium.spaces.Box(-9, 99, (1,), np.float32)
    store = el.create(
        path, observation_space=space, action_space=gymnasium.spaces.Discrete(2), reward_shape=(2,)
    )
    with store.writer() as writer:
        for number, length in enumerate((4, 2)):
            writer.write_episode(
                observations=np.arange(length + 1, dtype=np.float32).reshape(-1, 1),
                actions=np.zeros(length, np.int64),
                rewards=np.arange(2 * length).reshape(-1, 2) + number,
                terminations=np.zeros(length, bool),
                truncations=np.zeros(length, bool),
            )
    return store.refresh()


def test_vector_rewards(tmp_path: Path) -> None:
    """Of several objectives each is summed by itself, in frames and in SQL alike."""
    store = vector_store(tmp_path / "store")
    found = store.steps.rl.returns_to_go(0.9).sort("episode_id", "t").collect()
    table = store.sql("from returns_to_go(0.9) order by episode_id, t").pl()
    wanted = [
        np.array([returns_to_go(episode.rewards[:, part], 0.9) for part in range(2)]).T for episode in store
    ]
    inner = found.filter(pl.col("reward").is_not_null())
    assert np.allclose(inner["return_to_go"].to_list(), np.concatenate(wanted))
    assert np.allclose(table["return_to_go"].to_list(), np.concatenate(wanted))
    assert found["return_to_go"].null_count() == 2
    first = store.steps.rl.discounted_return(0.9).sort("episode_id").collect()["discounted_return"]
    assert np.allclose(first.to_list(), [rows[0] for rows in wanted])
    rows = store.query("from discounted_return(0.9) order by episode_id")["discounted_return"]
    assert np.allclose(rows.to_list(), first.to_list())
    moving = store.episodes.rl.moving_return(2).sort("number").collect()["moving_return"].to_list()
    assert moving == store.sql("from moving_return(2) order by number").pl()["moving_return"].to_list()
    assert np.allclose(moving[1], np.mean([episode.rewards.sum(axis=0) for episode in store], axis=0))
    empty = store.filter("length > 99")
    assert empty.steps.rl.returns_to_go().collect().height == 0


def test_wrong_arguments_are_named() -> None:
    """A wrong argument or a frame without a column is an error of the tree that names it."""
    cases: list[Any] = [
        (lambda frame: frame.rl.returns_to_go(1.5), ["gamma=1.5", "0 to 1"]),
        (lambda frame: frame.select(pl.col("reward").rl.discounted(-0.1)), ["gamma=-0.1"]),
        (lambda frame: frame.select(pl.col("reward").rl.discounted(math.nan)), ["gamma=nan"]),
        (lambda frame: frame.drop("episode_id").rl.discounted_return(), ["'episode_id'"]),
        (lambda frame: frame.drop("episode_id").rl.first_hit(pl.col("t") > 0), ["'episode_id'"]),
        (lambda frame: frame.rl.n_step(0), ["n=0", "from 1 on"]),
        (lambda frame: frame.select(pl.col("reward").rl.ema(0)), ["alpha=0"]),
        (
            lambda frame: frame.rename({"reward": "rewards"}).rl.returns_to_go(),
            ["'reward'", "Did you mean rewards"],
        ),
        (lambda frame: frame.drop("episode_id").rl.transitions(), ["'episode_id'"]),
        (lambda frame: frame.drop("observation").rl.with_next_observation(), ["observation"]),
        (lambda frame: frame.rl.moving_return(3), ["'run_id'", "store.episodes"]),
        (lambda frame: frame.rl.first_hit("reward > 1"), ["expression"]),
    ]
    for call, named in cases:
        with case((call, named)):
            with pytest.raises(el.EpisodelakeError) as caught:
                call(steps_of([[1.0]]))
            assert all(name in str(caught.value) for name in named)


def test_lazy_frames_stay_lazy_and_read_only_what_is_used(tmp_path: Path) -> None:
    """A plan with a namespace's columns reads the columns that it needs, and no observation."""
    space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    store = el.create(tmp_path / "s", observation_space=space, action_space=gymnasium.spaces.Discrete(2))
    with store.writer() as writer:
        writer.write_episode(
            observations=np.zeros((3, 3), np.float32),
            actions=[0, 1],
            rewards=[1.0, 2.0],
            terminations=[False, True],
            truncations=[False, False],
        )
    plan = store.refresh().steps.rl.returns_to_go(0.5).select("episode_id", "return_to_go")
    assert isinstance(plan, pl.LazyFrame)
    text = plan.explain()
    assert "PROJECT" in text and "observation" not in text.split("PROJECT", 1)[1].split("\n")[0]
    assert plan.collect()["return_to_go"].to_list() == [2.0, 2.0, None]


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


@looped("name", ["cartpole", "treasure", "names", "blackjack"])
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


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(GAMMAS, st.integers(0, 2**32 - 1))
def test_long_episodes_are_exact(gamma: float, seed: int) -> None:
    """An episode of 50,000 steps has the sums of a loop at every step, whatever gamma is."""
    rewards = np.random.default_rng(seed).standard_normal(50_000).tolist()
    found = steps_of([rewards]).select(pl.col("reward").rl.discounted(gamma)).to_series().to_list()
    wanted = returns_to_go(rewards, gamma)
    assert np.allclose(found[:-1], wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "before",
    [
        "import episodelake, importlib.util; importlib.util.find_spec('polars')",
        "import importlib.util; importlib.util.find_spec('polars'); import episodelake",
        "import episodelake; importlib.util.find_spec('polars'); importlib.util.find_spec('polars')",
    ],
)
def test_the_namespace_is_there_however_polars_is_imported(before: str) -> None:
    """Looking for Polars without importing it changes nothing."""
    program = (
        f"import importlib.util; {before}; import polars as pl; print(pl.col('reward').rl.discounted(0.9))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0 and "reward" in ran.stdout, ran.stderr
