"""Calls of the operating system that Windows or macOS lack, file locks and how far they reach among them.

Reading works without them. Writing to a folder, and mapping a cache, need `flock`; where it is missing they
raise a `StoreAccessError`. See docs/decisions/053-platforms.md.

On a local file system one kernel sees every lock; some network file systems pass locks on to all hosts. Of
the others that is not certain, so a lock that is granted there proves nothing about the processes of other
hosts.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import StoreAccessError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Kinds of locks; the same numbers wherever `flock` exists.
_SHARED, _EXCLUSIVE, _AT_ONCE = 1, 2, 4
_POLL_SECONDS = 0.02
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_PLAIN: int = _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_ZEROS = bytes(1 << 20)
_MOUNTS = Path("/proc/self/mountinfo")
#: How the kernel writes blanks and backslashes in names of folders.
_ESCAPED = re.compile(r"\\([0-7]{3})")
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
            "Writing to a folder, and cache='mmap', need file locks (flock), which this system has not. "
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


def state_of(path: str | os.PathLike[str], *, follow: bool = True) -> os.stat_result | None:
    """Return the state of a path; None if nothing is there.

    The `exists` and `is_dir` of Python take each error for "no", depending on its version.

    Raises:
        OSError: the system cannot tell.
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def is_folder(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    """Return whether a path is a folder, or a link to one; raises as `state_of`."""
    state = state_of(path, follow=follow)
    return state is not None and stat.S_ISDIR(state.st_mode)


def is_file(path: str | os.PathLike[str], *, follow: bool = True) -> bool:
    """Return whether a path is a file, or a link to one; raises as `state_of`."""
    state = state_of(path, follow=follow)
    return state is not None and stat.S_ISREG(state.st_mode)


def is_link(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a link; raises as `state_of`."""
    state = state_of(path, follow=False)
    return state is not None and stat.S_ISLNK(state.st_mode)


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file without following a link or waiting for a pipe; like `os.open`.

    Raises:
        OSError: among others with `ELOOP` for a link.
    """
    if not _NOFOLLOW and is_link(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return os.open(path, flags | _PLAIN, mode)


def _pread(descriptor: int, count: int, start: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, count)


#: Without `os.pread` the descriptor belongs to one thread.
_read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _pread)


def pread(descriptor: int, count: int, start: int) -> bytes:
    """Read from a place in a file; fewer bytes than asked for only at its end."""
    data = _read_at(descriptor, count, start)
    if len(data) in (0, count):
        return data
    parts = [data]
    while data and (left := count - sum(map(len, parts))):
        data = _read_at(descriptor, left, start + count - left)
        parts.append(data)
    return b"".join(parts)


def allocate(descriptor: int, size: int) -> None:
    """Take room on the disk for the first `size` bytes of a new file.

    Raises:
        OSError: the disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS: a file with a hole would not reserve anything.
    left = size
    while left:
        left -= os.write(descriptor, _ZEROS[:left])


@dataclass(frozen=True)
class FileSystem:
    """A mounted file system.

    Attributes:
        kind: its type, such as "ext4" or "nfs4"; empty if it is unknown.
        options: of the mount.
        folder: where it is mounted.
    """

    kind: str
    options: tuple[str, ...] = ()
    folder: str = ""

    @property
    def is_local(self) -> bool:
        """Whether this kernel alone has it mounted, so that it sees every lock."""
        return self.kind in _LOCAL

    @property
    def shares_locks(self) -> bool:
        """Whether its locks are known to reach all hosts that mount it like this one."""
        return self.kind in _SHARING and not _LOCAL_LOCKS.intersection(self.options)


def file_system(path: str | os.PathLike[str]) -> FileSystem:
    """Return the file system of a path; one of unknown type where the system does not list its mounts."""
    real = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return _mounted(real, os.stat(real).st_dev)
    return FileSystem("")


@functools.lru_cache(256)
def _mounted(path: str, device: int) -> FileSystem:
    best = FileSystem("")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        # A name may contain any other blank than these.
        for line in filter(None, os.fsdecode(_MOUNTS.read_bytes()).split("\n")):
            left, _, right = line.partition(" - ")
            before, after = left.split(" "), right.split(" ")
            folder = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before[4])
            # A later mount hides an earlier one on the same folder.
            inside = path == folder or path.startswith(folder.rstrip("/") + "/")
            if inside and len(folder) >= len(best.folder):
                options = {*before[5].split(","), *(after[2].split(",") if len(after) > 2 else ())}
                best = FileSystem(after[0], tuple(sorted(options)), folder)
    return best
