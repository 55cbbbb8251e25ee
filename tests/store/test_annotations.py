"""Annotations: what is said of episodes and steps afterwards, by whatever frame, and what becomes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import episodelake as el
from episodelake.store.schema import StepSchema
from episodelake.testing.adapters import case
from maintenance_stores import (
    assert_contents,
    assert_faces_agree,
    contents,
    ids_of,
)
from real_environments import numbered_store

STEP = ("episode_id", "t")


def as_pandas(frame: pl.DataFrame) -> Any:
    """Return it as a pandas frame, whose index is not 0, 1, 2."""
    pandas = pytest.importorskip("pandas")
    result = pandas.DataFrame({name: frame[name].to_list() for name in frame.columns})
    return result.set_index(np.arange(10, 10 + len(result)))


FRAMES: dict[str, Callable[[pl.DataFrame], Any]] = {
    "polars": lambda frame: frame,
    "lazy": lambda frame: frame.lazy(),
    "arrow": lambda frame: frame.to_arrow(),
    "batches": lambda frame: frame.to_arrow().to_reader(),
    "chunks": lambda frame: pl.concat([frame[:1], frame[1:]], rechunk=False),
    "large": lambda frame: frame.to_arrow().cast(
        pa.schema(
            [
                (one.name, pa.large_string() if one.name == "episode_id" else one.type)
                for one in frame.to_arrow().schema
            ]
        )
    ),
    "pandas": as_pandas,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes of 2, 3, 4 and 5 transitions, in two segments; tests work on copies."""
    return numbered_store(tmp_path_factory.mktemp("template") / "store", [2, 3, 4, 5], seal_every=2).path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> el.EpisodeStore:
    """A copy of the four episodes."""
    return el.open(shutil.copytree(template, tmp_path / "store"))


def labels(store: el.EpisodeView, name: str) -> list[Any]:
    """Return an annotation by every way of reading; they must agree."""
    by_episode = [one.annotations[name] for one in store]
    assert store.episodes.collect()[name].to_list() == by_episode
    rows = dict(store.sql(f'select episode_id, "{name}" from episodes').fetchall())
    assert [rows[one] for one in ids_of(store)] == by_episode
    return by_episode


def advantages(store: el.EpisodeView, name: str) -> list[list[Any]]:
    """Return an annotation of steps by row, T+1 an episode, by every table; they must agree."""
    frame = store.steps.collect()
    rows = store.sql(f'select episode_id, t, "{name}" from steps order by all').pl()
    assert rows.equals(frame.select("episode_id", "t", name).sort("episode_id", "t"))
    moves = store.sql(f'select episode_id, t, "{name}" from transitions order by all').pl()
    assert moves.equals(store.transitions.select("episode_id", "t", name).sort("episode_id", "t").collect())
    result = [frame.filter(pl.col("episode_id") == one)[name].to_list() for one in ids_of(store)]
    for episode, values in zip(store, result, strict=True):
        own = list(episode.step_annotations.get(name, []))
        length = len(values) if values[-1] is not None else len(values) - 1
        assert own in (values[:length], []) and (own or not any(value is not None for value in values))
    return result


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", FRAMES)
def test_episodes_by_every_kind_of_frame(store: el.EpisodeStore, kind: str) -> None:
    """Labels from a frame in another order land on their episodes, for filters, SQL, Polars and episodes."""
    before = contents(store)
    frame = pl.DataFrame(
        {"episode_id": ids_of(store)[::-1], "score": [3, 2, 1, 0], "word": ["d", "c", "", None]}
    )
    store.annotate(FRAMES[kind](frame))
    assert labels(store, "score") == [0, 1, 2, 3]
    assert labels(store, "word") == [None, "", "c", "d"]
    assert len(store.filter("score > 1")) == len(store.filter(pl.col("score") > 1)) == 2
    assert store.annotations.sort("name").select("name", "table").rows() == [
        ("score", "episodes"),
        ("word", "episodes"),
    ]
    assert_contents(store, before, without=("annotations",))
    assert_faces_agree(store)


def test_no_step_is_rewritten(store: el.EpisodeStore) -> None:
    """Annotating neither changes nor adds a file of steps."""
    files = {file: file.stat().st_mtime_ns for file in (store.path / "steps").rglob("*")}
    store.annotate(store.episodes.select("episode_id", a=pl.lit(1)))
    store.annotate(store.steps.select("episode_id", "t", b=pl.lit(1)), on=STEP)
    assert {file: file.stat().st_mtime_ns for file in (store.path / "steps").rglob("*")} == files


