"""What must not be lost between threads, processes and interrupts: each test is a way in which rows once
got lost.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
import independent_journal
from episodelake.store.files import scratch
from episodelake.writers.session import session
from episodelake.writers.session.seal_queue import SealQueue
from waiting import PATIENCE, await_end, wait_until

SPACES: dict[str, Any] = {
    "observation_space": spaces.Box(-1e9, 1e9, (2,), np.float32),
    "action_space": spaces.Discrete(3),
}


def row(value: int) -> np.ndarray:
    """An observation that says which one it is."""
    return np.full(2, value, np.float32)


def fill(episode: el.types.OpenEpisode, first: int, last: int) -> None:
    """Append the steps that lead to observations `first` to `last - 1`, each with its number as the
    reward.
    """
    for value in range(first, last):
        episode.append(0, float(value), row(value))


@pytest.fixture
def store(tmp_path: Path) -> el.EpisodeStore:
    """An empty store."""
    return el.create(tmp_path / "store", **SPACES)


def recover_elsewhere(path: Path) -> str:
    """What another process says that it recovered."""
    code = f"import episodelake as el; print([run.steps for run in el.recover({str(path)!r})])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return found.stdout.strip()


def test_reading_the_lock_does_not_give_it_up(store: el.EpisodeStore) -> None:
    """Whoever opens and closes the lock's file in the writing process, a backup say, leaves the writer its
    journal.
    """
    with store.writer() as writer:
        episode = writer.begin(row(0))
        fill(episode, 1, 11)
        (lock,) = (store.path / "journal").glob("*.lock")
        lock.read_bytes()
        assert recover_elsewhere(store.path) == "[]"
        fill(episode, 11, 21)
    assert store.refresh()[0].rewards.tolist() == [float(value) for value in range(1, 21)]


@pytest.mark.parametrize(
    ("writers", "recoveries"), [(10, 20), pytest.param(40, 100, marks=pytest.mark.further)]
)
def test_writers_that_come_and_go_beside_a_recovery(
    store: el.EpisodeStore, tmp_path: Path, writers: int, recoveries: int
) -> None:
    """Writers open and close while another process recovers all the time: no error, no episode lost or
    doubled.
    """
    marks, stop = tmp_path / "recoveries", tmp_path / "stop"
    code = f"""
        import os, episodelake as el
        parent = os.getppid()
        with open({str(marks)!r}, "ab", buffering=0) as marks:
            while not os.path.exists({str(stop)!r}) and os.getppid() == parent:
                el.recover({str(store.path)!r})
                marks.write(b".")
    """
    marks.touch()
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]) as other:
        count = 0

        def write_one() -> bool:
            nonlocal count
            with store.writer() as writer:
                fill(writer.begin(row(0)), 1, 4)
            count += 1
            return other.poll() is not None or (count >= writers and marks.stat().st_size >= recoveries)

        try:
            wait_until(write_one, f"{writers} writers beside {recoveries} recoveries")
        finally:
            stop.touch()
    assert other.returncode == 0
    assert len(store.refresh()) == count
    assert list((store.path / "journal").iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_write_into_the_journal(store: el.EpisodeStore) -> None:
    """What a forked child appends never reaches the parent's journal; it is told so when its rows would
    have to.
    """
    with store.writer() as writer:
        episode = writer.begin(row(0))
        fill(episode, 1, 100)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(20_000):
                    episode.append(2, -1.0, row(-1))
            except el.errors.RecorderStateError:
                os._exit(7)
            os._exit(0)
        assert await_end(child) == 7
        fill(episode, 100, 6000)
    found = store.refresh()[0]
    assert found.rewards.tolist() == [float(value) for value in range(1, 6000)]
    assert not found.actions.any()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_in_the_middle_of_a_flush_does_not_hang(store: el.EpisodeStore) -> None:
    """A child whose copy of the lock the background thread holds for ever is refused all the same."""
    held, over = threading.Event(), threading.Event()
    with store.writer() as writer:
        session, episode = writer._session, writer.begin(row(0))

        def hold() -> None:
            with session.lock:
                held.set()
                over.wait(PATIENCE)

        calls = (
            lambda: fill(episode, 1, 20_000),
            lambda: session.rows.discard(session.rows._live[0]),
            writer.flush,
            writer.seal,
            episode.end,
        )
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(PATIENCE)
        for call in calls:
            child = os.fork()
            if child == 0:
                try:
                    call()
                except el.errors.RecorderStateError:
                    os._exit(7)
                os._exit(0)
            assert await_end(child) == 7
        over.set()
        thread.join(PATIENCE)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_forgets_the_sessions_of_its_parent(store: el.EpisodeStore) -> None:
    """A forked child leaves the runs and locks of its parent alone; the error advises spawn."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with session._sessions_lock:
            held.set()
            over.wait(PATIENCE)

    with store.writer() as writer:
        fill(episode := writer.begin(row(0)), 1, 4)
        # As if it waited to be closed: who finishes the runs of the store would do so.
        writer._session._abandoned = True
        assert writer._session in session._sessions
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(PATIENCE)
        child = os.fork()
        if child == 0:
            session.finish_closing(store.handle)
            refused = 0
            for call in (store.writer, lambda: el.open(store.path)):
                try:
                    call()
                except el.errors.StoreAccessError as error:
                    refused += "spawn" in str(error)
            os._exit(refused + 4 * len(session._sessions))
        code = await_end(child)
        over.set()
        thread.join(PATIENCE)
        writer._session._abandoned = False
        assert code == 2
        fill(episode, 4, 6)
    assert store.refresh()[0].rewards.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_interrupt_after_the_journal_was_written(store: el.EpisodeStore, monkeypatch: Any) -> None:
    """An interrupt between writing a batch and noting that it was written gives its rows once, not twice."""
    from episodelake.writers.session.journal import RunJournal

    true_append = RunJournal.append
    interrupts = iter([True])

    def append(self: RunJournal, *arguments: Any) -> None:
        true_append(self, *arguments)
        if next(interrupts, False):
            raise KeyboardInterrupt

    with store.writer(flush_seconds=1e6) as writer:
        episode = writer.begin(row(0))
        monkeypatch.setattr(RunJournal, "append", append)
        value = 1
        while value < 3000:
            try:
                episode.append(0, float(value), row(value))
                value += 1
            except KeyboardInterrupt:
                continue
    found = store.refresh()[0]
    assert found.rewards.tolist() == [float(value) for value in range(1, 3000)]
    assert found.observations[:, 0].tolist() == [float(value) for value in range(3000)]
    assert found.episode_return == sum(range(1, 3000))


