"""Columns of a user's own under every name that SQL, macros and batches use: all readers keep working."""

from __future__ import annotations

import json
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import episodelake as el
from episodelake.explorer.charts import OVERVIEWS, episode_spec, overview_spec
from episodelake.explorer.listing import POSITION, Choice, EpisodeList, SeriesColors
from episodelake.explorer.moments import moment_of
from episodelake.explorer.queries import Queries
from episodelake.readers.loading.units import Deltas, NSteps, Transitions
from episodelake.readers.loading.windows import Episodes, Windows
from episodelake.readers.sql.macros import macros_of
from episodelake.store.names import RESERVED
from episodelake.store.schema import StepSchema
from episodelake.terminal.app import app
from plain_returns import returns_to_go

_NAME = re.compile(r"[a-z]\w*")


def dangerous_names(store: el.EpisodeStore) -> list[str]:
    """Every keyword of DuckDB that needs quotes, and every word of the macros: parameters, parts, aliases."""
    connection = duckdb.connect()
    kept = "select keyword_name from duckdb_keywords() where keyword_category <> 'unreserved'"
    keywords = [row[0] for row in connection.sql(kept).fetchall()]
    schema = store.context.snapshot.schema
    macros = macros_of(schema, store.steps.collect_schema().names())
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
    return [name for name in found if name not in taken and not name.startswith("next_")]


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

    def callback(step: el.types.StepData) -> dict[str, float]:
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


@pytest.mark.parametrize("read_only", [False, pytest.param(True, marks=pytest.mark.further)])
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
        ask("select max(next_obs(0)) from transitions_with_next").item()
        == ask("select max(obs(0)) from steps where t > 0").item()
    )


@pytest.mark.further
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


@pytest.mark.further
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
@pytest.mark.further
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
            with pytest.raises(el.errors.InvalidArgumentError, match="cannot be the name of"):
                writer.begin(np.zeros(4, np.float32), extra={name: 1.0})
    el.collect(gymnasium.make("CartPole-v1"), None, made, episodes=1, seed=0)
    keys = made.refresh().steps.select("episode_id", "t")
    for name in RESERVED - {"episode_id", "t"}:
        with pytest.raises(el.errors.InvalidArgumentError, match="cannot be the name of an annotation"):
            made.annotate(keys.with_columns(pl.lit(1.0).alias(name)), on=("episode_id", "t"))
    assert len(made.refresh()) == 1 and made.annotations.is_empty()


def test_reserved_names_hold_every_key_of_every_batch() -> None:
    """A kind of unit that gets another key of its own must have it in the list."""
    kinds = [Transitions(), NSteps(2, gamma=0.9), Windows(2), Deltas({"reward": [0]}), Episodes()]
    keys = {key for units in kinds for key in (*units.default_keys, *units.own_keys)}
    assert keys <= RESERVED


def test_columns_of_earlier_versions_do_not_shadow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store that has a user's column `next_observation`, SQL and loaders give the built-in one."""
    monkeypatch.setattr(StepSchema, "check_extra", lambda schema, extra: None)
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


