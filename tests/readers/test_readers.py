"""Readers: positions, ids, slices, iteration, samples, filters, frames, and what an episode gives back."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from effort import looped
from episodelake.readers import blocks
from episodelake.readers.view_base import STORE_ONLY
from episodelake.store.segments import steps_file as sealing
from episodelake.store.spaces import SpaceCodec
from episodelake.testing.adapters import case
from real_environments import (
    NUMBERED_SPACES,
    equal_values,
    numbered_return,
    numbered_store,
    values_of,
    write_numbered,
)
from waiting import closed_while_a_thread_begins

LENGTHS = [3, 1, 5, 2, 8, 1, 4, 6, 2, 7, 1, 9]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Twelve numbered episodes in four segments, read by many tests and changed by none."""
    return numbered_store(tmp_path_factory.mktemp("readers") / "store", LENGTHS, seal_every=3)


def check_numbered(episode: el.Episode, value: int) -> None:
    """Check every array of a numbered episode against the rule by which it was made."""
    length = LENGTHS[value]
    assert np.array_equal(episode.observations, [[value, t] for t in range(length + 1)])
    assert np.array_equal(episode.actions, [(value + t) % 10 for t in range(length)])
    assert np.array_equal(episode.rewards, [value + t / 8 for t in range(length)])
    assert episode.infos == [{"clock": t} for t in range(length + 1)]
    assert episode.metadata == {"value": value, "group": "odd" if value % 2 else "even"}


# Positions and ids


@looped("position", [12, -13, 10**12, -(10**12), 2**70])
def test_a_position_outside_is_not_found(store: el.EpisodeStore, position: int) -> None:
    """A position outside raises an error that is an IndexError, a KeyError and of the library's tree."""
    with pytest.raises(el.errors.EpisodeNotFoundError) as caught:
        store[position]
    assert isinstance(caught.value, IndexError)
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, el.EpisodelakeError)
    assert "12" in str(caught.value)


def test_ids_lead_to_their_episodes(store: el.EpisodeStore) -> None:
    """Every id gives its episode, in the order of commits; positions may be negative or of numpy."""
    ids = store.episodes.collect()["episode_id"]
    assert len(store) == len(ids) == len(LENGTHS)
    for position, episode_id in enumerate(ids):
        episode = store[episode_id]
        assert episode.id == episode_id == store[position].id
        assert episode.position == store[position].position == position
        assert episode_id == f"{episode.run_id}/{episode.number:06}"
        check_numbered(episode, position)
    assert values_of([store[-1], store[-5], store[-len(LENGTHS)]]) == [11, 7, 0]
    assert values_of([store[np.int64(4)], store[np.uint8(5)]]) == [4, 5]


@looped("episode_id", ["", "nothing", "numbered/000000", "numbered", "../x", "' or 1=1 --"])
def test_an_unknown_id_is_not_found(store: el.EpisodeStore, episode_id: str) -> None:
    """An id that the snapshot does not hold raises EpisodeNotFoundError."""
    with pytest.raises(el.errors.EpisodeNotFoundError):
        store[episode_id]


def test_slices_are_those_of_a_list(store: el.EpisodeStore) -> None:
    """A slice is a view of the episodes that the same slice of a list would hold, in that order."""
    cases: list[Any] = [
        slice(2, 5),
        slice(None),
        slice(None, None, 3),
        slice(None, None, -1),
        slice(10, 2, -3),
        slice(-3, None),
        slice(5, 5),
        slice(50, 60),
        slice(-100, 100, 5),
    ]
    for span in cases:
        with case(span):
            view = store[span]
            wanted = list(range(len(LENGTHS)))[span]
            assert isinstance(view, el.EpisodeView)
            assert len(view) == len(wanted)
            assert values_of(view) == wanted
            assert view.episodes.collect()["metadata.value"].to_list() == wanted
            assert values_of(view[position] for position in range(len(wanted))) == wanted


def test_slices_of_slices_compose(store: el.EpisodeStore) -> None:
    """Slicing a view counts within the view, negative positions and steps included."""
    view = store[2:11][::2]
    assert values_of(view) == [2, 4, 6, 8, 10]
    assert values_of(view[1:-1]) == [4, 6, 8]
    assert values_of([view[-1]]) == [10]
    assert values_of(view[::-1][1:3]) == [8, 6]


