"""Frames of a journal part, and their reader: batches without copying, events, the position of a torn end.

The file is mapped into memory; batches point into the mapping. `PartReader.release` gives the pages back to
the operating system after use, so that a journal far larger than memory can be sealed.

A part is a sequence of frames: a checked head, events as JSON, and one Arrow IPC message.

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

The checksum distinguishes a frame that a crash tore, or that was damaged later, from a whole one before any
byte of it is used.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..checksums import checksum
from ..dynamic.values import load_object
from ..errors import DamagedJournalError
from ..files import guard_access
from ..files.system import open_plain, state_of
from ..spaces.arrow import STORED_TYPES, inner_type
from .events import expanded
from .packed_columns import PACKED, PackedRows, has_packed, packed_bytes, plain_bytes

_KEPT_BYTES = 32 << 20
_UNREADABLE = (
    pa.ArrowException,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    RecursionError,
    struct.error,
)
#: Microseconds from 1970 to the end of the year 9999, beyond which no engine has a date.
_LATEST_MOMENT = 253_402_300_799_999_999
_REASONS = frozenset({"terminated", "truncated", "cut", "interrupted", None})
#: What may stand under each key of an event; a key may also be absent or null.
_EVENT_TYPES = {
    "env_index": int,
    "seed": int,
    "options": str,
    "metadata": str,
    "continues": str,
    "continued_steps": int,
    "agent": int,
    "agent_id": str,
    "group": int,
    "flags": list,
}
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
class JournalBatch:
    """One batch of rows with the events that came with it.

    Attributes:
        rows: points into the mapped file; columns may be packed, see `packed_columns`.
        events_json: the events as they were written.
        after_gap: whether batches before this one may be lost.
        source: the part, for messages.
    """

    rows: pa.RecordBatch
    events_json: bytes
    after_gap: bool
    source: Path

    def events(self) -> list[dict[str, Any]]:
        """Return what happened to episodes with these rows: begin before them, end and discard after them.

        Raises:
            CorruptStoreError: the frame is whole, but its events are not what a journal holds.
        """
        try:
            content = json.loads(self.events_json)
            events = expanded(content)
            if isinstance(content, list) and all(map(_is_event, events)):
                return events
            problem = "its events are not of the form that a journal has"
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            problem = str(error)
        raise _not_ours(self.source, problem)


class PartReader:
    """One mapped part.

    Attributes:
        header: the run's header, or None if no frame with one is whole.
        torn_bytes: how many bytes belong to no whole frame; known once all batches were read.
        damaged: whether whole frames stand behind such bytes, so that this is no end torn by a crash, or
            all its rows were in parts before it; known then.
        ended: whether the part was closed in order; otherwise later batches may be lost. Known then.
        seen: rows of the run up to the end of this part; known then.
        rows, row_bytes: how many rows were read, and how many bytes they take in the journal when nothing is
            packed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: RunHeader | None = None
        self.torn_bytes = 0
        self.damaged = False
        self.seen = 0
        self.rows = 0
        self.row_bytes = 0
        self.ended = False
        with guard_access("read the journal", path):
            state = state_of(path, follow=False)
            if state is not None and not stat.S_ISREG(state.st_mode):
                raise DamagedJournalError(
                    f"The journal part {path} is a link or no file; journals hold files only."
                )
            with open(open_plain(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else None

    def batches(self, *, after_gap: bool = False, seen: int = 0) -> Iterator[JournalBatch]:
        """Yield every whole batch in the order of arrival.

        Rows that were written twice, because an interrupt came between writing and noting it, are given
        once. Pages that were passed are released from time to time; batches stay usable and bring them back.

        Args:
            after_gap: whether batches before this part may be lost.
            seen: rows of the run up to the end of the part before.

        Raises:
            CorruptStoreError: a frame is whole, but its content is not what a journal holds.
        """
        self.rows = self.row_bytes = 0
        fresh_rows = 0
        schemas: dict[int, pa.Schema] = {}
        self.seen = seen
        released = 0
        gap = False
        for frame in self._frames():
            if frame is None:
                gap = True
                continue
            rows = None
            try:
                if frame.kind == SCHEMA:
                    schemas[frame.schema] = self._read_schema(frame)
                elif frame.kind == BATCH and frame.schema in schemas:
                    rows = _read_batch(frame, schemas[frame.schema])
                else:
                    gap = gap or frame.kind == BATCH  # its schema was in a frame that is lost
            except MemoryError:
                raise
            except _UNREADABLE as error:
                raise _not_ours(self.path, str(error)) from error
            if rows is not None:
                fresh = self._fresh(rows, frame.first)
                self.seen = max(self.seen, frame.first + rows.num_rows)
                # The frame's size, since asking a batch for its own touches every page of it again.
                self.rows += rows.num_rows
                self.row_bytes += plain_bytes(rows, len(frame.body))
                fresh_rows += fresh.num_rows
                # A part may lack its end mark although the rows of the next one follow on.
                lost = gap or (after_gap and frame.first > seen)
                yield JournalBatch(fresh, bytes(frame.events) or b"[]", lost, self.path)
                gap = after_gap = False
            if frame.stop - released > _KEPT_BYTES:
                self.release()
                released = frame.stop
        # A part that only repeats earlier rows has replaced the real one.
        self.damaged |= self.rows > 0 and not fresh_rows

    def _fresh(self, rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the rows of a batch that were not read before."""
        known = min(max(self.seen - first, 0), rows.num_rows)
        if 0 < known < rows.num_rows and has_packed(rows.schema):
            return PackedRows.of(rows, self.path).unpacked().slice(known)
        return rows.slice(known)

    def _frames(self) -> Iterator[Frame | None]:
        """Yield every whole frame; None where bytes were passed over to find the next one."""
        self.torn_bytes, self.damaged, self.ended = 0, False, False
        if self._map is None:
            return
        view = memoryview(self._map)
        at = 0
        while at < len(view):
            frame = decode(view, at)
            if frame is not None:
                self.ended = frame.kind == END
                at = frame.stop
                yield frame
                continue
            following = find_next(self._map, view, at + 1)
            self.torn_bytes += (len(view) if following is None else following) - at
            if following is None:
                return
            self.damaged = True
            at = following
            yield None

    def _read_schema(self, frame: Frame) -> pa.Schema:
        schema = pa.ipc.read_schema(pa.py_buffer(frame.body))
        wrong = [column.name for column in schema if not _is_known(column)]
        if wrong or len(set(schema.names)) < len(schema):
            raise ValueError(f"columns of types that no column has, or of one name: {wrong[:8]}")
        self.header = _checked_header((schema.metadata or {})[HEADER_KEY], self.path)
        return schema.remove_metadata()

    def release(self) -> None:
        """Drop the mapped pages from this process's memory; they are read again when needed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _not_ours(path: Path, problem: str) -> DamagedJournalError:
    return DamagedJournalError(
        f"The journal part {path} holds what no journal holds ({problem}). It was written by something else, "
        "or its frames were changed on purpose."
    )


def _is_known(column: pa.Field) -> bool:
    return packed_bytes(column) > 0 if column.type == PACKED else inner_type(column.type) in STORED_TYPES


def _is_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("event") in ("begin", "agent", "end", "discard")
        and type(event.get("number")) is int
        and 0 <= event["number"] < 2**63
        and event.get("reason") in _REASONS
        and all(_is_moment(event.get(key, 0)) for key in ("started_at", "ended_at"))
        and all(event.get(key) is None or type(event[key]) is kind for key, kind in _EVENT_TYPES.items())
    )


def _is_moment(value: Any) -> bool:
    return type(value) is int and abs(value) <= _LATEST_MOMENT


def _checked_header(data: bytes, path: Path) -> RunHeader:
    header = RunHeader.from_bytes(data)
    optional = (header.env_spec, header.versions, header.env_bundle)
    texts = (header.run_id, header.name, header.metadata, *(text or "" for text in optional))
    if not all(isinstance(text, str) for text in texts) or not _is_moment(header.started_at):
        raise ValueError("a run's header with values of other types")
    load_object(header.metadata, f"the header of the journal part {path}")
    return header


def _read_batch(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a batch frame, pointing into it.

    The checksum proves that a frame is as it was written, not that a journal wrote it. Arrow follows offsets
    unchecked, so they are checked here, and compressed buffers are refused before they are unpacked.
    """
    body = pa.py_buffer(frame.body)
    if _is_compressed(pa.ipc.read_message(body).metadata.to_pybytes()):
        raise ValueError("a compressed batch")
    rows = pa.ipc.read_record_batch(body, schema)
    rows.validate(full=True)
    return rows


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the record batch that a flatbuffer describes says how its buffers are compressed.

    The header is field 2 of the message, and the compression field 3 of a record batch
    (https://arrow.apache.org/docs/format/Columnar.html#recordbatch-message). Arrow has checked the buffer.
    """
    (message,) = struct.unpack_from("<I", metadata)
    header = message + _field_offset(metadata, message, 2)
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field_offset(metadata, batch, 3) > 0


def _field_offset(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer table stands, counted from the table; 0 if it is absent."""
    entries = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, entries)
    entry = 4 + 2 * number
    return struct.unpack_from("<H", metadata, entries + entry)[0] if entry < size else 0


@dataclass(frozen=True)
class Frame:
    """One whole frame; `events` and `body` are views of the memory it was read from."""

    kind: bytes
    first: int
    schema: int
    events: memoryview
    body: memoryview
    stop: int


def encode(
    kind: bytes, first: int, schema: int, events: bytes, body: bytes | memoryview
) -> list[bytes | memoryview]:
    """Return the pieces to write, one behind the other, for one frame."""
    head = _HEAD.pack(kind, len(events), len(body), first, schema)
    padded_events = events + bytes(_padding(len(events)))
    padding = bytes(_padding(len(body)))
    check = checksum(head, padded_events, body, padding)
    return [_START.pack(_MAGIC, check) + head + padded_events, body, padding]


def decode(data: memoryview, start: int) -> Frame | None:
    """Return the frame that begins at `start`, or None if there is no whole, undamaged one."""
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
    return Frame(kind, rows_before, schema, events, data[body_start : body_start + body_size], stop)


def find_next(data: mmap.mmap, view: memoryview, start: int) -> int | None:
    """Return where the next whole frame behind a damaged one begins, or None if there is none.

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
    """Return how many bytes the checksum of a frame covers; 0 where it claims more than there are."""
    if len(data) < start + HEAD_BYTES:
        return 0
    _, events_size, body_size, _, _ = _HEAD.unpack_from(data, start + _START.size)
    size = HEAD_BYTES + events_size + body_size
    return size if start + size <= len(data) else 0


def _padding(size: int) -> int:
    return -size % _ALIGNMENT
