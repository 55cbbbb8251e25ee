"""Hosts that share a store: `flock` decides where their locks reach each other; elsewhere journals stay put.

A second host is a process whose `flock` always succeeds and whose boot id is another one, as where NFS is
mounted with `nolock`; where locks are shared, `flock` is the real one.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from episodelake.store.files import local as local_files
from episodelake.store.files import locks
from episodelake.store.files.locks import FileLock, OtherHostError, is_held, other_host
from waiting import PATIENCE, line_of

#: Begins each script: the path of the store, its host ("-" for the test's own), the mount's type and options.
HOST = """
import fcntl, os, sys, time, warnings
import numpy as np
import episodelake as el
from episodelake.store.files import locks
from episodelake.store.files.local import FileSystem

path, host, kind, *options = sys.argv[1:]
system = FileSystem(kind, tuple(options))
if not (system.shares_locks or system.is_local):
    fcntl.flock = lambda descriptor, operation: None
if host != "-":
    locks._this_host = lambda: (host, host, host)
locks.file_system = lambda path: system


def episode(writer, value):
    writer.write_episode(
        observations=np.full((3, 1), float(value)), actions=np.zeros(2, int), rewards=np.ones(2),
        terminations=True, truncations=False,
    )


def say(*words):
    print(*words, flush=True)
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

RECOVER = (
    HOST
    + """
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    runs = el.recover(path, other_hosts=OTHER_HOSTS)
say([(run.episodes, run.interrupted) for run in runs], *(warning.message for warning in told))
"""
)

#: A store's file system: `flock` reaches all hosts, is kept on each one, or nothing is known.
SHARED, KEPT, UNKNOWN = ("nfs4", "local_lock=none"), ("nfs4", "local_lock=all"), ("fuse.something",)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty store."""
    space = spaces.Box(-1e9, 1e9, (1,), np.float64)
    el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    return tmp_path / "store"


def on_host(script: str, path: Path, host: str, mount: tuple[str, ...] = KEPT) -> subprocess.Popen[str]:
    """Start a script in a process that takes itself for another host."""
    command = [sys.executable, "-c", script, str(path), host, *mount]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def recovered(path: Path, host: str, mount: tuple[str, ...] = KEPT, *, other_hosts: bool = False) -> str:
    """Recover on a host, and return how many episodes of each run, and the warnings."""
    return line_of(on_host(RECOVER.replace("OTHER_HOSTS", str(other_hosts)), path, host, mount))


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


@pytest.mark.sample(2)
@pytest.mark.parametrize("dead", [False, True], ids=["live", "dead"])
@pytest.mark.parametrize("mount", [SHARED, KEPT, UNKNOWN], ids=["shared", "kept", "unknown"])
def test_a_journal_belongs_to_its_host_where_locks_do_not_reach(
    path: Path, started: list, mount: tuple[str, ...], dead: bool
) -> None:
    """A journal of another host is recovered only where `flock` shows that its writer is dead."""
    writer = on_host(WRITER, path, "one", mount)
    started.append(writer)
    process = int(line_of(writer))
    if dead:
        os.kill(process, signal.SIGKILL)
        writer.wait(PATIENCE)
    told = recovered(path, "two", mount)
    if mount is SHARED:
        assert told == ("[(6, 1)]" if dead else "[]")
        return
    assert told.startswith("[] The journal ") and f"process {process} of the host 'one'" in told
    assert "other_hosts=True" in told and "--other-hosts" in told
    assert len(list((path / "journal").glob("*/*.frames"))) == 1
    if dead:
        # On the same boot `flock` decides, whatever process ids are.
        assert recovered(path, "one", mount) == "[(6, 1)]"
        assert values(path) == [0, 1, 2, 3, 4, 99]
        assert not list((path / "journal").glob("a-*"))


@pytest.mark.further
def test_a_dead_writer_of_another_host_is_recovered_if_the_user_says_so(path: Path, started: list) -> None:
    """`recover(other_hosts=True)` seals the journal; without it writers only warn, and record."""
    writer = on_host(WRITER, path, "one")
    started.append(writer)
    os.kill(int(line_of(writer)), signal.SIGKILL)
    writer.wait(PATIENCE)
    record = "with el.open(path).writer(run='b') as writer:\n    episode(writer, 50)\nsay('recorded')"
    assert line_of(on_host(HOST + record, path, "two")) == "recorded"
    assert values(path) == [50]
    assert recovered(path, "two", other_hosts=True) == "[(6, 1)]"
    assert values(path) == [0, 1, 2, 3, 4, 50, 99]
    assert not list((path / "journal").glob("a-*"))


# A writer whose journal another host recovers while it lives, against what the user was told.
TAKEN = (
    WRITER
    + """
