"""Logs are cleaned behind checkpoints, and whoever slept meanwhile goes on as if nothing had been deleted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

import episodelake as el
from conformance import Backend, FolderBackend, ObjectBackend, assert_numbered, fill
from episodelake.store import vacuum
from episodelake.store.delta import checkpoints
from episodelake.store.delta import table as delta_table
from episodelake.store.delta.checkpoints import write_checkpoint
from episodelake.store.delta.log import commit_name
from episodelake.store.files import locate
from episodelake.store.files.local import LocalPlace
from independent_checks import assert_agree
from independent_tables import Refused, read_table
from object_server import shared_server
from real_environments import NUMBERED_SPACES, values_of, write_numbered
from waiting import wait_until

DAY = 24 * 3600.0
TABLES = ("runs", "episodes", "steps")
NOW = timedelta(0)


@pytest.fixture(params=["folder", "object store"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A place for stores, and a spool folder of the test's own."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    (tmp_path / "stores").mkdir()
    return FolderBackend(tmp_path / "stores") if request.param == "folder" else ObjectBackend(shared_server())


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth commit writes a checkpoint."""
    monkeypatch.setattr(delta_table, "_CHECKPOINT_EVERY", 5)
    monkeypatch.setattr(delta_table, "_REMOTE_CHECKPOINT_EVERY", 5)


