"""The three Delta tables: creating them, growing their columns, committing files.

Only this module speaks to `deltalake`. We write the Parquet files ourselves and commit them here; a commit is
atomic, and carries the run id and segment number as an application transaction, so that repeating it has no
effect. Conflicts with other writers are retried a bounded number of times.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import Field as DeltaField
from deltalake.transaction import AddAction, RemoveAction

from .errors import (
    ConcurrentCommitError,
    CorruptStoreError,
    StoreExistsError,
    VersionNotFoundError,
)
from .files import guard_access
from .places import Place

_ATTEMPTS = 30
_PAUSE_SECONDS = 0.02
_CONFIGURATION: dict[str, str | None] = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    # Null counts of all columns, not of the first 32 only: they say which columns a file has.
    "delta.dataSkippingNumIndexedCols": "-1",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


@dataclass(frozen=True)
class NewFile:
    """A written Parquet file that is to become part of a table.

    Attributes:
        name: file name, relative to the table.
        rows: number of rows.
        null_counts: by column; says at the same time which columns the file has.
        smallest, largest: statistics of a few columns.
    """

    name: str
    rows: int
    null_counts: Mapping[str, int]
    smallest: Mapping[str, Any]
    largest: Mapping[str, Any]

    def action(self, table: Place, moment: int) -> AddAction:
        """The Delta action that adds the file; `moment` in milliseconds since 1970."""
        statistics = {
            "numRecords": self.rows,
            "minValues": dict(self.smallest),
            "maxValues": dict(self.largest),
            "nullCount": dict(self.null_counts),
        }
        # Looked up now: a file that is gone must not be listed.
        size = (table / self.name).size()
        return AddAction(self.name, size, {}, moment, True, json.dumps(statistics))


@dataclass(frozen=True)
class TableFile:
    """A file that one version of a table consists of.

    Attributes:
        name: file name, relative to the table.
        rows: number of rows.
        size: bytes.
        columns: names of the columns it has.
    """

    name: str
    rows: int
    size: int
    columns: frozenset[str]


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
        self._delta, self.newest = _open_delta(path, version)

    @staticmethod
    def create(path: Place, schema: pa.Schema) -> None:
        """Create an empty table, or take over one that an interrupted creation left.

        Raises:
            StoreExistsError: a table with other columns, or with files, is there already.
        """
        path.make_folder()
        DeltaTable.create(
            str(path),
            Schema.from_arrow(schema),
            mode="ignore",
            configuration=_CONFIGURATION,
            storage_options=path.options,
        )
        there = Table(path)
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
        """Move to the newest version."""
        self._delta.update_incremental()

    def files(self) -> list[TableFile]:
        """The files of the pinned version, in the order in which they were committed."""
        actions = pa.table(self._delta.get_add_actions(flatten=True))
        counts = [name for name in actions.column_names if name.startswith("null_count.")]
        rows = actions.to_pylist()
        rows.sort(key=lambda row: (row["modification_time"], row["path"]))
        return [
            TableFile(
                row["path"],
                row["num_records"] or 0,
                row["size_bytes"],
                frozenset(name.removeprefix("null_count.") for name in counts if row[name] is not None),
            )
            for row in rows
        ]

    def _newest_moment(self) -> int:
        """The latest modification time of a file: later commits count from there, whatever the clock says."""
        moments = pa.table(self._delta.get_add_actions(flatten=True)).column("modification_time")
        return int(moments.to_numpy().max()) if len(moments) else 0

    def history(self) -> list[dict[str, Any]]:
        """One entry per commit up to the pinned version, newest first, as the log has them."""
        # A pinned handle numbers the whole log down from its own version; the newest one numbers it right.
        entries = DeltaTable(str(self.path), storage_options=self.path.options).history()
        return [entry for entry in entries if entry["version"] <= self.version]

    def applied(self, run_id: str) -> int:
        """The last segment number that a run committed to this table, or -1."""
        found = self._delta.transaction_version(run_id)
        return -1 if found is None else found

    def ensure_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add the columns that the table does not have yet; columns of the same name are left alone.

        Raises:
            ConcurrentCommitError: other writers kept winning.
        """

        def attempt() -> None:
            known = {column.name.casefold() for column in self.schema}
            missing = [column for column in columns if column.name.casefold() not in known]
            if missing:
                self._delta.alter.add_columns([_delta_field(column) for column in missing])

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
        properties = CommitProperties(
            custom_metadata={key: str(value) for key, value in (details or {}).items()},
            app_transactions=[Transaction(run_id, segment)],
        )

        def attempt() -> None:
            if self.applied(run_id) >= segment:
                return
            now = max(time.time_ns() // 1_000_000, self._newest_moment() + 1)
            actions: list[AddAction | RemoveAction] = [RemoveAction(name, True, now) for name in removed]
            actions += [new.action(self.path, now) for new in added]
            self._delta.create_write_transaction(
                actions, "append", self._delta.schema(), commit_properties=properties
            )

        self._retry(attempt, "commit")
        self._sync_log()

    def _retry(self, attempt: Callable[[], None], action: str) -> None:
        for number in range(_ATTEMPTS):
            with guard_access(action, self.path):
                self.refresh()
                try:
                    attempt()
                    self.refresh()
                    return
                except CommitFailedError:
                    time.sleep(_PAUSE_SECONDS * (1 + random.random()) * min(number + 1, 10))
        raise ConcurrentCommitError(
            f"Could not {action} in {self.path}: other writers committed first, {_ATTEMPTS} times in a row. "
            "Nothing is lost: the journal keeps the rows. Try again, or run fewer writers at once."
        )

    def _sync_log(self) -> None:
        log = self.path / "_delta_log"
        entry = log / f"{self.version:020d}.json"
        with contextlib.suppress(FileNotFoundError):
            entry.sync()
        log.sync()
        self.path.sync()


def _delta_field(column: pa.Field) -> DeltaField:
    metadata = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
    (field,) = Schema.from_arrow(pa.schema([column.with_metadata(metadata)])).fields
    return field


def _check_log(path: Place) -> None:
    """Refuse what the table library takes for a table without its last commits."""
    log = path / "_delta_log"
    with guard_access("read", log):
        try:
            found = [entry for entry in log.entries() if _is_commit(entry.name)]
        except NotADirectoryError:
            found = []
    if not found:
        raise CorruptStoreError(f"The table {path} is missing. Restore it from a copy of the store.")
    empty = [entry.name for entry in found if not entry.size]
    if empty:
        raise CorruptStoreError(
            f"The log of the table {path} is damaged: {', '.join(sorted(empty))} is empty."
        )


def _is_commit(name: str) -> bool:
    return name.endswith(".json") and name[:-5].isdigit()


def _open_delta(path: Place, version: int | None) -> tuple[DeltaTable, bool]:
    """The table at a version, and whether that is the newest."""
    _check_log(path)
    try:
        newest = DeltaTable(str(path), storage_options=path.options)
        if version is None or version == newest.version():
            return newest, True
        if not 0 <= version <= newest.version():
            raise VersionNotFoundError(
                f"There is no version {version} of {path.parent}; there are 0 to {newest.version()}."
            )
        return DeltaTable(str(path), version=version, storage_options=path.options), False
    except (DeltaError, TableNotFoundError, OSError, ValueError) as error:
        if isinstance(error, VersionNotFoundError):
            raise
        if isinstance(error, PermissionError):
            with guard_access("read", path):
                raise
        raise CorruptStoreError(
            f"The log of the table {path} cannot be read: {error}. Restore {path / '_delta_log'} from a copy."
        ) from error
