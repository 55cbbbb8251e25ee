"""Merging: episodes of other stores into this one, under their own ids.

A segment whose rows are all wanted is taken over as a file: linked on the same file system, else copied byte
by byte. Rows are read only where a part of a segment is wanted, or where a column of the source has another
kind here. Episodes that are here already are left out, so a merge may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents.lanes import transitions_in
from ..dynamic import logical_types as kinds
from ..dynamic.alignment import align_to_schema, with_columns
from ..dynamic.column_groups import METADATA
from ..dynamic.merge import SegmentColumns
from ..errors import CorruptStoreError, InvalidArgumentError, SpaceMismatchError
from ..files import guard_access
from ..handle import StoreHandle
from ..layout import EPISODES, RUNS, STEPS, TABLES
from ..manifest import Manifest
from ..places import Place
from ..schema import ENV_BUNDLE, LAST_OBSERVATION
from ..segments.parquet import read_footer, read_parquet
from ..snapshot import Selection, Snapshot
from ..spaces import space_to_json
from ..tables.annotation_files import (
    ANNOTATION_KEY,
    StepAnnotation,
    episode_annotations,
    joined,
    write_marker,
)
from ..tables.listed_files import NewFile
from ..tables.pointers import pointers_of
from ..tables.table import Table
from ..tables.table_files import list_steps_file, write_table_file
from .artifacts import carry_artifacts, carry_records, check_rivals
from .operation import Operation, Progress, reconcile
from .rewriting import columns_of, pointing_at, write_aligned
from .rows import AlignedFiles, in_order, new_steps_file, write_rows
from .unifying import metadata_in_kind


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
    steps: list[NewFile] = field(default_factory=list)
    episodes: list[NewFile] = field(default_factory=list)
    linked: int = 0
    rewritten: int = 0
    rows: int = 0
    transitions: int = 0


def merge(
    store: StoreHandle,
    sources: Sequence[Selection],
    *,
    link: bool = True,
    progress: Progress | None = None,
    within: AbstractContextManager[object] | None = None,
) -> MergeReport:
    """Bring episodes of other stores into this one, in one commit.

    Args:
        store: the target.
        sources: what to bring, in the order in which it will stand.
        link: share files with the sources where that is possible; else copy them.
        progress: called with the segments done and all segments.
        within: makes a new store, as `creation.made_whole` does; entered while no other process maintains it.

    Raises:
        SpaceMismatchError: a source has other spaces.
        InvalidArgumentError: an annotation has another type in a source.
        StoreExistsError: a saved environment or named artifact has other content in a source.
        CorruptStoreError: a file of a source is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    for source in sources:
        check_spaces(store, source.snapshot)
        check_rivals(source.snapshot.layout, store.layout)
    with Operation.begin(store, "merge", within=within) as operation:
        reconcile(operation)
        here = operation.read_episodes(operation.tables.episodes.files(), ["episode_id"])
        brought = _Brought(here.column("episode_id").chunks)
        total = sum(len(source.snapshot.episode_files) for source in sources)
        done = 0
        annotations: dict[str, StepAnnotation] = {}
        widest = {
            table: _widest([source.snapshot.filled_schema(table) for source in sources]) for table in TABLES
        }
        for number, source in enumerate(sources):
            work = _Source(operation, source, number, link=link, widest=widest)
            for rows in work.wanted(pa.chunked_array(brought.ids, pa.string())):
                work.bring(rows, brought)
                done += 1
                if progress is not None:
                    progress(done, total)
            annotations = joined(annotations, work.annotations)
            work.bring_runs()
        here = operation.annotations
        announced = {name: each for name, each in annotations.items() if brought.episodes or name not in here}
        for annotation in announced.values():
            write_marker(store.layout, annotation)
        if announced:
            names = ", ".join(announced)
            operation.change_annotations(lambda there: joined(there, announced), "annotate", names)
        if brought.episodes:
            told = {"episodes": brought.rows, "steps": brought.transitions}
            operation.commit((brought.steps, []), (brought.episodes, []), told)
        for source in sources:
            carry_records(source.snapshot.layout, store.layout)
    return MergeReport(brought.rows, brought.linked, brought.rewritten)


