"""Hosts that share a store whose locks do not reach from one to the other.

A second host is a process whose `flock` always succeeds and whose boot id is another one, as where NFS is
mounted with `nolock`. Waiting times are shorter here than for users.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.locking import file_systems, locks
from waiting import PATIENCE, line_of, wait_until

#: Begins each script: the path of the store, episodes to write, and a host of its own.
HOST = """
import fcntl, os, sys, time, warnings
import numpy as np
import episodelake as el
from episodelake.store.locking import lock_owner, locks

path, host = sys.argv[1], sys.argv[2]
fcntl.flock = lambda descriptor, operation: None
here = lock_owner._this_host()
lock_owner._this_host = lambda: (host, host, host)
locks.BEAT_SECONDS, locks.STALE_SECONDS, locks.WATCH_SECONDS, locks.SETTLE_SECONDS = 0.02, 0.0, 2.0, 0.1


def episode(writer, value):
    writer.write_episode(
        observations=np.full((3, 1), float(value)), actions=np.zeros(2, int), rewards=np.ones(2),
        terminations=True, truncations=False,
    )


def say(*words):
    print(*words, flush=True)


warnings.simplefilter("ignore")
"""

WRITER = (
    HOST
    + """
writer = el.open(path).writer(run="a", flush_seconds=0.01)
for value in range(5):
    episode(writer, value)
writer.flush()
live = writer.begin(np.array([99.0]))
live.append(1, 1.0, np.array([99.5]))
writer.flush()
say(os.getpid())
sys.stdin.readline()
"""
)

RECOVER = HOST + "say([(run.episodes, run.interrupted) for run in el.recover(path)])"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty store."""
    space = spaces.Box(-1e9, 1e9, (1,), np.float64)
    el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    return tmp_path / "store"


def on_host(script: str, path: Path, host: str) -> subprocess.Popen[str]:
    """Start a script in a process that takes itself for another host."""
    command = [sys.executable, "-c", script, str(path), host]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def started(path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to end when the test does."""
    children: list[subprocess.Popen[str]] = []
    yield children
    for child in children:
        child.kill()
        child.communicate(timeout=PATIENCE)


def values(path: Path) -> list[float]:
    """First observations of all episodes of a store, sorted."""
    return sorted(float(episode.observations[0][0]) for episode in el.open(path))


def test_a_live_writer_of_another_host_is_left_alone(path: Path, started: list) -> None:
    """A heartbeat that changes keeps a recovery away, whatever flock grants and clocks say."""
    writer = on_host(WRITER, path, "one")
    started.append(writer)
    assert line_of(writer).isdigit()
    assert line_of(on_host(RECOVER, path, "two")) == "[]"
    assert len(list((path / "journal").glob("*/*.frames"))) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("days", [-9, 9])
def test_a_dead_writer_of_another_host_is_recovered(path: Path, started: list, days: int) -> None:
    """A heartbeat that does not change for the watching time means death, however wrong the clocks are."""
    writer = on_host(WRITER, path, "one")
    started.append(writer)
    os.kill(int(line_of(writer)), signal.SIGKILL)
    writer.wait(PATIENCE)
    (lock,) = (path / "journal").glob("a-*.lock")
    moment = lock.stat().st_mtime + days * 86_400
    os.utime(lock, (moment, moment))
    assert line_of(on_host(RECOVER, path, "two")) == "[(6, 1)]"
    assert values(path) == [0, 1, 2, 3, 4, 99]
    assert not list((path / "journal").glob("a-*"))


def test_a_writer_of_this_boot_lives_as_long_as_its_process(path: Path) -> None:
    """Where flock grants everything, a process of this boot that runs is left alone nevertheless."""
    store = el.open(path)
    with store.writer(run="a") as writer:
        writer.begin(np.array([1.0])).append(1, 1.0, np.array([2.0]))
        writer.flush()
        script = HOST.replace("lock_owner._this_host = ", "_ = ") + "say(el.recover(path))"
        assert line_of(on_host(script, path, "-")) == "[]"
    assert values(path) == [1]


# A writer that was frozen until another host had taken its journal.
FROZEN = (
    WRITER
    + """
writer.flush()
for value in range(5, 10):
    try:
        episode(writer, value)
    except el.EpisodelakeError as error:
        say(type(error).__name__, error)
        episode(writer, value)
live.append(1, 1.0, np.array([100.0]))
live.end()
writer.close()
say("closed")
"""
)


@pytest.mark.further
def test_a_writer_whose_journal_was_taken_goes_on(path: Path, started: list) -> None:
    """It loses no finished episode and stores none twice; an error says what became of the live one."""
    writer = on_host(FROZEN, path, "one")
    started.append(writer)
    process = int(line_of(writer))
    os.kill(process, signal.SIGSTOP)
    assert line_of(on_host(RECOVER, path, "two")) == "[(6, 1)]"
    os.kill(process, signal.SIGCONT)
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()
    told = line_of(writer)
    assert told.startswith("StoreAccessError"), told
    assert "5 (its first 1 steps are stored)" in told
    assert line_of(writer) == "closed"
    assert values(path) == [*range(10), 99]
    store = el.open(path)
    assert len({episode.id for episode in store}) == 11
    assert store.verify().faults == ()
    assert not list((path / "journal").glob("a-*"))


def test_a_removed_journal_is_noticed(path: Path) -> None:
    """Episodes recorded after somebody deleted the journal are kept; an error lists those that are lost."""
    writer = el.open(path).writer(run="a")
    live = writer.begin(np.array([7.0]))
    live.append(1, 1.0, np.array([8.0]))
    writer.flush()
    for file in sorted((path / "journal").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    live.append(1, 1.0, np.array([9.0]))
    with pytest.warns(RuntimeWarning, match="0 .nothing is stored."):
        writer.flush()
    with pytest.raises(el.StoreAccessError, match="nothing is stored"):
        live.end()
    live.end()
    writer.begin(np.array([1.0])).append(1, 1.0, np.array([2.0]))
    writer.close()
    assert values(path) == [1]
    assert el.open(path).verify().faults == ()


def test_a_lock_that_was_removed_alone_costs_nothing(path: Path) -> None:
    """A writer that finds its lock gone takes it again and keeps the parts of its journal."""
    writer = el.open(path).writer(run="a")
    live = writer.begin(np.array([7.0]))
    live.append(1, 1.0, np.array([8.0]))
    writer.flush()
    for lock in (path / "journal").glob("a-*.lock"):
        lock.unlink()
    live.append(1, 1.0, np.array([9.0]))
    with pytest.warns(RuntimeWarning, match="goes on in a new journal"):
        writer.flush()
    live.end()
    writer.close()
    (episode,) = el.open(path)
    assert len(episode) == 2


def test_a_lock_names_its_owner_and_its_heartbeat_grows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of a lock is what the format's page says, and one thread keeps it fresh."""
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.01)
    with el.open(path).writer(run="a"):
        (lock,) = (path / "journal").glob("a-*.lock")
        first = json.loads(lock.read_bytes())
        assert first["pid"] == os.getpid() and first["boot"]
        assert lock.stat().st_size == 512
        wait_until(lambda: json.loads(lock.read_bytes())["beat"] > first["beat"], "another heartbeat")


