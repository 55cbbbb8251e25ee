"""Parameters of `sql`, `query` and `filter`: values that are never taken for SQL text."""

from __future__ import annotations

import datetime
import enum
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest

import episodelake as el
from effort import looped
from episodelake.testing.adapters import case

NASTY = "o'brien; drop table episodes --"


class Outcome(str, enum.Enum):  # noqa: UP042
    """An enum of texts."""

    WIN = "win"
    LONG = "length > 20"
    TABLE = "transitions"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Six episodes with a label that is SQL in part."""
    made = el.create(tmp_path_factory.mktemp("parameters") / "store", gymnasium.make("CartPole-v1"))
    with made.record(gymnasium.make("CartPole-v1")) as env:
        env.action_space.seed(0)
        for seed in range(6):
            env.reset(seed=seed)
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
    with made.writer(metadata={"label": NASTY}) as writer:
        writer.write_episode(
            observations=[[0.0] * 4] * 3, actions=[0, 1], rewards=[1.0, 1.0], terminations=[False, True],
            truncations=[False, False], metadata={"label": NASTY},
        )  # fmt: skip
    return made.refresh()


@pytest.mark.parametrize("read_only", [False, True])
def test_values_by_place_by_number_and_by_name(store: el.EpisodeStore, read_only: bool) -> None:
    """All three ways give what the value written into the text gives, in `sql` and `query`."""
    expected = store.query("select count(*) from episodes where length > 20").item()
    for text, parameters in (
        ("select count(*) from episodes where length > ?", [20]),
        ("select count(*) from episodes where length > $1", (20,)),
        ("select count(*) from episodes where length > $least", {"least": 20}),
    ):
        assert store.query(text, parameters, read_only=read_only).item() == expected
        assert store.sql(text, parameters, read_only=read_only).fetchall() == [(expected,)]
    assert 0 < expected < 7


@pytest.mark.parametrize("read_only", [False, True])
def test_parameters_may_be_of_numpy_and_paths(store: el.EpisodeStore, read_only: bool) -> None:
    """Scalars of numpy, paths and enums mean what a store keeps for them, within lists too."""
    text = "select ? + 1, ?, list_contains(?, 7), ?, ?"
    given = [np.int64(1), Path("/a/b"), [np.int8(7)], Outcome.WIN, np.datetime64("2026-01-02", "ns")]
    expected = (2, "/a/b", True, "win", datetime.datetime(2026, 1, 2))
    assert store.sql(text, given, read_only=read_only).fetchall() == [expected]
    assert store.query(text, given, read_only=read_only).rows() == [expected]
    longest = store.episodes.collect()["length"].to_numpy().max()
    assert len(store.filter("length >= $least", {"least": longest})) == len(
        store.filter(pl.col("length") >= longest)
    )
    with pytest.raises(el.errors.QueryError, match="expected them with SQL text"):
        store.filter(pl.col("length") > 1, [1])


def test_text_is_never_sql(store: el.EpisodeStore) -> None:
    """A text with quotes and statements is compared as it is."""
    for value in [NASTY, "'", '"', "", "%", "\\", "select 1", "ü😀"]:
        with case(value):
            found = store.query('select count(*) as n from episodes where "metadata.label" = ?', [value])[
                "n"
            ].item()
            assert found == len(store.filter('"metadata.label" = ?', [value])) == int(value == NASTY)


def test_macros_steps_and_next_columns_take_parameters(store: el.EpisodeStore) -> None:
    """In macros and in questions about steps."""
    for text, same in (
        ("from step_at(?) order by all", "from step_at(30) order by all"),
        (
            "select max(next_obs(?)) from transitions_with_next",
            "select max(next_obs(2)) from transitions_with_next",
        ),
    ):
        number = 30 if "step_at" in text else 2
        assert store.query(text, [number]).rows() == store.query(same).rows()
    chosen = store.filter("episode_id in (select episode_id from first_hit(abs(obs(2)) > $1))", [0.15])
    assert len(chosen) == len(
        store.filter("episode_id in (select episode_id from first_hit(abs(obs(2)) > 0.15))")
    )


def test_filters_keep_their_parameters(store: el.EpisodeStore) -> None:
    """On a view, after another filter, and for new episodes of a follower."""
    view = store.filter("length > ?", [10]).filter("number < $most", {"most": 4})
    assert len(view) == len(store.filter("length > 10 and number < 4")) > 0
    batch = next(iter(view.loader(8, follow=el.Follow())))
    assert batch["reward"].shape == (8,)
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    assert len(store.filter("started_at > ?", [moment])) == len(store)


@looped(
    ("text", "parameters"),
    [
        ("select ? + ?", [1]),
        ("select 1", [1]),
        ("select $name", {"other": 1}),
        ("select ?", 5),
        ("select ?", [object()]),
        ("select ?", None),
    ],
)
def test_wrong_parameters_are_query_errors(store: el.EpisodeStore, text: str, parameters: Any) -> None:
    """Too few, too many, unknown names, and what is no list or mapping."""
    with pytest.raises(el.errors.QueryError):
        store.query(text, parameters)
    with pytest.raises(el.errors.QueryError):
        store.filter(
            f"length > ({text.removeprefix('select ')})" if parameters != [1] else "length > ? + ?",
            parameters,
        )


def test_a_condition_stays_one_expression(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Brackets, remarks and further statements in a condition change nothing but its own meaning."""
    for text in ("length > 0) or (true", "length > 0; select 1", "true) union select 1 --"):
        with pytest.raises(el.errors.QueryError):
            store.filter(text)
    assert len(store.filter("length > 1000 -- or true")) == 0


def test_a_filter_over_episodes_looks_at_no_segment(store: el.EpisodeStore) -> None:
    """A condition that asks nothing about steps does not even read where they are."""
    fresh = el.open(store.path)
    assert len(fresh.filter("length > ?", [0])) == len(store)
    assert "pointers" not in vars(fresh.context.snapshot)


def test_deletions_and_copies_take_parameters(tmp_path: Path, store: el.EpisodeStore) -> None:
    """As filters do: by place and by name, and as a condition that carries them."""
    copy = store.copy(tmp_path / "copy", "length > ?", [2])
    lengths = [len(episode) for episode in store]
    assert [len(episode) for episode in copy] == [length for length in lengths if length > 2]
    assert copy.delete("length = $length", {"length": max(lengths)}, dry_run=True).episodes == 1
    copy.delete("length = $length", {"length": max(lengths)})
    assert [len(episode) for episode in copy] == [n for n in lengths if 2 < n < max(lengths)]
    with pytest.raises(el.errors.QueryError):
        copy.delete(pl.col("length") > 1, [1])


def test_a_member_of_an_enumeration_is_its_text(store: el.EpisodeStore) -> None:
    """As a condition, and as the name of a choice."""
    assert len(store.filter(Outcome.LONG)) == len(store.filter("length > 20"))
    pytest.importorskip("pandas")
    table = store.to.pandas(table=Outcome.TABLE)
    assert len(table) == len(store.to.pandas(table="transitions"))
