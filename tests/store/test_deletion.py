"""Deletion: what was asked for is gone for every reader and never comes back; all else is as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import episodelake as el
from effort import some, with_folders
from episodelake.store.delta.table import Table
from episodelake.testing.adapters import case
from maintenance_stores import (
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    raw_frame,
    segments_of,
)
from real_environments import NUMBERED_SPACES, numbered_store
from waiting import PATIENCE


def test_segments_without_doomed_episodes_stay(tmp_path: Path) -> None:
    """Files that hold nothing of what goes are not written anew."""
    store = numbered_store(tmp_path / "store", [2, 3, 4, 5], seal_every=2)
    first, last = (set(store[part].episodes.collect()["segment"]) for part in (slice(0, 2), slice(2, 4)))
    assert store.delete("length = 5") == el.types.DeleteReport(1, 5, 1)
    assert first <= segments_of(store)
    assert not last & segments_of(store)


def test_deleting_in_an_empty_store(tmp_path: Path) -> None:
    """An empty store has nothing to delete; a wrong column is an error there too."""
    store = el.create(tmp_path / "store", **NUMBERED_SPACES)
    assert store.delete("true") == el.types.DeleteReport(0, 0, 0)
    with pytest.raises(el.errors.QueryError):
        store.delete("no_such > 1")


_A_WRONG_CONDITION_DELETES_NOTH: Any = [
    "no_such > 1",
    "",
    "length >",
    "true; delete from episodes",
    "true) or (1=1",
    "length",
    "'x'",
    pl.col("no_such"),
]


@pytest.mark.parametrize("cases", some(_A_WRONG_CONDITION_DELETES_NOTH, 4))
def test_a_wrong_condition_deletes_nothing(tmp_path: Path, cases: Any) -> None:
    """What is no condition is refused, and every episode stays."""
    for folder, condition in with_folders(cases, tmp_path):
        with case(condition):
            store = numbered_store(folder / "store", [2, 3])
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
