"""One maintenance operation: its lock, its name, the tables at their newest version, its two commits.

Operations of one machine wait for each other. Where several machines share a store, the one that commits
second finds its files replaced, takes its first commit back and raises `ConcurrentCommitError`. One that is
interrupted between its commits takes the first back too; after one that is killed there, the next operation,
recovery or writer makes the tables agree again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ..common.progress import Progress as Progress
from ..delta.log import NewFile, TableFile
from ..dynamic import logical_types as kinds
from ..dynamic.columns import align_to_schema
from ..errors import ConcurrentCommitError, EpisodelakeError, StoreAccessError
from ..files import Place, is_visible, make_folder, visible_step
from ..files.locks import MAINTENANCE_LOCK, FileLock, OtherHostError
from ..journal.run_journal import check_journals
from ..layout import EPISODES, STEPS, time_ordered_suffix
from ..parquet.files import open_parquet, read_parquet
from ..schema import StoreHandle
from ..segments.seal import Tables
from ..tables.annotation_files import PROPERTY, StepAnnotation, annotations_text, parse_annotations
from ..tables.overflow import Unification
from ..tables.table_files import list_steps_file, write_table_file

#: Operations that report what a dead one left, instead of mending it at once.
_REPORTING = ("verify", "repair")
_OWN_FILE = re.compile(r"[a-z]+\.[0-9a-z]{15}-\d{6}\.parquet")


def is_maintenance_file(name: str) -> bool:
    """Return whether a maintenance operation wrote a file; a run's id has a dash before its suffix."""
    return _OWN_FILE.fullmatch(name) is not None


