"""Many writers, readers and a maintenance process on one store; and writers that always lose."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
from episodelake.store.delta import table as delta_table
from episodelake.store.files import locks
from episodelake.store.files.local import LocalPlace
from episodelake.store.recovery import recovery
from log_edits import write_actions
from many_writers import Cast, Scene, maintain, promises, read, write
from planned_episodes import (
    ACTIONS,
    DOOMED,
    OBSERVATIONS,
    SEEDS,
    PlannedEnv,
    doomed,
    plan,
    planned_metadata,
    snapshot_is_consistent,
)
from waiting import PATIENCE, wait_until

WRITERS = 16
READERS = 2
#: After how many lost commits a writer gives up in these tests.
ATTEMPTS = 10


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store, and an empty folder beside it."""
    folder = tmp_path / "notes"
    folder.mkdir()
    el.create(tmp_path / "store", observation_space=OBSERVATIONS, action_space=ACTIONS)
    return Scene(tmp_path / "store", folder)


def play(scene: Scene, *, episodes: int, kills: int, snapshots: int, rounds: int, seed: int) -> None:
    """Sixteen writers at once; some are killed at random and others take their place; readers check."""
    chance = random.Random(seed)
    writers = [f"writer-{index}" for index in range(WRITERS + kills)]
    with Cast(scene) as cast:
        for index, name in enumerate(writers):
            cast.start(write, name, index, episodes)
        cast.wait(lambda: scene.count("writer-*", "ready") == len(writers), "the writers")
        for index in range(WRITERS):
            scene.tell(f"go-{index}")
        for index in range(READERS):
            cast.start(read, f"reader-{index}")
        cast.start(maintain, "maintenance")
        for name in writers[:WRITERS]:
            cast.wait(lambda name=name: scene.count(name, "journal") > 0, f"{name} to begin")
        live = list(range(WRITERS))
        for index in range(WRITERS, WRITERS + kills):
            time.sleep(chance.uniform(0.0, 0.5))
            victim = chance.randrange(WRITERS)
            if index == WRITERS + kills - 1:
                # The journal of this one has sealed episodes, of which some were deleted meanwhile.
                cast.wait(lambda: scene.count("maintenance", "deleted") > 1, "maintenance")
                victim = next(
                    place for place, writer in enumerate(live) if place == writer and place % 3 == 1
                )
            cast.kill(writers[live[victim]])
            live[victim] = index
            scene.tell(f"go-{index}")
        for name in (writers[index] for index in live):
            cast.wait(lambda name=name: scene.count(name, "sealed") > 0, f"{name} to seal")
        for index in range(READERS):
            cast.wait(lambda name=f"reader-{index}": scene.count(name, "checked") >= snapshots, "readers")
        cast.wait(lambda: scene.count("maintenance", "deleted") >= rounds, "maintenance")
        cast.finish()
    assert scene.count("writer-*", "closed") == WRITERS


