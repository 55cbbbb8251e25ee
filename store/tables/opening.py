"""Open a table's log with the table library, with checks before and after, and translate its errors.

`tables` starts here. The library takes some damaged logs for older versions, panics in forked processes, and
its messages name no file; all of that is dealt with in this module.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from ..errors import (
    CorruptStoreError,
    EpisodelakeError,
    FormatVersionError,
    StoreAccessError,
    VersionNotFoundError,
)
from ..files import guard_access
from ..places import Place, oversized_error
from .checksums import (
    HINT,
    LARGEST,
    commit_fits,
    commit_name,
    commits_of,
    first_version,
    read_commit,
    was_missing,
)

#: Colours in the messages of the table library.
_ESCAPES = re.compile("\x1b\\[[0-9;]*m")
#: The newest version of the Delta protocol for writers that Episodelake follows.
_WRITER_VERSION = 2
_APPEND_ONLY = "delta.appendOnly"
_CONSTRAINTS = "delta.constraints."
_LARGEST_HINT = 1 << 20
_PAUSE_SECONDS = 0.02
_LOOKS = 10
_Found = TypeVar("_Found")


def check_protocol(path: Place, delta: DeltaTable) -> None:
    """Refuse a table that another program gave features which readers of it must heed."""
    protocol = delta.protocol()
    if protocol.min_reader_version > 1 or delta.metadata().partition_columns:
        raise FormatVersionError(
            f"The table {path} needs version {protocol.min_reader_version} of the Delta protocol or has "
            "partitions: another program changed it. Episodelake reads version 1 without partitions."
        )


def check_writable(path: Place, delta: DeltaTable) -> None:
    """Refuse to write to a table that asks more of writers than Episodelake does.

    Version 2 of the protocol asks for two things besides: append-only tables and invariants.

    Raises:
        FormatVersionError: another program gave the table such features.
    """
    metadata = delta.metadata()
    asked = [name for name in metadata.configuration if name.startswith(_CONSTRAINTS)]
    if str(metadata.configuration.get(_APPEND_ONLY)).lower() == "true":
        asked.append(_APPEND_ONLY)
    for column in delta.schema().fields:
        asked += [f"{name} of {column.name!r}" for name in column.metadata if name.startswith("delta.")]
    check_writer_version(path, delta.protocol().min_writer_version, asked)


def check_writer_version(path: Place, version: int, features: Sequence[str] = ()) -> None:
    """Refuse to write to a table that needs a newer writer, or one that knows some features.

    Raises:
        FormatVersionError: it does.
    """
    if version > _WRITER_VERSION or features:
        named = f" with {', '.join(features)}" if features else ""
        raise FormatVersionError(
            f"The table {path} needs a writer of version {version} of the Delta protocol{named}: another "
            f"program changed it. Episodelake writes version {_WRITER_VERSION} without such features. To "
            "write, copy the episodes into a new store with EpisodeStore.copy."
        )


def _check_log(path: Place) -> int:
    """Refuse what the table library takes for a table without its last commits.

    Returns:
        The oldest version that the log still has.
    """
    log = path / "_delta_log"
    with guard_access("read", log):
        for folder in (path, log):
            if folder.local is not None and folder.local.is_symlink():
                raise CorruptStoreError(f"{folder} is a link; a store has folders of its own only.")
        # Listing objects tells their sizes; those of a folder's files are looked up one by one.
        sizes = {} if log.local is not None else {entry.name: entry.size for entry in log.entries()}
        try:
            names = log.names() if log.local is not None else sorted(sizes)
        except NotADirectoryError:
            names = []
        commits = {commit_name(version) for version in commits_of(names)}
        if not commits:
            raise CorruptStoreError(f"The table {path} is missing. Restore it from a copy of the store.")
        summed_up = max((name for name in names if ".checkpoint" in name), default="")[:20]
        for name in names:
            # The table library reads these files whole.
            if name >= summed_up and (name[:20].isdigit() or name == HINT):
                size = sizes[name] if name in sizes else (log / name).size()
                most = _LARGEST_HINT if name == HINT else LARGEST
                if size > most:
                    raise oversized_error(log / name, size, most)
                if not size and name in commits:
                    raise CorruptStoreError(f"The log of the table {path} is damaged: {name} is empty.")
        return first_version(names)


def retry_log_read(path: Place, look: Callable[[], _Found]) -> _Found:
    """Return what a look at a table's log finds; what others do meanwhile is no damage.

    A folder that is listed beside commits may show a gap that is none, and a file that was found may be
    cleaned before it is read.
    """
    for _ in range(_LOOKS - 1):
        try:
            return look()
        except (DeltaError, OSError, CorruptStoreError) as error:
            if "gap" not in str(error) and not _was_cleaned(path, error):
                raise
            time.sleep(_PAUSE_SECONDS * (1 + random.random()))
    return look()


def _was_cleaned(path: Place, error: Exception) -> bool:
    """Return whether what failed may have found a file gone that cleaning deleted meanwhile."""
    if isinstance(error.__cause__ or error, OSError) and not was_missing(error):
        return False
    with contextlib.suppress(OSError):
        return first_version((path / "_delta_log").names()) > 0
    return False


#: The process that has used the table library; its threads do not live on in a forked child.
_process: list[int] = []


def check_process() -> None:
    """Refuse to go on in a child that was forked from a process which has used a store.

    Raises:
        StoreAccessError: it was; the message says what to do instead.
    """
    if not _process:
        _process.append(os.getpid())
    if _process[0] != os.getpid():
        raise StoreAccessError(
            "This process was forked from one that has used a store, and threads that reading and writing "
            "need do not survive a fork. Start processes with multiprocessing.get_context('spawn') or "
            "'forkserver', and open the store in each."
        )


def open_delta(path: Place, version: int | None) -> tuple[DeltaTable, bool]:
    """Return the table at a version, and whether that is the newest."""
    check_process()
    return retry_log_read(path, partial(_open_delta, path, version))


def _open_delta(path: Place, version: int | None) -> tuple[DeltaTable, bool]:
    first = _check_log(path)
    try:
        opened = partial(DeltaTable, str(path), storage_options=path.options)
        newest = opened()
        if version is None or version == newest.version():
            return newest, True
        if not first <= version <= newest.version():
            cleaned = " Older ones were vacuumed." if 0 <= version < first else ""
            raise VersionNotFoundError(
                f"There is no version {version} of {path.parent}; there are {first} to "
                f"{newest.version()}.{cleaned}"
            )
        return opened(version=version), False
    except (DeltaError, TableNotFoundError, OSError, ValueError) as error:
        if isinstance(error, VersionNotFoundError):
            raise
        raise log_error(path, error) from error


def log_error(path: Place, error: Exception) -> EpisodelakeError:
    """Return what to raise where the table library could not read a log: it is damaged, or out of reach."""
    told = _ESCAPES.sub("", str(error)).partition("\n")[0]
    if isinstance(error, PermissionError) or (path.local is None and isinstance(error, OSError)):
        return StoreAccessError(f"Could not read {path}: {told}. Check the connection.")
    if "Kernel error: Unsupported" in told:
        return FormatVersionError(
            f"The table {path} has a feature that this version of Episodelake does not read: {told}. Another "
            "program changed it. Read it with that program, or restore the table from a copy."
        )
    where = _damaged_commit(path) or path / "_delta_log"
    return CorruptStoreError(
        f"The log of the table {path} cannot be read: {told}. Restore {where} from a copy."
    )


def _damaged_commit(path: Place) -> Place | None:
    """Return the first commit of a log whose checksum does not match, if there is one."""
    log = path / "_delta_log"
    with contextlib.suppress(OSError, CorruptStoreError):
        for version in commits_of(log.names()):
            data = read_commit(path, version, summed=False)
            if not commit_fits(path.name, version, data):
                return log / commit_name(version)
    return None
