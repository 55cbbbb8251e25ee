"""A folder of files on this machine that can be made again: shared by processes, bounded in size, cleaned.

A file is written under a temporary name, made durable, and takes its name in one step, so that nobody meets
a part of one. Whoever maps a file holds a shared lock on it for as long as the mapping lives; what was not
used for longest goes when room is needed, but no file that is locked. A file under construction is locked by
its builder: one that is not is a leftover of a builder that was killed, and goes too.

A file ends with what it says of itself, in JSON, and with sums over parts of its content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from ...store.errors import EpisodelakeError, InvalidArgumentError, StoreAccessError
from ...store.files import sync_path

#: Names the cache folder, where no other is given.
VARIABLE = "EPISODELAKE_CACHE"
#: A cache folder without a limit of its own holds at most this, and at most half of what the disk could give.
DEFAULT_BYTES = 50 << 30

_ENDING, _UNFINISHED, _LOCK = ".column", ".building", ".lock"
_POLL_SECONDS = 0.02
_END = struct.Struct("<QI4s")
_MAGIC = b"ELC1"
_PARTS, _PART_BYTES = 16, 64 << 10


def chosen_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Where the cache is: the folder, or `EPISODELAKE_CACHE`, or the user's folder for caches.

    Raises:
        InvalidArgumentError: it is no path.
    """
    if folder is not None and (not isinstance(folder, str | os.PathLike) or not os.fspath(folder)):
        raise InvalidArgumentError(f"cache_folder={folder!r}: expected the path of a folder, or None.")
    named = folder or os.environ.get(VARIABLE)
    path = Path(named or platformdirs.user_cache_dir("episodelake", appauthor=False))
    return path.expanduser().absolute()


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache.

    Attributes:
        path: the file.
        bytes: its size.
        used: when it was last opened, seconds since 1970.
        facts: what it says of itself; empty if it is damaged.
        in_use: whether a process has it open.
    """

    path: Path
    bytes: int
    used: float
    facts: Mapping[str, Any]
    in_use: bool


@dataclass(frozen=True)
class CacheFolder:
    """A cache.

    Attributes:
        path: the folder; it is made when something is to be written.
        limit: most bytes of all files; None for `DEFAULT_BYTES` or half of the disk, whichever is less.
    """

    path: Path
    limit: int | None = None

    def open(self, key: str, facts: Mapping[str, Any]) -> mmap.mmap | None:
        """Map a file for reading; it stays, and stays locked, until the mapping is gone.

        Args:
            key: its name.
            facts: what it must say of itself.

        Returns:
            None if there is none, or if it is damaged.

        Raises:
            StoreAccessError: it may not be read.
        """
        path = self.path / (key + _ENDING)
        with self._guarded("read"), contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            _wait_for(file, fcntl.LOCK_SH)
            found = _mapped(file, facts) if _still_there(file, path) else None
            if found is not None:
                with contextlib.suppress(OSError):  # a folder that may only be read has no order of use
                    os.utime(path)
            return found
        return None

    @contextlib.contextmanager
    def building(self, name: str) -> Iterator[None]:
        """Be the only process that builds the files of this name; others wait here.

        Raises:
            StoreAccessError: the folder cannot be written.
        """
        path = self.path / (name + _LOCK)
        with self._guarded("write"):
            self.path.mkdir(parents=True, exist_ok=True)
            file = _owned(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            file.close()

    def drafts(self, sizes: Mapping[str, int], kept: frozenset[str]) -> dict[str, Draft]:
        """Begin files of given sizes, after making room for all of them.

        Args:
            sizes: bytes by key.
            kept: keys of files that must not go to make room.

        Raises:
            StoreAccessError: the disk is full, the folder may not be written, or the limit is too low.
        """
        drafts: dict[str, Draft] = {}
        with self.building("room"), contextlib.ExitStack() as undo, self._guarded("write"):
            self._make_room(sum(sizes.values()), kept | sizes.keys())
            for key, size in sizes.items():
                drafts[key] = draft = Draft(self, key, size)
                undo.callback(draft.close)
                draft.allocate()
            undo.pop_all()
        return drafts

    def entries(self) -> list[CacheEntry]:
        """What is in the folder, the least recently used first; leftovers are not listed."""
        found = []
        for path in self._files(_ENDING):
            with contextlib.suppress(FileNotFoundError), self._guarded("read"), open(path, "rb") as file:
                state = os.fstat(file.fileno())
                facts = _read_end(file)[0].get("facts", {})
                in_use = not _locked(file, fcntl.LOCK_EX)
                found.append(CacheEntry(path, state.st_size, state.st_mtime, facts, in_use))
        return sorted(found, key=lambda entry: entry.used)

    def clear(self) -> list[CacheEntry]:
        """Remove all files that are not in use, leftovers too; gives what went."""
        if not self.path.is_dir():
            return []
        with self.building("room"), self._guarded("write"):
            self._remove_leftovers()
            return [entry for entry in self.entries() if _removed(entry.path)]

    def _make_room(self, needed: int, kept: frozenset[str]) -> None:
        """Remove what was not used for longest until `needed` bytes fit."""
        self._remove_leftovers()
        entries = [entry for entry in self.entries() if entry.path.name.removesuffix(_ENDING) not in kept]
        used = sum(path.stat().st_size for path in (*self._files(_ENDING), *self._files(_UNFINISHED)))
        free = shutil.disk_usage(self.path).free
        limit = min(DEFAULT_BYTES, (used + free) // 2) if self.limit is None else self.limit
        for entry in entries:
            if used + needed <= limit and needed <= free:
                return
            if _removed(entry.path):
                used, free = used - entry.bytes, free + entry.bytes
        if used + needed > limit:
            raise StoreAccessError(
                f"The cache folder {self.path} may hold {limit} bytes; {needed} more are needed, and {used} "
                "are in use or belong to this loader. Raise cache_bytes=..., load fewer columns or episodes, "
                "or use cache='stream' or cache='memory'."
            )

    def _remove_leftovers(self) -> None:
        for path in self._files(_UNFINISHED):
            _removed(path)

    def _files(self, ending: str) -> list[Path]:
        with self._guarded("read"), contextlib.suppress(FileNotFoundError):
            return [path for path in self.path.iterdir() if path.name.endswith(ending)]
        return []

    @contextlib.contextmanager
    def _guarded(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, EpisodelakeError):
                raise
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StoreAccessError(
                f"Could not {action} the cache folder {self.path}: {error.strerror or error}. "
                f"{'Free some space, choose' if full else 'Choose'} another folder with cache_folder=... or "
                f"the environment variable {VARIABLE}, or load with cache='memory' or cache='stream'."
            ) from error


class Draft:
    """A file of the cache under construction; see `CacheFolder.drafts`.

    Attributes:
        content: its bytes, mapped for writing.
    """

    content: mmap.mmap

    def __init__(self, folder: CacheFolder, key: str, size: int) -> None:
        self._folder = folder
        self._key = key
        self._size = size
        self._path = folder.path / f"{key}.{secrets.token_hex(4)}{_UNFINISHED}"
        self._file: BinaryIO = open(self._path, "x+b")  # noqa: SIM115 - closed by close()
        _wait_for(self._file, fcntl.LOCK_EX)

    def allocate(self) -> None:
        """Take the room on the disk: a mapping onto a full disk kills the process."""
        os.posix_fallocate(self._file.fileno(), 0, self._size)
        self.content = mmap.mmap(self._file.fileno(), self._size)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Make it durable under its name, in place of an older file of that name.

        It stays locked, so that it can be opened before it can be removed, until `close`.

        Raises:
            StoreAccessError: it could not be written.
        """
        text = json.dumps({"facts": facts, "sums": _sums(self.content, self._size)}).encode()
        with self._folder._guarded("write"):
            self.content.flush()
            self._file.seek(self._size)
            self._file.write(text + _END.pack(len(text), zlib.crc32(text), _MAGIC))
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._path, self._folder.path / (self._key + _ENDING))
            sync_path(self._folder.path)
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let go of it; unless it was finished, it is gone."""
        self._path.unlink(missing_ok=True)
        # The mapping would hold the lock for as long as somebody holds a part of it.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


def checked_limit(limit: Any) -> int | None:
    """A number of bytes, or None.

    Raises:
        InvalidArgumentError: it is neither.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidArgumentError(f"cache_bytes={limit!r}: expected a number of bytes, or None.")
    return limit


