"""The end of a table's log: adding commits to it without reading the table again.

A commit is one file of the log, made under the next free number and never changed (the Delta protocol,
https://github.com/delta-io/delta/blob/master/PROTOCOL.md). Who finds the number taken reads that one commit
and tries the next: the cost of a commit depends neither on the number of versions nor on that of files.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from ..errors import ConcurrentCommitError, CorruptStoreError
from ..files import guard_access
from ..identity import check_table, cleaned_error
from ..layout import RUNS, STEPS
from ..places import Place
from .checkpoints import write_checkpoint
from .checksums import PROPERTY, commit_actions, commit_place, commit_text, find_commit, reading_commit
from .log_cleaning import clean_log
from .opening import check_writer_version

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.002
_CHECKPOINT_EVERY = 100
#: Each commit since the last checkpoint is a request when a table is opened.
_REMOTE_CHECKPOINT_EVERY = 10
#: Actions of commits that leave a table's columns and properties as they were.
_FILES_ONLY = {"add", "remove", "txn", "commitInfo"}


def retry_commit(attempt: Callable[[], bool], table: Place, action: str) -> None:
    """Call `attempt` until it commits: each time that it returns False another writer was first.

    Args:
        attempt: tries to commit behind the newest version.
        table, action: for the message, as in "add columns".

    Raises:
        ConcurrentCommitError: others committed first each time; nothing was committed.
    """
    for number in range(_ATTEMPTS):
        if attempt():
            return
        time.sleep(_PAUSE_SECONDS * random.random() * min(number, 20))
    raise ConcurrentCommitError(
        f"Could not {action} in {table}: other writers committed first, {_ATTEMPTS} times in a row. "
        "Nothing is lost: the journal keeps the rows. Try again, or run fewer writers at once."
    )


class CommitLog:
    """The end of one table's log, as far as it is known.

    Args:
        table: the table's folder.
        version: a version that is there.
        moment: the latest moment of a file in it.
        summed: whether all its commits have checksums.
        identity: the id in the table's metadata; every commit makes sure that the log is still that table's.
        last: the bytes of that version's commit; None if they were not read.

    Attributes:
        version, moment: of the last commit that is known.
        applied: transactions that were seen, by application.
        changed: whether columns or properties changed since.
        removed: files that commits of others removed since.
    """

    def __init__(
        self, table: Place, version: int, moment: int, *, summed: bool, identity: str, last: bytes | None
    ) -> None:
        self.version = version
        self.moment = moment
        self.applied: dict[str, int] = {}
        self.changed = False
        self.removed: set[str] = set()
        self._table = table
        self._summed = summed
        self._identity = identity
        # The last commit that is known, as soon as it was read or written.
        self._last = last

    def append(
        self,
        actions: Callable[[int], Sequence[Mapping[str, Any]]],
        transaction: tuple[str, int],
        details: Mapping[str, Any],
    ) -> None:
        """Add a commit, once per transaction.

        Args:
            actions: gives the add and remove actions for a moment, in milliseconds since 1970.
            transaction: application and version.
            details: further entries of the history.

        Raises:
            ConcurrentCommitError: others took the next number too many times; nothing was committed.
            StoreAccessError: the log cannot be read or written; whether the commit was made is open.
            CorruptStoreError: a commit of others cannot be read.
            LogCleanedError: the log was cleaned beyond what is known; whether the commit was made is open.
            StoreNotFoundError: another store stands in the place of this one; nothing was committed.
        """
        application, wanted = transaction

        def attempt() -> bool:
            if self.applied.get(application, -1) >= wanted or self.append_next(actions, transaction, details):
                return True
            self._follow()
            return False

        retry_commit(attempt, self._table, "commit")

    def append_next(
        self,
        actions: Callable[[int], Sequence[Mapping[str, Any]]],
        transaction: tuple[str, int],
        details: Mapping[str, Any],
    ) -> bool:
        """Add a commit right behind the last one that is known; False if another is there already.

        Raises:
            StoreAccessError: the log cannot be written; whether the commit was made is open.
            LogCleanedError: the log was cleaned beyond what is known; whether the commit was made is open.
            StoreNotFoundError: another store stands in the place of this one; nothing was committed.
        """
        application, wanted = transaction
        self._last = check_table(self._table, self._identity, self.version, self._last)
        moment = max(time.time_ns() // 1_000_000, self.moment + 1)
        lines = [*actions(moment), {"txn": {"appId": application, "version": wanted}}]
        information = _information("WRITE", moment, details)
        commit = commit_text(self._table.name, self.version + 1, lines, information)
        if not _write(self._table, self.version + 1, commit):
            return False
        self._check_followed(commit)
        self._last = commit
        self.version += 1
        self.moment = moment
        self.applied[application] = wanted
        self._checkpoint()
        return True

    def _check_followed(self, commit: bytes) -> None:
        """Take a commit back that got a number of the past, which cleaning had freed.

        Raises:
            LogCleanedError: it had; the commit may also have been cleaned itself, with all before it.
        """
        if find_commit(self._table, self.version) == self._last:
            return
        if find_commit(self._table, self.version + 1) == commit:
            with guard_access("take a commit back", self._table):
                commit_place(self._table, self.version + 1).remove()
        check_table(self._table, self._identity, self.version, self._last)
        raise cleaned_error(self._table, self.version)

    def _follow(self) -> None:
        """Take note of all commits that others made meanwhile.

        Raises:
            LogCleanedError: the log was cleaned, so these may be commits that are about to be taken back.
        """
        known, last = self.version, self._last
        while (data := find_commit(self._table, self.version + 1, summed=self._summed)) is not None:
            with reading_commit(self._table, self.version + 1):
                for action in commit_actions(data):
                    self._note(action)
            self.version += 1
            self._last = data
        check_table(self._table, self._identity, known, last)

    def _note(self, action: Mapping[str, Any]) -> None:
        if "add" in action:
            self.moment = max(self.moment, action["add"]["modificationTime"])
            self.removed.discard(unquote(action["add"]["path"]))
        elif "txn" in action:
            self.applied[action["txn"]["appId"]] = action["txn"]["version"]
        elif "remove" in action:
            self.removed.add(unquote(action["remove"]["path"]))
        elif "protocol" in action:
            check_writer_version(self._table, action["protocol"]["minWriterVersion"])
        elif "metaData" in action:
            self.changed = True

    def _checkpoint(self) -> None:
        """Write a checkpoint now and then, and clean what it replaces; a failure is left to the next one."""
        every = _CHECKPOINT_EVERY if self._table.local is not None else _REMOTE_CHECKPOINT_EVERY
        if self.version % every == 0:
            with contextlib.suppress(DeltaError, CorruptStoreError, OSError):
                before = write_checkpoint(self._table, self.version, summed=self._summed)
                # The log of `episodes` is the store's history: that is for `vacuum` to clean.
                if before is not None and self._table.name in (RUNS, STEPS):
                    clean_log(self._table, before, self.version)


@dataclass(frozen=True)
class Changes:
    """The changes that the commits after a version made.

    Attributes:
        version: the newest version.
        added: flattened add actions.
        removed: names of removed files.
        last: the bytes of the newest commit.
    """

    version: int
    added: Sequence[Mapping[str, Any]]
    removed: AbstractSet[str]
    last: bytes


def changes_since(table: Place, version: int, known: bytes | None, *, summed: bool) -> Changes | None:
    """Read which files the commits after a version added and removed.

    Args:
        table: the table's folder.
        version: a version that was there.
        known: the bytes of its commit; None if they were not read.
        summed: whether commits must have checksums that match.

    Returns:
        What they did. None if a commit did more than add and remove files, if there are so many that opening
        the table costs less, or if the log was cleaned or replaced meanwhile.

    Raises:
        CorruptStoreError: a commit is damaged.
        StoreAccessError: a commit cannot be read.
    """
    added: dict[str, dict[str, Any]] = {}
    removed: set[str] = set()
    last = None
    for newer in range(version + 1, version + 2 + _CHECKPOINT_EVERY):
        data = find_commit(table, newer, summed=summed)
        if data is None:
            # In this order: while the version is there, no later one was cleaned.
            there = find_commit(table, version)
            if there is None or known not in (None, there):
                return None
            return Changes(newer - 1, list(added.values()), removed, last or there)
        with reading_commit(table, newer):
            actions = commit_actions(data)
            if any(not action.keys() <= _FILES_ONLY for action in actions):
                return None
            for name in [unquote(action["remove"]["path"]) for action in actions if "remove" in action]:
                removed.add(name)
                added.pop(name, None)
            for row in [_flat(action["add"]) for action in actions if "add" in action]:
                added[row["path"]] = row
                removed.add(row["path"])
            last = data
    return None


def _flat(added: Mapping[str, Any]) -> dict[str, Any]:
    """Return an add action as the table library flattens it."""
    statistics = json.loads(added.get("stats") or "{}")
    groups = (("null_count", "nullCount"), ("min", "minValues"), ("max", "maxValues"))
    return {
        "path": unquote(added["path"]),
        "size_bytes": added["size"],
        "modification_time": added["modificationTime"],
        "num_records": statistics.get("numRecords"),
        **{
            f"{kind}.{name}": value for kind, key in groups for name, value in statistics.get(key, {}).items()
        },
    }


def create_log(table: Place, metadata: Mapping[str, Any]) -> bool:
    """Make the first commit of a table; False if it has one already.

    Args:
        table: its folder.
        metadata: the content of its metaData action, without id and time of creation.

    Raises:
        StoreAccessError: it cannot be written; whether it was made is open.
    """
    log = table / "_delta_log"
    with guard_access("create the table", table):
        log.make_folder()
    moment = time.time_ns() // 1_000_000
    made = {"id": str(uuid.uuid4()), **metadata, "createdTime": moment}
    made["configuration"] = {**metadata["configuration"], PROPERTY: "1"}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": made}]
    return _write(table, 0, commit_text(table.name, 0, actions, _information("CREATE TABLE", moment, {})))


def _write(table: Place, version: int, commit: bytes) -> bool:
    """Make a commit; False if the number is taken."""
    place = commit_place(table, version)
    with guard_access("commit", place):
        try:
            place.write(commit, exclusive=True)
        except FileExistsError:
            return False
    return True


def _information(operation: str, moment: int, details: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: str(value) for key, value in details.items()}
    parameters = {"mode": "Append", "partitionBy": "[]"} if operation == "WRITE" else {}
    return {"timestamp": moment, "operation": operation, "operationParameters": parameters, **told}
