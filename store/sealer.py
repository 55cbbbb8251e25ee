"""Sealing: finished episodes of a run leave the journal and become a segment of the store.

The order is what makes a crash harmless. The steps file and the episodes file are written and made durable;
then the steps are committed, then the episodes. Only with the second commit does a snapshot show anything.
Repeating a seal that was interrupted at any point has the effect of doing it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from . import kinds
from .episode_table import episodes_table
from .families import METADATA, ColumnSet
from .journal import RunHeader
from .journal_reading import PartReader
from .layout import EPISODES, RUNS, STEPS, Layout, segment_name
from .listed_files import NewFile
from .loose_merge import SegmentColumns
from .loose_rows import LooseRows
from .record_columns import EpisodeColumns
from .records import SegmentRows
from .row_index import RowIndex
from .schema import RUNS_SCHEMA, StepSchema
from .seal_log import note_seal
from .sealing import StepsFile
from .table_files import write_table_file
from .tables import Table
from .values import load_json


@dataclass(frozen=True)
class Tables:
    """The three tables of a store, for one writer."""

    layout: Layout
    runs: Table
    episodes: Table
    steps: Table

    @staticmethod
    def open(layout: Layout) -> Tables:
        """Open all three at their newest versions."""
        return Tables(layout, *(Table(layout.table(name)) for name in (RUNS, EPISODES, STEPS)))


@dataclass(frozen=True)
class Seal:
    """One seal: which episodes of a run, and the journal parts that hold their rows.

    Attributes:
        segment: number of the segment within the run; grows with every seal of the run.
        records: the finished episodes in the order in which they ended.
        parts: journal parts, oldest first; they may hold rows of other episodes too.
    """

    header: RunHeader
    segment: int
    records: EpisodeColumns
    parts: Sequence[Path]


def seal(tables: Tables, schema: StepSchema, job: Seal) -> None:
    """Write and commit one segment.

    Raises:
        StoreAccessError: a file could not be written (a full disk, say); nothing became visible, repeat it.
        ConcurrentCommitError: other writers kept winning; nothing became visible, repeat it.
    """
    run_id = job.header.run_id
    name = segment_name(run_id, job.segment)
    if tables.episodes.applied(run_id) >= job.segment:
        return
    note_seal(job.parts[0].parent, job.segment, job.records.numbers)
    readers = [PartReader(path) for path in job.parts]
    ids = job.records.ids(run_id)
    index = RowIndex.find(readers, job.records.number).cut(job.records.length + 1)
    # A file that is listed already, by an attempt that got so far, is never written over.
    done = tables.steps.applied(run_id) >= job.segment
    steps = None if done else _write_steps(tables, schema, name, ids, index, readers)
    rows = _segment_rows(name, index)
    metadata = ColumnSet(METADATA, tables.episodes.schema)
    table = episodes_table(schema, run_id, ids, job.records, rows, metadata)
    tables.episodes.ensure_columns([column for column in table.schema if kinds.field_kind(column)])
    table = _in_line(table, job, ids, schema, rows, tables)
    episodes = write_table_file(tables.layout.table(EPISODES) / name, table)
    if steps is not None:
        tables.steps.commit([steps], run_id, job.segment, removed=_orphans(tables, job))
    counts = {
        "episodelake.episodes": len(job.records),
        "episodelake.steps": int(job.records.length.sum()),
    }
    tables.episodes.commit(
        [episodes], run_id, job.segment, details={"episodelake.operation": "seal", **counts}
    )


def _in_line(
    table: pa.Table, job: Seal, ids: Sequence[str], schema: StepSchema, rows: SegmentRows, tables: Tables
) -> pa.Table:
    """The same rows once more if another run committed a metadata key under another kind meanwhile."""
    committed = {column.name: kinds.field_kind(column) for column in tables.episodes.schema}
    if all(committed.get(column.name) == kinds.field_kind(column) for column in table.schema):
        return table
    metadata = ColumnSet(METADATA, tables.episodes.schema)
    table = episodes_table(schema, job.header.run_id, ids, job.records, rows, metadata)
    tables.episodes.ensure_columns([column for column in table.schema if kinds.field_kind(column)])
    return table


def _write_steps(
    tables: Tables,
    schema: StepSchema,
    name: str,
    ids: Sequence[str],
    index: RowIndex,
    readers: Sequence[PartReader],
) -> NewFile:
    path = tables.layout.table(STEPS) / name
    schemas = (runs.batch.schema for runs in index.pieces.runs)
    # By all that they say: schemas that differ only in the kinds of columns are equal.
    seen = list({schema.serialize().to_pybytes(): schema for schema in schemas}.values())
    names = schema.journal.names
    columns = SegmentColumns(names, tables.steps.schema, seen)
    tables.steps.ensure_columns(columns.fields)
    columns = SegmentColumns(names, tables.steps.schema, seen)
    tables.steps.ensure_columns(columns.fields)
    written = StepsFile(path, schema, columns).write(ids, index, readers)
    return NewFile(
        name, written.rows, written.null_counts, {"episode_id": min(ids)}, {"episode_id": max(ids)}
    )


def _segment_rows(name: str, index: RowIndex) -> SegmentRows:
    counts = index.steps_rows
    return SegmentRows(name, (np.cumsum(counts) - counts).tolist(), counts.tolist())


def _orphans(tables: Tables, job: Seal) -> list[str]:
    """Steps files of this run whose episodes were never committed: a crash cut their seal short."""
    shown = tables.episodes.applied(job.header.run_id)
    committed = tables.steps.applied(job.header.run_id)
    lost = {segment_name(job.header.run_id, number) for number in range(shown + 1, committed + 1)}
    lost.discard(segment_name(job.header.run_id, job.segment))
    return [file.name for file in tables.steps.files() if file.name in lost] if lost else []


def commit_run(tables: Tables, header: RunHeader, ended_at: int | None) -> None:
    """Write the run's row: first without an end when its first segment is sealed, then with it.

    Args:
        ended_at: microseconds since 1970, UTC; None while the run goes on.
    """
    state = 0 if ended_at is None else 1
    if tables.runs.applied(header.run_id) >= state:
        return
    live, closed = live_name(header.run_id), f"{header.run_id}-closed.parquet"
    name = live if ended_at is None else closed
    table = _runs_table(tables.runs, header, ended_at)
    new = write_table_file(tables.layout.table(RUNS) / name, table)
    tables.runs.refresh()
    removed = [live] if state and tables.runs.applied(header.run_id) == 0 else []
    tables.runs.commit([new], header.run_id, state, removed=removed)


def live_name(run_id: str) -> str:
    """The file of the runs table with the row of a run that goes on."""
    return f"{run_id}-live.parquet"


def _runs_table(runs: Table, header: RunHeader, ended_at: int | None) -> pa.Table:
    metadata = LooseRows.of([load_json(header.metadata, "the journal's header")])
    loose = ColumnSet(METADATA, runs.schema).columns(metadata, 0, 1)
    runs.ensure_columns([kinds.field(name, kind) for name, (kind, _) in loose.items()])
    # Another run may have committed a key under another kind meanwhile: look once more.
    loose = ColumnSet(METADATA, runs.schema).columns(metadata, 0, 1)
    runs.ensure_columns([kinds.field(name, kind) for name, (kind, _) in loose.items()])
    values = [header.run_id, header.name, header.started_at, ended_at, header.env_spec, header.versions]
    arrays = [pa.array([value], column.type) for value, column in zip(values, RUNS_SCHEMA, strict=True)]
    fields = [*RUNS_SCHEMA, *(kinds.field(name, kind) for name, (kind, _) in loose.items())]
    return pa.table([*arrays, *(array for _, array in loose.values())], schema=pa.schema(fields))
