"""New segments in the place of old ones: the engine of compaction and deletion.

Rows are copied as Arrow tables. Each new segment is a steps file and an episodes file of one name, and the
files of the step annotations that go with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..annotation_files import AnnotationFiles, parse_annotations
from ..layout import STEPS
from ..listed_files import NewFile, TableFile
from ..places import Place
from ..snapshot import Pointers, pointers_of
from .operation import Operation, Progress
from .rows import Meter, Shuffled, Strip, in_order, new_steps_file, write_rows


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
    operation: Operation, segments: Sequence[NewSegment], *, shuffled: bool, progress: Progress | None
) -> Written:
    """Write new segments; nothing is committed.

    Args:
        operation: the operation that commits them.
        segments: what to write.
        shuffled: whether the rows come in an order that has nothing to do with where they lie.
        progress: called with the rows written so far and all rows.

    Raises:
        CorruptStoreError: an old file is damaged.
        StoreAccessError: a new file could not be written; those before it are removed.
    """
    made: list[Place] = []
    try:
        names = [operation.next_name() for _ in segments]
        pointers = pointers_of(_joined(segments), operation.store.layout.root)
        edges = np.cumsum([0, *(segment.rows.num_rows for segment in segments)])
        bucket = np.repeat(np.arange(len(segments)), np.diff(edges))
        listed: dict[str, tuple[int, dict[str, int]]] = {}
        found = list(strips(operation, pointers.segments))
        meter = Meter(progress, int(pointers.row_count.sum()) * len(found))
        for strip, folder in found:
            with contextlib.ExitStack() as stack:
                order = stack.enter_context(
                    contextlib.closing(_Order(strip, pointers, bucket, shuffled=shuffled))
                )
                for index, name in enumerate(names):
                    counts = pointers.row_count[edges[index] : edges[index + 1]]
                    made.append(folder / name)
                    written = write_rows(folder / name, strip, meter.seen(order.rows(index)), counts)
                    listed.setdefault(name, written)
        return _listed(operation, segments, names, listed, made)
    except BaseException:
        for place in made:
            with contextlib.suppress(OSError):
                place.remove()
        raise


def _joined(segments: Sequence[NewSegment]) -> pa.Table:
    return pa.concat_tables([segment.rows for segment in segments])


class _Order:
    """The rows of each new segment, streamed or sorted."""

    def __init__(self, strip: Strip, pointers: Pointers, bucket: np.ndarray, *, shuffled: bool) -> None:
        self._strip = strip
        self._pointers = pointers
        self._bucket = bucket
        self._shuffled = Shuffled(strip, pointers, bucket) if shuffled else None

    def rows(self, index: int) -> Iterator[pa.Table]:
        if self._shuffled is not None:
            return self._shuffled.bucket(index)
        chosen = self._bucket == index
        part = Pointers(
            self._pointers.segments,
            self._pointers.segment[chosen],
            self._pointers.row_start[chosen],
            self._pointers.row_count[chosen],
        )
        return in_order(self._strip, part)

    def close(self) -> None:
        if self._shuffled is not None:
            self._shuffled.close()


def strips(operation: Operation, segments: tuple[str, ...]) -> Iterator[tuple[Strip, Place]]:
    """What lies beside each other: the steps, then each annotation that one of the segments has.

    With each strip comes the folder for its new files.
    """
    layout = operation.store.layout
    folder = layout.table(STEPS)
    yield Strip(lambda name: folder / name, operation.tables.steps.schema, segments), folder
    files = annotation_files(operation)
    for annotation in files.annotations.values():
        found = {name: files.find(annotation.name, name) for name in segments}
        if any(place is not None for place in found.values()):
            target = layout.annotations / annotation.ids[0]
            schema = annotation.schema(operation.store.schema.step_keys)
            yield Strip(found.__getitem__, schema, segments), target


def annotation_files(operation: Operation) -> AnnotationFiles:
    """The step annotations of the newest version."""
    layout = operation.store.layout
    return AnnotationFiles(layout, parse_annotations(operation.annotations_text, layout.root))


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
        rows = _pointing_at(segment.rows, name)
        made.append(operation.episodes_place(name))
        episodes.append(operation.write_episodes(name, rows, segment.moment))
    return Written(tuple(steps), tuple(episodes))


def _pointing_at(rows: pa.Table, name: str) -> pa.Table:
    counts = rows.column("row_count").to_numpy()
    new = {
        "segment": pa.array([name] * rows.num_rows, pa.string()),
        "row_start": pa.array(np.cumsum(counts) - counts),
    }
    for column, values in new.items():
        index = rows.schema.get_field_index(column)
        rows = rows.set_column(index, rows.schema.field(index), values)
    return rows


def freed_segments(operation: Operation, old: Sequence[TableFile]) -> list[TableFile]:
    """The steps files that only these episodes files point at."""
    names = {file.name for file in old}
    others = [file for file in operation.tables.episodes.files() if file.name not in names]
    freed = segments_of(operation, old) - segments_of(operation, others)
    return [file for file in operation.tables.steps.files() if file.name in freed]


def segments_of(operation: Operation, files: Sequence[TableFile]) -> set[str]:
    """The steps files that some episodes files point at."""
    rows = operation.read_episodes(files, ["segment"])
    return set(rows.column("segment").unique().to_pylist())
