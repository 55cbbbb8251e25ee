"""The three Delta tables: creating them, growing their columns, committing files.

`table_logs` opens their logs. We write the Parquet files ourselves and commit them here; a commit is atomic,
and carries the run id and segment number as an application transaction, so that repeating it has no effect.
Conflicts with other writers are retried a bounded number of times.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from .commit_log import CommitLog, create_log
from .errors import (
    ConcurrentCommitError,
    StoreExistsError,
)
from .files import guard_access
from .listed_files import NewFile, TableFile, files_of
from .log_sums import (
    PROPERTY,
    checkpoints_of,
    read_checkpoint,
    read_commit,
)
from .names import time_ordered_suffix
from .places import Place
from .table_logs import check_process, check_protocol, log_error, looked_again, open_delta

_ATTEMPTS = 30
#: The year 10000, in milliseconds.
_LATEST = 253_402_300_800_000
_PAUSE_SECONDS = 0.02
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


class Table:
    """One Delta table of a store, pinned at a version until `refresh`.

    Args:
        path: directory of the table.
        version: pin this version; None for the newest.

    Attributes:
        newest: whether the version was the newest when the table was opened.

    Raises:
        CorruptStoreError, VersionNotFoundError
    """

    def __init__(self, path: Place, version: int | None = None) -> None:
        self.path = path
        self._delta, self.newest = open_delta(path, version)
        check_protocol(path, self._delta)
        # Whether commits and checkpoints must fit their sums; object stores check what they hand out.
        self._summed = path.local is not None and PROPERTY in self.properties()
        self._check_sums()
        self._log: CommitLog | None = None
        # Asking the table reads its log; whoever commits for an application is alone in that.
        self._applied: dict[str, int] = {}
        # Whether a commit failed in a way that leaves open if it was made.
        self._uncertain = False

    @staticmethod
    def create(path: Place, schema: pa.Schema) -> None:
        """Create an empty table, or take over one that an interrupted creation left.

        Raises:
            StoreExistsError: a table with other columns, or with files, is there already.
        """
        path.make_folder()
        # Whoever creates it at the same time makes the same table; what is there then is looked at below.
        create_log(path, _metadata(schema, _CONFIGURATION))
        there = Table(path)
        there._sync_log()
        columns = {column.name: column.type for column in there.schema}
        if there.files() or columns != {column.name: column.type for column in schema}:
            raise StoreExistsError(
                f"{path} holds a table of something else. Choose a new or empty folder for the store."
            )

    @property
    def version(self) -> int:
        """The pinned version."""
        return self._delta.version()

    @property
    def schema(self) -> pa.Schema:
        """Column names, types and kinds at the pinned version."""
        return pa.schema(self._delta.schema())

    def refresh(self) -> None:
        """Move to the newest version.

        Raises:
            CorruptStoreError: a commit is damaged.
            StoreAccessError: the log cannot be read.
        """
        check_process()
        known = self.version
        try:
            looked_again(self._delta.update_incremental)
        except (DeltaError, OSError) as error:
            raise log_error(self.path, error) from error
        self._log = None
        self._check_sums(known + 1)

    def files(self) -> list[TableFile]:
        """The files of the pinned version, in the order in which they were committed."""
        return files_of(self._added(), self.path)

    def _newest_moment(self) -> int:
        """The latest modification time of a file: later commits count from there, whatever the clock says."""
        moments = self._added().column("modification_time")
        return int(moments.to_numpy().max()) if len(moments) else 0

    def _added(self) -> pa.Table:
        """The add actions of the pinned version, a column for each statistic."""
        # Not pa.table, which imports pandas to ask whether it is given one of its frames.
        return pa.RecordBatchReader.from_stream(self._delta.get_add_actions(flatten=True)).read_all()

    def _new_log(self) -> CommitLog:
        """The log behind the pinned version."""
        return CommitLog(self.path, self.version, self._newest_moment(), summed=self._summed)

    def _check_sums(self, first: int | None = None) -> None:
        """Compare what the pinned version was read from with its sums.

        Args:
            first: the first commit; None for the checkpoint before the version, and what follows it.

        Raises:
            CorruptStoreError: a file of the log was changed.
        """
        if not self._summed:
            return
        if first is None:
            with guard_access("read", self.path):
                names = (self.path / "_delta_log").names()
            known = [version for version in checkpoints_of(names) if version <= self.version]
            if known:
                read_checkpoint(self.path, known[-1])
            first = known[-1] + 1 if known else 0
        for version in range(first, self.version + 1):
            read_commit(self.path, version)

    def history(self) -> list[dict[str, Any]]:
        """One entry per commit up to the pinned version, newest first, as the log has them."""
        self._check_sums(0)
        # A pinned handle numbers the whole log down from its own version; the newest one numbers it right.
        try:
            opened = partial(DeltaTable, str(self.path), storage_options=self.path.options)
            entries = looked_again(opened).history()
            if not all(
                type(entry["timestamp"]) is int and 0 <= entry["timestamp"] < _LATEST for entry in entries
            ):
                raise ValueError("a commit has an impossible time")
        except (DeltaError, OSError, KeyError, ValueError) as error:
            raise log_error(self.path, error) from error
        return [entry for entry in entries if entry["version"] <= self.version]

    def applied(self, application: str) -> int:
        """The last transaction of an application, such as a run's last segment number; -1 without one."""
        if self._uncertain:
            with guard_access("read", self.path):
                self.refresh()
            self._applied.clear()
            self._uncertain = False
        if application not in self._applied:
            try:
                found = self._delta.transaction_version(application)
            except (DeltaError, OSError) as error:
                raise log_error(self.path, error) from error
            if found is None:
                return -1
            self._applied[application] = found
        return self._applied[application]

    def ensure_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add the columns that the table does not have yet; columns of the same name are left alone.

        Raises:
            ConcurrentCommitError: other writers kept winning.
        """

        def attempt() -> None:
            known = {column.name.casefold() for column in self.schema}
            missing = [column for column in columns if column.name.casefold() not in known]
            if missing:
                grown = self._metadata(pa.schema([*self.schema, *missing]))
                self._append_next([grown], f"columns.{time_ordered_suffix()}", {_OPERATION: "add columns"})

        known = {column.name.casefold() for column in self.schema}
        if any(column.name.casefold() not in known for column in columns):
            self._retry(attempt, "add columns")

    def commit(
        self,
        added: Sequence[NewFile],
        run_id: str,
        segment: int,
        removed: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Add files (and remove others) in one atomic commit, once per run and segment number.

        Raises:
            ConcurrentCommitError: other writers kept winning; nothing was committed.
        """
        if self._log is None:
            with guard_access("read", self.path):
                self.refresh()
            self._log = self._new_log()
            self._log.applied[run_id] = self.applied(run_id)

        def actions(moment: int) -> list[dict[str, Any]]:
            with guard_access("list the new files", self.path):
                new = [file.action(self.path, moment) for file in added]
            return [*_removals(removed, moment), *map(_addition, new)]

        self._uncertain = True
        self._log.append(actions, (run_id, segment), details or {})
        self._uncertain = False
        self._applied[run_id] = segment
        if self._log.changed:
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
            details: what the table's history says of it.
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
            moment = max(time.time_ns() // 1_000_000, self._newest_moment() + 1)
            new = [file.action(self.path, moment + index) for index, file in enumerate(added)]
            changed = [] if columns is None else [self._metadata(columns(self.schema))]
            self._append_next(
                [*changed, *_removals(removed, moment), *map(_addition, new)], operation, details or {}
            )

        self._retry(attempt, "commit")

    def _append_next(
        self, actions: Sequence[Mapping[str, Any]], application: str, details: Mapping[str, Any]
    ) -> None:
        """Commit right behind the pinned version.

        Raises:
            CommitFailedError: another commit is there already.
        """
        log = self._new_log()
        if not log.append_next(lambda moment: actions, (application, 0), details):
            raise CommitFailedError

    def _metadata(self, schema: pa.Schema) -> dict[str, Any]:
        """The action that gives the table other columns, and leaves the rest of its metadata as it is."""
        known = self._delta.metadata()
        content = {
            "id": known.id,
            "name": known.name,
            "description": known.description,
            **_metadata(schema, known.configuration),
            "createdTime": known.created_time,
        }
        return {"metaData": {key: value for key, value in content.items() if value is not None}}

    def properties(self) -> dict[str, str]:
        """The properties of the pinned version."""
        return {
            key: value for key, value in self._delta.metadata().configuration.items() if value is not None
        }

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
        for number in range(_ATTEMPTS):
            with guard_access(action, self.path):
                self.refresh()
                try:
                    attempt()
                    self.refresh()
                    return
                except CommitFailedError:
                    pass
                except OSError:
                    # A lost connection leaves open what became of the commit: look, and try again.
                    if self.path.local is not None or number >= _LOSSES:
                        raise
            time.sleep(_PAUSE_SECONDS * (1 + random.random()) * min(number + 1, 10))
        raise ConcurrentCommitError(
            f"Could not {action} in {self.path}: other writers committed first, {_ATTEMPTS} times in a row. "
            "Nothing is lost: the journal keeps the rows. Try again, or run fewer writers at once."
        )

    def _sync_log(self) -> None:
        log = self.path / "_delta_log"
        entry = log / f"{self.version:020d}.json"
        with guard_access("sync the log", log):
            with contextlib.suppress(FileNotFoundError):
                entry.sync()
            log.sync()
            self.path.sync()


def _metadata(schema: pa.Schema, configuration: Mapping[str, str | None]) -> dict[str, Any]:
    """What a metaData action says of a table's columns and properties."""
    return {
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _delta_schema(schema).to_json(),
        "partitionColumns": [],
        "configuration": dict(configuration),
    }


def _removals(names: Sequence[str], moment: int) -> list[dict[str, Any]]:
    gone = {"deletionTimestamp": moment, "dataChange": True}
    return [{"remove": {"path": name, **gone}} for name in names]


def _addition(action: AddAction) -> dict[str, Any]:
    """An add action as the log has it."""
    return {
        "add": {
            "path": action.path,
            "partitionValues": {},
            "size": action.size,
            "modificationTime": action.modification_time,
            "dataChange": True,
            "stats": action.stats,
        }
    }


def _delta_schema(schema: pa.Schema) -> Schema:
    columns = []
    for column in schema:
        metadata = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
        columns.append(column.with_metadata(metadata))
    return Schema.from_arrow(pa.schema(columns))