def test_wrong_metadata_at_the_end_costs_nothing(store: el.EpisodeStore) -> None:
    """Metadata that is no mapping is refused, and the episode can still be ended."""
    with store.writer() as writer:
        episode = writer.begin(row(0))
        fill(episode, 1, 6)
        with pytest.raises(el.errors.InvalidArgumentError, match="metadata"):
            episode.end("done")  # type: ignore[arg-type]
        assert episode.end({"note": "done"}).length == 5
    assert store.refresh()[0].metadata == {"note": "done"}


def test_a_refused_begin_leaves_no_trace(store: el.EpisodeStore) -> None:
    """A begin that is refused leaves nothing in the row that another open episode takes next."""
    with store.writer() as writer:
        one = writer.begin(row(0))
        fill(one, 1, 2)
        with pytest.raises(el.errors.SpaceMismatchError):
            writer.begin(row(0), [1])  # type: ignore[arg-type]
        fill(one, 2, 4)
    assert store.refresh()[0].rewards.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), el.types.OpaqueValue("a.B", "<b>"), np.complex64(1j)],
    ids=["large", "small", "opaque", "complex"],
)
def test_values_that_json_cannot_say_come_back(store: el.EpisodeStore, value: Any) -> None:
    """An integer of thousands of digits, and an object kept as its printed form, stop no run and come
    back.
    """
    with store.writer(metadata={"value": value}) as writer:
        episode = writer.begin(row(0), {"value": value}, metadata={"value": value})
        fill(episode, 1, 3)
    found = store.refresh()[0]
    if not isinstance(value, np.generic):
        assert found.infos[0] == found.metadata == {"value": value}
    assert found.infos[0].keys() == {"value"}


