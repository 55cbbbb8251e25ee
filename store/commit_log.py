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
from typing import Any

from deltalake.exceptions import DeltaError

from .checkpoints import write_checkpoint
from .errors import ConcurrentCommitError, CorruptStoreError
from .files import guard_access
from .log_sums import PROPERTY, changed_error, commit_fits, commit_name, commit_text
from .places import Place

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.002
_CHECKPOINT_EVERY = 100
#: Each commit since the last checkpoint is a request when a table is opened.
_REMOTE_CHECKPOINT_EVERY = 10


class CommitLog:
    """The end of one table's log, as far as it is known.

    Args:
        table: the table's folder.
        version: a version that is there.
        moment: the latest moment of a file in it.
        summed: whether all its commits have sums.

    Attributes:
        version, moment: of the last commit that is known.
        applied: transactions that were seen, by application.
        changed: whether columns or properties changed since.
    """

    def __init__(self, table: Place, version: int, moment: int, *, summed: bool) -> None:
        self.version = version
        self.moment = moment
        self.applied: dict[str, int] = {}
        self.changed = False
        self._table = table
        self._summed = summed

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
            details: what the history says of it.

        Raises:
            ConcurrentCommitError: others took the next number too many times; nothing was committed.
            StoreAccessError: the log cannot be read or written; whether the commit was made is open.
            CorruptStoreError: a commit of others cannot be read.
        """
        application, wanted = transaction
        for attempt in range(_ATTEMPTS):
            if self.applied.get(application, -1) >= wanted or self.append_next(actions, transaction, details):
                return
            self._follow()
            time.sleep(_PAUSE_SECONDS * random.random() * min(attempt, 20))
        raise ConcurrentCommitError(
            f"Could not commit in {self._table}: other writers committed first, {_ATTEMPTS} times in a row. "
            "Nothing is lost: the journal keeps the rows. Try again, or run fewer writers at once."
        )

    def append_next(
        self,
        actions: Callable[[int], Sequence[Mapping[str, Any]]],
        transaction: tuple[str, int],
        details: Mapping[str, Any],
    ) -> bool:
        """Add a commit right behind the last one that is known; False if another is there already.

        Raises:
            StoreAccessError: the log cannot be written; whether the commit was made is open.
        """
        application, wanted = transaction
        moment = max(time.time_ns() // 1_000_000, self.moment + 1)
        lines = [*actions(moment), {"txn": {"appId": application, "version": wanted}}]
        if not _write(self._table, self.version + 1, lines, _information("WRITE", moment, details)):
            return False
        self.version += 1
        self.moment = moment
        self.applied[application] = wanted
        self._checkpoint()
        return True

    def _follow(self) -> None:
        """Take note of all commits that others made meanwhile."""
        while True:
            place = _commit_place(self._table, self.version + 1)
            with guard_access("read", place):
                try:
                    data = place.read()
                except FileNotFoundError:
                    return
            if self._summed and not commit_fits(self._table.name, self.version + 1, data):
                raise changed_error(place)
            try:
                for line in data.splitlines():
                    self._note(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorruptStoreError(f"The commit {place} is damaged: {error}.") from error
            self.version += 1

    def _note(self, action: Mapping[str, Any]) -> None:
        if "add" in action:
            self.moment = max(self.moment, action["add"]["modificationTime"])
        elif "txn" in action:
            self.applied[action["txn"]["appId"]] = action["txn"]["version"]
        elif "metaData" in action or "protocol" in action:
            self.changed = True

    def _checkpoint(self) -> None:
        """Sum up the log now and then; one that fails is made up for by the next."""
        every = _CHECKPOINT_EVERY if self._table.local is not None else _REMOTE_CHECKPOINT_EVERY
        if self.version % every == 0:
            with contextlib.suppress(DeltaError, CorruptStoreError, OSError):
                write_checkpoint(self._table, self.version, summed=self._summed)


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
    return _write(table, 0, actions, _information("CREATE TABLE", moment, {}))


def _commit_place(table: Place, version: int) -> Place:
    return table / "_delta_log" / commit_name(version)


def _write(
    table: Place, version: int, actions: Sequence[Mapping[str, Any]], information: Mapping[str, Any]
) -> bool:
    """Make a commit; False if the number is taken."""
    place = _commit_place(table, version)
    with guard_access("commit", place):
        try:
            place.write(commit_text(table.name, version, actions, information), exclusive=True)
        except FileExistsError:
            return False
    return True


def _information(operation: str, moment: int, details: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: str(value) for key, value in details.items()}
    parameters = {"mode": "Append", "partitionBy": "[]"} if operation == "WRITE" else {}
    return {"timestamp": moment, "operation": operation, "operationParameters": parameters, **told}
