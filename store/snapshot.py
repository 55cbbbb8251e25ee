"""A snapshot: what one version of a store shows.

It is one version of the episodes table; its steps are exactly the rows that its episodes point at. Opening it
reads the tables' logs only. Readers start here; nothing in it changes while writers go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from . import kinds
from .annotation_files import PROPERTY, AnnotationFiles, parse_annotations
from .errors import CorruptStoreError, VersionNotFoundError
from .file_checks import check_beside, check_listed, check_pages
from .files import guard_access
from .layout import EPISODES, RUNS, STEPS, Layout
from .listed_files import TableFile
from .manifest import Manifest
from .parquet import open_parquet, reading_error
from .places import Place
from .schema import RUNS_SCHEMA, StepSchema
from .tables import Table

_POINTERS = ["segment", "row_start", "row_count"]
_POINTER_SCHEMA = pa.schema(
    [
        ("segment", pa.dictionary(pa.int32(), pa.string())),
        ("row_start", pa.int64()),
        ("row_count", pa.int64()),
    ]
)


@dataclass(frozen=True)
class FileGroup:
    """Files of a table that have the same columns, in commit order."""

    places: tuple[Place, ...]
    columns: frozenset[str]


@dataclass(frozen=True)
class Pointers:
    """Where the steps of each episode are; one entry per position.

    Attributes:
        segments: names of the steps files.
        segment: int32, index into `segments`.
        row_start, row_count: int64, rows in that file.
    """

    segments: tuple[str, ...]
    segment: np.ndarray
    row_start: np.ndarray
    row_count: np.ndarray


class Snapshot:
    """One version of a store.

    Args:
        layout, manifest: the store.
        version: a version of the episodes table; None for the newest.
        left_out: names of files of episodes and of runs that are not shown, since they are damaged.
        lost_segments: segments whose files of steps are left out: frames and queries have no rows of them.

    Raises:
        VersionNotFoundError: there is no such version.
        CorruptStoreError: a table's log cannot be read.
    """

    def __init__(
        self,
        layout: Layout,
        manifest: Manifest,
        version: int | None = None,
        left_out: frozenset[str] = frozenset(),
        lost_segments: frozenset[str] = frozenset(),
    ) -> None:
        self.layout = layout
        self.manifest = manifest
        self.schema = StepSchema.of(manifest)
        # Episodes first: a segment's steps are committed before its episodes, so the steps table read
        # afterwards has every file that these episodes point at.
        self._left_out = left_out
        self._episodes = Table(layout.table(EPISODES), version)
        self._steps = Table(layout.table(STEPS))
        self._runs = Table(layout.table(RUNS))
        self.version = self._episodes.version
        #: Whether this was the newest version when the snapshot was taken.
        self.newest = self._episodes.newest
        self.lost_segments = lost_segments

    def __reduce__(self) -> tuple[Any, ...]:
        """As the same version of the same store, opened again where it is unpickled."""
        return Snapshot, (self.layout, self.manifest, self.version, self._left_out, self.lost_segments)

    @cached_property
    def episode_files(self) -> list[TableFile]:
        """Files of the episodes table in commit order."""
        return self._shown(self._episodes)

    def _shown(self, table: Table) -> list[TableFile]:
        return [file for file in table.files() if file.name not in self._left_out]

    @cached_property
    def episodes_schema(self) -> pa.Schema:
        """Columns of the episodes table with their kinds."""
        return checked_schema(self._episodes, self.schema.episodes)

    @cached_property
    def steps_schema(self) -> pa.Schema:
        """Columns of the steps table with their kinds."""
        return checked_schema(self._steps, self.schema.steps)

    @cached_property
    def runs_schema(self) -> pa.Schema:
        """Columns of the runs table with their kinds."""
        return checked_schema(self._runs, RUNS_SCHEMA)

    @cached_property
    def run_files(self) -> list[TableFile]:
        """Files of the runs table."""
        return self._shown(self._runs)

    @cached_property
    def annotation_files(self) -> AnnotationFiles:
        """The columns that were added to steps later, as of this version."""
        text = self._episodes.properties().get(PROPERTY)
        return AnnotationFiles(self.layout, parse_annotations(text, self.layout.root))

    def newer_version(self) -> int | None:
        """The store's newest version now, if that is a newer one than this snapshot's."""
        newest = Table(self.layout.table(EPISODES)).version
        return newest if newest > self.version else None

    def history(self) -> list[dict]:
        """Commits of the episodes table up to this version, newest first."""
        return self._episodes.history()

    @property
    def episode_count(self) -> int:
        """Number of episodes."""
        return sum(file.rows for file in self.episode_files)

    @cached_property
    def pointers(self) -> Pointers:
        """Where each episode's steps are; reads three small columns once.

        Raises:
            CorruptStoreError: an episodes file cannot be read, or a pointer leads out of the store.
        """
        tables = [self._read_episodes(file.name, _POINTERS) for file in self.episode_files]
        if not tables:
            return pointers_of(_POINTER_SCHEMA.empty_table(), self.layout.root)
        return pointers_of(pa.concat_tables(tables), self.layout.root)

    def segments_of(self, positions: np.ndarray) -> frozenset[str]:
        """The names of the steps files that hold the episodes at some positions."""
        return frozenset(
            self.pointers.segments[index] for index in np.unique(self.pointers.segment[positions])
        )

    def _read_episodes(self, name: str, columns: Sequence[str]) -> pa.Table:
        path = self.layout.table(EPISODES) / name
        try:
            found = open_parquet(path, dictionaries=["segment"]).read(columns=list(columns))
            if found.schema.types != _POINTER_SCHEMA.types:
                raise ValueError(f"it has {found.schema.types} for the row pointers")
            return found
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise reading_error(path, error) from error

    def segment_path(self, name: str) -> Place:
        """The steps file of a segment."""
        return self.layout.table(STEPS) / name

    @cached_property
    def listed_steps(self) -> list[TableFile]:
        """All files of the steps table as its newest version lists them."""
        return self._steps.files()

    @cached_property
    def step_files(self) -> list[TableFile]:
        """The steps files that this snapshot's episodes point at, in the order of first use."""
        known = {file.name: file for file in self.listed_steps}
        return [known.get(name) or self._unlisted(name) for name in self.pointers.segments]

    def readable(self, segments: Iterable[str]) -> list[str]:
        """Those of some segments that were not left out."""
        return [name for name in segments if name not in self.lost_segments]

    def _unlisted(self, name: str) -> TableFile:
        """A steps file that a later version no longer lists."""
        place = self.segment_path(name)
        file = open_parquet(place)
        return TableFile(name, file.metadata.num_rows, place.size(), 0, frozenset(file.schema_arrow.names))

    def check_segment(self, name: str) -> None:
        """Compare a segment's footer with what the log says of it, once in this process.

        Raises:
            CorruptStoreError: they differ, or the file is damaged.
        """
        check_listed(self.segment_path(name), self._segments[name], self.steps_schema)

    @cached_property
    def _segments(self) -> dict[str, TableFile]:
        return {file.name: file for file in self.step_files}

    def annotation_places(self, name: str, segments: Iterable[str]) -> list[Place]:
        """The files with the values of a step annotation for some segments, their footers checked.

        Raises:
            CorruptStoreError: one is damaged, or belongs to another segment.
        """
        found = [(segment, self.annotation_files.find(name, segment)) for segment in segments]
        places = [(segment, place) for segment, place in found if place is not None]
        for segment, place in places:
            check_beside(place, self._segments[segment])
        return self._handed_out([place for _, place in places])

    def segment_places(self, segments: Sequence[str]) -> list[Place]:
        """The files of some segments, checked for an engine.

        Raises:
            CorruptStoreError: one is damaged or missing; the message names the file.
        """
        for segment in segments:
            self.check_segment(segment)
        return self._handed_out([self.segment_path(segment) for segment in segments])

    def _handed_out(self, places: list[Place]) -> list[Place]:
        """Files that an engine is about to get."""
        if self.layout.check_pages:
            check_pages(places)
        return places

    @cached_property
    def hidden_rows(self) -> bool:
        """Whether some step file has rows that no episode of this snapshot points at."""
        rows = sum(file.rows for file in self.step_files)
        return bool(self.lost_segments) or bool(self.pointers.row_count.sum() != rows)

    def groups(self, table: str) -> Iterator[FileGroup]:
        """The files of a table as runs of consecutive files with the same columns."""
        files = self._files(table)
        folder = self.layout.table(table)
        start = 0
        for stop in range(1, len(files) + 1):
            if stop == len(files) or files[stop].columns != files[start].columns:
                places = tuple(folder / file.name for file in files[start:stop])
                yield FileGroup(places, files[start].columns)
                start = stop

    def places(self, table: str) -> list[Place]:
        """The files of a table that this snapshot shows, their footers checked: engines do not do that.

        Raises:
            CorruptStoreError: one is damaged or missing; the message names the file.
        """
        folder = self.layout.table(table)
        schema = self.table_schema(table)
        for file in self._files(table):
            check_listed(folder / file.name, file, schema)
        return self._handed_out([place for group in self.groups(table) for place in group.places])

    def _files(self, table: str) -> list[TableFile]:
        if table == STEPS:
            return [file for file in self.step_files if file.name not in self.lost_segments]
        return {EPISODES: self.episode_files, RUNS: self.run_files}[table]

    def table_schema(self, table: str) -> pa.Schema:
        """Columns of one of the three tables."""
        return {EPISODES: self.episodes_schema, RUNS: self.runs_schema, STEPS: self.steps_schema}[table]

    def shown_schema(self, table: str) -> pa.Schema:
        """The same with the columns that annotations add to steps, as frames and queries show them."""
        schema = self.table_schema(table)
        if table != STEPS:
            return schema
        added = self.annotation_files.annotations.values()
        names = {annotation.name for annotation in added}
        kept = [column for column in schema if column.name not in names]
        return pa.schema([*kept, *(pa.field(annotation.name, annotation.type) for annotation in added)])

    def check_retained(self) -> None:
        """Make sure that the files of this version are still there.

        Raises:
            VersionNotFoundError: they were vacuumed.
        """
        folder = self.layout.table(EPISODES)
        with guard_access("list", folder):
            there = {entry.name for entry in folder.entries()}
            lost = self.annotation_files.missing_folders()
        if lost or not there.issuperset(file.name for file in self.episode_files):
            raise VersionNotFoundError(
                f"Version {self.version} of {self.layout.root} was vacuumed: some of its files are gone. "
                "Open the newest version, or a tagged one."
            )


