"""Vacuum: delete the files that no retained version needs.

Retained are the newest version, every version that was the newest at some time since `older_than` ago, and
every tagged one. Files that live writers, or journals that wait for recovery, may be about to commit are left
alone. The logs are cleaned up to the newest checkpoint that no retained version is older than.

A version's age is that of its commit's file by this process's clock; none is older than those before it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial

import pyarrow as pa
import pyarrow.parquet as pq

from .common.arguments import expect
from .delta.checkpoints import checkpoint_fits, older_versions, read_checkpoint, replaced_files
from .delta.log import (
    checkpoint_name,
    checkpoints_of,
    commit_actions,
    commit_name,
    commits_of,
    oldest_version,
    read_commit,
    reading_commit,
)
from .delta.state import retry_log_read
from .delta.version import TableVersion
from .errors import CorruptStoreError
from .files import Entry, Place
from .journal.run_journal import journal_folders
from .layout import ANNOTATIONS, ARTIFACTS, EPISODES, RUNS, STAGING, STEPS, TABLES, Layout
from .parquet.files import read_parquet, reading_error
from .rewrite.artifacts import orphans
from .rewrite.operation import Operation, Progress, is_maintenance_file
from .schema import StoreHandle
from .staging import abandoned
from .tables.annotation_files import MARKER, PROPERTY, parse_annotations
from .tables.table_files import join_id
from .tags import read_tags

_LOG = "_delta_log"
_RUN_FILE = re.compile(r"(?P<run>.+)-(?:\d{6}|live|closed)\.parquet")
_COMMITTED = re.compile(r"(?P<by>.+)-(?P<number>\d{6,})\.parquet")
_DELETED = re.compile(rf"(.*/)?([^/.][^/]*\.parquet|{re.escape(MARKER)}|\.[^/]*\.tmp)")
#: Writers on other machines may be about to commit a file of an object store that is younger, and any
#: writer may be about to refer to an artifact that is.
_GRACE = timedelta(days=1)


@dataclass(frozen=True)
class VacuumReport:
    """The result of a vacuum, or of its dry run.

    Attributes:
        files: names relative to the store, sorted.
        bytes: their size.
        waiting, waiting_bytes: files, and their size, that a version needs which was the newest within
            `older_than`, and neither a tag nor the newest version.
        free_at: when the last of these versions is old enough, if nothing is committed until then; None
            where nothing waits.
    """

    files: tuple[str, ...]
    bytes: int
    waiting: int = field(default=0, compare=False)
    waiting_bytes: int = field(default=0, compare=False)
    free_at: datetime | None = field(default=None, compare=False)


@dataclass
class _Needed:
    """The files that the retained versions need."""

    files: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in TABLES})
    annotations: set[str] = field(default_factory=set)
    #: The oldest retained version of each table, and the newest, which was read.
    oldest: dict[str, int] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)


def vacuum(
    store: StoreHandle, older_than: timedelta, *, dry_run: bool = False, progress: Progress | None = None
) -> VacuumReport:
    """Delete files that only versions need which were replaced longer ago than `older_than`.

    Raises:
        InvalidArgumentError: `older_than` is negative or no timedelta.
        CorruptStoreError: a log or a tag is damaged; nothing was deleted.
        StoreAccessError: a file could not be deleted; the others are gone, call again.
    """
    valid = isinstance(older_than, timedelta) and older_than >= timedelta(0)
    expect(valid, "older_than", older_than, "a timedelta that is not negative")
    with Operation.begin(store, "vacuum", dry_run=dry_run) as operation:
        # In this order: a file that is listed and whose journal is gone was committed before the tables are
        # read.
        candidates = list(_candidates(store.layout))
        # Runs that live, or whose journal waits for recovery.
        alive = {folder.name for folder in journal_folders(*store.layout.journal_places)}
        now = time.time()
        segments = cache(partial(_segments_of, store.layout))
        needed = _needed(store.layout, now - older_than.total_seconds() if older_than else None, segments)
        grace = max(older_than, _GRACE).total_seconds() if store.layout.root.local is None else None
        doomed = [
            (table, entry)
            for table, entry in candidates
            if not _is_needed(table, entry.name, needed)
            and (
                _was_committed(operation, table, entry.name, needed)
                or (_run_of(entry.name) not in alive and (grace is None or entry.modified <= now - grace))
            )
        ]
        for name in TABLES:
            doomed += _replaced_log(store.layout, name, needed.oldest[name])
        before = now - max(older_than, _GRACE).total_seconds()
        doomed += _orphans(store.layout, alive, before)
        with abandoned(store.layout, before, dry_run=dry_run) as staged:
            doomed += [(STAGING, entry) for entry in staged]
            # Before files go: an error here leaves all as it was.
            lasting = _needed(store.layout, None, segments) if older_than else needed
            waiting = [
                entry
                for table, entry in candidates
                if _is_needed(table, entry.name, needed) and not _is_needed(table, entry.name, lasting)
            ]
            free_at = _free_at(store.layout, needed, older_than) if waiting else None
            if not dry_run:
                # Files may go only when a crash of the machine cannot bring back a version that needs them.
                for table in (operation.tables.steps, operation.tables.episodes, operation.tables.runs):
                    table.sync()
                _delete(store.layout, doomed, progress or (lambda done, total: None))
    names = sorted(f"{table}/{entry.name}" for table, entry in doomed)
    size, waits = sum(entry.size for _, entry in doomed), sum(entry.size for entry in waiting)
    return VacuumReport(tuple(names), size, len(waiting), waits, free_at)


def _free_at(layout: Layout, needed: _Needed, older_than: timedelta) -> datetime | None:
    """Return when the newest commit will be `older_than` old; None beyond the calendar."""
    commits = {commit_name(version) for version in needed.newest.values()}
    newest = max(
        (
            entry.modified
            for name in TABLES
            for entry in (layout.table(name) / _LOG).entries()
            if entry.name in commits
        ),
        default=None,
    )
    if newest is None:  # another process cleaned the log
        return None
    try:
        return datetime.fromtimestamp(newest, UTC) + older_than
    except OverflowError:
        return None


def _orphans(layout: Layout, alive: set[str], before: float) -> list[tuple[str, Entry]]:
    """Return the artifacts that nothing refers to any more."""
    # The newest version of `runs` has the rows of all versions. Another vacuum may clean the version that was
    # the newest a moment ago, and delete its files.
    try:
        rows = retry_log_read(layout.table(RUNS), partial(_rows_of_newest, layout.table(RUNS)))
    except CorruptStoreError:  # `verify` reports it
        return []
    return [(ARTIFACTS, entry) for entry in orphans(layout, rows, alive, before)]


def _rows_of_newest(table: Place) -> list[pa.Table]:
    return [read_parquet(table / file.name) for file in TableVersion(table).files()]


def _was_committed(operation: Operation, table: str, name: str, needed: _Needed) -> bool:
    """Return whether a table listed a file before its versions were read, so no writer will commit it."""
    match = _COMMITTED.fullmatch(name)
    if match is None or table == ANNOTATIONS:
        return False
    tables = {STEPS: operation.tables.steps, EPISODES: operation.tables.episodes, RUNS: operation.tables.runs}
    by, number = match.group("by"), int(match.group("number"))
    if is_maintenance_file(name):
        number = 0
    elif table == RUNS:
        # A segment's name, but of rows of many runs.
        by, number = join_id(by), 0
    listed = tables[table].applied(by) >= number
    # A table whose log is cleaned meanwhile answers for a later version, which may list the file first.
    return listed and tables[table].version <= needed.newest[table]


def _candidates(layout: Layout) -> Iterator[tuple[str, Entry]]:
    for table in (*TABLES, ANNOTATIONS):
        for entry in (layout.root / table).entries(deep=table == ANNOTATIONS):
            if _DELETED.fullmatch(entry.name):
                yield table, entry


def _run_of(name: str) -> str | None:
    match = _RUN_FILE.fullmatch(name)
    return match.group("run") if match else None


def _is_needed(table: str, name: str, needed: _Needed) -> bool:
    if table != ANNOTATIONS:
        return name in needed.files[table]
    folder, _, segment = name.partition("/")
    return folder in needed.annotations and segment in (*needed.files[STEPS], MARKER)


def _needed(layout: Layout, since: float | None, segments: Callable[[str], set[str]]) -> _Needed:
    """Return the files that the newest versions, those since a moment, and tags need.

    Args:
        layout: the store.
        since: in seconds since 1970; None for the newest versions alone.
        segments: returns the segments that a file of episodes points at.
    """
    needed = _Needed()
    for name in TABLES:
        retry_log_read(layout.table(name), partial(_add_table, needed, layout, name, since))
    for version in set(read_tags(layout).values()):
        _add_version(needed, layout, EPISODES, version)
        needed.oldest[EPISODES] = min(needed.oldest[EPISODES], version)
    gone = _vacuumed_before(layout, needed.files[EPISODES])
    for name in sorted(needed.files[EPISODES] - gone):
        needed.files[STEPS] |= segments(name)
    return needed


def _segments_of(layout: Layout, name: str) -> set[str]:
    rows = read_parquet(layout.table(EPISODES) / name, ["segment"], dictionaries=["segment"])
    return set(rows.column("segment").unique().to_pylist())


def _add_table(needed: _Needed, layout: Layout, name: str, since: float | None) -> None:
    """Add the files of the versions of a table that were the newest at some time since a moment."""
    newest = TableVersion(layout.table(name)).version
    oldest = newest if since is None else _version_at(layout, name, since, newest)
    needed.oldest[name], needed.newest[name] = oldest, newest
    _add_version(needed, layout, name, oldest)
    if oldest != newest:
        _add_version(needed, layout, name, newest)
    for version in range(oldest + 1, newest + 1):
        _add_commit(needed, layout, name, version)
    if since is not None:
        needed.files[name] |= _removed_since(layout, name, since, oldest)


def _removed_since(layout: Layout, name: str, since: float, version: int) -> set[str]:
    """Return files that were removed since a moment, but before a version: their commits may be cleaned."""
    place = layout.table(name)
    if version not in checkpoints_of((place / _LOG).names()):
        return set()
    try:
        data = read_checkpoint(place, version, checksummed=False)
        rows = pq.read_table(pa.BufferReader(data), columns=["remove"]).column("remove").drop_null()
        return {row["path"] for row in rows.to_pylist() if row["deletionTimestamp"] >= since * 1000}
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise reading_error(place / _LOG / checkpoint_name(version), error) from error


def _replaced_log(layout: Layout, name: str, oldest: int) -> list[tuple[str, Entry]]:
    """Return the files of a log that its newest intact checkpoint, up to the oldest retained version,
    replaces.
    """
    place = layout.table(name)
    entries = list((place / _LOG).entries())
    for version in reversed(checkpoints_of([entry.name for entry in entries])):
        if version <= oldest:
            data = read_checkpoint(place, version, checksummed=False)
            if checkpoint_fits(name, version, data):
                return [(f"{name}/{_LOG}", entry) for entry in replaced_files(entries, version)]
    return []


def _vacuumed_before(layout: Layout, names: set[str]) -> set[str]:
    """Return files of episodes that are gone and that neither the newest version nor a tag needs.

    An earlier vacuum with a shorter age took them; what they point at is not needed for them any more.
    """
    gone = names - set(layout.table(EPISODES).names())
    if gone:
        for version in {None, *read_tags(layout).values()}:
            gone -= {file.name for file in TableVersion(layout.table(EPISODES), version).files()}
    return gone


def _version_at(layout: Layout, table: str, moment: float, newest: int) -> int:
    """Return the version that was the newest at a moment, or the oldest that the log still has."""
    log = layout.table(table) / _LOG
    dates = {entry.name: entry.modified for entry in log.entries()}
    versions = commits_of(list(dates))
    commits = {version: dates[commit_name(version)] for version in versions if version <= newest}
    older = older_versions(commits, moment)
    return max(older[-1] if older else 0, oldest_version(versions, checkpoints_of(list(dates))))


def _add_version(needed: _Needed, layout: Layout, name: str, version: int) -> None:
    table = TableVersion(layout.table(name), version)
    needed.files[name] |= {file.name for file in table.files()}
    if name == EPISODES:
        _add_annotations(needed, layout, table.properties().get(PROPERTY))


def _add_annotations(needed: _Needed, layout: Layout, text: str | None) -> None:
    for annotation in parse_annotations(text, layout.root).values():
        needed.annotations |= set(annotation.ids)


def _add_commit(needed: _Needed, layout: Layout, name: str, version: int) -> None:
    """Add the files of one commit, which a later one may have removed."""
    place = layout.table(name)
    with reading_commit(place, version):
        for action in commit_actions(place, version, read_commit(place, version, checksummed=False)):
            if "add" in action:
                needed.files[name].add(action["add"]["path"])
            elif "metaData" in action and name == EPISODES:
                _add_annotations(needed, layout, action["metaData"]["configuration"].get(PROPERTY))


def _delete(layout: Layout, doomed: list[tuple[str, Entry]], progress: Progress) -> None:
    folders = set()
    for done, (table, entry) in enumerate(doomed, 1):
        place = layout.root / table / entry.name
        place.remove()
        if table == ANNOTATIONS:
            folders.add(entry.name.partition("/")[0])
        progress(done, len(doomed))
    for folder in sorted(folders):
        (layout.annotations / folder).remove_folder()