@looped(
    ("key", "kind"),
    [
        (np.array([0, 12]), el.errors.EpisodeNotFoundError),
        (np.array([-13]), el.errors.EpisodeNotFoundError),
        (np.array([1, 3, 1]), el.errors.InvalidArgumentError),
        (np.array([0, -12]), el.errors.InvalidArgumentError),
        (np.array([0.5]), el.errors.InvalidArgumentError),
        (np.array([True, False]), el.errors.InvalidArgumentError),
        (np.array([[1]]), el.errors.InvalidArgumentError),
    ],
)
def test_what_is_no_array_of_positions_is_refused(store: el.EpisodeStore, key: Any, kind: type) -> None:
    """Positions that are not there, that are named twice, or that are no whole numbers are errors."""
    with pytest.raises(kind):
        store[key]


def test_a_view_ends_where_it_ends(store: el.EpisodeStore) -> None:
    """A position or id that the store has but the view has not is not found in the view."""
    view = store[2:5]
    for missing in (3, -4, store[7].id):
        with pytest.raises(el.errors.EpisodeNotFoundError):
            view[missing]
    assert view[store[3].id].id == store[3].id


# Iteration and samples


def test_iteration_gives_every_episode_in_order(store: el.EpisodeStore) -> None:
    """Iterating gives each episode once, in order of position, whole."""
    for value, episode in enumerate(store):
        check_numbered(episode, value)
    assert value == len(LENGTHS) - 1


def test_iterators_may_be_interleaved(store: el.EpisodeStore) -> None:
    """Two iterators drawn from in turn each keep their place, and one may be left early."""
    first, second = iter(store), iter(store)
    assert values_of([next(first), next(first), next(second)]) == [0, 1, 0]
    assert values_of(second) == list(range(1, 12))
    first = None
    assert values_of(store) == list(range(12))


def test_episodes_outlive_the_iteration(store: el.EpisodeStore) -> None:
    """Episodes and arrays kept while iterating still hold their own values afterwards."""
    kept = list(store)
    arrays = [episode.observations for episode in store]
    for value in reversed(range(12)):
        check_numbered(kept[value], value)
        assert np.array_equal(arrays[value][:, 0], np.full(LENGTHS[value] + 1, value))


def test_samples_follow_the_seed(store: el.EpisodeStore) -> None:
    """A seed gives the same episodes every time, from an equal view, and other seeds give others."""
    drawn = [tuple(values_of(store.sample_episodes(6, seed=seed))) for seed in range(8)]
    again = [tuple(values_of(el.open(store.path).sample_episodes(6, seed=seed))) for seed in range(8)]
    assert drawn == again
    assert len(set(drawn)) > 4


def test_samples_without_replacement_are_distinct(store: el.EpisodeStore) -> None:
    """A sample of all episodes is a permutation, and more than there are is refused."""
    assert sorted(values_of(store.sample_episodes(12, seed=1))) == list(range(12))
    assert store.sample_episodes(0, seed=1) == []
    for number in (13, -1, 1.5, "x"):
        with pytest.raises(el.errors.InvalidArgumentError):
            store.sample_episodes(number)  # type: ignore[arg-type]


def test_samples_with_replacement_repeat(store: el.EpisodeStore) -> None:
    """With replacement more episodes than there are may be drawn, each of them real."""
    drawn = values_of(store.sample_episodes(200, seed=3, replace=True))
    assert len(drawn) == 200
    assert set(drawn) == set(range(12))


def test_samples_of_a_view_stay_inside(store: el.EpisodeStore) -> None:
    """A view is sampled from its own episodes only, and reaches all of them."""
    view = store.filter(pl.col("terminated"))
    drawn = [value for seed in range(30) for value in values_of(view.sample_episodes(2, seed=seed))]
    assert set(drawn) == {0, 2, 4, 6, 8, 10}


# Filters


def test_filters_keep_what_fulfils_them(store: el.EpisodeStore) -> None:
    """A filter, as an expression or as text, keeps exactly the episodes that fulfil it, in order."""
    cases: list[Any] = [
        (pl.col("length") > 4, lambda value: LENGTHS[value] > 4),
        ("length > 4", lambda value: LENGTHS[value] > 4),
        (pl.col("metadata.group") == "odd", lambda value: value % 2 == 1),
        ("\"metadata.group\" = 'odd'", lambda value: value % 2 == 1),
        (pl.col("truncated") & (pl.col("seed") >= 1006), lambda value: value % 2 == 1 and value >= 6),
        ("truncated and seed >= 1006", lambda value: value % 2 == 1 and value >= 6),
        ("end_reason in ('cut', 'interrupted')", lambda value: False),
        ("true", lambda value: True),
        (pl.lit(True), lambda value: True),
        (pl.lit(False), lambda value: False),
        (pl.col("episode_return").is_between(5, 30), lambda v: 5 <= numbered_return(v, LENGTHS[v]) <= 30),
        ("length > 4 or length = 1 -- a remark", lambda value: LENGTHS[value] > 4 or LENGTHS[value] == 1),
    ]
    for condition, keep in cases:
        with case((condition, keep)):
            wanted = [value for value in range(12) if keep(value)]
            view = store.filter(condition)
            assert len(view) == len(wanted)
            assert values_of(view) == wanted
            assert view.episodes.collect()["metadata.value"].to_list() == wanted


