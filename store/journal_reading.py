"""Reading a journal part back: batches without copying, events, and where a torn end begins.

The file is mapped into memory; batches point into the mapping. `PartReader.release` gives the pages back to
the operating system after use, so that a journal far larger than memory can be sealed.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from .errors import CorruptStoreError
from .files import guard_access
from .journal import HEADER_KEY, RunHeader
from .journal_frames import BATCH, END, SCHEMA, Frame, decode, find_next

_KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class JournalBatch:
    """One batch of rows with the events that came with it.

    Attributes:
        rows: points into the mapped file.
        events_json: the events as they were written.
        after_gap: whether batches before this one may be lost.
    """

    rows: pa.RecordBatch
    events_json: bytes
    after_gap: bool

    def events(self) -> list[dict[str, Any]]:
        """What happened to episodes with these rows: begin before them, end and discard after them."""
        return json.loads(self.events_json)


class PartReader:
    """One mapped part.

    Attributes:
        header: the run's header, or None if no frame with one is whole.
        torn_bytes: how many bytes belong to no whole frame; known once all batches were read.
        damaged: whether whole frames stand behind such bytes, so that this is no end torn by a crash;
            known then.
        rows, row_bytes: how many rows were read, and how many bytes they take in the journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: RunHeader | None = None
        self.torn_bytes = 0
        self.damaged = False
        self.rows = 0
        self.row_bytes = 0
        self._ended = False
        with guard_access("read the journal", path), open(path, "rb") as file:
            empty = path.stat().st_size == 0
            self._map = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def batches(self, *, after_gap: bool = False) -> Iterator[JournalBatch]:
        """Yield every whole batch in the order of arrival.

        Rows that were written twice, because an interrupt came between writing and noting it, are given
        once. Pages that were passed are released from time to time; batches stay usable and bring them back.

        Args:
            after_gap: whether batches before this part may be lost.

        Raises:
            CorruptStoreError: a frame is whole, but its content is not what a journal holds.
        """
        self.rows = self.row_bytes = 0
        schemas: dict[int, pa.Schema] = {}
        seen = released = 0
        gap = after_gap
        for frame in self._frames():
            if frame is None:
                gap = True
                continue
            rows = None
            try:
                if frame.kind == SCHEMA:
                    schemas[frame.schema] = self._read_schema(frame)
                elif frame.kind == BATCH and frame.schema in schemas:
                    rows = pa.ipc.read_record_batch(pa.py_buffer(frame.body), schemas[frame.schema])
                else:
                    gap = gap or frame.kind == BATCH  # its schema was in a frame that is lost
            except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
                raise CorruptStoreError(
                    f"The journal part {self.path} holds what no journal holds ({error}). It was written by "
                    "something else, or its frames were changed on purpose."
                ) from error
            if rows is not None:
                fresh = rows.slice(min(max(seen - frame.first, 0), rows.num_rows))
                seen = max(seen, frame.first + rows.num_rows)
                # The frame's size, since asking a batch for its own touches every page of it again.
                self.rows += rows.num_rows
                self.row_bytes += len(frame.body)
                yield JournalBatch(fresh, bytes(frame.events) or b"[]", gap)
                gap = False
            if frame.stop - released > _KEPT_BYTES:
                self.release()
                released = frame.stop

    @property
    def ended(self) -> bool:
        """Whether the part was closed in order; otherwise later batches may be lost. Known once all were
        read.
        """
        return self._ended

    def _frames(self) -> Iterator[Frame | None]:
        """Every whole frame; None where bytes were passed over to find the next one."""
        self.torn_bytes, self.damaged, self._ended = 0, False, False
        if self._map is None:
            return
        view = memoryview(self._map)
        at = 0
        while at < len(view):
            frame = decode(view, at)
            if frame is not None:
                self._ended = frame.kind == END
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
        self.header = RunHeader.from_bytes((schema.metadata or {})[HEADER_KEY])
        return schema.remove_metadata()

    def release(self) -> None:
        """Drop the mapped pages from this process's memory; they are read again when needed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
