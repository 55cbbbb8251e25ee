"""The journal: a run's write-ahead log, and the lock of its live writer.

Each run has a directory `journal/<run id>/` of numbered parts, and beside it a file `<run id>.lock`, held
for as long as the writer lives (see `locks`). The lock is beside the directory, so that the directory can
come and go under it: a writer takes the lock before it makes the directory, and removes the directory before
it releases the lock. A part is a sequence of checked records (see `records`): schemas, and batches of
rows with the events of their episodes. Rows go into the journal in the order in which they arrived; the live
writer, or recovery after a crash, makes segments of them.

The seal log lists the episodes of each segment, a line before each seal. With the last segment that was
committed it shows which episodes of the journal are in the store already: recovery must not bring back what
was compacted or deleted meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import operator
import os
import re
import stat
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..dynamic.columns import align_to_schema
from ..errors import CorruptStoreError, MissingFileError, RecorderStateError, StoreAccessError
from ..files import guard_access, is_denied, is_folder, is_link, names_in, stat_or_none, sync_open, sync_path
from ..files.locks import LOCK_SUFFIX, Owner, holder
from ..files.paths import open_plain, read_plain
from ..layout import Layout, checksum
from .records import BATCH, END, HEADER_KEY, SCHEMA, RunHeader, encode

PART_SUFFIX = ".frames"
DAMAGED_SUFFIX = ".damaged"
_PART = re.compile(r"\d{6,}\.frames")
SEAL_LOG = "seals.log"


class PartWriter:
    """Appends batches to one part.

    A batch that could not be written whole is cut off again, so the part always ends after a whole batch
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
        """Truncate the part after the last complete batch, where a write has failed."""
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
    if is_link(folder):
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
    journals: list[Path] = []
    for folder in folders:
        if is_folder(folder):
            journals += filter(is_journal, (folder / name for name in names_in(folder)))
    return journals


@dataclass(frozen=True)
class Journals:
    """The journals of a store: which runs are recorded, and what dead writers left.

    Attributes:
        folders: of the journals, those of damaged ones included.
    """

    folders: list[Path]

    @classmethod
    def of(cls, layout: Layout, *, check: bool = False) -> Journals:
        """List the journals of a store.

        Args:
            layout: of the store.
            check: refuse folders of journals that are links, which may lead out of the store.

        Raises:
            CorruptStoreError: such a folder is a link.
            StoreAccessError: a folder cannot be listed.
        """
        for folder in layout.journal_places if check else ():
            check_journals(folder)
        return cls(journal_folders(*layout.journal_places))

    @cached_property
    def _owners(self) -> dict[str, tuple[bool, Owner | None]]:
        return {folder.name: holder(lock_path(folder)) for folder in self.folders}

    @property
    def live(self) -> list[str]:
        """The runs that live writers record, in whatever process."""
        return [name for name, (held, _) in self._owners.items() if held]

    @property
    def left(self) -> list[str]:
        """The runs to be recovered here."""
        return [name for name, owners in self._owners.items() if not any(owners) and not _is_damaged(name)]

    @property
    def damaged(self) -> list[str]:
        """The journals that recovery has set aside."""
        return [name for name in self._owners if _is_damaged(name)]

    @property
    def other_hosts(self) -> dict[str, str]:
        """The runs that may be recorded on hosts whose locks do not reach this one, with the hosts."""
        return {name: owner.host for name, (_, owner) in self._owners.items() if owner is not None}


def _is_damaged(name: str) -> bool:
    return name.endswith(DAMAGED_SUFFIX)


def is_journal(directory: Path) -> bool:
    """Return whether a folder is the journal of a run, set aside or not.

    Raises:
        StoreAccessError: the system cannot tell.
    """
    if not is_folder(directory, follow=False):
        return False
    if stat_or_none(lock_path(directory), follow=False) is not None:
        return True
    try:
        return any(map(is_own_name, names_in(directory)))
    except StoreAccessError as error:
        # Another user's has its lock beside it if it is a journal in use.
        if isinstance(error, MissingFileError) or is_denied(error):
            return False
        raise


def is_own_name(name: str) -> bool:
    """Return whether a file of this name in a journal's folder belongs to the journal."""
    return name == SEAL_LOG or _PART.fullmatch(name) is not None


def part_paths(directory: Path) -> list[Path]:
    """Return all parts of a run's journal, oldest first.

    Raises:
        StoreAccessError: its folder cannot be listed.
    """
    with contextlib.suppress(MissingFileError):
        return [directory / name for name in names_in(directory) if _PART.fullmatch(name)]
    return []


def set_aside(directory: Path) -> Path:
    """Rename a damaged journal, so that no recovery meets it again, and return its new place."""
    with guard_access("set the damaged journal aside", directory):
        # One that was set aside earlier keeps its name.
        numbers = itertools.chain([""], (f".{number}" for number in itertools.count(2)))
        places = (directory.with_name(f"{directory.name}{number}{DAMAGED_SUFFIX}") for number in numbers)
        place = next(place for place in places if stat_or_none(place, follow=False) is None)
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


def note_seal(directory: Path, segment: int, numbers: Iterable[int]) -> None:
    """Record, durably, that the next seal brings these episodes into a segment.

    Raises:
        StoreAccessError: it could not be written; nothing was sealed.
    """
    text = json.dumps({"segment": segment, "numbers": sorted(numbers)}).encode()
    path = directory / SEAL_LOG
    with guard_access("write the journal", path):
        new = stat_or_none(path) is None
        descriptor = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            # The line begins with a line feed, so that a torn one before it spoils itself alone.
            line = b"\n%08x %s\n" % (checksum(text), text)
            while line:
                line = line[os.write(descriptor, line) :]
            sync_open(descriptor, path)
        finally:
            os.close(descriptor)
        if new:
            sync_path(directory)


def sealed_numbers(directory: Path, committed: int) -> set[int]:
    """Return the numbers of the episodes that the segments up to `committed` took; lines that are torn do not
    count.

    Raises:
        StoreAccessError: the log cannot be read.
    """
    by_segment: dict[int, list[int]] = {}
    path = directory / SEAL_LOG
    data = b"" if is_link(path) or stat_or_none(path) is None else read_plain(path)
    for line in data.split(b"\n"):
        check, _, text = line.partition(b" ")
        if text and check == b"%08x" % checksum(text):
            try:
                content = json.loads(text)
                segment, numbers = (
                    operator.index(content["segment"]),
                    [*map(operator.index, content["numbers"])],
                )
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise CorruptStoreError(f"The seal log {path} has an impossible line: {error}.") from error
            # A segment that was never committed may have been begun again with other episodes.
            by_segment[segment] = numbers
    return {number for segment, sealed in by_segment.items() if segment <= committed for number in sealed}
