"""Charts: their data against the raw files, their specifications, what is drawn of them, and bad input."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair
import gymnasium
import mo_gymnasium
import numpy as np
import polars as pl
import pytest
from altair.utils import schemapi
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from playwright.sync_api import sync_playwright

import episodelake as el
from agent_environments import Comings
from effort import looped
from episodelake.readers.charts import episode_chart, returns, series, steps
from episodelake.readers.charts.bins import bins_for
from episodelake.readers.charts.signals import reduced
from episodelake.store.card import CardEntries
from picture_stores import HOSTILE, as_json, cartpole, drawn, pictures, play, raw, rows_of, scores, told
from plain_agents import play_parallel, random_policy
from real_environments import NUMBERED_SPACES

RETURNS = {"ppo": [float(number) for number in range(40)], "dqn": [-1.5, 0.25, 7.0]}
CHARTS = ("returns", "learning_curve", "lengths", "return_histogram", "actions", "visitation")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Two runs, of 40 and of 3 episodes."""
    return scores(tmp_path_factory.mktemp("plots") / "store", RETURNS, ppo="on-policy", dqn="off-policy")


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Episodes of agents of two kinds that come and go."""
    env = Comings()
    store = el.create(tmp_path_factory.mktemp("team") / "store", env)
    with store.record(env, run="team") as recorder:
        for seed in range(4):
            play_parallel(recorder, random_policy(env, seed), seed)
    return store.refresh()


@pytest.fixture(scope="module")
def treasure(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Episodes with two objectives."""
    env = mo_gymnasium.make("deep-sea-treasure-v0")
    store = el.create(tmp_path_factory.mktemp("treasure") / "store", env)
    with store.record(env, run="dst") as recorder:
        for seed in range(6):
            play(recorder, seed, 20)
    return store.refresh()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A store with every kind of action."""
    action = Tuple([Discrete(4), MultiDiscrete([2, 3]), MultiBinary(2), Box(-1, 1, (2,), np.float32)])
    store = el.create(
        tmp_path_factory.mktemp("mixed") / "store",
        observation_space=Dict(place=Box(-1, 1, (2, 2), np.float64), room=Discrete(3, start=1)),
        action_space=action,
    )
    action.seed(0)
    store.observation_space.seed(0)
    with store.writer(run="mixed") as writer:
        writer.write_episode(
            observations=[store.observation_space.sample() for _ in range(31)],
            actions=[action.sample() for _ in range(30)],
            rewards=np.arange(30.0),
            terminations=True,
            truncations=False,
        )
    return store.refresh()


def test_points_are_the_episodes(store: el.EpisodeStore) -> None:
    """Each episode of a small store is a point, with its id, run, return, length, end and seed."""
    points = rows_of(store.plot.returns(), "circle")
    found = {
        (row["episode"], row["series"], row["x"], row["value"], row["length"], row["end_reason"], row["seed"])
        for row in points
    }
    expected = raw(
        store,
        "SELECT episode_id, name, number::DOUBLE, episode_return, length, end_reason, seed::VARCHAR "
        "FROM episodes JOIN runs USING (run_id)",
    )
    assert found == set(expected)
    assert len(points) == 43


def test_lines_are_means_of_stretches(store: el.EpisodeStore) -> None:
    """The line and the band are the mean and quantiles of the episodes of each stretch of the axis."""
    lines = [row for row in rows_of(store.plot.returns(), "line") if row["series"] == "ppo"]
    bins = 10
    values = np.arange(40.0)
    stretches = np.minimum(values / 39 * bins, bins - 1).astype(int)
    assert len(lines) == bins
    for index, row in enumerate(lines):
        own = values[stretches == index]
        assert math.isclose(row["value"], own.mean())
        assert math.isclose(row["low"], np.quantile(own, 0.1))
        assert math.isclose(row["high"], np.quantile(own, 0.9))
        assert row["episodes"] == len(own)


def test_a_short_run_beside_a_long_one_has_a_line(tmp_path: Path) -> None:
    """Each run has stretches of its own, however short its part of the common axis is."""
    returns = {"long": [float(number % 7) for number in range(400)], "short": [float(n) for n in range(20)]}
    chart = scores(tmp_path / "store", returns).plot.returns(over="steps")
    lines = [row for row in rows_of(chart, "line") if row["series"] == "short"]
    moments = np.cumsum([number % 3 + 1 for number in range(20)])
    stretches = np.minimum((moments - 1) / (moments[-1] - 1) * 5, 4).astype(int)
    assert len(lines) == 5
    for index, row in enumerate(lines):
        assert math.isclose(row["x"], moments[stretches == index].mean())
        assert math.isclose(row["value"], np.arange(20.0)[stretches == index].mean())
    assert "up to 100 stretches of each run" in told(chart)


def test_steps_are_summed_over_a_run(store: el.EpisodeStore) -> None:
    """Over steps, an episode stands where its run had made so many steps."""
    points = rows_of(store.plot.returns(over="steps"), "circle")
    lengths = [number % 3 + 1 for number in range(40)]
    expected = dict(zip(np.cumsum(lengths).tolist(), range(40), strict=True))
    assert {row["x"]: row["value"] for row in points if row["series"] == "ppo"} == expected


def test_time_is_when_an_episode_ended(store: el.EpisodeStore) -> None:
    """Over time, an episode stands at the millisecond at which it ended."""
    points = rows_of(store.plot.lengths(over="time"), "circle")
    expected = {
        episode: (moment, length)
        for episode, moment, length in raw(
            store, "SELECT episode_id, epoch_ms(ended_at), length FROM episodes"
        )
    }
    assert {row["episode"]: (row["x"], row["value"]) for row in points} == expected


@looped("by", ["metadata.algo", "end_reason", "seed", "run_id"])
def test_any_column_tells_series_apart(store: el.EpisodeStore, by: str) -> None:
    """A column of episodes or of runs can give the colours."""
    expected = raw(store, f'SELECT e."{by}"::VARCHAR FROM episodes e' if by != "metadata.algo" else
                   'SELECT "metadata.algo" FROM episodes JOIN runs USING (run_id)')  # fmt: skip
    counts: dict[str, int] = {}
    for (name,) in expected:
        counts[name] = counts.get(name, 0) + 1
    kept = sorted(counts, key=lambda name: (-counts[name], name))[: series.MOST_SERIES]
    points = rows_of(store.plot.returns(by=by), "circle")
    assert {row["series"] for row in points} == set(kept)
    assert len(points) == sum(counts[name] for name in kept)


def test_too_many_series_are_told(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest series are drawn, and the subtitle counts what is left out."""
    monkeypatch.setattr(series, "MOST_SERIES", 3)
    chart = store.plot.returns(by="seed")
    # Seeds 0, 1 and 2 have an episode of each run, the others one.
    assert {row["series"] for row in rows_of(chart, "circle")} == {"0", "1", "2"}
    assert "the 3 largest of 40 by seed; 37 returns of others not drawn" in told(chart)
    actions = store.plot.actions(by="seed")
    assert {row["series"] for row in rows_of(actions, "bar")} == {"0", "1", "2"}
    assert "the 3 largest of 40 by seed" in told(actions)