@dataclass
class Operation:
    """One operation on the newest version of a store.

    Attributes:
        store: the store.
        kind: its name in the history: "compact", "delete", ...
        tables: the three tables, refreshed when the operation began.
        id: a name that no other operation has.
    """

    store: StoreHandle
    kind: str
    tables: Tables
    id: str

    def __post_init__(self) -> None:
        self._names = (f"{self.id}-{number:06d}.parquet" for number in itertools.count())
        #: The list of step annotations, and the episodes files, when the operation began.
        self.annotations_text = self.tables.episodes.properties().get(PROPERTY)
        self.began_with = frozenset(file.name for file in self.tables.episodes.files())

    @staticmethod
    @contextlib.contextmanager
    def begin(
        store: StoreHandle,
        kind: str,
        *,
        dry_run: bool = False,
        within: contextlib.AbstractContextManager[object] | None = None,
    ) -> Iterator[Operation]:
        """Wait for other operations of this machine, then work on the newest version.

        If an operation died between its commits the tables are mended first, except where that is reported.
        A dry run neither waits nor writes a lock, so a store that may only be read is enough for it.

        Args:
            store: the store.
            kind: its name in the history.
            dry_run: whether nothing is changed.
            within: entered with the lock held, before the tables are opened; left when the operation is done.

        Raises:
            StoreAccessError: the lock's file cannot be made, an operation of a host whose locks do not
                reach this one may be at work, or the store is a published version.
        """
        locked = contextlib.nullcontext() if dry_run else _locked(store)
        with locked, within or contextlib.nullcontext():
            operation = Operation(store, kind, Tables.open(store.layout), f"{kind}.{time_ordered_suffix()}")
            if not dry_run and kind not in _REPORTING:
                operation.tables.check_writable()
                if store.layout.is_unfinished():
                    reconcile(operation)
            yield operation

    def next_name(self) -> str:
        """Return the name for the next new pair of files."""
        return next(self._names)

    def read_episodes(self, files: Sequence[TableFile], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of some files of the episodes table, with the newest version's columns.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
        """
        schema = pa.schema([c for c in self.tables.episodes.schema if columns is None or c.name in columns])
        parts = (read_parquet(self.episodes_place(file.name), schema.names, rows=file.rows) for file in files)
        return pa.concat_tables([schema.empty_table(), *(align_to_schema(rows, schema) for rows in parts)])

    def segments_of(self, files: Sequence[TableFile]) -> set[str]:
        """Return the names of the steps files that some files of the episodes table point at."""
        columns = (self.read_episodes([file], ["segment"]).column("segment") for file in files)
        return {name for column in columns for name in column.unique().to_pylist()}

    def rewritten(
        self, files: Sequence[TableFile], change: Callable[[TableFile, pa.Table], pa.Table]
    ) -> list[NewFile]:
        """Write files of the episodes table again with changed rows; each keeps its place in the order.

        Raises:
            CorruptStoreError: a file is damaged; the message names it.
            StoreAccessError: a new file could not be written.
        """
        return [
            self.write_episodes(self.next_name(), change(file, self.read_episodes([file])), file.moment)
            for file in files
        ]

    def write_episodes(self, name: str, table: pa.Table, moment: int | None) -> NewFile:
        """Write a file of the episodes table; dynamic and added columns that are all NULL are left out.

        Raises:
            StoreAccessError: it could not be written.
        """
        standard = set(self.store.schema.episodes.names)
        kept = [
            name
            for name, column in zip(table.column_names, table.columns, strict=True)
            if name in standard or column.null_count < table.num_rows
        ]
        schema = self.store.schema
        written = write_table_file(self.episodes_place(name), table.select(kept), moment, schema)
        # Its commit may come much later, and `vacuum` of another machine may take the file for a leftover.
        return replace(written, size=None)

    def episodes_place(self, name: str) -> Place:
        """Return a file of the episodes table."""
        return self.store.layout.table(EPISODES) / name

    def commit(
        self,
        steps: tuple[Sequence[NewFile], Sequence[TableFile]],
        episodes: tuple[Sequence[NewFile], Sequence[TableFile]],
        details: Mapping[str, Any] | None = None,
        columns: Callable[[pa.Schema], pa.Schema] | None = None,
        unified: Mapping[str, Unification] | None = None,
        also: Callable[[], None] | None = None,
        transaction: str | None = None,
    ) -> None:
        """Commit `(added, removed)` files, first to `steps`, then to `episodes`.

        Args:
            details: entries of the history besides the kind.
            columns: gives the episodes table's new columns for those of the newest version.
            unified: new kinds of columns, by table; all files that have them are among the removed ones.
            also: called when the newest version of the episodes is known; raises if nothing may follow it.
            transaction: what is committed to `episodes` once only, by whichever operation; None for this one.

        Raises:
            ConcurrentCommitError: the episodes were changed by others meanwhile; nothing shows.
        """
        self.tables.check_writable()
        added, removed = steps
        new, old = episodes
        changed = unified or {}
        steps_changes = _changes(changed.get(STEPS), [file.name for file in removed])
        columns_of, kept = _changes(changed.get(EPISODES), [file.name for file in old])

        def check() -> None:
            self._check_unchanged([file for file in new if not old])
            if kept is not None:
                kept()
            if also is not None:
                also()

        both = bool(added or removed or STEPS in changed)
        transaction = transaction or self.id
        try:
            if both:
                self.note()
                names = [file.name for file in removed]
                self.tables.steps.replace(added, names, self.id, self._details(), *steps_changes)
            with self._visible_commit(transaction):
                self.tables.episodes.replace(
                    new,
                    [file.name for file in old],
                    transaction,
                    self._details(details),
                    columns or columns_of,
                    check,
                )
                # Not if the commit may be lost: the next operation then mends the list.
                if both:
                    with contextlib.suppress(StoreAccessError):
                        self._forget_unfinished()
        except BaseException:
            if both:
                # If this fails too, the note stays, and the next operation mends the list.
                with contextlib.suppress(EpisodelakeError):
                    self._take_back(added, removed, changed.get(STEPS))
            raise

    @contextlib.contextmanager
    def _visible_commit(self, transaction: str) -> Iterator[None]:
        """Make the commit to `episodes`; an error after it was made is no error of the operation."""
        episodes = self.tables.episodes
        with visible_step(f"The change ({self.kind}) of {self.store.layout.root} is committed"):
            try:
                yield
            except StoreAccessError as error:
                if is_visible(error) or not self._was_made(transaction):
                    raise
                episodes.sync()

    def _was_made(self, transaction: str) -> bool:
        """Return whether the commit to `episodes` was made although an error was raised."""
        with contextlib.suppress(EpisodelakeError):
            self.tables.episodes.refresh()
            return self.tables.episodes.applied(transaction) >= 0
        return False

    def note(self) -> None:
        """Note that the list of `steps` is to be mended if this process dies."""
        # A note that a crash leaves empty serves as well, and a temporary file would stay for ever.
        note = self.store.layout.unfinished_note
        with note.written() as path:
            path.write_text(self.id)

    def _forget_unfinished(self) -> None:
        note = self.store.layout.unfinished_note
        note.remove()

    @property
    def annotations(self) -> dict[str, StepAnnotation]:
        """The step annotations of the newest version, by name."""
        return parse_annotations(self.annotations_text, self.store.layout.root)

    def change_annotations(
        self,
        change: Callable[[dict[str, StepAnnotation]], Mapping[str, StepAnnotation]],
        kind: str,
        columns: str,
        transaction: str | None = None,
    ) -> None:
        """Change the list of step annotations.

        Args:
            change: returns the new list for that of the newest version.
            kind, columns: recorded in the history.
            transaction: as for `commit`; None for this change.

        Raises:
            CorruptStoreError: the list is damaged.
            ConcurrentCommitError: other machines rewrote segments meanwhile, or kept winning.
        """

        def changed(text: str | None) -> str:
            return annotations_text(change(parse_annotations(text, self.store.layout.root)))

        def check() -> None:
            there = {file.name for file in self.tables.episodes.files()}
            if not self.began_with <= there:
                raise ConcurrentCommitError(self._lost())

        details = {"episodelake.operation": kind, "episodelake.columns": columns}
        transaction = transaction or f"property.{time_ordered_suffix()}"
        with self._visible_commit(transaction):
            self.tables.episodes.set_property(PROPERTY, changed, transaction, details, check)
        self.annotations_text = self.tables.episodes.properties().get(PROPERTY)

    def _check_unchanged(self, brought: Sequence[NewFile]) -> None:
        """Refuse a commit over one of another machine that this operation has not seen.

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
            f"Another operation changed {self.store.layout.root} meanwhile; this one was not applied. Call "
            "again."
        )

    def _take_back(
        self, added: Sequence[NewFile], removed: Sequence[TableFile], unified: Unification | None
    ) -> None:
        """Undo the commit to `steps`, unless the one to `episodes` was made after all."""
        tables = self.tables
        tables.episodes.refresh()
        tables.steps.refresh()
        listed = {file.name for file in tables.steps.files()}
        lost = [file.again() for file in removed if file.name not in listed]
        stray = [file.name for file in added if file.name in listed]
        if tables.episodes.applied(self.id) < 0 and tables.steps.applied(self.id) >= 0:
            details = {"episodelake.operation": f"{self.kind} taken back"}
            revert = None if unified is None else unified.revert
            tables.steps.replace(lost, stray, f"{self.id}.back", details, revert)
        self._forget_unfinished()

    def _details(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        more_details = {f"episodelake.{key}": value for key, value in (more or {}).items()}
        return {"episodelake.operation": self.kind, **more_details}


def _changes(
    unified: Unification | None, replaced: Sequence[str]
) -> tuple[Callable[[pa.Schema], pa.Schema] | None, Callable[[], None] | None]:
    return (None, None) if unified is None else (unified.apply, unified.check(replaced))


def _may_share_episodes(old: TableFile, new: NewFile) -> bool:
    low, high = old.bounds("episode_id") or ("", "\U0010ffff")
    return low <= new.largest["episode_id"] and new.smallest["episode_id"] <= high


@contextlib.contextmanager
def _locked(store: StoreHandle, *, wait: bool = True, other_hosts: bool = False) -> Iterator[bool]:
    """Hold the lock of maintenance; False if another operation has it and `wait` is not set."""
    check_journals(store.layout.journals)
    path = store.layout.journals / MAINTENANCE_LOCK
    make_folder(path.parent)
    lock = None
    try:
        lock = FileLock.wait_for(path, math.inf if wait else 0, read_only=True, other_hosts=other_hosts)
        yield lock is not None
    finally:
        if lock is not None:
            lock.release(remove=False)


def finish_interrupted(store: StoreHandle, *, other_hosts: bool = False) -> None:
    """Mend the tables after an operation that died between its commits; a live one is left alone.

    Args:
        other_hosts: also after one of a host whose locks do not reach this one; none may be alive there.

    Raises:
        StoreAccessError, CorruptStoreError, ConcurrentCommitError: it cannot be mended now; call again.
    """
    with contextlib.suppress(OtherHostError), _locked(store, wait=False, other_hosts=other_hosts) as held:
        if held and store.layout.is_unfinished():
            tables = Tables.open(store.layout)
            reconcile(Operation(store, "recover", tables, f"recover.{time_ordered_suffix()}"))


def reconcile(operation: Operation) -> list[str]:
    """Make the list of `steps` agree with the episodes again after an operation died between its commits.

    Returns:
        The files whose listing was mended.
    """
    tables = operation.tables
    pointed = operation.segments_of(tables.episodes.files())
    listed = {file.name: file for file in tables.steps.files()}
    stray = [name for name in listed if name not in pointed and is_maintenance_file(name)]
    folder = operation.store.layout.table(STEPS)
    lost = [list_steps_file(folder / name) for name in sorted(pointed - listed.keys())]
    if stray or lost:
        # Where the operation gave columns other kinds, the files that come back have the former ones.
        types: dict[str, pa.DataType] = {}
        for file in lost if any(map(kinds.former_kinds, tables.steps.schema)) else ():
            in_file = open_parquet(folder / file.name).schema_arrow
            types |= dict(zip(in_file.names, in_file.types, strict=True))

        def former(schema: pa.Schema) -> pa.Schema:
            return pa.schema([kinds.as_in_file(c, types.get(c.name, c.type)) for c in schema])

        details = {"episodelake.operation": "list mended"}
        tables.steps.replace(lost, stray, f"{operation.id}.list", details, former if types else None)
    operation._forget_unfinished()
    return [*stray, *(file.name for file in lost)]
