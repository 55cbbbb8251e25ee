"""Stores that are deleted, replaced or put back while writers and readers of them live."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import episodelake as el
from conformance import Backend, FolderBackend, ObjectBackend, abandon, assert_numbered, fill
from episodelake.store.delta.checkpoints import write_checkpoint
from episodelake.store.files import locate
from log_edits import read_actions, write_actions
from object_server import shared_server
from real_environments import NUMBERED_SPACES, write_numbered
from test_log_cleanup import backend
from waiting import line_of

__all__ = ["backend"]

OTHER_SPACES = {
    "observation_space": gym.spaces.Box(-9, 9, (2,), np.float64),
    "action_space": gym.spaces.Discrete(2),
}
GONE = "no longer holds the store"


def wipe(backend: Backend) -> None:
    """Delete a store with everything in it, as `rm -rf` or the bucket's console would."""
    if isinstance(backend, FolderBackend):
        shutil.rmtree(backend.at())
    else:
        for file in backend.files():
            backend.remove(file)


def lengths(store: el.EpisodeStore) -> list[int]:
    """The lengths of all episodes."""
    return store.episodes.collect()["length"].to_list()


def write_other(store: el.EpisodeStore, count: int) -> None:
    """Commit some episodes of `OTHER_SPACES`, one by one."""
    with store.writer(run="other") as writer:
        for _ in range(count):
            writer.write_episode(
                observations=np.zeros((3, 2)),
                actions=np.zeros(2, int),
                rewards=np.ones(2),
                terminations=True,
                truncations=False,
            )
            writer.seal()


@pytest.mark.sample
@pytest.mark.parametrize(
    ("before", "after"), [(0, 0), (0, 2), (3, 0), pytest.param(2, 2, marks=pytest.mark.slow), (1, 4)]
)
def test_a_writer_commits_nothing_to_another_store(backend: Backend, before: int, after: int) -> None:
    """Whichever log is longer, the writer raises, and no byte of the new store changes.

    It raises again and again while it has its journal. One that went with the store leaves nothing to try
    again: the first `close` raises, and ends the run.
    """
    writer = backend.create().writer(run="old")
    for number in range(before):
        write_numbered(writer, number, number % 4 + 1)
        writer.seal()
    wipe(backend)
    new = backend.create(**OTHER_SPACES)
    write_other(new, after)
    there = backend.contents()
    write_numbered(writer, before, 2)
    for attempt in (writer.seal, writer.close):
        with pytest.raises(el.errors.StoreNotFoundError, match=GONE):
            attempt()
    with nullcontext() if isinstance(backend, FolderBackend) else pytest.raises(el.errors.StoreNotFoundError):
        writer.close()
    abandon(writer)
    assert backend.contents() == there
    assert lengths(backend.open()) == [2] * after
    assert backend.open().verify().ok


@pytest.mark.sample
@pytest.mark.parametrize("count", [0, 2, 5])
def test_no_reader_mixes_two_stores(backend: Backend, count: int) -> None:
    """`refresh`, a loader that follows and a pickled copy raise; opening the path shows the new store."""
    store = fill(backend.create(), range(2), seal_every=1)
    loader = store.loader(4, follow=el.Follow(refresh_seconds=0, wait_seconds=0))
    loader.take(1)
    copied = pickle.dumps(store.filter("length > 0"))
    wipe(backend)
    with pytest.raises(el.errors.StoreNotFoundError, match=GONE):
        store.refresh()
    fill(backend.create(), range(20, 20 + count), seal_every=1)
    for attempt in (store.refresh, loader.refresh, lambda: pickle.loads(copied)):
        with pytest.raises(el.errors.StoreNotFoundError, match=GONE):
            attempt()
    assert_numbered(backend.open(), range(20, 20 + count))


def test_a_writer_adds_nothing_to_an_older_copy(backend: Backend) -> None:
    """A copy that was put back has the same identity but a shorter log: a commit would leave a gap."""
    store = backend.create()
    writer = store.writer(run="old")
    for number in range(3):
        if number == 2:
            kept = backend.contents()
        write_numbered(writer, number, number % 4 + 1)
        writer.seal()
    for file in set(backend.files()) - kept.keys():
        backend.remove(file)
    write_numbered(writer, 3, 1)
    for _ in range(4):
        with pytest.raises(el.errors.StoreNotFoundError, match="restored from an older copy"):
            writer.seal()
    abandon(writer)
    assert_numbered(backend.open(), range(2))


