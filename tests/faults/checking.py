"""Looks at a store after the faults: as it was found, after recovery, and whether it can still be written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import episodelake as el

from .invariants import AFTER_RECOVERY, WHENEVER, Evidence, Invariant
from .promises import Promises
from .recording import describe
from .seen import Seen
from .team_recording import LAST_TEAM, TEAM_SCRIPTS, record_last_team
from .truth import CARD, SPACES
from .workloads import CARDS, LAST, LIVE, SCRIPTS


def check(path: Path, log: Path, *, torn: bool, by_writer: bool) -> list[str]:
    """Everything that is wrong with a store after the faults, a sentence each.

    Args:
        path: of the store; it is recovered.
        log: the promises.
        torn: whether the last writer was killed in the middle of a write to its journal.
        by_writer: let the next writer recover, and record an episode; else `recover`.
    """
    promises = Promises.read(log)
    wrong = [f"the workload {text}" for text in promises.wrong]
    wrong += _creation_can_be_completed(path, promises)
    if not (path / "store.json").exists():
        return wrong
    wrong += _holds("as found", WHENEVER, path, promises)
    try:
        wrong += _the_next_writer_records(path) if by_writer else _recover(path, torn)
    except Exception as error:
        wrong.append(f"recovery {describe(error)}")
    return wrong + _holds("recovered", AFTER_RECOVERY, path, promises)


def _creation_can_be_completed(path: Path, promises: Promises) -> Iterator[str]:
    """A creation that was cut short left a store, or a place where one can be created."""
    if (path / "store.json").exists():
        return
    if promises.runs:
        yield "the store is gone"
        return
    try:
        el.create(path, **SPACES, card=CARD)
    except el.EpisodelakeError as error:
        yield f"cannot be opened and not be created: {type(error).__name__}: {error}"


def _holds(moment: str, invariants: Sequence[Invariant], path: Path, promises: Promises) -> list[str]:
    """What contradicts the invariants; the readers' own errors contradict them too."""
    found: list[str] = []
    try:
        seen = Seen.at(path)
        scripts = TEAM_SCRIPTS if seen.store.agent_groups else SCRIPTS
        evidence = Evidence(seen, promises, scripts, CARDS, tuple(LIVE.values()))
    except Exception as error:
        return [f"{moment}: reading {describe(error)}"]
    for invariant in invariants:
        try:
            found += [f"{moment}: {invariant.__name__}: {fault}" for fault in invariant(evidence)]
        except Exception as error:
            found.append(f"{moment}: {invariant.__name__} {describe(error)}")
    return found


def _recover(path: Path, torn: bool) -> Iterator[str]:
    recovered = el.recover(path)
    if torn and not sum(run.torn_bytes for run in recovered):
        yield "a batch was torn, and recovery does not say so"


def _the_next_writer_records(path: Path) -> Iterator[str]:
    """Whatever happened, the next writer recovers what there is and records as ever."""
    store = el.open(path)
    if store.agent_groups:
        if len(record_last_team(path).filter(f"seed = {LAST_TEAM.key}")) != 1:
            yield "one more episode was recorded and is not there"
        return
    places = range(LAST.length + 1)
    with store.writer(run="last") as writer:
        episode = writer.begin(LAST.observation(0), LAST.info(0), seed=LAST.key, metadata=LAST.metadata)
        for t in places[:-1]:
            ended = t + 1 == LAST.length
            arrived = LAST.observation(t + 1), ended, False, LAST.info(t + 1), LAST.policy(t)
            episode.append(LAST.action(t), LAST.reward(t), *arrived)
    if len(store.refresh().filter(f"seed = {LAST.key}")) != 1:
        yield "one more episode was recorded and is not there"
