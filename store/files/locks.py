"""Locks of a local store: `flock` on a file, whose content names the owner.

The journal of each writer and maintenance are held under such locks. The operating system drops a lock when
its owner ends in whatever way. Where hosts share a file system whose locks do not reach from one to the
other, `flock` grants what a live process elsewhere holds. A lock whose content names such an owner is
therefore refused, unless the user says that no other host uses the store.

Process ids prove nothing, since containers count their own and systems use them again; `flock` ends with the
last process that holds it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import platform
import secrets
import stat
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import CorruptStoreError, StoreAccessError
from .access import access_error, guard_access, is_denied, pread
from .local import check_locks, has_locks, has_name, is_local, shares_locks, try_lock
from .paths import open_plain, stat_or_none

LOCK_SUFFIX = ".lock"
MAINTENANCE_LOCK = "maintenance.lock"
_POLL_SECONDS = 0.02
_MODE = 0o666
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
#: Bytes of the content of a lock's file.
OWNER_BYTES = 512


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock.

    Attributes:
        host, machine, boot: the host's name, its installation and its boot.
        pid: the process, for messages.
        token: a name of this one acquisition.
        shared: whether the owner's lock reaches all hosts; false in locks of earlier versions.
    """

    host: str
    machine: str
    boot: str
    pid: int
    token: str
    shared: bool = False

    @staticmethod
    def of_this_process(path: Path) -> Owner:
        """Return this process as the owner of a lock's file, with a new token."""
        return Owner(*_this_host(), os.getpid(), secrets.token_hex(8), shares_locks(path.parent))

    @staticmethod
    def from_bytes(data: bytes) -> Owner | None:
        """Read the content of a lock, also of earlier versions; None if it names no owner."""
        try:
            content = json.loads(data)
            host, machine, boot = (str(content[name]) for name in ("host", "machine", "boot"))
            shared = content.get("shared") is True
            return Owner(host, machine, boot, int(content["pid"]), str(content["token"]), shared)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def to_bytes(self) -> bytes:
        """Return the content of the lock, always of one size."""
        return json.dumps(asdict(self)).encode().ljust(OWNER_BYTES - 1) + b"\n"

    def is_judged_by_flock(self, path: Path) -> bool:
        """Return whether the owner has ended if `flock` grants its lock here.

        That holds for processes of this kernel, for those of this machine before its last start, and for all
        hosts where their locks and ours reach each other.
        """
        host, machine, boot = _this_host()
        if self.boot == boot != "":
            return True
        if (self.host, self.machine) == (host, machine):
            # Containers of several hosts may have one name, and no machine id.
            return machine != "" or boot == "" or is_local(path.parent)
        return self.shared and shares_locks(path.parent)

    def __str__(self) -> str:
        again = ", before it was started again," if self.host == _this_host()[0] else ""
        return f"the process {self.pid} of the host {self.host!r}{again}"


@functools.cache
def _this_host() -> tuple[str, str, str]:
    machine = _text("/etc/machine-id")
    return platform.node()[:64], machine[:64], _text("/proc/sys/kernel/random/boot_id")[:64]


def _text(path: str) -> str:
    """Return the text of a file, empty where there is none; a host without a name counts as another host."""
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""


class OtherHostError(StoreAccessError):
    """A lock names an owner on a host whose locks do not reach this one.

    Args:
        problem: what belongs to the owner, as the beginning of a sentence.
        owner: the owner.
    """

    def __init__(self, problem: str, owner: Owner) -> None:
        self.owner = owner
        super().__init__(
            f"{problem} {owner}, whose locks do not reach this host, so it may still run. If it has ended, "
            "call episodelake.recover(path, other_hosts=True) or `episodelake recover --other-hosts`."
        )