def test_unknown_is_not_true(tmp_path: Path) -> None:
    """An episode for which a condition is NULL is left out, by a filter and by its opposite alike."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer() as writer:
        for metadata in ({"score": 1}, {}, {"score": 3}):
            episode = writer.begin([len(metadata), 0], metadata=metadata)
            episode.append(0, 0.0, [0, 0])
            episode.end()
    store.refresh()
    for condition in (pl.col("metadata.score") > 2, '"metadata.score" > 2'):
        assert [episode.metadata for episode in store.filter(condition)] == [{"score": 3}]
    for condition in (pl.col("metadata.score") <= 2, 'not ("metadata.score" > 2)'):
        assert [episode.metadata for episode in store.filter(condition)] == [{"score": 1}]


def test_filters_on_views_see_the_view(store: el.EpisodeStore) -> None:
    """An aggregate in a condition on a view is taken over the view, not over the store."""
    best = pl.col("episode_return") == pl.col("episode_return").max()
    assert values_of(store.filter(best)) == [11]
    assert values_of(store[:6].filter(best)) == [4]
    assert values_of(store.filter("truncated").filter("length < 9").filter(best)) == [9]
    assert values_of(store[::-1].filter(pl.int_range(pl.len()) < 2)) == [11, 10]


# Sorting


@pytest.mark.parametrize("descending", [False, True])
def test_sorted_views(store: el.EpisodeStore, descending: bool) -> None:
    """A view is sorted as Python sorts, by a column or an expression, and filters keep the order."""
    wanted = sorted(range(12), key=lambda value: LENGTHS[value] * (-1 if descending else 1))
    assert values_of(store.sort("length", descending=descending)) == wanted
    assert values_of(store.sort(pl.col("length") * 2, descending=descending)) == wanted
    odd = [value for value in wanted if value % 2]
    kept = store.sort("length", descending=descending).filter("\"metadata.group\" = 'odd'")
    assert values_of(kept) == values_of(store[1::2].sort("length", descending=descending)) == odd
    assert kept.episodes.collect()["metadata.value"].to_list() == odd


_FLOATS = [2, np.nan, 2, None, np.inf, np.nan, None, -0.0, 0.0, -1, -np.inf, 1]
_INTEGERS = [3, 1, 3, 2**63 - 1, -(2**63), 1, 0, 0, -1, 5, 4, 2]


@looped(
    ("values", "descending", "wanted"),
    [
        (_FLOATS, False, [10, 9, 7, 8, 11, 0, 2, 4, 1, 5, 3, 6]),
        (_FLOATS, True, [1, 5, 4, 0, 2, 11, 7, 8, 9, 10, 3, 6]),
        (_INTEGERS, False, [4, 8, 6, 7, 1, 5, 11, 0, 2, 10, 9, 3]),
        (_INTEGERS, True, [3, 9, 10, 0, 2, 11, 1, 5, 6, 7, 8, 4]),
    ],
)
def test_the_order_of_special_values(
    store: el.EpisodeStore, values: list[Any], descending: bool, wanted: list[int]
) -> None:
    """NULL comes last and NaN above all numbers; equal values, such as the two zeros, keep their order."""
    key = pl.lit(pl.Series(values, strict=False))
    assert values_of(store.sort(key, descending=descending)) == wanted


_ONE_VALUE = [pl.col("length").max(), pl.col("length").implode()]
_NO_KEYS = [[], ["length", 3], "no + 1", "1; drop table episodes", "length, number"]


@looped("by", ["lenght", pl.col("lenght"), *_ONE_VALUE, 3, None, *_NO_KEYS])
def test_what_cannot_be_sorted_by_is_refused(store: el.EpisodeStore, by: Any) -> None:
    """Columns that are not there, wrong texts, lists and expressions of one value are errors of ours."""
    with pytest.raises(el.errors.QueryError):
        store.sort(by)
    with pytest.raises(el.errors.QueryError, match="2 keys and 1 flag in"):
        store.sort(["length", "number"], descending=[True])


@pytest.mark.parametrize("condition", [pl.col("reward_total") > 1, "reward_total > 1"], ids=["expr", "text"])
def test_a_wrong_filter_column_names_the_right_ones(store: el.EpisodeStore, condition: Any) -> None:
    """A filter over a column that is not there says which one, and which there are."""
    with pytest.raises(el.errors.QueryError) as caught:
        store.filter(condition)
    assert isinstance(caught.value, ValueError)
    for name in ("reward_total", "episode_return", "length", "metadata.group"):
        assert name in str(caught.value)
    assert "_position" not in str(caught.value)


def test_what_is_no_condition_is_refused(store: el.EpisodeStore) -> None:
    """Text that is not one condition, or an expression that is not boolean, is a QueryError."""
    cases: list[Any] = [
        "length >",
        "",
        "length > 3; drop table episodes",
        "length > 3) or (1",
        "select * from episodes",
        "length",
        "count(*) > 1",
        "'",
        "\x00",
        pl.col("length") > "text",
        pl.col("length"),
        pl.col("group_of") + 1,
    ]
    for condition in cases:
        with case(condition), pytest.raises(el.errors.QueryError):
            store.filter(condition)


# Frames


def test_return_is_the_sum_of_rewards(store: el.EpisodeStore) -> None:
    """The episodes table says of every episode what its steps say: return, length and flags."""
    sums = (
        store.transitions.group_by("episode_id")
        .agg(
            pl.col("reward").sum().alias("episode_return"),
            pl.len().cast(pl.Int64).alias("length"),
            pl.col("terminated").any(),
            pl.col("truncated").any(),
        )
        .sort("episode_id")
        .collect()
    )
    assert sums.equals(store.episodes.select(sums.columns).sort("episode_id").collect())


def test_runs_of_a_view_are_those_of_its_episodes(tmp_path: Path) -> None:
    """A store shows all runs that wrote episodes, a view those that its own episodes come from."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    for name, values in (("first", [0, 1]), ("second", [2, 3, 4])):
        with store.writer(run=name, metadata={"called": name}) as writer:
            for value in values:
                write_numbered(writer, value, 2)
    store.refresh()

    def names(view: el.EpisodeView) -> list[str]:
        return sorted(view.runs.collect()["name"])

    assert names(store) == ["first", "second"]
    assert names(store[:2]) == ["first"]
    assert names(store[3:]) == ["second"]
    assert names(store[1:3]) == ["first", "second"]
    assert names(store[:0]) == []
    assert sorted(store.runs.collect()["metadata.called"]) == ["first", "second"]
    assert store[2:].sql("select name from runs").fetchall() == [("second",)]


