"""One version of a Delta table: its columns, files, properties and history, from a log whose checksums match.

Snapshots stand on it; `table` adds commits. Moving to a newer version costs what was committed since.
"""

from __future__ import annotations

import copy
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ..compatibility import add_actions
from ..errors import StoreAccessError
from ..files import guard_access
from ..places import Place
from .checksums import (
    PROPERTY,
    checkpoints_of,
    find_commit,
    first_version,
    read_checkpoint,
    read_commit,
    was_missing,
)
from .commit_log import changes_since
from .listed_files import TableFile, files_of
from .opening import check_process, check_protocol, check_writable, log_error, open_delta, retry_log_read

#: The year 10000, in milliseconds.
_LATEST = 253_402_300_800_000


class TableVersion:
    """One version of a Delta table of a store.

    Args:
        path: directory of the table.
        version: the version; None for the newest.

    Attributes:
        newest: whether the version was the newest when it was read.

    Raises:
        CorruptStoreError, VersionNotFoundError
    """

    def __init__(self, path: Place, version: int | None = None) -> None:
        self.path = path
        # Version and files of a table that `advanced` brought to a newer version than the library knows.
        self._later: tuple[int, list[TableFile]] | None = None
        self._delta, self.newest = open_delta(path, version)
        check_protocol(path, self._delta)
        # Whether commits and checkpoints must match their checksums; object stores check their objects.
        self._summed = path.local is not None and PROPERTY in self.properties()
        # The commit of the version, if it was read.
        self._last: bytes | None = None
        retry_log_read(path, self._check_sums)

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._delta.version() if self._later is None else self._later[0]

    def check_writable(self) -> None:
        """Refuse to write to a table that another program gave features which writers must heed.

        Raises:
            FormatVersionError: it has some.
        """
        check_writable(self.path, self._delta)

    @property
    def identity(self) -> str:
        """The table's id, a UUID that no other table has."""
        return str(self._delta.metadata().id)

    @property
    def schema(self) -> pa.Schema:
        """Names, types and kinds of the columns."""
        return pa.schema(self._delta.schema())

    def properties(self) -> dict[str, str]:
        """Return the properties of the table."""
        found = self._delta.metadata().configuration
        return {key: value for key, value in found.items() if value is not None}

    def advanced(self) -> TableVersion:
        """Return the newest version for reading, at the cost of what was committed since this one.

        Commits that only add and remove files are read one by one. After any other, and after very many, the
        table is opened again.

        Raises:
            CorruptStoreError: a commit is damaged.
            StoreAccessError: the log cannot be read.
        """
        check_process()
        changes = changes_since(self.path, self.version, self._last, summed=self._summed)
        if changes is None:
            return TableVersion(self.path)
        found = copy.copy(self)
        found.newest, found._last = True, changes.last
        if changes.version > self.version:
            files = [file for file in self.files() if file.name not in changes.removed]
            for row in changes.added:
                files += files_of(pa.Table.from_pylist([row]), self.path)
            files.sort(key=lambda file: (file.moment, file.name))
            found._later = (changes.version, files)
        return found

    def files(self) -> list[TableFile]:
        """Return the files, in the order in which they were committed."""
        if self._later is not None:
            return self._later[1]
        return files_of(add_actions(self._delta), self.path)

    def _check_sums(self, first: int | None = None) -> None:
        """Compare the files of the log that the version was read from with their checksums.

        Args:
            first: the first commit that was not compared before; None to begin with the checkpoint before
                the version, as for commits that were cleaned meanwhile.

        Raises:
            CorruptStoreError: a file of the log was changed.
        """
        if not self._summed:
            return
        if first is not None:
            try:
                self._read_commits(first)
                return
            except StoreAccessError as error:
                if not was_missing(error):
                    raise
        known = [version for version in checkpoints_of(self._log_names()) if version <= self.version]
        if known:
            read_checkpoint(self.path, known[-1])
        self._read_commits(known[-1] + 1 if known else 0)

    def _read_commits(self, first: int) -> None:
        """Compare the commits up to the version with their checksums, and keep the last one."""
        if first > self.version:
            self._last = find_commit(self.path, self.version)
        for version in range(first, self.version + 1):
            self._last = read_commit(self.path, version)

    def _log_names(self) -> list[str]:
        with guard_access("read", self.path):
            return (self.path / "_delta_log").names()

    def history(self) -> list[dict[str, Any]]:
        """Return one entry per commit up to this version, newest first, as far back as the log goes."""
        return retry_log_read(self.path, self._history)

    def _history(self) -> list[dict[str, Any]]:
        first = first_version(self._log_names())
        if first > self.version:
            return []
        self._check_sums(first)
        # A pinned handle numbers the whole log down from its own version; the newest one numbers it right.
        try:
            entries = DeltaTable(str(self.path), storage_options=self.path.options).history()
            if not all(
                type(entry["timestamp"]) is int and 0 <= entry["timestamp"] < _LATEST for entry in entries
            ):
                raise ValueError("a commit has an impossible time")
        except (DeltaError, OSError, KeyError, ValueError) as error:
            raise log_error(self.path, error) from error
        return [entry for entry in entries if first <= entry["version"] <= self.version]
