"""Vacuum: delete the files that no retained version needs.

Retained are the newest version, every version that was the newest at some time since `older_than` ago, and
every tagged one. Files of live writers and of journals that wait for recovery are left alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from ..annotation_files import MARKER, PROPERTY, parse_annotations
from ..errors import CorruptStoreError, InvalidArgumentError
from ..files import guard_access
from ..handle import StoreHandle
from ..journal import journal_folders
from ..layout import ANNOTATIONS, EPISODES, RUNS, STEPS, TABLES, Layout
from ..parquet import open_parquet, reading_error
from ..places import Entry
from ..tables import Table
from .operation import Operation, Progress, is_maintenance_file
from .tags import read_tags

_LOG = "_delta_log"
_RUN_FILE = re.compile(r"(?P<run>.+)-(?:\d{6}|live|closed)\.parquet")
_COMMITTED = re.compile(r"(?P<by>.+)-(?P<number>\d{6,})\.parquet")
_DELETED = re.compile(rf"(.*/)?([^/.][^/]*\.parquet|{re.escape(MARKER)}|\.[^/]*\.tmp)")
#: Writers on other machines may be about to commit a file of an object store that is younger.
_REMOTE_GRACE = timedelta(days=1)


@dataclass(frozen=True)
class VacuumReport:
    """What a vacuum deleted, or would delete.

    Attributes:
        files: names relative to the store, sorted.
        bytes: their size.
    """

    files: tuple[str, ...]
    bytes: int


@dataclass
class _Needed:
    """What the retained versions need."""

    files: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in TABLES})
    annotations: set[str] = field(default_factory=set)


def vacuum(
    store: StoreHandle, older_than: timedelta, *, dry_run: bool = False, progress: Progress | None = None
) -> VacuumReport:
    """Delete files that only versions need which were replaced longer ago than `older_than`.

    Raises:
        InvalidArgumentError: `older_than` is negative or no timedelta.
        CorruptStoreError: a log or a tag is damaged; nothing was deleted.
        StoreAccessError: a file could not be deleted; the others are gone, call again.
    """
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):
        raise InvalidArgumentError(f"older_than={older_than!r}: expected a timedelta that is not negative.")
    with Operation.begin(store, "vacuum") as operation:
        # In this order: a file that is listed and whose journal is gone was committed before the tables are
        # read.
        found = list(_candidates(store.layout))
        # Runs that live, or whose journal waits for recovery.
        alive = {folder.name for folder in journal_folders(store.layout.journals)}
        needed = _needed(store.layout, time.time() - older_than.total_seconds())
        grace = max(older_than, _REMOTE_GRACE) if store.layout.root.local is None else timedelta(0)
        latest = time.time() - grace.total_seconds()
        doomed = [
            (table, entry)
            for table, entry in found
            if not _is_needed(table, entry.name, needed)
            and _run_of(entry.name) not in alive
            and (entry.modified <= latest or _was_committed(operation, table, entry.name))
        ]
        if not dry_run:
            _delete(store.layout, doomed, progress or (lambda done, total: None))
    names = sorted(f"{table}/{entry.name}" for table, entry in doomed)
    return VacuumReport(tuple(names), sum(entry.size for _, entry in doomed))


def _was_committed(operation: Operation, table: str, name: str) -> bool:
    """Whether a table listed a file once: then nobody is about to commit it."""
    found = _COMMITTED.fullmatch(name)
    if found is None or table == ANNOTATIONS:
        return False
    listed = {STEPS: operation.tables.steps, EPISODES: operation.tables.episodes, RUNS: operation.tables.runs}
    own = is_maintenance_file(name)
    return listed[table].applied(found.group("by")) >= (0 if own else int(found.group("number")))


def _candidates(layout: Layout) -> Iterator[tuple[str, Entry]]:
    for table in (*TABLES, ANNOTATIONS):
        with guard_access("list", layout.root / table):
            for entry in (layout.root / table).entries(deep=table == ANNOTATIONS):
                if _DELETED.fullmatch(entry.name):
                    yield table, entry


def _run_of(name: str) -> str | None:
    found = _RUN_FILE.fullmatch(name)
    return found.group("run") if found else None


def _is_needed(table: str, name: str, needed: _Needed) -> bool:
    if table != ANNOTATIONS:
        return name in needed.files[table]
    folder, _, segment = name.partition("/")
    return folder in needed.annotations and segment in (*needed.files[STEPS], MARKER)


def _needed(layout: Layout, since: float) -> _Needed:
    needed = _Needed()
    for name in TABLES:
        place = layout.table(name)
        newest = Table(place).version
        oldest = _version_at(layout, name, since, newest)
        _add_version(needed, layout, name, oldest)
        if oldest != newest:
            _add_version(needed, layout, name, newest)
        for version in range(oldest + 1, newest + 1):
            _add_commit(needed, layout, name, version)
    for version in set(read_tags(layout).values()):
        _add_version(needed, layout, EPISODES, version)
    gone = _vacuumed_before(layout, needed.files[EPISODES])
    for name in sorted(needed.files[EPISODES] - gone):
        needed.files[STEPS] |= _segments(layout, name)
    return needed


def _vacuumed_before(layout: Layout, names: set[str]) -> set[str]:
    """Files of episodes that are gone and that neither the newest version nor a tag needs.

    An earlier vacuum with a shorter age took them; what they point at is not needed for them any more.
    """
    with guard_access("list", layout.table(EPISODES)):
        gone = names - set(layout.table(EPISODES).names())
    if gone:
        for version in {None, *read_tags(layout).values()}:
            gone -= {file.name for file in Table(layout.table(EPISODES), version).files()}
    return gone


def _version_at(layout: Layout, table: str, moment: float, newest: int) -> int:
    """The version that was the newest at a moment, by the age of the log's files."""
    log = layout.table(table) / _LOG
    with guard_access("read", log):
        before = [
            int(entry.name.removesuffix(".json"))
            for entry in log.entries()
            if entry.name.endswith(".json") and entry.name[:-5].isdigit() and entry.modified < moment
        ]
    return min(max(before, default=0), newest)


