"""Compaction: small segments into large ones, ids and contents unchanged.

Without a sort order the episodes keep their positions: only files that stand next to each other are joined,
and the new file takes the place of the first. What no episode points at is left behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidArgumentError
from ..handle import StoreHandle
from ..layout import RUNS
from ..listed_files import TableFile
from ..parquet import open_parquet
from ..table_files import write_table_file
from .operation import Operation, Progress, reconcile
from .rewriting import NewSegment, freed_segments, write_segments

_FEW_RUNS = 16
_CLOSED = "-closed.parquet"


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did.

    Attributes:
        segments_before, segments_after: number of segments.
        bytes_before, bytes_after: bytes of their steps files.
        episodes: how many episodes were moved.
    """

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    episodes: int


def compact(
    store: StoreHandle,
    segment_bytes: int,
    order_by: str | None = None,
    *,
    descending: bool = False,
    progress: Progress | None = None,
) -> CompactReport:
    """Join small segments; with `order_by`, sort all episodes by a column of theirs.

    Raises:
        InvalidArgumentError: there is no such column to sort by, or the size is not positive.
        CorruptStoreError: an old file is damaged; nothing was changed.
        StoreAccessError, ConcurrentCommitError: nothing was changed; call again.
    """
    if isinstance(segment_bytes, bool) or not isinstance(segment_bytes, int | float) or segment_bytes < 1:
        raise InvalidArgumentError(f"segment_bytes={segment_bytes!r}: expected a positive number.")
    with Operation.begin(store, "compact") as operation:
        reconcile(operation)
        before = _sizes(operation)
        if order_by is None:
            old, new = _joined(operation, segment_bytes)
        else:
            old, new = _sorted(operation, segment_bytes, order_by, descending=descending)
        if new:
            written = write_segments(operation, new, shuffled=order_by is not None, progress=progress)
            freed = freed_segments(operation, old)
            operation.commit((written.steps, freed), (written.episodes, old))
        _compact_runs(operation)
        after = _sizes(operation)
    episodes = sum(segment.rows.num_rows for segment in new)
    return CompactReport(len(before), len(after), sum(before.values()), sum(after.values()), episodes)


def _sizes(operation: Operation) -> dict[str, int]:
    return {file.name: file.size for file in operation.tables.steps.files()}


def _joined(operation: Operation, segment_bytes: float) -> tuple[list[TableFile], list[NewSegment]]:
    """Neighbouring files as far as they fit into one segment."""
    old: list[TableFile] = []
    new: list[NewSegment] = []
    there = {file.name: file.rows for file in operation.tables.steps.files()}
    for group in _groups(operation, segment_bytes):
        if len(group) > 1 or _has_hidden_rows(operation, group, there):
            old += group
            new.append(NewSegment(operation.read_episodes(group), group[0].moment))
    return old, new


def _groups(operation: Operation, segment_bytes: float) -> Iterator[list[TableFile]]:
    sizes = _sizes(operation)
    group: list[TableFile] = []
    inside: set[str] = set()
    for file in operation.tables.episodes.files():
        segments = set(operation.read_episodes([file], ["segment"]).column("segment").unique().to_pylist())
        if group and sum(sizes[name] for name in inside | segments) > segment_bytes:
            yield group
            group, inside = [], set()
        group.append(file)
        inside |= segments
    if group:
        yield group


def _has_hidden_rows(operation: Operation, group: Sequence[TableFile], there: Mapping[str, int]) -> bool:
    """Whether the segments of some files have rows that no episode of theirs points at."""
    rows = operation.read_episodes(group, ["segment", "row_count"])
    names = set(rows.column("segment").to_pylist())
    listed = sum(there.get(name, 0) for name in names)
    return len(names) > len(group) or int(rows.column("row_count").to_numpy().sum()) != listed


def _sorted(
    operation: Operation, segment_bytes: float, column: str, *, descending: bool
) -> tuple[list[TableFile], list[NewSegment]]:
    """All episodes by a column; NULLs last, NaN before them, equal ones as they stood."""
    old = operation.tables.episodes.files()
    schema = operation.tables.episodes.schema
    if column not in schema.names or pa.types.is_list(schema.field(column).type):
        known = [field.name for field in schema if not pa.types.is_list(field.type)]
        raise InvalidArgumentError(f"Cannot order by {column!r}. Columns of episodes: {', '.join(known)}.")
    rows = operation.read_episodes(old)
    if not rows.num_rows:
        return [], []
    keys = pa.table({"key": rows.column(column), "position": pa.array(np.arange(rows.num_rows))})
    direction = "descending" if descending else "ascending"
    order = pc.call_function(
        "sort_indices",
        [keys],
        pc.SortOptions([("key", direction, "at_end"), ("position", "ascending", "at_end")]),
    )
    rows = rows.take(order)
    weights = rows.column("row_count").to_numpy() * (sum(_sizes(operation).values()) / _all_rows(operation))
    bucket = ((np.cumsum(weights) - weights) // segment_bytes).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(bucket)) + 1).tolist(), rows.num_rows]
    parts = itertools.pairwise(edges)
    if (
        len(edges) > len(old)
        and (np.diff(order.to_numpy().astype(np.int64)) > 0).all()
        and not _has_hidden_rows(operation, old, {f.name: f.rows for f in operation.tables.steps.files()})
    ):
        return [], []
    return old, [NewSegment(rows.slice(low, high - low), None) for low, high in parts]


def _all_rows(operation: Operation) -> int:
    return max(1, sum(file.rows for file in operation.tables.steps.files()))


def _compact_runs(operation: Operation) -> None:
    """Join the rows of runs that are over, once there are more than a few."""
    runs = operation.tables.runs
    old = [file for file in runs.files() if file.name.endswith(_CLOSED)]
    if len(old) <= _FEW_RUNS:
        return
    folder = operation.store.layout.table(RUNS)
    tables = [open_parquet(folder / file.name).read() for file in old]
    rows = pa.concat_tables(tables, promote_options="default")
    new = write_table_file(folder / operation.next_name(), rows, old[0].moment)
    runs.replace([new], [file.name for file in old], operation.id, {"episodelake.operation": "compact"})
