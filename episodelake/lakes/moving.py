"""Rename stores of a lake, and move them to its trash.

A local store moves in one step. On an object store its objects are copied, `store.json` last, and then
deleted at the old place, `store.json` first: readers see the store at one place or at both, never half of it.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..store.errors import InvalidArgumentError, StoreExistsError, StoreNotFoundError, StoreUnavailableError
from ..store.files import Place, guard_access
from ..store.files.access import is_link
from ..store.files.locks import MAINTENANCE_LOCK, FileLock, is_held, other_host
from ..store.journal.run_journal import check_journals, journal_folders, lock_path
from ..store.layout import JOURNAL, MANIFEST, STAGING, Layout
from ..store.manifest import UNFINISHED

#: Below the root of a lake: deleted stores, each in a folder of its own.
TRASH = ".trash"


def move(source: Layout, target: Place) -> None:
    """Move a store, or what is left of one, to a place where nothing is.

    Args:
        source: the store's; with its identity if it can be read, so that its journals are known.
        target: its new place.

    Raises:
        StoreNotFoundError: it is gone.
        StoreExistsError: something was created at the target meanwhile.
        StoreUnavailableError: a process writes to it, or maintains it; nothing was moved.
        StoreAccessError: the system refused; on an object store, call again.
    """
    with _unused(source), guard_access("move the store", source.root):
        if source.root.local is None or target.local is None:
            _move_objects(source.root, target)
            return
        target.parent.make_folder()
        try:
            source.root.local.rename(target.local)
        except FileNotFoundError as error:
            raise _gone(source.root) from error
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise _taken(target) from error
        try:
            # The journal of a writer that began after the first look came along.
            _check_idle(source.root, journal_folders(target.local / JOURNAL))
        except BaseException:
            target.local.rename(source.root.local)
            raise
        for folder in (target.parent, source.root.parent):
            folder.sync()


@contextlib.contextmanager
def _unused(store: Layout) -> Iterator[None]:
    """Hold the lock of a store's maintenance while nothing else uses the store.

    Raises:
        StoreUnavailableError: a writer lives, or an operation of maintenance is at work; on an object store,
            also if a writer died on this machine, whose journal would lose its store.
    """
    for folder in store.journal_places:
        check_journals(folder)
    journals = journal_folders(*store.journal_places)
    _check_idle(store.root, journals)
    if journals and store.root.local is None:
        raise StoreUnavailableError(
            f"{store.root} has the journal of the run {journals[0].name!r} on this machine, whose episodes "
            "are not in it yet. Nothing was moved. Call episodelake.recover first."
        )
    if not store.journals.is_dir():
        yield
        return
    lock = FileLock.acquire(store.journals / MAINTENANCE_LOCK)
    if lock is None:
        raise StoreUnavailableError(
            f"{store.root} is being maintained by another process. Nothing was moved. Call again when that "
            "has ended."
        )
    try:
        yield
    finally:
        lock.release(remove=False)


def _check_idle(place: Place, journals: Sequence[Path]) -> None:
    live = [each.name for each in journals if is_held(lock_path(each)) or other_host(lock_path(each))]
    if live:
        raise StoreUnavailableError(
            f"{place} is being written: the run {live[0]!r} is live. Nothing was moved. Close its writer and "
            "call again."
        )


def _move_objects(source: Place, target: Place) -> None:
    listed = sorted(source.entries(deep=True), key=lambda entry: entry.name == MANIFEST)
    if not listed:
        raise _gone(source)
    claim = target / UNFINISHED
    try:
        # Before the first copy: of several stores that move to one name, one overwrites nothing of another.
        claim.write(b"", exclusive=True)
    except FileExistsError as error:
        raise _taken(target) from error
    if (target / MANIFEST).exists():
        claim.remove()
        raise _taken(target)
    for entry in listed:
        if entry.name not in (MANIFEST, UNFINISHED):
            (target / entry.name).copy_from(source / entry.name)
    whole = listed[-1].name == MANIFEST
    if whole:
        try:
            identity = (source / MANIFEST).read()
            (target / MANIFEST).write(identity, exclusive=True)
        except FileExistsError as error:
            raise _taken(target) from error
        claim.remove()
        (source / MANIFEST).remove()
        if sorted(each.name for each in source.entries(deep=True)) != sorted(
            each.name for each in listed[:-1]
        ):
            (source / MANIFEST).write(identity)
            (target / MANIFEST).remove()
            raise StoreUnavailableError(
                f"{source} is being written: it changed while it was moved, and stays. Stop its writers and "
                "call again."
            )
    for entry in listed:
        (source / entry.name).remove()


def _gone(place: Place) -> StoreNotFoundError:
    return StoreNotFoundError(f"There is no store at {place}: it was deleted or renamed meanwhile.")


def _taken(place: Place) -> StoreExistsError:
    return StoreExistsError(f"{place} was created meanwhile. Nothing was moved. Choose another name.")


def empty_trash(root: Place) -> list[str]:
    """Delete what lies in the trash of a lake for good, and return the names that the stores had.

    Raises:
        InvalidArgumentError: the trash is a link, which may lead out of the lake.
        StoreAccessError: something could not be deleted; call again.
    """
    trash = root / TRASH
    if trash.local is not None and is_link(trash.local):
        raise InvalidArgumentError(f"{trash} is a link, which may lead out of the lake. Remove it.")
    with guard_access("empty the trash", trash):
        names = [entry.name for entry in trash.entries(deep=True)]
        # A folder of its own before the name, and the file behind it.
        stores = {
            name.partition("/")[2].rpartition("/")[0]
            for name in names
            if name.endswith(f"/{MANIFEST}") and f"/{STAGING}/" not in name
        }
        if trash.local is None:
            for name in names:
                (trash / name).remove()
        elif trash.exists():
            shutil.rmtree(trash.local)
    return sorted(stores)
