"""Locks of a local store: `flock` on a file, whose content names the owner and counts its heartbeats.

The journal of each writer and maintenance are held under such locks. The operating system drops a lock when
its owner ends in whatever way. Where hosts share a file system whose locks do not reach from one to the
other, `flock` grants what a live writer elsewhere holds; there the content decides:

- no content: `flock` alone decides, as in stores of earlier versions;
- an owner on this host: it is dead unless its process lives;
- an owner on another host: it is dead if its heartbeat is old by the file server's clock and then does not
  change while we watch it. No two clocks are compared.

One thread per process writes the heartbeats of all the locks that the process holds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from ..errors import CorruptStoreError, StoreAccessError
from ..files import guard_access
from ..system import check_locks, has_locks, has_name, open_plain, pread, try_lock
from .file_systems import file_system, warn_of_local_locks
from .lock_owner import OWNER_BYTES, Owner

LOCK_SUFFIX = ".lock"
MAINTENANCE_LOCK = "maintenance.lock"
#: How often an owner shows that it lives.
BEAT_SECONDS = 5.0
#: An owner on another host whose last heartbeat is younger is left alone without watching it.
STALE_SECONDS = 60.0
#: How long an older heartbeat is watched before its owner counts as dead.
WATCH_SECONDS = 20.0
#: How long two hosts that take the same lock wait to see which of them has it.
SETTLE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_MODE = 0o666
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_PROBE = re.compile(r"\.clock-[0-9a-f]{16}\.tmp")


class FileLock:
    """Exclusive ownership of a lock's file, for as long as this process lives; see `acquire`.

    Attributes:
        path: the file.
        doubted: whether another host's process may hold the lock too; `watch` finds out.
        taken_over: whether it was taken from another host's process that showed no life.
    """

    _descriptor = -1

    def __init__(self, path: Path, descriptor: int, *, writable: bool, doubted: bool) -> None:
        self.path = path
        self.doubted = doubted
        self.taken_over = False
        self._writable = writable
        self._owner = Owner.of_this_process(descriptor)
        self._beats = 0
        self._local = file_system(path.parent).is_local
        self._seen: tuple[int, int, int, int] | None = None
        # Held while the descriptor is used by the thread of the heartbeats.
        self._using = threading.Lock()
        # The caller closes it if anything above is interrupted.
        self._descriptor = descriptor

    @staticmethod
    def acquire(path: Path, *, read_only: bool = False) -> FileLock | None:
        """Take a lock; None if a live process, of this host or another, holds it.

        Args:
            path: its file; it is created if it is missing.
            read_only: be content with a file that may only be read, which can have no heartbeat.

        Raises:
            CorruptStoreError: the file is a link or not a file.
            StoreAccessError: it cannot be made, opened or locked.
        """
        key = os.path.realpath(path)
        warn_of_local_locks(path.parent)
        lock = None
        try:
            with _guard:
                if key in _held:
                    return None
                descriptor, writable = _opened(path)
                try:
                    if _locked(path, descriptor):
                        with guard_access("take the lock", path):
                            if not (writable or read_only):
                                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
                        lock = _judged(path, descriptor, writable=writable)
                finally:
                    if lock is None:
                        os.close(descriptor)
                if lock is None:
                    return None
                _held[key] = lock
            if not lock.doubted:
                lock._begin()
            return lock
        except BaseException:
            # The traceback keeps it alive, perhaps until the caller has tried again.
            if lock is not None:
                lock._drop()
            raise

    def is_ours(self) -> bool:
        """Return whether the file is still there and names no other owner.

        On a local file system a look at its state is enough while that does not change. Elsewhere the file is
        opened anew each time: network file systems ask the server only then.
        """
        try:
            if self._local and _mark(os.lstat(self.path)) == self._seen:
                return True
            token, _, found = self._sight()
            mine = token is None and os.path.samestat(found, os.fstat(self._descriptor))
            self._seen = _mark(found) if mine or token == self._owner.token else None
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP, errno.EBADF)
        return mine or token == self._owner.token

    def release(self, *, remove: bool) -> None:
        """Release the lock; a second call does nothing.

        Args:
            remove: remove the file; it stays if another process has taken the lock over.

        Raises:
            StoreAccessError: the file cannot be removed; the lock is still held, so call again.
        """
        key = os.path.realpath(self.path)
        with _guard:
            if _held.get(key) is not self:
                return
            with self._using, guard_access("remove the lock", self.path):
                mine = self.doubted is False and (not self._writable or self.is_ours())
                if mine and remove:
                    self.path.unlink(missing_ok=True)
                elif mine and self._writable:
                    os.ftruncate(self._descriptor, 0)
                del _held[key]
                self._close()
            _wake.notify_all()

    def _drop(self) -> None:
        """Release the lock after an interrupt, at whatever line that came."""
        with _guard:
            if _held.get(key := os.path.realpath(self.path)) is self:
                del _held[key]
            self.__del__()
            _wake.notify_all()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        """Release a lock that was dropped; takes no other lock, since it may run at any moment."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                if self._writable and not self.doubted and self.is_ours():
                    os.ftruncate(self._descriptor, 0)
            self._close()

    def _begin(self) -> None:
        """Name this process as the owner, and keep the heartbeat going."""
        if self._writable:
            self._beat(first=True)
        _start_beating()

    def _beat(self, *, first: bool = False) -> None:
        """Count one heartbeat more, unless the lock is no longer ours."""
        with self._using, contextlib.suppress(OSError):
            if self._descriptor < 0 or not self._writable or self.doubted:
                return
            if first or self.is_ours():
                self._beats += 1
                os.pwrite(self._descriptor, self._owner.to_bytes(self._beats), 0)
                if not self._local:
                    os.fsync(self._descriptor)

    def _sight(self) -> tuple[str | None, bytes, os.stat_result]:
        """Return token, content and state of the file, as another process sees it now."""
        descriptor = open_plain(self.path)
        try:
            content = pread(descriptor, OWNER_BYTES, 0)
            owner = Owner.from_bytes(content)
            return (None if owner is None else owner.token, content, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _heartbeat(self) -> tuple[bytes, int, int] | None:
        """Return a value that changes with each heartbeat; None without a file."""
        try:
            _, content, state = self._sight()
        except OSError:
            return None
        return content, state.st_mtime_ns, state.st_ino


def _mark(state: os.stat_result) -> tuple[int, int, int, int]:
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def wait_for(path: Path, seconds: float, *, read_only: bool = False) -> FileLock | None:
    """Take a lock, waiting for it; None if another process holds it all the time.

    Raises:
        CorruptStoreError, StoreAccessError: see `FileLock.acquire`.
    """
    # Asked again and again instead of waiting: some libraries have the system call go on after Ctrl-C.
    until = time.monotonic() + seconds
    lock = None
    try:
        while True:
            lock = FileLock.acquire(path, read_only=read_only)
            if lock is not None and lock.doubted:
                watch([lock])
                if lock.doubted:
                    lock.release(remove=False)
                    lock = None
            if lock is not None or time.monotonic() >= until:
                return lock
            time.sleep(_POLL_SECONDS)
    except BaseException:
        if lock is not None:
            lock._drop()
        raise


def watch(locks: Sequence[FileLock]) -> None:
    """Watch doubted locks for a while, and take those whose owners show no life.

    Blocks for about `WATCH_SECONDS`, or until all owners have shown life. A lock stays doubted if its owner
    lives, or if another host took it meanwhile; release it.
    """
    silent = {lock: lock._heartbeat() for lock in locks if lock.doubted}
    until = time.monotonic() + WATCH_SECONDS
    while silent and time.monotonic() < until:
        time.sleep(min(_POLL_SECONDS, WATCH_SECONDS))
        silent = {lock: seen for lock, seen in silent.items() if lock._heartbeat() == seen}
    for lock in silent:
        lock.doubted = False
        lock.taken_over = True
        lock._begin()
    if silent:
        time.sleep(SETTLE_SECONDS)
    for lock in silent:
        lock.doubted = lock._writable and not lock.is_ours()


def is_held(path: Path) -> bool:
    """Return whether a live process holds a lock, without changing it; an unreadable lock counts as held."""
    with guard_access("look at the lock", path):
        try:
            descriptor = open_plain(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return True
            if error.errno == errno.ELOOP:
                return False
            raise
        try:
            # Shared, so that two who look do not take each other for an owner.
            if has_locks() and not try_lock(descriptor, shared=True):
                return True
            owner = Owner.from_bytes(pread(descriptor, OWNER_BYTES, 0))
            state = os.fstat(descriptor)
            age = time.time() - state.st_mtime
        finally:
            os.close(descriptor)
    if owner is None:
        return False
    if owner.shares_processes:
        return owner.is_running(state.st_ino)
    return not owner.is_told_by_flock(path) and age <= STALE_SECONDS


def is_lock_content(path: Path) -> bool:
    """Return whether a file has the content of a lock: none, or an owner."""
    try:
        descriptor = open_plain(path)
    except OSError:
        return False
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > OWNER_BYTES:
            return False
        return state.st_size == 0 or Owner.from_bytes(pread(descriptor, OWNER_BYTES, 0)) is not None
    finally:
        os.close(descriptor)


def remove_probe(path: Path) -> None:
    """Remove a file that a process left which was killed while it looked at the file server's clock."""
    if _PROBE.fullmatch(path.name):
        with contextlib.suppress(OSError):
            path.unlink()


def _opened(path: Path) -> tuple[int, bool]:
    """Open a lock's file, and return whether it may be written."""
    check_locks()
    with guard_access("take the lock", path):
        try:
            try:
                descriptor, writable = open_plain(path, os.O_RDWR | os.O_CREAT, _MODE), True
            except PermissionError:
                if not os.path.lexists(path):
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
        raise


def _judged(path: Path, descriptor: int, *, writable: bool) -> FileLock | None:
    """Return the lock that `flock` has granted, unless its owner lives all the same."""
    owner = Owner.from_bytes(pread(descriptor, OWNER_BYTES, 0))
    running = owner is not None and owner.shares_processes and owner.is_running(os.fstat(descriptor).st_ino)
    if owner is None or (owner.is_told_by_flock(path) and not running):
        return FileLock(path, descriptor, writable=writable, doubted=False)
    if owner.shares_processes or 0 <= _age(path, descriptor) <= STALE_SECONDS:
        return None
    return FileLock(path, descriptor, writable=writable, doubted=True)


def _age(path: Path, descriptor: int) -> float:
    """Return seconds since the last heartbeat by the clock that stamps files; negative if that is unknown."""
    probe = path.with_name(f".clock-{secrets.token_hex(8)}.tmp")
    try:
        made = open_plain(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    except OSError:
        return -1.0
    try:
        return os.fstat(made).st_mtime - os.fstat(descriptor).st_mtime
    finally:
        os.close(made)
        probe.unlink(missing_ok=True)


# Heartbeats

# Weak: a lock that an interrupt separated from its user is released with the object.
_held: weakref.WeakValueDictionary[str, FileLock] = weakref.WeakValueDictionary()
_guard = threading.Lock()
_wake = threading.Condition(_guard)
_beating: list[threading.Thread] = []


def _start_beating() -> None:
    with _guard:
        if not _beating:
            thread = threading.Thread(target=_keep_beating, name="episodelake locks", daemon=True)
            _beating.append(thread)
            thread.start()


def _keep_beating() -> None:
    """Run in a thread for as long as this process holds a lock."""
    while True:
        with _wake:
            until = time.monotonic() + BEAT_SECONDS
            while _held and (left := until - time.monotonic()) > 0:
                _wake.wait(left)
            if not _held:
                _beating.clear()
                return
            locks = list(_held.values())
        while locks:
            locks.pop()._beat()


def _forget_in_child() -> None:
    """Close the locks in a forked child, which shares none of them."""
    global _guard, _wake
    for lock in _held.values():
        lock._close()
    _held.clear()
    _beating.clear()
    _guard = threading.Lock()
    _wake = threading.Condition(_guard)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
