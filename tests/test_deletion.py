"""Deletion: what was asked for is gone for every reader and never comes back; all else is as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import episodelake as el
from episodelake.store.delta.table import Table
from maintenance_stores import (
    INFOS,
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    crashed_copy,
    ids_of,
    raw_frame,
    segments_of,
    write_awkward,
)
from real_environments import NUMBERED_SPACES, numbered_store, values_of, write_numbered
from waiting import PATIENCE, wait_for_journal


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "condition",
    [
        "length > 3",
        pl.col("length") > 3,
        "\"metadata.label\" = 'm1'",
        pl.col("episode_return").is_nan(),
        "terminated",
    ],
    ids=str,
)
def test_only_what_was_asked_for_goes(tmp_path: Path, condition: str | pl.Expr) -> None:
    """The rest of an awkward store keeps contents, order and ids; the report counts what went."""
    store = awkward_store(tmp_path / "store")
    doomed = set(ids_of(store.filter(condition)))
    before = contents(store)
    gone = [one for one in before if one["id"] in doomed]
    files = set(store.filter(condition).episodes.select("segment").collect()["segment"].to_list())
    report = store.delete(condition)
    assert report == el.types.DeleteReport(len(gone), sum(one["length"] for one in gone), len(files))
    assert 0 < len(gone) < 8
    assert_contents(store, [one for one in before if one["id"] not in doomed])
    assert_faces_agree(store)
    with pytest.raises(el.errors.EpisodeNotFoundError):
        store[gone[0]["id"]]


def test_a_dry_run_says_it_and_does_not_do_it(tmp_path: Path) -> None:
    """The dry run reports the same numbers, and leaves version, contents and files alone."""
    store = awkward_store(tmp_path / "store")
    before, version = contents(store), store.version
    files = sorted(store.path.rglob("*.parquet"))
    dry = store.delete("length > 3", dry_run=True)
    assert el.open(store.path).version == version
    assert sorted(store.path.rglob("*.parquet")) == files
    assert_contents(store, before)
    assert store.delete("length > 3") == dry


def test_segments_without_doomed_episodes_stay(tmp_path: Path) -> None:
    """Files that hold nothing of what goes are not written anew."""
    store = numbered_store(tmp_path / "store", [2, 3, 4, 5], seal_every=2)
    first, last = (set(store[part].episodes.collect()["segment"]) for part in (slice(0, 2), slice(2, 4)))
    assert store.delete("length = 5") == el.types.DeleteReport(1, 5, 1)
    assert first <= segments_of(store)
    assert not last & segments_of(store)


def test_deleting_everything(tmp_path: Path) -> None:
    """An emptied store is an empty store: readable, queryable, compactable, and new episodes come in."""
    store = awkward_store(tmp_path / "store")
    assert store.delete("true").episodes == 8
    assert len(store) == 0 and list(store) == []
    assert store.steps.collect().height == 0
    assert store.sql("select count(*) from steps").fetchall() == [(0,)]
    assert_faces_agree(store)
    assert store.delete("true") == el.types.DeleteReport(0, 0, 0)
    assert store.compact().episodes == 0
    with store.writer(run="new") as writer:
        write_awkward(writer, 3, 2, INFOS[1])
    assert len(store.refresh()) == 1
    assert_faces_agree(store)


def test_deleting_nothing_makes_no_version(tmp_path: Path) -> None:
    """A condition that nothing fulfils, and one that was carried out before, change nothing."""
    store = numbered_store(tmp_path / "store", [2, 3])
    version = store.version
    assert store.delete("length > 100") == el.types.DeleteReport(0, 0, 0)
    assert store.version == version
    assert store.delete("length = 2").episodes == 1
    version = store.version
    assert store.delete("length = 2") == el.types.DeleteReport(0, 0, 0)
    assert el.open(store.path).version == version


def test_deleting_in_an_empty_store(tmp_path: Path) -> None:
    """An empty store has nothing to delete; a wrong column is an error there too."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    assert store.delete("true") == el.types.DeleteReport(0, 0, 0)
    with pytest.raises(el.errors.QueryError):
        store.delete("no_such > 1")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "condition",
    [
        "no_such > 1",
        "",
        "length >",
        "true; delete from episodes",
        "true) or (1=1",
        "length",
        "'x'",
        pl.col("no_such"),
    ],
    ids=str,
)
def test_a_wrong_condition_deletes_nothing(tmp_path: Path, condition: str | pl.Expr) -> None:
    """What is no condition is refused, and every episode stays."""
    store = numbered_store(tmp_path / "store", [2, 3])
    version = store.version
    with pytest.raises(el.errors.QueryError):
        store.delete(condition)
    assert el.open(store.path).version == version
    assert len(el.open(store.path)) == 2


