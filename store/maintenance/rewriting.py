"""New segments that replace old ones: the engine of compaction, merges and renaming, and deletion with it.

Rows are copied as Arrow tables. Each new segment is a steps file and an episodes file of one name, and the
files of the step annotations that go with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
        rows: rows of the episodes table in their new order; they point at old segments.
        moment: its place in the order of files; None for the end.
    """

    rows: pa.Table
    moment: int | None


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
    """Write new segments; nothing is committed.

    Args:
        operation: the operation that commits them.
        segments: what to write.
        shuffled: whether the rows come in an order that has nothing to do with where they lie.
        progress: called with the rows written so far and all rows.
        unified: columns of the steps table with other kinds, which the new segments get.
        change: returns rows of steps as the new segments have them, with other names of columns.

    Raises:
        CorruptStoreError: an old file is damaged.
        StoreAccessError: a new file could not be written; those before it are removed.
    """
    if not segments:
        return Written((), ())
    made: list[Place] = []
    try:
        names = [operation.next_name() for _ in segments]
        old = pa.concat_tables([segment.rows for segment in segments])
        pointers = pointers_of(old, operation.store.layout.root)
        bucket = np.repeat(np.arange(len(segments)), [segment.rows.num_rows for segment in segments])
        listed: dict[str, tuple[int, dict[str, int]]] = {}
        sources = list(aligned_files(operation, pointers.segments))
        counted = counting(progress, int(pointers.row_count.sum()) * len(sources))
        for aligned, folder in sources:
            columns = None
            if unified is not None and aligned is sources[0][0]:
                columns = columns_of(operation, aligned, unified)
            with _ordered(aligned, pointers, bucket, shuffled=shuffled) as rows_of:
                for index, name in enumerate(names):
                    counts = pointers.row_count[bucket == index]
                    made.append(folder / name)
                    rows = counted(rows_of(index))
                    if change is not None and aligned is sources[0][0]:
                        schema = change(aligned.columns.empty_table()).schema
                        written = write_rows(folder / name, aligned, map(change, rows), counts, schema)
                    else:
                        written = write_aligned(operation, folder / name, aligned, rows, counts, columns)
                    listed.setdefault(name, written)
        return _listed(operation, segments, names, listed, made)
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):
                place.remove()
        raise


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


def aligned_files(operation: Operation, segments: tuple[str, ...]) -> Iterator[tuple[AlignedFiles, Place]]:
    """Yield what lies beside each other: the steps, then each annotation that one of the segments has.

    With them comes the folder for its new files.
    """
    layout = operation.store.layout
    folder = layout.table(STEPS)
    yield AlignedFiles(lambda name: folder / name, operation.tables.steps.schema, segments), folder
    files = annotation_files(operation)
    for annotation in files.annotations.values():
        places = {name: files.find(annotation.name, name) for name in segments}
        if any(place is not None for place in places.values()):
            target = layout.annotations / annotation.ids[0]
            schema = annotation.schema(operation.store.schema.step_keys)
            yield AlignedFiles(places.__getitem__, schema, segments), target


def annotation_files(operation: Operation) -> AnnotationFiles:
    """Return the files of the step annotations of the newest version."""
    return AnnotationFiles(operation.store.layout, operation.annotations)


def _listed(
    operation: Operation,
    segments: Sequence[NewSegment],
    names: Sequence[str],
    written: dict[str, tuple[int, dict[str, int]]],
    made: list[Place],
) -> Written:
    """Write the episodes files, which point at the new segments."""
    steps, episodes = [], []
    for segment, name in zip(segments, names, strict=True):
        steps.append(new_steps_file(name, segment.rows.column("episode_id"), written[name]))
        rows = pointing_at(segment.rows, name)
        made.append(operation.episodes_place(name))
        episodes.append(operation.write_episodes(name, rows, segment.moment))
    return Written(tuple(steps), tuple(episodes))


def pointing_at(rows: pa.Table, name: str) -> pa.Table:
    """Return rows of the episodes table that point at a new segment, one episode behind the other."""
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
        ids = operation.read_episodes([file], ["episode_id"]).column("episode_id")
        hit = pc.call_function("is_in", [ids], pc.SetLookupOptions(wanted)).to_numpy()
        if not hit.any():
            continue
        rows = operation.read_episodes([file])
        gone.append(rows.take(pa.array(np.flatnonzero(hit))).select(columns))
        old.append(file)
        if not hit.all():
            new.append(NewSegment(rows.take(pa.array(np.flatnonzero(~hit))), file.moment))
    return old, new, pa.concat_tables(gone)
