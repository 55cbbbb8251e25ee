"""Compaction: small segments into large ones, ids and contents unchanged.

Without a sort order the episodes keep their positions: only files that stand next to each other are joined,
and the new file takes the place of the first. Rows that no episode points at are left behind.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..common.arguments import known_name, whole_number
from ..delta.log import TableFile
from ..errors import ConcurrentCommitError
from ..journal.run_journal import journal_folders
from ..layout import EPISODES, RUNS, STEPS
from ..schema import StoreHandle
from ..tables.overflow import Unification, overflow_of
from ..tables.table_files import closed_files, join
from .operation import Operation, Progress, reconcile
from .rewriting import NewSegment, freed_segments, write_segments

_FEW_RUNS = 16


@dataclass(frozen=True)
class CompactReport:
    """The result of a compaction.

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
        CorruptStoreError: an old file is damaged; no segment was changed.
        StoreAccessError, ConcurrentCommitError: no segment was changed; call again.
    """
    segment_bytes = whole_number("segment_bytes", segment_bytes, 1)
    with Operation.begin(store, "compact") as operation:
        reconcile(operation)
        before = _sizes(operation)
        unified = _unified(operation)
        touched = unified[STEPS].touched if STEPS in unified else frozenset()
        if order_by is None:
            old, new = _joined(operation, segment_bytes, touched)
        else:
            old, new = _sorted(operation, segment_bytes, order_by, touched, descending=descending)
        # First, so that damage there is met before the segments change.
        _compact_runs(operation, unified.get(RUNS))
        _rewrite(operation, old, new, unified, shuffled=order_by is not None, progress=progress)
        after = _sizes(operation)
    episodes = sum(file.rows for file in old)
    return CompactReport(len(before), len(after), sum(before.values()), sum(after.values()), episodes)


def _unified(operation: Operation) -> dict[str, Unification]:
    """Return wider types for columns that do not hold all their numbers, unless a run is being recorded."""
    if journal_folders(operation.store.layout.journals):
        return {}
    tables = operation.tables
    each = {RUNS: tables.runs, EPISODES: tables.episodes, STEPS: tables.steps}
    wider = {name: unified for name, table in each.items() if (unified := Unification.of(table)) is not None}
    if STEPS in wider and not wider[STEPS].touched <= operation.segments_of(tables.episodes.files()):
        # Files that no episode points at cannot be written anew.
        del wider[STEPS]
    return wider


def _rewrite(
    operation: Operation,
    old: list[TableFile],
    new: list[NewSegment],
    unified: Mapping[str, Unification],
    *,
    shuffled: bool,
    progress: Progress | None,
) -> None:
    """Write new segments for old files of episodes, and columns in their new kinds, and commit all."""
    freed = freed_segments(operation, old)
    episodes = unified.get(EPISODES)
    if episodes is not None:
        new = [replace(segment, rows=partial(_unified_rows, segment, episodes)) for segment in new]
    schema = unified[STEPS].schema if STEPS in unified else None
    written = write_segments(operation, new, shuffled=shuffled, progress=progress, unified=schema)
    added = list(written.episodes)
    if episodes is not None:
        others = episodes.touched - {file.name for file in old}
        touched = [file for file in operation.tables.episodes.files() if file.name in others]
        added += operation.rewritten(touched, lambda _, rows: episodes.rows(rows))
        old = [*old, *touched]
    if added or not unified.keys().isdisjoint((STEPS, EPISODES)):
        operation.commit((written.steps, freed), (added, old), unified=unified)


def _unified_rows(segment: NewSegment, episodes: Unification) -> pa.Table:
    return episodes.rows(segment.rows())


def _sizes(operation: Operation) -> dict[str, int]:
    return {file.name: file.size for file in operation.tables.steps.files()}


def _joined(
    operation: Operation, segment_bytes: float, touched: frozenset[str]
) -> tuple[list[TableFile], list[NewSegment]]:
    """Return neighbouring files that fit into one segment, and those of touched segments."""
    old: list[TableFile] = []
    new: list[NewSegment] = []
    for group in _groups(operation, segment_bytes):
        segment = NewSegment.joining(operation, group)
        if (
            len(group) > 1
            or _has_hidden_rows(operation, group, segment.steps)
            or not touched.isdisjoint(operation.segments_of(group))
        ):
            old += group
            new.append(segment)
    return old, new


def _groups(operation: Operation, segment_bytes: float) -> Iterator[list[TableFile]]:
    sizes = _sizes(operation)
    group: list[TableFile] = []
    inside: set[str] = set()
    for file in operation.tables.episodes.files():
        segments = operation.segments_of([file])
        if group and sum(sizes[name] for name in inside | segments) > segment_bytes:
            yield group
            group, inside = [], set()
        group.append(file)
        inside |= segments
    if group:
        yield group


def _has_hidden_rows(operation: Operation, group: Sequence[TableFile], steps: int) -> bool:
    """Return whether the segments of some files have rows that none of the episodes' `steps` rows is."""
    there = {file.name: file.rows for file in operation.tables.steps.files()}
    names = operation.segments_of(group)
    return len(names) > len(group) or steps != sum(there.get(name, 0) for name in names)