@pytest.mark.parametrize("condition", ["seed > -1", pl.col("seed") > -1, "not (seed < 0)"], ids=str)
def test_null_is_not_true(tmp_path: Path, condition: str | pl.Expr) -> None:
    """An episode for which the condition is NULL stays."""
    store = awkward_store(tmp_path / "store")
    assert store.delete(condition).episodes == 4
    assert [one.seed for one in store] == [None] * 4


def test_older_versions_show_them(tmp_path: Path) -> None:
    """An object, a view, a lazy frame and a version from before still read the deleted episodes."""
    store = awkward_store(tmp_path / "store")
    before, version = contents(store), store.version
    old = el.open(store.path)
    view, lazy = old.filter("length > 3"), old.steps
    of_view, rows = contents(view), lazy.collect().height
    store.delete("length > 3")
    store.compact()
    assert_contents(old, before)
    assert_contents(view, of_view)
    assert lazy.collect().height == rows
    assert_contents(el.open(store.path, version=version), before)
    assert_faces_agree(old, raw=False)


def test_through_an_object_at_an_old_version(tmp_path: Path) -> None:
    """Through an object at an old version, what fulfils the condition in the newest version goes."""
    store = numbered_store(tmp_path / "store", [2, 3, 2, 4], seal_every=1)
    old = el.open(store.path, version=store.version - 2)
    assert len(old) == 2
    report = old.delete("length = 2")
    assert report.episodes == 2
    assert values_of(old) == [1, 3]
    assert old.version == el.open(store.path).version


def test_first_middle_and_last_of_a_segment(tmp_path: Path) -> None:
    """Whatever stands around a deleted episode in its file is untouched."""
    for number in range(3):
        store = numbered_store(tmp_path / f"store{number}", [3, 4, 5])
        before = contents(store)
        store.delete(f"number = {number}")
        assert_contents(store, before[:number] + before[number + 1 :])
        assert_faces_agree(store)


def test_an_episode_longer_than_a_row_group(tmp_path: Path) -> None:
    """A very long episode goes from among short ones; and stays when these go."""
    length = 200_000
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    observations = np.random.default_rng(0).normal(size=(length + 1, 2)).astype(np.float32)
    with store.writer() as writer:
        write_numbered(writer, 1, 3)
        writer.write_episode(
            observations=observations,
            actions=np.arange(length) % 10,
            rewards=np.ones(length),
            terminations=True,
            truncations=False,
        )
        write_numbered(writer, 3, 2)
    other = store.refresh().copy(tmp_path / "other")
    assert store.delete("length > 100") == el.types.DeleteReport(1, length, 1)
    assert values_of(store) == [1, 3]
    assert_faces_agree(store)
    other.delete("length < 100")
    assert np.array_equal(other[0].observations, observations)
    assert other.sql("select count(*), sum(reward) from transitions").fetchall() == [(length, length)]


