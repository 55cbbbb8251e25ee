"""Merging and copying: episodes of several stores in one, every one once, and no step touched."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium import spaces

import episodelake as el
from effort import some, with_folders
from episodelake.store.delta.table import Table
from episodelake.store.environments.records import Records
from episodelake.testing.adapters import case
from maintenance_stores import (
    INFOS,
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    files_under,
    ids_of,
    make_awkward_store,
    segments_of,
)
from real_environments import NUMBERED_SPACES, numbered_store, values_of

STEP = ("episode_id", "t")
NOW = timedelta(0)


def shared_files(left: el.EpisodeStore, right: el.EpisodeStore) -> int:
    """Return how many steps files of one store are the same files as some of the other."""
    others = list((right.path / "steps").glob("*.parquet"))
    own = (left.path / "steps").glob("*.parquet")
    return sum(any(os.path.samefile(one, other) for other in others) for one in own)


def test_two_stores_become_one(tmp_path: Path) -> None:
    """Contents, ids, runs and order of stores whose infos differ in kind come through as they were."""
    left = awkward_store(tmp_path / "left")
    right = make_awkward_store(tmp_path / "right", infos=INFOS[::-1])
    report = el.merge([left, right], tmp_path / "both")
    both = el.open(tmp_path / "both")
    assert_contents(both, contents(left) + contents(right))
    assert_faces_agree(both)
    assert report.episodes == 16
    assert report.segments_linked + report.segments_rewritten == 8
    runs = pl.concat([left.runs.collect(), right.runs.collect()], how="diagonal")
    assert both.runs.collect().sort("run_id").equals(runs.sort("run_id").select(both.runs.collect().columns))
    assert both.id not in (left.id, right.id)


@pytest.mark.parametrize("link", [True, False])
def test_files_are_linked_or_copied(tmp_path: Path, link: bool) -> None:
    """With `link` the steps files are the sources' own, without not; either way each store is whole."""
    left, right = (numbered_store(tmp_path / name, [2, 3, 4], seal_every=1) for name in ("left", "right"))
    report = el.merge([left.path, str(right.path)], tmp_path / "both", link=link)
    both = el.open(tmp_path / "both")
    assert report == el.types.MergeReport(6, 6, 0)
    assert shared_files(both, left) == shared_files(both, right) == (3 if link else 0)
    left.delete("true")
    left.vacuum(older_than=NOW)
    assert values_of(both) == [0, 1, 2, 0, 1, 2]
    before = contents(right)
    both.compact()
    both.delete("length = 3")
    assert_contents(right, before)
    assert_faces_agree(both)
    assert_faces_agree(right)


def test_linked_files_are_not_written_to(tmp_path: Path) -> None:
    """No operation on the merged store changes a byte of the source."""
    source = awkward_store(tmp_path / "source")
    source.annotate(source.steps.select("episode_id", "t", w=pl.col("t")), on=STEP)
    files = {name: (source.path / name).read_bytes() for name in files_under(source.path)}
    el.merge([source], tmp_path / "into")
    into = el.open(tmp_path / "into")
    into.annotate(into.steps.select("episode_id", "t", w=pl.col("t") * 2), on=STEP)
    into.compact(order_by="length")
    into.delete("length > 2")
    into.vacuum(older_than=NOW)
    assert {name: (source.path / name).read_bytes() for name in files_under(source.path)} == files


@pytest.mark.further
def test_sources_at_an_old_version_and_tags(tmp_path: Path) -> None:
    """A source gives the version that it shows, also when newer ones moved or deleted its episodes."""
    source = awkward_store(tmp_path / "source")
    source.tag("all")
    before = contents(source)
    source.delete("length > 2")
    source.compact(order_by="length")
    old = el.open(source.path, version="all")
    assert el.merge([old], tmp_path / "into").episodes == 8
    into = el.open(tmp_path / "into")
    assert_contents(into, before)
    assert_faces_agree(into)
    assert_contents(old.copy(tmp_path / "copy"), before)


def test_no_source(tmp_path: Path) -> None:
    """Nothing to merge is an error, and creates nothing."""
    with pytest.raises(el.errors.InvalidArgumentError):
        el.merge([], tmp_path / "into")
    with pytest.raises(el.errors.StoreNotFoundError):
        el.merge([tmp_path / "nowhere"], tmp_path / "into")
    assert not (tmp_path / "into").exists()