def test_views_keep_what_they_showed(tmp_path: Path) -> None:
    """Neither later commits nor a refresh of the store changes a view, an episode or a frame taken before."""
    store = numbered_store(tmp_path / "store", [2, 2, 2])
    view, episode = store.filter("length = 2"), store[1]
    frames = [view.episodes, view.steps, store.steps, store.episodes]
    heights = [frame.collect().height for frame in frames]
    relation = view.sql("select count(*) from steps")
    with store.writer() as writer:
        write_numbered(writer, 3, 2)
    assert len(store) == 3
    store.refresh()
    assert len(store) == 4
    assert len(view) == 3
    assert values_of(view) == [0, 1, 2]
    assert [frame.collect().height for frame in frames] == heights
    assert relation.fetchall() == [(9,)]
    assert values_of([episode, view[2], store[3]]) == [1, 2, 3]


# Stores without episodes, with few columns, with many segments


def test_an_empty_store_answers_everything(tmp_path: Path) -> None:
    """A store without episodes has a length, frames, views and answers, all of them empty."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    for view in (store, el.open(store.path), store[:], store[::-1], store.filter("length > 1")):
        assert len(view) == 0
        assert list(view) == []
        assert view.sample_episodes(0) == []
        for frame in (view.episodes, view.steps, view.transitions, view.runs):
            assert frame.collect().height == 0
        for table in ("episodes", "steps", "transitions", "runs"):
            assert view.sql(f"select count(*) from {table}").fetchall() == [(0,)]
        assert view.steps.collect().columns[:7] == [
            "episode_id",
            "t",
            "observation",
            "action",
            "reward",
            "terminated",
            "truncated",
        ]
        assert len(view.filter(pl.col("terminated"))) == 0
        with pytest.raises(el.errors.InvalidArgumentError):
            view.sample_episodes(1, replace=True)
        for missing in (0, -1, "x"):
            with pytest.raises(el.errors.EpisodeNotFoundError):
                view[missing]
        with view.connect() as connection:
            assert connection.execute("select sum(reward) from transitions").fetchall() == [(None,)]


def test_info_columns_of_later_segments_are_null_in_older_ones(tmp_path: Path) -> None:
    """A key that first appears in a later segment is NULL before, in Polars and DuckDB, absent in infos."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    infos = [{}, {"late": 1.5}, {"later": "x", "late": -2.0}, {}]
    with store.writer() as writer:
        for number, info in enumerate(infos):
            episode = writer.begin(np.array([number, 0], np.float32), info, metadata=info)
            episode.append(0, 0.0, np.array([number, 1], np.float32))
            episode.end()
            writer.seal()
    store.refresh()
    wanted = [(None, None), (1.5, None), (-2.0, "x"), (None, None)]
    first = store.steps.filter(pl.col("t") == 0).sort("episode_id").select("info.late", "info.later")
    assert first.collect().rows() == wanted
    query = 'select "info.late", "info.later" from steps where t = 0 order by episode_id'
    assert store.sql(query).fetchall() == wanted
    query = 'select "metadata.late", "metadata.later" from episodes order by episode_id'
    assert store.sql(query).fetchall() == wanted
    assert store.episodes.select("metadata.late", "metadata.later").collect().rows() == wanted
    assert store.steps.select(pl.col("info.late").count()).collect().item() == 2
    for number, info in enumerate(infos):
        assert store[number].infos == [info, {}]
        assert store[number].metadata == info
        assert store[number : number + 1].steps.collect().height == 2


