"""Where `fcntl` and what only POSIX has are missing: everything but writing works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from real_environments import numbered_store

# Runs before anything of the library is imported. The dependencies and the standard library, which
# use more than other systems have, are imported before.
BARE = """
import importlib.util, mmap, multiprocessing.reduction, multiprocessing.resource_tracker, os, platform, signal
import concurrent.futures, random, shutil, subprocess, sys, tempfile, threading, zoneinfo
import deltalake, duckdb, gymnasium, numpy, platformdirs, polars, pyarrow.compute, pyarrow.parquet, pytz

MODULES = "fcntl", "grp", "pwd", "resource", "termios", "tty"
for name in MODULES:
    sys.modules[name] = None
CALLS = (
    "chown chroot fchmod fchown forkpty getegid geteuid getgid getpgid getpgrp getsid getuid killpg lockf "
    "mkfifo nice posix_fadvise posix_fallocate pread preadv pwrite pwritev register_at_fork setsid uname "
    "sync sysconf getloadavg statvfs fdatasync O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC"
)
platform.uname()
for name in CALLS.split():
    if hasattr(os, name):
        delattr(os, name)
for name in [each for each in vars(mmap) if each.startswith(("MADV_", "MAP_", "PROT_"))]:
    delattr(mmap, name)
for name in ("pthread_sigmask", "siginterrupt", "sigwait", "SIGKILL", "SIGHUP"):
    delattr(signal, name)
"""

READS = """
import episodelake as el

store = el.open(sys.argv[1])
first = store[0]
print(len(store), first.length, float(first.rewards.sum()) == first.episode_return)
count = "select count(*) from transitions"
print(store.sql(count).fetchall() == store.query(count).rows())
print(store.steps.collect().height == store.query("select count(*) from steps").item())
print(store.filter("length > 2").episodes.collect().height > 0)
for cache in ("memory", "stream"):
    print(sum(len(batch["reward"]) for batch in store.loader(4, cache=cache, shuffle=True, seed=0)) > 0)
print(len(store.history()) > 0, store.verify().ok)
"""

WRITES = """
import episodelake as el

store = el.open(sys.argv[1])
spaces = {"observation_space": store.observation_space, "action_space": store.action_space}
attempts = {
    "record": lambda: store.writer().close(),
    "create": lambda: el.create(sys.argv[1] + "-new", **spaces),
    "compact": store.compact,
    "tag": lambda: store.tag("v1"),
    "mmap": lambda: store.loader(4, cache="mmap"),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print(name, "went on")
    except el.errors.StoreAccessError as error:
        print(name, "flock" in str(error))
"""


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of a few episodes."""
    numbered_store(tmp_path / "store", [1, 2, 3, 4, 5, 6])
    return tmp_path / "store"


def _run(program: str, path: Path) -> list[str]:
    command = [sys.executable, "-c", BARE + program, str(path)]
    environment = {**os.environ, "EPISODELAKE_CACHE": str(path.parent / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.further
def test_reading_querying_and_loading_work(path: Path) -> None:
    """A store is read in all ways, and nothing of it changes."""
    before = _files(path)
    told = _run(READS, path)
    assert told[0].startswith("6 ")
    assert {word for line in told for word in line.split()[-1:]} == {"True"}
    assert _files(path) == before


@pytest.mark.further
def test_writing_is_refused_before_anything_changes(path: Path) -> None:
    """Every way to write ends with an error of the tree that says why."""
    before = _files(path.parent)
    told = _run(WRITES, path)
    assert told == [f"{name} True" for name in ("record", "create", "compact", "tag", "mmap")]
    assert _files(path.parent) == before