def _mapped(file: BinaryIO, facts: Mapping[str, Any]) -> mmap.mmap | None:
    """The file's content, if it is whole and says what it must."""
    told, size = _read_end(file)
    if told.get("facts") != facts:
        return None
    # The mapping keeps a copy of the descriptor, and with it the lock.
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return content if _sums(content, size) == told.get("sums") else None


def _read_end(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """What a file says of itself, and the size of its content; an empty dict if it is damaged."""
    size = os.fstat(file.fileno()).st_size
    try:
        end = os.pread(file.fileno(), _END.size, size - _END.size)
        length, checksum, magic = _END.unpack(end)
        if magic != _MAGIC or length > size - _END.size:
            return {}, 0
        text = os.pread(file.fileno(), length, size - _END.size - length)
        if zlib.crc32(text) != checksum:
            return {}, 0
        return json.loads(text), size - _END.size - length
    except (OSError, struct.error, ValueError):
        return {}, 0


def _sums(content: mmap.mmap, size: int) -> list[int]:
    """CRC-32 of parts of the content, the first and the last among them; of all of it if it is small."""
    part = min(_PART_BYTES, size)
    last = size - part
    starts = sorted({last * number // (_PARTS - 1) for number in range(_PARTS)})
    with memoryview(content) as view:
        return [zlib.crc32(view[start : start + part]) for start in starts]


def _removed(path: Path) -> bool:
    """Remove a file unless somebody has it locked."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if _locked(file, fcntl.LOCK_EX):
            path.unlink(missing_ok=True)
            return True
    return False


def _locked(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owned(path: Path) -> BinaryIO:
    """A lock's file, made and locked; whoever owns it removes it."""
    while True:
        file = open(path, "ab")  # noqa: SIM115 - the caller closes it
        _wait_for(file, fcntl.LOCK_EX)
        if _still_there(file, path):
            return file
        file.close()


def _wait_for(file: BinaryIO, kind: int) -> None:
    # Asked again and again instead of waiting: some libraries have the system call go on after Ctrl-C.
    while not _locked(file, kind):
        time.sleep(_POLL_SECONDS)


def _still_there(file: BinaryIO, path: Path) -> bool:
    """Whether an open file has not lost its name while its lock was waited for."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