def test_a_key_that_changes_its_type_loses_nothing(tmp_path: Path) -> None:
    """Values of any type under one key come back as they were, within a segment and across segments."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    values = [
        3,
        "three",
        [1, 2],
        None,
        True,
        {"deep": {"er": [1, "x", None]}},
        np.arange(4, dtype=np.uint8),
        "",
    ]
    with store.writer() as writer:
        for sealed in (False, True):
            episode = writer.begin([0, 0], {"it": values[0]})
            for value in values[1:]:
                episode.append(0, 0.0, [0, 0], info={"it": value})
            episode.end()
            if sealed:
                writer.seal()
        for value in [*values, 2.5]:
            episode = writer.begin([0, 0], {"it": value})
            episode.append(0, 0.0, [0, 0], info={})
            episode.end()
            writer.seal()
    store.refresh()
    for episode in store[:2]:
        assert equal_values([info["it"] for info in episode.infos], values)
    for value, episode in zip([*values, 2.5], store[2:], strict=True):
        assert equal_values(episode.infos[0], {"it": value})
        assert episode.infos[1] == {}


def test_integers_among_floats_stay_exact(tmp_path: Path) -> None:
    """An integer that no float holds is not rounded because another step had a float under its key."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    values = [2**53 + 1, 0.5, 2**63 - 1, -(2**63), 2**63, 2**70]
    with store.writer() as writer:
        episode = writer.begin([0, 0], {"n": values[0]}, metadata={"n": values[0]})
        for value in values[1:]:
            episode.append(0, 0.0, [0, 0], info={"n": value})
        episode.end()
    assert [info["n"] for info in store.refresh()[0].infos] == values
    assert store[0].metadata == {"n": values[0]}


# Episodes


def test_the_frame_of_an_episode_is_its_rows(store: el.EpisodeStore) -> None:
    """Episode.frame() gives the T+1 rows of the steps table, with the same columns and values."""
    for position in (0, 4, 11):
        episode = store[position]
        frame = episode.frame()
        assert isinstance(frame, pl.DataFrame)
        assert frame.height == len(episode) + 1
        assert frame["t"].to_list() == list(range(len(episode) + 1))
        assert frame.equals(store[position : position + 1].steps.select(frame.columns).collect())
        assert set(frame.columns) == set(store.steps.collect_schema().names())
        assert frame["observation"].to_list() == episode.observations.tolist()
        assert frame["action"].to_list() == [*episode.actions.tolist(), None]


def test_arrays_are_read_only(store: el.EpisodeStore) -> None:
    """No array of an episode can be written, so that no reader spoils another's data."""
    episode = store[4]
    for array in (
        episode.observations,
        episode.actions,
        episode.rewards,
        episode.terminations,
        episode.truncations,
    ):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    check_numbered(store[4], 4)


def test_infos_are_the_callers_own(store: el.EpisodeStore) -> None:
    """Changing a list or dict of infos or metadata does not change what is read next."""
    for episode in (store[2], store[2]):
        episode.infos[0]["clock"] = -1
        episode.infos.clear()
        episode.metadata["value"] = -1
    check_numbered(store[2], 2)


NESTED_OBSERVATION = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 3, 3), np.uint8),
        "body": spaces.Tuple(
            [
                spaces.Box(-1, 1, (2,), np.float16),
                spaces.Dict({"on": spaces.Discrete(3, start=-1), "bits": spaces.MultiBinary(5)}),
                spaces.Box(0, 9, (), np.uint32),
            ]
        ),
        "words": spaces.Text(10),
    }
)
NESTED_ACTION = spaces.Tuple([spaces.MultiDiscrete([3, 4]), spaces.Dict({"push": spaces.Box(-1, 1, (1,))})])