def test_beside_an_open_writer(tmp_path: Path) -> None:
    """Deleting what an open writer has sealed bothers neither; it goes on, and nothing comes back."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer(run="live") as writer:
        pending = writer.begin(np.array([7, 0], np.float32))
        pending.append(1, 1.0, np.array([7, 1], np.float32))
        for value in range(3):
            write_numbered(writer, value, 2)
        writer.seal()
        assert store.delete("number in (1, 3)").episodes == 2
        write_numbered(writer, 3, 2)
        writer.seal()
        store.refresh()
        assert values_of(store) == [1, 3]
        store.delete("true")
    assert values_of(store.refresh()) == [7]
    el.recover(store.path)
    assert values_of(store.refresh()) == [7]
    assert_faces_agree(store)


@pytest.mark.sample(1)
@pytest.mark.parametrize("compacted", [False, True])
def test_deleted_episodes_do_not_come_back_from_a_journal(tmp_path: Path, compacted: bool) -> None:
    """A journal that has the rows of deleted episodes brings none back, however often it is recovered."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer(run="dying", flush_seconds=0.01) as writer:
        pending = writer.begin(np.array([9, 0], np.float32))
        pending.append(1, 1.0, np.array([9, 1], np.float32))
        for value in range(4):
            write_numbered(writer, value, 3)
            if value % 2:
                writer.seal()
        if compacted:
            store.compact()
        store.delete('"metadata.value" in (0, 3)')
        assert any((store.path / "journal").rglob("*.frames"))
        path = crashed_copy(store, tmp_path / "crashed")
        store.delete("true")
        emptied = crashed_copy(store, tmp_path / "emptied")
    for one, expected in ((path, [1, 2]), (emptied, [])):
        el.recover(one)
        with el.open(one).writer(run="next") as writer:
            write_numbered(writer, 5, 2)
        recovered = el.open(one)
        assert [value for value in values_of(recovered) if value < 4] == expected
        assert values_of(recovered)[-1] == 5
        assert_faces_agree(recovered)


def test_recovery_brings_what_was_never_sealed(tmp_path: Path) -> None:
    """Deleting everything that is visible does not touch finished episodes that wait in a dead journal."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    with store.writer(run="dying", durability="fsync", flush_seconds=0.01, seal_seconds=1e6) as writer:
        write_numbered(writer, 0, 3)
        writer.seal()
        write_numbered(writer, 1, 3)
        write_numbered(writer, 2, 3)
        wait_for_journal(store.path / "journal" / writer.run_id, 6, ended=2, first=1)
        path = crashed_copy(store, tmp_path / "crashed")
    el.open(path).delete("true")
    assert [one.episodes for one in el.recover(path)] == [2]
    recovered = el.open(path)
    assert values_of(recovered) == [1, 2]
    assert_faces_agree(recovered)


def test_a_filter_on_annotations(tmp_path: Path) -> None:
    """Labels that were given later can say what goes."""
    store = numbered_store(tmp_path / "store", [2, 3, 4])
    store.annotate(store.episodes.select("episode_id", bad=pl.col("length") == 3))
    assert store.delete("bad").episodes == 1
    assert values_of(store) == [0, 2]
    assert [one.annotations for one in store] == [{"bad": False}] * 2


def test_returns_and_vector_rewards_stay(tmp_path: Path) -> None:
    """Vector rewards of those that stay are as they were."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES, reward_shape=(2,))
    with store.writer() as writer:
        for number in range(3):
            episode = writer.begin(np.zeros(2, np.float32))
            episode.append(0, np.array([number, -0.5]), np.ones(2, np.float32), truncated=True)
            episode.end()
    before = contents(store.refresh())
    store.delete("number = 1")
    assert_contents(store, [before[0], before[2]])


def test_history_and_progress(tmp_path: Path) -> None:
    """The history names it, and the progress reaches its end."""
    store = numbered_store(tmp_path / "store", [2, 3, 4])
    calls: list[tuple[int, int]] = []
    store.delete("length = 3", progress=lambda done, total: calls.append((done, total)))
    assert store.history().row(0, named=True)["operation"] == "delete"
    assert calls and calls[-1][0] == calls[-1][1]


