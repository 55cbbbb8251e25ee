"""What must not grow with a store: files of runs, and what a long-lived process holds."""

import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import deltalake
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from gymnasium.spaces import Box, Discrete

import episodelake as el
from episodelake.store import snapshot
from episodelake.store.delta.log import TableFile
from episodelake.store.delta.table import Table
from episodelake.store.errors import StoreAccessError
from episodelake.store.files import Place
from episodelake.store.tables import table_files
from episodelake.store.tables.table_files import Pointers, read_pointers
from waiting import PATIENCE, wait_until


def make(path: Path) -> el.EpisodeStore:
    """An empty store."""
    return el.create(path, observation_space=Box(-9, 9, (1,)), action_space=Discrete(2))


def play(writer: el.EpisodeWriter, episodes: int = 1) -> None:
    """Write short episodes."""
    for _ in range(episodes):
        writer.write_episode(
            observations=np.zeros((3, 1), np.float32),
            actions=[0, 1],
            rewards=[1.0, 0.0],
            terminations=True,
            truncations=False,
        )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files are many."""
    monkeypatch.setattr(table_files, "_MANY", 3)
    monkeypatch.setattr(table_files, "_EVERY", 1)


def listed(store: el.EpisodeStore) -> list[str]:
    """The files of runs, as the Delta library lists them."""
    return deltalake.DeltaTable(str(store.path / "runs")).file_uris()


def ended(store: el.EpisodeStore) -> dict[str, bool]:
    """Whether each run has ended, read from the raw files."""
    rows = pl.concat([pl.read_parquet(file) for file in listed(store)], how="diagonal")
    assert rows["run_id"].is_unique().all()
    return dict(zip(rows["name"].to_list(), rows["ended_at"].is_not_null().to_list(), strict=True))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("runs", [12, pytest.param(30, marks=pytest.mark.further)])
def test_files_of_runs_are_joined(tmp_path: Path, runs: int) -> None:
    """Closing runs keeps the files of runs few, whatever else goes on, and changes no row."""
    store = make(tmp_path / "s")
    with store.writer(run="long") as long:
        play(long)
        long.seal()
        for number in range(runs):
            with store.writer(run=f"run {number}", metadata={f"key {number % 4}": number}) as writer:
                play(writer)
            assert len(listed(store)) <= 10
        assert ended(store) == {"long": False, **{f"run {number}": True for number in range(runs)}}
        store.refresh().vacuum(timedelta(0))
        play(long)
    assert all(ended(store).values()) and len(ended(store)) == runs + 1
    store.refresh()
    values = store.runs.sort("started_at").select(pl.col("^metadata.key.*$")).collect()
    assert [[value for value in row if value is not None] for row in values.rows()][1:] == [
        [number] for number in range(runs)
    ]
    assert store.query("SELECT count(*) AS runs FROM runs")["runs"].item() == runs + 1
    assert store.verify().ok and len(store) == runs + 2


@pytest.mark.further
@pytest.mark.usefixtures("few")
def test_compact_joins_all_files_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction joins the files of runs that are over, those that were joined before included."""
    store = make(tmp_path / "s")
    with store.writer(run="long") as long:
        play(long)
        long.seal()
        for number in range(20):
            if number == 10:
                monkeypatch.setattr(table_files, "_MANY", 1000)
            with store.writer(run=f"run {number}") as writer:
                play(writer)
        monkeypatch.setattr("episodelake.store.rewrite.compaction._FEW_RUNS", 4)
        store.refresh().compact()
        assert len(listed(store)) == 2
        store.refresh().compact()
        assert len(listed(store)) == 2 and len(ended(store)) == 21
    assert all(ended(store).values())
    assert store.refresh().verify().ok