def test_nested_spaces_come_back_nested(tmp_path: Path) -> None:
    """Dict and Tuple spaces give dicts and tuples of stacked arrays with the dtype and shape of each leaf."""
    observation_space, action_space = NESTED_OBSERVATION, NESTED_ACTION
    observation_space.seed(1)
    action_space.seed(2)
    observations = [observation_space.sample() for _ in range(5)]
    actions = [action_space.sample() for _ in range(4)]
    store = el.create(
        tmp_path / "store", observation_space=observation_space, action_space=action_space, reward_shape=(2,)
    )
    with store.writer() as writer:
        episode = writer.begin(observations[0])
        for t, action in enumerate(actions):
            episode.append(action, [t, -t], observations[t + 1], policy={"value": t / 2})
        episode.end()
    episode = store.refresh()[0]
    seen = episode.observations
    assert list(seen) == list(observation_space.spaces)
    assert isinstance(seen["body"], tuple)
    leaves = [
        (seen["image"], [one["image"] for one in observations], np.uint8, (5, 4, 3, 3)),
        (seen["body"][0], [one["body"][0] for one in observations], np.float16, (5, 2)),
        (seen["body"][1]["on"], [one["body"][1]["on"] for one in observations], np.int64, (5,)),
        (seen["body"][1]["bits"], [one["body"][1]["bits"] for one in observations], np.int8, (5, 5)),
        (seen["body"][2], [one["body"][2] for one in observations], np.uint32, (5,)),
        (episode.actions[0], [one[0] for one in actions], np.int64, (4, 2)),
        (episode.actions[1]["push"], [one[1]["push"] for one in actions], np.float32, (4, 1)),
        (episode.rewards, [[t, -t] for t in range(4)], np.float64, (4, 2)),
    ]
    for array, values, dtype, shape in leaves:
        assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
        assert np.array_equal(array, np.stack(values))
        assert not array.flags.writeable
    assert seen["words"] == [one["words"] for one in observations]
    assert np.array_equal(episode.policy["value"], [0.0, 0.5, 1.0, 1.5])
    assert episode.episode_return == [6.0, -6.0]


# Lists, masks, keys, and the order of steps


@pytest.mark.parametrize("kind", [list, np.array, pl.Series], ids=["list", "array", "series"])
def test_lists_and_masks_choose_episodes(store: el.EpisodeStore, kind: Any) -> None:
    """Positions give episodes in their order, a mask those where it is true, as numpy's arrays do."""
    values = np.arange(len(LENGTHS))
    for key in ([1, 2], [7, -1, 0], [True, False] * 6, [False] * 12):
        assert values_of(store[kind(key)]) == values[np.array(key)].tolist()
        assert store[kind(key)].positions.tolist() == values[np.array(key)].tolist()
        assert values_of(store[::-1][kind(key)]) == values[::-1][np.array(key)].tolist()
    assert len(store[kind([])]) == 0
    for wrong in ([True], [1, 1], ["a"], [0.5], [[1]], [True] * 13):
        with pytest.raises(el.errors.InvalidArgumentError):
            store[kind(wrong)]
    with pytest.raises(el.errors.EpisodeNotFoundError):
        store[kind([12])]


@pytest.mark.further
@looped(
    ("keys", "flags"),
    [
        (["length", "number"], [True, False]),
        (["metadata.group", "length"], False),
        (["metadata.group", pl.col("length") % 3, "length * -1"], [False, True, False]),
        (["length % 2"], True),
        ("episode_return / length", False),
        ("length % 3", True),
    ],
)
def test_several_keys_and_sql_sort(store: el.EpisodeStore, keys: Any, flags: Any) -> None:
    """Each key orders what is equal in those before it, as DuckDB does on the same table, with `position`."""
    named = [keys] if isinstance(keys, str) else keys
    each = [flags] * len(named) if isinstance(flags, bool) else flags
    sql = {"metadata.group": '"metadata.group"', str(pl.col("length") % 3): "length % 3"}
    terms = [f"{sql.get(str(key), key)} {'desc' if d else 'asc'}" for key, d in zip(named, each, strict=True)]
    for view in (store, store.filter("length > 1"), store[::-1]):
        places = pl.DataFrame({"episode_id": [one.id for one in view], "place": range(len(view))})
        connection = duckdb.connect()
        connection.register("shown", view.episodes.collect().join(places, on="episode_id"))
        ids = connection.sql(f"select episode_id from shown order by {', '.join(terms)}, place").fetchall()
        assert [one.id for one in view.sort(keys, descending=flags)] == [one[0] for one in ids]