for value in range(5, 10):
    try:
        episode(writer, value)
        writer.flush()
    except el.errors.StoreAccessError as error:
        say(error)
        break
try:
    writer.close()
except el.errors.StoreAccessError as error:
    say(error)
writer.close()
say("closed")
"""
)


@pytest.mark.further
def test_a_live_writer_whose_journal_was_recovered_ends_with_an_error(path: Path, started: list) -> None:
    """What it had flushed is stored once, it reports the rest as lost, and it can be closed."""
    writer = on_host(TAKEN, path, "one")
    started.append(writer)
    line_of(writer)
    assert recovered(path, "two", other_hosts=True) == "[(6, 1)]"
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()
    for _ in range(2):
        assert "recovered on another host although this writer lives" in line_of(writer)
    assert line_of(writer) == "closed"
    assert values(path) == [*range(5), 99]
    assert el.open(path).verify().faults == ()
    assert not list((path / "journal").glob("a-*"))


@pytest.mark.parametrize("lock", [True, False], ids=["lock alone", "whole journal"])
def test_a_removed_journal_is_noticed(path: Path, lock: bool) -> None:
    """The next flush after somebody deleted a live journal or its lock is an error; the run can be closed."""
    writer = el.open(path).writer(run="a")
    live = writer.begin(np.array([7.0]))
    live.append(1, 1.0, np.array([8.0]))
    writer.flush()
    for file in sorted((path / "journal").rglob("*"), reverse=True):
        if file.suffix == ".lock" or not lock:
            file.rmdir() if file.is_dir() else file.unlink()
    live.append(1, 1.0, np.array([9.0]))
    with pytest.raises(el.errors.StoreAccessError, match="was removed, or recovered"):
        writer.flush()
    with pytest.raises(el.errors.StoreAccessError, match="was removed, or recovered"):
        writer.close()
    writer.close()
    el.recover(path)
    assert [len(episode) for episode in el.open(path)] == ([2] if lock else [])
    assert el.open(path).verify().faults == ()


@pytest.mark.further
def test_maintenance_of_another_host_is_not_joined(path: Path, started: list) -> None:
    """Its lock is refused until `recover(other_hosts=True)`; a live operation of this host is waited for."""
    hold = "from episodelake.store.maintenance.operation import Operation\n"
    hold += "with Operation.begin(el.open(path).handle, 'test'):\n    say('in'); sys.stdin.readline()"
    started.append(holder := on_host(HOST + hold, path, "one"))
    assert line_of(holder) == "in"
    holder.kill()
    holder.wait(PATIENCE)
    compact = "try: say(el.open(path).compact() is not None)\n"
    compact += "except el.errors.StoreAccessError as error: say(error)"
    told = line_of(on_host(HOST + compact, path, "two"))
    assert "maintenance.lock belongs to the process" in told and "'one'" in told, told
    assert recovered(path, "two", other_hosts=True) == "[]"
    assert line_of(on_host(HOST + compact, path, "two")) == "True"


#: Owners as their locks name them, and whether `flock` on the host "a" of boot "1" tells if they live.
_OWNER = locks.Owner("a", "m", "1", 7, "t", 5)
OWNERS = {
    "this boot and mount": (_OWNER, KEPT, True),
    "this boot, of an earlier version": (dataclasses.replace(_OWNER, device=0), KEPT, True),
    "a container of this boot": (dataclasses.replace(_OWNER, host="b", machine=""), KEPT, True),
    "this boot, another mount": (dataclasses.replace(_OWNER, device=6), KEPT, False),
    "an earlier boot, local": (dataclasses.replace(_OWNER, boot="0"), ("ext4",), True),
    "an earlier boot, or a host of this name": (dataclasses.replace(_OWNER, boot="0"), KEPT, False),
    "another host, local": (dataclasses.replace(_OWNER, boot="0", host="b"), ("ext4",), False),
    "another host, both share": (dataclasses.replace(_OWNER, boot="0", host="b", shared=True), SHARED, True),
    "another host, the owner's server": (dataclasses.replace(_OWNER, boot="0", host="b"), SHARED, False),
    "another host, kept here": (dataclasses.replace(_OWNER, boot="0", host="b", shared=True), KEPT, False),
    "no boot known": (dataclasses.replace(_OWNER, boot=""), UNKNOWN, False),
}


@pytest.mark.parametrize("name", OWNERS)
def test_who_is_told_by_flock(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that `flock` grants is taken if that proves its owner's end, and else names the owner."""
    owner, mount, told = OWNERS[name]
    path = tmp_path / "run.lock"
    device = os.stat(tmp_path).st_dev if owner.device == 5 else owner.device
    path.write_bytes(dataclasses.replace(owner, device=device).to_bytes())
    monkeypatch.setattr(locks, "_this_host", lambda: ("a", "m", "1"))
    monkeypatch.setattr(locks, "file_system", lambda _: local_files.FileSystem(mount[0], mount[1:]))
    assert not is_held(path)
    assert (other_host(path) is None) == told
    if not told:
        with pytest.raises(OtherHostError, match=f"process 7 of the host '{owner.host}'"):
            FileLock.acquire(path)
    lock = FileLock.acquire(path, other_hosts=not told)
    assert lock is not None and lock.is_ours() and is_held(path)
    lock.release(remove=True)


