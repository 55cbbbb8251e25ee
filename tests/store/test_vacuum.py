"""Vacuum: what nobody needs goes, and nothing that a retained version or a live writer needs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import episodelake as el
from episodelake.store import vacuum as vacuuming
from episodelake.store.delta.checkpoints import write_checkpoint
from episodelake.store.delta.table import Table
from episodelake.store.files import locate
from episodelake.store.tables import table_files
from maintenance_stores import (
    assert_contents,
    assert_faces_agree,
    awkward_store,
    contents,
    files_under,
)
from real_environments import delta_files, numbered_store, values_of, write_numbered
from waiting import PATIENCE

NOW = timedelta(0)


def data_files(store: el.EpisodeStore) -> set[str]:
    """Return the Parquet files of a store, relative to it."""
    return {name for name in files_under(store.path) if name.endswith(".parquet")}


def test_exactly_the_old_files_go(tmp_path: Path) -> None:
    """After a vacuum the Parquet files are those that the Delta tables list; the report is true."""
    store = awkward_store(tmp_path / "store")
    store.compact()
    before = contents(store)
    files = files_under(store.path)
    sizes = {name: (store.path / name).stat().st_size for name in files}
    report = store.vacuum(NOW)
    gone = files - files_under(store.path)
    assert set(report.files) & data_files(store) == set()
    assert list(report.files) == sorted(gone)
    assert report.bytes == sum(sizes[name] for name in gone) > 0
    for table in ("steps", "episodes"):
        assert {str(one) for one in (store.path / table).glob("*.parquet")} == set(
            delta_files(store.path / table)
        )
    assert_contents(store, before)
    assert_contents(el.open(store.path), before)
    assert_faces_agree(store)
    assert store.vacuum(NOW) == el.types.VacuumReport((), 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("age", [timedelta(days=7), timedelta(hours=1), timedelta.max], ids=str)
def test_young_versions_are_retained(tmp_path: Path, age: timedelta) -> None:
    """What was the newest version within the time is kept, however long that is."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    versions = {store.version: [0, 1, 2], store.version - 1: [0, 1]}
    store.delete("length = 3")
    store.compact()
    assert store.vacuum(age) == el.types.VacuumReport((), 0)
    for version, values in versions.items():
        assert values_of(el.open(store.path, version=version)) == values


def test_the_report_names_what_waits(tmp_path: Path) -> None:
    """Files that only young versions need are counted, with their size and the time when they may go."""
    store = numbered_store(tmp_path / "store", [2, 3], seal_every=1)
    store.compact()
    begun = datetime.now(UTC)
    report = store.vacuum()
    now = store.vacuum(NOW, dry_run=True)
    assert (report.waiting, report.waiting_bytes) == (len(now.files), now.bytes) != (0, 0)
    assert report.free_at is not None and abs(report.free_at - timedelta(days=7) - begun) < timedelta(hours=1)
    assert store.vacuum(timedelta.max).free_at is None
    assert store.vacuum(NOW).waiting == 0


def test_what_was_vacuumed_says_so(tmp_path: Path) -> None:
    """Opening a vacuumed version, and reading on in an object at one, are errors that say so."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    version = store.version
    old = el.open(store.path)
    store.compact()
    store.delete("length = 3")
    store.vacuum(NOW)
    with pytest.raises(el.errors.VersionNotFoundError, match="vacuum"):
        el.open(store.path, version=version)
    with pytest.raises(el.errors.CorruptStoreError, match="vacuum"):
        list(old)
    with pytest.raises(el.errors.VersionNotFoundError):
        store.tag("late", version=version)
    assert values_of(old.refresh()) == [0, 2]


def test_versions_that_lost_nothing_stay(tmp_path: Path) -> None:
    """Versions before the newest whose files are all still needed are not spoilt by a vacuum."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    store.vacuum(NOW)
    assert values_of(el.open(store.path, version=store.version - 1)) == [0, 1]