@pytest.mark.further
def test_a_journal_damaged_in_the_middle_keeps_what_is_behind(tmp_path: Path) -> None:
    """Episodes that began behind a damaged batch are recovered, and the damaged journal is set aside."""
    path = tmp_path / "store"
    code = f"""
        import os, numpy as np, episodelake as el
        store = el.open({str(path)!r})
        writer = store.writer(flush_seconds=1e6)
        for number in range(20):
            observations = np.full((1001, 2), number, np.float32)
            writer.write_episode(observations=observations, actions=np.zeros(1000, np.int64),
                                 rewards=np.ones(1000), terminations=True, truncations=False)
            writer.flush()
        os._exit(0)
    """
    el.create(path, **SPACES)
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=PATIENCE)
    (part,) = (path / "journal").glob("*/*.frames")
    content = bytearray(part.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(byte ^ 255 for byte in content[middle : middle + 8])
    part.write_bytes(content)
    (run,) = el.recover(path)
    numbers = {int(episode.observations[0, 0]) for episode in el.open(path)}
    assert len(numbers) == run.episodes == 19
    assert all(len(np.unique(episode.observations)) == 1 for episode in el.open(path))
    assert 0 < run.torn_bytes < len(content) / 10
    assert [entry.suffix for entry in (path / "journal").iterdir()] == [".damaged"]


def test_a_failing_episode_callback_keeps_the_episode(tmp_path: Path) -> None:
    """An episode callback that raises at a reset or at close passes its exception on; nothing is lost or
    mixed up.
    """
    env = gymnasium.make("CartPole-v1")
    store = el.create(tmp_path / "store", env)

    def fail(episode: el.types.EpisodeSummary) -> None:
        raise ZeroDivisionError

    recorder = store.record(env, episode_callback=fail)
    recorder.reset(seed=0)
    recorder.step(0)
    recorder.log(v=5)
    with pytest.raises(ZeroDivisionError):
        recorder.reset(seed=1)
    recorder.reset(seed=2)
    recorder.step(1)
    with pytest.raises(ZeroDivisionError):
        recorder.close()
    first, second = store.refresh()
    assert (first.seed, second.seed) == (0, 2)
    assert (first.policy, second.policy) == ({"v": [None, 5]}, {})


def test_a_key_for_every_step_stays_within_bounds(store: el.EpisodeStore) -> None:
    """Infos that bring a new key with every step come back without a column for each."""
    infos = [{f"key{step}": step} for step in range(1500)]
    with store.writer() as writer:
        episode = writer.begin(row(0), infos[0])
        for step in range(1, 1500):
            episode.append(0, 1.0, row(step), info=infos[step])
    assert store.refresh()[0].infos == infos
    assert len(store.steps.collect_schema()) < 600


def test_create_does_not_take_over_other_tables(tmp_path: Path) -> None:
    """What a creation that was cut short left is completed with the same spaces, and refused with others."""
    el.create(tmp_path / "store", **SPACES)
    (tmp_path / "store" / "store.json").unlink()
    with pytest.raises(el.errors.StoreExistsError):
        el.create(tmp_path / "store", observation_space=spaces.Discrete(2), action_space=spaces.Discrete(2))
    assert len(el.create(tmp_path / "store", **SPACES)) == 0
    (tmp_path / "other" / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(el.errors.StoreExistsError, match="runs"):
        el.create(tmp_path / "other", **SPACES)


def test_a_filter_on_a_view_sees_the_view(store: el.EpisodeStore) -> None:
    """A subquery in an SQL filter ranges over the view's episodes, not over the store's."""
    with store.writer() as writer:
        for number in range(5):
            fill(writer.begin(row(0)), 1, 2 + number)
    view = store.refresh().filter("length < 4")
    longest = view.filter("length = (select max(length) from episodes)")
    assert [episode.length for episode in longest] == [3]


@pytest.mark.further
def test_large_infos_are_recorded_in_bounded_memory(tmp_path: Path) -> None:
    """Frames in the infos count for the size of buffers and row groups: memory stays flat as steps go on."""
    code = f"""
        import resource, sys, numpy as np, episodelake as el
        from gymnasium import spaces
        box = spaces.Box(-1, 1, (2,), np.float32)
        store = el.create({str(tmp_path)!r} + "/" + sys.argv[1], observation_space=box, action_space=box)
        zero, steps = np.zeros(2, np.float32), int(sys.argv[1])
        with store.writer() as writer:
            episode = writer.begin(zero)
            for step in range(steps):
                info = {{"frame": np.full((84, 84, 3), step % 251, np.uint8)}}
                episode.append(zero, 1.0, zero, info=info)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    peaks = []
    for steps in (4000, 9000):
        command = [sys.executable, "-c", textwrap.dedent(code), str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
        peaks.append(int(done.stdout) / 1024)
    assert peaks[1] < peaks[0] + 150


def failing_fsync(monkeypatch: pytest.MonkeyPatch, ending: str, log: list[str]) -> None:
    """Let the next fsync of a path with this ending fail, once; the log gets all of them."""
    fsync, failed = os.fsync, []

    def synced(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.endswith(ending) and not failed:
            failed.append(name)
            log.append(f"failed {name}")
            raise OSError(errno.EIO, "Input/output error")
        log.append(f"fsync {name}")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)


@pytest.mark.further
def test_rows_whose_sync_failed_go_to_a_fresh_part(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed fsync the kernel may have dropped rows: no later fsync of the same file counts."""
    log: list[str] = []
    writer = store.writer(durability="fsync", flush_seconds=1e5, seal_seconds=1e5)
    episode = writer.begin(row(0))
    fill(episode, 1, 3)
    writer.flush()
    failing_fsync(monkeypatch, ".frames", log)
    fill(episode, 3, 5)
    with pytest.raises(el.errors.StoreAccessError, match="Input/output"):
        writer.flush()
    journal = store.path / "journal" / writer.run_id
    assert independent_journal.told(journal)[0].transitions == 2
    writer.flush()
    fill(episode, 5, 7)
    writer.flush()
    first, second = sorted(journal.glob("*.frames"))
    assert log[0] == f"failed {first}"
    assert f"fsync {first}" not in log and log.count(f"fsync {second}") == 2
    # With a power loss, the end mark of the first part may be gone too: its rows end where the next begin.
    lost = tmp_path / "lost"
    shutil.copytree(store.path, lost)
    part = lost / "journal" / writer.run_id / first.name
    data = part.read_bytes()
    part.write_bytes(data[: data.rindex(data[:4])])
    assert independent_journal.told(part.parent)[0].transitions == 6
    assert recover_elsewhere(lost) == "[6]"
    writer.close()
    for found in (el.open(lost), store.refresh()):
        assert found[0].rewards.tolist() == [float(value) for value in range(1, 7)]


def leave_seals_to_their_thread(monkeypatch: pytest.MonkeyPatch, seals: SealQueue) -> None:
    """Make the next `finish` begin once the thread has done what it can."""
    finish = seals.finish

    def finish_late() -> None:
        wait_until(lambda: not seals.waiting, "the thread of seals")
        seals.finish = finish
        finish()

    monkeypatch.setattr(seals, "finish", finish_late)


@pytest.mark.parametrize("table", ["runs", "steps", "episodes"])
@pytest.mark.parametrize("by", ["any thread", "the thread of seals"])
def test_a_commit_whose_sync_failed_is_synced_before_its_journal_goes(
    store: el.EpisodeStore, monkeypatch: pytest.MonkeyPatch, table: str, by: str
) -> None:
    """A commit that is there although its folder could not be synced is not taken for a durable one.

    `seal()` raises the error of its own attempt, whichever thread made it.
    """
    log: list[str] = []
    unlink = Path.unlink

    def removed(path: Path, **options: Any) -> None:
        log.append(str(path))
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", removed)
    writer = store.writer(flush_seconds=1e5, seal_seconds=1e5)
    with writer:
        fill(writer.begin(row(0)), 1, 3)
        if by == "the thread of seals":
            leave_seals_to_their_thread(monkeypatch, writer.session.seals)
        failing_fsync(monkeypatch, f"{table}/_delta_log", log)
        writer.session.rows.end_all()
        with pytest.raises(el.errors.StoreAccessError, match="Input/output"):
            writer.seal()
        writer.seal()
    folder = store.path / table / "_delta_log"
    gone = min(log.index(line) for line in log if line.endswith(".frames") and line.startswith("/"))
    assert log.index(f"failed {folder}") < log.index(f"fsync {folder}") < gone


def test_a_scratch_folder_is_not_synced(
    store: el.EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole store is made there without a sync; its neighbour, and what follows the block, are synced."""
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    staged = tmp_path / "staged"
    with scratch(staged):
        made = el.create(staged, **SPACES)
        for each in (made, store):
            with each.writer() as writer:
                fill(writer.begin(row(0)), 1, 3)
    assert made.refresh()[0].rewards.tolist() == [1.0, 2.0]
    assert synced and all(path.startswith(str(store.path)) for path in synced if path != str(tmp_path))
    with made.writer() as writer:
        fill(writer.begin(row(0)), 1, 3)
    assert [path for path in synced if path.startswith(f"{staged}/steps/")]