def test_runs_of_one_name_are_told_by_their_ids(tmp_path: Path) -> None:
    """Two runs with the same name are two series."""
    path = tmp_path / "store"
    store = scores(path, {"ppo": [1.0, 2.0]})
    with store.writer(run="ppo") as writer:
        writer.write_episode(
            observations=np.zeros((2, 2), np.float32), actions=np.ones(1, np.int64), rewards=np.ones(1),
            terminations=True, truncations=False,
        )  # fmt: skip
    names = {row["series"] for row in rows_of(store.refresh().plot.returns(), "circle")}
    assert names == {run for (run,) in raw(store, "SELECT run_id FROM runs")}


@pytest.mark.further
def test_many_episodes_are_sampled_in_the_same_way(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit some episodes are drawn, always the same, and the subtitle says how many."""
    everything = {row["episode"] for row in rows_of(store.plot.returns(), "circle")}
    monkeypatch.setattr(returns, "MOST_POINTS", 10)
    first, second = store.plot.returns(), el.open(store.path).plot.returns()
    found = {row["episode"] for row in rows_of(first, "circle")}
    assert 10 < len(found) < 43
    assert found < everything
    assert found == {row["episode"] for row in rows_of(second, "circle")}
    assert f"points: {len(found)} of them: the extremes, others drawn by hash of the episode id" in told(
        first
    )
    assert sum(row["episodes"] for row in rows_of(first, "line")) == 43


@pytest.mark.further
def test_extremes_and_wild_returns_are_drawn(tmp_path: Path) -> None:
    """Of 6,000 episodes the largest and smallest returns are points; NaN and infinity are crosses."""
    random = np.random.default_rng(0)
    values = random.normal(size=6000)
    values[[100, 4000]], values[[7, 8]] = (2700, -900), (np.nan, np.inf)
    box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    store = el.create(tmp_path / "store", observation_space=box, action_space=box)
    zeros = np.zeros((2, 1), np.float32)
    with store.writer() as writer:
        for value in values:
            writer.write_episode(
                observations=zeros, actions=zeros[:1], rewards=[value],
                terminations=True, truncations=False,
            )  # fmt: skip
    chart = store.refresh().plot.returns(scale="linear")
    finite = values[np.isfinite(values)]
    drawn = [row["value"] for row in rows_of(chart, "circle")]
    assert (min(drawn), max(drawn)) == (-900, 2700)
    means = rows_of(chart, "line")
    # Stretches of equal length over the numbers of episodes, as the means have them.
    numbers = np.flatnonzero(np.isfinite(values))
    places = np.minimum((numbers / 5999 * len(means)).astype(int), len(means) - 1)
    for place in range(len(means)):
        assert {finite[places == place].min(), finite[places == place].max()} <= set(drawn)
    assert sum(row["episodes"] for row in means) == len(finite)
    assert sorted(row["label"] for row in rows_of(chart, "point")) == ["NaN", "inf"]
    assert "2 returns not drawn" in told(chart) and "crosses at the edge" in told(chart)


def test_nan_of_an_episode_is_marked(tmp_path: Path) -> None:
    """A NaN is a cross and is counted; a value between two gaps is a dot."""
    box = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    store = el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    seen = np.arange(7, dtype=np.float32)[:, None]
    seen[5] = np.nan
    with store.writer() as writer:
        writer.write_episode(
            observations=seen, actions=np.zeros(6, int), rewards=np.ones(6), terminations=True,
            truncations=False,
        )  # fmt: skip
    chart = store.refresh()[0].plot(["observation[0]"])
    marks = {(row["t"], row["label"]) for row in rows_of(chart, "point")}
    assert marks == {(5, "nan"), (6, "6")}
    assert "crosses: observation[0]: 1 NaN" in told(chart)
    assert "<circle" in store[0]._repr_html_()


def test_a_view_draws_its_own_episodes(store: el.EpisodeStore) -> None:
    """Filters and slices are charts of what they keep."""
    few = store.filter("episode_return > 30")
    assert {row["value"] for row in rows_of(few.plot.returns(), "circle")} == set(range(31, 40))
    assert {row["value"] for row in rows_of(store[3:5].plot.returns(), "circle")} == {3.0, 4.0}
    assert {row["x"] for row in rows_of(store[3:5].plot.returns(), "circle")} == {3.0, 4.0}


def test_a_histogram_counts_every_return_once(store: el.EpisodeStore) -> None:
    """Each bar holds the episodes between its edges, and the shares of a run add up to one."""
    bars = rows_of(store.plot.return_histogram(bins=7), "rect")
    for run, values in RETURNS.items():
        own = [row for row in bars if row["series"] == run]
        assert sum(row["episodes"] for row in own) == len(values)
        assert math.isclose(sum(row["share"] for row in own), 1)
        for row in own:
            middle, half = (row["from"] + row["to"]) / 2, (row["to"] - row["from"]) / 2 / 0.96
            inside = [value for value in values if middle - half - 1e-9 <= value < middle + half - 1e-9]
            assert len(inside) == row["episodes"]
            assert (row["bottom"], row["top"]) == (0, row["episodes"])


def test_whole_numbers_get_a_bar_each(store: el.EpisodeStore) -> None:
    """Lengths of 1, 2 and 3 are three bars, with the end reasons one upon the other."""
    bars = rows_of(store.plot.lengths(), "rect")
    expected = raw(store, "SELECT length::VARCHAR, end_reason, count(*) FROM episodes GROUP BY ALL")
    assert {(row["label"], row["series"], row["episodes"]) for row in bars} == set(expected)
    for label in ("1", "2", "3"):
        spans = sorted((row["bottom"], row["top"]) for row in bars if row["label"] == label)
        assert spans[0][0] == 0
        assert spans[0][1] == spans[1][0]


def test_whole_returns_of_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    """No bar of one run lies over that of another, and the axis has a tick for each return."""
    returns = {"a": [0.0, 0.0, 1.0], "b": [0.0, 1.0], "c": [0.0]}
    chart = scores(tmp_path / "store", returns).plot.return_histogram()
    bars = sorted(rows_of(chart, "rect"), key=lambda row: row["from"])
    assert [(row["label"], row["series"], row["top"]) for row in bars] == [
        ("0", "a", 2), ("0", "b", 1), ("0", "c", 1), ("1", "a", 1), ("1", "b", 1),
    ]  # fmt: skip
    assert all(left["to"] <= right["from"] for left, right in pairwise(bars))
    assert all(int(row["label"]) - 0.5 < row["from"] < row["to"] < int(row["label"]) + 0.5 for row in bars)
    assert chart.to_dict()["encoding"]["x"]["axis"]["values"] == [0, 1]


def test_other_returns_of_several_runs_are_outlines(store: el.EpisodeStore) -> None:
    """Where bars have to lie over each other, each run has an outline that is as high as its bars."""
    chart = store.plot.return_histogram(bins=7)
    bars, lines = rows_of(chart, "rect"), rows_of(chart, "line")
    for run in RETURNS:
        outline = [(row["from"], row["episodes"]) for row in lines if row["series"] == run]
        assert (outline[0][1], outline[-1][1]) == (0, 0)
        heights = [row["episodes"] for row in bars if row["series"] == run]
        assert [height for _, height in outline if height] == heights


@given(
    st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30)
    | st.lists(st.integers(-(10**6), 10**6).map(float), min_size=1, max_size=30),
    st.integers(1, 60),
)
def test_bins_hold_every_value(values: list[float], about: int) -> None:
    """Every value lies in the stretch that SQL gives it, and there are about as many as were asked for."""
    whole = all(value.is_integer() for value in values)
    low, high = min(values), max(values)
    bins = bins_for(low, high, about, whole=whole)
    assert 1 <= bins.count <= max(about * 2 + 2, 3)
    span = max(abs(low), abs(high), bins.width)
    assert bins.edges(0)[0] <= low + 1e-9 * span
    assert bins.edges(bins.count - 1)[1] >= high - 1e-9 * span
    assert np.isfinite(bins.width) and bins.width > 0


def test_shares_of_discrete_actions(store: el.EpisodeStore) -> None:
    """The share of each action by run, as Polars counts them in the files."""
    bars = rows_of(store.plot.actions(by="run"), "bar")
    counted = raw(
        store,
        "SELECT name, action::VARCHAR, count(*) FROM steps JOIN episodes USING (episode_id) "
        "JOIN runs USING (run_id) WHERE action IS NOT NULL GROUP BY ALL",
    )
    assert {(row["series"], row["label"], row["transitions"]) for row in bars} == set(counted)
    total = sum(count for name, _, count in counted if name == "ppo")
    for row in bars:
        if row["series"] == "ppo":
            assert math.isclose(row["share"], row["transitions"] / total)


def test_every_kind_of_action_has_a_panel(mixed: el.EpisodeStore) -> None:
    """Discrete parts are counted by kind, continuous ones in bins; a part can be named."""
    everything = pl.read_parquet(mixed.path / "steps" / "*.parquet").drop_nulls("action.0")
    bars = rows_of(mixed.plot.actions(column="action.1"), "bar")
    for index, size in enumerate((2, 3)):
        counts = everything["action.1"].list.get(index).value_counts()
        expected = {(str(kind), count) for kind, count in counts.iter_rows()}
        assert expected <= {(row["label"], row["transitions"]) for row in bars}
        assert len(expected) == size
    rects = rows_of(mixed.plot.actions(column="action.3[1]"), "rect")
    assert sum(row["transitions"] for row in rects) == 30
    values = everything["action.3"].list.get(1).to_numpy()
    assert min(row["from"] for row in rects) <= values.min() + 0.05
    assert max(row["to"] for row in rects) >= values.max() - 0.05
    assert "action.1[0]" in as_json(mixed.plot.actions())


def test_visits_are_counted_in_two_dimensions(store: el.EpisodeStore) -> None:
    """The cells of the heat map hold the observations that numpy counts between the same edges."""
    cells = rows_of(store.plot.visitation(bins=5), "rect")
    values = np.array(raw(store, "SELECT observation[1], observation[2] FROM steps"))
    assert sum(row["visits"] for row in cells) == len(values)
    for row in cells:
        wide, tall = ((row[f"{axis}_to"] - row[f"{axis}_from"]) / 1.05 for axis in "xy")
        across = (values[:, 0] >= row["x_from"]) & (values[:, 0] < row["x_from"] + wide)
        along = (values[:, 1] >= row["y_from"]) & (values[:, 1] < row["y_from"] + tall)
        last = [row[f"{axis}_to"] >= values[:, place].max() for place, axis in enumerate("xy")]
        if not any(last):
            assert row["visits"] == int((across & along).sum())


def test_visits_of_one_element_are_bars(mixed: el.EpisodeStore) -> None:
    """A single discrete part has a bar for each of its kinds."""
    bars = rows_of(mixed.plot.visitation("observation.room"), "rect")
    expected = raw(mixed, 'SELECT "observation.room"::VARCHAR, count(*) FROM steps GROUP BY 1')
    assert {(row["x_label"], row["visits"]) for row in bars} == set(expected)


def test_large_views_are_sampled_by_episode(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of rows whole episodes are chosen, always the same, and the subtitle says so."""
    monkeypatch.setattr(steps, "MOST_ROWS", 40)
    first, second = store.plot.actions(), el.open(store.path).plot.actions()
    assert rows_of(first, "bar") == rows_of(second, "bar")
    every = -(-(sum(length for (length,) in raw(store, "SELECT length FROM episodes")) + 43) // 40)
    assert f"of 1 episode in {every}, drawn by hash of its id" in told(first)
    kept = raw(
        store, f"SELECT count(*) FROM steps WHERE action IS NOT NULL AND hash(episode_id) % {every} = 0"
    )
    assert sum(row["transitions"] for row in rows_of(first, "bar")) == kept[0][0]


def test_agents_are_series(team: el.EpisodeStore) -> None:
    """Returns, lengths and actions of several agents are told apart by agent."""
    points = rows_of(team.plot.returns(), "circle")
    expected = {
        (episode.id, name, value) for episode in team for name, value in episode.agent_returns.items()
    }
    assert {(row["episode"], row["series"], row["value"]) for row in points} == expected
    bars = rows_of(team.plot.actions(), "bar")
    taken = sum(episode.agent_lengths.get(name, 0) for episode in team for name in ("scout_0", "scout_1"))
    assert sum(row["transitions"] for row in bars) == taken
    together = rows_of(team.plot.returns(by="run"), "circle")
    assert {(row["episode"], row["value"]) for row in together} == {
        (episode.id, episode.episode_return) for episode in team
    }


def test_objectives_have_panels(treasure: el.EpisodeStore) -> None:
    """Vector rewards give a panel for each objective, with its own numbers."""
    points = rows_of(treasure.plot.returns(), "circle")
    for index in range(2):
        found = {row["episode"]: row["value"] for row in points if row["panel"] == f"objective {index}"}
        assert found == {episode.id: episode.episode_return[index] for episode in treasure}
    assert len(rows_of(treasure.plot.return_histogram(), "rect")) >= 2


def test_an_episode_is_its_signals(store: el.EpisodeStore) -> None:
    """The lines of an episode are its rewards, actions and observations."""
    episode = store[2]
    lines = rows_of(episode.plot(), "line")
    by_name: dict[str, list[float]] = {}
    for row in lines:
        by_name.setdefault(row["signal"], []).append(row["value"])
    assert by_name["reward"] == episode.rewards.tolist()
    *actions, held = by_name["action"]
    assert actions == episode.actions.tolist() and held == actions[-1]
    for index in range(2):
        assert by_name[f"observation[{index}]"] == episode.observations[:, index].tolist()
    assert episode.id in told(episode.plot())
    only = rows_of(episode.plot(["observation[1]", "reward"]), "line")
    assert {row["signal"] for row in only} == {"observation[1]", "reward"}


def test_the_last_action_lasts_a_step_and_ticks_are_whole_steps(tmp_path: Path) -> None:
    """Of an episode of two steps both actions are as wide, and no tick stands between two steps."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        episode = writer.begin([0, 0])
        for action in (0, 1):
            episode.append(action, 1.0, [0, 0])
        episode.end()
    chart = store.refresh()[0].plot()
    actions = [row for row in rows_of(chart, "line") if row["signal"] == "action"]
    assert [(row["t"], row["value"]) for row in actions] == [(0, 0), (1, 1), (2, 1)]
    for panel in chart.to_dict()["vconcat"]:
        assert panel["encoding"]["x"]["scale"]["domain"] == [0, 2]
        assert panel["encoding"]["x"]["axis"]["values"] == [0, 1, 2]


def test_a_single_reason_has_a_legend(tmp_path: Path) -> None:
    """The colour of a reason says something, where all episodes ended so too."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        for _ in range(2):
            episode = writer.begin([0, 0])
            episode.append(0, 1.0, [0, 0])
            episode.end()
    plot = store.refresh().plot
    for chart in (plot.lengths(by="end_reason"), plot.returns(by="end_reason")):
        assert '"legend": {"title": "end reason"}' in json.dumps(chart.to_dict())
    assert '"legend": {"title"' not in json.dumps(plot.returns().to_dict())


def test_each_element_of_an_episode_has_a_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements do not lie over each other, unless there are too many for panels of their own."""
    episode = cartpole(tmp_path / "store")[0]

    def panels() -> list[list[str]]:
        specification = episode.plot().to_dict()
        data = [specification["datasets"][panel["data"]["name"]] for panel in specification["vconcat"]]
        return [sorted({row["signal"] for row in rows}) for rows in data]

    elements = [f"observation[{index}]" for index in range(4)]
    assert panels() == [["reward"], ["action"], *([name] for name in elements)]
    monkeypatch.setattr(episode_chart, "MOST_PANELS", 5)
    assert panels() == [["reward"], ["action"], elements]


@pytest.mark.further
def test_many_numbers_are_a_heat_map(tmp_path: Path) -> None:
    """A column of many numbers has a row for each, named by the card, and keeps a spike and a NaN."""
    values = np.random.default_rng(0).normal(size=(3001, 12)).astype(np.float32)
    values[:, 3], values[1234, 5], values[2000, 7] = 1.0, 99.0, np.nan
    store = el.create(
        tmp_path / "wide", observation_space=Box(-np.inf, np.inf, (12,)), action_space=Discrete(2)
    )
    with store.writer() as writer:
        writer.write_episode(
            observations=values,
            actions=np.zeros(3000, int),
            rewards=np.zeros(3000),
            terminations=True,
            truncations=False,
        )
    store.card = {"names": {"observation": [f"joint {index}" for index in range(12)]}}
    episode = store.refresh()[0]
    cells = rows_of(episode.plot(), "rect")
    assert len(cells) <= episode_chart._MOST_CELLS
    by_row = {f"joint {index} [{index}]": index for index in range(12)}
    assert list(dict.fromkeys(cell["row"] for cell in cells)) == list(by_row)
    for cell in cells:
        index = by_row[cell["row"]]
        recorded = float(values[cell["step"], index])
        assert (cell["value"] is None and math.isnan(recorded)) or cell["value"] == recorded
        assert cell["t"] <= cell["step"] <= cell["until"]
    spikes = [cell for cell in cells if cell["value"] == 99]
    assert [(cell["row"], cell["step"], cell["share"]) for cell in spikes] == [("joint 5 [5]", 1234, 1.0)]
    missing = [cell for cell in cells if cell["share"] is None]
    assert [(cell["row"], cell["step"]) for cell in missing] == [("joint 7 [7]", 2000)]
    assert {cell["share"] for cell in cells if cell["row"] == "joint 3 [3]"} == {0.5}
    assert "each row of a heat map" in told(episode.plot())
    chosen = episode.plot(["observation[8:11]"])
    lines = rows_of(chosen, "line")
    assert sorted({row["signal"] for row in lines}) == ["observation[10]", "observation[8]", "observation[9]"]
    titles = [panel["encoding"]["y"]["title"] for panel in chosen.to_dict()["vconcat"]]
    assert titles == ["joint 8", "joint 9", "joint 10"]
    overlaid = store.plot.overlay(["observation[8]"]).to_dict()
    assert '"title": "observation joint 8"' in json.dumps(overlaid)
    with pytest.raises(el.errors.InvalidArgumentError, match=r"has no signal 'observation\[12\]'"):
        episode.plot(["observation[12]"])


def test_names_of_features_of_lerobot() -> None:
    """The names that an import from LeRobot left are those of the columns, if there are as many."""
    names = {"observation.state": {"motors": ["x", "y"]}, "action": ["a", "b", "c"]}
    card = CardEntries(lerobot={"names": names})
    assert card.dimension_names("observation.state", 2) == ("x", "y")
    assert card.dimension_names("observation", 2) == ("x", "y")
    assert card.dimension_names("action", 3) == ("a", "b", "c")
    assert card.dimension_names("action", 2) is None
    assert CardEntries(names=3, lerobot="v2").dimension_names("action", 2) is None


def test_many_discrete_actions_are_ticks(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that jumps at every step would fill its panel; a tick for each step stands at its action."""
    assert rows_of(store[2].plot(["action"]), "tick") == []
    monkeypatch.setattr(episode_chart, "_MOST_JUMPS", 2)
    ticks = rows_of(store[2].plot(["action"]), "tick")
    assert [row["value"] for row in ticks] == store[2].actions.tolist()
    assert rows_of(store[2].plot(["observation[0]"]), "tick") == []


@given(st.lists(st.floats(allow_infinity=False), min_size=1, max_size=300), st.integers(2, 40))
def test_a_long_line_keeps_its_extremes(values: list[float], most: int) -> None:
    """However a line is thinned, its smallest and largest value stay, in ascending order of steps."""
    array = np.array(values)
    kept = reduced(array, most)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(most, 2) or len(kept) == len(array) <= most
    if not np.isnan(array).all():
        assert np.nanmin(array[kept]) == np.nanmin(array)
        assert np.nanmax(array[kept]) == np.nanmax(array)


def test_a_thinned_episode_says_so(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The subtitle of a long episode tells that stretches are drawn."""
    monkeypatch.setattr(episode_chart, "MOST_STEPS", 2)
    chart = store[2].plot()
    assert "smallest and largest value" in told(chart)
    assert "smallest and largest value" not in told(store[0].plot(["reward"]))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CHARTS)
def test_charts_are_drawn(store: el.EpisodeStore, name: str) -> None:
    """Every chart is drawn by Vega, in colours of its own and with its title."""
    chart = getattr(store.plot, name)()
    assert isinstance(chart, altair.TopLevelMixin)
    seen = drawn(chart)
    inked = seen[seen[..., 3] > 0]
    coloured = (inked[:, :3].max(axis=1).astype(int) - inked[:, :3].min(axis=1)) > 60
    assert coloured.mean() > 0.005
    assert len(np.unique(inked, axis=0)) > 20
    assert chart.to_dict()["config"]["background"] == "transparent"


def test_rows_are_not_checked_one_by_one(store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a chart is made, Altair holds no data against the schema of Vega-Lite: that takes longest."""
    checked: list[str] = []
    check = schemapi.validate_jsonschema

    def noted(spec: Any, *arguments: Any, **options: Any) -> Any:
        checked.append(json.dumps(spec, default=str))
        return check(spec, *arguments, **options)

    monkeypatch.setattr(schemapi, "validate_jsonschema", noted)
    specifications = [
        chart.to_dict()
        for chart in (
            store.plot.returns(),
            store.plot.return_histogram(),
            store.plot.actions(),
            store[2].plot(),
        )
    ]
    assert all(sum(map(len, each["datasets"].values())) > 2 for each in specifications)
    assert checked
    assert [text for text in checked if '"values": [{' in text] == []


@pytest.mark.further
def test_other_stores_are_drawn(team: el.EpisodeStore, treasure: el.EpisodeStore) -> None:
    """Charts of several agents, of several objectives and of single episodes are drawn as well."""
    for chart in (team.plot.returns(), team[0].plot(), treasure.plot.returns(), treasure[0].plot()):
        seen = drawn(chart)
        assert len(np.unique(seen[seen[..., 3] > 0], axis=0)) > 20


@pytest.mark.further
def test_charts_save_themselves(store: el.EpisodeStore, tmp_path: Path) -> None:
    """PNG with a chosen ink, SVG that follows the reader's screen, and JSON come out whole."""
    chart = store.plot.returns()
    for theme, paper in (("light", 255), ("dark", 22)):
        chart.save(tmp_path / f"{theme}.png", theme=theme)
        pixels = np.array(Image.open(tmp_path / f"{theme}.png").convert("RGB"))
        assert pixels[2, 2, 0] == paper
        ink = pixels.astype(int).sum(axis=2)
        assert (ink < 150).any() if theme == "light" else (ink > 600).any()
    chart.save(tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text()
    assert "prefers-color-scheme: dark" in text
    assert "return (sum of rewards)" in text
    chart.properties(width=200).save(str(tmp_path / "chart.json"))
    assert json.loads((tmp_path / "chart.json").read_text())["width"] == 200
    with (tmp_path / "open.svg").open("w") as file:
        chart.save(file, format="svg")
    numbered = re.compile(r"clip\d+")
    assert numbered.sub("", (tmp_path / "open.svg").read_text()) == numbered.sub("", text)


@pytest.mark.further
def test_a_saved_page_needs_no_network_and_runs_nothing_of_the_store(tmp_path: Path) -> None:
    """In a browser without a network the chart is drawn, and names of runs stay texts."""
    returns = {name: [1.0, 2.0, 3.0] for name in HOSTILE}
    store = scores(tmp_path / "store", returns, **{name: name for name in HOSTILE})
    chart = store.plot.returns(by="metadata.algo")
    page_file = tmp_path / "chart.html"
    chart.save(page_file)
    assert "</script><script>alert" not in page_file.read_text()
    asked: list[str] = []
    alerts: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri())
        page.wait_for_selector("svg.marks path[aria-roledescription='circle']")
        color = page.eval_on_selector(
            "svg.marks .role-title-text text", "node => getComputedStyle(node).fill"
        )
        words = page.inner_text("body")
        browser.close()
    assert alerts == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert min(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")) > 200
    assert "script" in words


def test_hostile_names_cannot_end_a_script(tmp_path: Path) -> None:
    """No text of a store puts a tag into a specification, in whatever way it is shown."""
    store = scores(tmp_path / "store", {name: [1.0] for name in HOSTILE})
    for chart in (
        store.plot.returns(),
        store.plot.return_histogram(),
        store.plot.actions(by="run"),
        store[0].plot(),
    ):
        text = as_json(chart)
        assert not any(mark in text.lower() for mark in ("</script", "<script", "<img", "<!--"))
        assert "\\u202e" not in text


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_to_draw_is_told(tmp_path: Path, name: str) -> None:
    """An empty store and an empty choice say what to do."""
    empty = el.create(tmp_path / "empty", gymnasium.make("CartPole-v1"))
    with pytest.raises(el.errors.NothingToDrawError, match="no episodes"):
        getattr(empty.plot, name)()
    none = scores(tmp_path / "store", {"a": [1.0]}).filter("length > 99")
    with pytest.raises(el.errors.NothingToDrawError, match="wider filter"):
        getattr(none.plot, name)()


@pytest.mark.further
def test_numbers_that_no_axis_holds_are_told(tmp_path: Path) -> None:
    """NaN, infinite and huge returns are left out and counted; a store of nothing else says so."""
    store = scores(tmp_path / "store", {"a": [1.0, math.nan, math.inf, -math.inf, 1.7e308, 2.0]})
    chart = store.plot.returns()
    assert {row["value"] for row in rows_of(chart, "circle")} == {1.0, 2.0}
    assert "4 returns not drawn: NaN, infinite or beyond 1e+300" in told(chart)
    assert len(rows_of(store.plot.return_histogram(), "rect")) == 2
    assert len(drawn(store[1].plot())) > 0
    with pytest.raises(el.errors.NothingToDrawError, match="not finite"):
        store.filter("isnan(episode_return)").plot.returns()


@pytest.mark.further
def test_extreme_but_finite_returns_are_drawn(tmp_path: Path) -> None:
    """The largest numbers that are drawn do not overflow on their way."""
    store = scores(tmp_path / "store", {"a": [1e300, -1e300, 5e299] * 10})
    lines = rows_of(store.plot.returns(), "line")
    assert all(abs(row["value"]) <= 1e300 for row in lines)
    assert sum(row["episodes"] for row in rows_of(store.plot.return_histogram(), "rect")) == 30
    assert len(drawn(store.plot.return_histogram())) > 0


def test_numbers_are_those_that_charts_draw(store: el.EpisodeStore) -> None:
    """`numbers` has every episode, transition and observation once, and the curve of the chart."""
    for chart, column in (("returns", "episode_return"), ("lengths", "length")):
        rows = store.plot.numbers(chart).rows
        expected = raw(store, f"SELECT run_id, {column} FROM episodes ORDER BY run_id, episode_id")
        assert sorted(rows.select("series", "value").rows(), key=lambda row: row[0]) == expected
    curve = store.plot.numbers("learning_curve", by="run.algo", smooth=1).rows
    drawn_rows = rows_of(store.plot.learning_curve(by="run.algo", smooth=1), "line")
    assert sorted(curve["value"]) == pytest.approx(sorted(row["value"] for row in drawn_rows))
    actions = store.plot.numbers("actions").rows
    assert actions["count"].sum() == sum(len(episode) for episode in store)
    assert actions["share"].sum() == pytest.approx(1)
    visits = store.plot.numbers("visitation").rows
    assert visits["visits"].sum() == sum(len(episode) + 1 for episode in store)


def test_numbers_refuse_what_they_do_not_depend_on(store: el.EpisodeStore) -> None:
    """An unknown chart, an option without effect and a view without episodes are errors."""
    with pytest.raises(el.errors.InvalidArgumentError, match="'learning_curve'"):
        store.plot.numbers("learning")
    with pytest.raises(el.errors.InvalidArgumentError, match="smooth=1: the numbers of 'returns' do not"):
        store.plot.numbers("returns", smooth=1)
    with pytest.raises(el.errors.NothingToDrawError, match="no episodes"):
        store[:0].plot.numbers("actions")


def test_signals_of_an_episode_are_its_values(store: el.EpisodeStore) -> None:
    """`Episode.signals` has the columns that were asked for as arrays, and those of `plot` by default."""
    episode = store[3]
    (reward,) = episode.signals(["reward"])
    np.testing.assert_array_equal(reward.values, episode.rewards)
    np.testing.assert_array_equal(reward.t, np.arange(len(episode)))
    assert {signal.column for signal in episode.signals()} == {"reward", "action", "observation"}


def test_images_and_texts_have_no_visitation(tmp_path: Path) -> None:
    """What is no number is refused with a hint at what to do instead."""
    store = pictures(tmp_path / "images", np.zeros((3, 9, 9, 3), np.uint8))
    with pytest.raises(el.errors.NothingToDrawError, match=r"no visitation.*episode\.video\(\)"):
        store.plot.visitation()
    texts = el.create(tmp_path / "texts", observation_space=Text(3), action_space=Text(3))
    with texts.writer(run="t") as writer:
        writer.write_episode(
            observations=["a", "b"], actions=["c"], rewards=np.ones(1), terminations=True, truncations=False
        )
    with pytest.raises(el.errors.NothingToDrawError, match="The actions are no numbers"):
        texts.refresh().plot.actions()
    with pytest.raises(el.errors.NothingToDrawError, match="no visitation"):
        texts.plot.visitation()


def test_misspelt_names_get_the_nearest(store: el.EpisodeStore, mixed: el.EpisodeStore) -> None:
    """A column, an element, a signal or an argument that is not there is answered with what is."""
    refused: list[tuple[Any, str]] = [
        (lambda: store.plot.returns(by="metadata.algos"), "Did you mean metadata.algo"),
        (lambda: store.plot.returns(by="agent"), "single agent"),
        (lambda: store.plot.returns(over="epochs"), "'episodes', 'steps', 'time'"),
        (lambda: store.plot.return_histogram(bins=0), "from 1 to 1000"),
        (lambda: store.plot.visitation("observation[2]"), r"Did you mean observation\[[01]\]"),
        (lambda: mixed.plot.actions(column="action.7"), "Its parts are: action.0, action.1"),
        (lambda: store[0].plot(["observation[9]"]), "Its signals are: reward, action"),
        (lambda: store.plot.returns().save("chart.pdf"), "html, svg, png, json"),
        (lambda: store.plot.returns().save("chart.png", theme="blue"), "'light' or 'dark'"),
    ]
    for call, message in refused:
        with pytest.raises(el.errors.InvalidArgumentError, match=message):
            call()


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        (lambda store: store.plot.returns(by="algo"), "Did you mean metadata.algo"),
        (lambda store: store.plot.actions(by="end_raeson"), "Did you mean end_reason"),
        (lambda store: store[0].plot(["observations"]), "Did you mean observation or"),
    ],
)
def test_the_nearest_names_are_told(
    store: el.EpisodeStore, call: Callable[[el.EpisodeStore], Any], nearest: str
) -> None:
    """A part of a name, a slip and a plural lead to the name that was meant."""
    with pytest.raises(el.errors.InvalidArgumentError, match=nearest):
        call(store)


def test_damaged_episodes_are_named_and_damaged_steps_do_not_disturb(tmp_path: Path) -> None:
    """Charts of episodes need no steps; a damaged file of episodes raises the error that names it."""
    store = cartpole(tmp_path / "store")
    (file,) = (store.path / "steps").glob("*.parquet")
    file.write_bytes(b"damaged")
    opened = el.open(store.path)
    assert len(rows_of(opened.plot.returns(), "circle")) == 3
    with pytest.raises(el.errors.CorruptStoreError, match=file.name):
        opened.plot.actions()
    (file,) = (store.path / "episodes").glob("*.parquet")
    file.write_bytes(b"damaged")
    with pytest.raises(el.errors.CorruptStoreError, match=file.name):
        el.open(store.path).plot.returns()


@pytest.mark.further
def test_a_store_in_memory_is_drawn() -> None:
    """Stores that are no folder have charts as well."""
    store = el.create(
        "memory://plots", observation_space=Box(0, 1, (2,), np.float32), action_space=Discrete(2)
    )
    with store.writer(run="m") as writer:
        writer.write_episode(
            observations=np.ones((3, 2), np.float32), actions=np.ones(2, np.int64), rewards=np.ones(2),
            terminations=True, truncations=False,
        )  # fmt: skip
    store.refresh()
    assert [row["value"] for row in rows_of(store.plot.returns(), "circle")] == [2.0]
    for name in CHARTS:
        assert len(drawn(getattr(store.plot, name)())) > 0


def test_without_altair_the_error_says_what_to_install(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing package is a sentence with a command."""
    monkeypatch.setitem(sys.modules, "altair", None)
    for call in (store.plot.returns, store.plot.visitation, store[0].plot):
        with pytest.raises(el.errors.MissingPackageError, match=r"pip install 'episodelake\[explore\]'"):
            call()


def test_an_axis_ends_before_outliers_and_marks_them(tmp_path: Path) -> None:
    """By default points beyond are crosses at the edge; the other points, and nothing else, are points."""
    values = [*map(float, range(200)), 1e6, -1e6]
    plot = scores(tmp_path / "store", {"run": values}).plot
    chart, (low, high) = plot.returns(), plot.numbers("returns").ends or (0, 0)
    assert -200 < low <= 0 and 199 <= high < 400
    assert plot.numbers("returns").notes == (f"2 values beyond {low:.6g} to {high:.6g}.",)
    domains = re.findall(r'"domain": \[(-?[\d.e+]+), (-?[\d.e+]+)\]', as_json(chart))
    assert domains
    for bottom, top in domains:
        assert (float(bottom), float(top)) == pytest.approx((low, high))
    points = [row["value"] for row in rows_of(chart, "circle")]
    crosses = [row["value"] for row in rows_of(chart, "point")]
    assert sorted(points + crosses) == sorted(values)
    assert all(low <= value <= high for value in points)
    assert not any(low <= value <= high for value in crosses)
    assert {row["value"] > 0 for row in rows_of(chart, "point") if row["above"]} == {True}
    assert f"2 values beyond {low:.6g} to {high:.6g}" in as_json(chart)
    assert f'"label": "{1e6:.6g}"' in as_json(chart)
    assert len(rows_of(plot.returns(scale="linear"), "circle")) == len(values)


@pytest.mark.further
def test_a_log_axis_takes_negative_values_and_says_so(tmp_path: Path) -> None:
    """The scale is linear near 0; other scales are refused; lengths have them, too."""
    store = scores(tmp_path / "store", {"run": [-1e5, -1.0, 0.0, 1.0, 1e5]})
    for chart in (store.plot.returns(scale="log"), store.plot.lengths(over="episodes", scale="log")):
        assert '"type": "symlog"' in as_json(chart) and "y axis: logarithmic" in as_json(chart)
        assert len(rows_of(chart, "circle")) == 5
        drawn(chart)
    with pytest.raises(el.errors.InvalidArgumentError, match="scale"):
        store.plot.returns(scale="sqrt")


def test_a_clipped_axis_of_equal_values_is_whole(tmp_path: Path) -> None:
    """Where the other values are equal, nothing is clipped."""
    chart = scores(tmp_path / "store", {"run": [3.0] * 300 + [9.0]}).plot.returns()
    assert "beyond" not in as_json(chart)
    assert 9.0 in {row["value"] for row in rows_of(chart, "circle")}


@pytest.mark.further
def test_late_success_is_no_outlier(tmp_path: Path) -> None:
    """The last episodes of a training are on the axis, however few succeed."""
    store = scores(tmp_path / "store", {"run": [*np.linspace(0, 1, 985).tolist(), *([500.0] * 15)]})
    assert store.plot.numbers("returns").ends is not None
    for chart in (store.plot.returns(), store.plot.learning_curve()):
        domains = re.findall(r'"domain": \[(-?[\d.e+]+), (-?[\d.e+]+)\]', as_json(chart))
        assert all(float(high) >= 500 for _, high in domains)
    assert {row["value"] for row in rows_of(store.plot.returns(), "circle")} >= {500.0}


@pytest.mark.further
def test_specifications_are_those_of_altair(store: el.EpisodeStore) -> None:
    """`to_dict` gives what Altair itself reads again."""
    for chart in (store.plot.returns(), store.plot.return_histogram(), store[0].plot()):
        again = altair.Chart.from_dict(chart.to_dict())
        assert again.to_dict() == chart.to_dict()
