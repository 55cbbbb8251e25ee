"""Dynamic columns across batches, segments and runs: kinds that meet, names that clash, many keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el

SPACES: dict[str, Any] = {
    "observation_space": spaces.Box(-1, 1, (2,), np.float32),
    "action_space": spaces.Discrete(2),
}
ZERO = np.zeros(2, np.float32)


def write(
    writer: el.EpisodeWriter, infos: list[dict[str, Any]], extras: list[dict[str, Any]] | None = None
) -> str:
    """Write one episode with these infos (and user columns), one per observation."""
    extras = extras or [{}] * len(infos)
    episode = writer.begin(ZERO, infos[0], extra=extras[0])
    for info, extra in zip(infos[1:], extras[1:], strict=True):
        episode.append(0, 1.0, ZERO, info=info, extra=extra)
    return episode.end().episode_id


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return one == other or one != one


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store."""
    return el.create(tmp_path / "store", **SPACES)


def test_more_than_thirty_two_columns_are_seen_by_sql(store: el.EpisodeStore) -> None:
    """SQL, Polars and episodes agree on a store with far more info columns than usual."""
    infos = [{f"k{key:02d}": key + step for key in range(60)} for step in range(3)]
    with store.writer() as writer:
        write(writer, infos)
    store.refresh()
    assert store.sql('select "info.k59" from steps order by t').fetchall() == [(59,), (60,), (61,)]
    assert store.steps.collect()["info.k59"].to_list() == [59, 60, 61]
    assert store[0].infos == infos


@pytest.mark.parametrize("name", ["number", "kind", "row_start", "segment", "Observations"])
def test_user_columns_may_have_the_journals_names(store: el.EpisodeStore, name: str) -> None:
    """Names that only the journal or another table uses are free for user columns."""
    with store.writer() as writer:
        write(writer, [{}, {}], [{name: 1}, {name: 2}])
    assert store.refresh()[0].extra[name].tolist() == [1, 2]


@pytest.mark.parametrize("name", ["metadata", "Info", "policy", "reward", "T", "_json", "_kind", "agent_id"])
def test_user_columns_with_a_meaning_are_refused(store: el.EpisodeStore, name: str) -> None:
    """A name that a steps column or a family has is refused, ignoring case, and the writer goes on."""
    with store.writer() as writer:
        with pytest.raises(el.errors.InvalidArgumentError, match=name):
            writer.begin(ZERO, extra={name: {"x": 1}})
        write(writer, [{}, {}])
    assert len(store.refresh()) == 1


@pytest.mark.further
def test_kinds_that_change_between_segments_and_runs_come_back(store: el.EpisodeStore) -> None:
    """A key that is int, float, text, array and missing in turn, over segments and runs, is never lost."""
    turns: list[Any] = [
        1,
        2.5,
        "three",
        np.arange(4, dtype=np.int8),
        [1, 2],
        None,
        True,
        2**60,
        {"deep": 1.5},
    ]
    ids = {}
    for first in range(len(turns)):
        with store.writer(run=f"r{first}") as writer:
            for value in turns[first:] + turns[:first]:
                infos = [{"x": value}, {}, {"x": value, "y": first}]
                ids[write(writer, infos)] = infos
                writer.seal()
    store.refresh()
    assert len(store) == len(ids)
    assert all(same(store[episode_id].infos, infos) for episode_id, infos in ids.items())


def test_two_live_runs_that_disagree_about_a_kind(store: el.EpisodeStore) -> None:
    """Two writers commit a key that is new to both under different kinds; both get their values back."""
    with store.writer() as one, store.writer() as two:
        first = write(one, [{"x": 1.5}, {"x": 2.5}])
        second = write(two, [{"x": "a"}, {"x": "b"}])
        third = write(two, [{"X": 7}, {"x": 8}])
        one.seal()
    store.refresh()
    assert store[first].infos == [{"x": 1.5}, {"x": 2.5}]
    assert store[second].infos == [{"x": "a"}, {"x": "b"}]
    assert same(store[third].infos, [{"X": 7}, {"x": 8}])


def test_an_int_among_floats_is_a_double_in_sql_and_an_int_in_infos(store: el.EpisodeStore) -> None:
    """SQL sees every number of a key that is int and float by turns; the episode gives each its own type."""
    infos = [{"x": 0}, {"x": 0.5}, {"x": 3}, {"x": 2**53 + 1}]
    with store.writer() as writer:
        write(writer, infos)
    store.refresh()
    shown = store.sql('select "info.x" from steps order by t').fetchall()
    assert shown == [(0.0,), (0.5,), (3.0,), (2.0**53,)]
    assert same(store[0].infos, infos)


def test_ints_that_turn_into_floats_in_a_later_batch(store: el.EpisodeStore) -> None:
    """The same over journal batches: the first batches have ints only, later ones floats."""
    infos: list[dict[str, Any]] = [{"x": step} for step in range(9000)] + [{"x": 0.25}]
    with store.writer() as writer:
        write(writer, infos)
    store.refresh()
    assert store.sql('select sum("info.x") from steps').fetchall() == [(sum(range(9000)) + 0.25,)]
    assert same(store[0].infos, infos)


def test_metadata_of_runs_and_episodes_that_disagree(store: el.EpisodeStore) -> None:
    """Episode metadata of different kinds under one key comes back from each episode."""
    values: list[Any] = [1, "a", 2.5, [1, 2], {"deep": {"er": np.float32(1)}}, (1, 2)]
    for value in values:
        with store.writer(metadata={"note": value}) as writer:
            writer.begin(ZERO, metadata={"note": value}).append(0, 1.0, ZERO)
    found = [episode.metadata["note"] for episode in store.refresh()]
    assert found == [1, "a", 2.5, [1, 2], {"deep": {"er": 1.0}}, (1, 2)]
    assert store.runs.collect().height == len(values)
