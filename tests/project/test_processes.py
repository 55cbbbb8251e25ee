"""Stores in several processes: pickled into spawned ones, refused in forked ones."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
from episodelake.readers.blocks import SegmentFile
from episodelake.store.files import locating
from object_server import new_url, shared_server
from real_environments import numbered_store
from waiting import PATIENCE, await_end


def total(view: el.EpisodeView) -> tuple[int, float]:
    """The number of episodes of a view and the sum of their returns, read in whatever process this is."""
    return len(view), sum(episode.episode_return for episode in view)


@pytest.mark.further
def test_a_pickled_store_shows_its_version_in_a_spawned_process(tmp_path: Path) -> None:
    """A store, and a view of it, read the same in another process, also after others have recorded."""
    store = numbered_store(tmp_path / "store", [3, 4, 5])
    store.sql("from episodes").fetchall()
    view = store.filter("length > 3")
    expected = total(store), total(view)
    with store.writer(run="later") as writer:
        episode = writer.begin(store[0].observations[0])
        episode.append(store[0].actions[0], 1.0, store[0].observations[1])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert (
            pool.submit(total, store).result(PATIENCE),
            pool.submit(total, view).result(PATIENCE),
        ) == expected
    assert len(pickle.loads(pickle.dumps(store)).refresh()) == 4


def in_fork(work: Callable[[], object]) -> str:
    """What a forked child says of some work: its result, or the error and its text."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = repr(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(send, text.encode())
        os._exit(0)
    os.close(send)
    assert await_end(child) == 0
    with open(receive) as pipe:
        return pipe.read()


def test_a_forked_child_waits_for_no_reading_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that reads a row group does not exist in the child, which reads the same one by itself."""
    store = numbered_store(tmp_path / "store", [3])
    episode = store[0]
    reading, done = threading.Event(), threading.Event()
    read = SegmentFile.read

    def slow(*given: Any, **options: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            reading.set()
            assert done.wait(PATIENCE)
        return read(*given, **options)

    monkeypatch.setattr(SegmentFile, "read", slow)
    with ThreadPoolExecutor(1) as pool:
        actions = pool.submit(lambda: episode.actions)
        assert reading.wait(PATIENCE)
        try:
            assert in_fork(lambda: episode.rewards.shape) == "(3,)"
        finally:
            done.set()
        assert len(actions.result(PATIENCE)) == 3


@pytest.mark.parametrize(
    "work",
    [
        lambda store: el.open(store.path),
        lambda store: store.refresh(),
        lambda store: store.steps.collect(),
        lambda store: store.writer(),
    ],
    ids=["open", "refresh", "frame", "writer"],
)
def test_a_forked_child_is_told_to_spawn(tmp_path: Path, work: Callable[[el.EpisodeStore], object]) -> None:
    """What would panic or hang after a fork is refused, with a word on what to do instead."""
    store = numbered_store(tmp_path / "store", [3])
    store.steps.collect()
    text = in_fork(lambda: work(store))
    assert text.startswith("StoreAccessError: This process was forked") and "spawn" in text
    assert len(el.open(store.path)) == 1


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> el.EpisodeStore:
    """A store on an object store."""
    monkeypatch.setenv("EPISODELAKE_SPOOL", str(tmp_path / "spool"))
    options = shared_server().storage_options()
    return numbered_store(tmp_path / "local", [3, 4]).copy(new_url(), storage_options=options)


def test_a_remote_store_takes_its_options_along(remote: el.EpisodeStore) -> None:
    """A pickled store on an object store is reached with the same options."""
    assert total(pickle.loads(pickle.dumps(remote))) == total(remote)


def test_a_copy_to_the_same_kind_of_place_uses_the_stores_options(remote: el.EpisodeStore) -> None:
    """A store that was opened with an endpoint copies to that endpoint, not to the one of the environment."""
    url = new_url()
    copied = remote.copy(url)
    assert len(el.open(url, storage_options=shared_server().storage_options())) == len(copied) == 2


def test_a_fork_while_a_thread_asks_for_memory_has_a_folder_of_its_own() -> None:
    """A child that was forked while its parent held the lock of `memory://` gets another folder, at once."""
    parent = locating.memory_place("forked")
    with locating._guard:
        found = in_fork(lambda: str(locating.memory_place("forked")))
    assert found.startswith("'/") and "episodelake-memory-" in found
    assert found.strip("'") != str(parent)
    assert parent.parent.exists()
