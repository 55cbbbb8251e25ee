"""Whether a place still holds the store that was opened there.

A store may be deleted, and another one created at its path or URL, while a writer or a reader of the old one
lives. Commits and moves to a newer version are checked here first: `store.json` names the store, and commit 0
names each table. A table's log may also have been cleaned meanwhile, up to a checkpoint (see `log_cleaning`):
then the table goes on, and its newest version is to be opened.
"""

from __future__ import annotations

from .errors import ConcurrentCommitError, CorruptStoreError, StoreNotFoundError
from .layout import Layout
from .manifest import read_store_id
from .places import Place
from .tables.checksums import commit_actions, find_commit, first_version, reading_commit
from .tables.opening import open_delta


class LogCleanedError(ConcurrentCommitError):
    """The table went on, and its log was cleaned beyond the last version that is known."""


def replaced_error(root: Place) -> StoreNotFoundError:
    """Return the error for a place that holds another store than the one that was opened, or none."""
    return StoreNotFoundError(
        f"{root} no longer holds the store that was opened there: it was deleted, replaced by another store, "
        "or restored from an older copy. Nothing was committed. Open it again to use what is there now."
    )


def cleaned_error(table: Place, last: int) -> LogCleanedError:
    """Return the error for a commit that was to follow a version which was cleaned meanwhile."""
    return LogCleanedError(
        f"The log of {table} was cleaned beyond version {last}, since others committed often. Call again."
    )


def check_identity(layout: Layout) -> None:
    """Make sure that a place still holds the store that a layout was made for.

    Raises:
        StoreNotFoundError: it holds another store, or none.
        CorruptStoreError: `store.json` is damaged.
        StoreAccessError: it cannot be read.
    """
    if layout.store_id is None:
        return
    try:
        found = read_store_id(layout)
    except StoreNotFoundError:
        found = None
    if found != layout.store_id:
        raise replaced_error(layout.root)


def check_table(table: Place, identity: str, last: int, known: bytes | None) -> bytes:
    """Make sure that a log still ends, or goes on, behind the commit that is to be followed.

    Args:
        table: the table's folder.
        identity: the id in its metadata.
        last: a commit that was there.
        known: its bytes; None if they were not read before.

    Returns:
        Its bytes.

    Raises:
        LogCleanedError: the commit was cleaned, since there are many newer ones.
        StoreNotFoundError: the log is that of another table, or shorter than it was.
        CorruptStoreError: commit 0 is damaged.
        StoreAccessError: the log cannot be read.
    """
    found = find_commit(table, last)
    if found is None or known not in (None, found):
        if _goes_on(table, identity, last):
            raise cleaned_error(table, last)
        raise replaced_error(table.parent)
    if known is None:
        # Commits before a checkpoint may be absent, but not from a log that has just begun.
        first = found if last == 0 else find_commit(table, 0)
        if first is not None and _identity(table, first) != identity:
            raise replaced_error(table.parent)
    return found


def _goes_on(table: Place, identity: str, last: int) -> bool:
    """Return whether the same table is there, with a log that begins behind a version."""
    try:
        delta, _ = open_delta(table, None)
    except CorruptStoreError:
        return False
    return str(delta.metadata().id) == identity and first_version((table / "_delta_log").names()) > last


def _identity(table: Place, commit: bytes) -> str:
    """Return the table's id in its first commit."""
    with reading_commit(table, 0):
        return next(action["metaData"]["id"] for action in commit_actions(commit) if "metaData" in action)