def everything_promised_is_there(scene: Scene, store: el.EpisodeStore) -> None:
    """What reached a journal is in the store, as a whole if its end did; only what is doomed may be gone."""
    frame = store.episodes.select("episode_id", "seed", "length", "metadata.writer").collect()
    found = {name: facts for name, *facts in frame.iter_rows()}
    for name, promise in promises(scene).items():
        if promise.rows < 2 or (doomed(promise.seed) and name not in found):
            continue
        assert name in found, f"{name} is lost"
        seed, length, writer = found[name]
        assert seed == promise.seed, name
        assert length >= promise.rows - 1, f"{name} has lost steps"
        if promise.ended:
            assert (length, writer) == (plan(seed).length, seed // SEEDS), f"{name} had ended"


def nothing_deleted_came_back(scene: Scene, store: el.EpisodeStore) -> None:
    """What was deleted stays deleted, even if its writer died and was recovered afterwards."""
    deleted = [name for note in scene.notes("maintenance") for name in note["deleted"]]
    assert len(deleted) == len(set(deleted)), "some had to be deleted twice"
    assert set(deleted).isdisjoint(store.episodes.select("episode_id").collect()["episode_id"])


def history_is_consistent(store: el.EpisodeStore) -> None:
    """Versions from all of the history show whole episodes, each once."""
    versions = store.history()["version"].to_list()
    for version in versions[:: max(1, len(versions) // 4)]:
        snapshot_is_consistent(el.open(store.path, version=version), episodes=50)


def no_journal_is_left(scene: Scene) -> None:
    """Neither a journal nor the lock of one is there, and none was found to be damaged."""
    assert [path.name for path in (scene.store / "journal").iterdir() if path.stem != "maintenance"] == []


def every_run_is_there_once(store: el.EpisodeStore) -> None:
    """Each run has one row, which has an end."""
    runs = store.runs.collect()
    assert runs["run_id"].n_unique() == runs.height
    assert runs["ended_at"].null_count() == 0
    assert set(runs["run_id"]) >= set(store.episodes.select("run_id").collect()["run_id"])


def check(scene: Scene) -> None:
    """After recovery everything is there once, before and after one more maintenance."""
    el.recover(scene.store)
    assert el.recover(scene.store) == []
    no_journal_is_left(scene)
    store = el.open(scene.store)
    nothing_deleted_came_back(scene, store)
    history_is_consistent(store)
    for maintained in (False, True):
        if maintained:
            store.delete(DOOMED)
            store.compact()
            assert len(store.filter(DOOMED)) == 0
        snapshot_is_consistent(store)
        everything_promised_is_there(scene, store)
        every_run_is_there_once(store)
    assert store.verify().faults == ()


@pytest.mark.slow
def test_sixteen_writers_some_of_them_killed(scene: Scene) -> None:
    """Each promised episode is there once, whoever was killed, and no reader ever saw half of one."""
    play(scene, episodes=64, kills=5, snapshots=3, rounds=2, seed=0)
    check(scene)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sixteen_writers_many_of_them_killed(scene: Scene, seed: int) -> None:
    """The same for longer, with many more kills."""
    play(scene, episodes=160, kills=16, snapshots=6, rounds=3, seed=seed)
    check(scene)


class Rival:
    """Somebody who commits to a table first, whenever this process is about to."""

    def __init__(self, patch: pytest.MonkeyPatch, table: str) -> None:
        self.wins = 0
        self._turn = threading.Lock()
        write = LocalPlace.write

        def lose(place: LocalPlace, data: bytes, *, exclusive: bool = False) -> None:
            if exclusive and place.parent.name == "_delta_log" and place.parent.parent.name == table:
                with self._turn:
                    self.wins += 1
                    write_actions(place.local, [{"commitInfo": {"timestamp": 1, "operation": "RIVAL"}}])
                    write(place, data, exclusive=exclusive)
                return
            write(place, data, exclusive=exclusive)

        patch.setattr(LocalPlace, "write", lose)
        patch.setattr(delta_table, "_PAUSE_SECONDS", 0.0)
        patch.setattr(delta_table, "_ATTEMPTS", ATTEMPTS)

    @contextlib.contextmanager
    def between_attempts(self) -> Iterator[None]:
        """The background thread tries again after an error: let it end that, and begin no other attempt."""

        def ended() -> bool:
            self._turn.acquire()
            if not self.wins % ATTEMPTS:
                return True
            self._turn.release()
            return False

        wait_until(ended, "the end of the attempts")
        try:
            yield
        finally:
            self._turn.release()


def start_recorder(scene: Scene) -> el.types.Recorder:
    """A recorder that seals only when told to."""
    return el.open(scene.store).record(PlannedEnv(), seal_seconds=1e6, episode_callback=planned_metadata)


def record(recorder: el.types.Recorder, seeds: range) -> None:
    """Play the planned episodes of some seeds."""
    for seed in seeds:
        recorder.reset(seed=seed)
        for action in plan(seed).actions:
            recorder.step(action)


@pytest.mark.sample(1)
@pytest.mark.parametrize("table", ["runs", "steps", "episodes"])
def test_a_writer_that_always_loses_keeps_its_journal(scene: Scene, table: str) -> None:
    """After a bounded number of lost commits it raises; the journal has all, and a later close succeeds."""
    recorder = start_recorder(scene)
    with pytest.MonkeyPatch.context() as patch:
        rival = Rival(patch, table)
        record(recorder, range(4))
        for ending in (recorder.seal, recorder.close):
            with pytest.raises(el.errors.ConcurrentCommitError, match="journal"):
                ending()
        with rival.between_attempts():
            # The background thread may have tried as well.
            assert 2 * ATTEMPTS <= rival.wins <= 6 * ATTEMPTS
            assert len(el.open(scene.store)) == 0
            # As if this writer had died now: no process holds the lock of a copy.
            dead = shutil.copytree(scene.store, scene.folder / "dead")
    (recovered,) = el.recover(dead)
    assert recovered.episodes == 4
    recorder.close()
    for path in (dead, scene.store):
        store = el.open(path)
        assert store.episodes.select("seed").collect()["seed"].to_list() == [0, 1, 2, 3]
        snapshot_is_consistent(store)
        every_run_is_there_once(store)
    no_journal_is_left(scene)


def test_a_recovery_that_always_loses_keeps_the_journal(scene: Scene) -> None:
    """A recovery that cannot commit raises and leaves the journal; the next one brings everything in."""
    recorder = start_recorder(scene)
    record(recorder, range(3))
    recorder.reset(seed=3)
    dead = scene.folder / "dead"
    with pytest.MonkeyPatch.context() as patch:
        rival = Rival(patch, "episodes")
        with pytest.raises(el.errors.ConcurrentCommitError):
            recorder.seal()
        with rival.between_attempts():
            shutil.copytree(scene.store, dead)
        for _ in range(2):
            with pytest.raises(el.errors.ConcurrentCommitError):
                el.recover(dead)
            assert len(el.open(dead)) == 0
    (recovered,) = el.recover(dead)
    assert (recovered.episodes, recovered.interrupted) == (3, 0)
    snapshot_is_consistent(el.open(dead))
    recorder.close()
    snapshot_is_consistent(el.open(scene.store))


@contextlib.contextmanager
def late_in_the_listing(patch: pytest.MonkeyPatch, commit: Path, *, shows: bool = True) -> Iterator[None]:
    """A commit is missing from the log until somebody waits for it: so a listing beside others may look."""
    away = commit.with_suffix(".away")
    commit.rename(away)

    def wait(seconds: float) -> None:
        if shows and away.exists():
            away.rename(commit)

    with patch.context() as inside:
        inside.setattr(time, "sleep", wait)
        yield
    if away.exists():
        away.rename(commit)


def sealed_one_by_one(scene: Scene, seeds: range) -> None:
    """Record episodes with a commit for each."""
    with start_recorder(scene) as recorder:
        for seed in seeds:
            record(recorder, range(seed, seed + 1))
            recorder.seal()


@pytest.mark.parametrize("table", ["steps", "episodes"])
def test_a_listing_without_one_of_the_commits_is_made_again(
    scene: Scene, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lists a log while others commit may see a commit and not the one before it; that is no damage."""
    recorder, store = start_recorder(scene), el.open(scene.store)
    version = store.version
    sealed_one_by_one(scene, range(4))
    second = sorted((scene.store / table / "_delta_log").glob("*.json"))[-3]
    with late_in_the_listing(monkeypatch, second):
        assert len(el.open(scene.store)) == 4
    with late_in_the_listing(monkeypatch, second):
        assert len(store.refresh()) == 4
    with late_in_the_listing(monkeypatch, second):
        record(recorder, range(60, 61))
        recorder.seal()
    with late_in_the_listing(monkeypatch, second):
        assert store.refresh().history()["version"][0] == store.version > version
    recorder.close()
    snapshot_is_consistent(store)
    assert len(store) == 5


@pytest.mark.parametrize("table", ["steps", "episodes"])
def test_a_commit_that_stays_away_is_damage(
    scene: Scene, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is missing for good is told as damage, after a bounded number of looks."""
    sealed_one_by_one(scene, range(4))
    second = sorted((scene.store / table / "_delta_log").glob("*.json"))[-3]
    with (
        late_in_the_listing(monkeypatch, second, shows=False),
        pytest.raises(el.errors.CorruptStoreError, match="_delta_log"),
    ):
        el.open(scene.store)


def test_a_run_that_is_closed_while_a_recovery_looks_for_dead_ones(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that goes after it was listed is no trouble: no warning, no error, and no lock is left."""
    recorder = start_recorder(scene)
    record(recorder, range(2))
    listed = recovery._journals_with_locks

    def early(layout: Any, troubles: list[str]) -> list[Path]:
        found = listed(layout, troubles)
        recorder.close()
        return found

    monkeypatch.setattr(recovery, "_journals_with_locks", early)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert el.recover(scene.store) == []
    assert len(el.open(scene.store)) == 2
    no_journal_is_left(scene)


TIDY_UP = "import sys, episodelake as el; el.recover(sys.argv[1])"


def test_a_writer_starts_while_others_tidy_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery that meets the lock of a writer that is just starting does not keep it from starting."""
    lock = locks._locked

    def late(path: Path, descriptor: int) -> bool:
        monkeypatch.undo()
        subprocess.run([sys.executable, "-c", TIDY_UP, str(scene.store)], check=True, timeout=PATIENCE)
        return lock(path, descriptor)

    monkeypatch.setattr(locks, "_locked", late)
    with start_recorder(scene) as recorder:
        record(recorder, range(2))
    snapshot_is_consistent(el.open(scene.store))
    assert len(el.open(scene.store)) == 2
    no_journal_is_left(scene)