OTHER_SPACES: dict[str, dict[str, Any]] = {
    "shape": {**NUMBERED_SPACES, "observation_space": spaces.Box(-np.inf, np.inf, (3,), np.float32)},
    "dtype": {**NUMBERED_SPACES, "observation_space": spaces.Box(-np.inf, np.inf, (2,), np.float64)},
    "bounds": {**NUMBERED_SPACES, "observation_space": spaces.Box(-1, 1, (2,), np.float32)},
    "actions": {**NUMBERED_SPACES, "action_space": spaces.Discrete(11)},
    "rewards": {**NUMBERED_SPACES, "reward_shape": (2,)},
}


@pytest.mark.parametrize("kind", OTHER_SPACES)
def test_other_spaces_are_refused(tmp_path: Path, kind: str) -> None:
    """A source with other spaces or rewards is refused before anything is done, also as the last one."""
    store = numbered_store(tmp_path / "store", [2, 3])
    more = numbered_store(tmp_path / "more", [4])
    other = el.create(tmp_path / "other", **OTHER_SPACES[kind])
    version = store.version
    with pytest.raises(el.errors.SpaceMismatchError):
        el.merge([more, other], store)
    assert el.open(store.path).version == version
    with pytest.raises(el.errors.SpaceMismatchError):
        el.merge([store, other], tmp_path / "into")
    assert not (tmp_path / "into").exists()


def _annotated(value: Any, on: str | tuple[str, ...], name: str = "v") -> Any:
    keys = [on] if isinstance(on, str) else list(on)
    return lambda store: store.annotate(
        store.steps.filter(t=0).select(*keys, pl.lit(value).alias(name)), on=on
    )


def _environment(kwargs: dict[str, Any]) -> Any:
    return lambda store: store.save_environment(gymnasium.make("CartPole-v1", **kwargs), name="pole")


#: What two stores cannot have both under one name, and the error.
RIVALS = {
    "steps": (_annotated(1.0, STEP), _annotated("x", STEP), el.errors.InvalidArgumentError),
    "episodes": (_annotated(1, "episode_id"), _annotated(1.5, "episode_id"), el.errors.InvalidArgumentError),
    "case": (_annotated(1, STEP), _annotated(1, STEP, "V"), el.errors.InvalidArgumentError),
    "artifact": (
        lambda store: store.artifacts.add(b"one", name="v"),
        lambda store: store.artifacts.add(b"two", name="v"),
        el.errors.StoreExistsError,
    ),
    "environment": (
        _environment({}),
        _environment({"max_episode_steps": 9}),
        el.errors.StoreExistsError,
    ),
}


_RIVALS_OF_ONE_NAME_ARE_REFUSED: Any = [*itertools.product(["one of them", "another", "new"], RIVALS)]


@pytest.mark.parametrize("cases", some(_RIVALS_OF_ONE_NAME_ARE_REFUSED, 6))
def test_rivals_of_one_name_are_refused_before_anything_is_written(tmp_path: Path, cases: Any) -> None:
    """The error names both stores, and no file is new or changed, wherever the second one stands."""
    for folder, (into, what) in with_folders(cases, tmp_path):
        with case((into, what)):
            left, right, third = (numbered_store(folder / name, [2]) for name in ("left", "right", "third"))
            first, second, expected = RIVALS[what]
            first(left), second(right)
            target = {"one of them": left.path, "another": third.path, "new": folder / "new"}[into]
            before = files_under(folder) - {"left/journal/maintenance.lock"}
            sources = [right] if into == "one of them" else [third, left.refresh(), right.refresh()]
            with pytest.raises(expected, match=r"(?s)(left.*right|right.*left)"):
                el.merge(sources, target)
            assert (
                files_under(folder) - {f"{name}/journal/maintenance.lock" for name in ("left", "third")}
                <= before
            )
            assert (folder / "new").exists() is False


@pytest.mark.parametrize("count", [3, pytest.param(1001, marks=pytest.mark.further)])
def test_many_sources_share_the_folder_of_an_annotation(tmp_path: Path, count: int) -> None:
    """However many sources there are, the list of annotations stays readable and short."""
    one, other = (numbered_store(tmp_path / name, [2]) for name in ("one", "other"))
    for store, value in ((one, 1.0), (other, 2.0)):
        store.annotate(store.steps.select("episode_id", "t", v=pl.lit(value)), on=STEP)
    assert el.merge([one] * (count - 1) + [other], tmp_path / "into").episodes == 2
    into = el.open(tmp_path / "into")
    assert into.steps.collect()["v"].to_list() == [1.0] * 3 + [2.0] * 3
    assert len(into.context.snapshot.annotation_files.annotations["v"].ids) == 1
    into.annotate(into.steps.select("episode_id", "t", v=pl.lit(3.0)), on=STEP)
    assert set(into.steps.collect()["v"]) == {3.0} and into.verify().ok


