"""Opening a table's log with the table library: what must hold before and after, and what its errors mean.

`tables` starts here. The library takes some damaged logs for older versions, panics in forked processes, and
its messages name no file; all of that is dealt with in this module.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from .errors import (
    CorruptStoreError,
    EpisodelakeError,
    FormatVersionError,
    StoreAccessError,
    VersionNotFoundError,
)
from .files import guard_access
from .log_sums import commit_fits, commit_name, commits_of, read_commit
from .places import Place

#: Colours in the messages of the table library.
_ESCAPES = re.compile("\x1b\\[[0-9;]*m")
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


def _check_log(path: Place) -> None:
    """Refuse what the table library takes for a table without its last commits."""
    log = path / "_delta_log"
    with guard_access("read", log):
        for folder in (path, log):
            if folder.local is not None and folder.local.is_symlink():
                raise CorruptStoreError(f"{folder} is a link; a store has folders of its own only.")
        try:
            names = log.names()
        except NotADirectoryError:
            names = []
        commits = [commit_name(version) for version in commits_of(names)]
        if not commits:
            raise CorruptStoreError(f"The table {path} is missing. Restore it from a copy of the store.")
        if path.local is None:
            return
        summed_up = max((name for name in names if ".checkpoint" in name), default="")[:20]
        empty = [name for name in commits if name[:20] >= summed_up and not (log / name).size()]
    if empty:
        raise CorruptStoreError(
            f"The log of the table {path} is damaged: {', '.join(sorted(empty))} is empty."
        )


def looked_again(look: Callable[[], _Found]) -> _Found:
    """What a look at the log finds; a folder that is listed beside commits may show a gap that is none."""
    for _ in range(_LOOKS - 1):
        try:
            return look()
        except DeltaError as error:
            if "gap" not in str(error):
                raise
            time.sleep(_PAUSE_SECONDS * (1 + random.random()))
    return look()


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
    """The table at a version, and whether that is the newest."""
    check_process()
    _check_log(path)
    try:
        opened = partial(DeltaTable, str(path), storage_options=path.options)
        newest = looked_again(opened)
        if version is None or version == newest.version():
            return newest, True
        if not 0 <= version <= newest.version():
            raise VersionNotFoundError(
                f"There is no version {version} of {path.parent}; there are 0 to {newest.version()}."
            )
        return looked_again(partial(opened, version=version)), False
    except (DeltaError, TableNotFoundError, OSError, ValueError) as error:
        if isinstance(error, VersionNotFoundError):
            raise
        raise log_error(path, error) from error


def log_error(path: Place, error: Exception) -> EpisodelakeError:
    """What to raise where the table library could not read a log: it is damaged, or out of reach."""
    told = _ESCAPES.sub("", str(error)).partition("\n")[0]
    if isinstance(error, PermissionError) or (path.local is None and isinstance(error, OSError)):
        return StoreAccessError(f"Could not read {path}: {told}. Check the connection.")
    where = _damaged_commit(path) or path / "_delta_log"
    return CorruptStoreError(
        f"The log of the table {path} cannot be read: {told}. Restore {where} from a copy."
    )


def _damaged_commit(path: Place) -> Place | None:
    """The first commit of a log that does not fit its sum, if there is one."""
    log = path / "_delta_log"
    with contextlib.suppress(OSError, CorruptStoreError):
        for version in commits_of(log.names()):
            data = read_commit(path, version, summed=False)
            if not commit_fits(path.name, version, data):
                return log / commit_name(version)
    return None
