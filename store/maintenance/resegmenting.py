"""Segments for publishing: rows in any order, with the same columns in every file and names by content.

The same episodes give the same files. Where a segment ends depends on the episodes before it alone, so a
store that has grown since gives the same first segments again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from ..delta.log import NewFile
from ..files import Place, guard_access
from ..layout import STEPS
from ..snapshot import Snapshot
from ..tables.annotation_files import StepAnnotation
from ..tables.table_files import Pointers, pointers_of
from .operation import Operation, Progress
from .rewriting import columns_of, pointing_at, write_aligned
from .rows import AlignedFiles, Shuffled, counting, in_order, new_steps_file, write_rows

_DIGEST_LETTERS = 32


def write_anew(
    operation: Operation,
    snapshot: Snapshot,
    rows: pa.Table,
    annotations: Mapping[str, StepAnnotation],
    segment_bytes: int,
    progress: Progress | None = None,
) -> tuple[list[NewFile], pa.Table]:
    """Write the steps of episodes of a snapshot as new segments of a local store; nothing is committed.

    Args:
        operation: of the store, which has the columns already.
        snapshot: where the steps are.
        rows: the episodes, in the order of the new segments.
        annotations: the target's annotations of steps, by name.
        segment_bytes: about how large a segment may become.
        progress: called with the rows written so far and all rows.

    Returns:
        The new files of `steps`, and the rows of the episodes, which point at them.

    Raises:
        CorruptStoreError: a file of the snapshot is damaged.
        StoreAccessError: a file cannot be read or written.
    """
    layout, root = operation.store.layout, snapshot.layout.root
    pointers = pointers_of(rows, root)
    bucket = _buckets(snapshot, pointers, segment_bytes)
    schema = snapshot.marked_schema(STEPS)
    columns = columns_of(
        operation,
        AlignedFiles(snapshot.segment_path, schema, pointers.segments),
        operation.tables.steps.schema,
    )
    beside = [annotations[name] for name in snapshot.annotation_files.annotations]
    steps, moved = [], []
    counted = counting(progress, int(pointers.row_count.sum()))
    for index in range(int(bucket[-1]) + 1 if len(bucket) else 0):
        part = rows.filter(pa.array(bucket == index))
        chosen = pointers.chosen(bucket == index)
        counts = chosen.row_count
        unnamed = layout.table(STEPS) / operation.next_name()
        aligned, tables = _rows(chosen, snapshot.segment_path, schema)
        written = write_aligned(operation, unnamed, aligned, counted(tables), counts, columns)
        name = _named_by_content(unnamed, index)
        for annotation in beside:
            find = partial(snapshot.annotation_files.find, annotation.name)
            keys = annotation.schema(operation.store.schema.step_keys)
            side, tables = _rows(chosen, find, keys)
            if side.footers:
                folder = layout.annotations / annotation.ids[0]
                with guard_access("write", folder):
                    folder.make_folder()
                write_rows(folder / name, side, tables, counts)
        steps.append(new_steps_file(name, part.column("episode_id"), written))
        moved.append(pointing_at(part, name))
    operation.tables.steps.ensure_columns(columns.overflow())
    return steps, pa.concat_tables([rows.slice(0, 0), *moved])


def _buckets(snapshot: Snapshot, pointers: Pointers, segment_bytes: int) -> np.ndarray:
    """Return the number of the new segment of each episode, by the sizes of the files that it comes from."""
    sizes = {file.name: file.size / max(1, file.rows) for file in snapshot.step_files}
    row_bytes = np.array([sizes[name] for name in pointers.segments], np.float64)
    weights = pointers.row_count * row_bytes[pointers.segment]
    _, bucket = np.unique((np.cumsum(weights) - weights) // segment_bytes, return_inverse=True)
    return bucket


def _rows(
    pointers: Pointers, place: Callable[[str], Place | None], schema: pa.Schema
) -> tuple[AlignedFiles, Iterator[pa.Table]]:
    """Return the files that the rows of a new segment come from, and these rows."""
    # Its own files only: the sizes of row groups follow from them.
    used = np.unique(pointers.segment)
    aligned = AlignedFiles(place, schema, tuple(pointers.segments[each] for each in used))
    if _lie_in_order(pointers):
        return aligned, in_order(aligned, pointers)
    return aligned, _shuffled(aligned, pointers, used)


def _lie_in_order(pointers: Pointers) -> bool:
    """Return whether reading episodes in their order reads each old file once, from its begin to its end."""
    same = pointers.segment[1:] == pointers.segment[:-1]
    forward = pointers.row_start[1:] > pointers.row_start[:-1]
    return bool(forward[same].all()) and int((~same).sum()) + 1 == len(np.unique(pointers.segment))


def _shuffled(aligned: AlignedFiles, pointers: Pointers, used: np.ndarray) -> Iterator[pa.Table]:
    own = Pointers(
        aligned.segments,
        np.searchsorted(used, pointers.segment).astype(np.int32),
        pointers.row_start,
        pointers.row_count,
    )
    rows = Shuffled(aligned, own, np.zeros(len(own.segment), np.int64))
    try:
        yield from rows.bucket(0)
    finally:
        rows.close()


def _named_by_content(place: Place, index: int) -> str:
    """Give a file its number and the digest of its bytes as its name, and return that."""
    digest = hashlib.sha256()
    with guard_access("name the segment", place):
        for piece in place.chunks():
            digest.update(piece)
        name = f"{index:06d}-{digest.hexdigest()[:_DIGEST_LETTERS]}.parquet"
        assert place.local is not None
        place.local.rename(place.local.with_name(name))
        place.parent.sync()
    return name
