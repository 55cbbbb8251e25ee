"""Recovery: journals whose writer is dead are sealed.

Called by the next writer on the store and by `episodelake.recover`. The lock of a run's journal says whether
its writer lives; whoever takes the lock recovers the run alone. Recovery may itself be killed and repeated:
what is committed already is recognised by its id, and a journal goes only after both commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from .agent_recovery import FoundTeam
from .errors import CorruptStoreError
from .families import METADATA, merge_rows
from .journal import (
    DAMAGED_SUFFIX,
    LOCK_SUFFIX,
    JournalLock,
    RunHeader,
    part_paths,
    remove_journal,
    set_aside,
)
from .journal_reading import JournalBatch, PartReader
from .layout import EPISODES, RUNS, Layout
from .packed_columns import plain_type
from .parquet import open_parquet, reading_error
from .record_columns import EpisodeColumns
from .records import EpisodeRecord
from .recovered_episode import FoundEpisode, Outcomes
from .row_index import BatchRuns
from .schema import ENV_BUNDLE, StepSchema
from .seal_log import sealed_numbers
from .sealer import Seal, Tables, commit_run, live_name, seal
from .values import dump_json


@dataclass(frozen=True)
class RecoveredRun:
    """What recovery found in the journal of one dead writer.

    Attributes:
        run_id: the run.
        episodes: how many episodes were sealed now.
        interrupted: how many of them the crash cut short.
        steps: transitions in these episodes.
        torn_bytes: bytes of a batch at the end that was not written whole; its rows are lost.
    """

    run_id: str
    episodes: int
    interrupted: int
    steps: int
    torn_bytes: int


def recover(layout: Layout, schema: StepSchema) -> list[RecoveredRun]:
    """Seal the journals of all dead writers of a store; journals of live writers are left alone.

    A journal that is damaged elsewhere than at its end is recovered as far as it can be, and is then set
    aside (renamed to `<run id>.damaged`), not deleted.

    Raises:
        StoreAccessError, ConcurrentCommitError: a seal could not be committed; the journal stays.
        CorruptStoreError: a journal cannot be recovered; it was set aside, and the others are recovered.
    """
    if not layout.journals.is_dir():
        return []
    recovered, damaged = [], []
    for directory in sorted(layout.journals.iterdir()):
        if directory.name.endswith(LOCK_SUFFIX):
            _remove_stray_lock(directory.with_name(directory.name.removesuffix(LOCK_SUFFIX)))
        if not directory.is_dir() or directory.name.endswith(DAMAGED_SUFFIX):
            continue
        if directory.is_symlink():
            damaged.append(f"The journal {directory} is a link, which may lead out of the store. Remove it.")
            continue
        lock = JournalLock.acquire(directory)
        if lock is None:
            continue
        try:
            recovered.append(_recover_run(layout, schema, directory))
        except CorruptStoreError as error:
            damaged.append(f"{error} The journal is now {set_aside(directory)}.")
        finally:
            lock.release(remove=not directory.exists())
    if damaged:
        raise CorruptStoreError(" ".join(damaged))
    return [run for run in recovered if run is not None]


def _recover_run(layout: Layout, schema: StepSchema, directory: Path) -> RecoveredRun | None:
    paths = part_paths(directory)
    if not paths:
        if directory.is_dir():
            _close_run(layout, directory)
            remove_journal(directory)
        return None
    readers = [PartReader(path) for path in paths]
    found = _read(readers, schema)
    header = next((reader.header for reader in readers if reader.header is not None), None)
    torn = sum(reader.torn_bytes for reader in readers)
    if header is None:
        # Its writer died before it wrote a row since the last seal.
        _close_run(layout, directory)
        _put_away(directory, readers)
        return RecoveredRun(directory.name, 0, 0, 0, torn) if torn else None
    if header.run_id != directory.name:
        raise CorruptStoreError(f"The journal {directory} says that it belongs to the run {header.run_id!r}.")
    tables = Tables.open(layout)
    done = _committed_numbers(layout, tables, header.run_id)
    done |= sealed_numbers(directory, tables.episodes.applied(header.run_id))
    now = _last_moment(directory, header, found.values())
    records = [
        episode.record(number, now)
        for number, episode in found.items()
        if number not in done and episode.steps
    ]
    run = _seal_all(tables, schema, header, records, paths, now)
    _put_away(directory, readers)
    return replace(run, torn_bytes=torn)


def _put_away(directory: Path, readers: Sequence[PartReader]) -> None:
    """Remove a journal that was read; one that is damaged elsewhere than at its end is set aside."""
    if any(reader.damaged for reader in readers) or not all(reader.ended for reader in readers[:-1]):
        set_aside(directory)
    else:
        remove_journal(directory)


def _remove_stray_lock(directory: Path) -> None:
    """Remove a lock whose owner died after its journal was gone."""
    if not directory.exists():
        lock = JournalLock.acquire(directory)
        if lock is not None:
            lock.release(remove=not directory.exists())


def _close_run(layout: Layout, directory: Path) -> None:
    """Commit the end of a run whose writer died after its last seal; its row says what is needed."""
    run_id = directory.name
    tables = Tables.open(layout)
    if tables.runs.applied(run_id) != 0:
        return
    place = layout.table(RUNS) / live_name(run_id)
    try:
        row = open_parquet(place).read()
    except (pa.ArrowException, OSError) as error:
        raise reading_error(place, error) from error
    schema = pa.schema([column for column in tables.runs.schema if column.name in row.column_names])
    row = row.select(schema.names).cast(schema)
    metadata = dump_json(merge_rows(METADATA, row)[0])
    names = ("run_id", "name", "env_spec", "versions", ENV_BUNDLE.name)
    texts = {name: row.column(name)[0].as_py() for name in names if name in row.column_names}
    started_at = row.column("started_at").cast(pa.int64())[0].as_py()
    header = RunHeader(**texts, started_at=started_at, metadata=metadata)
    commit_run(tables, header, max(started_at, directory.stat().st_mtime_ns // 1000))


def _seal_all(
    tables: Tables,
    schema: StepSchema,
    header: RunHeader,
    records: list[EpisodeRecord],
    paths: list[Path],
    now: int,
) -> RecoveredRun:
    records.sort(key=lambda record: (record.ended_at, record.number))
    if records:
        segment = max(tables.steps.applied(header.run_id), tables.episodes.applied(header.run_id)) + 1
        seal(tables, schema, Seal(header, segment, EpisodeColumns.of(records), paths))
    if records or tables.episodes.applied(header.run_id) >= 0:
        commit_run(tables, header, max([record.ended_at for record in records], default=now))
    interrupted = sum(record.end_reason == "interrupted" for record in records)
    steps = sum(record.transitions for record in records)
    return RecoveredRun(header.run_id, len(records), interrupted, steps, 0)


def _read(readers: Iterable[PartReader], schema: StepSchema) -> dict[int, FoundEpisode]:
    found: dict[int, FoundEpisode] = {}
    lost: set[int] = set()
    whole = True
    seen = 0
    for reader in readers:
        for batch in reader.batches(after_gap=not whole, seen=seen):
            _check_columns(batch, schema)
            if batch.after_gap:
                # Rows of the episodes that were open before the gap do not follow on: they end where it
                # begins.
                lost |= {number for number, episode in found.items() if episode.end is None}
            _read_batch(batch, found, lost, schema)
        whole = reader.ended
        seen = reader.seen
    return found


def _check_columns(batch: JournalBatch, schema: StepSchema) -> None:
    known = {column.name: plain_type(column.type) for column in batch.rows.schema}
    for column in schema.journal:
        if known.get(column.name) != column.type:
            raise CorruptStoreError(
                f"The journal part {batch.source} has {known.get(column.name, 'nothing')} as its column "
                f"{column.name!r}; the store's spaces want {column.type}."
            )


def _new(event: dict[str, Any], schema: StepSchema) -> FoundEpisode:
    return FoundTeam(event, schema=schema) if schema.groups else FoundEpisode(event)


def _read_batch(
    batch: JournalBatch, found: dict[int, FoundEpisode], lost: set[int], schema: StepSchema
) -> None:
    events = batch.events()
    for event in events:
        if event["event"] == "begin":
            found.setdefault(event["number"], _new(event, schema))
        elif event["event"] == "agent" and event["number"] in found and event["number"] not in lost:
            found[event["number"]].introduce(event)
    runs = BatchRuns.of(batch.rows, batch.source)
    outcomes = Outcomes.of(runs, schema)
    stretches = (runs.numbers, runs.agents, runs.starts, runs.stops)
    for number, agent, start, stop in zip(*(each.tolist() for each in stretches), strict=True):
        if number in found and number not in lost:
            found[number].add(outcomes, start, stop, agent)
    for event in events:
        if event["event"] == "end" and event["number"] in found and event["number"] not in lost:
            found[event["number"]].end = event
        elif event["event"] == "discard":
            found.pop(event["number"], None)


def _committed_numbers(layout: Layout, tables: Tables, run_id: str) -> set[int]:
    """Numbers of the run's episodes that the store shows already."""
    numbers: set[int] = set()
    for file in tables.episodes.files():
        if file.may_hold_run(run_id):
            table = open_parquet(layout.table(EPISODES) / file.name).read(columns=["run_id", "number"])
            rows = zip(table.column("run_id").to_pylist(), table.column("number").to_pylist(), strict=True)
            numbers.update(number for owner, number in rows if owner == run_id)
    return numbers


def _last_moment(directory: Path, header: RunHeader, found: Iterable[FoundEpisode]) -> int:
    """When the journal was last written, in microseconds: the best guess of when its writer died.

    A file's clock may be some milliseconds behind the one that its writer read, and a copied file may tell of
    any time; nothing ends before it began.
    """
    moments = [header.started_at, *(path.stat().st_mtime_ns // 1000 for path in part_paths(directory))]
    for episode in found:
        moments += [episode.begin.get("started_at", 0), (episode.end or {}).get("ended_at", 0)]
    return max(moments)
