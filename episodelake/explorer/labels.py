"""Labels before their commit: the keys that write them, and the queue that batches commits of all pages."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl

from .. import EpisodeStore
from ..errors import ConcurrentCommitError, EpisodelakeError, InvalidArgumentError
from ..plugin import counted
from ..plugin.files import FileLock, replacing

#: What a key writes: the name of an annotation, and its value.
LabelSet = Mapping[str, tuple[str, Any]]
NOTE, BY, AT = "note", "labelled_by", "labelled_at"
#: The keys without an entry in the card.
USUAL: LabelSet = {"g": ("good", True), "b": ("good", False)}
#: The entry of the card that declares others.
ENTRY = "labels"
#: Keys of the page.
_TAKEN = frozenset("clmnu")
_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a text"}
#: An episode or a step: the values of `_KEYS`.
Key = tuple[str, *tuple[Any, ...]]
Changes = Mapping[Key, Mapping[str, Any]]
_KEYS = {1: ("episode_id",), 2: ("episode_id", "t"), 3: ("episode_id", "agent_id", "t")}

#: Seconds: before the first commit, after one that failed, and most between two commits.
_FIRST, _AGAIN, _MOST = 2.0, 5.0, 30.0
_ATTEMPTS = 3


def read_label_set(lines: Iterable[str], store: EpisodeStore) -> dict[str, tuple[str, Any]]:
    """Return the keys of a declaration.

    Args:
        lines: one for each key, such as `s outcome=slip`. A value that is no JSON is a text.
        store: its annotations have the types that the values must have.

    Raises:
        InvalidArgumentError: a line is no declaration, a key or a name is taken, or a value has another type.
    """
    labels: dict[str, tuple[str, Any]] = {}
    schema = store.episodes.collect_schema()
    annotations = store.annotations.filter(table="episodes")["name"].to_list()
    kinds = {name: _kind_of_column(schema[name]) for name in annotations}
    for line in filter(None, map(str.strip, lines)):
        match = re.fullmatch(r"(\S)\s+([^\W\d_]\w*)=(.+)", line)
        if match is None:
            raise InvalidArgumentError(f"{line!r}: expected a key and a label, such as `s outcome=slip`.")
        key, name, given = match[1].lower(), match[2], match[3]
        if key in labels or key in _TAKEN or not key.isalnum():
            why = "there twice" if key in labels else "a key of the page"
            why = why if key.isalnum() else "neither a letter nor a digit"
            raise InvalidArgumentError(f"{line!r}: {key!r} is {why}. Choose another key.")
        value: Any = given
        with suppress(ValueError):
            value = json.loads(given)
        kind, expected = _KINDS.get(type(value)), kinds.get(name)
        if name in schema and name not in annotations:
            raise InvalidArgumentError(f"{line!r}: {name!r} was recorded. Choose another name.")
        if kind is None or (expected or kind) != kind:
            raise InvalidArgumentError(
                f"{line!r}: {name!r} takes {expected or 'a boolean, a number or a text'}, not {given}."
            )
        kinds[name] = kind
        labels[key] = name, value
    if not labels:
        raise InvalidArgumentError("There is no label. Give a line for each key, such as `g good=true`.")
    return labels


def _kind_of_column(kind: Any) -> str:
    if kind.is_numeric():
        return "a number"
    return {pl.Boolean: "a boolean", pl.String: "a text"}.get(kind, f"{kind}, which no key can write")


def label_lines(labels: LabelSet) -> list[str]:
    """Return the declaration that `read_label_set` reads, as lines."""
    return [f"{key} {name}={json.dumps(value)}" for key, (name, value) in labels.items()]


def declared(lines: Any, store: EpisodeStore) -> tuple[LabelSet, str]:
    """Return the keys of a card's entry, or the usual ones, and what is wrong with the entry."""
    if lines is None:
        return USUAL, ""
    try:
        return read_label_set(map(str, lines) if isinstance(lines, list) else [str(lines)], store), ""
    except InvalidArgumentError as error:
        return USUAL, f"The card's {ENTRY!r} cannot be used. {error}"


@dataclass(eq=False)
class _Given:
    """A value that a page gave, and the version that has it; None before its commit."""

    value: Any
    version: int | None = None