def test_a_missing_artifact_is_met_before_the_commit(tmp_path: Path) -> None:
    """A source whose named artifact has lost its content leaves the target as it was."""
    source, target = (numbered_store(tmp_path / name, [2]) for name in ("source", "target"))
    source.artifacts.add(b"hello", name="greeting")
    for file in (source.path / "artifacts").iterdir():
        file.unlink()
    with pytest.raises(el.errors.CorruptStoreError, match="greeting"):
        el.merge(source, target.path)
    after = el.open(target.path)
    assert (ids_of(after), after.runs.collect().height) == (ids_of(target), 1)


@pytest.mark.parametrize("new", [False, True])
def test_an_error_behind_the_commit_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    """A warning says that the episodes are in, and the same call brings the rest; a new store is not made."""
    source, target = (numbered_store(tmp_path / name, [2]) for name in ("source", "target"))
    source.artifacts.add(b"hello", name="greeting")
    into = tmp_path / "new" if new else target.path

    def full(*_: Any, **__: Any) -> None:
        raise el.errors.StoreAccessError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(Records, "write", full)
        if new:
            with pytest.raises(el.errors.StoreAccessError, match="full"):
                el.merge(source, into)
        else:
            with pytest.warns(RuntimeWarning, match="The 1 episodes are in .* merge again to bring those"):
                el.merge(source, into)
    assert into.exists() is not new
    assert el.merge(source, into).episodes == int(new)
    assert el.open(into).artifacts.get("greeting") == b"hello"


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("kind", ["compact", "delete", "annotate", "drop", "merge"])
def test_an_operation_that_raises_was_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, made: bool
) -> None:
    """An error of the last commit is raised only if the commit was not made, though the system said so."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    store.annotate(store.episodes.select("episode_id", v=pl.lit(1)))
    other = numbered_store(tmp_path / "other", [4])
    calls = {
        "compact": store.compact,
        "delete": lambda: store.delete("length > 2"),
        "annotate": lambda: store.annotate(store.episodes.select("episode_id", w=pl.lit(1))),
        "drop": lambda: store.drop_annotation("v"),
        "merge": lambda: el.merge(other, store),
    }
    replace, version = Table.replace, store.version

    def failing(self: Table, *arguments: Any, **options: Any) -> None:
        if self.path.name == "episodes":
            if made:
                replace(self, *arguments, **options)
            raise el.errors.StoreAccessError("The server was away for a moment.")
        replace(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "replace", failing)
        if made:
            calls[kind]()
        else:
            with pytest.raises(el.errors.StoreAccessError, match="away for a moment"):
                calls[kind]()
    assert (el.open(store.path).version > version) is made
    assert el.open(store.path).verify().ok


@pytest.mark.parametrize("first", ["annotation", "column"])
def test_an_annotation_against_a_recorded_column(tmp_path: Path, first: str) -> None:
    """What is an annotation here and a recorded column there is refused, or both are told apart."""
    annotated = numbered_store(tmp_path / "annotated", [2])
    annotated.annotate(annotated.steps.select("episode_id", "t", height=pl.lit(9.0)), on=STEP)
    recorded = el.create(tmp_path / "recorded", **NUMBERED_SPACES)
    with recorded.writer() as writer:
        episode = writer.begin(np.zeros(2, np.float32), extra={"height": 1.5})
        episode.append(1, 1.0, np.ones(2, np.float32), terminated=True, extra={"height": 2.5})
        episode.end()
    sources = [annotated, recorded.refresh()]
    try:
        el.merge(sources if first == "annotation" else sources[::-1], tmp_path / "into")
    except el.errors.InvalidArgumentError:
        return
    found = {len(one): one for one in el.open(tmp_path / "into")}
    assert list(found[1].extra["height"]) == [1.5, 2.5]
    assert found[2].step_annotations["height"].tolist() == [9.0] * 3


@pytest.mark.further
def test_kinds_that_contradict(tmp_path: Path) -> None:
    """An info that is a number here, a text there and a list elsewhere comes back as it was, in any order."""
    stores = []
    for number, value in enumerate([1, "one", [1, 2], 1.5, {"deep": 1}]):
        store = el.create(tmp_path / f"source{number}", **NUMBERED_SPACES)
        with store.writer(metadata={"x": value}) as writer:
            episode = writer.begin(np.zeros(2, np.float32), {"x": value}, metadata={"x": value})
            episode.append(
                1, 1.0, np.ones(2, np.float32), terminated=True, info={"x": value}, policy={"x": value}
            )
            episode.end()
        stores.append(store.refresh())
    for number, order in enumerate([stores, stores[::-1]]):
        el.merge(order, tmp_path / f"into{number}")
        into = el.open(tmp_path / f"into{number}")
        assert_contents(into, [one for store in order for one in contents(store)])
        assert_faces_agree(into)
        into.compact()
        assert_contents(into, [one for store in order for one in contents(store)])
        assert_faces_agree(into)
        with into.writer() as writer:
            episode = writer.begin(np.zeros(2, np.float32), {"x": b"new"})
            episode.append(1, 1.0, np.ones(2, np.float32), terminated=True)
            episode.end()
        assert into.refresh()[-1].infos[0] == {"x": b"new"}


def test_keys_that_differ_only_in_case(tmp_path: Path) -> None:
    """An info `speed` here and `Speed` there come back under their own names."""
    stores = []
    for key in ("speed", "Speed", "SPEED"):
        store = el.create(tmp_path / f"source-{key}", **NUMBERED_SPACES)
        with store.writer() as writer:
            episode = writer.begin(np.zeros(2, np.float32), {key: 1.5}, metadata={key: 1})
            episode.append(1, 1.0, np.ones(2, np.float32), terminated=True, info={key: 2.5})
            episode.end()
        stores.append(store.refresh())
    el.merge(stores, tmp_path / "into")
    into = el.open(tmp_path / "into")
    assert [one.infos for one in into] == [[{key: 1.5}, {key: 2.5}] for key in ("speed", "Speed", "SPEED")]
    assert [one.metadata for one in into] == [{key: 1} for key in ("speed", "Speed", "SPEED")]
    assert_faces_agree(into)


def test_sources_whose_segments_have_equal_names(tmp_path: Path) -> None:
    """Two copies of one store, changed in different ways, meet again without taking each other's files."""
    source = numbered_store(tmp_path / "source", [2, 3, 4, 5], seal_every=2)
    one, two = source.copy(tmp_path / "one"), source.copy(tmp_path / "two", link=True)
    one.delete("length = 2")
    two.delete("length in (3, 4, 5)")
    into = el.create(tmp_path / "into", **NUMBERED_SPACES)
    assert el.merge([one, two], into).episodes == 4
    assert values_of(into.refresh()) == [1, 2, 3, 0]
    assert segments_of(into)
    assert_faces_agree(into)


