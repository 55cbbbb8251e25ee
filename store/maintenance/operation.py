"""One maintenance operation: its lock, its name, the tables at their newest version, its two commits.

Operations of one machine wait for each other. Where several machines share a store, the one that commits
second finds its files replaced, takes its first commit back and raises `ConcurrentCommitError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from ..annotation_files import PROPERTY
from ..errors import ConcurrentCommitError
from ..files import guard_access
from ..handle import StoreHandle
from ..layout import EPISODES, STEPS
from ..listed_files import NewFile, TableFile
from ..names import time_ordered_suffix
from ..parquet import open_parquet, reading_error
from ..places import Place
from ..sealer import Tables
from ..table_files import list_steps_file, write_table_file

#: Called with how much is done and how much there is to do, in bytes or files.
Progress = Callable[[int, int], None]

_LOCK = "maintenance.lock"
_POLL_SECONDS = 0.05
_OWN_FILE = re.compile(r"[a-z]+\.[0-9a-z]{15}-\d{6}\.parquet")


def is_maintenance_file(name: str) -> bool:
    """Whether a maintenance operation wrote a file, and not a run, whose id has a dash before its suffix."""
    return _OWN_FILE.fullmatch(name) is not None


@dataclass
class Operation:
    """One operation on the newest version of a store.

    Attributes:
        store: the store.
        kind: "compact", "delete", ...: what the history calls it.
        tables: the three tables, refreshed when the operation began.
        id: a name that no other operation has.
    """

    store: StoreHandle
    kind: str
    tables: Tables
    id: str
    _files: int = field(default=0)

    def __post_init__(self) -> None:
        #: The list of step annotations, and the episodes files, when the operation began.
        self.annotations_text = self.tables.episodes.properties().get(PROPERTY)
        self.began_with = frozenset(file.name for file in self.tables.episodes.files())

    @staticmethod
    @contextlib.contextmanager
    def begin(store: StoreHandle, kind: str) -> Iterator[Operation]:
        """Wait for other operations of this machine, then work on the newest version.

        Raises:
            StoreAccessError: the lock's file cannot be made.
        """
        with _locked(store):
            yield Operation(store, kind, Tables.open(store.layout), f"{kind}.{time_ordered_suffix()}")

    def next_name(self) -> str:
        """The name for the next new pair of files."""
        self._files += 1
        return f"{self.id}-{self._files - 1:06d}.parquet"

    def read_episodes(self, files: Sequence[TableFile], columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of some files of the episodes table, with the newest version's columns.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
        """
        wanted = [c for c in self.tables.episodes.schema if columns is None or c.name in columns]
        schema = pa.schema(wanted)
        tables = []
        for file in files:
            place = self.episodes_place(file.name)
            try:
                found = open_parquet(place).read(columns=schema.names)
            except (pa.ArrowException, OSError) as error:
                raise reading_error(place, error) from error
            if found.num_rows != file.rows:
                raise reading_error(
                    place, ValueError(f"it has {found.num_rows} rows, {file.rows} were committed")
                )
            arrays = [
                found.column(column.name)
                if column.name in found.column_names
                else pa.nulls(found.num_rows, column.type)
                for column in schema
            ]
            tables.append(pa.table(arrays, schema=schema))
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def write_episodes(self, name: str, table: pa.Table, moment: int | None) -> NewFile:
        """Write a file of the episodes table; loose and added columns that are all NULL are left out.

        Raises:
            StoreAccessError: it could not be written.
        """
        standard = set(self.store.schema.episodes.names)
        kept = [
            name
            for name, column in zip(table.column_names, table.columns, strict=True)
            if name in standard or column.null_count < table.num_rows
        ]
        return write_table_file(self.episodes_place(name), table.select(kept), moment)

    def episodes_place(self, name: str) -> Place:
        """A file of the episodes table."""
        return self.store.layout.table(EPISODES) / name

    def commit(
        self,
        steps: tuple[Sequence[NewFile], Sequence[TableFile]],
        episodes: tuple[Sequence[NewFile], Sequence[TableFile]],
        details: Mapping[str, Any] | None = None,
        columns: Callable[[pa.Schema], pa.Schema] | None = None,
    ) -> None:
        """Commit `(added, removed)` files, first to `steps`, then to `episodes`.

        Args:
            details: what the history says besides the kind.
            columns: gives the episodes table's new columns for those of the newest version.

        Raises:
            ConcurrentCommitError: the episodes were changed by others meanwhile; nothing shows.
        """
        added, removed = steps
        brought = [file for file in episodes[0] if not episodes[1]]
        if added or removed:
            self.tables.steps.replace(added, [file.name for file in removed], self.id, self._details())
        try:
            new, old = episodes
            self.tables.episodes.replace(
                new,
                [file.name for file in old],
                self.id,
                self._details(details),
                columns,
                partial(self._check_unchanged, brought),
            )
        except ConcurrentCommitError:
            self._take_back(added, removed)
            raise

    def set_property(self, change: Callable[[str | None], str], details: Mapping[str, Any]) -> None:
        """Change the list of step annotations.

        Raises:
            ConcurrentCommitError: other machines rewrote segments meanwhile, or kept winning.
        """

        def check() -> None:
            there = {file.name for file in self.tables.episodes.files()}
            if not self.began_with <= there:
                raise ConcurrentCommitError(self._lost())

        self.tables.episodes.set_property(PROPERTY, change, details, check)
        self.annotations_text = self.tables.episodes.properties().get(PROPERTY)

    def _check_unchanged(self, brought: Sequence[NewFile]) -> None:
        """Refuse a commit over one of another machine that this operation knows nothing of.

        Args:
            brought: files with episodes that the store did not have when the operation began.
        """
        episodes = self.tables.episodes
        fresh = [file for file in episodes.files() if file.name not in self.began_with]
        overlap = any(_may_share_episodes(old, new) for old in fresh for new in brought)
        if overlap or episodes.properties().get(PROPERTY) != self.annotations_text:
            raise ConcurrentCommitError(self._lost())

    def _lost(self) -> str:
        return (
            f"Another operation changed {self.store.layout.root} meanwhile; nothing of this one shows. Call "
            "again."
        )

    def _take_back(self, added: Sequence[NewFile], removed: Sequence[TableFile]) -> None:
        if not added and not removed:
            return
        listed = {file.name for file in self.tables.steps.files()}
        self.tables.steps.replace(
            [file.again() for file in removed if file.name not in listed],
            [file.name for file in added if file.name in listed],
            f"{self.id}.back",
            {"episodelake.operation": f"{self.kind} taken back"},
        )

    def _details(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        told = {f"episodelake.{key}": value for key, value in (more or {}).items()}
        return {"episodelake.operation": self.kind, **told}


def _may_share_episodes(old: TableFile, new: NewFile) -> bool:
    low, high = old.bounds("episode_id") or ("", "\U0010ffff")
    return low <= new.largest["episode_id"] and new.smallest["episode_id"] <= high


@contextlib.contextmanager
def _locked(store: StoreHandle) -> Iterator[None]:
    path = store.layout.journals / _LOCK
    with guard_access("lock the store for maintenance", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _taken(descriptor):
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    # Asked again and again instead of waiting: some libraries have the system call go on after Ctrl-C.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def reconcile(operation: Operation) -> list[str]:
    """Make the list of `steps` agree with the episodes again after an operation died between its commits.

    Returns:
        The files whose listing was mended.
    """
    tables = operation.tables
    pointed = set(
        operation.read_episodes(tables.episodes.files(), ["segment"]).column("segment").unique().to_pylist()
    )
    listed = {file.name: file for file in tables.steps.files()}
    stray = [name for name in listed if name not in pointed and is_maintenance_file(name)]
    folder = operation.store.layout.table(STEPS)
    lost = [list_steps_file(folder / name) for name in sorted(pointed - listed.keys())]
    if stray or lost:
        tables.steps.replace(lost, stray, f"{operation.id}.list", {"episodelake.operation": "list mended"})
    return [*stray, *(file.name for file in lost)]