@pytest.fixture
def eager(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every version is old as soon as it is replaced."""
    monkeypatch.setattr(checkpoints, "_RETENTION_SECONDS", -3600.0)


def set_clock(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Give this process a clock that is ahead by some seconds, or behind."""
    real_time, real_time_ns = time.time, time.time_ns
    patch.setattr(time, "time", lambda: real_time() + seconds)
    patch.setattr(time, "time_ns", lambda: real_time_ns() + int(seconds * 1e9))


def date_logs(path: Path, seconds: float) -> None:
    """Date the files of all logs to now plus some seconds."""
    for file in path.glob("*/_delta_log/*"):
        os.utime(file, (time.time() + seconds, time.time() + seconds))


def versions(path: Path, table: str, kind: str = "json") -> list[int]:
    """The versions of a table's commits, or of its checkpoints."""
    return sorted(int(file.name[:20]) for file in (path / table / "_delta_log").glob(f"0*.{kind}"))


def old_store(path: Path, monkeypatch: pytest.MonkeyPatch, *, days: float = 3.0) -> el.EpisodeStore:
    """A store of eight episodes, a run and a seal each, that were recorded some days ago."""
    with monkeypatch.context() as patch:
        set_clock(patch, -days * DAY)
        store = el.create(path, **NUMBERED_SPACES)
        for value in range(8):
            fill(store, [value], seal_every=1)
    date_logs(path, -days * DAY)
    return store


def read_by_others(path: Path) -> dict[str, int]:
    """The rows of each table as Polars sees them; the Delta library must see the same files."""
    rows = {table: pl.scan_delta(str(path / table)).select(pl.len()).collect().item() for table in TABLES}
    for table in TABLES:
        assert DeltaTable(str(path / table)).to_pyarrow_table().num_rows == rows[table]
        assert read_table(path, table).version == DeltaTable(str(path / table)).version()
    return rows


def assert_whole(path: Path, values: list[int]) -> None:
    """Every reader finds exactly these episodes, and the store verifies."""
    store = el.open(path)
    assert_numbered(store, values, ordered=False, engines=True)
    assert store.verify().ok
    assert len(assert_agree(path)) == len(values)
    assert read_by_others(path)["episodes"] == len(values)


# What goes


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_old_commits_of_runs_and_steps_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint cleans the logs of runs and steps up to the one before it; the history stays."""
    path = tmp_path / "store"
    store = old_store(path, monkeypatch)
    newest = {table: versions(path, table)[-1] for table in TABLES}
    for value in range(8, 16):
        fill(store, [value])
    for table in ("runs", "steps"):
        first, *_ = versions(path, table, "checkpoint.parquet")
        assert versions(path, table)[0] == min(first - 1, newest[table] + 1)
        assert 0 < first - 5 <= newest[table] < versions(path, table)[-1] - 5
    assert versions(path, "episodes") == list(range(store.refresh().version + 1))
    assert store.history().height == store.version + 1
    assert_whole(path, list(range(16)))
    for version in range(3, store.version):
        assert len(el.open(path, version=version)) == len(assert_agree(path, version))


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_young_commits_stay(tmp_path: Path) -> None:
    """A checkpoint cleans nothing that was written within a day."""
    path = tmp_path / "store"
    store = el.create(path, **NUMBERED_SPACES)
    for value in range(16):
        fill(store, [value])
    for table in TABLES:
        assert versions(path, table) == list(range(versions(path, table)[-1] + 1))


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_a_checkpoint_deletes_so_many_files_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log is cleaned bit by bit, from its beginning."""
    path = tmp_path / "store"
    store = old_store(path, monkeypatch)
    monkeypatch.setattr(checkpoints, "_MOST", 2)
    counts = []
    for value in range(8, 12):
        fill(store, [value])
        counts.append(versions(path, "runs")[0])
        assert versions(path, "runs") == list(range(counts[-1], versions(path, "runs")[-1] + 1))
    assert counts == sorted(counts) and 0 < counts[-1] <= 4
    assert_whole(path, list(range(12)))


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_vacuum_cleans_the_history(tmp_path: Path) -> None:
    """Vacuum cleans all three logs up to a checkpoint; older versions say so, newer ones open."""
    path = tmp_path / "store"
    store = fill(el.create(path, **NUMBERED_SPACES), range(13), seal_every=1)
    dry = store.vacuum(NOW, dry_run=True)
    assert versions(path, "episodes")[0] == 0
    sizes = {name: (path / name).stat().st_size for name in dry.files}
    assert store.vacuum(NOW) == dry and dry.bytes == sum(sizes.values())
    assert {name.partition("/")[0] for name in dry.files if "_delta_log" in name} >= {"episodes", "steps"}
    assert not any((path / name).exists() for name in dry.files)
    assert store.vacuum(NOW) == el.types.VacuumReport((), 0)
    (first,) = versions(path, "episodes", "checkpoint.parquet")
    assert versions(path, "episodes")[0] == first - 1
    for version in range(first):
        with pytest.raises(
            el.errors.VersionNotFoundError, match=rf"there are {first} to {store.version}.*vacuumed"
        ):
            el.open(path, version=version)
        with pytest.raises(el.errors.VersionNotFoundError):
            store.tag("gone", version=version)
    for version in range(first, store.version + 1):
        assert len(assert_agree(path, version)) == len(el.open(path, version=version))
    with pytest.raises(Refused):
        read_table(path, "episodes", first - 1)
    history = store.refresh().history()
    assert history["version"].to_list() == list(range(store.version, first - 1, -1))
    assert history.equals(el.open(path).history())
    assert_whole(path, list(range(13)))


@pytest.mark.usefixtures("often")
def test_tags_keep_their_part_of_the_log(tmp_path: Path) -> None:
    """A tagged version opens after any vacuum, and so does each version after it."""
    path = tmp_path / "store"
    store = fill(el.create(path, **NUMBERED_SPACES), range(6), seal_every=1)
    store.tag("six")
    tagged = store.version
    fill(store, range(6, 20), seal_every=1)
    store.vacuum(NOW)
    assert_numbered(el.open(path, version="six"), range(6))
    (first, *_) = versions(path, "episodes", "checkpoint.parquet")
    assert first <= tagged < first + 5 and versions(path, "episodes")[0] == first - 1
    assert store.verify().ok
    store.untag("six")
    store.vacuum(NOW)
    assert versions(path, "episodes")[0] > tagged
    with pytest.raises(el.errors.VersionNotFoundError):
        el.open(path, version=tagged)


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_files_of_cleaned_versions_stay_for_the_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vacuum keeps files that were replaced within its age, although the log has no commits of then."""
    path = tmp_path / "store"
    store = old_store(path, monkeypatch)
    for value in range(8, 20):
        fill(store, [value], seal_every=1)
    assert versions(path, "runs")[0] > 2
    live = {file.name for file in (path / "runs").glob("*-live.parquet")}
    assert len(live) == 20
    # Files of no version would be listed as well, were they of runs whose journals are gone.
    assert not [name for name in store.vacuum(timedelta(days=7)).files if name.endswith(".parquet")]
    store.vacuum(timedelta(days=2))
    assert 0 < len(list((path / "runs").glob("*-live.parquet"))) < 20
    assert_whole(path, list(range(20)))


@pytest.mark.sample(1)
@pytest.mark.usefixtures("eager")
def test_a_damaged_checkpoint_replaces_nothing(backend: Backend) -> None:
    """Vacuum deletes no commits for a checkpoint that does not match its checksum."""
    store = fill(backend.create(), range(12), seal_every=1)
    log = locate(backend.at(), backend.storage_options) / "episodes" / "_delta_log"
    before = log.names()
    newest = max(name for name in before if name.endswith(".checkpoint.parquet"))
    data = bytearray((log / newest).read())
    # The checksum itself, which other readers pass over.
    data[-9] ^= 1
    (log / newest).write(bytes(data))
    if log.local is not None:
        with pytest.raises(el.errors.CorruptStoreError, match="checksum"):
            store.vacuum(NOW)
    else:
        store.vacuum(NOW)
    left = log.names()
    oldest = [name for name in before if name < newest and name.endswith(".checkpoint.parquet")][-1]
    assert {name for name in before if name >= oldest} <= set(left)
    assert log.local is None or left == before


# Writers that slept


def sleep_once(monkeypatch: pytest.MonkeyPatch, table: str, meanwhile: Callable[[], object]) -> list[int]:
    """Have the next commit to a table sleep between its look at the log and its write.

    Returns:
        The number that it was about to take, once it did.
    """
    write = delta_table._write
    slept: list[int] = []

    def slow(place: Any, version: int, commit: bytes) -> bool:
        if place.name == table and not slept:
            slept.append(version)
            meanwhile()
        return write(place, version, commit)

    monkeypatch.setattr(delta_table, "_write", slow)
    return slept


@pytest.mark.further
@pytest.mark.sample
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("table", ["runs", "steps"])
def test_a_writer_that_slept_takes_no_freed_number(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A commit that fell asleep before its write is made again behind the newest one, once."""
    store = fill(backend.create(), range(2), seal_every=1)

    def others() -> None:
        for value in range(2, 14):
            fill(backend.open(), [value])

    slept = sleep_once(monkeypatch, table, others)
    fill(store, [14])
    names = [Path(name).name for name in backend.files() if f"{table}/_delta_log/0" in name]
    assert f"{slept[0]:020d}.json" not in names and min(names) > f"{slept[0]:020d}"
    assert_numbered(backend.open(), range(15), ordered=False, engines=True)
    assert backend.open().verify().ok
    assert backend.open().runs.collect().height == 14


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.usefixtures("eager")
def test_writers_that_were_idle_go_on(backend: Backend) -> None:
    """Writers and maintenance that knew a version which was cleaned commit behind the newest one."""
    store = fill(backend.create(), range(2), seal_every=1)
    stale = backend.open()
    writer = stale.writer(run="slept")
    write_numbered(writer, 2, 3)
    writer.seal()
    write_numbered(writer, 3, 4)
    fill(store, range(4, 18), seal_every=1)
    store.vacuum(NOW)
    writer.seal()
    write_numbered(writer, 18, 3)
    writer.close()
    fill(store, range(19, 33), seal_every=1)
    store.vacuum(NOW)
    stale.annotate(stale.episodes.select("episode_id", big=pl.col("number") > 4))
    stale.delete("length = 4")
    assert_numbered(backend.open(), [value for value in range(33) if value % 4 != 3], ordered=False)
    assert stale.verify().ok


CHANGES: dict[str, tuple[str, Callable[[el.EpisodeStore], Any]]] = {
    "compact": ("steps", lambda store: store.compact()),
    "delete": ("episodes", lambda store: store.delete("length = 1")),
    "annotate": (
        "episodes",
        lambda store: store.annotate(
            store.transitions.select("episode_id", "t", v=pl.col("t") * 2), on=("episode_id", "t")
        ),
    ),
}


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", CHANGES)
def test_maintenance_that_slept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An operation that sleeps in its commit does all of its work or none, and the log is whole."""
    path = tmp_path / "store"
    store = fill(el.create(path, **NUMBERED_SPACES), range(4), seal_every=1)
    table, change = CHANGES[name]

    def others() -> None:
        fill(el.open(path), range(4, 18), seal_every=1)
        # Vacuum would wait for the operation.
        log = path / table / "_delta_log"
        bound = versions(path, table, "checkpoint.parquet")[-1]
        for entry in checkpoints.replaced_files(locate(log).entries(), bound):
            (log / entry.name).unlink()

    slept = sleep_once(monkeypatch, table, others)
    change(store)
    assert slept and slept[0] not in versions(path, table)
    gone = {value for value in range(4) if value % 4 == 0} if name == "delete" else set()
    assert_whole(path, [value for value in range(18) if value not in gone])


DYING = """
import os, sys
import episodelake as el
from episodelake.store.delta import checkpoints, table as delta_table
from real_environments import write_numbered
from conformance import fill
from episodelake.store.delta.table import Table
delta_table._CHECKPOINT_EVERY = 5
checkpoints._RETENTION_SECONDS = -3600.0
path, table = sys.argv[1:]
writer = el.open(path).writer(run="dying", durability="fsync", flush_seconds=0.01)
write_numbered(writer, 0, 1)
writer.seal()
write_numbered(writer, 1, 2)
writer.flush()
write = delta_table._write
def slow(place, version, commit):
    if place.name == table:
        delta_table._write = write
        for value in range(2, 16):
            fill(el.open(path), [value])
        Table._is_last_commit_there = lambda self: os._exit(9)
        print(version, flush=True)
    return write(place, version, commit)
delta_table._write = slow
writer.close()
"""


def run_script(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program that can import the tests' modules."""
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        text=True,
    )


