"""Columns of a user's own under every name that SQL, macros and batches use: all readers keep working."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import episodelake as el
from episodelake.explorer.charts import OVERVIEWS, episode_spec, overview_spec
from episodelake.explorer.colors import SeriesColors
from episodelake.explorer.listing import POSITION, Choice, EpisodeList
from episodelake.explorer.moments import moment_of
from episodelake.explorer.queries import Queries
from episodelake.readers.loading.units.deltas import Deltas
from episodelake.readers.loading.units.n_steps import NSteps
from episodelake.readers.loading.units.transitions import Transitions
from episodelake.readers.loading.units.whole_episodes import WholeEpisodes
from episodelake.readers.loading.units.windows import Windows
from episodelake.readers.sql.macros import macros_of
from episodelake.store.dynamic import column_groups as families
from episodelake.store.reserved import RESERVED
from episodelake.terminal.app import app
from plain_returns import returns_to_go

_NAME = re.compile(r"[a-z]\w*")


def dangerous_names(store: el.EpisodeStore) -> list[str]:
    """Every keyword of DuckDB that needs quotes, and every word of the macros: parameters, parts, aliases."""
    connection = duckdb.connect()
    kept = "select keyword_name from duckdb_keywords() where keyword_category <> 'unreserved'"
    keywords = [row[0] for row in connection.sql(kept).fetchall()]
    schema = store.context.snapshot.schema
    macros = macros_of(schema, store.steps.collect_schema().names(), "SELECT episode_id FROM episodes")
    words = {word for macro in macros for word in _NAME.findall(f"{macro.signature} {macro.body}".casefold())}
    views = [
        "runs",
        "episodes",
        "steps",
        "transitions",
        "transitions_with_next",
        "added",
        "files",
        "place",
        "position",
    ]
    found = dict.fromkeys([*views, *(macro.name for macro in macros), *sorted(words), *keywords])
    taken = {*RESERVED, *store.steps.collect_schema().names(), *store.episodes.collect_schema().names()}
    return [name for name in found if name not in taken]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names, by which columns are made."""
    plain = el.create(tmp_path_factory.mktemp("plain") / "store", gymnasium.make("CartPole-v1"))
    return dangerous_names(plain)