@pytest.mark.parametrize("reused", [True, False])
def test_locks_of_earlier_versions_are_understood(path: Path, reused: bool) -> None:
    """A dead writer's lock with a heartbeat is free on its boot, also if its process id is used again."""
    pid = os.getpid() if reused else 1
    host, machine, boot = locks._this_host()
    earlier = dict(host=host, machine=machine, boot=boot, namespace="pid:[1]", pid=pid, started=0)
    content = json.dumps({**earlier, "inode": 1, "token": "0" * 16, "beat": 9}).encode().ljust(511) + b"\n"
    stray, maintenance = path / "journal" / "old-0.lock", path / "journal" / "maintenance.lock"
    for file in (stray, maintenance):
        file.write_bytes(content)
    assert el.recover(path) == []
    assert not stray.exists()
    el.open(path).compact()
    for file in (stray, maintenance):
        file.write_bytes(content.replace(boot.encode(), b"elsewhere").replace(host.encode(), b"gpu3"))
    assert el.recover(path) == [] and stray.exists()
    with pytest.raises(el.errors.StoreAccessError, match="'gpu3'"):
        el.open(path).compact()
    assert el.recover(path, other_hosts=True) == []
    el.open(path).compact()


def test_a_lock_names_its_owner(path: Path) -> None:
    """The content of a lock is what the format's page says, and its release empties or removes it."""
    with el.open(path).writer(run="a"):
        (lock,) = (path / "journal").glob("a-*.lock")
        content = json.loads(lock.read_bytes())
        assert content["pid"] == os.getpid() and content["boot"]
        assert (content["device"], content["shared"]) == (lock.stat().st_dev, False)
        assert lock.stat().st_size == 512
    assert not lock.exists()


def test_a_full_disk_does_not_keep_a_lock_from_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local file system the lock works without its content: maintenance can make room."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "maintenance.lock"
    path.write_bytes(_OWNER.to_bytes().replace(b'"1"', json.dumps(locks._this_host()[2]).encode()))
    monkeypatch.setattr(os, "pwrite", full)
    lock = FileLock.acquire(path, other_hosts=True)
    assert lock is not None and lock.is_ours() and path.stat().st_size == 0
    lock.release(remove=False)


