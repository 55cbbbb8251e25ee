"""A store that a group shares: two users of one group, who may write each other's files or not.

Needs root, to become these users.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import PATIENCE, line_of, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become other users")

ALICE, BOB, GROUP = 4001, 4002, 5000

#: Begins each script; what the library loads is loaded while root may read it.
USER = """
import os, sys, tempfile, warnings
import numpy as np
import episodelake as el
from gymnasium import spaces

path, user, umask = sys.argv[1], int(sys.argv[2]), int(sys.argv[3], 8)


def episode(writer):
    writer.write_episode(
        observations=np.zeros((3, 1), np.float32), actions=np.zeros(2, int), rewards=np.ones(2),
        terminations=True, truncations=False,
    )


def create(path):
    return el.create(path, observation_space=spaces.Box(-9, 9, (1,)), action_space=spaces.Discrete(2))


with tempfile.TemporaryDirectory() as folder:
    store = create(folder + "/store")
    for _ in range(2):
        with store.writer(run="x") as writer:
            episode(writer)
    store.refresh().compact()
    el.recover(folder + "/store")
os.umask(umask)
os.setgroups([])
os.setgid(5000)
os.setuid(user)


def tried(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            print(work(), flush=True)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
    for warning in caught:
        print("warned:", warning.message, flush=True)


def record():
    with el.open(path).writer(run=str(user)) as writer:
        episode(writer)
    return "recorded"
"""

LIVE = """
writer = el.open(path).writer(run="a")
episode(writer)
writer.flush()
print(os.getpid(), flush=True)
"""


def run(path: Path, user: int, umask: str, script: str) -> str:
    """Run a script as a user and return what it printed."""
    command = [sys.executable, "-c", USER + script, str(path), str(user), umask]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def path() -> Iterator[Path]:
    """A place for a store in a folder of the group, in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shared = Path(folder, "shared")
        shared.mkdir()
        os.chown(shared, 0, GROUP)
        shared.chmod(0o2777)
        yield shared / "store"


def modes(path: Path) -> set[tuple[bool, int]]:
    """Kinds and modes of all files and folders."""
    found = [entry.lstat() for entry in (path, *path.rglob("*"))]
    return {(stat.S_ISDIR(state.st_mode), stat.S_IMODE(state.st_mode) & 0o777) for state in found}


@pytest.mark.further
def test_a_group_shares_a_store(path: Path) -> None:
    """With umask 002 both users record, recover each other's dead writers, and maintain."""
    script = "create(path)\ntried(record)\n" + LIVE + "os.kill(os.getpid(), 9)"
    dead = subprocess.run(
        [sys.executable, "-c", USER + script, str(path), str(ALICE), "002"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    told = run(
        path,
        BOB,
        "002",
        "tried(lambda: [run.episodes for run in el.recover(path)])\ntried(record)\n"
        "tried(lambda: el.open(path).compact().segments_after)",
    )
    assert told.splitlines() == ["[1]", "recorded", "1"]
    assert "1" in run(
        path, ALICE, "002", "tried(record)\ntried(lambda: el.open(path).compact().segments_after)"
    )
    assert modes(path) <= {(True, 0o775), (False, 0o664)}


@pytest.mark.further
def test_a_journal_of_another_user_is_left_to_them(path: Path) -> None:
    """With umask 022 a second user records beside a live and a dead writer, whose journal stays."""
    command = [sys.executable, "-c", USER + "create(path)\n" + LIVE + "import time; time.sleep(600)"]
    alice = subprocess.Popen([*command, str(path), str(ALICE), "022"], stdout=subprocess.PIPE, text=True)
    try:
        assert line_of(alice)
        # What is there is shared by hand; what comes later has the modes of umask 022.
        for entry in (path, *path.rglob("*")):
            if entry.is_dir() and entry.parent.name != "journal":
                entry.chmod(0o2775)
        assert run(path, BOB, "022", "tried(record)") == "recorded\n"
    finally:
        alice.kill()
        alice.communicate(timeout=PATIENCE)
    wait_until(lambda: alice.returncode is not None, "the end of the writer")
    told = run(path, BOB, "022", "tried(record)\ntried(lambda: el.recover(path))")
    first, warned, second, again = told.splitlines()
    assert (first, second) == ("recorded", "[]")
    for line in (warned, again):
        assert "left for its owner" in line
        assert str(ALICE) in line and "0644" in line and "chmod" in line
    assert "1" in run(path, ALICE, "022", "tried(lambda: len(el.recover(path)))")


@pytest.mark.further
def test_maintenance_without_the_right_to_write_says_whose_the_files_are(path: Path) -> None:
    """Where the modes forbid it the error names the folder, its owner and its mode, and what to do."""
    run(path, ALICE, "022", "create(path)\ntried(record)\ntried(record)")
    told = run(path, BOB, "022", "tried(lambda: el.open(path).compact())")
    assert told.startswith("StoreAccessError")
    assert str(ALICE) in told and "2755" in told and "chmod" in told