@pytest.mark.parametrize(
    ("mount", "problem"),
    [
        ("1 1 0:9 / /data rw,relatime - nfs4 server:/x rw,vers=4.2,local_lock=none", None),
        ("1 1 0:9 / /data rw - nfs server:/x rw,vers=3,nolock", "nolock"),
        ("1 1 0:9 / /data rw - nfs server:/x rw,local_lock=flock", "local_lock=flock"),
        ("1 1 0:9 / /data rw - fuse.sshfs user@host: rw", "passes no locks on"),
        ("1 1 8:1 / /data rw - ext4 /dev/sda1 rw", None),
    ],
)
def test_mounts_without_locks_are_known(
    mount: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The type and the options of a mount tell whether its locks reach other hosts, and a warning says so."""
    listed = tmp_path / "mountinfo"
    listed.write_text("0 0 8:0 / / rw - ext4 /dev/root rw\n" + mount + "\n")
    monkeypatch.setattr(file_systems, "_MOUNTS", listed)
    monkeypatch.setattr(os.path, "realpath", lambda path: "/data/store/journal")
    file_systems._mounted.cache_clear()
    found = file_systems._mounted("/data/store/journal", -1)
    assert found.folder == "/data"
    assert found.problem is None if problem is None else problem in str(found.problem)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file_systems._warn.cache_clear()
        if found.problem:
            file_systems._warn(found)
    assert len(caught) == (problem is not None)
    file_systems._mounted.cache_clear()


@pytest.mark.parametrize(
    "name", ["two words", "größe", "数据", "back\\slash", "tab\tline\n", "no\u00a0break\u2028\x85", "\udcff"]
)
def test_names_of_mounts_are_any_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is found among the mounts, in which the kernel escapes some characters of its name."""
    listed = tmp_path / "mountinfo"
    shown = "".join(f"\\{ord(each):03o}" if each in " \t\n\\" else each for each in f"/mnt/{name}")
    lines = ("0 0 8:0 / / rw - ext4 /dev/root rw", f"1 1 0:9 / {shown} rw - nfs4 server:/x rw,nolock", "")
    listed.write_bytes(os.fsencode("\n".join(lines)))
    monkeypatch.setattr(file_systems, "_MOUNTS", listed)
    file_systems._mounted.cache_clear()
    found = file_systems._mounted(f"/mnt/{name}/store", -1)
    assert (found.kind, found.folder) == ("nfs4", f"/mnt/{name}")
    file_systems._mounted.cache_clear()