OLD_JOB = """
import os, sys
import episodelake as el
from real_environments import write_numbered
writer = el.open(sys.argv[1], storage_options=eval(sys.argv[2])).writer(run="old")
write_numbered(writer, 0, 1)
writer.seal()
for number in (1, 2):
    write_numbered(writer, number, number + 1)
print("ready", flush=True)
sys.stdin.readline()
try:
    writer.close()
except el.errors.StoreNotFoundError as error:
    print(error, flush=True)
os._exit(0)
"""


@pytest.mark.further
def test_unsealed_episodes_go_into_a_store_of_ones_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the journals, from which `recover` seals what the old store did not get anywhere."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    backend = ObjectBackend(shared_server())
    backend.create()
    folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
        [sys.executable, "-c", OLD_JOB, backend.at(), repr(backend.storage_options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        text=True,
    ) as child:
        assert child.stdin is not None
        assert line_of(child) == "ready"
        wipe(backend)
        fill(backend.create(), [10])
        child.stdin.close()
        said = line_of(child)
    assert GONE in said and "episodelake.recover(store, journals=" in said
    journals = said.split("journals='")[1].split("'")[0]
    # The new store's own recovery, and its next writer, leave the old journal alone.
    assert backend.recover() == []
    fill(backend.open(), [11])
    assert_numbered(backend.open(), [10, 11])
    saved = el.create(tmp_path / "saved", **NUMBERED_SPACES)
    assert [run.episodes for run in el.recover(tmp_path / "saved", journals=journals)] == [2]
    assert_numbered(saved.refresh(), [1, 2])
    assert el.recover(tmp_path / "saved", journals=journals) == []


def test_commits_before_a_checkpoint_may_be_absent(tmp_path: Path) -> None:
    """A log that another program shortened has no commit 0, and takes commits as before."""
    store = fill(el.create(tmp_path / "store", **NUMBERED_SPACES), range(3), seal_every=1)
    for table in ("steps", "episodes"):
        place = locate(tmp_path / "store" / table)
        log = tmp_path / "store" / table / "_delta_log"
        version = max(int(path.stem) for path in log.glob("*.json"))
        write_checkpoint(place, version, checksummed=True)
        for number in range(version):
            (log / f"{number:020d}.json").unlink()
    assert_numbered(fill(el.open(tmp_path / "store"), [3, 4]), range(5))
    store.refresh().compact()
    assert_numbered(store, range(5))


@pytest.mark.parametrize("table", ["episodes", "steps"])
def test_a_file_in_the_place_of_another_is_refused(tmp_path: Path, table: str) -> None:
    """A whole file of another segment, with the same columns and rows: the log has another checksum."""
    store = el.create(tmp_path / "store", **OTHER_SPACES)
    write_other(store, 4)
    files = sorted((tmp_path / "store" / table).glob("*.parquet"))
    shutil.copyfile(files[1], files[2])
    with pytest.raises(el.errors.CorruptStoreError, match=files[2].name):
        opened = el.open(tmp_path / "store")
        if table == "steps":
            opened.steps.collect()
        else:
            opened.filter("length > 1")


@pytest.mark.parametrize("table", ["episodes", "steps"])
def test_a_listing_with_other_rows_than_its_file_is_refused(tmp_path: Path, table: str) -> None:
    """Also where the log has the right checksum of the footer beside them."""
    store = el.create(tmp_path / "store", **OTHER_SPACES)
    write_other(store, 3)
    for commit in (tmp_path / "store" / table / "_delta_log").glob("*[23].json"):
        actions = read_actions(commit)
        for add in (action["add"] for action in actions if "add" in action):
            assert "episodelake.footer" in add["tags"]
            add["stats"] = json.dumps(json.loads(add["stats"]) | {"numRecords": 2})
        write_actions(commit, actions)
    opened = el.open(tmp_path / "store")
    with pytest.raises(el.errors.CorruptStoreError, match="were committed"):
        opened.sql(f"from {table}").fetchall()
    with pytest.raises(el.errors.CorruptStoreError, match="were committed"):
        getattr(opened, table).collect()
    assert not opened.verify().ok
