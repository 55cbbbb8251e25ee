"""The journal: a run's write-ahead log, and the lock that says its writer lives.

Each run has a directory `journal/<run id>/` of numbered parts, and beside it a file `<run id>.lock`, held
for as long as the writer lives (see `locks`). The lock is beside the directory, so that the directory can
come and go under it: a writer takes the lock before it makes the directory, and removes the directory before
it releases the lock. A part is a sequence of checked frames (see `record_format`): schemas, and batches of
rows with the events of their episodes. Rows go into the journal in the order in which they arrived; the live
writer, or recovery after a crash, makes segments of them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..dynamic.alignment import align_to_schema
from ..errors import CorruptStoreError, RecorderStateError
from ..files import guard_access, sync_path
from ..locking.locks import LOCK_SUFFIX
from .record_format import BATCH, END, SCHEMA, encode
from .seal_log import SEAL_LOG

PART_SUFFIX = ".frames"
DAMAGED_SUFFIX = ".damaged"
_PART = re.compile(r"\d{6,}\.frames")
HEADER_KEY = b"episodelake.run"


@dataclass(frozen=True)
class RunHeader:
    """The description of the run in every part, so that a part alone is enough to recover it.

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
        """Return the header as schema metadata."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> RunHeader:
        """Read schema metadata back; raises ValueError, TypeError or KeyError if it is none."""
        return RunHeader(**json.loads(data))


class PartWriter:
    """Appends batches to one part.

    A batch that could not be written whole is cut off again, so the part always ends behind a whole batch
    and the same batch may be appended once more: to this part, or to a fresh one after a failed fsync.

    Args:
        path: the part's file; it must not exist.
        header: the run, written at the start of the part.
        sync: call fsync after each batch.

    Attributes:
        size: bytes in the part.
        failed: whether an fsync failed. The kernel may have dropped what it could not write, and a later
            fsync of the same file would succeed all the same, so the part takes no more batches.
    """

    def __init__(self, path: Path, header: RunHeader, *, sync: bool) -> None:
        self.path = path
        self.size = 0
        self.failed = False
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

    @property
    def closed(self) -> bool:
        """Whether the part takes no more batches."""
        return self._file.closed

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
        if self.closed:
            raise RecorderStateError(f"The journal part {self.path} is closed already.")
        with guard_access("write the journal", self.path):
            try:
                self._cut()
                self._torn = True
                for piece in pieces:
                    self._write_all(piece)
                if self._sync and not self.failed:
                    self._fsync()
                self.size = self._file.tell()
                self._torn = False
            except BaseException:
                # Where even this fails the next write begins with it.
                with contextlib.suppress(OSError):
                    self._cut()
                raise

    def _fsync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError:
            self.failed = True
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
        if not self.closed:
            self._write(encode(END, 0, 0, b"", b""))
            self._file.close()


def _align(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return the batch under another schema, absent columns NULL; None if it does not fit that schema."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    for column in batch.schema:
        index = schema.get_field_index(column.name)
        if index < 0 or not column.equals(schema.field(index), check_metadata=True):
            return None
    return align_to_schema(batch, schema)


def part_path(directory: Path, number: int) -> Path:
    """Return the file of part `number` in a run's journal directory."""
    return directory / f"{number:06d}{PART_SUFFIX}"


def lock_path(directory: Path) -> Path:
    """Return the lock of a run's journal directory."""
    return directory.with_name(directory.name + LOCK_SUFFIX)


def check_journals(folder: Path) -> None:
    """Refuse a folder of journals that is a link, which may lead out of the store.

    Raises:
        CorruptStoreError: it is one.
    """
    if folder.is_symlink():
        raise CorruptStoreError(
            f"{folder} is a link; a store has folders of its own only. Put a folder in its place: nothing "
            "was recovered, deleted or written."
        )


def journal_folders(*folders: Path) -> list[Path]:
    """Return the journals in the folders of a store: of live writers, of dead ones, and damaged ones.

    Folders without a lock, a part or a seal log are none: they belong to the user.

    Raises:
        StoreAccessError: a folder cannot be listed.
    """
    found: list[Path] = []
    for folder in folders:
        with guard_access("list the journals", folder):
            if folder.is_dir():
                found += sorted(entry for entry in folder.iterdir() if is_journal(entry))
    return found


def is_journal(directory: Path) -> bool:
    """Return whether a folder is the journal of a run, set aside or not."""
    if directory.is_symlink() or not directory.is_dir():
        return False
    if os.path.lexists(lock_path(directory)):
        return True
    try:
        return any(map(is_own_name, os.listdir(directory)))
    except FileNotFoundError:
        return False
    except PermissionError:
        # Another user's; its lock would be beside it if it were a journal in use.
        return False


def is_own_name(name: str) -> bool:
    """Return whether a file of this name in a journal's folder belongs to the journal."""
    return name == SEAL_LOG or _PART.fullmatch(name) is not None


def part_paths(directory: Path) -> list[Path]:
    """Return all parts of a run's journal, oldest first."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(directory / name for name in os.listdir(directory) if _PART.fullmatch(name))
    return []


def set_aside(directory: Path) -> Path:
    """Rename a damaged journal, so that no recovery meets it again, and return its new place."""
    with guard_access("set the damaged journal aside", directory):
        # One that was set aside earlier keeps its name.
        numbers = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
        places = (directory.with_name(f"{directory.name}{number}{DAMAGED_SUFFIX}") for number in numbers)
        place = next(place for place in places if not os.path.lexists(place))
        directory.rename(place)
    return place


def remove_journal(directory: Path) -> None:
    """Delete the parts and the seal log of a run's journal, and its directory unless it holds other files.

    No link is followed. A journal that is gone already is no error; files that are not of a journal stay,
    with the directory, and a warning lists them.

    Raises:
        StoreAccessError: a file could not be deleted; call again.
    """
    with guard_access("remove the sealed journal", directory), contextlib.suppress(FileNotFoundError):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(directory, flags)
        try:
            names = sorted(os.listdir(folder))
            # The seal log goes last: it says which episodes of the parts are sealed.
            for name in sorted(filter(is_own_name, names), key=lambda name: (name == SEAL_LOG, name)):
                if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
            left = os.listdir(folder)
        finally:
            os.close(folder)
        if left:
            warnings.warn(
                f"The journal {directory} is in the store, but its folder stays: it holds files that are not "
                f"of a journal ({', '.join(sorted(left)[:5])}). Move them away and delete the folder.",
                RuntimeWarning,
                stacklevel=4,
            )
            return
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
