"""Merging: episodes of other stores into this one, under their own ids.

A segment whose rows are all wanted is taken over as a file: linked on the same file system, else copied byte
by byte. Rows are read only where a part of a segment is wanted, or where a column of the source has another
kind here. Episodes that are here already are left out, so a merge may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents import transitions_in
from ..delta.log import NewFile
from ..delta.table import Table
from ..dynamic import logical_types as kinds
from ..dynamic.column_groups import METADATA
from ..dynamic.columns import SegmentColumns, align_to_schema, with_columns
from ..errors import CorruptStoreError
from ..files import Place, afterwards
from ..frames import VideoColumn
from ..frames.ffmpeg import check_encoder
from ..layout import EPISODES, RUNS, STEPS, TABLES, Layout
from ..manifest import check_same_spaces
from ..parquet.files import read_footer, read_parquet
from ..parquet.page_checks import check_pages
from ..schema import ENV_BUNDLE, LAST_OBSERVATION, StoreHandle
from ..snapshot import Snapshot
from ..tables.annotation_files import ANNOTATION_KEY, StepAnnotation, joined, write_marker
from ..tables.overflow import metadata_in_kind
from ..tables.table_files import list_steps_file, pointers_of, write_table_file
from .artifacts import carry_artifacts, carry_records, carry_records_content
from .episode_set import EpisodeSet
from .merge_sources import check_names, check_records, joined_annotations, widest_columns
from .operation import Operation, Progress, reconcile
from .rewriting import (
    Written,
    affected,
    columns_of,
    freed_segments,
    pointing_at,
    write_aligned,
    write_segments,
)
from .rows import AlignedFiles, in_order, new_steps_file, write_rows


@dataclass(frozen=True)
class MergeReport:
    """The result of a merge.

    Attributes:
        episodes: how many episodes.
        segments_linked: segments that were taken over as files.
        segments_rewritten: segments of which rows were read and written.
    """

    episodes: int
    segments_linked: int
    segments_rewritten: int


@dataclass
class _Brought:
    """Files that wait for their commit."""

    ids: list[pa.Array]
    runs: set[str] = field(default_factory=set)
    steps: list[NewFile] = field(default_factory=list)
    episodes: list[NewFile] = field(default_factory=list)
    linked: int = 0
    rewritten: int = 0
    rows: int = 0
    transitions: int = 0


def merge_stores(
    store: StoreHandle,
    sources: Sequence[EpisodeSet],
    *,
    link: bool = True,
    replaced: Sequence[str] = (),
    uniform: bool = False,
    progress: Progress | None = None,
    within: AbstractContextManager[object] | None = None,
    check: Callable[[], None] | None = None,
) -> MergeReport:
    """Bring episodes of other stores into this one, in one commit.

    Args:
        store: the target.
        sources: what to bring, in the order in which it will stand.
        link: share files with the sources where that is possible; else copy them.
        replaced: the ids of episodes here that the same commit deletes.
        uniform: of one source into a new store: rewrite the files that lack a column, so that plain readers
            see one schema in all files of a table. The same episodes then give the same files.
        progress: called with the segments done and all segments.
        within: makes a new store, as `creation.created_atomically` does; entered while no other process
            maintains it.
        check: called when the version that the commit follows is known; raises if it must not.

    Raises:
        SpaceMismatchError: a source has other spaces.
        InvalidArgumentError: an annotation has another type in a source, or the name of a recorded column.
        InvalidArgumentError, MissingPackageError: raw frames cannot be encoded here; see `check_encoder`.
        StoreExistsError: a saved environment or named artifact has other content in a source.
        CorruptStoreError: a file of a source is damaged; no episode was brought.
        StoreAccessError, ConcurrentCommitError: no episode was brought.
    """
    snapshots = [source.snapshot for source in sources]
    layouts = [snapshot.layout for snapshot in snapshots]
    for snapshot in snapshots:
        source = f"of {snapshot.layout.root}"
        check_same_spaces(store.manifest, snapshot.manifest, at=store.layout.root, source=source)
        for column in _encoded_newly(store, snapshot):
            check_encoder(column.encoding)
    with Operation.begin(store, "merge", within=within) as operation:
        if uniform:
            operation.id = f"merge.{'0' * 15}"
        check_records(store.layout, layouts)
        check_names(operation, snapshots)
        annotations = joined_annotations(operation, snapshots)
        reconcile(operation)
        columns = _Columns(operation, snapshots)
        here = operation.read_episodes(operation.tables.episodes.files(), ["episode_id"])
        brought = _Brought(here.column("episode_id").chunks)
        total = sum(len(snapshot.step_files) for snapshot in snapshots)
        works = [_Source(operation, source, annotations, link=link, uniform=uniform) for source in sources]
        for done, _ in enumerate(segment for work in works for segment in work.bring_all(brought)):
            if progress is not None:
                progress(done + 1, total)
        for layout in layouts:
            carry_records_content(layout, store.layout)
        _bring_runs(operation, snapshots, brought, columns)
        _announce(operation, annotations, all_of_them=bool(brought.episodes))
        if brought.episodes:
            _commit(operation, brought, pa.array(replaced, pa.string()), check)
        # What is not seen yet fails as a whole.
        with _afterwards(store.layout, brought) if within is None else nullcontext():
            for layout in layouts:
                carry_records(layout, store.layout)
    return MergeReport(brought.rows, brought.linked, brought.rewritten)


def _encoded_newly(store: StoreHandle, source: Snapshot) -> tuple[VideoColumn, ...]:
    """Return the columns whose frames are raw in a source, and encoded in the store."""
    return tuple(column for column in store.schema.video if column.name not in source.schema.encodings)


def _afterwards(target: Layout, brought: _Brought) -> AbstractContextManager[None]:
    return afterwards(
        f"The {brought.rows} episodes are in {target.root} now",
        "Not all saved environments and named artifacts of the sources are: merge again to bring those.",
    )


def _commit(
    operation: Operation, brought: _Brought, replaced: pa.Array, check: Callable[[], None] | None
) -> None:
    """Commit what was brought, and the deletion of what it replaces."""
    old, rest, gone = affected(operation, replaced)
    freed = freed_segments(operation, old)
    kept = write_segments(operation, rest, shuffled=False, progress=None) if rest else Written((), ())
    counts = {"episodes": brought.rows - gone.num_rows, "steps": brought.transitions - transitions_in(gone)}
    steps, episodes = ([*brought.steps, *kept.steps], freed), ([*brought.episodes, *kept.episodes], old)
    operation.commit(steps, episodes, counts, also=check)


def _announce(operation: Operation, annotations: Mapping[str, StepAnnotation], *, all_of_them: bool) -> None:
    """Put step annotations of the sources on the list; without episodes only those that it lacks."""
    here = operation.annotations
    new = {name: each for name, each in annotations.items() if all_of_them or name not in here}
    for annotation in new.values():
        write_marker(operation.store.layout, annotation)
    if new:
        operation.change_annotations(lambda there: joined(there, new), "annotate", ", ".join(new))


class _Columns:
    """The columns of all sources; the target gets them, and where a kind differs its own stays."""

    def __init__(self, operation: Operation, sources: Sequence[Snapshot]) -> None:
        self._widest = {
            table: widest_columns([source.filled_schema(table) for source in sources]) for table in TABLES
        }
        steps, episodes = operation.tables.steps, operation.tables.episodes
        names = operation.store.schema.steps.names
        for source in sources:
            steps.ensure_columns(self._dynamic(STEPS, source.steps_schema))
            steps.ensure_columns(SegmentColumns(names, steps.schema, [source.steps_schema]).fields)
            added = [
                column
                for column in source.episodes_schema
                if (column.metadata or {}).get(ANNOTATION_KEY) or column.equals(LAST_OBSERVATION)
            ]
            _grow(episodes, [*self._dynamic(EPISODES, source.episodes_schema), *added])

    def _dynamic(self, table: str, schema: pa.Schema) -> list[pa.Field]:
        return [self._widest[table].get(c.name, c) for c in schema if kinds.field_kind(c)]

    def grow_runs(self, runs: Table, schema: pa.Schema) -> None:
        """Give the table of runs the columns of some rows."""
        bundle = [ENV_BUNDLE] if ENV_BUNDLE.name in schema.names else []
        _grow(runs, [*self._dynamic(RUNS, schema), *bundle])


class _Source:
    """One source of a merge, and what is needed to bring its files into the target's columns."""

    def __init__(
        self,
        operation: Operation,
        selection: EpisodeSet,
        annotations: Mapping[str, StepAnnotation],
        *,
        link: bool,
        uniform: bool,
    ) -> None:
        self._operation = operation
        self._snapshot = selection.snapshot
        self._ids = selection.ids
        self._link = link
        self._uniform = uniform
        self._here = {file.name: file for file in selection.snapshot.step_files}
        self._annotations = [annotations[name] for name in self._snapshot.annotation_files.annotations]
        self._encode = _encoded_newly(operation.store, self._snapshot)

    def bring_all(self, brought: _Brought) -> Iterator[None]:
        """Add the missing episodes, one episodes file after the other; if uniform, as one file in the order
        of the selection.
        """
        parts = self._wanted(pa.chunked_array(brought.ids, pa.string()))
        if self._uniform:
            empty = self._snapshot.episodes_schema.empty_table()
            parts = iter([pa.concat_tables([empty, *parts], promote_options="default")])
        for rows in parts:
            yield from self._bring(rows, brought)

    def _bring_rows(self, rows: pa.Table, brought: _Brought) -> None:
        """Bring the rows of episodes whose steps are here."""
        overflow = bool(self._snapshot.overflow(EPISODES))
        moved = metadata_in_kind(rows, self._operation.tables.episodes, overflow=overflow)
        brought.episodes.append(self._operation.write_episodes(self._operation.next_name(), moved, None))
        brought.ids += rows.column("episode_id").chunks
        brought.rows += rows.num_rows
        brought.transitions += transitions_in(rows)

    def _wanted(self, here: pa.ChunkedArray) -> Iterator[pa.Table]:
        known = pc.SetLookupOptions(here.combine_chunks())
        for file in self._snapshot.episode_files:
            place = self._snapshot.layout.table(EPISODES) / file.name
            rows = align_to_schema(read_parquet(place), self._snapshot.episodes_schema, fill=False)
            ids = rows.column("episode_id")
            keep = ~pc.call_function("is_in", [ids], known).to_numpy()
            if self._ids is not None:
                keep &= pc.call_function("is_in", [ids], pc.SetLookupOptions(self._ids)).to_numpy()
            yield rows if keep.all() else rows.take(pa.array(np.flatnonzero(keep)))

    def _bring(self, rows: pa.Table, brought: _Brought) -> Iterator[None]:
        """Bring the segments of some episodes, one after the other, and their rows."""
        if not rows.num_rows:
            return
        pointers = pointers_of(rows, self._snapshot.layout.root)
        brought.runs |= set(rows.column("run_id").unique().to_pylist())
        part: list[pa.Table] = []
        for index, segment in enumerate(pointers.segments):
            members = rows.take(pa.array(np.flatnonzero(pointers.segment == index)))
            used = int(members.column("row_count").to_numpy().sum())
            if used == self._here[segment].rows and self._fits(segment):
                part.append(self._take_over(segment, members, brought))
            else:
                part.append(self._rewrite(segment, members, brought))
            yield
        ids = self._ids if self._uniform and self._ids is not None else rows.column("episode_id")
        self._bring_rows(_in_order(pa.concat_tables(part), ids), brought)

    def _fits(self, segment: str) -> bool:
        """Return whether a segment has the kinds and encodings that columns have here, and no overflow."""
        has = self._here[segment].columns
        if self._encode:
            return False
        if any(of.json_column in has for of in self._snapshot.overflow(STEPS).values()):
            return False
        known = {column.name: kinds.field_kind(column) for column in self._operation.tables.steps.schema}
        own = {c.name: kinds.field_kind(c) for c in self._snapshot.steps_schema if c.name in has}
        return own == known if self._uniform else own.items() <= known.items()

    def _take_over(self, segment: str, members: pa.Table, brought: _Brought) -> pa.Table:
        """Return the file, and its annotation files."""
        name = self._operation.next_name()
        layout = self._operation.store.layout
        target = layout.table(STEPS) / name
        source = self._snapshot.segment_path(segment)
        self._check(source, segment)
        target.copy_from(source, link=self._link)
        for annotation, place in self._sidecars(segment):
            folder = layout.annotations / annotation.ids[0]
            self._check(place, segment)
            folder.make_folder()
            (folder / name).copy_from(place, link=self._link)
        listed = self._here[segment]
        new = list_steps_file(target) if not listed.listed else listed.as_new(name)
        brought.steps.append(new)
        brought.linked += 1
        return with_columns(members, {"segment": pa.repeat(pa.scalar(name), members.num_rows)})

    def _check(self, place: Place, segment: str) -> None:
        """Refuse to take over a file that is missing, damaged at its end, or of another length.

        For readers that check nothing, as those of published versions, every page is read.
        """
        rows = read_footer(place).num_rows
        if rows != self._here[segment].rows:
            raise CorruptStoreError(
                f"The file {place} has {rows} rows; {self._here[segment].rows} were committed."
            )
        if self._uniform:
            check_pages([place])

    def _sidecars(self, segment: str) -> Iterator[tuple[StepAnnotation, Place]]:
        for annotation in self._annotations:
            place = self._snapshot.annotation_files.find(annotation.name, segment)
            if place is not None:
                yield annotation, place

    def _rewrite(self, segment: str, members: pa.Table, brought: _Brought) -> pa.Table:
        """Return the wanted rows only, in the target's kinds."""
        name = self._operation.next_name()
        layout = self._operation.store.layout
        pointers = pointers_of(members, self._snapshot.layout.root)
        source, steps = self._snapshot.segment_path, self._operation.tables.steps
        aligned = AlignedFiles(
            source,
            self._snapshot.marked_schema(STEPS),
            pointers.segments,
            self._operation.store.schema.video,
            encode=self._encode,
        )
        if self._uniform:
            names = self._operation.store.schema.steps.names
            columns = SegmentColumns(names, steps.schema, [aligned.schema])
        else:
            columns = columns_of(self._operation, aligned, steps.schema)
        rows, target = in_order(aligned, pointers), layout.table(STEPS) / name
        written = write_aligned(self._operation, target, aligned, rows, pointers.row_count, columns)
        steps.ensure_columns(columns.overflow())
        brought.steps.append(new_steps_file(name, members.column("episode_id"), written))
        for annotation, _ in self._sidecars(segment):
            find = partial(self._snapshot.annotation_files.find, annotation.name)
            schema = annotation.schema(self._operation.store.schema.step_keys)
            side = AlignedFiles(find, schema, pointers.segments)
            folder = layout.annotations / annotation.ids[0]
            folder.make_folder()
            write_rows(folder / name, side, in_order(side, pointers), pointers.row_count)
        brought.rewritten += 1
        return pointing_at(members, name)


