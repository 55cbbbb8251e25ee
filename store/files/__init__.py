"""Files of a store, in a folder of this machine or an object store, and the locks of local ones.

    access.py   errors of the system as ours; files replaced as a whole; calls that a system may lack
    paths.py    plain paths of this machine, with the same errors as places
    place.py    `Place`, what the rest of the library needs of a file or folder
    locating.py `locate`, from a path, a URL or `memory://name` to its place
    local.py    a path of the file system; its locks, and how far they reach
    remote.py   `s3://`, `gs://`, `az://`, by obstore
    locks.py    `flock` on files that name their owner
    visible.py  errors after the visible step of an operation, which are warnings

Uses the errors only. Every package above it takes a `Place`; the journal alone is always local.
"""

from ..errors import MissingFileError
from .access import (
    access_class,
    access_error,
    error_text,
    guard_access,
    is_denied,
    is_passing,
    replacing,
    scratch,
    sync_open,
    sync_path,
    touching,
    user_path,
)
from .locating import is_remote, locate, options_of, refuse_unused, unusable_part
from .paths import (
    exists,
    file_state,
    is_file,
    is_folder,
    is_link,
    make_folder,
    matching,
    names_in,
    read_file,
    real_path,
    remove_file,
    remove_tree,
    stat_or_none,
    temporary_folder,
    walk,
    write_file,
)
from .place import Entry, Place, oversized_error
from .visible import afterwards, is_visible, rename_durably, syncing, visible_step

__all__ = [
    "Entry",
    "MissingFileError",
    "Place",
    "access_class",
    "access_error",
    "afterwards",
    "error_text",
    "exists",
    "guard_access",
    "is_denied",
    "is_file",
    "is_folder",
    "is_link",
    "is_passing",
    "is_remote",
    "is_visible",
    "locate",
    "make_folder",
    "matching",
    "names_in",
    "options_of",
    "oversized_error",
    "read_file",
    "real_path",
    "refuse_unused",
    "remove_file",
    "remove_tree",
    "rename_durably",
    "replacing",
    "scratch",
    "stat_or_none",
    "file_state",
    "temporary_folder",
    "sync_open",
    "sync_path",
    "syncing",
    "touching",
    "unusable_part",
    "user_path",
    "visible_step",
    "walk",
    "write_file",
]
