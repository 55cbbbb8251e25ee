"""The file system of a folder, and how far its locks reach.

`locks` asks here. On a local file system one kernel sees every lock; some network file systems pass
locks on to all hosts. Of the others that is not certain, so a lock that is granted there proves nothing about
the processes of other hosts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

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
_SHARED = frozenset(("ceph", "lustre", "nfs", "nfs4"))
_LOCAL_LOCKS = frozenset(("nolock", "local_lock=all", "local_lock=flock", "localflock"))


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
        return self.kind in _SHARED and not _LOCAL_LOCKS.intersection(self.options)


def file_system(path: str | os.PathLike[str]) -> FileSystem:
    """Return the file system of a path; one of unknown type where the system does not list its mounts."""
    found = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return _mounted(found, os.stat(found).st_dev)
    return FileSystem("")


@functools.lru_cache(256)
def _mounted(path: str, device: int) -> FileSystem:
    best = FileSystem("")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        # A name may contain any other blank than these.
        for line in filter(None, os.fsdecode(_MOUNTS.read_bytes()).split("\n")):
            left, _, right = line.partition(" - ")
            before, after = left.split(" "), right.split(" ")
            folder = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before[4])
            # A later mount hides an earlier one on the same folder.
            inside = path == folder or path.startswith(folder.rstrip("/") + "/")
            if inside and len(folder) >= len(best.folder):
                options = {*before[5].split(","), *(after[2].split(",") if len(after) > 2 else ())}
                best = FileSystem(after[0], tuple(sorted(options)), folder)
    return best