@pytest.mark.usefixtures("few")
def test_a_failed_join_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files of runs cannot be joined, the run is closed all the same, and a later one joins them."""
    store = make(tmp_path / "s")

    def fail(*arguments: object, **options: object) -> None:
        raise StoreAccessError("no room")

    with monkeypatch.context() as broken:
        broken.setattr(Table, "replace", fail)
        for number in range(6):
            with store.writer(run=f"run {number}") as writer:
                play(writer)
        assert len(listed(store)) == 6
    with store.writer(run="last") as writer:
        play(writer)
    assert len(listed(store)) < 6 and len(ended(store)) == 7
    store.refresh().vacuum(timedelta(0))
    assert store.refresh().verify().ok


@pytest.mark.further
@pytest.mark.usefixtures("few")
def test_runs_that_end_together(tmp_path: Path) -> None:
    """Runs that are closed at the same time join the same files without losing a row."""
    store = make(tmp_path / "s")
    faults: list[BaseException] = []

    def record(name: int) -> None:
        try:
            for number in range(6):
                with el.open(store.path).writer(run=f"run {name} {number}") as writer:
                    play(writer)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=record, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not faults
    assert len(ended(store)) == 24 and all(ended(store).values())
    assert len(listed(store)) < 24 and store.refresh().verify().ok


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts through /proc")
@pytest.mark.further
def test_cycles_leave_nothing_behind(tmp_path: Path) -> None:
    """Recording, following and refreshing for many versions keeps no descriptors and no threads."""
    store = make(tmp_path / "s")
    with store.writer(run="long") as long:
        play(long, 3)
        long.seal()
        loader = store.refresh().loader(8, follow=el.Follow(refresh_seconds=0, newest_episodes=5))
        batches = iter(loader)

        def cycle() -> None:
            play(long, 2)
            long.seal()
            next(batches)
            store.refresh().query("SELECT count(*) FROM episodes")
            with store.writer(run="short") as short:
                play(short)

        for _ in range(5):
            cycle()
        before = held()
        for _ in range(25):
            cycle()

        def has_let_go() -> bool:
            # Threads of the table library end when they have been idle for a while.
            return all(now <= then + 2 for now, then in zip(held(), before, strict=True))

        wait_until(has_let_go, f"no more than {before} descriptors and threads")
        assert len(loader.episodes) == 5


def test_a_short_run_commits_its_row_once(tmp_path: Path) -> None:
    """A run that ends with its first segment has its end in one file and commit; a longer one in two."""
    store = make(tmp_path / "store")
    with store.writer(run="short") as writer:
        play(writer)
    assert deltalake.DeltaTable(str(store.path / "runs")).version() == 1
    assert [path.name.rpartition("-")[2] for path in (store.path / "runs").glob("*.parquet")] == [
        "closed.parquet"
    ]
    with store.writer(run="long") as writer:
        play(writer)
        writer.seal()
        assert ended(store) == {"short": True, "long": False}
        play(writer)
    assert ended(store) == {"short": True, "long": True}
    assert deltalake.DeltaTable(str(store.path / "runs")).version() == 3
    assert len(store.refresh()) == 3


def test_the_log_tells_which_files_of_steps_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQL over steps reads no row of the many files of episodes; the files and rows are those it would read,
    also after a deletion and in an older version.
    """
    store = make(tmp_path / "store")
    for _ in range(3):
        with store.writer() as writer:
            play(writer, 2)
    read: list[int] = []

    def counted(table: Place, files: Sequence[TableFile], schema: pa.Schema) -> Pointers:
        read.append(len(files))
        return read_pointers(table, files, schema)

    monkeypatch.setattr(snapshot, "read_pointers", counted)
    store.refresh()
    names = [file.name for file in store.selection().snapshot.step_files]
    assert store.query("SELECT count(*) FROM steps").item() == 18
    assert not read
    assert names == list(store.selection().snapshot.pointers.segments)
    before = store.version
    store.delete(pl.col("episode_id") == store[3].id)
    assert store.query("SELECT count(*), count(DISTINCT episode_id) FROM steps").row(0) == (15, 5)
    current = store.selection().snapshot
    assert {file.name for file in current.step_files} == set(current.pointers.segments)
    old = el.open(store.path, version=before)
    assert [file.name for file in old.selection().snapshot.step_files] == names
    assert old.query("SELECT count(*) FROM steps").item() == 18