def _bring_runs(
    operation: Operation, sources: Sequence[Snapshot], brought: _Brought, columns: _Columns
) -> None:
    """Bring the runs that the episodes come from, unless they are here."""
    runs = operation.tables.runs
    missing = brought.runs - {
        run
        for file in runs.files()
        for run in read_parquet(runs.path / file.name, ["run_id"]).column(0).to_pylist()
    }
    tables: list[tuple[Snapshot, pa.Table]] = []
    for source in sources if missing else ():
        for file in source.run_files:
            table = read_parquet(source.layout.table(RUNS) / file.name)
            hit = [run in missing for run in table.column("run_id").to_pylist()]
            if any(hit):
                table = align_to_schema(table.filter(pa.array(hit)), source.runs_schema, fill=False)
                missing -= set(table.column("run_id").to_pylist())
                carry_artifacts(source.layout, operation.store.layout, table)
                tables.append((source, table))
    if not tables:
        return
    for _, table in tables:
        columns.grow_runs(runs, table.schema)
    rows = [metadata_in_kind(table, runs, overflow=bool(source.overflow(RUNS))) for source, table in tables]
    name = operation.next_name()
    new = write_table_file(runs.path / name, pa.concat_tables(rows, promote_options="default"))
    runs.replace([new], [], f"{operation.id}.{name}", {"episodelake.operation": "merge"})


def _grow(table: Table, columns: Sequence[pa.Field]) -> None:
    """Give a table columns of a source, and the JSON column where a name or a kind differs from its own."""
    known = {column.name.casefold(): column for column in table.schema}
    pairs = [(known.get(column.name.casefold(), column), column) for column in columns]
    if any((a.name, kinds.field_kind(a)) != (b.name, kinds.field_kind(b)) for a, b in pairs):
        columns = [*columns, kinds.field(METADATA.json_column, kinds.JSON_KIND)]
    table.ensure_columns(list({column.name: column for column in columns}.values()))


def _in_order(rows: pa.Table, ids: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows of episodes in the order of some ids, some of which need not be there."""
    known = pc.SetLookupOptions(rows.column("episode_id").combine_chunks())
    return rows.take(pc.call_function("index_in", [ids], known).drop_null())
