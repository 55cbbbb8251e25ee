"""The three Delta tables: creating them, growing their columns, committing files.

The Parquet files are written elsewhere and committed here; a commit is atomic, and carries the run id and
segment number as an application transaction, so that repeating it has no effect.
Conflicts with other writers are retried a bounded number of times.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from ..compatibility import add_actions
from ..dynamic.logical_types import field_kind, with_overflow
from ..errors import (
    ConcurrentCommitError,
    EpisodelakeError,
    StoreExistsError,
    StoreNotFoundError,
)
from ..files import guard_access
from ..identity import LogCleanedError, check_table, replaced_error
from ..names import time_ordered_suffix
from ..places import Place
from .checksums import (
    commit_place,
)
from .commit_log import CommitLog, create_log, retry_commit
from .listed_files import NewFile
from .opening import check_process, log_error, retry_log_read
from .version import TableVersion

#: The year 10000, in milliseconds.
_LATEST = 253_402_300_800_000
_LOSSES = 5
#: Under this key the history says what a commit did.
_OPERATION = "episodelake.operation"
_CONFIGURATION = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    # Null counts of all columns, not of the first 32 only: they say which columns a file has.
    "delta.dataSkippingNumIndexedCols": "-1",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


class TableChangedError(ConcurrentCommitError):
    """Another operation changed the kinds of columns, or removed files, that a commit builds on."""


class Table(TableVersion):
    """One Delta table of a store for writing, pinned at a version until `refresh`; see `TableVersion`."""

    def __init__(self, path: Place, version: int | None = None) -> None:
        super().__init__(path, version)
        self._log: CommitLog | None = None
        # Asking the table reads its log; one process at a time commits for an application.
        self._applied: dict[str, int] = {}
        # Whether a commit failed in a way that leaves open whether it was made.
        self._uncertain = False

    @staticmethod
    def create(path: Place, schema: pa.Schema) -> None:
        """Create an empty table, or take over one that an interrupted creation left.

        Raises:
            StoreExistsError: a table with other columns, or with files, is there already.
        """
        path.make_folder()
        # A process that creates it at the same time makes the same table; the result is checked below.
        create_log(path, _metadata(schema, _CONFIGURATION))
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
            StoreNotFoundError: another store stands in the place of this one.
        """
        check_process()
        known = self.version
        try:
            retry_log_read(self.path, self._delta.update_incremental)
        except (DeltaError, OSError) as error:
            with contextlib.suppress(LogCleanedError):
                check_table(self.path, self.identity, known, None)
            raise log_error(self.path, error) from error
        self._log, self._last = None, None
        retry_log_read(self.path, partial(self._check_sums, known + 1))

    def _new_log(self) -> CommitLog:
        """Return the log behind the pinned version."""
        self.check_writable()
        return CommitLog(
            self.path,
            self.version,
            _newest_moment(self._delta),
            summed=self._summed,
            identity=self.identity,
            last=self._last,
        )

    def applied(self, application: str) -> int:
        """Return the last transaction of an application, such as a run's last segment number; -1 without
        one.
        """
        if self._uncertain:
            with guard_access("read", self.path):
                self.refresh()
            # The commit may be there and its name not on disk: the sync of the folder may be what failed.
            self.sync()
            self._applied.clear()
            self._uncertain = False
        if application not in self._applied:
            found = self._transaction(application)
            if found is None:
                return -1
            self._applied[application] = found
        return self._applied[application]

    def _transaction(self, application: str) -> int | None:
        """Return the last transaction of an application; of the newest version if this one was cleaned."""
        try:
            with contextlib.suppress(DeltaError, OSError):
                return self._delta.transaction_version(application)
            # The library reads the log again, of which parts may be cleaned since it was opened.
            fresh = TableVersion(self.path)
            if fresh.identity != self.identity or fresh.version < self.version:
                raise replaced_error(self.path.parent)
            self._delta, self._last, self._log = fresh._delta, fresh._last, None
            return self._delta.transaction_version(application)
        except (DeltaError, OSError) as error:
            if isinstance(error, EpisodelakeError):
                raise
            raise log_error(self.path, error) from error

    def ensure_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add the columns that the table does not have yet, and the marks of numbers in the JSON column.

        Columns of the same name are otherwise left alone.

        Raises:
            ConcurrentCommitError: other writers kept winning.
        """

        def attempt() -> None:
            grown = _grown(self.schema, columns)
            if grown is not None:
                changed = self._metadata(grown)
                self._append_next([changed], f"columns.{time_ordered_suffix()}", {_OPERATION: "add columns"})

        if _grown(self.schema, columns) is not None:
            self._retry(attempt, "add columns")

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

        Raises:
            TableChangedError: the files have a column in a kind that it has no more, or one of the files to
                remove is gone; nothing was committed.
            ConcurrentCommitError: other writers kept winning; nothing was committed.
        """
        if self._log is None:
            with guard_access("read", self.path):
                self.refresh()
            applied = self.applied(run_id)
            self._log = self._new_log()
            self._log.applied[run_id] = applied
            _check_kinds(self.path, self.schema, columns)
            if applied < segment:
                _check_listed(self.path, set(removed) - {file.name for file in self.files()})
        log = self._log

        def actions(moment: int) -> list[dict[str, Any]]:
            _check_listed(self.path, log.removed.intersection(removed))
            if log.changed:
                _check_kinds(self.path, TableVersion(self.path).schema, columns)
            with guard_access("list the new files", self.path):
                new = [file.action(self.path, moment) for file in added]
            return [*_removals(removed, moment), *new]

        self._uncertain = True
        try:
            log.append(actions, (run_id, segment), details or {})
        except LogCleanedError:
            # Many others committed since; the transaction says whether this was among them.
            self._log = None
            self.commit(added, run_id, segment, removed, details, columns)
            return
        self._uncertain = False
        self._applied[run_id] = segment
        if log.changed:
            self.refresh()

    def replace(
        self,
        added: Sequence[NewFile],
        removed: Sequence[str],
        operation: str,
        details: Mapping[str, Any] | None = None,
        columns: Callable[[pa.Schema], pa.Schema] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Put files in the place of others in one atomic commit, once per operation.

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

        def attempt() -> None:
            if self.applied(operation) >= 0:
                return
            if not {file.name for file in self.files()}.issuperset(removed):
                raise ConcurrentCommitError(
                    f"Another operation changed {self.path} meanwhile; nothing was committed. Call again."
                )

            if check is not None:
                check()
            moment = max(time.time_ns() // 1_000_000, _newest_moment(self._delta) + 1)
            new = [file.action(self.path, moment + index) for index, file in enumerate(added)]
            changed = [] if columns is None else [self._metadata(columns(self.schema))]
            self._append_next([*changed, *_removals(removed, moment), *new], operation, details or {})

        self._retry(attempt, "commit")

    def _append_next(
        self, actions: Sequence[Mapping[str, Any]], application: str, details: Mapping[str, Any]
    ) -> None:
        """Commit right behind the pinned version.

        Raises:
            CommitFailedError: another commit is there already.
        """
        try:
            done = self._new_log().append_next(lambda moment: actions, (application, 0), details)
        except LogCleanedError:
            self.refresh()
            done = self.applied(application) >= 0
        if not done:
            raise CommitFailedError

    def _metadata(self, schema: pa.Schema) -> dict[str, Any]:
        """Return the action that gives the table other columns, and leaves the rest of its metadata as it
        is.
        """
        known = self._delta.metadata()
        content = {
            "id": known.id,
            "name": known.name,
            "description": known.description,
            **_metadata(schema, known.configuration),
            "createdTime": known.created_time,
        }
        return {"metaData": {key: value for key, value in content.items() if value is not None}}

    def set_property(
        self,
        name: str,
        change: Callable[[str | None], str],
        details: Mapping[str, Any],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Change a property in a commit of its own; `change` gets its value in the newest version.

        Raises:
            ConcurrentCommitError: other writers kept winning; nothing was committed.
        """

        def attempt() -> None:
            if check is not None:
                check()
            changed = self._metadata(self.schema)
            changed["metaData"]["configuration"][name] = change(self.properties().get(name))
            self._append_next([changed], f"property.{time_ordered_suffix()}", details)

        self._retry(attempt, "set a property")

    def _retry(self, attempt: Callable[[], None], action: str) -> None:
        losses = 0

        def commit() -> bool:
            nonlocal losses
            with guard_access(action, self.path):
                self.refresh()
                try:
                    attempt()
                    self.refresh()
                    return True
                except CommitFailedError:
                    return False
                except StoreNotFoundError:
                    raise
                except OSError:
                    # A lost connection leaves open what became of the commit: look, and try again.
                    losses += 1
                    if self.path.local is not None or losses > _LOSSES:
                        raise
                    return False

        retry_commit(commit, self.path, action)

    def sync(self) -> None:
        """Make the pinned version durable; another process may have committed it.

        Raises:
            StoreAccessError: the log cannot be synced.
        """
        log = self.path / "_delta_log"
        with guard_access("sync the log", log):
            with contextlib.suppress(FileNotFoundError):
                commit_place(self.path, self.version).sync()
            log.sync()
            self.path.sync()


def _newest_moment(delta: DeltaTable) -> int:
    """Return the latest moment of a file: later commits count from there, whatever the clock shows."""
    moments = add_actions(delta).column("modification_time")
    return int(moments.to_numpy().max()) if len(moments) else 0


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
    known = {column.name: field_kind(column) for column in schema}
    changed = [column.name for column in columns if known.get(column.name) != field_kind(column)]
    if changed:
        raise TableChangedError(
            f"Another operation gave the column {changed[0]!r} of {path} another type meanwhile; nothing was "
            "committed. Call again."
        )


def _grown(schema: pa.Schema, columns: Sequence[pa.Field]) -> pa.Schema | None:
    """Return the schema with columns and marks that it lacks; None if it lacks none."""
    known = {column.name.casefold(): column for column in schema}
    found = dict(known)
    for column in columns:
        there = found.setdefault(column.name.casefold(), column)
        found[column.name.casefold()] = with_overflow(there, column)
    if len(found) == len(known) and all(found[key] is known[key] for key in known):
        return None
    return pa.schema(list(found.values()))


def _metadata(schema: pa.Schema, configuration: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the part of a metaData action with a table's columns and properties."""
    return {
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _delta_schema(schema).to_json(),
        "partitionColumns": [],
        "configuration": dict(configuration),
    }


def _removals(names: Sequence[str], moment: int) -> list[dict[str, Any]]:
    gone = {"deletionTimestamp": moment, "dataChange": True}
    return [{"remove": {"path": name, **gone}} for name in names]


def _delta_schema(schema: pa.Schema) -> Schema:
    columns = []
    for column in schema:
        metadata = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
        columns.append(column.with_metadata(metadata))
    return Schema.from_arrow(pa.schema(columns))