def test_an_error_in_the_progress_changes_nothing(tmp_path: Path) -> None:
    """Whoever interrupts a deletion has the store as it was, and may delete again."""
    store = awkward_store(tmp_path / "store")
    before, version = contents(store), store.version

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.delete("length > 3", progress=stop)
    assert el.open(store.path).version == version
    assert_contents(store, before)
    store.delete("length > 3")
    assert_faces_agree(store)


def test_what_went_leaves_no_row_in_raw_tables(tmp_path: Path) -> None:
    """After deletion of one of two in a file, other engines find no row of it either."""
    store = numbered_store(tmp_path / "store", [2, 3, 4, 5], seal_every=2)
    gone = store[1].id
    store.delete(f"episode_id = '{gone}'")
    for table in ("steps", "episodes"):
        frame = pl.read_delta(str(store.path / table))
        assert gone not in frame["episode_id"].to_list()


KILLED = """
import os, sys
import episodelake as el
from episodelake.store.delta.table import Table

real = Table.replace

def replace(self, *words, **named):
    if self.path.name == 'episodes':
        os._exit(9)
    real(self, *words, **named)

Table.replace = replace
store = el.open(sys.argv[1])
store.delete("length > 3")
"""
AFTERWARDS: dict[str, Callable[[el.EpisodeStore], object]] = {
    "recover": lambda store: el.recover(store.path),
    "a writer": lambda store: store.writer().close(),
    "tag": lambda store: store.tag("now"),
    "annotate": lambda store: store.annotate(store.episodes.select("episode_id", x=pl.lit(1))),
    "vacuum": lambda store: store.vacuum(timedelta(0)),
    "delete": lambda store: store.delete("false"),
    "repair": lambda store: store.verify(repair=True),
}


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a store whose process was killed between the two commits of a deletion."""
    store = awkward_store(tmp_path_factory.mktemp("half") / "store")
    words = [sys.executable, "-c", KILLED, str(store.path)]
    assert subprocess.run(words, timeout=PATIENCE, check=False).returncode == 9
    return store.path


@pytest.mark.sample(2)
@pytest.mark.parametrize("next_one", AFTERWARDS)
def test_after_a_kill_between_the_commits_the_tables_agree_again(
    half_done: Path, tmp_path: Path, next_one: str
) -> None:
    """Other engines find every step of every episode again after whatever comes next, and no others."""
    store = el.open(shutil.copytree(half_done, tmp_path / "store"))
    assert set(raw_frame(store, "steps")["episode_id"]) < set(raw_frame(store, "episodes")["episode_id"])
    before = contents(store)
    AFTERWARDS[next_one](store)
    assert_contents(store.refresh(), before, without=("annotations",))
    assert_faces_agree(store)
    assert store.verify().ok
    assert not list((store.path / "journal").glob("*.unfinished"))


@pytest.mark.further
def test_an_error_between_the_commits_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised between the commits, before or after the second, the tables agree at once."""
    real = Table.replace
    for error, late in ((KeyboardInterrupt, False), (OSError, True)):
        store = awkward_store(tmp_path / error.__name__)
        before = contents(store)

        def replace(
            self: Table, *words: object, error: type = error, late: bool = late, **named: object
        ) -> None:
            if self.path.name == "episodes" and not late:
                raise error
            real(self, *words, **named)  # type: ignore[arg-type]
            if self.path.name == "episodes":
                raise error

        with monkeypatch.context() as patch:
            patch.setattr(Table, "replace", replace)
            with pytest.raises(error):
                store.delete("length > 3")
        assert_contents(store.refresh(), [one for one in before if not late or one["length"] <= 3])
        assert_faces_agree(store)
        assert not list((store.path / "journal").glob("*.unfinished"))
        store.delete("length > 3")
        assert_faces_agree(store)