def test_steps_come_in_the_order_of_the_view(store: el.EpisodeStore) -> None:
    """Those of episodes that were sorted, turned round or listed too, with annotations; each by t."""
    views = [store, store[2:9], store[::-1], store.sort("length", descending=True), store[[5, 0, 7]]]
    for view in views:
        expected = [(one.id, t) for one in view for t in range(one.length + 1)]
        assert view.steps.select("episode_id", "t").collect().rows() == expected
        transitions = [(key, t) for key, t in expected if t < store[key].length]
        assert view.transitions.select("episode_id", "t").collect().rows() == transitions
        assert view.steps.collect_schema() == store.steps.collect_schema()


# Row groups


@pytest.fixture
def grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> el.EpisodeStore:
    """Forty episodes in two segments of several row groups each, one of which takes several by itself."""
    monkeypatch.setattr(sealing, "GROUP_ROWS", 24)
    return numbered_store(tmp_path / "grouped", [3, 7, 60, *[5] * 37], seal_every=25)


def values_read(episode: el.Episode) -> tuple[Any, ...]:
    """Everything of an episode that steps hold."""
    arrays = (episode.observations, episode.actions, episode.rewards, episode.terminations)
    return (*(np.asarray(array).tolist() for array in arrays), episode.infos)


WALKS: dict[str, Callable[[el.EpisodeStore], list[el.Episode]]] = {
    "positions": lambda store: [store[i] for i in range(len(store))],
    "backwards": lambda store: [store[-1 - i] for i in range(len(store))],
    "ids": lambda store: [store[one.id] for one in store.sort("number", descending=True)],
    "sorted": lambda store: list(store.sort(["length", "seed", "number"], descending=[True, False, True])),
    "list": lambda store: list(store[np.random.default_rng(0).permutation(len(store))]),
    "twice": lambda store: [one for _ in range(2) for one in store.sort("length")],
    "drawn": lambda store: store.sample_episodes(30, seed=1),
    "in order": list,
}


def test_an_iteration_is_closed_while_a_thread_begins(store: el.EpisodeStore) -> None:
    """The collector may close an abandoned iteration inside the lock with which threads begin and end."""
    episodes = iter(el.open(store.url))
    for episode in itertools.islice(episodes, 4):
        assert len(episode.observations)  # The next ones are read in the background.
    closed_while_a_thread_begins(episodes)


@pytest.mark.sample(4)
@pytest.mark.parametrize("walk", WALKS)
def test_a_row_group_is_read_once(
    grouped: el.EpisodeStore, walk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However episodes are walked through: no column of a row group comes from its file twice."""
    expected = {one.id: values_read(one) for one in el.open(grouped.path)}
    reads: list[tuple[str, int, str]] = []
    read = blocks.SegmentFile.read

    def counted(file: Any, groups: Any, columns: Any, **more: Any) -> Any:
        table = read(file, groups, columns, **more)
        reads.extend((file.path.name, group, name) for group in groups for name in table.column_names)
        return table

    monkeypatch.setattr(blocks.SegmentFile, "read", counted)
    store = el.open(grouped.path)
    for episode in WALKS[walk](store):
        assert values_read(episode) == expected[episode.id]
    # The row groups of a long episode hold parts of its neighbours too.
    assert max(Counter(reads).values()) <= 2 and len(reads) <= len(set(reads)) * 1.5


def test_blocks_are_bounded_and_shared_by_threads(
    grouped: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few bytes are kept where few are allowed, and threads that walk at once read what one reads."""
    monkeypatch.setattr(blocks, "_KEPT_BYTES", 4000)
    expected = [values_read(one) for one in el.open(grouped.path)]
    kept = grouped.context.blocks._blocks

    def look(seed: int) -> None:
        for position in np.random.default_rng(seed).permutation(len(grouped)).tolist():
            assert values_read(grouped[position]) == expected[position]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(look, range(8)))
    _ = grouped[0], grouped[39]
    assert sum(block.nbytes for block in [*kept.values()][:-1]) <= 4000 and kept
    assert len(pickle.dumps(grouped[3])) < 20_000