VALUES: dict[str, tuple[pl.Series, list[Any]]] = {
    "bool": (pl.Series([True, None, False, True]), [True, None, False, True]),
    "int8": (pl.Series([-128, 127, None, 0], dtype=pl.Int8), [-128, 127, None, 0]),
    "uint32": (pl.Series([2**32 - 1, 0, None, 1], dtype=pl.UInt32), [2**32 - 1, 0, None, 1]),
    "int64": (pl.Series([-(2**63), 2**63 - 1, None, 0]), [-(2**63), 2**63 - 1, None, 0]),
    "float32": (
        pl.Series([0.5, float("inf"), None, -0.0], dtype=pl.Float32),
        [0.5, float("inf"), None, -0.0],
    ),
    "text": (pl.Series(["", "ü\x00😀", None, "NULL"]), ["", "ü\x00😀", None, "NULL"]),
    "categorical": (pl.Series(["a", "b", None, "a"], dtype=pl.Categorical), ["a", "b", None, "a"]),
    "enum": (pl.Series(["a", "b", None, "a"], dtype=pl.Enum(["b", "a"])), ["a", "b", None, "a"]),
    "list": (pl.Series([[1, 2], [], None, [3]]), [[1, 2], [], None, [3]]),
    "list of text": (pl.Series([["a"], [], None, ["", "b"]]), [["a"], [], None, ["", "b"]]),
    "array": (
        pl.Series([[1.0, 2.0], [0.0, 0.5], None, [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2)),
        [[1.0, 2.0], [0.0, 0.5], None, [3.0, 4.0]],
    ),
    "time": (
        pl.Series([datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc), None] * 2),  # noqa: UP017
        [datetime(2026, 1, 2, 3, 4, 5, 678901, timezone.utc), None] * 2,  # noqa: UP017
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", VALUES)
def test_values_of_every_type(store: el.EpisodeStore, kind: str) -> None:
    """Every plain type, with NULLs, comes back by every way of reading, for episodes and for steps."""
    series, expected = VALUES[kind]
    store.annotate(pl.DataFrame({"episode_id": ids_of(store), "v": series}))
    assert labels(el.open(store.path), "v") == expected
    keys = {"episode_id": ids_of(store), "t": [1] * 4}
    store.annotate(pl.DataFrame({**keys, "w": series}), on=STEP)
    assert [one[1] for one in advantages(el.open(store.path), "w")] == expected
    before = contents(store)
    store.compact()
    assert_contents(store, before)
    assert labels(store, "v") == expected


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "series",
    [
        pl.Series([2**63, 2**64 - 1, 0, 1], dtype=pl.UInt64),
        pl.Series([{"a": 1}] * 4),
        pl.Series([b"x"] * 4),
        pl.Series([[[1]]] * 4),
        pl.Series([object()] * 4, dtype=pl.Object),
        pl.Series([date(2026, 1, 2)] * 4),
        pl.Series([None] * 4),
        pl.Series(["1.5"] * 4).cast(pl.Decimal(10, 2)),
    ],
    ids=["uint64", "struct", "binary", "nested list", "object", "date", "null", "decimal"],
)
@pytest.mark.parametrize("on", ["episode_id", STEP], ids=["episodes", "steps"])
def test_other_types_are_refused_or_kept_right(store: el.EpisodeStore, series: pl.Series, on: Any) -> None:
    """A type that cannot be stored is an error of ours and changes nothing; others come back right."""
    version = store.version
    keys = {"episode_id": ids_of(store), **({"t": [0] * 4} if on == STEP else {})}
    try:
        store.annotate(pl.DataFrame({**keys, "v": series}), on=on)
    except el.errors.InvalidArgumentError:
        assert el.open(store.path).version == version
        assert el.open(store.path).annotations.height == 0
        return
    table = store.steps.filter(pl.col("t") == 0) if on == STEP else store.episodes
    found = table.collect()["v"]
    if series.dtype.is_nested():
        assert found.to_list() == series.to_list()
        return
    assert found.cast(series.dtype).to_list() == series.to_list()


BAD_FRAMES: dict[str, Callable[[el.EpisodeStore], Any]] = {
    "no key": lambda store: pl.DataFrame({"v": [1]}),
    "key only": lambda store: pl.DataFrame({"episode_id": [store[0].id]}),
    "unknown id": lambda store: pl.DataFrame({"episode_id": [store[0].id, "nobody/000000"], "v": [1, 2]}),
    "twice": lambda store: pl.DataFrame({"episode_id": [store[0].id] * 2, "v": [1, 1]}),
    "null key": lambda store: pl.DataFrame({"episode_id": [store[0].id, None], "v": [1, 2]}),
    "number as key": lambda store: pl.DataFrame({"episode_id": [0], "v": [1]}),
    "no frame": lambda store: 7,
    "none": lambda store: None,
    "rows": lambda store: [{"episode_id": store[0].id, "v": 1}],
    "series": lambda store: pl.Series("v", [1]),
    "bad lazy frame": lambda store: store.episodes.select("episode_id", v=pl.col("no_such")),
}


def test_bad_frames_of_episodes(store: el.EpisodeStore) -> None:
    """A frame that does not say what it is about changes nothing."""
    for kind in BAD_FRAMES:
        with case(kind):
            version = store.version
            with pytest.raises(el.EpisodelakeError):
                store.annotate(BAD_FRAMES[kind](store))
            assert el.open(store.path).version == version
            assert el.open(store.path).annotations.height == 0


BAD_STEPS: dict[str, dict[str, list[Any]]] = {
    "t too large": {"t": [3]},
    "t negative": {"t": [-1]},
    "t null": {"t": [None]},
    "t float": {"t": [0.5]},
    "t text": {"t": ["0"]},
    "t huge": {"t": [2**63 - 1]},
    "twice": {"t": [1, 1]},
    "no t": {},
}


def test_bad_frames_of_steps(store: el.EpisodeStore) -> None:
    """A step that is not there, or is there twice, changes nothing."""
    for kind in BAD_STEPS:
        with case(kind):
            version = store.version
            times = BAD_STEPS[kind]
            count = len(times.get("t", [0]))
            frame = pl.DataFrame({"episode_id": [store[0].id] * count, **times, "v": [1] * count})
            with pytest.raises(el.errors.InvalidArgumentError):
                store.annotate(frame, on=STEP)
            assert el.open(store.path).version == version
            assert el.open(store.path).annotations.height == 0


@pytest.mark.parametrize(
    "on", ["t", "", ("t", "episode_id"), ("episode_id",), ["episode_id", "t"], None, "run_id"], ids=repr
)
def test_other_keys(store: el.EpisodeStore, on: Any) -> None:
    """Only the two kinds of key are taken; a list or another order of the same names may be."""
    frame = pl.DataFrame({"episode_id": [store[0].id], "t": [0], "v": [1]})
    try:
        store.annotate(frame, on=on)
    except el.errors.InvalidArgumentError:
        assert el.open(store.path).annotations.height == 0
    else:
        assert set(on) <= {"episode_id", "t"}
        assert store.annotations.height > 0


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "name",
    [
        "length",
        "Length",
        "segment",
        "row_start",
        "number",
        "metadata.value",
        "Metadata.Value",
        "",
        "a,b",
        "x" * 5000,
        "_json",
        "metadata._json",
        "seed",
    ],
)
def test_names_of_episodes_that_clash(store: el.EpisodeStore, name: str) -> None:
    """A name that the episodes table has, also in other case, or that no table can have, is refused."""
    before, version = contents(store), store.version
    frame = pl.DataFrame({"episode_id": ids_of(store), name: [9] * 4})
    if name in ("x" * 5000, "_json"):
        try:
            store.annotate(frame)
        except el.errors.InvalidArgumentError:
            assert_contents(el.open(store.path), before)
        else:
            assert labels(store, name) == [9] * 4
        return
    with pytest.raises(el.errors.InvalidArgumentError):
        store.annotate(frame)
    assert el.open(store.path).version == version
    assert_contents(el.open(store.path), before)


