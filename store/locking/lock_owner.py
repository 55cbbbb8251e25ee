"""The owner of a lock: a process of a host, and whether it lives.

`locks` writes an owner into the file of a lock, and reads there who holds it.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from .file_systems import file_system

#: Bytes of the content of a lock's file.
OWNER_BYTES = 512


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock.

    Attributes:
        host, machine, boot: the host's name, its installation and its boot.
        namespace: of process ids, since containers count their own.
        pid, started: the process, and when it began in ticks since the boot.
        inode: of the lock's file; a copy of it, whose process may live, has another.
        token: a name of this one acquisition.
    """

    host: str
    machine: str
    boot: str
    namespace: str
    pid: int
    started: int
    inode: int
    token: str

    @staticmethod
    def of_this_process(descriptor: int) -> Owner:
        """Return this process as the owner of an open file, with a new token."""
        pid = os.getpid()
        return Owner(
            *_this_host(), _namespace(), pid, _started(pid), os.fstat(descriptor).st_ino, secrets.token_hex(8)
        )

    @staticmethod
    def from_bytes(data: bytes) -> Owner | None:
        """Read the content of a lock; None if it names no owner."""
        try:
            content = json.loads(data)
            names = Owner.__dataclass_fields__
            return Owner(*(type(getattr(_UNKNOWN, name))(content[name]) for name in names))
        except (ValueError, TypeError, KeyError):
            return None

    def to_bytes(self, beat: int) -> bytes:
        """Return the content of the lock, always of one size."""
        return json.dumps({**asdict(self), "beat": beat}).encode().ljust(OWNER_BYTES - 1) + b"\n"

    @property
    def shares_processes(self) -> bool:
        """Whether this process sees the owner's process, if that lives."""
        here = _this_host()
        return bool(self.boot) and (self.boot, self.namespace) == (here[2], _namespace())

    def is_running(self, inode: int) -> bool:
        """Return whether the owner's process runs and has this file; meaningful only if
        `shares_processes`.
        """
        here = inode == self.inode and self.pid != os.getpid()
        return here and self.started != 0 and _started(self.pid) == self.started

    def is_told_by_flock(self, path: Path) -> bool:
        """Return whether `flock`, taken on this host, reaches the owner."""
        here = _this_host()
        if self.shares_processes or (not here[2] and self.host == here[0]):
            return True
        same_host = self.boot == here[2] or (self.host, self.machine) == here[:2]
        return same_host and file_system(path.parent).is_local


_UNKNOWN = Owner("", "", "", "", 0, 0, 0, "")


@functools.cache
def _this_host() -> tuple[str, str, str]:
    machine = _text("/etc/machine-id")
    return platform.node()[:64], machine[:64], _text("/proc/sys/kernel/random/boot_id")[:64]


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> int:
    """Return when a process began, in ticks since the boot; 0 if it has ended or that is unknown."""
    # The name of the program, in parentheses, may contain anything.
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0
