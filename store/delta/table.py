"""Delta tables for writing: creation, new columns, files, properties.

The Parquet files are written elsewhere and committed here. A commit is one file of the log, made under the
next free number and never changed (the Delta protocol,
https://github.com/delta-io/delta/blob/master/PROTOCOL.md). It is atomic and carries an application's
transaction, so repeating it has no effect. A writer that finds the number taken applies the commits of others
and tries the next number: the cost depends neither on the number of versions nor on that of files.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa

from ..dynamic.logical_types import field_kind, with_overflow
from ..errors import (
    ConcurrentCommitError,
    CorruptStoreError,
    StoreAccessError,
    StoreExistsError,
    StoreNotFoundError,
    replaced_error,
)
from ..files import Place, is_visible, syncing
from ..layout import RUNS, STEPS, time_ordered_suffix
from .checkpoints import clean_log, write_checkpoint
from .log import (
    PROPERTY,
    NewFile,
    commit_information,
    commit_name,
    commit_place,
    commit_text,
    find_commit,
    first_version,
    removals,
    repeated_actions,
)
from .state import follow_log, metadata_of, open_log
from .version import TableVersion

LOG = logging.getLogger("episodelake")

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.002
#: So many lost connections of an object store are tolerated in one commit.
_LOSSES = 5
_CHECKPOINT_EVERY = 100
#: Each commit since the last checkpoint is repeated by the next one.
_REMOTE_CHECKPOINT_EVERY = 10
#: Under this key the history says what a commit did.
_OPERATION = "episodelake.operation"
_CONFIGURATION = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    # Null counts of all columns, not of the first 32 only: they say which columns a file has.
    "delta.dataSkippingNumIndexedCols": "-1",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}
#: The actions of a commit for a moment in milliseconds since 1970; None if nothing is left to commit.
_Actions = Callable[[int], "list[dict[str, Any]] | None"]


class TableChangedError(ConcurrentCommitError):
    """Another operation changed the kinds of columns, or removed files, that a commit builds on."""


class Table(TableVersion):
    """One Delta table of a store for writing, pinned at a version until `refresh`; see `TableVersion`."""

    def __init__(self, path: Place, version: int | None = None) -> None:
        super().__init__(path, version)
        # Whether the log was followed since the table was opened, and
        # whether a commit failed in a way that leaves open whether it was made.
        self._uncertain = False
        self._followed = False

    @staticmethod
    def create(path: Place, schema: pa.Schema) -> None:
        """Create an empty table, or take over one that an interrupted creation left.

        Raises:
            StoreExistsError: a table with other columns, or with files, is there already.
        """
        path.make_folder()
        made = _create_log(path, metadata_of(schema, _CONFIGURATION))
        if made and (path / "_delta_log").names() == [commit_name(0)]:
            # The log's folder may be one that an interrupted creation made and did not sync.
            with syncing():
                path.sync()
            return
        # An interrupted creation left it, or another process creates the same table meanwhile.
        there = Table(path)
        there.sync()
        columns = {column.name: column.type for column in there.schema}
        if there.files() or columns != {column.name: column.type for column in schema}:
            raise StoreExistsError(
                f"{path} holds a table of something else. Choose a new or empty folder for the store."
            )

    def refresh(self) -> None:
        """Move to the newest version.

        Raises:
            CorruptStoreError: a commit is damaged.
            StoreAccessError: the log cannot be read.
            StoreNotFoundError: the path holds another store, or an older copy of this one.
        """
        newest = follow_log(self._state)
        if newest is None:
            try:
                newest, _ = open_log(self.path)
            except CorruptStoreError as error:
                if self._is_last_commit_there():
                    raise
                raise replaced_error(self.path.parent) from error
            if newest.metadata.id != self._state.metadata.id or newest.version < self.version:
                raise replaced_error(self.path.parent)
            first = first_version(self.path)
            # A log that was cleaned goes on without the commit; any other still has it.
            if first <= self.version and not self._is_last_commit_there():
                raise replaced_error(self.path.parent)
        self._state, self.newest, self._followed = newest, True, True

    def _is_last_commit_there(self) -> bool:
        """Return whether the log still has the commit of this version, as it was."""
        last = self._state.last
        return last is not None and find_commit(self.path, self.version, known=last) == last

    def applied(self, application: str) -> int:
        """Return the last transaction of an application, once it is certain; -1 without one."""
        if self._uncertain:
            self.refresh()
            # The commit may be there and its name not on disk: the sync of the folder may be what failed.
            self.sync()
            self._uncertain = False
        return super().applied(application)

    def ensure_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add the columns that the table does not have yet, and the marks of numbers in the JSON column.

        Columns of the same name are otherwise left alone.

        Raises:
            ConcurrentCommitError: other writers kept winning.
        """

        def actions(moment: int) -> list[dict[str, Any]] | None:
            grown = _grown(self.schema, columns)
            return None if grown is None else [self._metadata(grown)]

        if _grown(self.schema, columns) is not None:
            transaction = (f"columns.{time_ordered_suffix()}", 0)
            self._operate(actions, transaction, {_OPERATION: "add columns"}, "add columns")

    def commit(
        self,
        added: Sequence[NewFile],
        run_id: str,
        segment: int,
        removed: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
        columns: Sequence[pa.Field] = (),
    ) -> None:
        """Add files (and remove others) in one atomic commit, once per run and segment number.

        Args:
            added, removed: the files, and the names of those to remove.
            run_id, segment: of the files.
            details: further entries of the table's history.
            columns: of the files, and marks of numbers in the JSON column; the table gets what it lacks.

        Raises:
            TableChangedError: the files have a column in another kind than the table by now, or one of the
                files to remove is gone; nothing was committed.
            ConcurrentCommitError: other writers kept winning; nothing was committed.
        """

        def actions(moment: int) -> list[dict[str, Any]]:
            _check_listed(self.path, set(removed).difference(self._state.files))
            _check_kinds(self.path, self.schema, columns)
            grown = _grown(self.schema, columns)
            changed = [] if grown is None else [self._metadata(grown)]
            return [*changed, *removals(removed, moment), *(file.action(self.path, moment) for file in added)]

        if not self._followed or not self._is_last_commit_there():
            self.refresh()
        self._uncertain = True
        self._transact(actions, (run_id, segment), details or {}, "commit")
        self._uncertain = False

    def replace(
        self,
        added: Sequence[NewFile],
        removed: Sequence[str],
        operation: str,
        details: Mapping[str, Any] | None = None,
        columns: Callable[[pa.Schema], pa.Schema] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Replace files by others in one atomic commit, once per operation.

        Args:
            added: the new files.
            removed: names of files that this version of the table has.
            operation: a name that no other operation has.
            details: further entries of the table's history.
            columns: gives the table's new columns for those of the newest version.
            check: called when the newest version is known; raises if the commit must not follow it.

        Raises:
            ConcurrentCommitError: others removed one of these files first, or kept winning; nothing was
                committed.
        """

        def actions(moment: int) -> list[dict[str, Any]]:
            if not self._state.files.keys() >= set(removed):
                raise ConcurrentCommitError(
                    f"Another operation changed {self.path} meanwhile; nothing was committed. Call again."
                )
            if check is not None:
                check()
            new = [file.action(self.path, moment + index) for index, file in enumerate(added)]
            changed = [] if columns is None else [self._metadata(columns(self.schema))]
            return [*changed, *removals(removed, moment), *new]

        self._operate(actions, (operation, 0), details or {}, "commit")

    def set_property(
        self,
        name: str,
        change: Callable[[str | None], str],
        operation: str,
        details: Mapping[str, Any],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Change a property in a commit of its own, once per operation.

        Args:
            name: of the property.
            change: returns its new value for that in the newest version.
            operation, details, check: as for `replace`.

        Raises:
            ConcurrentCommitError: other writers kept winning; nothing was committed.
        """

        def actions(moment: int) -> list[dict[str, Any]]:
            if check is not None:
                check()
            changed = self._metadata(self.schema)
            changed["metaData"]["configuration"][name] = change(self.properties().get(name))
            return [changed]

        self._operate(actions, (operation, 0), details, "set a property")

    def _metadata(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the action that gives the table other columns, and leaves the rest of its metadata as it
        is.
        """
        known = self._state.metadata
        kept = {key: known.content.get(key) for key in ("id", "name", "description", "createdTime")}
        content = {**kept, **metadata_of(schema, known.properties)}
        return {"metaData": {key: value for key, value in content.items() if value is not None}}

    def _operate(
        self, actions: _Actions, transaction: tuple[str, int], details: Mapping[str, Any], action: str
    ) -> None:
        """Commit after the newest version; after a lost connection, look whether the commit was made."""
        losses = _LOSSES if self.path.local is None else 0
        while True:
            try:
                self.refresh()
                return self._transact(actions, transaction, details, action)
            except StoreNotFoundError:
                raise
            except OSError:
                if losses == 0:
                    raise
                losses -= 1

    def _transact(
        self, actions: _Actions, transaction: tuple[str, int], details: Mapping[str, Any], action: str
    ) -> None:
        """Add a commit after the last one, once per transaction; the caller has looked whether that is there.

        Args:
            actions: gives what it does, for the state that it follows.
            transaction: application and version.
            details: further entries of the history.
            action: for the message, as in "add columns".

        Raises:
            ConcurrentCommitError: others committed first each time; nothing was committed.
            StoreAccessError: the log cannot be read or written; whether the commit was made is open.
            CorruptStoreError: a commit of others cannot be read.
            StoreNotFoundError: the path holds another store; nothing was committed.
        """
        application, number = transaction
        for attempt in range(_ATTEMPTS):
            if self._state.transactions.get(application, -1) >= number:
                return
            moment = max(time.time_ns() // 1_000_000, self._state.moment + 1)
            lines = actions(moment)
            if lines is None:
                return
            lines.append({"txn": {"appId": application, "version": number}})
            if self._append(lines, commit_information("WRITE", moment, details)):
                LOG.debug("committed version %d of %s: %s", self.version, self.path, action)
                return
            LOG.info("could not %s in %s: others committed first, trying again", action, self.path)
            time.sleep(_PAUSE_SECONDS * random.random() * min(attempt, 20))
            self.refresh()
        raise ConcurrentCommitError(
            f"Could not {action} in {self.path}: other writers committed first, {_ATTEMPTS} times in a row. "
            "Nothing is lost: the journal keeps the rows. Try again, or run fewer writers at once."
        )

    def _append(self, actions: Sequence[Mapping[str, Any]], information: Mapping[str, Any]) -> bool:
        """Add a commit right after the last one; False if another is there already, or the log was cleaned.

        Raises:
            StoreAccessError: the log cannot be written; whether the commit was made is open, unless
                `is_visible` tells that it was and may not be durable.
        """
        self.check_writable()
        version = self.version + 1
        if self.path.local is None:
            repeated = repeated_actions(version, self._state.recent, _REMOTE_CHECKPOINT_EVERY)
            information = {**information, **repeated}
        commit = commit_text(self.path.name, version, actions, information)
        unsynced = None
        try:
            if not _write(self.path, version, commit):
                return False
        except StoreAccessError as error:
            if not is_visible(error):
                raise
            unsynced = error
        if not self._is_last_commit_there():
            # It got a number of the past, which cleaning had freed, or was cleaned itself: take it back.
            if find_commit(self.path, version, known=commit) == commit:
                commit_place(self.path, version).remove()
            return False
        self._state.add_commit(commit, actions)
        self._state.moment = max(self._state.moment, information["timestamp"])
        if unsynced is not None:
            raise unsynced
        self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Write a checkpoint now and then, and clean what it replaces; a failure is left to the next one."""
        every = _CHECKPOINT_EVERY if self.path.local is not None else _REMOTE_CHECKPOINT_EVERY
        if self.version % every == 0:
            from deltalake.exceptions import DeltaError

            with contextlib.suppress(DeltaError, CorruptStoreError, OSError):
                before = write_checkpoint(self.path, self.version, checksummed=self._state.checksummed)
                # The log of `episodes` is the store's history: that is for `vacuum` to clean.
                if before is not None and self.path.name in (RUNS, STEPS):
                    clean_log(self.path, before, self.version)

    def sync(self) -> None:
        """Make the pinned version durable; another process may have committed it.

        Raises:
            StoreAccessError: the log cannot be synced.
        """
        log = self.path / "_delta_log"
        with syncing():
            with contextlib.suppress(FileNotFoundError):
                commit_place(self.path, self.version).sync()
            log.sync()
            self.path.sync()


def _create_log(table: Place, metadata: Mapping[str, Any]) -> bool:
    """Make the first commit of a table; False if it has one already.

    Args:
        table: its folder.
        metadata: the content of its metaData action, without id and time of creation.

    Raises:
        StoreAccessError: it cannot be written; whether it was made is open.
    """
    log = table / "_delta_log"
    log.make_folder()
    moment = time.time_ns() // 1_000_000
    made = {"id": str(uuid.uuid4()), **metadata, "createdTime": moment}
    made["configuration"] = {**metadata["configuration"], PROPERTY: "1"}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": made}]
    return _write(
        table, 0, commit_text(table.name, 0, actions, commit_information("CREATE TABLE", moment, {}))
    )


def _write(table: Place, version: int, commit: bytes) -> bool:
    """Make a commit; False if the number is taken."""
    place = commit_place(table, version)
    try:
        place.write(commit, exclusive=True)
    except FileExistsError:
        return False
    return True


def _check_listed(path: Place, gone: AbstractSet[str]) -> None:
    """Refuse to remove files that another operation has removed."""
    if gone:
        raise TableChangedError(
            f"Another operation removed the file {min(gone)!r} from {path} meanwhile; nothing was committed. "
            "Call again."
        )


def _check_kinds(path: Place, schema: pa.Schema, columns: Sequence[pa.Field]) -> None:
    """Refuse files whose columns another operation has given other kinds meanwhile.

    Raises:
        TableChangedError: it has.
    """
    known = {column.name.casefold(): column for column in schema} if columns else {}
    pairs = [(column, known.get(column.name.casefold(), column)) for column in columns]
    changed = [a.name for a, b in pairs if a.name != b.name or field_kind(a) != field_kind(b)]
    if changed:
        raise TableChangedError(
            f"Another operation gave the column {changed[0]!r} of {path} another type meanwhile; nothing was "
            "committed. Call again."
        )


def _grown(schema: pa.Schema, columns: Sequence[pa.Field]) -> pa.Schema | None:
    """Return the schema with columns and marks that it lacks; None if it lacks none."""
    if not columns:
        return None
    known = {column.name.casefold(): column for column in schema}
    columns_by_name = dict(known)
    for column in columns:
        there = columns_by_name.setdefault(column.name.casefold(), column)
        columns_by_name[column.name.casefold()] = with_overflow(there, column)
    if len(columns_by_name) == len(known) and all(columns_by_name[key] is known[key] for key in known):
        return None
    return pa.schema(list(columns_by_name.values()))