class _WaitingFile:
    """Labels that no version has yet, a line for each, so that a command that is killed loses none.

    The file is there while labels wait. Where it cannot be written they are in memory alone.

    Args:
        folder: of the file.
        store_id: of the store.
    """

    def __init__(self, folder: Path, store_id: str) -> None:
        self._folder, self._name = folder, f".labels-{store_id}"
        self._lock: FileLock | None = None

    def append(self, changes: Changes) -> None:
        """Add labels."""
        with suppress(OSError, EpisodelakeError):
            if self._lock is None:
                self._lock = FileLock.acquire(self._folder / f"{self._name}-{uuid4().hex[:12]}.lock")
            if self._lock is not None:
                with self._lock.path.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
                    file.write(_lines(changes))

    def replace(self, changes: Changes) -> None:
        """Keep these labels alone."""
        if self._lock is None:
            return
        path = self._lock.path.with_suffix(".jsonl")
        with suppress(OSError, EpisodelakeError):
            if changes:
                with replacing(path) as draft:
                    draft.write_text(_lines(changes), encoding="utf-8")
            else:
                path.unlink(missing_ok=True)
                self._lock.release(remove=True)
                self._lock = None

    def release(self) -> Path | None:
        """Let another command take over what waits, and return its file."""
        if self._lock is None:
            return None
        self._lock.release(remove=True)
        return self._lock.path.with_suffix(".jsonl")

    def take_over(self, take: Callable[[Changes], None]) -> None:
        """Give the labels of commands that were killed to a function, and remove their files."""
        for path in sorted(self._folder.glob(f"{self._name}-*.jsonl")):
            with suppress(OSError, EpisodelakeError):
                lock = FileLock.acquire(path.with_suffix(".lock"))
                if lock is not None:
                    for line in path.read_text(encoding="utf-8").splitlines():
                        # The last line may be cut.
                        with suppress(ValueError, TypeError):
                            key, values = json.loads(line)
                            if isinstance(values.get(AT), str):
                                values[AT] = datetime.fromisoformat(values[AT])
                            take({tuple(key): values})
                    path.unlink()
                    lock.release(remove=True)


