"""Sealing: finished episodes of a run leave the journal and become a segment of the store.

The order is what makes a crash harmless. The steps file and the episodes file are written and made durable;
then the steps are committed, then the episodes. Only with the second commit does a snapshot show anything.
Repeating a seal that was interrupted at any point has the effect of doing it once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..delta.log import NewFile
from ..delta.table import Table, TableChangedError
from ..dynamic import logical_types as kinds
from ..dynamic.column_groups import METADATA, ColumnSet, DynamicRows
from ..dynamic.columns import SegmentColumns, marked
from ..dynamic.values import load_json
from ..errors import StoreAccessError
from ..files import is_folder
from ..journal.episodes import EpisodeColumns
from ..journal.reading import PartReader
from ..journal.records import RunHeader
from ..journal.row_index import RowIndex
from ..journal.run_journal import note_seal
from ..layout import EPISODES, RUNS, STEPS, Layout, check_identity, segment_name
from ..parquet.files import read_parquet
from ..schema import ENV_BUNDLE, LAST_OBSERVATION, MISSING, RUNS_SCHEMA, StepSchema, StoreHandle
from ..tables.table_files import LIVE, join_many, write_table_file
from .steps_file import StepsFile

LOG = logging.getLogger("episodelake")

_LARGEST = 2**63 - 1
#: Columns without a kind that a table gets with the first row that has a value.
_OPTIONAL = frozenset({LAST_OBSERVATION.name, ENV_BUNDLE.name})
#: How often a segment is written for columns that another operation then changes.
_ATTEMPTS = 5


@dataclass(frozen=True)
class SegmentRows:
    """The rows of each episode in the steps file of a segment: first row and number of rows (T+1)."""

    segment: str
    row_start: Sequence[int]
    row_count: Sequence[int]


def episodes_table(
    schema: StepSchema,
    run_id: str,
    ids: Sequence[str],
    records: EpisodeColumns,
    rows: SegmentRows,
    metadata: ColumnSet,
) -> pa.Table:
    """Return the episodes of a segment, one row each; `ids` are theirs, in order."""
    facts = records.facts_in_order()
    seeds = [each.seed for each in facts]
    columns: dict[str, Any] = {
        "episode_id": ids,
        "run_id": [run_id] * len(records),
        "episode_return": records.episode_return.tolist(),
        "seed": [seed if seed is not None and abs(seed) <= _LARGEST else None for seed in seeds],
        "wide_seed": [str(seed) if seed is not None and abs(seed) > _LARGEST else None for seed in seeds],
        "options": [each.options for each in facts],
        "segment": [rows.segment] * len(records),
        "row_start": rows.row_start,
        "row_count": rows.row_count,
        **_agent_columns(schema, records),
    }
    base = schema.episodes
    arrays = [
        pa.array(columns.get(column.name, getattr(records, column.name, None)), column.type)
        for column in base
    ]
    fields = list(base)
    if any(each.last_missing for each in facts):
        fields.append(LAST_OBSERVATION)
        missing = [MISSING if each.last_missing else None for each in facts]
        arrays.append(pa.array(missing, LAST_OBSERVATION.type))
    dynamic = DynamicRows.of([each.metadata for each in facts])
    for name, (kind, array) in metadata.columns(dynamic, 0, len(records)).items():
        fields.append(kinds.field(name, kind))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))


def _agent_columns(schema: StepSchema, records: EpisodeColumns) -> dict[str, Any]:
    """Return the columns of episodes that only multi-agent stores have."""
    if not schema.groups:
        return {}
    teams = [records.agents[number] for number in records.number.tolist()]
    return {
        "agents": [[agent.agent_id for agent in team] for team in teams],
        "agent_groups": [[schema.groups[agent.group].name for agent in team] for team in teams],
        "agent_lengths": [[agent.length for agent in team] for team in teams],
        "agent_returns": [[agent.episode_return for agent in team] for team in teams],
        "agent_terminations": [[agent.terminated for agent in team] for team in teams],
        "agent_truncations": [[agent.truncated for agent in team] for team in teams],
    }


@dataclass(frozen=True)
class Tables:
    """The three tables of a store, for one writer."""

    layout: Layout
    runs: Table
    episodes: Table
    steps: Table

    @staticmethod
    def open(layout: Layout) -> Tables:
        """Open all three at their newest versions.

        Raises:
            StoreNotFoundError: another store has replaced the one that the layout was made for.
        """
        tables = Tables(layout, *(Table(layout.table(name)) for name in (RUNS, EPISODES, STEPS)))
        # Afterwards: the tables of a store are made before its `store.json`.
        check_identity(layout)
        return tables

    def check_writable(self) -> None:
        """Refuse to write if one of the tables cannot be written, before another is.

        Raises:
            FormatVersionError: another program gave a table features which writers must heed.
        """
        for table in (self.runs, self.episodes, self.steps):
            table.check_writable()


@dataclass(frozen=True)
class WrittenSegment:
    """A steps file before its commit.

    Attributes:
        rows: where its episodes are.
        file: how to list it; None if it is listed already.
        columns: the columns that it has beside those of the spaces, then once more, marked so, those with
            numbers that stand in the JSON column only.
    """

    rows: SegmentRows
    file: NewFile | None = None
    columns: Sequence[pa.Field] = ()


class WrittenAhead:
    """The steps file of a seal that waits for others, if it is written before its turn; tried once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._segment: WrittenSegment | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a thread is writing it."""
        return self._lock.locked()

    def write(self, write: Callable[[], WrittenSegment]) -> None:
        """Write the file, unless another thread does or the turn of the seal has come."""
        if self._lock.acquire(blocking=False):
            try:
                if self._open:
                    self._open = False
                    self._segment = write()
            finally:
                self._lock.release()

    def take(self) -> WrittenSegment | None:
        """Return the file, once, and wait for a thread that is writing it; none writes it afterwards."""
        with self._lock:
            self._open = False
            segment, self._segment = self._segment, None
            return segment


@dataclass(frozen=True)
class Seal:
    """One seal: which episodes of a run, and the journal parts that hold their rows.

    Attributes:
        segment: number of the segment within the run; grows with every seal of the run.
        records: the finished episodes in the order in which they ended.
        journal: the run's journal directory.
        parts: journal parts, oldest first; they may hold rows of other episodes too.
        bulk: batches of finished rows that are in memory only, in the columns of the journal; they may hold
            rows of other episodes too.
        own: whether this process has written the parts.
        ahead: its steps file, where that was written before its turn.
    """

    header: RunHeader
    segment: int
    records: EpisodeColumns
    journal: Path
    parts: Sequence[Path]
    bulk: Sequence[pa.RecordBatch] = ()
    own: bool = False
    ahead: WrittenAhead = field(default_factory=WrittenAhead)


def seal_segment(store: StoreHandle, tables: Tables, job: Seal) -> None:
    """Write and commit one segment.

    Its commit to `episodes` removes the episodes that those of the segment continue. Each of these must be
    alone in its file: `reopening.seal_reopened` sees to it.

    Raises:
        StoreAccessError: a file could not be written (a full disk, say); nothing became visible, repeat it.
        ConcurrentCommitError: other writers kept winning; nothing became visible, repeat it.
        TableChangedError: an episode that is continued is not alone in its file; nothing became visible.
    """
    for _ in range(_ATTEMPTS):
        try:
            _seal(tables, store.schema, job)
            LOG.info(
                "sealed segment %d of run %s: %d episodes", job.segment, job.header.run_id, len(job.records)
            )
            return
        except TableChangedError:
            LOG.info("segment %d of run %s: a table changed, trying again", job.segment, job.header.run_id)
            tables.episodes.refresh()
            tables.steps.refresh()
    _seal(tables, store.schema, job)


def write_ahead(store: StoreHandle, tables: Tables, job: Seal) -> None:
    """Write the steps file of a seal whose turn has not come, so that only its commits are left then.

    Safe beside a thread that commits other seals of the run with the same tables: this one only looks up the
    columns of `steps`, which the commit compares again, and lists nothing. An error may be ignored: the seal
    then writes the file.
    """

    def write() -> WrittenSegment:
        check_identity(tables.layout)
        if not is_folder(job.journal):
            raise StoreAccessError(f"The journal {job.journal} is gone.")
        return _write_steps(tables, store.schema, job)

    job.ahead.write(write)


def _seal(tables: Tables, schema: StepSchema, job: Seal) -> None:
    run_id = job.header.run_id
    if tables.episodes.applied(run_id) >= job.segment:
        return
    note_seal(job.journal, job.segment, job.records.numbers)
    # A file that is listed already, by an attempt that got so far, is never written over.
    listed = tables.steps.applied(run_id) >= job.segment
    segment = job.ahead.take() or _write_steps(tables, schema, job, listed=listed)
    metadata = ColumnSet(METADATA, tables.episodes.schema, fixed=True)
    ids = job.records.ids(run_id)
    table = episodes_table(schema, run_id, ids, job.records, segment.rows, metadata)
    own = _own_columns(tables.episodes, table.schema, metadata)
    place = tables.layout.table(EPISODES) / segment.rows.segment
    episodes = write_table_file(place, table, episodes_of=schema)
    if segment.file is not None:
        removed = _orphans(tables, job)
        tables.steps.commit([segment.file], run_id, job.segment, removed=removed, columns=segment.columns)
    replaced = _continued_files(tables, job)
    known = sum(each.length for each in job.records.continued if each.episode_id in replaced)
    counts = {
        "episodelake.operation": "seal",
        "episodelake.episodes": len(job.records) - len(replaced),
        "episodelake.steps": int(job.records.lanes.lengths.sum()) - known,
    }
    removed = list(replaced.values())
    tables.episodes.commit([episodes], run_id, job.segment, removed=removed, details=counts, columns=own)


def _continued_files(tables: Tables, job: Seal) -> dict[str, str]:
    """Return the files of the episodes that those of a seal continue, by id.

    An episode that is gone was deleted, or another writer has continued it: then both continuations stay.
    """
    files_by_id: dict[str, str] = {}
    ids = {each.episode_id for each in job.records.continued}
    if not ids:
        return files_by_id
    tables.episodes.refresh()
    for file in tables.episodes.files():
        low, high = file.bounds("episode_id") or ("", "\U0010ffff")
        if not any(low <= each <= high for each in ids):
            continue
        own = read_parquet(tables.layout.table(EPISODES) / file.name, ["episode_id"]).column(0).to_pylist()
        here = ids.intersection(own)
        if here and len(own) > 1:
            raise TableChangedError(
                f"The episode {min(here)!r} shares the file {file.name!r} with others; nothing was committed."
            )
        files_by_id |= dict.fromkeys(here, file.name)
    for each in sorted(ids - files_by_id.keys()):
        warnings.warn(
            f"The episode {each!r}, which the run {job.header.run_id!r} continues, is not in the store any "
            "more: it was deleted, or another writer has continued it. The continuation of this run is "
            "stored beside.",
            RuntimeWarning,
            stacklevel=2,
        )
    return files_by_id


def _own_columns(table: Table, made: pa.Schema, columns: ColumnSet) -> list[pa.Field]:
    """Return those columns of rows that the table may lack, and the marks of numbers in the JSON column."""
    own = [column for column in made if kinds.field_kind(column) or column.name in _OPTIONAL]
    return [*own, *marked(table.schema, columns.overflow)]


def _write_steps(tables: Tables, schema: StepSchema, job: Seal, *, listed: bool = False) -> WrittenSegment:
    """Write the file of steps in the columns that the table has now, unless it is listed already."""
    run_id, lanes = job.header.run_id, job.records.lanes
    name = segment_name(run_id, job.segment)
    readers = [PartReader(path, own=job.own) for path in job.parts]
    index = RowIndex.find(readers, lanes, job.bulk).cut(lanes.lengths + 1)
    counts = lanes.per_episode(index.steps_rows)
    rows = SegmentRows(name, (np.cumsum(counts) - counts).tolist(), counts.tolist())
    if listed:
        return WrittenSegment(rows)
    ids = job.records.ids(run_id)
    schemas = (runs.batch.schema for runs in index.pieces.runs)
    # By all that they say: schemas that differ only in the kinds of columns are equal.
    seen = list({schema.serialize().to_pybytes(): schema for schema in schemas}.values())
    columns = SegmentColumns(schema.journal.names, tables.steps.schema, seen)
    path = tables.layout.table(STEPS) / name
    written = StepsFile(path, schema, columns).write(ids, lanes, index, readers, job.bulk)
    bounds = ({"episode_id": min(ids)}, {"episode_id": max(ids)})
    end = {"size": written.nbytes, "footer": written.footer}
    file = NewFile(name, written.rows, written.null_counts, *bounds, **end)
    return WrittenSegment(rows, file, [*columns.fields, *columns.overflow()])


def _orphans(tables: Tables, job: Seal) -> list[str]:
    """Return steps files of this run whose episodes were never committed: a crash cut their seal short."""
    shown = tables.episodes.applied(job.header.run_id)
    committed = tables.steps.applied(job.header.run_id)
    lost = {segment_name(job.header.run_id, number) for number in range(shown + 1, committed + 1)}
    lost.discard(segment_name(job.header.run_id, job.segment))
    return [file.name for file in tables.steps.files() if file.name in lost] if lost else []


def commit_run(tables: Tables, header: RunHeader, ended_at: int | None) -> None:
    """Write the run's row: first without an end when its first segment is sealed, then with it; or with it at
    once, where the run ends with its first segment.

    The caller has checked the identity of the store.

    Args:
        ended_at: microseconds since 1970, UTC; None while the run goes on.
    """
    state = 0 if ended_at is None else 1
    if tables.runs.applied(header.run_id) >= state:
        return
    live, closed = live_name(header.run_id), f"{header.run_id}-closed.parquet"
    name = live if ended_at is None else closed
    for _ in range(_ATTEMPTS):
        table, own = _runs_table(tables.runs, header, ended_at)
        new = write_table_file(tables.layout.table(RUNS) / name, table)
        removed = [live] if state and tables.runs.applied(header.run_id) == 0 else []
        with contextlib.suppress(TableChangedError):
            tables.runs.commit([new], header.run_id, state, removed=removed, columns=own)
            break
    if state:
        join_many(tables.runs, header.run_id)


def live_name(run_id: str) -> str:
    """Return the file of the runs table with the row of a run that goes on."""
    return f"{run_id}{LIVE}"


def _runs_table(runs: Table, header: RunHeader, ended_at: int | None) -> tuple[pa.Table, Sequence[pa.Field]]:
    """Return the row of a run, and its columns that the table may lack."""
    metadata = DynamicRows.of([load_json(header.metadata, "the journal's header")])
    values = [header.run_id, header.name, header.started_at, ended_at, header.env_spec, header.versions]
    arrays = [pa.array([value], column.type) for value, column in zip(values, RUNS_SCHEMA, strict=True)]
    columns = ColumnSet(METADATA, runs.schema, fixed=True)
    dynamic = columns.columns(metadata, 0, 1)
    fields = [*RUNS_SCHEMA, *(kinds.field(name, kind) for name, (kind, _) in dynamic.items())]
    table = pa.table([*arrays, *(array for _, array in dynamic.values())], schema=pa.schema(fields))
    if header.env_bundle is not None:
        table = table.append_column(ENV_BUNDLE, pa.array([header.env_bundle], ENV_BUNDLE.type))
    return table, _own_columns(runs, table.schema, columns)