@pytest.fixture(scope="module")
def store(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """A store whose steps have the names from a callback, some as annotations; episodes have all."""
    made = el.create(tmp_path_factory.mktemp("names") / "store", gymnasium.make("CartPole-v1"))
    annotated = ["added", "bins", "select", "steps", "value"]
    recorded = [name for name in names if name not in annotated]

    def callback(step: el.StepData) -> dict[str, float]:
        return {name: float(place) for place, name in enumerate(recorded)}

    el.collect(gymnasium.make("CartPole-v1"), None, made, episodes=3, seed=0, step_callback=callback)
    made.refresh()
    of_steps = [pl.lit(float(place)).alias(name) for place, name in enumerate(annotated)]
    made.annotate(made.steps.select("episode_id", "t", *of_steps), on=("episode_id", "t"))
    of_episodes = [pl.lit(float(place)).alias(name) for place, name in enumerate(names)]
    made.annotate(made.episodes.select("episode_id", *of_episodes))
    return made


def test_many_names_are_tried(names: list[str], store: el.EpisodeStore) -> None:
    """The names hold those that once broke all SQL, and the store has each as a column."""
    assert {"value", "gamma", "bins", "condition", "step", "place", "episodes", "select", "files"} <= set(
        names
    )
    columns = {*store.steps.collect_schema().names(), *store.episodes.collect_schema().names()}
    assert set(names) <= columns and len(names) > 200


@pytest.mark.parametrize("read_only", [False, True])
def test_queries_and_macros_answer(store: el.EpisodeStore, read_only: bool) -> None:
    """Each view and macro, and each column under its quoted name; returns as a loop computes them."""

    def ask(text: str) -> pl.DataFrame:
        return store.query(text, read_only=read_only)

    for name in ("runs", "episodes", "steps", "transitions", "transitions_with_next"):
        assert ask(f"from {name}").height
    for call in (
        "discounted_return(gamma := 0.9)",
        "moving_return(episodes := 2)",
        "episode_at(-1)",
        "step_at(3)",
        "first_hit(abs(obs(2)) > 0.1)",
        'first_hit("condition" > 0)',
        'step_percentiles("value")',
        'step_histogram("bins", bins := 3)',
        "action_histogram()",
        f"transitions_of('{store[0].id}')",
    ):
        assert ask(f"from {call}").height, call
    for episode in store:
        found = ask(f"from returns_to_go(gamma := 0.9) where episode_id = '{episode.id}' order by t")
        assert np.allclose(found["return_to_go"], returns_to_go(episode.rewards, 0.9))
    assert (
        ask("select max(next_obs(0)) from transitions").item()
        == ask("select max(obs(0)) from steps where t > 0").item()
    )


def test_every_column_is_read_by_its_name(store: el.EpisodeStore) -> None:
    """SQL and Polars give each column's own value, not that of something with the same name."""
    for table, frame in (("steps", store.steps), ("episodes", store.episodes)):
        columns = [name for name, kind in frame.collect_schema().items() if kind == pl.Float64]
        quoted = ", ".join(f'min("{name}") as "{name}"' for name in columns)
        assert (
            store.query(f"select {quoted} from {table}").rows()
            == frame.select(pl.min(*columns)).collect().rows()
        )
        assert all(
            store.query(f'select min("{name}") from {table}').item() is not None for name in columns[-40:]
        )


def test_filters_loaders_and_plots_answer(store: el.EpisodeStore, tmp_path: Path) -> None:
    """What reads by name goes on as in a plain store."""
    assert len(store.filter('"gamma" is null or length > 0')) == 3
    assert len(store.filter(pl.col("length") > 0)) == 3
    assert len(store.filter("episode_id in (select episode_id from first_hit(t > 2))")) == 3
    (batch,) = store.loader(999, columns=["condition", "where", "gamma"])
    assert [float(batch[name][0]) for name in batch] == [float(store[0].extra[name][0]) for name in batch]
    for chart in (store.plot.returns(), store.plot.lengths(), store[0].plot()):
        chart.save(tmp_path / "chart.json")
    assert store[0]._repr_html_() and store._repr_html_()
    assert store.stats(columns=["value"])


def test_the_command_line_answers(store: el.EpisodeStore) -> None:
    """`info`, `ls`, `show`, `stats` and `sql` of such a store."""
    path = str(store.path)
    for words in (
        ["info", path, "--json"],
        ["ls", path, "--json"],
        ["show", path, "0"],
        ["stats", path, "-c", "value"],
        ["sql", path, "select count(*) as n from returns_to_go()", "--json"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.output)
    assert json.loads(result.stdout)[0]["n"] == sum(map(len, store))


@pytest.mark.parametrize("together", [24, pytest.param(1, marks=pytest.mark.further)])
def test_the_explorer_answers(store: el.EpisodeStore, names: list[str], together: int) -> None:
    """Its list, moments, charts and queries, with each column as condition and value, and many as order."""
    episodes, queries = EpisodeList(store), Queries(store)
    assert set(names) <= set(episodes.columns)
    rows = episodes.rows(episodes.positions(Choice(sort="length")))
    quoted = ", ".join(f'"{name}"' for name in names)
    (values,) = store.sql(f"select distinct {quoted} from episodes").fetchall()
    found = dict(zip(names, values, strict=True))
    assert all({row[name] for row in rows} == {value} for name, value in found.items())
    conditions = [f'"{name}" = {value}' for name, value in found.items()]
    for first in range(0, len(names), together):
        choice = Choice((" and ".join(conditions[first : first + together]),), sort=names[first])
        assert len(episodes.positions(choice)) == len(store.sql(choice.sql).fetchall()) == 3, choice
    assert sorted(row[POSITION] for row in rows) == [0, 1, 2]
    episode = store[0]
    shown = moment_of(episode, 0).others
    own = {**episode.extra, **episode.step_annotations}
    assert set(names) <= set(shown)
    assert {name: float(shown[name]) for name in names} == {name: own[name][0] for name in names}
    assert all(overview_spec(name, store, SeriesColors()) for name in OVERVIEWS) and episode_spec(episode)
    for table, count in (("steps", sum(map(len, store)) + 3), ("episodes", 3)):
        found = queries.run(f"select * from {table}", threading.Event(), 999).table
        assert found.num_rows == count and set(names) <= set(found.column_names)
    queries.close()


def test_reserved_names_are_refused(tmp_path: Path) -> None:
    """By writers and by annotations of steps, in every case, before anything is stored."""
    made = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    with made.writer() as writer:
        for name in (*RESERVED, *map(str.upper, RESERVED)):
            with pytest.raises(el.InvalidArgumentError, match="cannot be the name of"):
                writer.begin(np.zeros(4, np.float32), extra={name: 1.0})
    el.collect(gymnasium.make("CartPole-v1"), None, made, episodes=1, seed=0)
    keys = made.refresh().steps.select("episode_id", "t")
    for name in RESERVED - {"episode_id", "t"}:
        with pytest.raises(el.InvalidArgumentError, match="cannot be the name of an annotation"):
            made.annotate(keys.with_columns(pl.lit(1.0).alias(name)), on=("episode_id", "t"))
    assert len(made.refresh()) == 1 and made.annotations.is_empty()


def test_reserved_names_hold_every_key_of_every_batch() -> None:
    """A kind of unit that gets another key of its own must have it in the list."""
    kinds = [Transitions(), NSteps(2, gamma=0.9), Windows(2), Deltas({"reward": [0]}), WholeEpisodes()]
    keys = {key for units in kinds for key in (*units.default_keys, *units.own_keys)}
    assert keys <= RESERVED


def test_columns_of_earlier_versions_do_not_shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store that has a user's column `next_observation`, SQL and loaders give the built-in one."""
    monkeypatch.setattr(families, "RESERVED", frozenset())
    store = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    shadows = {"next_observation": [-1.0] * 4, "episode": 7.0, "end_reason": 9, "span": 3.0}
    el.collect(
        gymnasium.make("CartPole-v1"), None, store, episodes=2, seed=0, step_callback=lambda step: shadows
    )
    store.refresh()
    truth = store[0].observations[1].tolist()
    for text in (
        "select next_observation from transitions_with_next limit 1",
        f"select next_observation from transitions_of('{store[0].id}') limit 1",
    ):
        assert store.query(text).item().to_list() == truth
    assert store.query("select next_obs(1) from transitions_with_next limit 1").item() == truth[1]
    assert store.transitions_with_next.select("next_observation").collect().item(0, 0).to_list() == truth
    (batch,) = store.loader(999, columns=["next_observation", "episode", "end_reason"])
    assert batch["next_observation"][0].tolist() == truth and set(batch["episode"].tolist()) == {0, 1}
    assert store[0].extra["episode"].tolist() == [7.0] * (len(store[0]) + 1)
    assert store.query("from returns_to_go()").height == sum(map(len, store))
