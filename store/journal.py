"""The journal: a run's write-ahead log, and the lock that says its writer lives.

Each run has a directory `journal/<run id>/` with a file `lock`, held under an operating-system lock for as
long as the writer lives, and numbered parts. A part is one or more Arrow IPC streams, one behind the other
(a new one begins whenever the columns change). What happened to episodes (begin, end) travels as JSON in the
metadata of the batch that it belongs to. Rows go into the journal in the order in which they arrived; from
there, and only from there, segments are made: by the live writer, and by recovery after a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from .errors import RecorderStateError
from .files import guard_access, sync_directory
from .kinds import field_kind

LOCK = "lock"
PART_SUFFIX = ".arrows"
HEADER_KEY = b"episodelake.run"
EVENTS_KEY = b"episodelake.events"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_held: dict[str, int] = {}
_held_guard = threading.Lock()


@dataclass(frozen=True)
class RunHeader:
    """What every part says of its run, so that a part alone is enough to recover it.

    Attributes:
        run_id, name: see the runs table.
        started_at: microseconds since 1970, UTC.
        env_spec, versions: JSON texts, or None.
        metadata: JSON text of the run's metadata.
    """

    run_id: str
    name: str
    started_at: int
    env_spec: str | None
    versions: str | None
    metadata: str

    def to_bytes(self) -> bytes:
        """The header as stream metadata."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RunHeader:
        """Read stream metadata back; raises ValueError, TypeError or KeyError if it is none."""
        return RunHeader(**json.loads(data))


class JournalLock:
    """Exclusive ownership of one run's journal directory, for as long as this process lives.

    The operating system drops the lock when the process ends in whatever way. A child process made by fork
    does not own it.
    """

    def __init__(self, directory: Path, descriptor: int) -> None:
        self._key = os.path.realpath(directory)
        self._descriptor = descriptor

    @staticmethod
    def acquire(directory: Path) -> JournalLock | None:
        """Take the lock, or return None if a live writer (in this process or another) holds it."""
        key = os.path.realpath(directory)
        with _held_guard:
            if key in _held:
                return None
            with guard_access("lock the journal", directory):
                descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            _held[key] = descriptor
            return JournalLock(directory, descriptor)

    def release(self) -> None:
        """Let go of the lock; a second call does nothing."""
        with _held_guard:
            if _held.pop(self._key, None) is not None:
                os.close(self._descriptor)


def _forget_locks_in_child() -> None:
    for descriptor in _held.values():
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_locks_in_child)


class PartWriter:
    """Appends batches to one part.

    A batch that could not be written whole is cut off again, so the part always ends behind a whole batch
    and the same batch may be appended once more.

    Args:
        path: the part's file; it must not exist.
        header: what to write into every stream.
        sync: call fsync after each batch.
    """

    def __init__(self, path: Path, header: RunHeader, *, sync: bool) -> None:
        self.path = path
        self.size = 0
        self._header = header
        self._sync = sync
        self._schema: pa.Schema | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        with guard_access("create the journal", path):
            self._file = pa.OSFile(str(path), "wb")
            if sync:
                sync_directory(path.parent)

    def append(self, batch: pa.RecordBatch, events: Sequence[dict[str, Any]]) -> None:
        """Append one batch with the events that belong to it.

        Raises:
            StoreAccessError: it could not be written; nothing of it remains in the part.
        """
        if self._file.closed:
            raise RecorderStateError(f"The journal part {self.path} is closed already.")
        metadata = {EVENTS_KEY: json.dumps(events).encode()} if events else None
        with guard_access("write the journal", self.path):
            try:
                self._write(batch, metadata)
                if self._sync:
                    os.fsync(self._file.fileno())
            except OSError:
                self._cut_off()
                raise
        self.size = self._file.tell()

    def _write(self, batch: pa.RecordBatch, metadata: dict[bytes, bytes] | None) -> None:
        aligned = None if self._schema is None else _align(batch, self._schema)
        if aligned is None or self._stream is None:
            self._start_stream(batch.schema if aligned is None else self._schema)
            aligned = batch if aligned is None else aligned
        assert self._stream is not None
        self._stream.write_batch(aligned, custom_metadata=metadata)

    def _start_stream(self, schema: pa.Schema | None) -> None:
        assert schema is not None
        if self._stream is not None:
            self._stream.close()
        elif self.size:
            self._file.write(END_OF_STREAM)
        self._schema = schema
        self._stream = pa.ipc.new_stream(
            self._file, schema.with_metadata({HEADER_KEY: self._header.to_bytes()})
        )

    def _cut_off(self) -> None:
        """Go back to the end of the last whole batch; the next one begins a new stream."""
        self._stream = None
        with contextlib.suppress(OSError):
            self._file.close()
        os.truncate(self.path, self.size)
        self._file = pa.OSFile(str(self.path), "ab")

    def close(self) -> None:
        """Close the file; what was appended stays readable without a closing mark."""
        if not self._file.closed:
            self._file.close()


def _align(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """The batch under a stream's schema, absent columns NULL; None if it does not fit that schema."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    for column in batch.schema:
        index = schema.get_field_index(column.name)
        if (
            index < 0
            or schema.field(index).type != column.type
            or field_kind(schema.field(index)) != field_kind(column)
        ):
            return None
    arrays = [
        batch.column(column.name)
        if column.name in batch.schema.names
        else pa.nulls(batch.num_rows, column.type)
        for column in schema
    ]
    return pa.record_batch(arrays, schema)


def part_path(directory: Path, number: int) -> Path:
    """The file of part `number` in a run's journal directory."""
    return directory / f"{number:06d}{PART_SUFFIX}"


def part_paths(directory: Path) -> list[Path]:
    """All parts of a run's journal, oldest first."""
    return sorted(directory.glob(f"*{PART_SUFFIX}"))


def remove_journal(directory: Path) -> None:
    """Delete a run's journal directory with all that is in it."""
    with guard_access("remove the sealed journal", directory):
        shutil.rmtree(directory)
