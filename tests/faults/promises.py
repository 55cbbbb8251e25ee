"""The promise log: what a workload was told is safe, written down outside of the store.

One JSON object per line, appended with a single write after the call that made the promise has returned. A
kill leaves all earlier lines, so the log never promises too much.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class PromiseLog:
    """Appends promises to a file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, **promise: Any) -> None:
        """Append one promise."""
        os.write(self._descriptor, json.dumps(promise).encode() + b"\n")


@dataclass
class Promises:
    """All promises of a trial.

    Attributes:
        runs: run id by the name of the run.
        steps: by key of an episode, how many of its steps are in the journal.
        finished: keys of episodes whose end is in the journal.
        orderly: those of them that were ended by a call of their own, with last metadata.
        doomed: keys of episodes whose deletion was begun.
        deleted: keys of episodes whose deletion has returned.
        foreign: keys of episodes that are being merged from another store.
        visible: by version, the keys of the episodes that it shows.
        closing: names of runs whose close was called: it ends open episodes as `cut`.
        closed: names of runs whose close returned.
        errors: class names of the errors that were met.
        wrong: what a workload itself found wrong.
        notes: all other promises, in order.
    """

    runs: dict[str, list[str]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    orderly: set[int] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    visible: dict[int, set[int]] = field(default_factory=dict)
    closing: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Promises:
        """Read a log; one that was never begun promises nothing."""
        promises = Promises()
        if path.exists():
            for line in path.read_text().splitlines():
                promises._add(json.loads(line))
        return promises

    def _add(self, line: Mapping[str, Any]) -> None:
        match line:
            case {"run": str(name), "id": str(run_id)}:
                self.runs.setdefault(name, []).append(run_id)
            case {"journalled": {**steps}, "finished": list(finished), "orderly": list(orderly)}:
                self.steps |= {int(key): count for key, count in steps.items()}
                self.finished |= set(finished)
                self.orderly |= set(orderly)
            case {"deleting": list(keys)}:
                self.doomed |= set(keys)
            case {"merging": list(keys)}:
                self.foreign |= set(keys)
            case {"deleted": list(keys)}:
                self.deleted |= set(keys)
            case {"visible": list(keys), "version": int(version)}:
                self.visible[version] = set(keys)
            case {"closing": str(name)}:
                self.closing.add(name)
            case {"closed": str(name)}:
                self.closed.add(name)
            case {"error": str(kind)}:
                self.errors.append(kind)
            case {"wrong": str(text)}:
                self.wrong.append(text)
            case _:
                self.notes.append(dict(line))

    def noted(self, name: str) -> list[Any]:
        """The values of all further promises of that name, in order."""
        return [note[name] for note in self.notes if name in note]

    def annotatable(self) -> set[int]:
        """Keys of the episodes that the annotations, if they are there, speak of."""
        return set[int]().union(*self.noted("annotating"))

    def shown(self) -> set[int]:
        """Keys of all episodes that were visible once."""
        return set[int]().union(*self.visible.values())
