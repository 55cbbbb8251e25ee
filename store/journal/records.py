"""Records of a journal part: checked heads, events as JSON, Arrow IPC messages; and the header of a run.

A part is a sequence of records, each a checked head, events as JSON, and one Arrow IPC message.

    offset  bytes  what
         0      4  "ELJ1"
         4      4  CRC-32 (as in zlib) of all bytes from offset 8 to the end, unsigned, little-endian
         8      1  kind: "S" schema, "B" batch, "E" end of the part
         9      7  zero
        16      8  bytes of the events, unsigned, little-endian
        24      8  bytes of the body, the same
        32      8  rows of the run before this batch, the same
        40      8  number of the schema within its part: of this one, or of this batch's, the same
        48     16  zero
        64         events, body, each padded with zeros to a multiple of 64 bytes

The checksum distinguishes a record that a crash tore, or that was damaged later, from a whole one before any
byte of it is used.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import asdict, dataclass

from ..checksums import checksum

SCHEMA, BATCH, END = b"S", b"B", b"E"
_MAGIC = b"ELJ1"
_HEAD = struct.Struct("<c7xQQQQ16x")
_START = struct.Struct("<4sI")
HEAD_BYTES = _START.size + _HEAD.size
_ALIGNMENT = 64
_SEARCH_PASSES = 16
HEADER_KEY = b"episodelake.run"


@dataclass(frozen=True)
class RunHeader:
    """The description of the run in every part, so that a part alone is enough to recover it.

    Attributes:
        run_id, name: see the runs table.
        started_at: microseconds since 1970, UTC.
        env_spec, versions: JSON texts, or None.
        metadata: JSON text of the run's metadata.
        env_bundle: JSON text, see `EnvBundle`; None in headers of earlier writers too.
    """

    run_id: str
    name: str
    started_at: int
    env_spec: str | None
    versions: str | None
    metadata: str
    env_bundle: str | None = None

    def to_bytes(self) -> bytes:
        """Return the header as schema metadata."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RunHeader:
        """Read schema metadata back; raises ValueError, TypeError or KeyError if it is none."""
        return RunHeader(**json.loads(data))


@dataclass(frozen=True)
class PartRecord:
    """One whole record; `events` and `body` are views of the memory it was read from."""

    kind: bytes
    first: int
    schema: int
    events: memoryview
    body: memoryview
    stop: int


def encode(
    kind: bytes, first: int, schema: int, events: bytes, body: bytes | memoryview
) -> list[bytes | memoryview]:
    """Return the pieces to write, one behind the other, for one record."""
    head = _HEAD.pack(kind, len(events), len(body), first, schema)
    padded_events = events + bytes(_padding(len(events)))
    padding = bytes(_padding(len(body)))
    check = checksum(head, padded_events, body, padding)
    return [_START.pack(_MAGIC, check) + head + padded_events, body, padding]


def decode(data: memoryview, start: int) -> PartRecord | None:
    """Return the record that begins at `start`, or None if there is no whole, undamaged one."""
    first = start + HEAD_BYTES
    if len(data) < first:
        return None
    magic, check = _START.unpack_from(data, start)
    kind, events_size, body_size, rows_before, schema = _HEAD.unpack_from(data, start + _START.size)
    body_start = first + events_size + _padding(events_size)
    stop = body_start + body_size + _padding(body_size)
    if magic != _MAGIC or len(data) < stop:
        return None
    if checksum(data[start + _START.size : stop]) != check:
        return None
    events = data[first : first + events_size]
    return PartRecord(kind, rows_before, schema, events, data[body_start : body_start + body_size], stop)


def find_next(data: mmap.mmap, view: memoryview, start: int) -> int | None:
    """Return where the next whole record behind a damaged one begins, or None if there is none.

    A part made to be slow could hold very many heads that each claim the rest of it; the search gives up when
    computing the checksums of such heads has taken it over the part a number of times.
    """
    left = _SEARCH_PASSES * len(view)
    at = data.find(_MAGIC, start)
    while at >= 0 and left > 0:
        if at % _ALIGNMENT == 0:
            if decode(view, at) is not None:
                return at
            left -= _claimed_bytes(view, at)
        at = data.find(_MAGIC, at + 1)
    return None


def _claimed_bytes(data: memoryview, start: int) -> int:
    """Return how many bytes the checksum of a record covers; 0 where it claims more than there are."""
    if len(data) < start + HEAD_BYTES:
        return 0
    _, events_size, body_size, _, _ = _HEAD.unpack_from(data, start + _START.size)
    size = HEAD_BYTES + events_size + body_size
    return size if start + size <= len(data) else 0


def _padding(size: int) -> int:
    return -size % _ALIGNMENT