def checked_schema(table: Table, standard: pa.Schema) -> pa.Schema:
    """The columns of a table.

    Raises:
        CorruptStoreError: a standard column is missing or has another type; a kind does not fit its type.
    """
    schema = table.schema
    known = {column.name: column.type for column in schema}
    for column in standard:
        if known.get(column.name) != column.type:
            raise CorruptStoreError(
                f"The table {table.path} has {known.get(column.name, 'nothing')} as its column "
                f"{column.name!r}; expected {column.type}. Its log is damaged."
            )
    for column in schema:
        kind = kinds.field_kind(column)
        if kind is not None and kinds.physical_type(kind) != column.type:
            raise CorruptStoreError(
                f"The column {column.name!r} of {table.path} has the type {column.type}, but its kind "
                f"{kind!r} has {kinds.physical_type(kind)}. The table's log is damaged."
            )
    return schema


@dataclass(frozen=True)
class Selection:
    """Episodes of a snapshot: all, or those with certain ids.

    Attributes:
        snapshot: the snapshot.
        ids: their ids, in any order; None for all.
    """

    snapshot: Snapshot
    ids: pa.Array | None = None


def pointers_of(table: pa.Table, root: Place) -> Pointers:
    """The row pointers among the columns of rows of the episodes table.

    Raises:
        CorruptStoreError: a pointer leads out of the store, or cannot be one.
    """
    if any(table.column(name).null_count for name in _POINTERS):
        raise CorruptStoreError(f"The episodes table of {root} has row pointers that are NULL.")
    table = table.select(_POINTERS).cast(_POINTER_SCHEMA).unify_dictionaries().combine_chunks()
    if not table.num_rows:
        empty = np.zeros(0, np.int64)
        return Pointers((), empty.astype(np.int32), empty, empty)
    encoded = table.column("segment").combine_chunks()
    names = tuple(encoded.dictionary.to_pylist())
    for name in names:
        _check_segment(name, root)
    starts, counts = (table.column(name).to_numpy() for name in _POINTERS[1:])
    if encoded.null_count or (starts < 0).any() or (counts < 2).any():
        raise CorruptStoreError(f"The episodes table of {root} has impossible row pointers.")
    segment = encoded.indices.to_numpy()
    _check_apart(segment, starts, counts, root)
    return Pointers(names, segment, starts, counts)


def _check_apart(segment: np.ndarray, starts: np.ndarray, counts: np.ndarray, root: Place) -> None:
    """Refuse two episodes that share rows."""
    stops = starts + counts
    together = segment[1:] == segment[:-1]
    ordered = not (together & (starts[1:] < stops[:-1])).any()
    if not ordered or np.count_nonzero(~together) + 1 != len(np.unique(segment)):
        order = np.lexsort((starts, segment))
        segment, starts, stops = segment[order], starts[order], stops[order]
        if ((segment[1:] == segment[:-1]) & (starts[1:] < stops[:-1])).any() or (stops < 0).any():
            raise CorruptStoreError(f"The episodes table of {root} has episodes that share rows.")


def _check_segment(name: object, root: Place) -> None:
    if type(name) is not str or "/" in name or "\\" in name or name in ("", ".", ".."):
        raise CorruptStoreError(
            f"An episode of {root} points at the segment {name!r}; expected the name of a file in "
            f"its steps table."
        )
