"""The journal: a run's write-ahead log, and the lock that says its writer lives.

Each run has a directory `journal/<run id>/` of numbered parts, and beside it a file `<run id>.lock`, held
under an operating-system lock for as long as the writer lives. A part is a row of checked frames (see
`journal_frames`): schemas, batches of rows, and what happened to episodes beside the batch that it belongs
to. Rows go into the journal in the order in which they arrived; from there, and only from there, segments
are made: by the live writer, and by recovery after a crash.
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
from .files import guard_access, sync_path
from .journal_frames import BATCH, END, SCHEMA, encode

LOCK_SUFFIX = ".lock"
PART_SUFFIX = ".frames"
DAMAGED_SUFFIX = ".damaged"
HEADER_KEY = b"episodelake.run"

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
        env_bundle: JSON text, see `bundle`; None in headers of earlier writers too.
    """

    run_id: str
    name: str
    started_at: int
    env_spec: str | None
    versions: str | None
    metadata: str
    env_bundle: str | None = None

    def to_bytes(self) -> bytes:
        """The header as schema metadata."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RunHeader:
        """Read schema metadata back; raises ValueError, TypeError or KeyError if it is none."""
        return RunHeader(**json.loads(data))


class JournalLock:
    """Exclusive ownership of one run's journal directory, for as long as this process lives.

    The lock is on a file beside the directory, so that the directory can come and go under it: a writer
    takes the lock before it makes the directory, and removes the directory before it lets go. The
    operating system drops the lock when the process ends in whatever way; a child made by fork gives its
    share up at once.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @staticmethod
    def acquire(directory: Path) -> JournalLock | None:
        """Take the lock, or return None if a live writer (in this process or another) holds it.

        Raises:
            StoreAccessError: the lock's file cannot be made or opened.
        """
        path = directory.with_name(directory.name + LOCK_SUFFIX)
        key = os.path.realpath(path)
        with _held_guard:
            if key in _held:
                return None
            with guard_access("lock the journal", path):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not _lock(path, descriptor):
                os.close(descriptor)
                return None
            _held[key] = descriptor
            return JournalLock(path, descriptor)

    def release(self, *, remove: bool) -> None:
        """Let go of the lock, and remove its file if the directory is gone for good; a second call does
        nothing.

        Raises:
            StoreAccessError: the file cannot be removed; the lock is still held, so call again.
        """
        with _held_guard:
            if os.path.realpath(self._path) in _held:
                with guard_access("remove the journal's lock", self._path):
                    if remove:
                        self._path.unlink(missing_ok=True)
                del _held[os.path.realpath(self._path)]
                os.close(self._descriptor)


def is_live(directory: Path) -> bool:
    """Whether a writer, in this process or another, holds the lock of a journal; nothing is changed.

    Raises:
        StoreAccessError: the lock's file cannot be opened.
    """
    path = directory.with_name(directory.name + LOCK_SUFFIX)
    with guard_access("look at the journal's lock", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who look do not take each other for a writer.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _lock(path: Path, descriptor: int) -> bool:
    """Lock an open file; False if it is locked, or was removed by its owner between opening and locking."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


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
        header: the run, written at the start of the part.
        sync: call fsync after each batch.

    Attributes:
        size: bytes in the part.
    """

    def __init__(self, path: Path, header: RunHeader, *, sync: bool) -> None:
        self.path = path
        self.size = 0
        self._header = header
        self._sync = sync
        self._schema: pa.Schema | None = None
        self._schema_number = 0
        self._torn = False
        with guard_access("create the journal", path):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115 (kept open until close)
            try:
                if sync:
                    sync_path(path.parent)
            except BaseException:
                self._file.close()
                path.unlink(missing_ok=True)
                raise

    def append(self, batch: pa.RecordBatch, events: Sequence[dict[str, Any]], first: int) -> None:
        """Append one batch with the events that belong to it.

        Args:
            batch: rows in the journal's layout.
            events: what happened to episodes with these rows.
            first: how many rows of the run came before; tells a batch that is written a second time.

        Raises:
            StoreAccessError: it could not be written; nothing of it remains in the part.
        """
        pieces: list[bytes | memoryview] = []
        aligned = None if self._schema is None else _align(batch, self._schema)
        schema, number = self._schema, self._schema_number
        if aligned is None:
            aligned, schema, number = batch, batch.schema, number + 1
            described = batch.schema.with_metadata({HEADER_KEY: self._header.to_bytes()})
            pieces += encode(SCHEMA, first, number, b"", memoryview(described.serialize()))
        text = json.dumps(events).encode() if events else b""
        pieces += encode(BATCH, first, number, text, memoryview(aligned.serialize()))
        self._write(pieces)
        self._schema, self._schema_number = schema, number

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        if self._file.closed:
            raise RecorderStateError(f"The journal part {self.path} is closed already.")
        with guard_access("write the journal", self.path):
            try:
                self._cut()
                self._torn = True
                for piece in pieces:
                    self._write_all(piece)
                if self._sync:
                    os.fsync(self._file.fileno())
                self.size = self._file.tell()
                self._torn = False
            except BaseException:
                # Where even this fails the next write begins with it.
                with contextlib.suppress(OSError):
                    self._cut()
                raise

    def _cut(self) -> None:
        """Cut off what a write that failed may have left behind the last whole batch."""
        if self._torn:
            os.ftruncate(self._file.fileno(), self.size)
            self._file.seek(self.size)
            self._torn = False

    def _write_all(self, piece: bytes | memoryview) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Mark the end of the part and close it; a part without the mark lost its end in a crash.

        Raises:
            StoreAccessError: the mark could not be written; the batches are all there, call again.
        """
        if not self._file.closed:
            self._write(encode(END, 0, 0, b"", b""))
            self._file.close()


def _align(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """The batch under another schema, absent columns NULL; None if it does not fit that schema."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    for column in batch.schema:
        index = schema.get_field_index(column.name)
        if index < 0 or not column.equals(schema.field(index), check_metadata=True):
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


def journal_folders(folder: Path) -> list[Path]:
    """The journals in the folder of a store: of writers that live, of dead ones, and damaged ones.

    Raises:
        StoreAccessError: the folder cannot be listed.
    """
    with guard_access("list the journals", folder):
        if not folder.is_dir():
            return []
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())


def part_paths(directory: Path) -> list[Path]:
    """All parts of a run's journal, oldest first."""
    return sorted(directory.glob(f"*{PART_SUFFIX}"))


def set_aside(directory: Path) -> Path:
    """Rename a damaged journal, so that no recovery meets it again, and return its new place."""
    place = directory.with_name(directory.name + DAMAGED_SUFFIX)
    with guard_access("set the damaged journal aside", directory):
        if place.exists():
            shutil.rmtree(place)
        directory.rename(place)
    return place


def remove_journal(directory: Path) -> None:
    """Delete a run's journal directory with all that is in it; one that is gone already is no error."""
    with guard_access("remove the sealed journal", directory), contextlib.suppress(FileNotFoundError):
        # The seal log goes last: it says which episodes of the parts are sealed.
        for path in part_paths(directory):
            path.unlink()
        shutil.rmtree(directory)
