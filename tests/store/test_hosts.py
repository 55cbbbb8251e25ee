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
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import episodelake as el
from effort import with_folders
from episodelake.store.files import local as local_files
from episodelake.store.files import locks
from episodelake.store.files.locks import FileLock, OtherHostError, holder
from episodelake.testing.adapters import case
from waiting import PATIENCE, line_of

#: Begins each script: the path of the store, its host ("-" for the test's own), and how far locks reach.
HOST = """
import fcntl, os, sys, time, warnings
import numpy as np
import episodelake as el
from episodelake.store.files import locks

path, host, reach = sys.argv[1:]
if reach == "kept":
    fcntl.flock = lambda descriptor, operation: None
if host != "-":
    locks._this_host = lambda: (host, host, host)
locks.shares_locks = lambda path: reach == "shared"
locks.is_local = lambda path: reach == "local"


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

#: A store's file system: `flock` reaches all hosts, or is not known to; or it is this host's own.
SHARED, KEPT, LOCAL = "shared", "kept", "local"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty store."""
    space = spaces.Box(-1e9, 1e9, (1,), np.float64)
    el.create(tmp_path / "store", observation_space=space, action_space=spaces.Discrete(2))
    return tmp_path / "store"


def on_host(script: str, path: Path, host: str, mount: str = KEPT) -> subprocess.Popen[str]:
    """Start a script in a process that takes itself for another host."""
    command = [sys.executable, "-c", script, str(path), host, mount]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def recovered(path: Path, host: str, mount: str = KEPT, *, other_hosts: bool = False) -> str:
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
@pytest.mark.parametrize("mount", [SHARED, KEPT])
@pytest.mark.further
def test_a_journal_belongs_to_its_host_where_locks_do_not_reach(
    path: Path, started: list, mount: str, dead: bool
) -> None:
    """A journal of another host is recovered only where `flock` shows that its writer is dead."""
    writer = on_host(WRITER, path, "one", mount)
    started.append(writer)
    process = int(line_of(writer))
    if dead:
        os.kill(process, signal.SIGKILL)
        writer.wait(PATIENCE)
    told = recovered(path, "two", mount)
    if mount == SHARED:
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
    hold = "from episodelake.store.rewrite.operation import Operation\n"
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
_OWNER = locks.Owner("a", "m", "1", 7, "t")
OWNERS = {
    "this boot": (_OWNER, KEPT, True),
    "a container of this boot": (dataclasses.replace(_OWNER, host="b", machine=""), KEPT, True),
    "an earlier boot": (dataclasses.replace(_OWNER, boot="0"), KEPT, True),
    "another host": (dataclasses.replace(_OWNER, boot="0", host="b"), LOCAL, False),
    "another host of this name": (dataclasses.replace(_OWNER, boot="0", machine="n"), KEPT, False),
    "another host, both share": (dataclasses.replace(_OWNER, boot="0", host="b", shared=True), SHARED, True),
    "another host, the owner's server": (dataclasses.replace(_OWNER, boot="0", host="b"), SHARED, False),
    "another host, kept here": (dataclasses.replace(_OWNER, boot="0", host="b", shared=True), KEPT, False),
}