def check_spaces(store: StoreHandle, snapshot: Snapshot) -> None:
    """Refuse a source with other spaces.

    Raises:
        SpaceMismatchError: an observation, action or reward differs; the message names it.
    """
    mine, other = store.manifest, snapshot.manifest
    if _groups(mine) != _groups(other):
        described = [
            "; ".join(f"{g.name}: {', '.join(g.agents)}" for g in manifest.groups) or "a single agent"
            for manifest in (other, mine)
        ]
        raise SpaceMismatchError(
            f"{snapshot.layout.root} is for other agents ({described[0]}) than {store.layout.root} "
            f"({described[1]}), or their spaces differ. Only stores of the same agents can be merged."
        )
    pairs = {
        "observation": (mine.observation_space, other.observation_space),
        "action": (mine.action_space, other.action_space),
    }
    for root, (expected, got) in pairs.items():
        if space_to_json(expected) != space_to_json(got):
            raise SpaceMismatchError(
                f"The {root} space of {snapshot.layout.root} is {got}; {store.layout.root} has {expected}. "
                "Only stores of the same spaces can be merged."
            )
    if mine.reward_shape != other.reward_shape:
        raise SpaceMismatchError(
            f"The rewards of {snapshot.layout.root} have the shape {other.reward_shape}; "
            f"{store.layout.root} has {mine.reward_shape}."
        )


def _groups(manifest: Manifest) -> dict[str, tuple[Any, Any]]:
    """Return the spaces of each group of agents; which agents a store knew when it was created does not
    matter.
    """
    return {
        group.name: (space_to_json(group.observation_space), space_to_json(group.action_space))
        for group in manifest.groups
    }


def _widest(schemas: Sequence[pa.Schema]) -> dict[str, pa.Field]:
    """Return the dynamic columns of all sources, each in the kind that shows the numbers of all."""
    found: dict[str, pa.Field] = {}
    for column in (column for schema in schemas for column in schema):
        kind = kinds.field_kind(column)
        if kind is not None:
            known = kinds.field_kind(found.get(column.name, column)) or kind
            found[column.name] = kinds.field(column.name, kinds.joined(known, kind) or known)
    return found