def test_what_a_crash_left_goes(tmp_path: Path) -> None:
    """A file that no version ever named goes; what is not the store's own stays."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    name = Path(delta_files(store.path / "steps")[0])
    orphan = name.with_name("compact.0123456789abcde-000000.parquet")
    orphan.write_bytes(name.read_bytes())
    (store.path / "notes.txt").write_text("mine", "utf-8")
    os.utime(orphan, (0, 0))
    report = store.vacuum(NOW)
    assert [name for name in report.files if not name.startswith("runs/")] == [f"steps/{orphan.name}"]
    assert not orphan.exists()
    assert (store.path / "notes.txt").exists() and (store.path / "store.json").exists()
    assert values_of(store) == [0, 1, 2]


#: Dies in a bulk write: its file of steps is there, and no commit lists it.
DYING_IN_BULK = """
import os, sys
import numpy as np
import episodelake as el
from episodelake.store.delta.table import Table

real = Table.commit

def commit(self, *words, **named):
    if self.path.name == "steps":
        os._exit(9)
    real(self, *words, **named)

Table.commit = commit
with el.open(sys.argv[1]).writer(run="bulk") as writer:
    flags = np.zeros(1000, bool)
    arrays = {"terminations": flags, "truncations": flags, "rewards": np.zeros(1000)}
    observations = np.ones((1001, 2), np.float32)
    writer.write_episode(observations=observations, actions=np.ones(1000, np.int64), **arrays)
"""


@pytest.mark.further
def test_a_segment_that_a_bulk_write_left_uncommitted_goes_after_recovery(tmp_path: Path) -> None:
    """Vacuum leaves such a file alone until the journal of its run was recovered, and then deletes it."""
    store = numbered_store(tmp_path / "store", [2, 3])
    before = files_under(store.path / "steps")
    words = [sys.executable, "-c", DYING_IN_BULK, str(store.path)]
    assert subprocess.run(words, timeout=PATIENCE, check=False).returncode == 9
    (left,) = {name for name in files_under(store.path / "steps") - before if name.endswith(".parquet")}
    assert left not in delta_files(store.path / "steps")
    store.vacuum(NOW)
    assert (store.path / "steps" / left).exists()
    # The journal never had the episode: no recovery brings it back.
    assert [run.episodes for run in el.recover(store.path)] in ([], [0])
    assert f"steps/{left}" in store.vacuum(NOW).files
    assert not (store.path / "steps" / left).exists()
    assert values_of(store.refresh()) == [0, 1]
    assert store.verify().ok


def test_annotation_files_that_nobody_shows_go(tmp_path: Path) -> None:
    """The files of a dropped and of an overwritten annotation of steps go; those that are shown stay."""
    store = numbered_store(tmp_path / "store", [2, 3])
    steps = store.transitions.select("episode_id", "t")
    store.annotate(steps.with_columns(a=pl.lit(1.0)), on=("episode_id", "t"))
    store.annotate(steps.with_columns(b=pl.lit(2.0)), on=("episode_id", "t"))
    store.annotate(steps.with_columns(b=pl.lit(3.0)), on=("episode_id", "t"))
    store.drop_annotation("a")
    report = store.vacuum(NOW)
    assert [name for name in report.files if name.startswith("annotations/")]
    assert [one.step_annotations["b"].tolist() for one in el.open(store.path)] == [[3.0] * 2, [3.0] * 3]


def test_a_longer_age_after_a_shorter_one(tmp_path: Path) -> None:
    """What a vacuum with a short age took is no damage to the next one with a long age."""
    store = numbered_store(tmp_path / "store", [2, 5, 1], seal_every=1)
    store.delete("length < 2")
    store.compact()
    assert store.vacuum(timedelta(0)).files
    assert store.vacuum(dry_run=True).files == store.vacuum().files == ()
    assert store.verify().ok and len(el.open(store.path)) == 2


# Clocks

WEEK = timedelta(days=7).total_seconds()


def date_commits(store: el.EpisodeStore, versions: slice, seconds: float) -> None:
    """Date the files of commits to now plus some seconds, as another clock or a copy of the store does."""
    for table in ("episodes", "steps", "runs"):
        for file in sorted((store.path / table / "_delta_log").glob("*.json"))[versions]:
            os.utime(file, (time.time() + seconds, time.time() + seconds))


def test_no_version_is_older_than_those_before_it(tmp_path: Path) -> None:
    """A commit whose file is dated too early, as by a copy or a clock behind, keeps the version before it."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    old = store.version
    store.delete("length > 2")
    date_commits(store, slice(-1, None), -10 * WEEK)
    assert store.vacuum().files == ()
    assert values_of(el.open(store.path, version=old)) == [0, 1, 2]