@pytest.mark.parametrize(("mount", "told"), [(KEPT, False), (LOCAL, True)])
def test_hosts_without_a_machine_id(
    mount: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers of several hosts may have one name, so on a shared disk it does not tell an earlier boot."""
    monkeypatch.setattr(locks, "_this_host", lambda: ("a", "", "1"))
    monkeypatch.setattr(locks, "is_local", lambda _: mount == LOCAL)
    (tmp_path / "run.lock").write_bytes(dataclasses.replace(_OWNER, machine="", boot="0").to_bytes())
    assert (holder(tmp_path / "run.lock")[1] is None) == told


@pytest.mark.parametrize("name", OWNERS)
def test_who_is_told_by_flock(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that `flock` grants is taken if that proves its owner's end, and else names the owner."""
    owner, mount, told = OWNERS[name]
    path = tmp_path / "run.lock"
    path.write_bytes(owner.to_bytes())
    monkeypatch.setattr(locks, "_this_host", lambda: ("a", "m", "1"))
    monkeypatch.setattr(locks, "shares_locks", lambda _: mount == SHARED)
    held, other_host = holder(path)
    assert (held, other_host is None) == (False, told)
    if not told:
        with pytest.raises(OtherHostError, match=f"process 7 of the host '{owner.host}'"):
            FileLock.acquire(path)
    lock = FileLock.acquire(path, other_hosts=not told)
    assert lock is not None and lock.is_ours() and holder(path)[0]
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
        assert content["shared"] is False
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


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_lock_of_another_user_is_taken_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Maintenance locks a file that it may only read; a writer, whose name belongs in it, may not."""
    path, opened = tmp_path / "maintenance.lock", os.open
    path.touch()

    def refusing(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refusing)
    lock = FileLock.acquire(path, read_only=True)
    assert lock is not None
    lock.release(remove=False)
    with pytest.raises(el.errors.StoreAccessError, match="Could not take the lock at"):
        FileLock.acquire(path)
    with pytest.raises(el.errors.StoreAccessError):
        FileLock.acquire(tmp_path / "none.lock", read_only=True)


@pytest.mark.parametrize("owner", ["", "this", "other"])
def test_a_lock_without_its_journal_stays_if_it_names_another_host(
    path: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without an owner, or of this host, is removed; a file of other content is the user's."""
    lock, users = path / "journal" / "b-0.lock", path / "journal" / "mine.lock"
    users.write_bytes(b"my own")
    content = dataclasses.replace(_OWNER, boot="0", host="b" if owner == "other" else "a").to_bytes()
    lock.write_bytes(content if owner else b"")
    monkeypatch.setattr(locks, "_this_host", lambda: ("a", "m", "1"))
    assert el.recover(path) == []
    assert lock.exists() == (owner == "other") and users.exists()


def test_how_far_locks_of_mounts_reach(tmp_path: Path) -> None:
    """The type and the options of a mount tell whether its locks reach other hosts."""
    cases: list[Any] = [
        ("1 1 DEVICE / /data rw,relatime - nfs4 server:/x rw,vers=4.2,local_lock=none", False, True),
        ("1 1 DEVICE / /data rw - nfs server:/x rw,vers=3,nolock", False, False),
        ("1 1 DEVICE / /data rw - nfs server:/x rw,local_lock=flock", False, False),
        ("1 1 DEVICE / /data rw - lustre mds:/x rw,flock", False, True),
        ("1 1 DEVICE / /data rw - lustre mds:/x rw,localflock", False, False),
        ("1 1 DEVICE / /data rw - cifs //server/x rw", False, False),
        ("1 1 DEVICE / /data rw - fuse.sshfs user@host: rw", False, False),
        ("1 1 DEVICE / /data rw - ext4 /dev/sda1 rw", True, False),
    ]
    for folder, (mount, local, shared) in with_folders(cases, tmp_path):
        with case((mount, local, shared)), pytest.MonkeyPatch.context() as monkeypatch:
            device = folder.stat().st_dev
            line = mount.replace("DEVICE", f"{os.major(device)}:{os.minor(device)}")
            listed = folder / "mountinfo"
            listed.write_text("0 0 9999:0 / / rw - ext4 /dev/root rw\n" + line + "\n")
            monkeypatch.setattr(local_files, "_MOUNTS", listed)
            assert (local_files.is_local(folder), local_files.shares_locks(folder)) == (local, shared)
            listed.write_text("0 0 9999:0 / / rw - btrfs /dev/root rw,subvol=/root\n")
            assert local_files.is_local(folder)  # a subvolume
            listed.write_text("0 0 9999:0 / / rw - ext4 /dev/root rw\n")
            assert not local_files.is_local(folder)  # a mount outside of a chroot
            listed.unlink()
            assert not (local_files.is_local(folder) or local_files.shares_locks(folder))