def _add_version(needed: _Needed, layout: Layout, name: str, version: int) -> None:
    table = Table(layout.table(name), version)
    needed.files[name] |= {file.name for file in table.files()}
    if name == EPISODES:
        _add_annotations(needed, layout, table.properties().get(PROPERTY))


def _add_annotations(needed: _Needed, layout: Layout, text: str | None) -> None:
    for annotation in parse_annotations(text, layout.root).values():
        needed.annotations |= set(annotation.ids)


def _add_commit(needed: _Needed, layout: Layout, name: str, version: int) -> None:
    """What one commit brought: it may have gone again in a later one."""
    place = layout.table(name) / _LOG / f"{version:020d}.json"
    try:
        with guard_access("read", place):
            lines = place.read().splitlines()
        for line in lines:
            action = json.loads(line)
            if "add" in action:
                needed.files[name].add(action["add"]["path"])
            elif "metaData" in action and name == EPISODES:
                _add_annotations(needed, layout, action["metaData"]["configuration"].get(PROPERTY))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptStoreError(f"The commit {place} is damaged: {error}. Nothing was deleted.") from error


def _segments(layout: Layout, name: str) -> set[str]:
    place = layout.table(EPISODES) / name
    try:
        found = open_parquet(place, dictionaries=["segment"]).read(columns=["segment"])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise reading_error(place, error) from error
    return set(found.column("segment").unique().to_pylist())


def _delete(layout: Layout, doomed: list[tuple[str, Entry]], progress: Progress) -> None:
    folders = set()
    for done, (table, entry) in enumerate(doomed, 1):
        place = layout.root / table / entry.name
        with guard_access("delete", place):
            place.remove()
        if table == ANNOTATIONS:
            folders.add(entry.name.partition("/")[0])
        progress(done, len(doomed))
    for folder in sorted(folders):
        with guard_access("delete", layout.annotations / folder):
            (layout.annotations / folder).remove_folder()