def test_old_versions_go_by_their_age(tmp_path: Path) -> None:
    """What was replaced eight days ago goes, and what six days ago stays."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    first = store.version
    store.delete("length = 4")
    date_commits(store, slice(None), -8 * WEEK / 7)
    made = store.version
    store.delete("length = 3")
    date_commits(store, slice(made + 1, None), -6 * WEEK / 7)
    assert store.vacuum().files
    assert values_of(el.open(store.path, version=made)) == [0, 1]
    assert values_of(el.open(store.path)) == [0]
    with pytest.raises(el.errors.VersionNotFoundError, match="vacuum"):
        el.open(store.path, version=first)


def test_nothing_is_kept_by_a_clock_ahead(tmp_path: Path) -> None:
    """With an age of zero only the newest version stays, even if a clock ahead dated the others."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    old = store.version
    store.delete("length > 2")
    date_commits(store, slice(None), 10 * WEEK)
    assert store.vacuum(NOW).files
    with pytest.raises(el.errors.VersionNotFoundError):
        el.open(store.path, version=old)
    assert values_of(el.open(store.path)) == [0] and store.verify().ok


def test_a_damaged_commit_stops_a_vacuum(tmp_path: Path) -> None:
    """A changed byte in a commit before the last checkpoint is an error that names it."""
    store = numbered_store(tmp_path / "store", [2, 3, 4], seal_every=1)
    path = locate(store.path) / "episodes"
    write_checkpoint(path, store.version, checksummed=True)
    file = store.path / "episodes" / "_delta_log" / f"{store.version - 1:020d}.json"
    file.write_bytes(file.read_bytes().replace(b"000", b"001", 1))
    files = files_under(store.path)
    with pytest.raises(el.errors.CorruptStoreError, match=file.name):
        store.vacuum()
    assert files_under(store.path) == files


@pytest.mark.further
def test_a_vacuum_at_any_commit_takes_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run is about to commit stays, if a vacuum looks before that and deletes after it.

    The commits are those of recording, closing and joining runs, which no lock keeps from a vacuum.
    """
    monkeypatch.setattr(table_files, "_MANY", 2)
    monkeypatch.setattr(table_files, "_EVERY", 1)
    store = numbered_store(tmp_path / "store", [2])
    left: list[int] = []
    seen: list[str] = []
    really = vacuuming._delete

    def at(name: str) -> None:
        real = getattr(Table, name)

        def committed(self: Table, *arguments: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] != 0:
                return real(self, *arguments, **options)
            seen.append(f"{name} {self.path.name}")

            def late(*doomed: Any) -> None:
                real(self, *arguments, **options)
                really(*doomed)

            with monkeypatch.context() as patch:
                patch.setattr(vacuuming, "_delete", late)
                store.vacuum(NOW)
            return None

        monkeypatch.setattr(Table, name, committed)

    for name in ("commit", "replace"):
        at(name)
    for number in range(1, 40):
        left[:] = [number]
        with store.writer(run=f"run{number}") as writer:
            write_numbered(writer, number, 3)
            writer.seal()
        if left[0] > 0:
            break
        opened = el.open(store.path)
        assert values_of(opened) == [0, *range(1, number + 1)]
        assert opened.runs.collect().height == number + 1
        assert opened.verify().ok
    assert {"replace runs", "commit runs", "commit steps", "commit episodes"} <= set(seen)
