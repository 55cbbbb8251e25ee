"""Reader of a journal part: batches without copying, events, the position of a torn end.

The file is mapped into memory; batches point into the mapping. `PartReader.release` gives the pages back to
the operating system after use, so that a journal far larger than memory can be sealed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from ..dynamic.values import load_object
from ..errors import DamagedJournalError
from ..files import guard_access, stat_or_none
from ..files.access import pread
from ..files.paths import open_plain
from ..spaces.arrow import STORED_TYPES, inner_type
from .packed_columns import PACKED, PackedRows, has_packed, packed_bytes, plain_bytes
from .records import (
    BATCH,
    END,
    HEAD_BYTES,
    HEADER_KEY,
    SCHEMA,
    PartRecord,
    RunHeader,
    decode,
    expanded,
    find_next,
    record_bytes,
)

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
            CorruptStoreError: the record is whole, but its events are not what a journal holds.
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

    Args:
        path: the part.
        own: whether this process has written it, so that its checksums need not be compared.

    Attributes:
        own: as given.
        header: the run's header, or None if no record with one is whole.
        torn_bytes: how many bytes belong to no whole record; known once all batches were read.
        damaged: whether whole records stand after such bytes, so that this is no end torn by a crash, or
            all its rows were in parts before it; known then.
        ended: whether the part was closed in order; otherwise later batches may be lost. Known then.
        seen: rows of the run up to the end of this part; known then.
        rows, row_bytes: how many rows were read, and how many bytes they take in the journal when nothing is
            packed.
    """

    def __init__(self, path: Path, *, own: bool = False) -> None:
        self.path = path
        self.own = own
        self.header: RunHeader | None = None
        self.torn_bytes = 0
        self.damaged = False
        self.seen = 0
        self.rows = 0
        self.row_bytes = 0
        self.ended = False
        self._schemas: dict[int, pa.Schema] = {}
        self._map = self._mapped()

    def _mapped(self) -> mmap.mmap | None:
        with self._opened() as file:
            size = os.fstat(file.fileno()).st_size
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with guard_access("read the journal", self.path):
            state = stat_or_none(self.path, follow=False)
            if state is not None and not stat.S_ISREG(state.st_mode):
                raise DamagedJournalError(
                    f"The journal part {self.path} is a link or no file; journals hold files only."
                )
            with open(open_plain(self.path), "rb") as file:
                yield file

    def batches(self, *, after_gap: bool = False, seen: int = 0) -> Iterator[JournalBatch]:
        """Yield every complete batch in the order of arrival.

        Rows that were written twice, because an interrupt came between writing and noting it, are given
        once. Pages that were passed are released from time to time; batches stay usable and bring them back.

        Args:
            after_gap: whether batches before this part may be lost.
            seen: rows of the run up to the end of the part before.

        Raises:
            CorruptStoreError: a record is whole, but its content is not what a journal holds.
        """
        self.rows = self.row_bytes = 0
        fresh_rows = 0
        self.seen = seen
        released = 0
        gap = False
        for record in self._records():
            if record is None:
                gap = True
                continue
            rows = None
            try:
                if record.kind == SCHEMA:
                    self._schemas[record.schema] = self._read_schema(record)
                elif record.kind == BATCH and record.schema in self._schemas:
                    rows = _read_batch(record, self._schemas[record.schema])
                else:
                    gap = gap or record.kind == BATCH  # its schema was in a record that is lost
            except MemoryError:
                raise
            except _UNREADABLE as error:
                raise _not_ours(self.path, str(error)) from error
            if rows is not None:
                fresh = self._fresh(rows, record.first)
                self.seen = max(self.seen, record.first + rows.num_rows)
                # The record's size, since asking a batch for its own touches every page of it again.
                self.rows += rows.num_rows
                self.row_bytes += plain_bytes(rows, len(record.body))
                fresh_rows += fresh.num_rows
                # A part may lack its end mark although the rows of the next one follow on.
                lost = gap or (after_gap and record.first > seen)
                yield JournalBatch(fresh, bytes(record.events) or b"[]", lost, self.path)
                gap = after_gap = False
            if record.stop - released > _KEPT_BYTES:
                self.release()
                released = record.stop
        # Behind a damaged last batch the end mark proves nothing.
        self.ended &= not gap
        # A part that only repeats earlier rows has replaced the real one.
        self.damaged |= self.rows > 0 and not fresh_rows

    def _fresh(self, rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Return the rows of a batch that were not read before."""
        known = min(max(self.seen - first, 0), rows.num_rows)
        if 0 < known < rows.num_rows and has_packed(rows.schema):
            return PackedRows.of(rows, self.path).unpacked().slice(known)
        return rows.slice(known)

    def _records(self) -> Iterator[PartRecord | None]:
        """Yield every complete record; None where bytes were skipped to find the next one."""
        self.torn_bytes, self.damaged, self.ended = 0, False, False
        if self._map is None:
            return
        view = memoryview(self._map)
        at = 0
        while at < len(view):
            record = decode(view, at, checked=self.own)
            if record is not None:
                self.ended = record.kind == END
                at = record.stop
                yield record
                continue
            following = find_next(self._map, view, at + 1)
            self.torn_bytes += (len(view) if following is None else following) - at
            if following is None:
                return
            self.damaged = True
            at = following
            yield None

    def _read_schema(self, record: PartRecord) -> pa.Schema:
        schema = pa.ipc.read_schema(pa.py_buffer(record.body))
        wrong = [column.name for column in schema if not _is_known(column)]
        if wrong or len(set(schema.names)) < len(schema):
            raise ValueError(f"columns of types that no column has, or of one name: {wrong[:8]}")
        self.header = _checked_header((schema.metadata or {})[HEADER_KEY], self.path)
        return schema.remove_metadata()

    def release(self) -> None:
        """Drop the mapped pages from this process's memory; they are read again when needed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class GrowingPart(PartReader):
    """Reader of a growing part: each call of `batches` continues after the last complete record.

    The file is open only during a call, and records are copied: touching a mapped page that the writer has
    cut off would end this process. Reading stops at the first record that is torn, being written or damaged.
    """

    _stop = _length = 0

    def _mapped(self) -> None:
        return None

    def _records(self) -> Iterator[PartRecord | None]:
        with self._opened() as file:
            length = os.fstat(file.fileno()).st_size
            head = pread(file.fileno(), HEAD_BYTES, self._stop)
            replaced = len(head) == HEAD_BYTES and record_bytes(head) is None
            if length != self._length and (replaced or length < self._stop):
                # The writer has cut off a batch that was read, since it could not be synced.
                self._stop = 0
            self._length = length
            at = self._stop
            while not self.ended:
                size = record_bytes(pread(file.fileno(), HEAD_BYTES, at))
                if size is None or size > os.fstat(file.fileno()).st_size - at:
                    return
                record = decode(memoryview(pread(file.fileno(), size, at)), 0)
                if record is None:
                    return
                at += size
                if record.kind != SCHEMA:
                    # A schema is cut off with the batch after it if that cannot be written.
                    self._stop = at
                self.ended = record.kind == END
                yield record


def _not_ours(path: Path, problem: str) -> DamagedJournalError:
    return DamagedJournalError(
        f"{path} is not a journal part ({problem}). Another program wrote it, or its records were changed on "
        "purpose."
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


def _read_batch(record: PartRecord, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a batch record, pointing into it.

    The checksum proves that a record is as it was written, not that a journal wrote it. Arrow follows offsets
    unchecked, so they are checked here, and compressed buffers are refused before they are unpacked.
    """
    body = pa.py_buffer(record.body)
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
    """Return the offset of a field in a flatbuffer table; 0 if it is absent."""
    entries = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, entries)
    entry = 4 + 2 * number
    return struct.unpack_from("<H", metadata, entries + entry)[0] if entry < size else 0
