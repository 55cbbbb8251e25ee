"""Prefetching: the same batches and states, bounded, errors in their turn, and a thread that always ends."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import episodelake as el
from effort import looped
from loader_batches import NESTED, places, random_store
from waiting import PATIENCE, background_threads, closed_while_a_thread_begins, wait_until

LENGTHS = [5, 1, 17, 9, 30, 2, 11]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> el.EpisodeStore:
    """Seven episodes of nested observations."""
    path = tmp_path_factory.mktemp("prefetching") / "store"
    return random_store(path, LENGTHS, ["terminated"] * 7, NESTED)


def loader_of(store: el.EpisodeStore, prefetch: int = 0, **options: Any) -> el.Loader:
    """19 batches an epoch, the last one smaller."""
    return store.loader(
        el.Batches(4, prefetch=prefetch),
        columns=["episode", "t", "observation"],
        shuffle=True,
        seed=2,
        **options,
    )


def threads() -> list[threading.Thread]:
    """The threads that prefetch."""
    return [thread for thread in threading.enumerate() if "prefetching" in thread.name]


def test_so_many_are_made_ahead_and_no_more(store: el.EpisodeStore) -> None:
    """With prefetch=3 three batches are made while none is asked for, and never more than three ahead."""
    asked, made, most = 0, 0, 0
    full = threading.Event()

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal made, most
        made += 1
        most = max(most, made - asked)
        if made == 4:
            full.set()
        return batch

    iterator = iter(loader_of(store, prefetch=3, transforms=[count]))
    asked = 1
    next(iterator)
    assert full.wait(PATIENCE)
    for _ in range(18):
        asked += 1
        next(iterator)
    assert most == 3 and made == 19


def test_an_error_comes_in_its_turn(store: el.EpisodeStore) -> None:
    """The batches before it are handed out and counted; it is raised in the consumer, and the thread ends."""
    made = 0

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal made
        made += 1
        if made == 4:
            raise ZeroDivisionError("the fourth")
        return batch

    loader = loader_of(store, prefetch=2, transforms=[fail])
    seen: list[Any] = []
    with pytest.raises(ZeroDivisionError, match="the fourth"):
        for batch in loader:
            seen.append(batch)
    assert len(seen) == 3 and loader.state_dict()["position"] == 12
    wait_until(lambda: not background_threads(), "the end of the background threads")
    assert places(seen) + places(loader) == places(loader_of(store))


@looped("leave", ["break", "drop", "close", "error"])
def test_the_thread_ends_when_the_iteration_is_left(store: el.EpisodeStore, leave: str) -> None:
    """However it is left, no thread stays, and the next iteration goes on from the last batch handed out."""
    loader = loader_of(store, prefetch=2)
    iterator = iter(loader)
    seen = [next(iterator)]
    assert len(threads()) == 1
    if leave == "close":
        iterator.close()  # pyright: ignore[reportAttributeAccessIssue]
    del iterator
    wait_until(lambda: not background_threads(), "the end of the background threads")
    if leave == "break":
        for batch in loader:
            seen.append(batch)
            break
        wait_until(lambda: not background_threads(), "the end of the background threads")
    if leave == "error":
        with pytest.raises(KeyError):
            for batch in loader:
                seen.append(batch)
                raise KeyError
        wait_until(lambda: not background_threads(), "the end of the background threads")
    assert places(seen) + places(loader) == places(loader_of(store))


@pytest.mark.parametrize("cache", ["memory", "stream"])
def test_an_iteration_is_closed_while_a_thread_begins(store: el.EpisodeStore, cache: Any) -> None:
    """The collector may close abandoned batches inside the lock with which threads begin and end."""
    batches = iter(loader_of(store, prefetch=0 if cache == "stream" else 2, cache=cache))
    next(batches)
    closed_while_a_thread_begins(batches)
    wait_until(lambda: not background_threads(), "the end of the background threads")


def test_a_loader_that_is_moved_forgets_what_was_made_ahead(store: el.EpisodeStore) -> None:
    """A state that is loaded while batches are ready takes effect: the iteration says so, the next obeys."""
    loader = loader_of(store, prefetch=4)
    beginning = loader.state_dict()
    iterator = iter(loader)
    next(iterator), next(iterator)
    loader.load_state_dict(beginning)
    with pytest.raises(el.errors.LoaderStateError, match="was moved"):
        next(iterator)
    wait_until(lambda: not background_threads(), "the end of the background threads")
    assert places(loader) == places(loader_of(store))


def test_a_loader_is_pickled_while_it_prefetches(store: el.EpisodeStore) -> None:
    """The copy goes on from the last batch that was handed out, with a thread of its own."""
    loader = loader_of(store, prefetch=3)
    iterator = iter(loader)
    seen = [next(iterator), next(iterator)]
    copy = pickle.loads(pickle.dumps(loader))
    rest = places(copy)
    assert places(seen) + rest == places(loader_of(store))
    assert places(iterator) == rest


def _go_on(iterator: Any, loader: el.Loader, pipe: Any) -> None:
    try:
        next(iterator)
    except el.errors.LoaderStateError as error:
        pipe.send(str(error))
    pipe.send(places(loader))


def test_a_forked_process_begins_anew(store: el.EpisodeStore) -> None:
    """An iteration of the parent says that it cannot go on there; the loader can, and so can the parent."""
    loader = loader_of(store, prefetch=2)
    iterator = iter(loader)
    seen = [next(iterator)]
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_go_on, args=(iterator, loader, there))
    process.start()
    assert here.poll(PATIENCE) and "another process" in here.recv()
    assert here.poll(PATIENCE)
    rest = here.recv()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert places(seen) + rest == places(loader_of(store))
    assert places(iterator) == rest


@pytest.mark.further
def test_the_interpreter_ends_with_a_thread_at_work(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A program that ends in the middle of an iteration ends well, and says nothing."""
    program = (
        "import sys, episodelake as el\n"
        "loader = el.open(sys.argv[1]).loader(el.Batches(4, prefetch=3))\n"
        "iterator = iter(loader)\n"
        "print(len(next(iterator)['reward']))\n"
    )
    command = [sys.executable, "-c", program, str(store.path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (0, "4\n", "")


@pytest.mark.further
def test_a_thread_goes_on_after_the_main_thread(store: el.EpisodeStore, tmp_path: Path) -> None:
    """A thread that outlives the main thread gets all batches; by then no executor takes work."""
    program = (
        "import sys, threading, episodelake as el\n"
        "loader = el.open(sys.argv[1]).loader(el.Batches(4, prefetch=2))\n"
        "begun = threading.Event()\n"
        "def train():\n"
        "    iterator = iter(loader)\n"
        "    count = len(next(iterator)['reward']) // 4\n"
        "    begun.set()\n"
        "    threading.main_thread().join()\n"
        "    print(count + sum(1 for _ in iterator) == len(loader))\n"
        "threading.Thread(target=train).start()\n"
        "begun.wait()\n"
    )
    command = [sys.executable, "-c", program, str(store.path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("depth", [-1, 1.5, True])
def test_a_depth_is_a_whole_number(store: el.EpisodeStore, depth: Any) -> None:
    """Anything else is refused before a file is read."""
    with pytest.raises(el.errors.InvalidArgumentError, match="prefetch"):
        store.loader(el.Batches(4, prefetch=depth))
