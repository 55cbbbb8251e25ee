"""The state of a table at a version, replayed from its log.

Readers and writers open a table here, and follow the commits that others add. A log that is listed beside
commits may show a gap, or files that are cleaned before they are read; such reads are repeated.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import (
    CorruptStoreError,
    FormatVersionError,
    MissingFileError,
    StoreAccessError,
    VersionNotFoundError,
)
from ..files import Place
from ..files.access import check_process
from ..layout import CHECKPOINT_MARK, checksum_of_end
from .checkpoints import checkpoint_fits, read_checkpoint
from .columns import columns_of, schema_text
from .log import (
    MOST_REPEATED,
    PROPERTY,
    TableFile,
    actions_before,
    actions_text,
    changed_error,
    check_log,
    checkpoint_name,
    checkpoints_of,
    commit_actions,
    commit_place,
    commits_of,
    find_commit,
    first_version,
    has_checksum,
    oldest_version,
    read_commits,
    reading_commit,
)

#: The newest version of the Delta protocol for writers that Episodelake follows.
_WRITER_VERSION = 2
_APPEND_ONLY = "delta.appendOnly"
_CONSTRAINTS = "delta.constraints."
#: A table with this property belongs to a published version, which never changes.
PUBLISHED = "episodelake.published"
#: Commits after which opening a table again costs less than following each.
_MOST_FOLLOWED = 100
_PAUSE_SECONDS = 0.02
_LOOKS = 10
_FILE = ("path", "size", "modificationTime", "stats", "tags")
_CHECKPOINT_COLUMNS = ["protocol", "metaData", "txn", *(f"add.{name}" for name in _FILE)]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Metadata:
    """Columns and properties of a table.

    Attributes:
        content: the log's entry.
    """

    content: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The table's id, a UUID that no other table has."""
        return str(self.content["id"])

    @cached_property
    def properties(self) -> dict[str, str]:
        """Properties of the table."""
        properties = dict(self.content.get("configuration") or {})
        return {key: value for key, value in properties.items() if value is not None}

    @property
    def schema(self) -> pa.Schema:
        """Columns with their metadata."""
        return columns_of(self.content["schemaString"])

    @cached_property
    def asked_of_writers(self) -> list[str]:
        """The features of version 2 of the protocol that the table asks of writers."""
        asked = [name for name in self.properties if name.startswith(_CONSTRAINTS)]
        if str(self.properties.get(_APPEND_ONLY)).lower() == "true":
            asked.append(_APPEND_ONLY)
        for column in self.schema:
            for key in column.metadata or ():
                if key.startswith(b"delta."):
                    asked.append(f"{key.decode()} of {column.name!r}")
        return asked


