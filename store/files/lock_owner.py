"""The owner of a lock: a process of a host, and whether `flock` on this host says if it lives.

`locks` writes an owner into the file of a lock, and reads there who holds it. Process ids prove nothing,
since containers count their own and systems use them again; `flock` ends with the last process that holds it.
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
        pid: the process, for messages.
        token: a name of this one acquisition.
        device: of the file, as the owner's kernel numbers it; each mount of a network file system has its
            own. 0 in locks of earlier versions.
        shared: whether the owner's lock reaches all hosts; false in locks of earlier versions.
    """

    host: str
    machine: str
    boot: str
    pid: int
    token: str
    device: int = 0
    shared: bool = False

    @staticmethod
    def of_this_process(path: Path, descriptor: int) -> Owner:
        """Return this process as the owner of an open file, with a new token."""
        shared = file_system(path.parent).shares_locks
        return Owner(*_this_host(), os.getpid(), secrets.token_hex(8), os.fstat(descriptor).st_dev, shared)

    @staticmethod
    def from_bytes(data: bytes) -> Owner | None:
        """Read the content of a lock, also of earlier versions; None if it names no owner."""
        try:
            content = json.loads(data)
            host, machine, boot = (str(content[name]) for name in ("host", "machine", "boot"))
            device, shared = int(content.get("device", 0)), content.get("shared") is True
            return Owner(host, machine, boot, int(content["pid"]), str(content["token"]), device, shared)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def to_bytes(self) -> bytes:
        """Return the content of the lock, always of one size."""
        return json.dumps(asdict(self)).encode().ljust(OWNER_BYTES - 1) + b"\n"

    def is_told_by_flock(self, path: Path) -> bool:
        """Return whether the owner has ended if `flock` grants its lock here.

        That holds for processes of this kernel that use the same mount, for those before its last start on a
        file system that no other kernel mounts, and for all hosts where their locks and ours reach each
        other.
        """
        host, machine, boot = _this_host()
        system = file_system(path.parent)
        if boot and self.boot == boot and self.device in (0, os.stat(path.parent).st_dev):
            return True
        same_host = (self.host, self.machine) == (host, machine)
        return (same_host and (system.is_local or not boot)) or (self.shared and system.shares_locks)

    def __str__(self) -> str:
        again = ", before it was started or mounted again," if self.host == _this_host()[0] else ""
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