def _lines(changes: Changes) -> str:
    def plain(value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else value.item()

    return "".join(json.dumps(each, default=plain, ensure_ascii=False) + "\n" for each in changes.items())


class LabelQueue:
    """Labels of all pages of a store. A thread commits them in batches; safe to use from several threads.

    The first label of a session is committed after two seconds, later ones at growing intervals of at most
    half a minute. What a commit did not take stays, and is tried again.

    Args:
        store: the store; the queue opens it again for itself.
        left: the folder for the file of labels that wait. The queue begins with those that a command left
            which was killed or could not commit them.

    Attributes:
        problem: why the last commit failed; empty if it did not.
        refused: labels that the store can never take, and why.
    """

    def __init__(self, store: EpisodeStore, left: Path) -> None:
        self._store = EpisodeStore(store.handle.layout, store.handle.manifest)
        self.problem = ""
        self.refused: list[str] = []
        self._given: dict[Key, dict[str, _Given]] = {}
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._since: float | None = None
        self._due, self._last, self._pause = 0.0, -_MOST, 0.0
        self._closed = False
        self._thread = threading.Thread()
        self._file = _WaitingFile(left, store.handle.manifest.store_id)
        self._file.take_over(self.add)

    def add(self, changes: Changes) -> None:
        """Take labels; those of an episode or a step replace earlier ones of the same name."""
        now = time.monotonic()
        with self._changed:
            self._file.append(changes)
            for key, values in changes.items():
                self._given.setdefault(key, {}).update(
                    {name: _Given(value) for name, value in values.items()}
                )
            if self._since is None:
                self._since = now
                self._pause = 0.0 if now - self._last > 2 * _MOST else self._pause
                self._due = max(now + _FIRST, self._last + self._pause)
            if not self._thread.is_alive():
                self._closed = False
                self._thread = threading.Thread(target=self._work, name="labels", daemon=True)
                self._thread.start()
            self._changed.notify()

    def over(self, key: Key, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of an episode or step in a version, with those that it does not have yet."""
        newer = self._given.get(key, {})
        given = {name: each.value for name, each in list(newer.items()) if _is_newer(each, version)}
        return {**values, **given}

    def newer(self, version: int) -> list[Key]:
        """Return the episodes and steps with labels that a version does not have yet."""
        return [
            key
            for key, values in list(self._given.items())
            if any(_is_newer(each, version) for each in list(values.values()))
        ]

    @property
    def waiting(self) -> int:
        """The number of episodes and steps with labels that are not committed."""
        return sum(_is_waiting(values) for values in [*self._given.values()])

    def hurry(self) -> None:
        """Commit now: a page has closed, or somebody asked for it."""
        with self._changed:
            self._due = 0.0
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._since is None or self._due > time.monotonic()):
                    self._changed.wait(None if self._since is None else self._due - time.monotonic())
                if self._closed:
                    return
            self.commit()

    def commit(self) -> None:
        """Commit what waits, one version for each set of names; keep what fails."""
        with self._writing:
            with self._changed:
                self._since = None
                self._given = {key: values for key, values in self._given.items() if _is_waiting(values)}
                batches = self._batches()
            self.problem = ""
            for names, batch in batches.items():
                self._commit(names, batch)
            now = time.monotonic()
            self._pause = min(_MOST, 2 * self._pause + 2 * _FIRST)
            self._last = now
            with self._changed:
                self._file.replace(
                    {
                        key: {name: each.value for name, each in values.items() if each.version is None}
                        for key, values in self._given.items()
                        if _is_waiting(values)
                    }
                )
                if self.waiting:
                    self._since = now
                    self._due = now + (_AGAIN if self.problem else self._pause)

    def _batches(self) -> dict[tuple[int, tuple[str, ...]], dict[Key, dict[str, _Given]]]:
        """Return what waits by the length of the key and the names: a frame has no cell that is left out."""
        batches: dict[Any, dict[Key, dict[str, _Given]]] = {}
        for key, values in self._given.items():
            waiting = {name: each for name, each in sorted(values.items()) if each.version is None}
            if waiting:
                batches.setdefault((len(key), tuple(waiting)), {})[key] = waiting
        return batches

    def _commit(self, names: tuple[int, tuple[str, ...]], batch: dict[Key, dict[str, _Given]]) -> None:
        try:
            self._annotate(_KEYS[names[0]], batch)
        except InvalidArgumentError as error:
            # One label that the store refuses must not stop the others.
            items = list(batch.items())
            for part in (items[: len(items) // 2], items[len(items) // 2 :]) if len(items) > 1 else ():
                self._commit(names, dict(part))
            if len(items) == 1:
                ((key, values),) = items
                text = ", ".join(f"{name}={each.value!r}" for name, each in values.items())
                self.refused.append(f"{' '.join(map(str, key))}: {text}. {error}")
                self._done(batch, self._store.version)
        except (EpisodelakeError, OSError) as error:
            self.problem = str(error)
        else:
            self._done(batch, self._store.version)

    def _done(self, batch: Mapping[Key, Mapping[str, _Given]], version: int) -> None:
        for values in batch.values():
            for each in values.values():
                each.version = version

    def _annotate(self, on: tuple[str, ...], batch: Mapping[Key, Mapping[str, _Given]]) -> None:
        for attempt in range(_ATTEMPTS):
            self._store.refresh()
            frame = _frame(on, batch, self._store)
            try:
                if frame.width > len(on):
                    self._store.annotate(frame, on="episode_id" if len(on) == 1 else on)
                return
            except ConcurrentCommitError:
                if attempt + 1 == _ATTEMPTS:
                    raise

    def close(self) -> None:
        """Commit what waits. What cannot be committed stays in the file for the next queue."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self.commit()
        path = self._file.release()
        if self.waiting:
            print(
                f"{counted(self.waiting, 'label')} could not be saved. {self.problem} They wait in {path}; "
                "`episodelake explore --write` in the same folder saves them.",
                file=sys.stderr,
            )


def _is_newer(given: _Given, version: int) -> bool:
    return given.version is None or given.version > version


def _is_waiting(values: Mapping[str, _Given]) -> bool:
    return any(each.version is None for each in values.values())


def _frame(on: Sequence[str], batch: Mapping[Key, Mapping[str, _Given]], store: EpisodeStore) -> pl.DataFrame:
    """Return a batch as a frame.

    Args:
        on: the names of the keys.
        batch: labels of the same names.
        store: leave out the columns without a value that it does not have, which clear nothing.

    Raises:
        InvalidArgumentError: the values of a column have several types.
    """
    columns = {name: [key[place] for key in batch] for place, name in enumerate(on)}
    for name in next(iter(batch.values())):
        columns[name] = [values[name].value for values in batch.values()]
    try:
        frame = pl.DataFrame(columns, strict=True)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InvalidArgumentError(f"Labels of several types: {error}") from error
    known = (store.episodes if len(on) == 1 else store.steps).collect_schema()
    empty = [name for name, kind in frame.schema.items() if kind == pl.Null]
    return frame.drop(name for name in empty if name not in known).with_columns(
        pl.lit(None, known[name]).alias(name) for name in empty if name in known
    )
