"""Claiming a run: the journal directory that only one live writer has, and the journals of dead ones."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from ..store.errors import CorruptStoreError, RecorderStateError, StoreAccessError
from ..store.files import guard_access, sync_path
from ..store.handle import StoreHandle
from ..store.journal.recovery import recover
from ..store.journal.run_journal import check_journals, lock_path
from ..store.locking.locks import FileLock, wait_for
from ..store.maintenance.operation import settle

#: Patient: a process that looks at a lock may be stopped while it has it.
_CLAIM_SECONDS = 30.0


def claim_run(directory: Path, *, again: bool = False) -> FileLock:
    """Take the lock of a run, then make its journal directory; it may be there if it is claimed `again`.

    Raises:
        StoreAccessError: the directory cannot be made, or a recovery is at work on it.
        RecorderStateError: another writer has it.
    """
    check_journals(directory.parent)
    with guard_access("create the journal", directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        # A recovery may hold the lock: to see if it is a stray one, or at work on what it took from this run.
        lock = wait_for(lock_path(directory), _CLAIM_SECONDS)
        if lock is None and again:
            raise StoreAccessError(
                f"The journal {directory} is being recovered by another process. Call again."
            )
        if lock is None:
            raise RecorderStateError(f"The run {directory.name!r} is being written already.")
        try:
            directory.mkdir(exist_ok=again)
            sync_path(directory.parent)
        except BaseException:
            # Recovery finds a directory that was made already by its lock.
            lock.release(remove=not os.path.lexists(directory))
            raise
    return lock


def recover_others(store: StoreHandle) -> None:
    """Seal what dead writers left; a journal that cannot be read must not keep this writer from working."""
    try:
        recover(store)
        settle(store)
    except CorruptStoreError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=6)
