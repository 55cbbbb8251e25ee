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

from .files import guard_access
from .journal import EVENTS_KEY, HEADER_KEY, RunHeader

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
        header: the run's header, or None if not even the first stream's head is whole.
        torn_bytes: how many bytes at the end belong to no whole batch; known once all batches were read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: RunHeader | None = None
        self.torn_bytes = 0
        with guard_access("read the journal", path), open(path, "rb") as file:
            empty = path.stat().st_size == 0
            self._map = None if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def batches(self) -> Iterator[JournalBatch]:
        """Yield every whole batch in the order of arrival; stop at a torn one.

        Pages that were passed are released from time to time; batches stay usable and bring them back.
        """
        if self._map is None:
            return
        size = len(self._map)
        source = pa.BufferReader(pa.py_buffer(self._map))
        good = released = 0
        while good < size:
            try:
                stream = pa.ipc.open_stream(source)
                self.header = RunHeader.from_bytes((stream.schema.metadata or {})[HEADER_KEY])
            except (pa.ArrowInvalid, OSError, ValueError, TypeError, KeyError):
                break
            while True:
                try:
                    batch, metadata = stream.read_next_batch_with_custom_metadata()
                    events = metadata[EVENTS_KEY] if metadata and EVENTS_KEY in metadata else b"[]"
                    batch.validate()
                except StopIteration:
                    good = source.tell()
                    break
                except (pa.ArrowInvalid, OSError, ValueError):
                    self.torn_bytes = size - good
                    return
                good = source.tell()
                yield JournalBatch(batch, events)
                if good - released > _KEPT_BYTES:
                    self.release()
                    released = good
        self.torn_bytes = size - good

    def release(self) -> None:
        """Drop the mapped pages from this process's memory; they are read again when needed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
