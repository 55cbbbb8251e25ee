"""Files of a table's log: names, listing, actions, CRC-32 checksums of commits and checkpoints.

Delta logs have no checksums of their own, and a flipped byte in one may name another file, hide one, or
change the history. Every commit of ours ends with a CRC-32, the last entry of its commit info, which other
readers ignore; a checkpoint has one behind its footer, which Parquet readers skip. Both include the file's
name, so a commit under another number does not pass either.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import Schema

from ..checksums import CHECKPOINT_MARK, PARQUET_END, checked_end, checksum, checksum_of_end
from ..errors import CorruptStoreError, StoreAccessError
from ..files import Place, guard_access, is_absent, oversized_error
from ..files.access import is_link

#: A table with this property has a checksum in every commit and every checkpoint.
PROPERTY = "episodelake.sums"
#: The file of a log that says where its newest checkpoint is.
HINT = "_last_checkpoint"
#: A larger file is no part of a log; reading it would take all memory.
LARGEST = 1 << 30
#: The key of the checksum in a commit's information.
KEY = "episodelake.crc32"
_KEY_BYTES = f'"{KEY}"'.encode()
_END = re.compile(rb'"episodelake\.crc32": "([0-9a-f]{8})"\}\}')
_END_BYTES = len('"episodelake.crc32": "01234567"}}')
_TAIL_BYTES = len('01234567"}}')
_LARGEST_HINT = 1 << 20
_READERS = 8
_COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")


def commit_name(version: int) -> str:
    """Return the file of a commit in its log.

    >>> commit_name(3)
    '00000000000000000003.json'
    """
    return f"{version:020d}.json"


def commit_place(table: Place, version: int) -> Place:
    """Return the file of a commit in the log of the table in a folder."""
    return table / "_delta_log" / commit_name(version)


def checkpoint_name(version: int) -> str:
    """Return the file of a checkpoint in its log."""
    return f"{version:020d}.checkpoint.parquet"


def commit_text(
    table: str, version: int, actions: Sequence[Mapping[str, Any]], information: Mapping[str, Any]
) -> bytes:
    """Return a commit with its checksum.

    Args:
        table: the name of the table's folder.
        version: the commit's number.
        actions: what it does.
        information: the entry of the history.
    """
    lines = [json.dumps(action) for action in actions]
    lines.append(json.dumps({"commitInfo": {**information, KEY: "0" * 8}}))
    body = "\n".join(lines).encode()[:-_TAIL_BYTES]
    return body + b'%08x"}}' % file_sum(table, commit_name(version), body)


def commit_information(operation: str, moment: int, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the history for a commit; `moment` is in milliseconds since 1970."""
    entries = {key: str(value) for key, value in details.items()}
    parameters = {"mode": "Append", "partitionBy": "[]"} if operation == "WRITE" else {}
    return {"timestamp": moment, "operation": operation, "operationParameters": parameters, **entries}


def metadata_of(schema: pa.Schema, configuration: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the part of a metaData action with a table's columns and properties."""
    return {
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _delta_schema(schema).to_json(),
        "partitionColumns": [],
        "configuration": dict(configuration),
    }


def removals(names: Sequence[str], moment: int) -> list[dict[str, Any]]:
    """Return the actions that remove files."""
    gone = {"deletionTimestamp": moment, "dataChange": True}
    return [{"remove": {"path": name, **gone}} for name in names]


def _delta_schema(schema: pa.Schema) -> Schema:
    columns = []
    for column in schema:
        metadata = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
        columns.append(column.with_metadata(metadata))
    return Schema.from_arrow(pa.schema(columns))


def commit_fits(table: str, version: int, data: bytes) -> bool:
    """Return whether a commit has a checksum that matches."""
    end = _END.fullmatch(data[-_END_BYTES:])
    name = commit_name(version)
    return end is not None and int(end[1], 16) == file_sum(table, name, data[:-_TAIL_BYTES])


def summed_checkpoint(table: str, version: int, data: bytes) -> bytes:
    """Return the bytes of a checkpoint with their checksum behind the footer."""
    body, end = data[: -PARQUET_END.size], data[-PARQUET_END.size :]
    return body + checked_end(end, CHECKPOINT_MARK, file_sum(table, checkpoint_name(version), body))


def checkpoint_fits(table: str, version: int, data: bytes) -> bool:
    """Return whether a checkpoint has a checksum that matches."""
    end = checksum_of_end(data, CHECKPOINT_MARK)
    return end is not None and end[1] == file_sum(table, checkpoint_name(version), data[: end[0]])


def file_sum(table: str, name: str, data: bytes) -> int:
    """Return the CRC-32 of a file of a log, of its name too."""
    return checksum(f"{table}/{name}".encode(), data)


def checkpoints_of(names: Sequence[str]) -> list[int]:
    """Return the versions of the checkpoints among the files of a log, in order."""
    return sorted(int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name))


