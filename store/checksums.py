"""Checksums: the CRC-32 of all formats, and the marks by which binary files say that they carry one.

Each format has a mark of its own. A Parquet file has its checksum behind the footer, within the length that
the file gives for it, where readers that do not know it pass over it.

The last member of a JSON file (`store.json`, `card.json`, tags, records, the markers of annotations) is
`crc32`, the CRC-32 of all bytes before its value. Files of earlier versions lack it and stay readable.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from .errors import CorruptStoreError
from .files import Place, guard_access

#: Behind the footer of a Parquet file of segments and tables.
FOOTER_MARK = b"ELF1"
#: Behind the footer of a checkpoint of a table's log.
CHECKPOINT_MARK = b"ELC1"
#: At the end of a file of the cache folder; earlier versions wrote the checkpoints' mark there.
CACHE_MARKS = (b"ELM1", b"ELC1")

_CHECK = struct.Struct("<4sI")
#: How a Parquet file ends: the length of its footer, and a magic number.
PARQUET_END = struct.Struct("<I4s")
#: The member that holds the checksum.
CHECKSUM = "crc32"
_LARGEST = 64 << 20
_KEY = b'"crc32": '
_END = re.compile(_KEY + rb'"([0-9a-f]{8})"\n\}')
_VALUE_BYTES = len('"01234567"\n}')


def checksum(*parts: bytes | memoryview) -> int:
    """Return the CRC-32, as in zlib, of bytes that follow each other."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def checked_end(end: bytes, mark: bytes, value: int) -> bytes:
    """Return the end of a Parquet file with a checksum before it.

    Args:
        end: the last bytes of the file, as Parquet has them.
        mark: says what the checksum is of.
        value: the checksum.
    """
    length, magic = PARQUET_END.unpack(end)
    return _CHECK.pack(mark, value) + PARQUET_END.pack(length + _CHECK.size, magic)


def checksum_of_end(data: bytes, mark: bytes) -> tuple[int, int] | None:
    """Find the checksum before the end of a Parquet file.

    Returns:
        Where it begins, and the checksum; None if there is none with this mark.
    """
    start = len(data) - PARQUET_END.size - _CHECK.size
    if start < 0:
        return None
    own_mark, value = _CHECK.unpack_from(data, start)
    return (start, value) if own_mark == mark else None


def checked_json(content: Mapping[str, Any]) -> bytes:
    """Return an object as JSON that ends with its checksum.

    Raises:
        TypeError, ValueError: the content is not plain JSON.
    """
    text = json.dumps({**content, CHECKSUM: "0" * 8}, indent=1, allow_nan=False).encode()
    before = text[:-_VALUE_BYTES]
    return before + b'"%08x"\n}' % checksum(before)


def read_json(place: Place, most: int = _LARGEST) -> dict[str, Any]:
    """Read an object, without its checksum; a file of more than `most` bytes is refused unread.

    Raises:
        CorruptStoreError: the file is no JSON object, or its checksum does not match; the message names it.
        StoreAccessError: it is missing or cannot be read.
    """
    with guard_access("read", place):
        data = place.read(most)
    try:
        content = json.loads(data, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(
            f"{place} is no valid JSON ({error}). Restore the file from a copy."
        ) from error
    if not isinstance(content, dict):
        raise CorruptStoreError(f"{place} holds {type(content).__name__}; expected a JSON object.")
    end = _END.fullmatch(data[-len(_KEY) - _VALUE_BYTES :])
    if end is None:
        return content
    if int(end[1], 16) != checksum(data[:-_VALUE_BYTES]):
        raise CorruptStoreError(
            f"{place} is damaged: its checksum does not match. Restore the file from a copy; if it was "
            f"edited by hand, remove its member {CHECKSUM!r}."
        )
    del content[CHECKSUM]
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members
