"""A snapshot: one version of a store.

It is one version of the episodes table; its steps are exactly the rows that its episodes point at. Opening it
reads the tables' logs only. Readers start here; nothing in it changes while writers go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from .card import CardEntries
from .delta.log import TableFile
from .delta.version import TableVersion
from .dynamic import logical_types as kinds
from .dynamic.columns import array_kinds, remember
from .errors import CorruptStoreError, VersionNotFoundError
from .files import Place
from .layout import EPISODES, RUNS, STEPS, Layout, check_identity
from .manifest import Manifest, read_card
from .parquet.files import (
    check_annotation_footer,
    check_listed,
    forget_files,
    open_parquet,
    over_files,
    read_parquet,
)
from .parquet.page_checks import check_pages
from .schema import LAST_OBSERVATION, MISSING, RUNS_SCHEMA, StepSchema, checked_schema
from .tables.annotation_files import PROPERTY, AnnotationFiles, episode_annotations, parse_annotations
from .tables.episode_figures import EpisodeFigures, listed_figures
from .tables.overflow import Overflow, overflow_of
from .tables.table_files import FileGroup, Pointers, open_tables, read_pointers, run_ids

#: Row pointers are read file by file for the episodes of so many files.
_FEW_FILES = 8


class Snapshot:
    """One version of a store.

    Args:
        layout, manifest: the store.
        version, log: a version of the episodes table, None for the newest; as for `open_tables`.
        left_out: names of files of episodes and of runs that are not shown, since they are damaged.
        lost_segments: segments whose files of steps are left out: frames and queries have no rows of them.
        after: an earlier snapshot of the store; the newest version then costs what was committed since.

    Raises:
        VersionNotFoundError: there is no such version.
        CorruptStoreError: a table's log cannot be read.
        StoreNotFoundError: another store has replaced this one.
    """

    def __init__(
        self,
        layout: Layout,
        manifest: Manifest,
        version: int | None = None,
        left_out: frozenset[str] = frozenset(),
        lost_segments: frozenset[str] = frozenset(),
        *,
        after: Snapshot | None = None,
        log: Sequence[str] | None = None,
    ) -> None:
        self.layout = layout
        self.manifest = manifest
        self.schema = StepSchema.of(manifest)
        # Episodes first: steps, committed before their episodes and read after them, have all their files.
        self._left_out = left_out
        try:
            if after is None:
                forget_files(layout.root)
                self._episodes, self._steps, self._runs = open_tables(layout, version, log)
            else:
                self._episodes = after._episodes.advanced()
                others = over_files(TableVersion.advanced, (after._steps, after._runs), layout.root)
                self._steps, self._runs = others
        except (CorruptStoreError, VersionNotFoundError):
            check_identity(layout)
            raise
        # Afterwards: the tables of a store are made before its `store.json`.
        check_identity(layout)
        self.version = self._episodes.version
        #: Whether this was the newest version when the snapshot was taken.
        self.newest = self._episodes.newest
        self.lost_segments = lost_segments
        self._overflow: dict[str, Mapping[str, Overflow]] = {}
        self._groups: dict[str, tuple[FileGroup, ...]] = {}
        #: Files by table and name: joining a path takes longer than anything else that a query does with it.
        self._places: dict[tuple[str, str], Place] = {}
        #: The row pointers of single files of episodes, by name.
        self._of_files: dict[str, Pointers] = {}
        # The files of episodes that an earlier snapshot has read the row pointers of, and these.
        self._known: tuple[list[str], Pointers] | None = None
        if after is not None:
            read = "pointers" in after.__dict__
            names = [file.name for file in after.episode_files] if read else []
            self._known = (names, after.pointers) if read else after._known

    def move(self, layout: Layout) -> None:
        """Show the same version at another place, since the store was renamed, or has appeared.

        Nothing is read. Only for a snapshot that was just made, of which no files or rows were asked for.
        """
        self.layout = layout
        self._episodes = self._episodes.moved(layout.table(EPISODES))
        self._steps = self._steps.moved(layout.table(STEPS))
        self._runs = self._runs.moved(layout.table(RUNS))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as layout and version; the store is reopened on load."""
        return Snapshot, (self.layout, self.manifest, self.version, self._left_out, self.lost_segments)

    @property
    def card(self) -> CardEntries:
        """The dataset card of the store."""
        return read_card(self.layout)

    @property
    def commits(self) -> tuple[tuple[int, bytes | None], ...]:
        """The versions of episodes, steps and runs that it shows, each with its last commit.

        Copies of one store that went on apart have the same versions and other commits.
        """
        return tuple((each.version, each.last_commit) for each in (self._episodes, self._steps, self._runs))

    @cached_property
    def episode_files(self) -> list[TableFile]:
        """Files of the episodes table in commit order."""
        return self._shown(self._episodes)

    def _shown(self, table: TableVersion) -> list[TableFile]:
        return [file for file in table.files() if file.name not in self._left_out]

    @cached_property
    def episodes_schema(self) -> pa.Schema:
        """Columns of the episodes table with their kinds."""
        return checked_schema(self._episodes.path, self._episodes.schema, self.schema.episodes)

    @cached_property
    def steps_schema(self) -> pa.Schema:
        """Columns of the steps table with their kinds; of an older version, as its own files have them."""
        schema = checked_schema(self._steps.path, self._steps.schema, self.schema.steps)
        if not any(map(kinds.former_kinds, schema)):
            return schema
        listed = {file.name for file in self.listed_steps}
        files = [file for file in self.step_files if file.name not in listed]
        types: dict[str, pa.DataType] = {}
        for file in files:
            if not file.columns <= types.keys():
                types |= {c.name: c.type for c in open_parquet(self.segment_path(file.name)).schema_arrow}
        return pa.schema([kinds.as_in_file(c, types.get(c.name, c.type)) for c in schema])

    @cached_property
    def runs_schema(self) -> pa.Schema:
        """Columns of the runs table with their kinds."""
        return checked_schema(self._runs.path, self._runs.schema, RUNS_SCHEMA)

    @cached_property
    def last_missing(self) -> np.ndarray | None:
        """Bool, one per position: whether the episode lacks its last observation; None if none does."""
        name = LAST_OBSERVATION.name
        if not any(column.equals(LAST_OBSERVATION, check_metadata=True) for column in self._episodes.schema):
            return None
        missing_at = np.zeros(self.episode_count, bool)
        first = 0
        for file in self.episode_files:
            if name in file.columns:
                import pyarrow.compute as pc

                values = read_parquet(self._place(EPISODES, file.name), [name], rows=file.rows).column(0)
                missing = pc.call_function("equal", [values.cast(LAST_OBSERVATION.type), pa.scalar(MISSING)])
                missing_at[first : first + file.rows] = missing.fill_null(False).to_numpy()
            first += file.rows
        return missing_at if missing_at.any() else None

    def missing_at(self, positions: np.ndarray) -> np.ndarray | None:
        """Return whether the episodes at some positions lack their last observation; None if none does."""
        return None if self.last_missing is None else self.last_missing[positions]

    def rows_without_observation(self, segment: str) -> np.ndarray:
        """int64: the rows of a segment whose observation is missing."""
        return self._rows_without_observation.get(segment, np.zeros(0, np.int64))

    @cached_property
    def _rows_without_observation(self) -> dict[str, np.ndarray]:
        if self.last_missing is None:
            return {}
        pointers = self.pointers.chosen(self.last_missing)
        order = np.argsort(pointers.segment, kind="stable")
        rows = (pointers.row_start + pointers.row_count - 1)[order]
        numbers, firsts = np.unique(pointers.segment[order], return_index=True)
        parts = np.split(rows, firsts[1:])
        return {pointers.segments[number]: part for number, part in zip(numbers, parts, strict=True)}

    @cached_property
    def run_files(self) -> list[TableFile]:
        """Files of the runs table."""
        return self._shown(self._runs)

    @cached_property
    def annotation_files(self) -> AnnotationFiles:
        """The columns that were added to steps later, as of this version."""
        text = self._episodes.properties().get(PROPERTY)
        return AnnotationFiles(self.layout, parse_annotations(text, self.layout.root))

    @property
    def episode_annotations(self) -> list[str]:
        """The names of the columns that were added to episodes later."""
        return [column.name for column in episode_annotations(self.episodes_schema)]

    def last_segment(self, run_id: str) -> int:
        """Return the last segment of a run up to this version; -1 without one."""
        return self._episodes.applied(run_id)

    def newer_version(self) -> int | None:
        """Return the store's newest version now, if that is a newer one than this snapshot's."""
        check_identity(self.layout)
        newest = self._episodes.advanced().version
        return newest if newest > self.version else None

    def history(self) -> list[dict]:
        """Return the commits of the episodes table up to this version, newest first."""
        return self._episodes.history()

    @property
    def episode_count(self) -> int:
        """Number of episodes."""
        return sum(file.rows for file in self.episode_files)

    @cached_property
    def pointers(self) -> Pointers:
        """The row pointers of all episodes; reads three small columns once.

        Raises:
            CorruptStoreError: an episodes file cannot be read, or a pointer leads out of the store.
        """
        files = self.episode_files
        (before, known), self._known = self._known or ([], None), None
        if known is not None and [file.name for file in files[: len(before)]] == before:
            new = self._read_pointers(files[len(before) :])
            if not set(new.segments).intersection(known.segments):
                return known.extended(new)
        return self._read_pointers(files)

    def _read_pointers(self, files: Sequence[TableFile]) -> Pointers:
        return read_pointers(self.layout.table(EPISODES), files, self.episodes_schema)

    @cached_property
    def _stops(self) -> np.ndarray:
        return np.cumsum([file.rows for file in self.episode_files], dtype=np.int64)

    def listed_figures(self) -> tuple[EpisodeFigures, np.ndarray]:
        """Return the figures of episodes that the log has, and the positions of those that it lacks."""
        return listed_figures(self.episode_files)

    def row_of(self, position: int) -> tuple[TableFile, int]:
        """Return the file of episodes that holds the episode at a position, and its row there."""
        index = int(np.searchsorted(self._stops, position, side="right"))
        return self.episode_files[index], position - (int(self._stops[index - 1]) if index else 0)

    def place(self, position: int) -> tuple[str, int, int]:
        """Return the segment of an episode, its first row there, and how many it has.

        The first few files of episodes that are asked for are read one by one, and then all.

        Raises:
            CorruptStoreError: as for `pointers`.
        """
        pointers, row = self.__dict__.get("pointers"), position
        if pointers is None and (self._known or len(self._of_files) == _FEW_FILES):
            pointers = self.pointers
        elif pointers is None:
            file, row = self.row_of(position)
            if file.name not in self._of_files:
                self._of_files[file.name] = self._read_pointers([file])
            pointers = self._of_files[file.name]
        name = pointers.segments[pointers.segment[row]]
        return name, int(pointers.row_start[row]), int(pointers.row_count[row])

    def segments_of(self, positions: np.ndarray) -> frozenset[str]:
        """Return the names of the steps files that hold the episodes at some positions."""
        chosen = np.unique(self.pointers.segment[positions])
        return frozenset(self.pointers.segments[index] for index in chosen)

    def segment_path(self, name: str) -> Place:
        """Return the steps file of a segment."""
        return self._place(STEPS, name)

    def _place(self, table: str, name: str) -> Place:
        key = (table, name)
        if key not in self._places:
            self._places[key] = self.layout.table(table) / name
        return self._places[key]

    @property
    def table_bytes(self) -> int:
        """The bytes of the files of its tables, as the logs list them."""
        tables = (self.episode_files, self.run_files, self.listed_steps)
        return sum(file.size for table in tables for file in table)

    @cached_property
    def listed_steps(self) -> list[TableFile]:
        """All files of the steps table as its newest version lists them."""
        return self._steps.files()

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The names of the steps files that this snapshot's episodes point at, in the order of first use."""
        known = "pointers" not in self.__dict__ and self._all_ends_shown
        return tuple(file.name for file in self.episode_files) if known else self.pointers.segments

    @cached_property
    def step_files(self) -> list[TableFile]:
        """The files of `segments`."""
        return [self._segment(name) for name in self.segments]

    def readable(self, segments: Iterable[str]) -> list[str]:
        """Return those of some segments that were not left out."""
        return [name for name in segments if name not in self.lost_segments]

    def _segment(self, name: str) -> TableFile:
        """Return a steps file, also one that a later version no longer lists."""
        if name not in self._segments:
            place = self.segment_path(name)
            file = open_parquet(place)
            rows, columns = file.metadata.num_rows, file.schema_arrow.names
            self._segments[name] = TableFile.unlisted(name, rows, place.size(), columns)
        return self._segments[name]

    def listed_bytes(self, name: str) -> int:
        """Return the bytes of a steps file as the log lists it; 0 if it does not."""
        return self._segments[name].size if name in self._segments else 0

    def check_segment(self, name: str) -> None:
        """Compare a segment's footer with its entry in the log, once in this process.

        Raises:
            CorruptStoreError: they differ, or the file is damaged.
        """
        check_listed(self.segment_path(name), self._segment(name), self.steps_schema)

    @cached_property
    def _segments(self) -> dict[str, TableFile]:
        return {file.name: file for file in self.listed_steps}

    def annotation_places(self, name: str, segments: Iterable[str]) -> list[Place]:
        """Return the files with the values of a step annotation for some segments, their footers checked.

        Raises:
            CorruptStoreError: one is damaged, or belongs to another segment.
        """
        pairs = [(segment, self.annotation_files.find(name, segment)) for segment in segments]
        places = [(segment, place) for segment, place in pairs if place is not None]
        over_files(
            lambda pair: check_annotation_footer(pair[1], self._segment(pair[0])), places, self.layout.root
        )
        return self._handed_out([place for _, place in places])

    def segment_places(self, segments: Sequence[str]) -> list[Place]:
        """Return the files of some segments, checked for an engine.

        Raises:
            CorruptStoreError: one is damaged or missing; the message names the file.
        """
        over_files(self.check_segment, segments, self.layout.root)
        return self._handed_out([self.segment_path(segment) for segment in segments])

    def _handed_out(self, places: list[Place], *, pages: bool = False) -> list[Place]:
        """Return files for an engine, their pages checked if `pages` or the layout asks for it."""
        _ = self._types_remembered
        if pages or self.layout.check_pages:
            check_pages(places)
        return places

    @cached_property
    def _types_remembered(self) -> bool:
        """Remember the types of array columns, which engines do not keep; return whether there are any."""
        columns = array_kinds([*self.table_schema(STEPS), *self.table_schema(EPISODES)])
        if columns:
            remember(run_ids(self.layout.table(RUNS), self.run_files), columns)
        return bool(columns)

    @cached_property
    def hidden_rows(self) -> bool:
        """Whether some step file has rows that no episode of this snapshot points at."""
        if self.lost_segments or self._all_ends_shown:
            return bool(self.lost_segments)
        return bool(self.pointers.row_count.sum() != sum(file.rows for file in self.step_files))

    @cached_property
    def _all_ends_shown(self) -> bool:
        """Return whether each file of steps has as many last rows as its file of episodes has episodes.

        A seal gives both the same name. False also where only the row pointers show it: with several agents,
        in older versions, and after operations that rewrote one of the files.
        """
        if self.schema.groups or not self.newest:
            return False
        ends = {file.name: file.nulls("terminated") for file in self.listed_steps}
        return ends == {file.name: file.rows for file in self.episode_files}

    def groups(self, table: str) -> tuple[FileGroup, ...]:
        """Return the files of a table as runs of consecutive files with the same columns."""
        if table not in self._groups:
            self._groups[table] = tuple(
                FileGroup(tuple(self._place(table, file.name) for file in files), columns)
                for columns, files in groupby(self._files(table), lambda file: file.columns)
            )
        return self._groups[table]

    def listed_places(self, table: str) -> list[Place]:
        """Return the files of a table that this snapshot shows, as its log lists them."""
        return [self._place(table, file.name) for file in self._files(table)]

    def places(
        self, table: str, files: Sequence[TableFile] | None = None, *, pages: bool = False
    ) -> list[Place]:
        """Return the files of a table, their footers checked: engines do not do that.

        Args:
            files, pages: only these, None for all; and compare their pages with their checksums, too.

        Raises:
            CorruptStoreError: one is damaged or missing; the message names the file.
        """
        schema, files = self.table_schema(table), self._files(table) if files is None else files
        places = [self._place(table, file.name) for file in files]
        pairs = list(zip(places, files, strict=True))
        over_files(lambda pair: check_listed(pair[0], pair[1], schema), pairs, self.layout.root)
        return self._handed_out(places, pages=pages)

    def _files(self, table: str) -> list[TableFile]:
        if table == STEPS:
            return [file for file in self.step_files if file.name not in self.lost_segments]
        return {EPISODES: self.episode_files, RUNS: self.run_files}[table]

    def table_schema(self, table: str) -> pa.Schema:
        """Return the columns of one of the three tables as its files have them."""
        if table == STEPS:
            return self.steps_schema
        return {EPISODES: self.episodes_schema, RUNS: self.runs_schema}[table]

    def overflow(self, table: str) -> Mapping[str, Overflow]:
        """Return, by name, the columns of a table that need the JSON column for some of their numbers.

        Raises:
            CorruptStoreError: a file of an earlier writer, which has to be read to know, is damaged.
        """
        if table not in self._overflow:
            self._overflow[table] = overflow_of(
                self.table_schema(table), self.layout.table(table), lambda: self._files(table)
            )
        return self._overflow[table]

    def marked_schema(self, table: str) -> pa.Schema:
        """Return the columns of one of the three tables as its files have them, all with overflow marked."""
        marks = {name: kinds.field(name, of.kind, of.kind) for name, of in self.overflow(table).items()}
        schema = self.table_schema(table)
        return pa.schema([kinds.with_overflow(c, marks[c.name]) if c.name in marks else c for c in schema])

    def filled_schema(self, table: str) -> pa.Schema:
        """Return the columns of one of the three tables, those with overflow in the type that shows it."""
        filled = {name: kinds.field(name, of.kind) for name, of in self.overflow(table).items()}
        return pa.schema([filled.get(column.name, column) for column in self.table_schema(table)])

    @property
    def of_rollouts(self) -> bool:
        """Whether the episodes are rollouts of language agents."""
        return self.manifest.rollouts is not None

    def shown_schema(self, table: str) -> pa.Schema:
        """Return the columns as frames and queries show them, with those that annotations add to steps."""
        schema = self.filled_schema(table)
        if table != STEPS:
            return schema
        added = self.annotation_files.annotations
        kept = [column for column in schema if column.name not in added]
        return pa.schema([*kept, *(pa.field(each.name, each.type) for each in added.values())])

    def check_retained(self) -> None:
        """Make sure that the files of this version are still there.

        Raises:
            VersionNotFoundError: they were vacuumed.
        """
        there = {entry.name for entry in self.layout.table(EPISODES).entries()}
        lost = self.annotation_files.missing_folders()
        if lost or not there.issuperset(file.name for file in self.episode_files):
            raise VersionNotFoundError(
                f"Version {self.version} of {self.layout.root} was vacuumed: some of its files are gone. "
                "Open the newest version, or a tagged one."
            )