@pytest.mark.further
@pytest.mark.sample(1)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("table", ["runs", "steps"])
def test_a_writer_that_dies_with_a_freed_number(tmp_path: Path, table: str) -> None:
    """What a killed writer leaves under a freed number shows nowhere; recovery commits it once."""
    path = tmp_path / "store"
    store = el.create(path, **NUMBERED_SPACES)
    child = run_script(DYING, path, table)
    said, _ = child.communicate(timeout=280)
    assert child.returncode == 9
    stray = int(said)
    assert stray in versions(path, table) and stray < versions(path, table)[1] - 1
    shown = list(range(16)) if table == "runs" else [0, *range(2, 16)]
    assert sorted(values_of(store.refresh())) == sorted(values_of(el.open(path))) == shown
    read_by_others(path)
    assert read_table(path, table).version == versions(path, table)[-1]
    el.recover(path)
    assert_whole(path, list(range(16)))
    runs = el.open(path).runs.collect()
    assert runs.height == 15 and runs["ended_at"].null_count() == 0
    fill(store, range(16, 26), seal_every=1)
    store.vacuum(NOW)
    assert stray not in versions(path, table)
    assert_whole(path, list(range(26)))


# Readers that slept


@pytest.mark.further
@pytest.mark.sample
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("stray", [False, True])
def test_readers_that_slept_find_the_newest_version(backend: Backend, stray: bool) -> None:
    """A snapshot, a follower and a look for a newer version pass over what was cleaned, and over strays."""
    store = fill(backend.create(), range(4), seal_every=1)
    version = store.version
    pinned = backend.open()
    loader = store.loader(4, follow=el.Follow(refresh_seconds=0, wait_seconds=0))
    loader.take(1)
    store.context.snapshot.newer_version()
    fill(backend.open(), range(4, 20), seal_every=1)
    backend.open().vacuum(NOW)
    if stray:
        for table, known in (("episodes", version), ("steps", pinned.context.snapshot._steps.version)):
            leave_stray(backend, table, known)
    assert_numbered(pinned, range(4))
    assert pinned.version == version and pinned.context.snapshot.newer_version() == backend.open().version
    loader.refresh()
    assert loader.take(2) is not None
    assert_numbered(store.refresh(), range(20))
    assert store.version == backend.open().version
    assert pinned.history().is_empty()
    assert_numbered(pickle_of(pinned.refresh()), range(20))


