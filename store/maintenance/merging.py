"""Merging: episodes of other stores into this one, under their own ids.

A segment whose rows are all wanted is taken over as a file: linked on the same file system, else copied byte
by byte. Rows are read only where a part of a segment is wanted, or where a column of the source has another
kind here. Episodes that are here already are left out, so a merge may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import kinds
from ..annotation_files import (
    ANNOTATION_KEY,
    StepAnnotation,
    annotations_text,
    episode_annotations,
    parse_annotations,
    write_marker,
)
from ..errors import CorruptStoreError, InvalidArgumentError, SpaceMismatchError
from ..families import METADATA, ColumnSet, merge_rows
from ..files import guard_access
from ..handle import StoreHandle
from ..lanes import transitions_in
from ..layout import EPISODES, RUNS, STEPS
from ..listed_files import NewFile
from ..loose_merge import SegmentColumns
from ..loose_rows import LooseRows
from ..manifest import Manifest
from ..parquet import open_parquet, read_footer, reading_error
from ..places import Place
from ..schema import ENV_BUNDLE
from ..snapshot import Selection, Snapshot, pointers_of
from ..spaces import space_to_json
from ..table_files import list_steps_file, write_table_file
from .artifacts import carry_artifacts
from .operation import Operation, Progress, reconcile
from .rewriting import annotation_files
from .rows import Strip, in_order, new_steps_file, write_rows


@dataclass(frozen=True)
class MergeReport:
    """What a merge brought.

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
) -> MergeReport:
    """Bring episodes of other stores into this one, in one commit.

    Args:
        store: the target.
        sources: what to bring, in the order in which it will stand.
        link: share files with the sources where that is possible; else copy them.
        progress: called with the segments done and all segments.

    Raises:
        SpaceMismatchError: a source has other spaces.
        InvalidArgumentError: an annotation has another type in a source.
        CorruptStoreError: a file of a source is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    for source in sources:
        check_spaces(store, source.snapshot)
    with Operation.begin(store, "merge") as operation:
        reconcile(operation)
        here = operation.read_episodes(operation.tables.episodes.files(), ["episode_id"])
        brought = _Brought(here.column("episode_id").chunks)
        total = sum(len(source.snapshot.episode_files) for source in sources)
        done = 0
        annotations: dict[str, StepAnnotation] = {}
        for number, source in enumerate(sources):
            work = _Source(operation, source, number, link=link)
            for rows in work.wanted(pa.chunked_array(brought.ids, pa.string())):
                work.bring(rows, brought)
                done += 1
                if progress is not None:
                    progress(done, total)
            for name, annotation in work.annotations.items():
                earlier = annotations[name].ids if name in annotations else ()
                annotations[name] = StepAnnotation(name, annotation.type, (*earlier, *annotation.ids))
            work.bring_runs()
        here = annotation_files(operation).annotations
        announced = {name: each for name, each in annotations.items() if brought.episodes or name not in here}
        if announced:
            _announce(operation, announced)
        if brought.episodes:
            told = {"episodes": brought.rows, "steps": brought.transitions}
            operation.commit((brought.steps, []), (brought.episodes, []), told)
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
    """The spaces of each group of agents; which agents a store knew when it was created does not matter."""
    return {
        group.name: (space_to_json(group.observation_space), space_to_json(group.action_space))
        for group in manifest.groups
    }


def _announce(operation: Operation, annotations: dict[str, StepAnnotation]) -> None:
    root = operation.store.layout.root

    def change(text: str | None) -> str:
        there = parse_annotations(text, root)
        for name, annotation in annotations.items():
            earlier = there[name].ids if name in there else ()
            there[name] = StepAnnotation(name, annotation.type, (*earlier, *annotation.ids))
        return annotations_text(there)

    details = {"episodelake.operation": "annotate", "episodelake.columns": ", ".join(annotations)}
    for annotation in annotations.values():
        write_marker(operation.store.layout, annotation)
    operation.set_property(change, details)


class _Source:
    """One source of a merge, and what is needed to bring its files into the target's columns."""

    def __init__(self, operation: Operation, selection: Selection, number: int, *, link: bool) -> None:
        self._operation = operation
        self._snapshot = selection.snapshot
        self._ids = selection.ids
        self._link = link
        self._here = {file.name: file for file in selection.snapshot.step_files}
        self._runs: set[str] = set()
        self.annotations = self._own_annotations(number)
        self._grow_columns()

    def _own_annotations(self, number: int) -> dict[str, StepAnnotation]:
        """The source's step annotations under folders of the target."""
        mine = annotation_files(self._operation).annotations
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
        loose = [column for column in self._snapshot.steps_schema if kinds.field_kind(column)]
        aligned = self._columns([self._snapshot.steps_schema]).fields
        tables.steps.ensure_columns(list({column.name: column for column in (*loose, *aligned)}.values()))
        extra = [
            column
            for column in self._snapshot.episodes_schema
            if kinds.field_kind(column) or (column.metadata or {}).get(ANNOTATION_KEY)
        ]
        if any(self._differs(column, tables.episodes.schema) for column in extra):
            extra.append(kinds.field(METADATA.json_column, kinds.JSON_KIND))
        tables.episodes.ensure_columns(list({column.name: column for column in extra}.values()))
        known = {column.name.casefold(): column for column in tables.episodes.schema}
        for column in episode_annotations(self._snapshot.episodes_schema):
            there = known[column.name.casefold()]
            if there.remove_metadata() != column.remove_metadata():
                raise InvalidArgumentError(
                    f"The annotation {column.name!r} ({column.type}) of {self._snapshot.layout.root} meets "
                    f"{there.name!r} ({there.type}) here. Drop one of them first."
                )

    @staticmethod
    def _differs(column: pa.Field, schema: pa.Schema) -> bool:
        known = {there.name.casefold(): there for there in schema}
        there = known.get(column.name.casefold())
        return there is not None and (
            there.name != column.name or kinds.field_kind(there) != kinds.field_kind(column)
        )

    def _columns(self, seen: Sequence[pa.Schema]) -> SegmentColumns:
        names = self._operation.store.schema.steps.names
        return SegmentColumns(names, self._operation.tables.steps.schema, seen)

    def wanted(self, here: pa.ChunkedArray) -> Iterator[pa.Table]:
        """The rows of each episodes file that are wanted and not here yet."""
        known = pc.SetLookupOptions(here.combine_chunks())
        for file in self._snapshot.episode_files:
            rows = self._read(file.name)
            ids = rows.column("episode_id")
            keep = ~pc.call_function("is_in", [ids], known).to_numpy()
            if self._ids is not None:
                keep &= pc.call_function("is_in", [ids], pc.SetLookupOptions(self._ids)).to_numpy()
            yield rows if keep.all() else rows.take(pa.array(np.flatnonzero(keep)))

    def _read(self, name: str) -> pa.Table:
        place = self._snapshot.layout.table(EPISODES) / name
        try:
            found = open_parquet(place).read()
        except (pa.ArrowException, OSError) as error:
            raise reading_error(place, error) from error
        columns = [column for column in self._snapshot.episodes_schema if column.name in found.column_names]
        return found.select([column.name for column in columns]).cast(pa.schema(columns))

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
        moved = self._in_kind(_in_order(part, rows))
        brought.episodes.append(self._operation.write_episodes(self._operation.next_name(), moved, None))
        brought.ids += rows.column("episode_id").chunks
        brought.rows += rows.num_rows
        brought.transitions += transitions_in(rows)

    def _fits(self, segment: str) -> bool:
        """Whether all columns of a segment have the same kind here."""
        has = self._here[segment].columns
        schema = self._operation.tables.steps.schema
        known = {column.name: column for column in schema}
        return all(
            column.name not in has
            or (column.name in known and kinds.field_kind(known[column.name]) == kinds.field_kind(column))
            for column in self._snapshot.steps_schema
        )

    def _take_over(self, segment: str, members: pa.Table, brought: _Brought) -> pa.Table:
        """The whole file, and the files of annotations with it."""
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
        return _pointing(members, name)

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
        """The wanted rows only, in the target's kinds."""
        name = self._operation.next_name()
        layout = self._operation.store.layout
        pointers = pointers_of(members, self._snapshot.layout.root)
        strip = Strip(self._snapshot.segment_path, self._snapshot.steps_schema, pointers.segments)
        columns = self._columns([pa.schema([c for c in strip.schema if c.name in strip.columns.names])])
        aligned = (
            pa.Table.from_batches([columns.align(batch)])
            for table in in_order(strip, pointers)
            for batch in table.cast(self._with_kinds(table.schema)).combine_chunks().to_batches()
        )
        schema = pa.schema([*self._operation.store.schema.steps, *columns.fields])
        target = layout.table(STEPS) / name
        written = write_rows(target, strip, aligned, pointers.row_count, schema=schema)
        brought.steps.append(new_steps_file(name, members.column("episode_id"), written))
        for annotation, _ in self._sidecars(segment):
            find = partial(self._snapshot.annotation_files.find, annotation.name)
            schema = annotation.schema(self._operation.store.schema.step_keys)
            side = Strip(find, schema, pointers.segments)
            folder = layout.annotations / annotation.ids[0]
            with guard_access("write", folder):
                folder.make_folder()
            write_rows(folder / name, side, in_order(side, pointers), pointers.row_count)
        brought.rewritten += 1
        counts = pointers.row_count
        return _pointing(members, name, np.cumsum(counts) - counts)

    def _with_kinds(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([self._snapshot.steps_schema.field(name) for name in schema.names])

    def _in_kind(self, rows: pa.Table) -> pa.Table:
        """Rows of episodes with metadata in the target's kinds."""
        return metadata_in_kind(rows, self._operation.tables.episodes.schema)

    def bring_runs(self) -> None:
        """Bring the runs that these episodes come from, unless they are here."""
        tables = self._operation.tables
        folder = self._operation.store.layout.table(RUNS)
        here = {
            run
            for file in tables.runs.files()
            for run in open_parquet(folder / file.name).read(columns=["run_id"]).column(0).to_pylist()
        }
        missing = pa.array(sorted(self._runs - here), pa.string())
        if not len(missing):
            return
        parts = []
        for file in self._snapshot.run_files:
            table = open_parquet(self._snapshot.layout.table(RUNS) / file.name).read()
            names = [c.name for c in self._snapshot.runs_schema if c.name in table.column_names]
            fields = [self._snapshot.runs_schema.field(name) for name in names]
            table = table.select(names).cast(pa.schema(fields))
            hit = pc.call_function("is_in", [table.column("run_id")], pc.SetLookupOptions(missing))
            parts.append(table.filter(hit))
        rows = pa.concat_tables(parts, promote_options="default")
        carry_artifacts(self._snapshot.layout, self._operation.store.layout, rows)
        loose = [column for column in rows.schema if kinds.field_kind(column)]
        loose += [ENV_BUNDLE] if ENV_BUNDLE.name in rows.column_names else []
        if any(self._differs(column, tables.runs.schema) for column in loose):
            loose.append(kinds.field(METADATA.json_column, kinds.JSON_KIND))
        tables.runs.ensure_columns(list({column.name: column for column in loose}.values()))
        rows = metadata_in_kind(rows, tables.runs.schema)
        name = self._operation.next_name()
        new = write_table_file(folder / name, rows)
        tables.runs.replace([new], [], f"{self._operation.id}.{name}", {"episodelake.operation": "merge"})


def metadata_in_kind(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with metadata in the kinds that a table has; what fits none moves to the JSON column."""
    known = {column.name: kinds.field_kind(column) for column in schema}
    own = [column for column in rows.schema if METADATA.owns(column)]
    if all(known.get(column.name) == kinds.field_kind(column) for column in own):
        return rows
    values = merge_rows(METADATA, rows)
    loose = ColumnSet(METADATA, schema).columns(LooseRows.of(values), 0, rows.num_rows)
    rows = rows.drop_columns([column.name for column in own])
    for name, (kind, array) in loose.items():
        rows = rows.append_column(kinds.field(name, kind), array)
    return rows


def _pointing(rows: pa.Table, name: str, starts: np.ndarray | None = None) -> pa.Table:
    index = rows.schema.get_field_index("segment")
    rows = rows.set_column(index, rows.schema.field(index), pa.array([name] * rows.num_rows, pa.string()))
    if starts is not None:
        index = rows.schema.get_field_index("row_start")
        rows = rows.set_column(index, rows.schema.field(index), pa.array(starts, pa.int64()))
    return rows


def _in_order(parts: Sequence[pa.Table], like: pa.Table) -> pa.Table:
    """The parts as one table, its episodes in the order in which another table has them."""
    joined = pa.concat_tables(parts)
    if len(parts) == 1:
        return joined
    where = pc.call_function(
        "index_in",
        [like.column("episode_id").combine_chunks()],
        pc.SetLookupOptions(joined.column("episode_id").combine_chunks()),
    )
    return joined.take(where)
