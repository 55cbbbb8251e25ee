"""This machine's file system: a path of it as a place, file locks, and how far they reach.

Reading works without locks. Writing to a folder, and mapping a cache, need `flock`; where it is missing they
raise a `StoreAccessError`. See docs/decisions/012-where-stores-lie.md.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow.fs

from ..errors import CorruptStoreError, StoreAccessError
from .access import pread, read_chunks, replacing, sync_open, sync_path, touching
from .paths import is_folder, is_link, open_plain, stat_or_none, walk
from .place import Entry, Place, oversized_error
from .visible import syncing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Kinds of locks; the same numbers wherever `flock` exists.
_SHARED, _EXCLUSIVE, _AT_ONCE = 1, 2, 4
_POLL_SECONDS = 0.02
_MOUNTS = Path("/proc/self/mountinfo")
#: File systems that one kernel alone mounts, so that it sees every lock.
# fmt: off
_LOCAL = frozenset((
    "apfs", "bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "jfs", "ntfs3",
    "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "vfat", "xfs", "zfs",
))
# fmt: on
#: Network file systems whose `flock` reaches all hosts, unless an option of the mount keeps it on one.
_SHARING = frozenset(("ceph", "lustre", "nfs", "nfs4"))
_LOCAL_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "localflock"))


def has_locks() -> bool:
    """Return whether this operating system has `flock`."""
    return fcntl is not None


def check_locks() -> None:
    """Refuse to write where writers cannot lock their files.

    Raises:
        StoreAccessError: the operating system has no `flock`.
    """
    if fcntl is None:
        raise StoreAccessError(
            "Writing to a folder, and cache='mmap', need file locks (flock), which this system lacks. "
            "Reading, querying and loading with cache='memory' or 'stream' work. Write on Linux or macOS, or "
            "under WSL."
        )


def _flock(file: int | IO[bytes], kind: int) -> None:
    check_locks()
    assert fcntl is not None
    fcntl.flock(file, kind)


def try_lock(file: int | IO[bytes], *, shared: bool = False) -> bool:
    """Lock a file for its owner alone, or shared; False if another process has it.

    Raises:
        OSError: the file system has no locks.
        StoreAccessError: the operating system has none.
    """
    try:
        _flock(file, (_SHARED if shared else _EXCLUSIVE) | _AT_ONCE)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: int | IO[bytes], *, shared: bool = False) -> None:
    """Lock a file as `try_lock` does, waiting for it."""
    # Asked again and again instead of waiting: some libraries have the system call go on after Ctrl-C.
    while not try_lock(file, shared=shared):
        time.sleep(_POLL_SECONDS)


def has_name(descriptor: int, path: Path) -> bool:
    """Return whether an open file has not lost its name, as while its lock was waited for."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def is_local(path: Path) -> bool:
    """Return whether this kernel alone has a path's file system mounted."""
    return _mount(path)[0] in _LOCAL


def shares_locks(path: Path) -> bool:
    """Return whether `flock` on a path is known to reach all hosts that mount it like this one."""
    kind, options = _mount(path)
    return kind in _SHARING and not _LOCAL_LOCKS.intersection(options)