def leave_stray(backend: Backend, table: str, version: int) -> None:
    """Put a commit under a number that was freed, as a killed writer does; it adds a file."""
    place = locate(backend.at(), backend.storage_options) / table
    names = (place / "_delta_log").names()
    assert commit_name(version + 1) not in names
    added = {"path": "stray.parquet", "size": 1, "partitionValues": {}, "modificationTime": 1}
    actions = [{"add": {**added, "dataChange": True, "stats": "{}"}}, {"txn": {"appId": "s", "version": 1}}]
    commit = delta_table.commit_text(table, version + 1, actions, {"timestamp": 1, "operation": "WRITE"})
    assert delta_table._write(place, version + 1, commit)


def pickle_of(store: el.EpisodeStore) -> el.EpisodeStore:
    """A copy of a store, as another process gets it."""
    import pickle

    return pickle.loads(pickle.dumps(store))


@pytest.mark.usefixtures("eager")
def test_a_stray_between_two_sleepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that finds its number taken by another's stray does not build on that."""
    path = tmp_path / "store"
    store = fill(el.create(path, **NUMBERED_SPACES), range(2), seal_every=1)
    backend = FolderBackend(tmp_path)

    def others() -> None:
        fill(el.open(path), range(2, 16), seal_every=1)
        leave_stray(backend, "steps", slept[0] - 1)

    slept: list[int] = []
    slept = sleep_once(monkeypatch, "steps", others)
    fill(store, [16])
    assert versions(path, "steps")[0] == slept[0] and versions(path, "steps")[1] > slept[0] + 1
    assert_numbered(el.open(path), range(17), ordered=False)
    assert el.open(path).verify().ok


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_an_old_checkpoint_that_comes_late(tmp_path: Path) -> None:
    """A writer that slept before it wrote a checkpoint leaves one behind which no commits are."""
    path = tmp_path / "store"
    store = fill(el.create(path, **NUMBERED_SPACES), range(13), seal_every=1)
    checkpoint = path / "episodes" / "_delta_log" / f"{5:020d}.checkpoint.parquet"
    late = checkpoint.read_bytes()
    store.vacuum(NOW)
    (first,) = versions(path, "episodes", "checkpoint.parquet")
    hint = checkpoint.with_name("_last_checkpoint")
    hint.write_text(hint.read_text().replace(f'"version": {first}', '"version": 5'))
    checkpoint.write_bytes(late)
    with pytest.raises(el.errors.VersionNotFoundError, match=f"there are {first}"):
        el.open(path, version=6)
    assert el.open(path).history().height == store.version - first + 1
    assert_whole(path, list(range(13)))
    store.vacuum(NOW)
    assert not checkpoint.exists()


