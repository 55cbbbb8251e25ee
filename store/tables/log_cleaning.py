"""Cleaning of tables' logs: deletes the commits and checkpoints that a later checkpoint replaces.

The writer of a checkpoint of `runs` or `steps` cleans up to the one before it, since no reader opens an old
version of these; `vacuum` cleans all three logs, up to the oldest version that it retains. Three rules keep
processes safe that slept meanwhile, with a version in mind that is gone:

- Files go in the order of their versions. While a commit is there, so are all later ones.
- The commit before the checkpoint stays. A commit whose predecessor is gone is therefore part of a
  checkpoint, or not part of the table at all, and may be deleted in either case.
- A writer looks after each commit whether the one before it is still there, and a reader after it read a
  commit (see `check_table`). So a commit under a number that cleaning freed counts for neither.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import StoreAccessError
from ..places import Entry, Place
from .checksums import (
    KEY,
    changed_error,
    checkpoint_name,
    commit_actions,
    commit_fits,
    commit_place,
    read_commit,
    reading_commit,
    was_missing,
)

#: How long a replaced version of `runs` and `steps` stays, in seconds.
_RETENTION_SECONDS = 24 * 3600.0
#: How many files one checkpoint deletes; on object stores each takes a request.
_MOST = 5_000
_REMOTE_MOST = 30
_CLEANED = re.compile(r"[0-9]{20}\.(json|checkpoint\.parquet)")


def clean_log(table: Place, before: int, newest: int) -> None:
    """Delete some old files of a log, oldest first, up to a checkpoint.

    Args:
        table: the table's folder.
        before: the checkpoint before the newest one, known to be whole.
        newest: the newest checkpoint, written just now: its file has the date of the file system's clock.

    Raises:
        CorruptStoreError: a commit is damaged; nothing was deleted.
        OSError: the log cannot be listed, or a file not be deleted.
    """
    log = table / "_delta_log"
    entries = {entry.name: entry for entry in log.entries()}
    written = entries.get(checkpoint_name(newest))
    if written is None:
        return
    now = min(time.time(), written.modified)
    doomed = replaced_files(entries.values(), before)[: _MOST if log.local is not None else _REMOTE_MOST]
    dates: dict[int, float] = {}
    for entry in doomed:
        version = int(entry.name[:20])
        dates[version] = max(dates.get(version, 0.0), entry.modified)
    old = set(older_versions(table, dates, now - _RETENTION_SECONDS))
    for entry in doomed:
        if int(entry.name[:20]) in old:
            (log / entry.name).remove()


def replaced_files(entries: Iterable[Entry], checkpoint: int) -> list[Entry]:
    """Return the files of a log that a checkpoint replaces, in the order in which they may be deleted."""
    found = [
        entry
        for entry in entries
        if _CLEANED.fullmatch(entry.name) and int(entry.name[:20]) < checkpoint - entry.name.endswith(".json")
    ]
    # By version, and there the checkpoint first: it is of use as long as the commits behind it are there.
    return sorted(found, key=lambda entry: entry.name)


def older_versions(table: Place, dates: Mapping[int, float], moment: float) -> list[int]:
    """Return the first versions of a log, up to the last one that is older than a moment.

    A file may be dated too early, by a wrong clock or a copy: no commit is older than those before it, nor
    than the time that its writer wrote into it.

    Args:
        table: the table's folder.
        dates: when the files of each version were written, in seconds since 1970.
        moment: in seconds since 1970.

    Raises:
        CorruptStoreError, StoreAccessError: a commit is damaged, or cannot be read.
    """
    older = []
    for version in sorted(dates):
        if dates[version] >= moment:
            break
        older.append(version)
    while older and _written_at(table, older[-1]) >= moment:
        older.pop()
    return older


def _written_at(table: Place, version: int) -> float:
    """Return a commit's time by its writer's clock, in seconds since 1970; 0 if it was cleaned."""
    try:
        actions = read_actions(table, version)
    except StoreAccessError as error:
        if not was_missing(error):
            raise
        return 0.0
    found = [action["commitInfo"] for action in actions if "commitInfo" in action]
    times = [each["timestamp"] for each in found if isinstance(each, dict) and "timestamp" in each]
    return max((time / 1000 for time in times if isinstance(time, int)), default=0.0)


def read_actions(table: Place, version: int) -> list[dict[str, Any]]:
    """Return the actions of a commit, whose checksum must match if it has one.

    Raises:
        CorruptStoreError, StoreAccessError: it is damaged, or cannot be read.
    """
    data = read_commit(table, version, summed=False)
    if f'"{KEY}"'.encode() in data and not commit_fits(table.name, version, data):
        raise changed_error(commit_place(table, version))
    with reading_commit(table, version):
        return commit_actions(data)
