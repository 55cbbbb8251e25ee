"""A cache folder on this machine: shared by processes, bounded in size, cleaned.

A file is written under a temporary name, made durable, and renamed atomically, so that no process sees a
partial file. A mapped file has a shared lock for as long as the mapping lives; the least recently used files
are removed to make room, except locked ones. A file under construction is locked by its builder; an unlocked
one is a leftover of a killed builder, and is removed too.

Files hold rows of stores, so only their user may read them. `forget` removes those of vacuumed versions.

A file ends with a description of its content, in JSON, and with checksums of parts of the content.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import secrets
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import platformdirs

from ...store.common.arguments import expect
from ...store.errors import EpisodelakeError, StoreAccessError
from ...store.files import access_class, is_file, is_folder, sync_path, user_path
from ...store.files.access import allocate, pread
from ...store.files.local import check_locks, has_name, try_lock, wait_for_lock
from ...store.files.paths import open_plain
from ...store.layout import CACHE_MARKS, checksum
from ...store.manifest import check_outside_stores

#: Names the cache folder, where no other is given.
VARIABLE = "EPISODELAKE_CACHE"
#: A cache folder without a limit of its own holds at most this, and at most half of what the disk could give.
DEFAULT_BYTES = 50 << 30

_ENDING, _UNFINISHED, _LOCK = ".column", ".building", ".lock"
_END = struct.Struct("<QI4s")
_PARTS, _PART_BYTES = 16, 64 << 10


@dataclass(frozen=True)
class CacheEntry:
    """A file of the cache.

    Attributes:
        path: the file.
        bytes: its size.
        used: when it was last opened, seconds since 1970.
        facts: describe the content; empty if the file is damaged.
        in_use: whether a process has it open.
    """

    path: Path
    bytes: int
    used: float
    facts: Mapping[str, Any]
    in_use: bool


@dataclass(frozen=True)
class CacheFolder:
    """A cache of columns on this machine, which processes share; `of` finds it.

    Attributes:
        path: the folder; it is made when something is to be written.
        limit: most bytes of all files; None for `DEFAULT_BYTES` or half of the disk, whichever is less.
    """

    path: Path
    limit: int | None = None

    @staticmethod
    def of(folder: str | os.PathLike[str] | None, limit: int | None = None) -> CacheFolder:
        """Return the cache in a folder, or in `EPISODELAKE_CACHE`, or in the user's folder for caches.

        Raises:
            InvalidArgumentError: it is not a path, or lies in a store.
        """
        valid = folder is None or (isinstance(folder, str | os.PathLike) and os.fspath(folder))
        expect(valid, "folder", folder, "the path of a folder, or None")
        named = folder or os.environ.get(VARIABLE)
        path = user_path(named or platformdirs.user_cache_dir("episodelake", appauthor=False)).absolute()
        check_outside_stores(path)
        return CacheFolder(path, limit)

    def open(self, key: str, facts: Mapping[str, Any]) -> mmap.mmap | None:
        """Map a file for reading; it stays, and stays locked, until the mapping is gone.

        Args:
            key: its name.
            facts: the expected description.

        Returns:
            None if there is none, or if it is damaged.

        Raises:
            StoreAccessError: it may not be read.
        """
        path = self.path / (key + _ENDING)
        with self._guarded("read"), contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            wait_for_lock(file, shared=True)
            content = _mapped(file, facts) if has_name(file.fileno(), path) else None
            if content is not None:
                with contextlib.suppress(OSError):  # a folder that may only be read has no order of use
                    os.utime(path)
            return content
        return None

    @contextlib.contextmanager
    def building(self, name: str) -> Iterator[None]:
        """Be the only process that builds the files of this name; others wait here.

        Raises:
            StoreAccessError: the folder cannot be written.
        """
        check_locks()
        path = self.path / (name + _LOCK)
        with self._guarded("write"):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = _owned(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            file.close()

    def add(
        self,
        files: Mapping[str, tuple[int, Mapping[str, Any]]],
        kept: frozenset[str],
        fill: Callable[[dict[str, mmap.mmap]], None],
    ) -> dict[str, mmap.mmap]:
        """Add files that `fill` completes, all or none; each is durable before it gets its name.

        Args:
            files: size and description by key.
            kept: keys of files that must not go to make room.
            fill: writes the contents, given by key.

        Returns:
            The contents by key, locked as those of `open`.

        Raises:
            StoreAccessError: the disk is full, the folder may not be written, or the limit is too low.
        """
        drafts: dict[str, tuple[Path, BinaryIO]] = {}
        contents: dict[str, mmap.mmap] = {}
        with contextlib.ExitStack() as undo:
            with self.building("room"), self._guarded("write"):
                self._make_room(sum(size for size, _ in files.values()), kept | files.keys())
                for key, (size, _) in files.items():
                    path = self.path / f"{key}.{secrets.token_hex(4)}{_UNFINISHED}"
                    file = undo.enter_context(open(path, "x+b", opener=_private))
                    undo.callback(path.unlink, missing_ok=True)
                    wait_for_lock(file)
                    # Writing to a mapping on a full disk would kill the process.
                    allocate(file.fileno(), size)
                    drafts[key], contents[key] = (path, file), mmap.mmap(file.fileno(), size)
            fill(contents)
            with self._guarded("write"):
                for key, (size, facts) in files.items():
                    contents[key].flush()
                    self._finish(key, *drafts[key], _end_of(facts, contents[key], size), size)
        return contents

    def _finish(self, key: str, path: Path, file: BinaryIO, end: bytes, size: int) -> None:
        """Complete a file and give it its name, in place of an older file of that name."""
        file.seek(size)
        file.write(end)
        file.flush()
        os.fsync(file.fileno())
        os.replace(path, self.path / (key + _ENDING))
        sync_path(self.path)
        # The mapping has a copy of the descriptor, and with it keeps the lock.
        wait_for_lock(file, shared=True)

    def entries(self) -> list[CacheEntry]:
        """Return the files in the folder, the least recently used first, without leftovers."""
        entries = []
        for path in self._files(_ENDING):
            # Another user's files in a shared folder are neither ours to read nor to remove.
            gone = (FileNotFoundError, PermissionError)
            with contextlib.suppress(*gone), self._guarded("read", *gone), open(path, "rb") as file:
                state = os.fstat(file.fileno())
                facts = _read_end(file)[0].get("facts", {})
                in_use = not try_lock(file)
                entries.append(CacheEntry(path, state.st_size, state.st_mtime, facts, in_use))
        return sorted(entries, key=lambda entry: entry.used)

    def clear(self) -> list[CacheEntry]:
        """Remove all files that are not in use, leftovers too; return the removed ones."""
        return self._remove(lambda entry: _removed(entry.path))

    def forget(self, store: str, kept: Callable[[int], bool]) -> list[CacheEntry]:
        """Remove the files of a store's versions that must not be kept, also those in use; return them.

        A process that has a file mapped can read it until it closes the mapping.

        Args:
            store: the store's id.
            kept: whether the files of a version may stay.
        """

        def remove(entry: CacheEntry) -> bool:
            gone = entry.facts.get("store") == store and not kept(entry.facts["version"])
            if gone:
                entry.path.unlink(missing_ok=True)
            return gone

        return self._remove(remove)

    def _remove(self, remove: Callable[[CacheEntry], bool]) -> list[CacheEntry]:
        """Remove leftovers, and entries by a function that returns whether it removed one."""
        with self._guarded("read"):
            if not is_folder(self.path):
                return []
        with self.building("room"), self._guarded("write"):
            self._remove_leftovers()
            return [entry for entry in self.entries() if remove(entry)]

    def _make_room(self, needed: int, kept: frozenset[str]) -> None:
        """Remove the least recently used files until `needed` bytes fit."""
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
                "are in use or belong to this loader. Raise el.Cache('mmap', max_bytes=...), load "
                "fewer columns or episodes, "
                "or use cache='stream' or cache='memory'."
            )

    def _remove_leftovers(self) -> None:
        for path in self._files(_UNFINISHED):
            _removed(path)

    def _files(self, ending: str) -> list[Path]:
        with self._guarded("read"), contextlib.suppress(FileNotFoundError):
            return [
                path
                for path in self.path.iterdir()
                if path.name.endswith(ending) and is_file(path, follow=False)
            ]
        return []

    @contextlib.contextmanager
    def _guarded(self, action: str, *passed: type[OSError]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Errors of the cache's own have no number.
            if isinstance(error, passed) or (isinstance(error, EpisodelakeError) and error.errno is None):
                raise
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise access_class(error)(
                f"Could not {action} the cache folder {self.path}: {error.strerror or error}. "
                f"{'Free some space, choose' if full else 'Choose'} another folder with "
                f"el.Cache('mmap', folder=...) or the environment variable {VARIABLE}, or load with "
                "cache='memory' or cache='stream'."
            ) from error


def _end_of(facts: Mapping[str, Any], content: mmap.mmap, size: int) -> bytes:
    """Return the end of a file: the description of its content, with checksums of both."""
    text = json.dumps({"facts": facts, "sums": _sums(content, size)}).encode()
    return text + _END.pack(len(text), checksum(text), CACHE_MARKS[0])


def _mapped(file: BinaryIO, facts: Mapping[str, Any]) -> mmap.mmap | None:
    """Return the file's content, if it is intact and has these facts."""
    end, size = _read_end(file)
    if end.get("facts") != facts:
        return None
    # The mapping keeps a copy of the descriptor, and with it the lock.
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return content if _sums(content, size) == end.get("sums") else None


def _read_end(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return the description of a file and the size of its content; an empty dict if it is damaged."""
    size = os.fstat(file.fileno()).st_size
    try:
        end = pread(file.fileno(), _END.size, size - _END.size)
        length, expected, magic = _END.unpack(end)
        if magic not in CACHE_MARKS or length > size - _END.size:
            return {}, 0
        text = pread(file.fileno(), length, size - _END.size - length)
        if checksum(text) != expected:
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
        return [checksum(view[start : start + part]) for start in starts]


def _private(path: str, flags: int) -> int:
    """Open a file of the folder, made for its user alone; a link would lead elsewhere."""
    return open_plain(path, flags, 0o600)


def _removed(path: Path) -> bool:
    """Remove a file unless it is locked."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb", opener=_private) as file:
        if try_lock(file):
            path.unlink(missing_ok=True)
            return True
    return False


def _owned(path: Path) -> BinaryIO:
    """Create and lock a lock file, which its owner removes."""
    while True:
        file = open(path, "ab", opener=_private)  # noqa: SIM115 - the caller closes it
        wait_for_lock(file)
        if has_name(file.fileno(), path):
            return file
        file.close()
