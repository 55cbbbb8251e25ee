"""Waiting for what other threads and processes do: for the thing itself, and patiently.

How fast a machine is decides nothing here. A test that sleeps and hopes that something has happened meanwhile
fails where neighbours slow the machine; one that waits for the thing itself takes longer there, and no more.
`PATIENCE` says when something will surely not happen any more.

Scripts of tests that run in processes of their own import this too, so it imports nothing of the library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import independent_journal

#: Seconds until a wait for one thing is given up.
PATIENCE = 280.0
_PAUSE = 0.01
_SOON = 60.0


def wait_until(reached: Callable[[], object], what: str) -> None:
    """Wait until a condition holds.

    Args:
        reached: asked again and again; what it raises ends the wait.
        what: is waited for, in words for the message.

    Raises:
        AssertionError: it did not hold within `PATIENCE`.
    """
    latest = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < latest, f"waited in vain for {what}"
        time.sleep(_PAUSE)


def background_threads() -> list[str]:
    """The names of the threads of writers and loaders; those that decode video are the process's."""
    names = [thread.name for thread in threading.enumerate()]
    return [each for each in names if each.startswith("episodelake") and "decoding" not in each]


def await_end(child: int) -> int:
    """Return the exit code of a forked child (negative for a signal); 99 for one that hangs."""
    latest = time.monotonic() + PATIENCE
    pause = 0.0005
    while time.monotonic() < latest:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(pause * 1.5, _PAUSE)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 99


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints, stripped; kill it and return "" if none comes."""
    assert process.stdout is not None
    killing = threading.Timer(PATIENCE, process.kill)
    killing.daemon = True
    killing.start()
    try:
        return process.stdout.readline().strip()
    finally:
        killing.cancel()


def said(child: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints; fail if it ends without one."""
    line = line_of(child)
    assert line, f"the process ended with {child.wait(PATIENCE)}"
    return line


def journals(store: Path) -> list[Path]:
    """The folders of the journals in a local store, one for each run that has one."""
    return sorted(path for path in (store / "journal").glob("*") if path.is_dir())


def steps_told(journal: Path, first: int = 0) -> int:
    """How many steps the journal in a folder tells of episodes with this number or a higher one."""
    told = independent_journal.told(journal)
    return sum(episode.transitions for number, episode in told.items() if number >= first)


def wait_for_journal(journal: Path, steps: int, *, ended: int = 0, first: int = 0) -> None:
    """Wait until a journal tells so many steps; its writer seals nothing meanwhile.

    Args:
        journal: its folder, `<store>/journal/<run_id>`; it may not be there yet.
        steps: of all agents and environments together.
        ended: how many episodes must have ended as well. The end of an episode may come into the journal
            after its rows; that of a recorder's episode comes with the next reset.
        first: only episodes with this number or a higher one count; those before are sealed.
    """

    def is_told() -> bool:
        try:
            told = independent_journal.told(journal)
        except FileNotFoundError:  # what an earlier seal took is deleted meanwhile
            return False
        counted = [episode for number, episode in told.items() if number >= first]
        ends = sum(episode.end is not None for episode in counted)
        return sum(episode.transitions for episode in counted) >= steps and ends >= ended

    wait_until(is_told, f"{steps} steps and {ended} ends in the journal {journal.name}")


def closed_while_a_thread_begins(items: Any) -> None:
    """Close a generator as the garbage collector may: inside the lock with which threads begin and end."""
    begin, closed = threading.Event(), threading.Event()

    def close() -> None:
        begin.wait(PATIENCE)
        items.close()
        closed.set()

    threading.Thread(target=close, daemon=True).start()
    with getattr(threading, "_shutdown_locks_lock", contextlib.nullcontext()):
        begin.set()
        assert closed.wait(_SOON)