def test_copy_refuses(tmp_path: Path) -> None:
    """A wrong condition creates nothing, and what is there already is not touched."""
    store = numbered_store(tmp_path / "store", [2, 3])
    with pytest.raises(el.errors.QueryError):
        store.copy(tmp_path / "copy", "no_such > 1")
    assert not (tmp_path / "copy").exists()
    for _ in range(2):
        with pytest.raises(el.errors.StoreExistsError):
            store.copy(store.path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine", "utf-8")
    with pytest.raises(el.errors.StoreExistsError):
        store.copy(tmp_path / "other")
    assert files_under(tmp_path / "other") == {"file"}
    assert values_of(el.open(store.path)) == [0, 1]


def test_both_sides_need_the_json_column(tmp_path: Path) -> None:
    """A source with values of two kinds under a metadata key meets a store that has a third kind there."""
    stores = []
    for name, kept in (("source", [1, None]), ("into", ["text"])):
        store = el.create(tmp_path / name, **NUMBERED_SPACES)
        with store.writer() as writer:
            for value in kept:
                episode = writer.begin(np.zeros(2, np.float32), {"x": value}, metadata={"x": value})
                episode.append(1, 1.0, np.ones(2, np.float32), terminated=True, info={"x": value})
                episode.end()
        stores.append(store.refresh())
    source, into = stores
    expected = contents(into) + contents(source)
    assert el.merge([source], into).episodes == 2
    assert_contents(into.refresh(), expected)
    assert_faces_agree(into)
