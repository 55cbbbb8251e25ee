"""One version of a Delta table: its columns, files, properties and history.

Snapshots read tables here; `table` adds commits. Moving to a newer version costs what was committed since.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ..errors import CorruptStoreError
from ..files import Place
from .log import (
    TableFile,
    commit_actions,
    commit_information,
    commit_name,
    commit_place,
    commit_text,
    first_version,
    history_entry,
    read_commits,
)
from .state import PUBLISHED, LogGapError, follow_log, metadata_of, open_log, retry_log_read

#: The year 10000, in milliseconds.
_LATEST = 253_402_300_800_000


class TableVersion:
    """One version of a Delta table of a store.

    Args:
        path: directory of the table.
        version: the version; None for the newest.
        names: the files of its log as `listed_log` has just returned them; None to list them.

    Attributes:
        newest: whether the version was the newest when it was read.

    Raises:
        CorruptStoreError, VersionNotFoundError
    """

    def __init__(self, path: Place, version: int | None = None, names: Sequence[str] | None = None) -> None:
        self.path = path
        self._state, self.newest = open_log(path, version, names)

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._state.version

    @property
    def last_commit(self) -> bytes | None:
        """The bytes of the commit that made the version; None if a checkpoint alone has it."""
        return self._state.last

    def check_writable(self) -> None:
        """Refuse to write to a table that another program gave features which writers must heed.

        Raises:
            FormatVersionError: it has some.
        """
        self._state.check_writable()

    @property
    def schema(self) -> pa.Schema:
        """Names, types and kinds of the columns."""
        return self._state.metadata.schema

    def applied(self, application: str) -> int:
        """Return the last transaction of an application, such as a run's last segment number; -1 without
        one.
        """
        return self._state.transactions.get(application, -1)

    def properties(self) -> dict[str, str]:
        """Return the properties of the table."""
        return dict(self._state.metadata.properties)

    def moved(self, path: Place) -> TableVersion:
        """Return the same version of a table that was renamed, without reading it."""
        there = copy.copy(self)
        there.path, there._state = path, replace(self._state, table=path)
        return there

    def advanced(self) -> TableVersion:
        """Return the newest version for reading, at the cost of what was committed since this one.

        Raises:
            CorruptStoreError: a commit is damaged.
            StoreAccessError: the log cannot be read.
        """
        try:
            state = follow_log(self._state)
        except LogGapError as gap:
            state = gap.state
        if state is None:
            return TableVersion(self.path)
        newest = copy.copy(self)
        newest.newest, newest._state = True, state
        return newest

    def files(self) -> list[TableFile]:
        """Return the files, in the order in which they were committed.

        Raises:
            CorruptStoreError: a name leads out of the table's folder, or its statistics are impossible.
        """
        files = sorted(self._state.files.values(), key=lambda file: (file.moment, file.name))
        for file in files:
            file.check(self.path)
        return files

    def history(self) -> list[dict[str, Any]]:
        """Return one entry per commit up to this version, newest first, as far back as the log goes."""
        return retry_log_read(self.path, self._history)

    def _history(self) -> list[dict[str, Any]]:
        first = first_version(self.path)
        versions = range(first, self.version + 1)
        entries = []
        commits = read_commits(self.path, versions, checksummed=self._state.checksummed)
        for version, data in zip(versions, commits, strict=True):
            for action in commit_actions(self.path, version, data):
                if "commitInfo" in action:
                    entries.append(history_entry(dict(action["commitInfo"]), version))
        for entry in entries:
            moment = entry.get("timestamp")
            if type(moment) is not int or not 0 <= moment < _LATEST:
                raise CorruptStoreError(
                    f"The log of the table {self.path} is damaged: commit {entry['version']} has the time "
                    f"{moment!r}; expected milliseconds since 1970."
                )
        return entries[::-1]


def fold_log(table: Place, moment: int) -> None:
    """Replace the log of a table that no other process uses by one commit, and refuse later commits.

    The bytes of a published version then depend on the table's content alone.

    Args:
        table: the table's folder.
        moment: milliseconds since 1970, the time of the commit.

    Raises:
        CorruptStoreError: the log is damaged.
        StoreAccessError: it cannot be read or written.
    """
    state, _ = open_log(table)
    files = sorted(state.files.values(), key=lambda file: (file.moment, file.name))
    properties = {**state.metadata.properties, PUBLISHED: "1"}
    described = metadata_of(state.metadata.schema, properties)
    # The table library writes the metadata of columns in any order.
    described["schemaString"] = json.dumps(json.loads(described["schemaString"]), sort_keys=True)
    name = f"{table.name} {described} {[file.name for file in files]}"
    metadata = {"id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)), **described, "createdTime": moment}
    listed = [file.as_new(file.name).action(table, moment + index) for index, file in enumerate(files)]
    actions = [{"protocol": dict(state.protocol)}, {"metaData": metadata}, *listed]
    log = table / "_delta_log"
    for former in log.names():
        if former != commit_name(0):
            (log / former).remove()
    details = {"episodelake.operation": "publish"}
    information = commit_information("WRITE", moment, details)
    commit_place(table, 0).write(commit_text(table.name, 0, actions, information))