class FileLock:
    """Exclusive ownership of a lock's file, for as long as this process lives; see `acquire`.

    Attributes:
        path: the file.
    """

    _descriptor = -1
    _writable = False
    _token = ""

    def __init__(self, path: Path) -> None:
        self.path = path
        _locks.add(self)

    @staticmethod
    def acquire(path: Path, *, read_only: bool = False, other_hosts: bool = False) -> FileLock | None:
        """Take a lock; None if a live process holds it.

        Args:
            path: its file; it is created if it is missing.
            read_only: be content with a file that may only be read, which cannot name this process.
            other_hosts: take it also from a process of a host whose locks do not reach this one.

        Raises:
            CorruptStoreError: the file is a link or not a file.
            OtherHostError: such a process may hold it.
            StoreAccessError: it cannot be made, opened or locked.
        """
        lock = FileLock(path)
        try:
            if lock._take(read_only, other_hosts):
                return lock
            lock._close()
        except BaseException:
            # The traceback keeps it alive, perhaps until the caller has tried again.
            lock._close()
            raise
        return None

    @staticmethod
    def wait_for(
        path: Path, seconds: float, *, read_only: bool = False, other_hosts: bool = False
    ) -> FileLock | None:
        """Take a lock, waiting for it; None if another process holds it all the time.

        Raises:
            CorruptStoreError, StoreAccessError: see `FileLock.acquire`.
        """
        # Asked again and again instead of waiting: some libraries have the system call go on after Ctrl-C.
        until = time.monotonic() + seconds
        lock = None
        try:
            while (lock := FileLock.acquire(path, read_only=read_only, other_hosts=other_hosts)) is None:
                if time.monotonic() >= until:
                    break
                time.sleep(_POLL_SECONDS)
            return lock
        except BaseException:
            # The traceback of an interrupt would keep the lock.
            if lock is not None:
                lock._close()
            raise

    def _take(self, read_only: bool, other_hosts: bool) -> bool:
        self._descriptor, self._writable = _opened(self.path)
        if not _locked(self.path, self._descriptor):
            return False
        with guard_access("take the lock", self.path):
            if not (self._writable or read_only):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
            owner = Owner.from_bytes(pread(self._descriptor, OWNER_BYTES, 0))
            if owner is not None and not other_hosts and not owner.is_judged_by_flock(self.path):
                raise OtherHostError(f"The lock {self.path} belongs to", owner)
            if self._writable:
                self._name_owner()
        return True

    def _name_owner(self) -> None:
        owner, local = Owner.of_this_process(self.path), is_local(self.path.parent)
        try:
            os.pwrite(self._descriptor, owner.to_bytes(), 0)
            if not local:
                os.fsync(self._descriptor)
        except OSError:
            # The disk is full, say. Processes of this host need no name.
            os.ftruncate(self._descriptor, 0)
            if not local:
                raise
        self._token = owner.token

    def is_ours(self) -> bool:
        """Return whether the file is still there and names no other owner.

        A file that cannot be read for now, for example with a stale handle (ESTALE), still counts as ours.
        """
        try:
            # Opened anew each time: network file systems ask the server only then.
            descriptor = open_plain(self.path)
            try:
                owner = Owner.from_bytes(pread(descriptor, OWNER_BYTES, 0))
                if owner is not None:
                    return owner.token == self._token
                return os.path.samestat(os.fstat(descriptor), os.fstat(self._descriptor))
            finally:
                os.close(descriptor)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EBADF)

    def release(self, *, remove: bool) -> None:
        """Release the lock; a second call does nothing.

        Args:
            remove: remove the file; it stays if another process has taken the lock over. If the system
                refuses, it stays too, and the next owner of the lock removes it.
        """
        if self._descriptor >= 0:
            if not self._writable or self.is_ours():
                # What the lock was for is done, and a file that stays holds no lock.
                with contextlib.suppress(OSError):
                    if remove:
                        self.path.unlink(missing_ok=True)
                # If its name is still there, or is not removed, it must name no owner that has ended.
                with contextlib.suppress(OSError):
                    if self._writable:
                        os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        """Release a lock that was dropped, even if an interrupt comes between."""
        try:
            self.release(remove=False)
        finally:
            self._close()


def holder(path: Path) -> tuple[bool, Owner | None]:
    """Look at a lock without changing it.

    Returns:
        Whether a live process holds it, as far as `flock` shows; one that cannot be read counts as held. If
        not, the owner on a host whose locks do not reach this one; None if there is none.
    """
    with guard_access("look at the lock", path):
        try:
            descriptor = open_plain(path)
        except FileNotFoundError:
            return False, None
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
                return error.errno != errno.ELOOP, None
            raise
        try:
            # Shared, so that two who look do not take each other for an owner.
            if has_locks() and not try_lock(descriptor, shared=True):
                return True, None
            owner = Owner.from_bytes(pread(descriptor, OWNER_BYTES, 0))
        finally:
            os.close(descriptor)
        return False, None if owner is None or owner.is_judged_by_flock(path) else owner


def is_stray_lock(path: Path) -> bool:
    """Return whether a file without a journal is a lock that its owner, if it has one, no longer needs.

    A writer makes its lock before its journal.
    """
    try:
        descriptor = open_plain(path)
    except OSError:
        return False
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > OWNER_BYTES:
            return False
        owner = Owner.from_bytes(pread(descriptor, OWNER_BYTES, 0))
    finally:
        os.close(descriptor)
    return state.st_size == 0 if owner is None else owner.is_judged_by_flock(path)


def _opened(path: Path) -> tuple[int, bool]:
    """Open a lock's file, and return whether it may be written."""
    check_locks()
    with guard_access("take the lock", path):
        try:
            try:
                descriptor, writable = open_plain(path, os.O_RDWR | os.O_CREAT, _MODE), True
            except StoreAccessError as error:
                if not is_denied(error) or stat_or_none(path, follow=False) is None:
                    raise
                descriptor, writable = open_plain(path), False
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptStoreError(
                    f"The lock {path} is a link, which may lead out of the store. Remove it."
                ) from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CorruptStoreError(f"The lock {path} is not a file. Remove it.")
    return descriptor, writable


def _locked(path: Path, descriptor: int) -> bool:
    """Lock an open file; False if it is locked, or was removed by its owner between opening and locking."""
    try:
        return try_lock(descriptor) and has_name(descriptor, path)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise StoreAccessError(
                f"Could not lock {path}: the file system has no locks ({error.strerror}). A store needs them "
                "for writing: mount the file system with locks, or choose another folder."
            ) from error
        raise access_error(f"Could not lock {path}", error, path) from error


#: Weak: a lock that an interrupt separated from its user is released with the object.
_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close the locks in a forked child, which shares none of them."""
    for lock in list(_locks):
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