def _sorted(
    operation: Operation, segment_bytes: float, column: str, touched: frozenset[str], *, descending: bool
) -> tuple[list[TableFile], list[NewSegment]]:
    """Return all episodes by a column; NULLs last, NaN before them, stable."""
    old = operation.tables.episodes.files()
    schema = operation.tables.episodes.schema
    known = [field.name for field in schema if not pa.types.is_list(field.type)]
    known_name(column, known, f"Cannot order by {column!r}.", "Columns of episodes")
    rows = operation.read_episodes(old)
    if not rows.num_rows:
        return [], []
    shown = rows.column(column)
    overflow = overflow_of(schema, operation.tables.episodes.path, lambda: old).get(column)
    if overflow is not None:
        shown = overflow.fill(shown, rows.column(overflow.json_column))
    keys = pa.table({"key": shown, "position": pa.array(np.arange(rows.num_rows))})
    direction = "descending" if descending else "ascending"
    order = pc.call_function(
        "sort_indices",
        [keys],
        pc.SortOptions([("key", direction), ("position", "ascending")]),
    )
    rows = rows.take(order)
    all_rows = max(1, sum(file.rows for file in operation.tables.steps.files()))
    weights = rows.column("row_count").to_numpy() * (sum(_sizes(operation).values()) / all_rows)
    bucket = ((np.cumsum(weights) - weights) // segment_bytes).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(bucket)) + 1).tolist(), rows.num_rows]
    parts = itertools.pairwise(edges)
    if (
        len(edges) > len(old)
        and not touched
        and (np.diff(order.to_numpy().astype(np.int64)) > 0).all()
        and not _has_hidden_rows(operation, old, int(rows.column("row_count").to_numpy().sum()))
    ):
        return [], []
    return old, [NewSegment.of(rows.slice(low, high - low), None) for low, high in parts]


def _compact_runs(operation: Operation, unified: Unification | None) -> None:
    """Join the rows of runs that are over, if there are more than a few files or columns get other kinds."""
    runs = operation.tables.runs
    closed = {file.name for file in closed_files(runs)}
    touched = frozenset() if unified is None else unified.touched
    old = [file for file in runs.files() if file.name in touched | closed]
    if unified is None and len(closed) <= _FEW_RUNS:
        return
    changes = {}
    if unified is not None:
        check = unified.check([file.name for file in old])
        changes = {"rewritten": unified.rows, "columns": unified.apply, "check": check}
    # A run that ended meanwhile may have joined the same files.
    with contextlib.suppress(ConcurrentCommitError):
        join(runs, old, operation.next_name(), operation.id, **changes)