def test_names_of_steps_that_clash(store: el.EpisodeStore) -> None:
    """The same for steps: no annotation takes the place of a recorded column."""
    cases: list[Any] = [
        "reward",
        "Reward",
        "info.clock",
        "INFO.clock",
        "observation",
        "terminated",
        "",
        "a b",
    ]
    for name in cases:
        with case(name):
            before, version = contents(store), store.version
            frame = pl.DataFrame({"episode_id": [store[0].id], "t": [0], name: [9.0]})
            with pytest.raises(el.errors.InvalidArgumentError):
                store.annotate(frame, on=STEP)
            assert el.open(store.path).version == version
            assert_contents(el.open(store.path), before)


@pytest.mark.parametrize("on", ["episode_id", STEP], ids=["episodes", "steps"])
def test_names_that_differ_only_in_case(store: el.EpisodeStore, on: Any) -> None:
    """Two annotations whose names differ only in case cannot both be: neither in one frame nor one by one."""
    keys = {"episode_id": ids_of(store), **({"t": [0] * 4} if on == STEP else {})}
    with pytest.raises(el.errors.InvalidArgumentError):
        store.annotate(pl.DataFrame({**keys, "good": [1] * 4, "Good": [2] * 4}), on=on)
    assert el.open(store.path).annotations.height == 0
    store.annotate(pl.DataFrame({**keys, "good": [1] * 4}), on=on)
    with pytest.raises(el.errors.InvalidArgumentError):
        store.annotate(pl.DataFrame({**keys, "GOOD": [2] * 4}), on=on)
    assert store.annotations["name"].to_list() == ["good"]
    assert_faces_agree(store)


