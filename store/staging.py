"""Staging: what several machines write before one commit brings it into the store, in `.writing/NAME/`.

In a folder, the writer that will commit holds the lock `.writing/NAME.lock`, so `vacuum` knows what a killed
one left. Object stores have no locks: there a write lives while one of its files is young.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from pathlib import Path

from .errors import ConcurrentCommitError, StoreAccessError
from .files import Entry, Place
from .files.locks import LOCK_SUFFIX, FileLock, OtherHostError, holder
from .layout import STAGING, Layout


@contextmanager
def staging(layout: Layout, name: str, *, resume: bool = False) -> Iterator[Place]:
    """Yield the empty folder of a write, and delete it afterwards.

    Args:
        name: of the write; one process at a time has it.
        resume: keep what an interrupted write of this name left there, and after an error what is there.

    Raises:
        ConcurrentCommitError: another process has it.
        StoreAccessError: the folder cannot be made, or a process of a host whose locks do not reach this one
            may have it.
    """
    place = layout.root / STAGING / name
    with ExitStack() as stack:
        if place.local is not None:
            place.parent.make_folder()
            path = place.local.with_name(f"{name}{LOCK_SUFFIX}")
            try:
                lock = FileLock.acquire(path)
            except OtherHostError as error:
                raise StoreAccessError(
                    f"The write belongs to {error.owner}, whose locks do not reach this host, so it may "
                    f"still run. If it has ended, delete {path} and call again."
                ) from error
            if lock is None:
                raise ConcurrentCommitError(
                    f"Another process runs this write into {layout.root} now. Nothing was written here: wait "
                    "for its end and call again, or give this write a name of its own."
                )
            stack.callback(lock.release, remove=True)
            if not resume:
                clear(place)
            place.make_folder()
        if not resume:
            stack.callback(clear, place)
        yield place
        if resume:
            clear(place)


def clear(place: Place) -> None:
    """Delete the folder of a write, as far as that is possible; `vacuum` deletes the rest."""
    with suppress(OSError):
        if place.local is not None:
            shutil.rmtree(place.local, ignore_errors=True)
        else:
            for entry in list(place.entries(deep=True)):
                (place / entry.name).remove()


@contextmanager
def abandoned(layout: Layout, before: float, *, dry_run: bool) -> Iterator[list[Entry]]:
    """Yield the files of ended writes, relative to `.writing`; none can begin again meanwhile.

    Args:
        before: on an object store a write lives if it has a file from then or later; seconds since 1970.
        dry_run: take no locks.
    """
    root = layout.root / STAGING
    entries = sorted(root.entries(deep=True), key=_write_of)
    doomed: list[Entry] = []
    names: list[str] = []
    with ExitStack() as stack:
        for name, group in groupby(entries, _write_of):
            files = list(group)
            if root.local is None:
                ended = max(entry.modified for entry in files) < before
            else:
                path = root.local / f"{name}{LOCK_SUFFIX}"
                ended = not any(holder(path)) and (dry_run or _taken(path, stack))
            if ended:
                names.append(name)
                doomed += [entry for entry in files if not entry.name.endswith(LOCK_SUFFIX)]
        yield doomed
        if root.local is not None and not dry_run:
            for name in names:
                clear(root / name)


def _write_of(entry: Entry) -> str:
    return entry.name.partition("/")[0].removesuffix(LOCK_SUFFIX)


def _taken(path: Path, stack: ExitStack) -> bool:
    """Take the lock of a write; return whether that was possible."""
    lock = FileLock.acquire(path)
    if lock is not None:
        stack.callback(lock.release, remove=True)
    return lock is not None