def commits_of(names: Sequence[str]) -> list[int]:
    """Return the versions of the commits among the files of a log, in order."""
    return sorted(int(name[:20]) for name in names if _COMMIT.fullmatch(name))


def first_version(names: Sequence[str]) -> int:
    """Return the oldest version that a log still has; 0 as well if it is damaged.

    Args:
        names: the files of the log.
    """
    commits, checkpoints = set(commits_of(names)), checkpoints_of(names)
    if 0 in commits or not checkpoints:
        return 0
    # A writer that slept may leave an old checkpoint, without the commits that it stood before.
    return next((version for version in checkpoints if version in commits), checkpoints[0])


def check_log(table: Place) -> list[str]:
    """Return the names of the files of a log, after a check of the folders and of the files' sizes.

    Raises:
        CorruptStoreError: there are no commits, a link is in the place of a folder, or a file is empty or
            too large to read.
    """
    log = table / "_delta_log"
    with guard_access("read", log):
        for folder in (table, log):
            if folder.local is not None and is_link(folder.local):
                raise CorruptStoreError(f"{folder} is a link; a store has folders of its own only.")
        # Listing objects tells their sizes; those of a folder's files are looked up one by one.
        sizes = {} if log.local is not None else {entry.name: entry.size for entry in log.entries()}
        try:
            names = log.names() if log.local is not None else sorted(sizes)
        except NotADirectoryError:
            names = []
        commits = {commit_name(version) for version in commits_of(names)}
        if not commits:
            raise CorruptStoreError(
                f"The table {table} is missing: its log has no commits. If its disk is not mounted or it was "
                "moved, bring it back; else restore it from a copy of the store. Nothing was changed."
            )
        summed_up = max((name for name in names if ".checkpoint" in name), default="")[:20]
        for name in names:
            # Other readers read these files whole.
            if name >= summed_up and (name[:20].isdigit() or name == HINT):
                size = sizes[name] if name in sizes else (log / name).size()
                most = _LARGEST_HINT if name == HINT else LARGEST
                if size > most:
                    raise oversized_error(log / name, size, most)
                if not size and name in commits:
                    raise CorruptStoreError(f"The log of the table {table} is damaged: {name} is empty.")
        return names


def read_commit(table: Place, version: int, *, summed: bool = True) -> bytes:
    """Return the bytes of a commit; a checksum that it has must match.

    Args:
        table: the table's folder.
        version: the commit's number.
        summed: whether it must have a checksum.

    Raises:
        CorruptStoreError: it was changed, or has no checksum; the message names it.
        StoreAccessError: it cannot be read.
    """
    place = commit_place(table, version)
    with guard_access("read", place):
        data = place.read(LARGEST)
    if (summed or _KEY_BYTES in data) and not commit_fits(table.name, version, data):
        raise changed_error(place)
    return data


def read_commits(table: Place, versions: Sequence[int], *, summed: bool = False) -> Iterable[bytes]:
    """Return the bytes of commits, in order; those of object stores are read several at a time.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_commit`.
    """
    read = partial(read_commit, table, summed=summed)
    if table.local is not None:
        return map(read, versions)
    with ThreadPoolExecutor(_READERS, "episodelake log") as pool:
        return list(pool.map(read, versions))


def find_commit(table: Place, version: int, *, summed: bool = False) -> bytes | None:
    """Return the bytes of a commit; None if it is absent.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_commit`.
    """
    try:
        return read_commit(table, version, summed=summed)
    except StoreAccessError as error:
        if is_absent(error):
            return None
        raise


@contextlib.contextmanager
def reading_commit(table: Place, version: int) -> Iterator[None]:
    """Turn errors of a commit whose actions are not what they should be into a `CorruptStoreError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration) as error:
        raise CorruptStoreError(
            f"The commit {commit_place(table, version)} is damaged ({type(error).__name__}: {error}). "
            "Restore it from a copy; nothing was changed."
        ) from error


def commit_actions(table: Place, version: int, data: bytes) -> list[dict[str, Any]]:
    """Return the actions of a commit.

    Raises:
        CorruptStoreError: it is no list of JSON objects.
    """
    with reading_commit(table, version):
        return [dict(json.loads(line)) for line in data.splitlines()]


def read_checkpoint(table: Place, version: int, *, summed: bool = True) -> bytes:
    """Return the bytes of a checkpoint.

    Args:
        table, version: as for `read_commit`.
        summed: whether its checksum is compared.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_commit`.
    """
    place = table / "_delta_log" / checkpoint_name(version)
    with guard_access("read", place):
        data = place.read(LARGEST)
    if summed and not checkpoint_fits(table.name, version, data):
        raise changed_error(place)
    return data


def changed_error(place: Place) -> CorruptStoreError:
    """Return the error for a file of a log whose checksum does not match."""
    return CorruptStoreError(
        f"The file {place} is not as Episodelake wrote it: its checksum does not fit. It is damaged, or "
        "another program wrote it; others may read a store's tables, not change them. Restore it from a copy."
    )
