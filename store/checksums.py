"""Checksums: the CRC-32 of all formats, and the marks by which binary files say that they carry one.

Each format has a mark of its own. A Parquet file has its checksum behind the footer, within the length that
the file gives for it, where readers that do not know it pass over it.
"""

from __future__ import annotations

import struct
import zlib

#: Behind the footer of a Parquet file of segments and tables.
FOOTER_MARK = b"ELF1"
#: Behind the footer of a checkpoint of a table's log.
CHECKPOINT_MARK = b"ELC1"
#: At the end of a file of the cache folder; earlier versions wrote the checkpoints' mark there.
CACHE_MARKS = (b"ELM1", b"ELC1")

_CHECK = struct.Struct("<4sI")
#: How a Parquet file ends: the length of its footer, and a magic number.
PARQUET_END = struct.Struct("<I4s")


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
    found, value = _CHECK.unpack_from(data, start)
    return (start, value) if found == mark else None
