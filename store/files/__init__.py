"""Files of a store, in a folder of this machine or an object store, and the locks of local ones.

    access.py   errors of the system as ours; files replaced as a whole; calls that a system may lack
    place.py    `Place`, what the rest of the library needs of a file or folder
    locating.py `locate`, from a path, a URL or `memory://name` to its place
    local.py    a path of the file system; its locks, and how far they reach
    remote.py   `s3://`, `gs://`, `az://`, by obstore
    locks.py    `flock` on files that name their owner

Uses the errors only. Every package above it takes a `Place`; the journal alone is always local.
"""

from .access import (
    access_class,
    access_error,
    error_text,
    guard_access,
    is_absent,
    is_denied,
    is_passing,
    replacing,
    scratch,
    sync_open,
    sync_path,
    user_path,
)
from .locating import locate
from .place import Entry, Place, oversized_error

__all__ = [
    "Entry",
    "Place",
    "access_class",
    "access_error",
    "error_text",
    "guard_access",
    "is_absent",
    "is_denied",
    "is_passing",
    "locate",
    "oversized_error",
    "replacing",
    "scratch",
    "sync_open",
    "sync_path",
    "user_path",
]
