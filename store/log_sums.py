"""Sums of a table's log: who opens a table knows that its commits and checkpoints are as they were written.

Delta logs have no checksums of their own, and a flipped byte in one may name another file, hide one, or
change what the history tells. Every commit of ours ends with a CRC-32, the last entry of its commit info,
where other readers take it for a remark; a checkpoint has one behind its footer, where Parquet readers pass
over it. Both count the file's name in, so that no commit stands in the place of another unnoticed.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import CorruptStoreError
from .files import guard_access
from .places import Place

#: A table with this property has a sum in every commit and every checkpoint.
PROPERTY = "episodelake.sums"
#: The key of the sum in a commit's information.
KEY = "episodelake.crc32"
_END = re.compile(rb'"episodelake\.crc32": "([0-9a-f]{8})"\}\}')
_END_BYTES = len('"episodelake.crc32": "01234567"}}')
_TAIL_BYTES = len('01234567"}}')
_MARK = b"ELC1"
_CHECK = struct.Struct("<4sI")
_PARQUET_END = struct.Struct("<I4s")
_COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")


def commit_name(version: int) -> str:
    """The file of a commit in its log.

    >>> commit_name(3)
    '00000000000000000003.json'
    """
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """The file of a checkpoint in its log."""
    return f"{version:020d}.checkpoint.parquet"


def commit_text(
    table: str, version: int, actions: Sequence[Mapping[str, Any]], information: Mapping[str, Any]
) -> bytes:
    """A commit with its sum.

    Args:
        table: the name of the table's folder.
        version: the commit's number.
        actions: what it does.
        information: what the history says of it.
    """
    lines = [json.dumps(action) for action in actions]
    lines.append(json.dumps({"commitInfo": {**information, KEY: "0" * 8}}))
    body = "\n".join(lines).encode()[:-_TAIL_BYTES]
    return body + b'%08x"}}' % _sum(table, commit_name(version), body)


def commit_fits(table: str, version: int, data: bytes) -> bool:
    """Whether a commit has a sum and is what was summed up."""
    found = _END.fullmatch(data[-_END_BYTES:])
    name = commit_name(version)
    return found is not None and int(found[1], 16) == _sum(table, name, data[:-_TAIL_BYTES])


def summed_checkpoint(table: str, version: int, data: bytes) -> bytes:
    """The bytes of a checkpoint with their sum behind the footer."""
    length, mark = _PARQUET_END.unpack(data[-_PARQUET_END.size :])
    body = data[: -_PARQUET_END.size]
    check = _CHECK.pack(_MARK, _sum(table, checkpoint_name(version), body))
    return body + check + _PARQUET_END.pack(length + _CHECK.size, mark)


def checkpoint_fits(table: str, version: int, data: bytes) -> bool:
    """Whether a checkpoint has a sum and is what was summed up."""
    end = len(data) - _PARQUET_END.size - _CHECK.size
    if end < 0:
        return False
    mark, found = _CHECK.unpack_from(data, end)
    return mark == _MARK and found == _sum(table, checkpoint_name(version), data[:end])


def _sum(table: str, name: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(f"{table}/{name}".encode()))


def checkpoints_of(names: Sequence[str]) -> list[int]:
    """The versions of the checkpoints among the files of a log, in order."""
    return sorted(int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name))


def commits_of(names: Sequence[str]) -> list[int]:
    """The versions of the commits among the files of a log, in order."""
    return sorted(int(name[:20]) for name in names if _COMMIT.fullmatch(name))


def read_commit(table: Place, version: int, *, summed: bool = True) -> bytes:
    """The bytes of a commit.

    Args:
        table: the table's folder.
        version: the commit's number.
        summed: whether it must have a sum that fits.

    Raises:
        CorruptStoreError: it was changed, or has no sum; the message names it.
        StoreAccessError: it cannot be read.
    """
    place = table / "_delta_log" / commit_name(version)
    with guard_access("read", place):
        data = place.read()
    if summed and not commit_fits(table.name, version, data):
        raise changed_error(place)
    return data


def read_checkpoint(table: Place, version: int, *, summed: bool = True) -> bytes:
    """The bytes of a checkpoint; otherwise as `read_commit`."""
    place = table / "_delta_log" / checkpoint_name(version)
    with guard_access("read", place):
        data = place.read()
    if summed and not checkpoint_fits(table.name, version, data):
        raise changed_error(place)
    return data


def changed_error(place: Place) -> CorruptStoreError:
    """What to raise where a file of a log does not fit its sum."""
    return CorruptStoreError(
        f"The file {place} is not as Episodelake wrote it: its checksum does not fit. It is damaged, or "
        "another program wrote it; others may read a store's tables, not change them. Restore it from a copy."
    )
