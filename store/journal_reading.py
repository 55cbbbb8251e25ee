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
from .journal_frames import BATCH, END, SCHEMA, Frame, decode

_KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class JournalBatch:
    """One batch of rows with the events that came with it.

    Attributes:
        rows: points into the mapped file.
        events_json: the events as they were written.
    """

    rows: pa.RecordBatch
    events_json: bytes

    def events(self) -> list[dict[str, Any]]:
        """What happened to episodes with these rows: begin before them, end and discard after them."""
        return json.loads(self.events_json)


class PartReader:
    """One mapped part.

    Attributes:
        header: the run's header, or None if not even the first frame is whole.
        torn_bytes: how many bytes at the end belong to no whole frame; known once all batches were read.
        ended: whether the part has its end mark, known then too; without it, later frames may be lost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: RunHeader | None = None
        self.torn_bytes = 0
        self.ended = False
        with guard_access("read the journal", path), open(path, "rb") as file:
            empty = path.stat().st_size == 0
            self._map = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def batches(self) -> Iterator[JournalBatch]:
        """Yield every whole batch in the order of arrival; stop at a torn or damaged one.

        Pages that were passed are released from time to time; batches stay usable and bring them back.

        Raises:
            CorruptStoreError: a frame is whole, but its content is not what a journal holds.
        """
        if self._map is None:
            return
        data = memoryview(self._map)
        good = released = 0
        schema: pa.Schema | None = None
        while (frame := decode(data, good)) is not None:
            rows = None
            try:
                if frame.kind == SCHEMA:
                    schema = self._read_schema(frame)
                elif frame.kind == BATCH and schema is not None:
                    rows = pa.ipc.read_record_batch(pa.py_buffer(frame.body), schema)
            except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
                raise CorruptStoreError(
                    f"The journal part {self.path} holds what no journal holds ({error}). It was written by "
                    "something else, or its frames were changed on purpose."
                ) from error
            if rows is not None:
                yield JournalBatch(rows, bytes(frame.events) or b"[]")
            self.ended = frame.kind == END
            good = frame.stop
            if good - released > _KEPT_BYTES:
                self.release()
                released = good
        self.torn_bytes = len(data) - good

    def _read_schema(self, frame: Frame) -> pa.Schema:
        schema = pa.ipc.read_schema(pa.py_buffer(frame.body))
        self.header = RunHeader.from_bytes((schema.metadata or {})[HEADER_KEY])
        return schema.remove_metadata()

    def release(self) -> None:
        """Drop the mapped pages from this process's memory; they are read again when needed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