@dataclass
class LogState:
    """A table at a version.

    Attributes:
        table: the table's folder.
        version: the number of the last commit.
        last: its bytes; None if a checkpoint alone has it.
        protocol: versions that readers and writers of the table need.
        metadata: columns and properties.
        files: the listed files, by name.
        transactions: the last transaction of each application.
        moment: the latest moment of a file; later commits count from there, whatever the clock shows.
        recent: of a table on an object store: the actions of the last commits, which the next one repeats.
    """

    table: Place
    version: int = -1
    last: bytes | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=lambda: Metadata({}))
    files: dict[str, TableFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    moment: int = 0
    recent: tuple[str, ...] = ()

    @property
    def marked(self) -> bool:
        """Whether commits must have checksums; one without is that of another program."""
        return PROPERTY in self.metadata.properties

    @property
    def checksummed(self) -> bool:
        """Whether checkpoints must have checksums too; object stores check their objects."""
        return self.table.local is not None and self.marked

    def add_commit(self, data: bytes, actions: Iterable[Mapping[str, Any]] | None = None) -> None:
        """Apply the commit after the version.

        Args:
            data: its bytes.
            actions: what it does, if that is known.

        Raises:
            CorruptStoreError: its actions cannot be read.
        """
        with reading_commit(self.table, self.version + 1):
            for action in actions or commit_actions(self.table, self.version + 1, data):
                for kind, content in action.items():
                    self.apply(kind, content)
        if self.table.local is None:
            self.recent = (*self.recent, actions_text(data))[-MOST_REPEATED:]
        # At once: with the content of another version the log would look like that of another store.
        self.version, self.last = self.version + 1, data

    def apply(self, kind: str, content: Mapping[str, Any]) -> None:
        """Apply one action of a commit or of a checkpoint.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: its content is none of an action.
        """
        if kind == "add":
            self.add_file(TableFile.of(*(content.get(name) for name in _FILE)))
        elif kind == "remove":
            self.files.pop(unquote(content["path"]), None)
        elif kind == "txn":
            self.transactions[content["appId"]] = int(content["version"])
        elif kind == "metaData":
            self.metadata = Metadata(dict(content))
        elif kind == "protocol":
            self.protocol = dict(content)

    def add_file(self, file: TableFile) -> None:
        """List a file."""
        self.files[file.name] = file
        self.moment = max(self.moment, file.moment)

    def check_readable(self) -> None:
        """Refuse a table that another program gave features which readers of it must heed.

        Raises:
            CorruptStoreError: the log has no columns or no protocol, or damaged ones.
            FormatVersionError: it has such features.
        """
        try:
            needed = int(self.protocol["minReaderVersion"]), int(self.protocol["minWriterVersion"])
            partitions = list(self.metadata.content["partitionColumns"])
            _ = self.metadata.id, self.metadata.properties
            if needed[0] <= 1:
                _ = self.metadata.schema
        except MemoryError:
            raise
        except Exception as error:
            # The table library has its own exceptions for columns that it cannot read.
            raise CorruptStoreError(
                f"The log of the table {self.table} cannot be read: its protocol or columns are damaged "
                f"({type(error).__name__}: {error}). Restore {self.table / '_delta_log'} from a copy."
            ) from error
        if needed[0] > 1 or partitions:
            raise FormatVersionError(
                f"The table {self.table} needs version {needed[0]} of the Delta protocol or has partitions: "
                "another program changed it. Episodelake reads version 1 without partitions. Read it with "
                "that program, or restore the table from a copy."
            )

    def check_writable(self) -> None:
        """Refuse to write to a table that asks more of writers than Episodelake does.

        Version 2 of the protocol asks for two things besides: append-only tables and invariants.

        Raises:
            FormatVersionError: another program gave the table such features.
            StoreAccessError: the table belongs to a published version.
        """
        if PUBLISHED in self.metadata.properties:
            raise StoreAccessError(
                f"{self.table.parent} is a published version, which never changes. To record into it or to "
                "maintain it, make a store of your own with EpisodeStore.copy."
            )
        asked = self.metadata.asked_of_writers
        version = int(self.protocol["minWriterVersion"])
        if version > _WRITER_VERSION or asked:
            named = f" with {', '.join(asked)}" if asked else ""
            raise FormatVersionError(
                f"The table {self.table} needs a writer of version {version} of the Delta protocol{named}: "
                f"another program changed it. Episodelake writes version {_WRITER_VERSION} without such "
                "features. To write, copy the episodes into a new store with EpisodeStore.copy."
            )


def listed_log(table: Place) -> list[str]:
    """Return the names of the files of a table's log; see `check_log`."""
    return retry_log_read(table, partial(check_log, table))


def open_log(
    table: Place, version: int | None = None, names: Sequence[str] | None = None
) -> tuple[LogState, bool]:
    """Return the state of a table at a version, and whether that is the newest.

    Args:
        table, version: which; None for the newest version.
        names: what `listed_log` has just returned; None to list the log.

    Raises:
        CorruptStoreError: the log is damaged.
        FormatVersionError: another program gave the table features that Episodelake does not read.
        StoreAccessError: the log cannot be read.
        VersionNotFoundError: there is no such version.
    """
    check_process()
    listed = [names] if names is not None else []
    # What is read again is listed again.
    return retry_log_read(
        table, lambda: _open_log(table, version, listed.pop() if listed else check_log(table))
    )


def follow_log(state: LogState) -> LogState | None:
    """Return the newest state, at the cost of what was committed since.

    Returns:
        The state, or the same one if it is the newest. None if so many commits follow that opening the table
        costs less, or if the log was cleaned or replaced meanwhile.

    Raises:
        LogGapError: a commit is missing.
        CorruptStoreError: a commit is damaged.
        FormatVersionError: another program gave the table features that Episodelake does not read.
        StoreAccessError: a commit cannot be read.
    """
    check_process()
    return retry_log_read(state.table, partial(_follow_log, state))


class LogGapError(CorruptStoreError):
    """A commit is missing although a later one is there; `state` is the newest before it.

    A file system that caches absence may hide a commit for some seconds, so readers keep that state, and
    opening the table reports a gap that stays. Writers do not commit into a gap.
    """

    def __init__(self, table: Place, version: int, state: LogState) -> None:
        super().__init__(*_gap_error(table, version).args)
        self.state = state


def _follow_log(state: LogState) -> LogState | None:
    newer = state
    for version in range(state.version + 1, state.version + 2 + _MOST_FOLLOWED):
        data = find_commit(state.table, version, checksummed=state.marked)
        if data is None:
            # In this order: while the version is there, no later one was cleaned.
            if find_commit(state.table, state.version, known=state.last) != state.last:
                return None
            if newer is not state:
                newer.check_readable()
            if state.table.local is not None and commit_place(state.table, version + 1).exists():
                raise LogGapError(state.table, version, newer)
            return newer
        if newer is state:
            newer = replace(state, files=dict(state.files), transactions=dict(state.transactions))
        newer.add_commit(data)
    return None


def _open_log(table: Place, version: int | None, names: Sequence[str]) -> tuple[LogState, bool]:
    commits, checkpoints = commits_of(names), checkpoints_of(names)
    first = oldest_version(commits, checkpoints)
    newest = max(commits[-1:] + checkpoints[-1:])
    wanted = newest if version is None else version
    if not first <= wanted <= newest:
        cleaned = " Older ones were vacuumed." if 0 <= wanted < first else ""
        raise VersionNotFoundError(
            f"There is no version {wanted} of {table.parent}; there are {first} to {newest}.{cleaned}"
        )
    start = max((each for each in checkpoints if each <= wanted), default=-1)
    expected = start + 1
    for number in commits:
        if number > expected:
            break
        expected = max(expected, number + 1)
    if expected <= newest:
        raise _gap_error(table, expected)
    return _replayed(table, start, wanted), wanted == newest


def _replayed(table: Place, start: int, wanted: int) -> LogState:
    """Return the state at a version that is there, replayed from a checkpoint, -1 for the first commit.

    On an object store the last commit repeats those before it, and is asked for beside the checkpoint.
    """
    state, last = LogState(table), None
    with contextlib.ExitStack() as stack:
        if table.local is None:
            pool = stack.enter_context(ThreadPoolExecutor(1, "episodelake log"))
            last = pool.submit(find_commit, table, wanted)
        unfit = [] if start < 0 else _add_checkpoint(state, start)
        newest = find_commit(table, wanted) if last is None and wanted == start else last and last.result()
    repeated: list[str] = []
    single = range(start + 1, wanted + 1)
    if newest is not None and wanted > start:
        repeated = actions_before(table, wanted, newest)
        single = range(start + 1, wanted - len(repeated))
    foreign: list[tuple[Place, bytes]] = []

    def add(number: int, data: bytes) -> None:
        if not has_checksum(data):
            foreign.append((commit_place(table, number), data))
        state.add_commit(data)

    for number, data in zip(single, read_commits(table, single), strict=True):
        add(number, data)
    for text in repeated[max(state.version + 1 - (wanted - len(repeated)), 0) :]:
        state.add_commit(text.encode())
    if newest is not None and wanted > start:
        add(wanted, newest)
    # A table that another program upgraded has commits without our checksums.
    state.check_readable()
    if unfit and state.checksummed:
        raise changed_error(unfit[0])
    if foreign and state.marked:
        raise changed_error(*foreign[0])
    if wanted == start:
        state.last = newest
    return state


def _gap_error(table: Place, version: int) -> CorruptStoreError:
    return CorruptStoreError(
        f"The log of the table {table} cannot be read: it has a gap, {commit_place(table, version)} is "
        "missing. Restore it from a copy."
    )


def _add_checkpoint(state: LogState, version: int) -> list[Place]:
    """Apply a checkpoint; return its file if its checksum does not match."""
    table = state.table
    place = table / "_delta_log" / checkpoint_name(version)
    data = read_checkpoint(table, version, checksummed=False)
    fits = checkpoint_fits(table.name, version, data)
    if not fits and table.local is not None and checksum_of_end(data, CHECKPOINT_MARK) is not None:
        raise changed_error(place)
    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).read(_CHECKPOINT_COLUMNS)
        for kind in ("protocol", "metaData", "txn"):
            for content in rows.column(kind).to_pylist():
                if content is not None:
                    state.apply(kind, content)
        # Without `drop_null`, which imports pyarrow.compute: that takes longer than opening a store.
        for chunk in rows.column("add").chunks:
            known = [
                chunk.field(name).to_pylist()
                if chunk.type.get_field_index(name) >= 0
                else [None] * len(chunk)
                for name in _FILE
            ]
            files = zip(*known, strict=True)
            for values in itertools.compress(files, _validity(chunk)):
                state.add_file(TableFile.of(*values))
        _ = state.metadata.id
    except MemoryError:
        # The file is not to blame; pyarrow's own error of memory is one, too.
        raise
    except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CorruptStoreError(
            f"The checkpoint {place} is damaged ({type(error).__name__}: {error}). Restore it from a copy; "
            "nothing was changed."
        ) from error
    state.version = version
    return [] if fits else [place]