@pytest.mark.parametrize(
    ("number", "ours"), [(errno.ESTALE, True), (errno.EIO, True), (errno.ENOENT, False), (errno.ELOOP, False)]
)
def test_a_lock_is_lost_when_its_file_is_gone_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ours: bool
) -> None:
    """A look that fails for now (a stale handle of NFS) leaves the lock; a file that is gone does not."""

    def failing(path: Path) -> int:
        raise OSError(number, os.strerror(number), str(path))

    lock = FileLock.acquire(tmp_path / "maintenance.lock")
    assert lock is not None
    with monkeypatch.context() as patch:
        patch.setattr(locks, "open_plain", failing)
        assert lock.is_ours() == ours
    assert lock.is_ours()
    lock.release(remove=True)


@pytest.mark.parametrize("empty", [True, False])
def test_a_lock_without_its_journal_stays_where_its_writer_may_have_begun(
    path: Path, empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks are not known to reach other hosts, a lock that has no owner yet may be another host's."""
    lock = path / "journal" / "b-0.lock"
    for mount, stays in ((UNKNOWN, True), (("ext4",), False)):
        monkeypatch.setattr(locks, "file_system", lambda _, mount=mount: local_files.FileSystem(*mount))
        lock.write_bytes(b"" if empty else dataclasses.replace(_OWNER, boot="0").to_bytes())
        monkeypatch.setattr(locks, "_this_host", lambda: ("a", "m", "1"))
        assert el.recover(path) == []
        assert lock.exists() == stays


@pytest.mark.parametrize(
    ("mount", "local", "shared"),
    [
        ("1 1 0:9 / /data rw,relatime - nfs4 server:/x rw,vers=4.2,local_lock=none", False, True),
        ("1 1 0:9 / /data rw - nfs server:/x rw,vers=3,nolock", False, False),
        ("1 1 0:9 / /data rw - nfs server:/x rw,local_lock=flock", False, False),
        ("1 1 0:9 / /data rw - lustre mds:/x rw,flock", False, True),
        ("1 1 0:9 / /data rw - lustre mds:/x rw,localflock", False, False),
        ("1 1 0:9 / /data rw - cifs //server/x rw", False, False),
        ("1 1 0:9 / /data rw - fuse.sshfs user@host: rw", False, False),
        ("1 1 8:1 / /data rw - ext4 /dev/sda1 rw", True, False),
    ],
)
def test_how_far_locks_of_mounts_reach(
    mount: str, local: bool, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The type and the options of a mount tell whether its locks reach other hosts."""
    listed = tmp_path / "mountinfo"
    listed.write_text("0 0 8:0 / / rw - ext4 /dev/root rw\n" + mount + "\n")
    monkeypatch.setattr(local_files, "_MOUNTS", listed)
    local_files._mounted.cache_clear()
    found = local_files._mounted("/data/store/journal", -1)
    assert (found.folder, found.is_local, found.shares_locks) == ("/data", local, shared)
    local_files._mounted.cache_clear()


@pytest.mark.parametrize(
    "name", ["two words", "größe", "数据", "back\\slash", "tab\tline\n", "no\u00a0break\u2028\x85", "\udcff"]
)
def test_names_of_mounts_are_any_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is found among the mounts, in which the kernel escapes some characters of its name."""
    listed = tmp_path / "mountinfo"
    shown = "".join(f"\\{ord(each):03o}" if each in " \t\n\\" else each for each in f"/mnt/{name}")
    lines = ("0 0 8:0 / / rw - ext4 /dev/root rw", f"1 1 0:9 / {shown} rw - nfs4 server:/x rw,nolock", "")
    listed.write_bytes(os.fsencode("\n".join(lines)))
    monkeypatch.setattr(local_files, "_MOUNTS", listed)
    local_files._mounted.cache_clear()
    found = local_files._mounted(f"/mnt/{name}/store", -1)
    assert (found.kind, found.folder) == ("nfs4", f"/mnt/{name}")
    local_files._mounted.cache_clear()