# Cleaners that die, and many at once


@pytest.mark.further
@pytest.mark.usefixtures("often")
def test_a_cleaner_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of deletions every version opens or is said to be gone, and cleaning goes on."""
    made = tmp_path / "made"
    fill(el.create(made, **NUMBERED_SPACES), range(13), seal_every=1)
    doomed = el.open(made).vacuum(NOW, dry_run=True).files
    remove = LocalPlace.remove
    for count in range(sum("_delta_log" in name for name in doomed)):
        path = tmp_path / f"store-{count}"
        shutil.copytree(made, path)
        left = [count]

        def dying(self: LocalPlace, left: list[int] = left) -> None:
            if self.parent.name == "_delta_log" and self.name[0] == "0":
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
            remove(self)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LocalPlace, "remove", dying)
            el.open(path).vacuum(NOW)
        store = el.open(path)
        for version in range(store.version + 1):
            try:
                found = len(el.open(path, version=version))
            except el.errors.VersionNotFoundError:
                assert version < store.history()["version"].min()
                continue
            assert found == len(assert_agree(path, version))
        read_by_others(path)
        if count % 5 == 0:
            assert store.verify().ok
        assert set(store.vacuum(NOW).files) <= set(doomed)
        assert versions(path, "episodes")[0] > 0
        assert_numbered(fill(store, [13]), range(14))
        shutil.rmtree(path)


CROWD = """
import random, sys, time
import episodelake as el
from episodelake.store.delta import checkpoints, table as delta_table
from real_environments import write_numbered
delta_table._CHECKPOINT_EVERY = 3
checkpoints._RETENTION_SECONDS = -3600.0
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(first)
write = delta_table._write
def slow(place, version, commit):
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0, 0.3))
    return write(place, version, commit)
