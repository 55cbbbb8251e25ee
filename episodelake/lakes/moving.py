"""Rename and delete stores of a lake, unless a writer or an operation of maintenance uses them."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from ..errors import StoreAccessError, StoreExistsError, StoreNotFoundError, StoreUnavailableError
from ..plugin import Journals, Layout
from ..plugin.files import (
    FileLock,
    Place,
    afterwards,
    guard_access,
    is_folder,
    remove_tree,
    syncing,
    visible_step,
)


def rename(source: Layout, target: Place) -> None:
    """Rename a store, or what is left of one, to a place where nothing is.

    Args:
        source: the store's; with its identity if it can be read, so that its journals are known.
        target: its new place.

    Raises:
        StoreNotFoundError: it is gone.
        StoreExistsError: something was created at the target meanwhile.
        StoreUnavailableError: a process writes to it, or maintains it; nothing was changed.
        StoreAccessError: the system refused; object stores have no rename.
    """
    if source.root.local is None or target.local is None:
        raise StoreAccessError(
            f"{source.root} is on an object store, which has no rename. Copy it, as in "
            f"lake[name].copy({str(target)!r}), and delete it then."
        )
    with _unused(source), guard_access("rename the store", source.root):
        target.parent.make_folder()
        try:
            source.root.local.rename(target.local)
        except FileNotFoundError as error:
            raise StoreNotFoundError(
                f"There is no store at {source.root}: it was deleted or renamed meanwhile."
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise StoreExistsError(
                f"{target} was created meanwhile. Nothing was changed. Choose another name."
            ) from error
        try:
            # The journal of a writer that began after the first look came along.
            _check_idle(source.root, Journals.of(Layout.at(target.local)))
        except BaseException:
            target.local.rename(source.root.local)
            raise
        with visible_step(f"The store {source.root} is renamed to {target}"), syncing():
            for folder in (target.parent, source.root.parent):
                folder.sync()


def delete(store: Layout) -> None:
    """Delete a store, or what is left of one: `store.json` first, so that it disappears in one step.

    Raises:
        StoreUnavailableError: a process writes to it, or maintains it; nothing was deleted.
        StoreAccessError: the system refused; call again.
    """
    root, manifest = store.root, store.root / Layout.MANIFEST
    with _unused(store):
        identity = manifest.read() if manifest.exists() else None
        manifest.remove()
        try:
            # A writer may have begun after the first look.
            _check_idle(root, Journals.of(store))
        except BaseException:
            if identity is not None:
                manifest.write(identity)
            raise
        left = f"Files of it are left in {root}: delete it again."
        with afterwards(f"The store {root} is deleted", left):
            if root.local is not None:
                remove_tree(root.local)
            for entry in list(root.entries(deep=True)):
                (root / entry.name).remove()


@contextlib.contextmanager
def _unused(store: Layout) -> Iterator[None]:
    """Hold the lock of a store's maintenance while nothing else uses the store.

    Raises:
        StoreUnavailableError: a writer lives, or an operation of maintenance is at work; on an object store,
            also if a writer died on this machine, whose journal would lose its store.
    """
    journals = Journals.of(store, check=True)
    _check_idle(store.root, journals)
    if journals.folders and store.root.local is None:
        raise StoreUnavailableError(
            f"{store.root} has the journal of the run {journals.folders[0].name!r} on this machine, whose "
            "episodes are not in it yet. Nothing was changed. Call episodelake.recover first."
        )
    if not is_folder(store.journals):
        yield
        return
    lock = FileLock.acquire(store.maintenance_lock)
    if lock is None:
        raise StoreUnavailableError(
            f"{store.root} is being maintained by another process. Nothing was changed. Call again when that "
            "has ended."
        )
    try:
        yield
    finally:
        lock.release(remove=False)


def _check_idle(place: Place, journals: Journals) -> None:
    live = [*journals.live, *journals.other_hosts]
    if live:
        raise StoreUnavailableError(
            f"{place} is being written: the run {live[0]!r} is live. Nothing was changed. Close its writer "
            "and call again."
        )
