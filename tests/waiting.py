"""Waiting for what other threads and processes do: for the thing itself, and patiently.

How fast a machine is decides nothing here. A test that sleeps and hopes that something has happened meanwhile
fails where neighbours slow the machine; one that waits for the thing itself takes longer there, and no more.
`PATIENCE` says when something will surely not happen any more.

Scripts of tests that run in processes of their own import this too, so it imports nothing of the library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import independent_journal

#: Seconds until a wait for one thing is given up.
PATIENCE = 280.0
_PAUSE = 0.01


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
        told = independent_journal.told(journal)
        counted = [episode for number, episode in told.items() if number >= first]
        ends = sum(episode.end is not None for episode in counted)
        return sum(episode.transitions for episode in counted) >= steps and ends >= ended

    wait_until(is_told, f"{steps} steps and {ended} ends in the journal {journal.name}")