delta_table._write = slow
value = first
while value < first + count:
    with el.open(path).writer() as writer:
        for _ in range(3):
            write_numbered(writer, value, value % 4 + 1)
            writer.seal()
            print(value, flush=True)
            value += 1
"""


@pytest.mark.further
@pytest.mark.usefixtures("eager")
def test_many_writers_and_cleaners(tmp_path: Path) -> None:
    """Writers that fall asleep in their commits, and cleaners of everything, lose and repeat nothing."""
    path, seals = tmp_path / "store", 24
    store = el.create(path, **NUMBERED_SPACES)
    children = [run_script(CROWD, path, 1000 * index, seals) for index in range(3)]
    follower = el.open(path)
    seen = 0
    try:

        def over() -> bool:
            nonlocal seen
            store.refresh().vacuum(NOW)
            count = len(follower.refresh())
            assert count >= seen
            seen = count
            return all(child.poll() is not None for child in children)

        wait_until(over, "the writers")
    finally:
        for child in children:
            child.kill()
    said = [int(line) for child in children for line in child.communicate()[0].split()]
    assert [child.returncode for child in children] == [0, 0, 0] and len(said) == 3 * seals
    assert_whole(path, said)
    assert versions(path, "steps")[0] > 50
    assert el.open(path).runs.collect().height == seals


@pytest.mark.further
@pytest.mark.usefixtures("eager")
def test_a_vacuum_while_writers_clean_the_log_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum that has chosen its versions goes on when writers clean these from the log of runs."""
    path = tmp_path / "store"
    store = el.create(path, **NUMBERED_SPACES)
    fill(store, [0])
    replaced = vacuum._replaced_log
    cleaned: list[int] = []

    def with_writers(layout: Any, table: str, oldest: int) -> list[Any]:
        if not cleaned:
            before = versions(path, "runs")[-1]
            for value in range(1, 16):
                fill(store, [value])
            cleaned.append(before)
            assert versions(path, "runs")[0] > before
        return replaced(layout, table, oldest)

    with monkeypatch.context() as patch:
        patch.setattr(vacuum, "_replaced_log", with_writers)
        el.open(path).vacuum(NOW)
    assert cleaned
    assert_whole(path, list(range(16)))


@pytest.mark.further
def test_a_checkpoint_that_fails_to_clean_fails_no_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the log that cannot be deleted stay, and recording goes on."""
    monkeypatch.setattr(delta_table, "_CHECKPOINT_EVERY", 5)
    path = tmp_path / "store"
    store = old_store(path, monkeypatch)

    def refuse(self: LocalPlace) -> None:
        raise PermissionError(13, "not here", str(self))

    with monkeypatch.context() as patch:
        remove = LocalPlace.remove
        patch.setattr(LocalPlace, "remove", lambda s: (refuse if s.name[:1] == "0" else remove)(s))
        for value in range(8, 16):
            fill(store, [value])
    assert versions(path, "runs")[0] == 0
    write_checkpoint(locate(path / "runs"), versions(path, "runs")[-1], checksummed=True)
    assert_whole(path, list(range(16)))