def plain_store(path: Path) -> el.EpisodeStore:
    """A store whose steps have a column of each kind: `goal` was recorded, `mark` is an annotation."""
    box = gymnasium.spaces.Box(-9, 9, (1,), np.float64)
    store = el.create(path, observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    with store.writer() as writer:
        writer.write_episode(**arrays(goal=[1.0, 2.0, 3.0]))
    steps = store.refresh().steps.select("episode_id", "t", mark=pl.col("t") * 0.5)
    store.annotate(steps.collect(), on=("episode_id", "t"))
    return store


def arrays(**extra: object) -> dict[str, Any]:
    """The arguments of an episode of two transitions."""
    outcome = {"actions": [0, 1], "rewards": [1.0, 2.0], "terminations": True, "truncations": False}
    return {"observations": np.zeros((3, 1)), **outcome, "extra": extra}


def by_steps(store: el.EpisodeStore, name: str) -> None:
    """Record a column step by step."""
    with store.writer() as writer:
        episode = writer.begin(np.zeros(1))
        episode.append(0, 1.0, np.zeros(1), extra={name: 7.0})


def by_arrays(store: el.EpisodeStore, name: str) -> None:
    """Record a column of a whole episode."""
    with store.writer() as writer:
        writer.write_episode(**arrays(**{name: [7.0] * 3}))


def by_table(store: el.EpisodeStore, name: str) -> None:
    """Record a column of an Arrow table."""
    rows = {
        "episode": [0, 0],
        "observation": [[0.0], [0.0]],
        "action": [0, None],
        "reward": [1.0, None],
        "terminated": [True, None],
        "truncated": [False, None],
        name: [7.0, 7.0],
    }
    with store.writer() as writer:
        writer.write_episodes(pa.table(rows))


def by_callback(store: el.EpisodeStore, name: str) -> None:
    """Record what a callback adds."""

    class Env(gymnasium.Env):
        observation_space, action_space = store.observation_space, store.action_space

        def reset(self, **options: Any) -> Any:
            return np.zeros(1), {}

        def step(self, action: Any) -> Any:
            return np.zeros(1), 1.0, True, False, {}

    with store.record(Env(), step_callback=lambda step: {name: 7.0}) as env:
        env.reset()
        env.step(0)


def by_annotation(store: el.EpisodeStore, name: str) -> None:
    """Annotate steps."""
    keys = store.steps.select("episode_id", "t", pl.lit(7.0).alias(name) if name != "t" else pl.lit(7.0))
    store.annotate(keys.collect(), on=("episode_id", "t"))


def by_renamed_annotation(store: el.EpisodeStore, name: str) -> None:
    """Give an annotation another name."""
    store.rename({"mark": name})


def by_renamed_column(store: el.EpisodeStore, name: str) -> None:
    """Give a recorded column another name."""
    store.rename({"goal": name})


def by_import(store: el.EpisodeStore, name: str) -> None:
    """Import a table with a column of this name."""
    rows = {"id": [0, 0], "seen": [0.0, 0.0], "act": [0, 1], "r": [1.0, 1.0], "own": [7.0, 7.0]}
    mapping = el.ColumnMapping(
        episode="id", observation=["seen"], action="act", reward="r", extra={name: "own"}
    )
    el.import_dataset(pl.DataFrame(rows), into=store, mapping=mapping)


RECORDING = [by_steps, by_arrays, by_table, by_callback, by_import]
WAYS = [*RECORDING, by_annotation, by_renamed_annotation, by_renamed_column]
THERE = ["reward", "Goal", "goal", "MARK", "mark", "span", "next_goal", "next_observation", "_own"]


@pytest.mark.sample
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", THERE)
def test_no_column_takes_the_name_of_another(tmp_path: Path, way: Any, name: str) -> None:
    """Whichever kind of column has a name, no other kind gets it, and the free name in the message works."""
    store = plain_store(tmp_path / "store")
    # A rename gives up its own name, so that it may write it otherwise.
    again = {
        "goal": [*RECORDING, by_renamed_column],
        "Goal": RECORDING,
        "mark": [by_annotation, by_renamed_annotation],
        "MARK": [by_renamed_annotation],
        "reward": [by_table],
    }
    if way in again.get(name, []) or (name.islower(), way) == (False, by_import):
        pytest.skip("the same column again, or another writing of it, which the JSON column takes")
    before = store.version
    with pytest.raises(el.errors.InvalidArgumentError, match=r"cannot be the name of|own") as refused:
        way(store, name)
    assert store.refresh().version == before
    free = re.search(r"such as '(\w+)'", str(refused.value))
    if free is not None:
        way(store, free[1])
        assert free[1] in store.refresh().steps.collect_schema().names()
    assert store[0].extra.get("goal", np.zeros(0)).tolist() in ([1.0, 2.0, 3.0], [])


@pytest.mark.parametrize("name", ["goal", "mark"])
def test_own_columns_have_a_next_value(tmp_path: Path, name: str) -> None:
    """Recorded or annotated: in SQL, Polars, loaders and exports, with the value of the last row."""
    store = plain_store(tmp_path / "store")
    values = {**store[0].extra, **store[0].step_annotations}[name].tolist()
    for text in (
        f"select next_{name} from transitions_of('{store[0].id}') order by t",
        f"select next_{name} from transitions_with_next order by t",
        f"select next_{name} from transitions_of('{store[0].id}') order by t",
    ):
        assert store.query(text)[f"next_{name}"].to_list() == values[1:], text
    assert store.transitions_with_next.collect()[f"next_{name}"].to_list() == values[1:]
    (batch,) = store.loader(9, columns=[name, f"next_{name}"])
    assert batch[name].tolist() == values[:-1] and batch[f"next_{name}"].tolist() == values[1:]


def test_drawn_batches_keep_their_own_keys(tmp_path: Path) -> None:
    """A column `weight` or `unit` is loaded as it is, and refused beside the weights of priorities."""
    store = plain_store(tmp_path / "store")
    for name in ("weight", "unit"):
        with store.writer() as writer:
            writer.write_episode(**arrays(**{name: [70.0, 80.0, 90.0]}))
        (batch,) = store.refresh()[-1:].loader(9, columns=[name])
        assert batch[name].tolist() == [70.0, 80.0]
        for follow in (None, el.Follow()):
            with pytest.raises(el.errors.InvalidArgumentError, match=rf"rename\({{'{name}': '{name}_2'}}\)"):
                store.loader(9, columns=["reward", name], weights=el.Prioritized(), follow=follow)


def test_columns_are_renamed(tmp_path: Path) -> None:
    """Recorded ones with what is nested and in JSON, and annotations: values stay, and old versions."""
    box = gymnasium.spaces.Box(-9, 9, (1,), np.float64)
    store = el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    for values in ([1.0, 2.0, 3.0], ["a", {"deep": 1}, 2**70]):
        with store.writer() as writer:
            writer.write_episode(
                **arrays(goal=values, other=[{"x": 1}] * 3), infos=[{"cost": v, "kept": v} for v in values]
            )
    steps = store.refresh().steps.select("episode_id", "t", mark=pl.col("t") * 0.5).collect()
    store.annotate(steps, on=("episode_id", "t"))
    store.annotate(store.episodes.select("episode_id", grade=pl.col("length") * 2.0))
    version = store.version

    def seen(shown: el.EpisodeStore, names: dict[str, str]) -> list[Any]:
        def renamed(mapping: Any) -> dict[str, Any]:
            return {names.get(key, key): str(value) for key, value in mapping.items()}

        return [
            [*map(renamed, (e.extra, e.step_annotations, e.annotations)), [renamed(info) for info in e.infos]]
            for e in shown
        ]

    before = seen(store, {})
    store.rename(
        {"goal": "target", "other": "else", "info.cost": "info.price", "mark": "line", "grade": "level"}
    )
    back = {"target": "goal", "else": "other", "price": "cost", "line": "mark", "level": "grade"}
    assert seen(store, back) == before and seen(el.open(store.path), back) == before
    assert seen(el.open(store.path, version=version), {}) == before
    assert not store.verify().faults
    names = {*store[0].extra, *store[0].step_annotations, *store[0].annotations, *store[0].infos[0]}
    assert names == {"target", "else", "line", "level", "price", "kept"}
    with pytest.raises(el.errors.InvalidArgumentError, match=r"no column 'nothing'.*target"):
        store.rename({"nothing": "something"})


def test_recorded_columns_are_dropped(tmp_path: Path) -> None:
    """Dropped columns are gone from episodes and files, with what is nested or in JSON; the rest stays."""
    box = gymnasium.spaces.Box(-9, 9, (1,), np.float64)
    store = el.create(tmp_path / "store", observation_space=box, action_space=gymnasium.spaces.Discrete(2))
    for values in ([1.0, 2.0, 3.0], ["secret", {"secret": 1}, 2**70], [{"x": "secret"}] * 3):
        with store.writer() as writer:
            infos = [{"cost": v, "kept": t} for t, v in enumerate(values)]
            writer.write_episode(**arrays(goal=values, mine=[1.0] * 3), infos=infos)
    store.refresh()
    steps = store.steps.select("episode_id", "t", mark=pl.col("t") * 0.5).collect()
    store.annotate(steps, on=("episode_id", "t"))
    version, before = store.version, [episode.infos for episode in store]
    for name, words in {
        "reward": "always stay",
        "mark": "drop_annotation",
        "goals": "goal",
        "cost": "info",
    }.items():
        with pytest.raises(el.errors.InvalidArgumentError, match=words):
            store.drop_columns(name)
    for wrong in ((), (["goal"],)):
        with pytest.raises(el.errors.InvalidArgumentError, match="expected names"):
            store.drop_columns(*wrong)
    assert store.refresh().version == version
    store.drop_columns("goal", "info.cost")
    for shown in (store, el.open(store.path)):
        assert [set(episode.extra) for episode in shown] == [{"mine"}] * 3
        assert [list(episode.infos) for episode in shown] == [[{"kept": t} for t in range(3)]] * 3
        assert all(episode.step_annotations["mark"].tolist() == [0.0, 0.5, 1.0] for episode in shown)
    assert [episode.infos for episode in el.open(store.path, version=version)] == before
    assert not store.verify().faults
    store.vacuum(timedelta(0))
    files = duckdb.sql(f"from read_parquet('{store.path}/steps/*.parquet', union_by_name=true)")
    assert files.fetchall() and "secret" not in str(files.fetchall())
    with store.writer() as writer:
        writer.write_episode(**arrays(goal=[5.0] * 3))
    assert store.refresh()[-1].extra["goal"].tolist() == [5.0] * 3


@pytest.mark.parametrize("kind", ["recorded", "recorded of two types", "steps", "episodes"])
def test_names_are_exchanged(tmp_path: Path, kind: str) -> None:
    """`rename({"a": "b", "b": "a"})`: each column has the other's values, in every reader."""
    store = plain_store(tmp_path / "store")
    texts = "of two types" in kind
    for episode in range(2):
        with store.writer() as writer:
            own = {"a": [1.0 + episode] * 3, "b": (["x", "y", "z"] if texts else [7.0, 8.0, 9.0])}
            writer.write_episode(**arrays(**own if kind.startswith("recorded") else {}))
    store.refresh()
    if kind == "steps":
        store.annotate(
            store.steps.select("episode_id", "t", a=pl.col("t") * 0.5, b=pl.col("t") + 1).collect(),
            on=("episode_id", "t"),
        )
    elif kind == "episodes":
        store.annotate(store.episodes.select("episode_id", a=pl.col("length") * 0.5, b=pl.lit("x")))

    def seen(a: str, b: str) -> list[Any]:
        values = [{**e.extra, **e.step_annotations, **e.annotations} for e in el.open(store.path)[-2:]]
        table = "episodes" if kind == "episodes" else "steps"
        key = "episode_id" if kind == "episodes" else "episode_id, t"
        return [
            [[str(value[name]) for name in (a, b)] for value in values],
            store.query(f"select {a}::varchar x, {b}::varchar y from {table} order by {key}").rows(),
            getattr(store, table).select(a, b).collect().rows(),
        ]

    before = seen("a", "b")
    if texts:
        with pytest.raises(
            el.errors.InvalidArgumentError, match=r"'b' cannot be .*a column that was recorded .* has it"
        ):
            store.rename({"a": "b", "b": "a"})
        assert seen("a", "b") == before and not store.verify().faults
        return
    store.rename({"a": "b", "b": "a"})
    assert seen("b", "a") == before and not store.verify().faults
    with pytest.raises(el.errors.InvalidArgumentError, match=r"no column 'aa' to rename\. Did you mean a\?"):
        store.rename({"aa": "c"})


def test_a_hidden_column_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a store of earlier versions, in which an annotation hides what was recorded under its name."""
    store = plain_store(tmp_path / "store")
    monkeypatch.setattr(StepSchema, "check_extra", lambda schema, extra: None)
    with store.writer() as writer:
        writer.write_episode(**arrays(mark=[7.0, 8.0, 9.0]))

    def shown(name: str) -> list[float]:
        return store.query(f"select {name} from steps order by {name}")[name].drop_nulls().to_list()

    assert store.refresh()[1].extra["mark"].tolist() == [7, 8, 9] and shown("mark") == [0, 0.5, 1]
    store.rename({"mark": "line"})
    assert shown("mark") == [7, 8, 9] and shown("line") == [0, 0.5, 1]