def _validity(array: pa.Array) -> Sequence[int]:
    """Return 1 for each row that is not NULL, and 0 for the others."""
    bits = array.buffers()[0]
    if bits is None:
        return [1] * len(array)
    stop = array.offset + len(array)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little")[
        array.offset :
    ].tolist()


def retry_log_read(table: Place, look: Callable[[], _Result]) -> _Result:
    """Return the result of reading a table's log; changes that others make meanwhile are no damage.

    A folder that is listed beside commits may show a gap that is none, and a listed file may be cleaned
    before it is read. Damage counts when a second look confirms it.
    """
    for number in range(_LOOKS - 1):
        try:
            return look()
        except (OSError, CorruptStoreError) as error:
            if number and "gap" not in str(error) and not _was_cleaned(table, error):
                raise
            time.sleep(_PAUSE_SECONDS * (1 + random.random()))
    return look()


def _was_cleaned(table: Place, error: Exception) -> bool:
    """Return whether an error may come from a file that cleaning deleted meanwhile."""
    reason = error.__cause__ if isinstance(error, CorruptStoreError) else error
    if isinstance(reason, OSError) and not isinstance(reason, MissingFileError):
        return False
    return first_version(table) > 0


def metadata_of(schema: pa.Schema, configuration: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the part of a metaData action with a table's columns and properties."""
    return {
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_text(schema),
        "partitionColumns": [],
        "configuration": dict(configuration),
    }