def _mount(path: Path) -> tuple[str, list[str]]:
    """Return the type and the options of a path's file system; an empty type where no mounts are listed."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    subvolume = ""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        # A name may contain any other blank than these.
        for line in filter(None, os.fsdecode(_MOUNTS.read_bytes()).split("\n")):
            mount, _, system = line.partition(" - ")
            kind, _, options = system.split(" ")[:3]
            if mount.split(" ")[2] == number:
                return kind, options.split(",")
            if kind == "btrfs":  # its subvolumes have numbers of their own
                subvolume = kind
    return subvolume, []


class LocalPlace(Place):
    """A file or folder below an absolute path.

    Whatever changes files refuses to go through a link below the root, which may lead out of the store. The
    root itself may be a link, or lie behind one.

    Args:
        path: the file or folder.
        root: the folder above it that the place was reached from; None if it is the root itself.
    """

    def __init__(self, path: Path | str, root: Path | None = None) -> None:
        # Thousands of places are only joined and read: paths are parsed when they are needed.
        self._text = str(path)
        self._root = self._path if root is None else root

    @functools.cached_property
    def _path(self) -> Path:
        return Path(self._text)

    def __truediv__(self, name: str) -> LocalPlace:
        """See `Place`."""
        return LocalPlace(os.path.join(self._text, name), self._root)

    def __str__(self) -> str:
        """Return the absolute path."""
        return self._text

    def __eq__(self, other: object) -> bool:
        """Return whether both name the same path."""
        return isinstance(other, LocalPlace) and self._path == other._path

    def __hash__(self) -> int:
        """By the path."""
        return hash(self._path)

    @property
    def name(self) -> str:
        """See `Place`."""
        return os.path.basename(self._text)

    @property
    def parent(self) -> LocalPlace:
        """See `Place`."""
        inside = self._text != str(self._root)
        return LocalPlace(os.path.dirname(self._text), self._root if inside else None)

    @property
    def remote(self) -> bool:
        """See `Place`."""
        return False

    @property
    def local(self) -> Path:
        """The path."""
        return self._path

    def exists(self) -> bool:
        """See `Place`."""
        return stat_or_none(self._text) is not None

    @touching("look at")
    def size(self) -> int:
        """See `Place`."""
        return os.path.getsize(self._text)

    def _check_inside(self) -> None:
        """Refuse to write below a folder that is a link, or where files cannot be locked."""
        check_locks()
        folder, root = os.path.dirname(self._text), str(self._root)
        while len(folder) > len(root):
            if is_link(folder):
                raise CorruptStoreError(
                    f"{folder} is a link; a store has folders of its own only. Nothing behind it was changed."
                )
            folder = os.path.dirname(folder)

    @touching("look at")
    def check_plain(self) -> None:
        """See `Place`."""
        try:
            mode = os.lstat(self._text).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise CorruptStoreError(f"{self._path} is a link or a pipe; a store has files of its own only.")

    @touching("read")
    def read(self, most: int | None = None) -> bytes:
        """See `Place`."""
        descriptor = _open_plain(self._text)
        try:
            size = os.fstat(descriptor).st_size
            if most is not None and size > most:
                raise oversized_error(self, size, most)
            return pread(descriptor, size, 0)
        finally:
            os.close(descriptor)

    @touching("read")
    def chunks(self) -> Iterator[bytes]:
        """See `Place`."""
        yield from read_chunks(_open_plain(self._path))

    @touching("read")
    def read_tail(self, count: int) -> tuple[bytes, int]:
        """See `Place`."""
        descriptor = _open_plain(self._text)
        try:
            size = os.fstat(descriptor).st_size
            start = max(0, size - count)
            return pread(descriptor, size - start, start), size
        finally:
            os.close(descriptor)

    @touching("write")
    def write(self, data: bytes | Iterator[bytes], *, exclusive: bool = False) -> None:
        """See `Place`: the data goes to a temporary neighbour, is synced, and takes its name in one step."""
        self._check_inside()
        with replacing(self._path, exclusive=exclusive) as temporary, open(temporary, "xb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            sync_open(file.fileno(), self._path)
        with syncing():
            self.parent.sync()

    def check_exclusive(self) -> None:
        """See `Place`; of several hard links with one name, one is made."""

    @contextlib.contextmanager
    @touching("write")
    def written(self) -> Iterator[Path]:
        """See `Place`."""
        self._check_inside()
        self.check_plain()
        yield self._path
        sync_path(self._text)
        self.parent.sync()

    @touching("write")
    def copy_from(self, source: Place, *, link: bool = False) -> None:
        """See `Place`; a link is made where both are on one file system."""
        if source.local is None:
            self.write(source.chunks())
            return
        self._check_inside()
        if link and _linked(source.local, self._path):
            self.parent.sync()
            return
        with self.written() as path:
            shutil.copyfile(source.local, path)

    @touching("delete")
    def remove(self) -> None:
        """See `Place`."""
        self._check_inside()
        self._path.unlink(missing_ok=True)

    @touching("create")
    def make_folder(self) -> None:
        """See `Place`."""
        self._check_inside()
        if self._path != self._root:
            self.check_plain()
        if not is_folder(self._path):
            self._path.mkdir(parents=True, exist_ok=True)
            self.parent.sync()

    @touching("delete")
    def remove_folder(self) -> None:
        """See `Place`."""
        self._check_inside()
        try:
            self._path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
                raise

    @touching("list")
    def entries(self, *, deep: bool = False) -> Iterator[Entry]:
        """See `Place`."""
        if self._path != self._root:
            self.check_plain()
        for folder, folders, files in walk(self._path):
            if not deep:
                folders.clear()
            within = Path(folder).relative_to(self._path).as_posix()
            before = "" if within == "." else f"{within}/"
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    state = os.lstat(os.path.join(folder, name))
                    yield Entry(before + name, state.st_size, state.st_mtime)

    @touching("list")
    def names(self) -> list[str]:
        """See `Place`."""
        try:
            return sorted(os.listdir(self._text))
        except FileNotFoundError:
            return []

    @touching("list")
    def listed(self) -> tuple[list[str], list[str]]:
        """See `Place`."""
        folders: list[str] = []
        files: list[str] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._text) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    files.append(entry.name)
        return sorted(folders), sorted(files)

    def sync(self) -> None:
        """See `Place`."""
        sync_path(self._text)

    def parquet_source(self, size: int | None = None) -> str:
        """See `Place`."""
        return str(self._path)

    def filesystem(self) -> tuple[Any, str]:
        """See `Place`."""
        return pyarrow.fs.LocalFileSystem(), str(self._path)


def _open_plain(path: str | Path) -> int:
    """Open a file for reading; a link, which may lead out of the store, or a pipe is none."""
    try:
        descriptor = open_plain(path)
    except OSError as error:
        if error.errno == errno.ELOOP and is_link(path):
            raise CorruptStoreError(f"{path} is a link; a store has files of its own only.") from error
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise CorruptStoreError(f"{path} is neither a file nor a folder.")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.samefile(source, target):
            raise
    except OSError as error:
        # Another file system, or one without links: the caller copies.
        if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            return False
        raise
    return True
