"""The file system of a folder, and whether its locks reach the other hosts that share it.

`locks` asks here. On a local file system one kernel sees every lock. Of a network file system that is not
certain, so there a lock that is granted does not prove that its owner is dead; and where the mount options
state that locks stay on this host, the user is warned.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import warnings
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
#: Options of a mount that keep its locks on this host.
_LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl")
#: File systems in user space that pass no lock on.
_WITHOUT_LOCKS = frozenset(
    f"fuse.{name}"
    for name in ("sshfs", "rclone", "s3fs", "gcsfuse", "goofys", "mountpoint-s3", "blobfuse", "blobfuse2")
)


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
    def problem(self) -> str | None:
        """The reason why locks on it do not reach other hosts; None if they do, or if that is unknown."""
        for option in _LOCAL_LOCKS:
            if option in self.options and not self.is_local:
                return f"it is mounted with the option {option}"
        return "it passes no locks on" if self.kind in _WITHOUT_LOCKS else None


def file_system(path: str | os.PathLike[str]) -> FileSystem:
    """Return the file system of a path; one of unknown type where the system does not list its mounts."""
    found = os.path.realpath(path)
    with contextlib.suppress(OSError):
        return _mounted(found, os.stat(found).st_dev)
    return FileSystem("")


@functools.lru_cache(256)
def _mounted(path: str, device: int) -> FileSystem:
    best = FileSystem("")
    with contextlib.suppress(OSError):
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


def warn_of_local_locks(folder: Path) -> None:
    """Warn, once per mount and process, if locks in a folder do not reach the hosts that share it."""
    system = file_system(folder)
    if system.problem is not None:
        _warn(system)


@functools.cache
def _warn(system: FileSystem) -> None:
    warnings.warn(
        f"Locks on the file system at {system.folder} ({system.kind}) do not reach other hosts: "
        f"{system.problem}. Write to its stores from one host at a time, or mount it with working locks; "
        "until then a writer on another host counts as dead only when its lock shows no heartbeat.",
        RuntimeWarning,
        stacklevel=6,
    )
