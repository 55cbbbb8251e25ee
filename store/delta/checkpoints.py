"""Checkpoints of a table's log, and the deletion of commits that a later checkpoint replaces.

The table library makes a checkpoint of a copy of the log in a temporary folder; it gets a checksum and
appears in the log as a whole, under a name that is created once. A crash leaves the log without it.

The writer of a checkpoint of `runs` or `steps` cleans up to the one before it, since no reader opens an old
version of these; `vacuum` cleans all three logs, up to the oldest version that it retains. Three rules keep
processes safe that slept meanwhile, with a version in mind that is gone:

- Files go in the order of their versions. While a commit is there, so are all later ones.
- The commit before the checkpoint stays. A commit whose predecessor is gone is therefore part of a
  checkpoint, or not part of the table at all, and may be deleted in either case.
- A writer looks after each commit whether the one before it is still there, and a reader after it read a
  commit (see `follow_log`). So a commit under a number that cleaning freed counts for neither.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path

from ..files import Entry, Place, temporary_folder
from ..layout import CHECKPOINT_MARK, PARQUET_END, checked_end, checksum_of_end
from .log import (
    HINT,
    LARGEST,
    changed_error,
    checkpoint_name,
    checkpoints_of,
    commit_name,
    file_sum,
    read_commit,
)

#: How long a replaced version of `runs` and `steps` stays, in seconds.
_RETENTION_SECONDS = 24 * 3600.0
#: How many files one checkpoint deletes; on object stores each takes a request.
_MOST = 5_000
_REMOTE_MOST = 30
_CLEANED = re.compile(r"[0-9]{20}\.(json|checkpoint\.parquet)")


def write_checkpoint(table: Place, version: int, *, checksummed: bool) -> int | None:
    """Write a checkpoint of a table's log at a version; one that is there already stays.

    Args:
        table: the table's folder.
        version: a commit that is there.
        checksummed: whether the files of the log must have checksums that match.

    Returns:
        The checkpoint before, which was read and is whole; None if there is none, or nothing was written.

    Raises:
        CorruptStoreError: a part of the log is damaged.
        OSError, DeltaError: the log cannot be read, or the checkpoint not be written.
    """
    log = table / "_delta_log"
    earlier = [each for each in checkpoints_of(log.names()) if each <= version]
    if version in earlier:
        return None
    # The commit of a checkpoint itself is copied too: the library looks for it.
    start = earlier[-1] if earlier else 0
    files = {
        commit_name(n): read_commit(table, n, checksummed=checksummed) for n in range(start, version + 1)
    }
    if earlier:
        files[checkpoint_name(start)] = read_checkpoint(table, start, checksummed=checksummed)
    checkpoint, hint = _made(files, version)
    data = summed_checkpoint(table.name, version, checkpoint)
    with contextlib.suppress(FileExistsError):
        (log / checkpoint_name(version)).write(data, exclusive=True)
    # A hint for readers; with an older hint, or none, they find the same checkpoint by listing.
    (log / HINT).write(json.dumps({**json.loads(hint), "sizeInBytes": len(data)}).encode())
    return earlier[-1] if earlier else None


def _made(files: Mapping[str, bytes], version: int) -> tuple[bytes, bytes]:
    """Return the checkpoint that the table library makes of the files of a log, and its hint where to look
    first.
    """
    # It takes long to import, and few processes come to a checkpoint.
    from deltalake import DeltaTable

    with temporary_folder("episodelake-") as folder:
        log = Path(folder) / "_delta_log"
        log.mkdir()
        for name, data in files.items():
            (log / name).write_bytes(data)
        DeltaTable(folder, version=version).create_checkpoint()
        return (log / checkpoint_name(version)).read_bytes(), (log / HINT).read_bytes()


def clean_log(table: Place, before: int, newest: int) -> None:
    """Delete some old files of a log, oldest first, up to a checkpoint.

    Args:
        table: the table's folder.
        before: the checkpoint before the newest one, known to be whole.
        newest: the newest checkpoint, written just now: the date of its file is the present.

    Raises:
        OSError: the log cannot be listed, or a file not be deleted.
    """
    log = table / "_delta_log"
    entries = {entry.name: entry for entry in log.entries()}
    written = entries.get(checkpoint_name(newest))
    if written is None:
        return
    doomed = replaced_files(entries.values(), before)[: _MOST if log.local is not None else _REMOTE_MOST]
    dates: dict[int, float] = {}
    for entry in doomed:
        version = int(entry.name[:20])
        dates[version] = max(dates.get(version, 0.0), entry.modified)
    old = set(older_versions(dates, written.modified - _RETENTION_SECONDS))
    for entry in doomed:
        if int(entry.name[:20]) in old:
            (log / entry.name).remove()


def replaced_files(entries: Iterable[Entry], checkpoint: int) -> list[Entry]:
    """Return the files of a log that a checkpoint replaces, in the order in which they may be deleted."""
    replaced = [
        entry
        for entry in entries
        if _CLEANED.fullmatch(entry.name) and int(entry.name[:20]) < checkpoint - entry.name.endswith(".json")
    ]
    # By version, and there the checkpoint first: it is of use as long as the commits after it are there.
    return sorted(replaced, key=lambda entry: entry.name)


def older_versions(dates: Mapping[int, float], moment: float) -> list[int]:
    """Return the first versions of a log, up to the last one before any that is as young as a moment.

    Args:
        dates: when the files of each version were written, in seconds since 1970.
        moment: in seconds since 1970.
    """
    return list(takewhile(lambda version: dates[version] < moment, sorted(dates)))


def summed_checkpoint(table: str, version: int, data: bytes) -> bytes:
    """Return the bytes of a checkpoint with their checksum after the footer."""
    body, end = data[: -PARQUET_END.size], data[-PARQUET_END.size :]
    return body + checked_end(end, CHECKPOINT_MARK, file_sum(table, checkpoint_name(version), body))


def checkpoint_fits(table: str, version: int, data: bytes) -> bool:
    """Return whether a checkpoint has a checksum that matches."""
    end = checksum_of_end(data, CHECKPOINT_MARK)
    return end is not None and end[1] == file_sum(table, checkpoint_name(version), data[: end[0]])


def read_checkpoint(table: Place, version: int, *, checksummed: bool = True) -> bytes:
    """Return the bytes of a checkpoint.

    Args:
        table, version: as for `read_commit`.
        checksummed: whether its checksum is compared.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_commit`.
    """
    place = table / "_delta_log" / checkpoint_name(version)
    data = place.read(LARGEST)
    if checksummed and not checkpoint_fits(table.name, version, data):
        raise changed_error(place)
    return data