class _Source:
    """One source of a merge, and what is needed to bring its files into the target's columns."""

    def __init__(
        self,
        operation: Operation,
        selection: Selection,
        number: int,
        *,
        link: bool,
        widest: Mapping[str, Mapping[str, pa.Field]],
    ) -> None:
        self._operation = operation
        self._widest = widest
        self._snapshot = selection.snapshot
        self._ids = selection.ids
        self._link = link
        self._here = {file.name: file for file in selection.snapshot.step_files}
        self._runs: set[str] = set()
        self.annotations = self._own_annotations(number)
        self._grow_columns()

    def _own_annotations(self, number: int) -> dict[str, StepAnnotation]:
        """Return the source's step annotations under folders of the target."""
        mine = self._operation.annotations
        found = {}
        for index, (name, annotation) in enumerate(self._snapshot.annotation_files.annotations.items()):
            if name in mine and mine[name].type != annotation.type:
                raise InvalidArgumentError(
                    f"The annotation {name!r} of {self._snapshot.layout.root} has the type "
                    f"{annotation.type}; here it has {mine[name].type}. Drop one of them first."
                )
            folder = f"{self._operation.id}-{number * 1000 + index}"
            found[name] = StepAnnotation(name, annotation.type, (folder,))
        return found

    def _grow_columns(self) -> None:
        """Give the target the source's columns; where a kind differs the target's stays."""
        tables = self._operation.tables
        dynamic = [
            self._widest[STEPS].get(c.name, c) for c in self._snapshot.steps_schema if kinds.field_kind(c)
        ]
        tables.steps.ensure_columns(dynamic)
        names = self._operation.store.schema.steps.names
        aligned = SegmentColumns(names, tables.steps.schema, [self._snapshot.steps_schema])
        tables.steps.ensure_columns(aligned.fields)
        extra = [
            self._widest[EPISODES].get(column.name, column)
            for column in self._snapshot.episodes_schema
            if kinds.field_kind(column)
            or (column.metadata or {}).get(ANNOTATION_KEY)
            or column.equals(LAST_OBSERVATION)
        ]
        _grow(tables.episodes, extra)
        known = {column.name.casefold(): column for column in tables.episodes.schema}
        for column in episode_annotations(self._snapshot.episodes_schema):
            there = known[column.name.casefold()]
            if there.remove_metadata() != column.remove_metadata():
                raise InvalidArgumentError(
                    f"The annotation {column.name!r} ({column.type}) of {self._snapshot.layout.root} meets "
                    f"{there.name!r} ({there.type}) here. Drop one of them first."
                )

    def wanted(self, here: pa.ChunkedArray) -> Iterator[pa.Table]:
        """Yield the rows of each episodes file that are wanted and not here yet."""
        known = pc.SetLookupOptions(here.combine_chunks())
        for file in self._snapshot.episode_files:
            place = self._snapshot.layout.table(EPISODES) / file.name
            rows = align_to_schema(read_parquet(place), self._snapshot.episodes_schema, fill=False)
            ids = rows.column("episode_id")
            keep = ~pc.call_function("is_in", [ids], known).to_numpy()
            if self._ids is not None:
                keep &= pc.call_function("is_in", [ids], pc.SetLookupOptions(self._ids)).to_numpy()
            yield rows if keep.all() else rows.take(pa.array(np.flatnonzero(keep)))

    def bring(self, rows: pa.Table, brought: _Brought) -> None:
        """Bring the segments of some episodes, and their rows."""
        if not rows.num_rows:
            return
        pointers = pointers_of(rows, self._snapshot.layout.root)
        self._runs |= set(rows.column("run_id").unique().to_pylist())
        part: list[pa.Table] = []
        for index, segment in enumerate(pointers.segments):
            members = rows.take(pa.array(np.flatnonzero(pointers.segment == index)))
            used = int(members.column("row_count").to_numpy().sum())
            if used == self._here[segment].rows and self._fits(segment):
                part.append(self._take_over(segment, members, brought))
            else:
                part.append(self._rewrite(segment, members, brought))
        overflow = bool(self._snapshot.overflow(EPISODES))
        moved = metadata_in_kind(_in_order(part, rows), self._operation.tables.episodes, overflow=overflow)
        brought.episodes.append(self._operation.write_episodes(self._operation.next_name(), moved, None))
        brought.ids += rows.column("episode_id").chunks
        brought.rows += rows.num_rows
        brought.transitions += transitions_in(rows)

    def _fits(self, segment: str) -> bool:
        """Return whether all columns of a segment have the same kind here, and hold all their numbers."""
        has = self._here[segment].columns
        if any(of.json_column in has for of in self._snapshot.overflow(STEPS).values()):
            return False
        known = {column.name: kinds.field_kind(column) for column in self._operation.tables.steps.schema}
        own = {c.name: kinds.field_kind(c) for c in self._snapshot.steps_schema if c.name in has}
        return own.items() <= known.items()

    def _take_over(self, segment: str, members: pa.Table, brought: _Brought) -> pa.Table:
        """Return the whole file, and the files of annotations with it."""
        name = self._operation.next_name()
        layout = self._operation.store.layout
        target = layout.table(STEPS) / name
        source = self._snapshot.segment_path(segment)
        self._check(source, segment)
        with guard_access("take over the segment", target):
            target.copy_from(source, link=self._link)
            for annotation, place in self._sidecars(segment):
                folder = layout.annotations / annotation.ids[0]
                self._check(place, segment)
                folder.make_folder()
                (folder / name).copy_from(place, link=self._link)
        listed = self._here[segment]
        new = list_steps_file(target) if listed.source is None else listed.as_new(name)
        brought.steps.append(new)
        brought.linked += 1
        return with_columns(members, {"segment": pa.repeat(pa.scalar(name), members.num_rows)})

    def _check(self, place: Place, segment: str) -> None:
        """Refuse to take over a file that is missing, damaged at its end, or of another length."""
        rows = read_footer(place).num_rows
        if rows != self._here[segment].rows:
            raise CorruptStoreError(
                f"The file {place} has {rows} rows; {self._here[segment].rows} were committed."
            )

    def _sidecars(self, segment: str) -> Iterator[tuple[StepAnnotation, Place]]:
        for name, annotation in self.annotations.items():
            place = self._snapshot.annotation_files.find(name, segment)
            if place is not None:
                yield annotation, place

    def _rewrite(self, segment: str, members: pa.Table, brought: _Brought) -> pa.Table:
        """Return the wanted rows only, in the target's kinds."""
        name = self._operation.next_name()
        layout = self._operation.store.layout
        pointers = pointers_of(members, self._snapshot.layout.root)
        source, steps = self._snapshot.segment_path, self._operation.tables.steps
        strip = AlignedFiles(source, self._snapshot.marked_schema(STEPS), pointers.segments)
        columns = columns_of(self._operation, strip, steps.schema)
        rows, target = in_order(strip, pointers), layout.table(STEPS) / name
        written = write_aligned(self._operation, target, strip, rows, pointers.row_count, columns)
        steps.ensure_columns(columns.overflow())
        brought.steps.append(new_steps_file(name, members.column("episode_id"), written))
        for annotation, _ in self._sidecars(segment):
            find = partial(self._snapshot.annotation_files.find, annotation.name)
            schema = annotation.schema(self._operation.store.schema.step_keys)
            side = AlignedFiles(find, schema, pointers.segments)
            folder = layout.annotations / annotation.ids[0]
            with guard_access("write", folder):
                folder.make_folder()
            write_rows(folder / name, side, in_order(side, pointers), pointers.row_count)
        brought.rewritten += 1
        return pointing_at(members, name)

    def bring_runs(self) -> None:
        """Bring the runs that these episodes come from, unless they are here."""
        tables = self._operation.tables
        folder = self._operation.store.layout.table(RUNS)
        here = {
            run
            for file in tables.runs.files()
            for run in read_parquet(folder / file.name, ["run_id"]).column(0).to_pylist()
        }
        missing = pa.array(sorted(self._runs - here), pa.string())
        if not len(missing):
            return
        parts = []
        for file in self._snapshot.run_files:
            table = read_parquet(self._snapshot.layout.table(RUNS) / file.name)
            table = align_to_schema(table, self._snapshot.runs_schema, fill=False)
            hit = pc.call_function("is_in", [table.column("run_id")], pc.SetLookupOptions(missing))
            parts.append(table.filter(hit))
        rows = pa.concat_tables(parts, promote_options="default")
        carry_artifacts(self._snapshot.layout, self._operation.store.layout, rows)
        dynamic = [self._widest[RUNS].get(c.name, c) for c in rows.schema if kinds.field_kind(c)]
        dynamic += [ENV_BUNDLE] if ENV_BUNDLE.name in rows.column_names else []
        _grow(tables.runs, dynamic)
        overflow = bool(self._snapshot.overflow(RUNS))
        rows = metadata_in_kind(rows, tables.runs, overflow=overflow)
        name = self._operation.next_name()
        new = write_table_file(folder / name, rows)
        tables.runs.replace([new], [], f"{self._operation.id}.{name}", {"episodelake.operation": "merge"})


def _grow(table: Table, columns: Sequence[pa.Field]) -> None:
    """Give a table columns of a source, and the JSON column where a name or a kind differs from its own."""
    known = {column.name.casefold(): column for column in table.schema}
    pairs = [(known.get(column.name.casefold(), column), column) for column in columns]
    if any((a.name, kinds.field_kind(a)) != (b.name, kinds.field_kind(b)) for a, b in pairs):
        columns = [*columns, kinds.field(METADATA.json_column, kinds.JSON_KIND)]
    table.ensure_columns(list({column.name: column for column in columns}.values()))


def _in_order(parts: Sequence[pa.Table], like: pa.Table) -> pa.Table:
    """Return the parts as one table, its episodes in the order in which another table has them."""
    joined = pa.concat_tables(parts)
    if len(parts) == 1:
        return joined
    where = pc.call_function(
        "index_in",
        [like.column("episode_id").combine_chunks()],
        pc.SetLookupOptions(joined.column("episode_id").combine_chunks()),
    )
    return joined.take(where)