def test_a_later_recorded_column_of_the_same_name(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's column that earlier versions recorded under an annotation's name spoils neither."""
    monkeypatch.setattr(StepSchema, "check_extra", lambda schema, extra: None)
    store.annotate(pl.DataFrame({"episode_id": ids_of(store), "t": [0] * 4, "height": [9.0] * 4}), on=STEP)
    with store.writer(run="late") as writer:
        episode = writer.begin(np.zeros(2, np.float32), extra={"height": 1.5})
        episode.append(1, 1.0, np.ones(2, np.float32), terminated=True, extra={"height": 2.5})
        episode.end()
    store.refresh()
    assert len(store) == 5
    assert [value for value in store[-1].extra["height"]] == [1.5, 2.5]
    assert [one.step_annotations["height"][0] for one in store[:4]] == [9.0] * 4
    store.steps.collect()
    assert store.sql("select count(*) from steps").fetchall() == [(20,)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("on", ["episode_id", STEP], ids=["episodes", "steps"])
def test_another_type(store: el.EpisodeStore, on: Any) -> None:
    """Another type under the same name is refused until it is dropped; older versions show the older one."""
    keys = {"episode_id": ids_of(store), **({"t": [0] * 4} if on == STEP else {})}

    def got(shown: el.EpisodeStore) -> list[Any]:
        return labels(shown, "v") if on != STEP else [one[0] for one in advantages(shown, "v")]

    store.annotate(pl.DataFrame({**keys, "v": [1, 2, 3, 4]}), on=on)
    numbers = store.version
    with pytest.raises(el.errors.InvalidArgumentError):
        store.annotate(pl.DataFrame({**keys, "v": ["a", "b", "c", "d"]}), on=on)
    assert got(store) == [1, 2, 3, 4]
    store.drop_annotation("v")
    assert store.annotations.height == 0
    assert "v" not in (store.steps if on == STEP else store.episodes).collect().columns
    dropped = store.version
    store.annotate(pl.DataFrame({**keys, "v": ["a", "b", "c", "d"]}), on=on)
    assert got(store) == ["a", "b", "c", "d"]
    assert got(el.open(store.path, version=numbers)) == [1, 2, 3, 4]
    old = el.open(store.path, version=dropped)
    assert old.annotations.height == 0
    assert "v" not in {**old[0].annotations, **old[0].step_annotations}
    assert_faces_agree(store)
    assert_faces_agree(old, raw=False)
    store.compact()
    assert got(store) == ["a", "b", "c", "d"]


def test_deleted_episodes_cannot_be_annotated(store: el.EpisodeStore) -> None:
    """An id that was deleted is unknown, for episodes and steps, also through an object that shows it."""
    old = el.open(store.path)
    gone = store[1].id
    store.delete("length = 3")
    for one in (store, old):
        with pytest.raises(el.errors.InvalidArgumentError):
            one.annotate(pl.DataFrame({"episode_id": [gone], "v": [1]}))
        with pytest.raises(el.errors.InvalidArgumentError):
            one.annotate(pl.DataFrame({"episode_id": [gone], "t": [0], "v": [1]}), on=STEP)
    assert store.refresh().annotations.height == 0


def test_an_annotation_of_episodes_has_no_name_of_steps(tmp_path: Path) -> None:
    """Whoever forgets `on` for a frame by episode and t is told so; nothing is added."""
    store = numbered_store(tmp_path / "store", [2, 5])
    ids = store.episodes.collect()["episode_id"]
    with pytest.raises(el.errors.InvalidArgumentError, match=r'on=\("episode_id", "t"\)'):
        store.annotate(pl.DataFrame({"episode_id": ids, "t": [0, 0], "advantage": [1.0, 2.0]}))
    assert store.refresh().version == el.open(store.path).version
    assert "advantage" not in store.episodes.collect_schema()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("first", "second"), [(False, 2), ("a", True), (1, "7"), (1, 1.5), (2**53 + 1, 0.5), (1.5, 2**53 + 1)]
)
def test_values_of_another_type_are_refused_and_not_changed(tmp_path: Path, first: Any, second: Any) -> None:
    """`annotate` never turns a value into one of the type that the annotation has."""
    store = el.create(tmp_path / "store", gymnasium.make("CartPole-v1"))
    el.collect(gymnasium.make("CartPole-v1"), None, store, episodes=1, seed=0)
    ids = [store.refresh()[0].id]
    store.annotate(pl.DataFrame({"episode_id": ids, "label": [first]}))
    with pytest.raises(el.errors.InvalidArgumentError, match="label"):
        store.annotate(pl.DataFrame({"episode_id": ids, "label": [second]}))
    assert store[0].annotations == {"label": first} and type(store[0].annotations["label"]) is type(first)


def test_labels_of_one_episode_and_of_a_view(store: el.EpisodeStore) -> None:
    """A label of one episode leaves the others without, one of a view reaches all of its episodes."""
    store.label(-1, good=False, note="slipped")
    assert labels(store, "good") == [None, None, None, False]
    store.label(store[0].id, good=True)
    store.label(store.filter("length > 3"), note="long", score=np.float32(0.5), tags=["a", "b"])
    assert labels(store, "good") == [True, None, None, False]
    assert labels(store, "note") == [None, None, "long", "long"]
    assert labels(store, "score") == [None, None, 0.5, 0.5]
    assert labels(store, "tags") == [None, None, ["a", "b"], ["a", "b"]]
    store.label(-1, note=None)
    assert labels(store, "note") == [None, None, "long", None]
    store.label(store.filter("length > 100"), good=True)
    assert labels(store, "good") == [True, None, None, False]


def test_labels_can_be_undone(store: el.EpisodeStore) -> None:
    """`label` returns a frame that restores the values before, also where there were none."""
    store.label(1, good=True)
    before = store.label(store.filter("length > 2"), good=False, note="x")
    assert before.to_dict(as_series=False) == {
        "episode_id": ids_of(store)[1:],
        "good": [True, None, None],
        "note": [None] * 3,
    }
    assert labels(store, "good") == [None, False, False, False]
    store.annotate(before)
    assert labels(store, "good") == [None, True, None, None]
    assert labels(store, "note") == [None] * 4


def test_labels_follow_the_episode_not_its_position(store: el.EpisodeStore) -> None:
    """An object at an old version labels the episode that it shows, whatever the newest version has there."""
    old, shown = el.open(store.path), store[0].id
    store.compact(order_by="length", descending=True)
    assert store[0].id != shown
    old.label(0, good=True)
    assert [one.id for one in store.refresh() if one.annotations["good"]] == [shown]


def test_labels_that_cannot_be(store: el.EpisodeStore) -> None:
    """Names and values that no annotation can have are refused, and nothing is written."""
    cases: list[Any] = [
        ({}, "There is no label"),
        ({"good": None}, "no annotation 'good' to clear. There are: none"),
        ({"good": {"a": 1}}, "'good' has the type struct"),
        ({"good": object()}, "cannot be labels"),
        ({"good": 2**70}, "beyond 64 bits"),
        ({"length": 3}, "'length' cannot be the name"),
        ({"length": None}, "'length' cannot be the name"),
        ({"two words": 3}, "two words"),
    ]
    for values, said in cases:
        with case((values, said)):
            with pytest.raises(el.errors.InvalidArgumentError, match=said):
                store.label(0, **values)
            with pytest.raises(el.errors.EpisodeNotFoundError):
                store.label(99, good=True)
            assert el.open(store.path).annotations.height == 0