def test_looking_up_an_episode_asks_each_block_for_a_number(
    grouped: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is measured once as it arrives, and is what the columns hold."""
    for episode in WALKS["twice"](grouped):
        values_read(episode)
    kept = list(grouped.context.blocks._blocks.values())
    for block in kept:
        held = [*block._raw.values(), *block._added.values(), *block._decoded.values()]
        assert block.nbytes == sum(map(blocks._size, held)) > 0
    monkeypatch.setattr(blocks, "_size", lambda values: pytest.fail("measured again"))
    _ = grouped[0], grouped[1]


def test_one_episode_decodes_no_other(grouped: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at a row group decodes the episode's rows alone; the second one all of them, once."""
    decoded: list[int] = []
    decode = SpaceCodec.decode

    def counted(codec: SpaceCodec, arrays: Any) -> Any:
        decoded.append(len(arrays[0]))
        return decode(codec, arrays)

    monkeypatch.setattr(SpaceCodec, "decode", counted)
    store = el.open(grouped.path)
    first = store[0]
    _ = first.observations
    assert decoded == [len(first) + 1]
    for _ in range(2):
        assert np.array_equal(store[0].observations, first.observations)
    assert len(decoded) == 2 and decoded[1] > decoded[0]


def test_messages_name_what_is_near(store: el.EpisodeStore) -> None:
    """Names that are nearly there, one list of columns, and singular where there is one."""
    cases: list[Any] = [
        (lambda s: s.sort("lenght"), r"Cannot sort by lenght: .*Did you mean length\?\nAvailable .* length"),
        (lambda s: s.sort(-pl.col("lenght")), r"Did you mean length\?"),
        (lambda s: s.filter(pl.col("lenght") > 1), r"not valid: .*Did you mean length\?\nAvailable"),
        (lambda s: s.loader(2, weights=pl.col("lenght")), r"not valid: .*Did you mean length\?\nAvailable"),
        (lambda s: s.sort([]), "names nothing to sort by"),
        (lambda s: s.sort("length", descending=[True, False]), "got 1 key and 2 flags .*one flag for all"),
        (lambda s: s[[True, 2]], r"\[True, 2\] has flags among positions"),
        (lambda s: s[range(3)], r"range\(0, 3\) is no position; .*list or array of positions, or a mask"),
        (lambda s: s[:1][4], "of 1 episode\\."),
        (lambda s: s[:1].sample_episodes(2), "Cannot draw 2 episodes from 1"),
        (lambda s: s[:1].sort(pl.col("length").head(0)), "Cannot sort 1 episode .* gives 0 values"),
    ]
    for wrong, said in cases:
        with case((wrong, said)):
            with pytest.raises(el.EpisodelakeError, match=f"(?s){said}") as caught:
                wrong(store)
            assert "_position" not in str(caught.value) and str(caught.value).count("wide_seed") <= 1


def test_a_view_of_one_episode_shows_itself(store: el.EpisodeStore) -> None:
    """One episode is singular."""
    assert "(1 episode, " in repr(store[:1]) and "(2 episodes, " in repr(store[:2])


# A view has what a store has


def test_a_view_has_the_reading_half_of_a_store(store: el.EpisodeStore) -> None:
    """All public names but those that change the store or move on, which an error leads to."""
    view = store[1:3]
    public = {name for name in dir(store) if not name.startswith("_")}
    assert public - {name for name in dir(view) if not name.startswith("_")} == set(STORE_ONLY)
    for name in STORE_ONLY:
        with pytest.raises(AttributeError, match=f"{name}.*on the store"):
            getattr(view, name)
    with pytest.raises(AttributeError, match=r"no attribute 'epsodes'\. Did you mean episodes"):
        _ = view.epsodes
    for name, meant in {"episode_id": "id", "rewrds": "rewards", "observation": "observations"}.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. Did you mean {meant}\b"):
            getattr(view[0], name)
    assert not hasattr(view[0], "_repr_png_")


def test_a_view_tells_of_its_store(store: el.EpisodeStore) -> None:
    """The same values as the store, also after pickling."""
    view = pickle.loads(pickle.dumps(store.sort("length")[:4]))
    for name in ("path", "url", "id", "observation_space", "action_space", "reward_shape", "agent_groups"):
        assert getattr(view, name) == getattr(store, name), name
    assert (view.version, view.card, view.tags) == (store.version, store.card, store.tags)
    assert view.history().equals(store.history()) and view.annotations.equals(store.annotations)
    assert view.environments().equals(store.environments())
    with pytest.raises(el.errors.InvalidArgumentError, match="card of open"):
        view.card["title"] = "Pong"


def test_a_view_is_copied(store: el.EpisodeStore, tmp_path: Path) -> None:
    """Its episodes alone, with their ids; filtered if wanted."""
    view = store.sort("length", descending=True)[:5]
    copies = {"all": view.copy(tmp_path / "all"), "some": view.copy(tmp_path / "some", "length > ?", [7])}
    for found, wanted in ((copies["all"], view), (copies["some"], view.filter("length > 7"))):
        assert isinstance(found, el.EpisodeStore) and found.verify().ok
        # In the order of the store, as files are taken over.
        assert [one.id for one in found] == [one.id for one in store if one.id in wanted]
        assert found.id != store.id and found.observation_space == store.observation_space
