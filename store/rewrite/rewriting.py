"""New segments that replace old ones: the engine of compaction, merges and renaming, and deletion with it.

Rows are copied as Arrow tables. Each new segment is a steps file and an episodes file of one name, and the
files of the step annotations that go with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents import transitions_in
from ..delta.log import NewFile, TableFile
from ..dynamic.columns import SegmentColumns, with_columns
from ..files import Place
from ..layout import STEPS
from ..schema import StoreHandle
from ..tables.annotation_files import AnnotationFiles
from ..tables.table_files import Pointers, pointers_of
from .operation import Operation, Progress, reconcile
from .rows import AlignedFiles, Shuffled, counting, in_order, new_steps_file, write_rows


@dataclass(frozen=True)
class NewSegment:
    """A segment to be written.

    Attributes:
        rows: returns rows of the episodes table in their new order; they point at old segments.
        steps: how many rows of steps they point at.
        moment: its place in the order of files; None for the end.
    """

    rows: Callable[[], pa.Table]
    steps: int
    moment: int | None

    @staticmethod
    def of(rows: pa.Table, moment: int | None) -> NewSegment:
        """Return the segment of rows that are in memory."""
        return NewSegment(lambda: rows, int(rows.column("row_count").to_numpy().sum()), moment)

    @staticmethod
    def joining(operation: Operation, files: Sequence[TableFile]) -> NewSegment:
        """Return the segment of all episodes of some files, which are read when it is written."""
        counts = (operation.read_episodes([file], ["row_count"]).column("row_count") for file in files)
        steps = sum(int(each.to_numpy().sum()) for each in counts)
        return NewSegment(partial(operation.read_episodes, files), steps, files[0].moment)


@dataclass(frozen=True)
class Written:
    """Files that were written and wait for their commit."""

    steps: tuple[NewFile, ...]
    episodes: tuple[NewFile, ...]


def write_segments(
    operation: Operation,
    segments: Sequence[NewSegment],
    *,
    shuffled: bool,
    progress: Progress | None,
    unified: pa.Schema | None = None,
    change: Callable[[pa.Table], pa.Table] | None = None,
) -> Written:
    """Write new segments; nothing is committed. Memory holds the episodes of one, or of all shuffled ones.

    Args:
        operation: the operation that commits them.
        segments: what to write.
        shuffled: whether the rows come in an order that has nothing to do with where they lie.
        progress: called with the rows of steps written so far and all of them.
        unified: columns of the steps table with other kinds, which the new segments get.
        change: returns rows of steps as the new segments have them, with other names of columns.

    Raises:
        CorruptStoreError: an old file is damaged.
        StoreAccessError: a new file could not be written; those before it are removed.
    """
    work = _Writing(
        operation,
        annotation_files(operation),
        counting(progress, sum(segment.steps for segment in segments)),
        unified,
        change,
        [],
    )
    together = [segments] if shuffled and segments else [[segment] for segment in segments]
    try:
        written = [work.write(part, shuffled=shuffled) for part in together]
    except BaseException:
        for place in work.made:
            with contextlib.suppress(OSError):
                place.remove()
        raise
    return Written(
        tuple(file for part in written for file in part.steps),
        tuple(file for part in written for file in part.episodes),
    )


@dataclass(frozen=True)
class _Writing:
    """Writes segments; its fields are as for `write_segments`.

    Attributes:
        annotations: the files of the step annotations.
        counted: reports the rows of steps that pass.
        made: the files made so far.
    """

    operation: Operation
    annotations: AnnotationFiles
    counted: Callable[[Iterator[pa.Table]], Iterator[pa.Table]]
    unified: pa.Schema | None
    change: Callable[[pa.Table], pa.Table] | None
    made: list[Place]

    def write(self, segments: Sequence[NewSegment], *, shuffled: bool) -> Written:
        """Write some segments together."""
        operation = self.operation
        names = [operation.next_name() for _ in segments]
        tables = [segment.rows() for segment in segments]
        pointers = pointers_of(pa.concat_tables(tables), operation.store.layout.root)
        bucket = np.repeat(np.arange(len(tables)), [rows.num_rows for rows in tables])
        steps, *beside = aligned_files(operation, pointers.segments, self.annotations)
        with _ordered(steps[0], pointers, bucket, shuffled=shuffled) as rows_of:
            counts = [pointers.row_count[bucket == index] for index in range(len(names))]
            listed = [
                self._write_steps(steps[1] / name, steps[0], self.counted(rows_of(index)), counts[index])
                for index, name in enumerate(names)
            ]
        for aligned, folder in beside:
            with _ordered(aligned, pointers, bucket, shuffled=shuffled) as rows_of:
                for index, name in enumerate(names):
                    self.made.append(folder / name)
                    write_rows(folder / name, aligned, rows_of(index), counts[index])
        return self._list(segments, tables, names, listed)

    def _write_steps(
        self, target: Place, aligned: AlignedFiles, rows: Iterator[pa.Table], counts: np.ndarray
    ) -> tuple[int, dict[str, int]]:
        self.made.append(target)
        if self.change is not None:
            schema = self.change(aligned.columns.empty_table()).schema
            return write_rows(target, aligned, map(self.change, rows), counts, schema)
        columns = None if self.unified is None else columns_of(self.operation, aligned, self.unified)
        return write_aligned(self.operation, target, aligned, rows, counts, columns)

    def _list(
        self,
        segments: Sequence[NewSegment],
        tables: Sequence[pa.Table],
        names: Sequence[str],
        listed: Sequence[tuple[int, dict[str, int]]],
    ) -> Written:
        """Write the episodes files, which point at the new segments."""
        steps, episodes = [], []
        for segment, rows, name, written in zip(segments, tables, names, listed, strict=True):
            steps.append(new_steps_file(name, rows.column("episode_id"), written))
            self.made.append(self.operation.episodes_place(name))
            episodes.append(self.operation.write_episodes(name, pointing_at(rows, name), segment.moment))
        return Written(tuple(steps), tuple(episodes))


def write_aligned(
    operation: Operation,
    target: Place,
    aligned: AlignedFiles,
    rows: Iterator[pa.Table],
    counts: np.ndarray,
    columns: SegmentColumns | None,
) -> tuple[int, dict[str, int]]:
    """Write rows of aligned files; `columns`, unless None, gives the kinds of their columns."""
    if columns is None:
        return write_rows(target, aligned, rows, counts)
    schema = columns.schema(operation.store.schema.steps)
    return write_rows(target, aligned, map(columns.align, aligned.with_kinds(rows)), counts, schema)


def columns_of(operation: Operation, aligned: AlignedFiles, schema: pa.Schema) -> SegmentColumns:
    """Return the columns of new segments with rows of aligned files, in the kinds of a schema of `steps`."""
    seen = [pa.schema([aligned.schema.field(name) for name in aligned.columns.names])]
    return SegmentColumns(operation.store.schema.steps.names, schema, seen)


@contextlib.contextmanager
def _ordered(
    aligned: AlignedFiles, pointers: Pointers, bucket: np.ndarray, *, shuffled: bool
) -> Iterator[Callable[[int], Iterator[pa.Table]]]:
    """Yield a function that returns the rows of a new segment by its number."""
    if not shuffled:
        yield lambda index: in_order(aligned, pointers.chosen(bucket == index))
        return
    with contextlib.closing(Shuffled(aligned, pointers, bucket)) as rows:
        yield rows.bucket


def aligned_files(
    operation: Operation, segments: tuple[str, ...], files: AnnotationFiles
) -> Iterator[tuple[AlignedFiles, Place]]:
    """Yield aligned files: the steps, then each annotation that one of the segments has.

    With them comes the folder for its new files.
    """
    layout = operation.store.layout
    folder = layout.table(STEPS)
    video = operation.store.schema.video
    yield AlignedFiles(lambda name: folder / name, operation.tables.steps.schema, segments, video), folder
    for annotation in files.annotations.values():
        places = {name: files.find(annotation.name, name) for name in segments}
        if any(place is not None for place in places.values()):
            target = layout.annotations / annotation.ids[0]
            schema = annotation.schema(operation.store.schema.step_keys)
            yield AlignedFiles(places.__getitem__, schema, segments), target


def annotation_files(operation: Operation) -> AnnotationFiles:
    """Return the files of the step annotations of the newest version."""
    return AnnotationFiles(operation.store.layout, operation.annotations)


def pointing_at(rows: pa.Table, name: str) -> pa.Table:
    """Return rows of the episodes table that point at a new segment, one episode after the other."""
    counts = rows.column("row_count").to_numpy()
    starts = pa.array(np.cumsum(counts) - counts)
    return with_columns(rows, {"segment": pa.repeat(pa.scalar(name), rows.num_rows), "row_start": starts})


def freed_segments(operation: Operation, old: Sequence[TableFile]) -> list[TableFile]:
    """Return the steps files that only these episodes files point at."""
    names = {file.name for file in old}
    others = [file for file in operation.tables.episodes.files() if file.name not in names]
    freed = operation.segments_of(old) - operation.segments_of(others)
    return [file for file in operation.tables.steps.files() if file.name in freed]


@dataclass(frozen=True)
class DeleteReport:
    """The result of a deletion, or of its dry run.

    Attributes:
        episodes, steps: how many episodes and transitions.
        segments: how many segments are written anew or go.
    """

    episodes: int
    steps: int
    segments: int


def delete(
    store: StoreHandle, ids: Sequence[str], *, dry_run: bool = False, progress: Progress | None = None
) -> DeleteReport:
    """Delete episodes from the store; those that are gone already do not count.

    Their rows leave the tables with one commit; the files that hold them stay until `vacuum`.

    Raises:
        CorruptStoreError: an old file is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
    """
    wanted = pa.array(ids, pa.string())
    with Operation.begin(store, "delete", dry_run=dry_run) as operation:
        if not dry_run:
            reconcile(operation)
        old, new, gone = affected(operation, wanted)
        freed = freed_segments(operation, old)
        report = DeleteReport(gone.num_rows, transitions_in(gone), len(freed))
        if dry_run or not old:
            return report
        written = write_segments(operation, new, shuffled=False, progress=progress)
        counts = {"episodes": -report.episodes, "steps": -report.steps}
        operation.commit((written.steps, freed), (written.episodes, old), counts)
    return report


def affected(operation: Operation, wanted: pa.Array) -> tuple[list[TableFile], list[NewSegment], pa.Table]:
    """Return the episodes files with such episodes, what stays of each, and what goes."""
    old: list[TableFile] = []
    new: list[NewSegment] = []
    columns = ["row_count", *(["agents"] if operation.store.schema.groups else [])]
    gone = [operation.read_episodes([], columns)]
    for file in operation.tables.episodes.files():
        hit = _contained(operation.read_episodes([file], ["episode_id"]), wanted)
        if not hit.any():
            continue
        rows = operation.read_episodes([file], columns)
        gone.append(rows.filter(pa.array(hit)))
        old.append(file)
        if not hit.all():
            steps = int(rows.column("row_count").to_numpy()[~hit].sum())
            new.append(NewSegment(partial(_without, operation, file, wanted), steps, file.moment))
    return old, new, pa.concat_tables(gone)


def _contained(rows: pa.Table, wanted: pa.Array) -> np.ndarray:
    """Return a mask of the episodes with one of these ids."""
    return pc.call_function("is_in", [rows.column("episode_id")], pc.SetLookupOptions(wanted)).to_numpy()


def _without(operation: Operation, file: TableFile, wanted: pa.Array) -> pa.Table:
    rows = operation.read_episodes([file])
    return rows.filter(pa.array(~_contained(rows, wanted)))
