"""Recovery: journals whose writer is dead are sealed.

The next writer on the store and `episodelake.recover` call it. The lock of a run's journal shows whether its
writer lives (see `locks`); the process that takes the lock recovers the run alone. Recovery may be killed and
repeated: what is committed already is recognised by its id, and a journal goes only after both commits.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from ..common.progress import Progress
from ..dynamic.column_groups import METADATA, merge_rows
from ..dynamic.columns import align_to_schema
from ..dynamic.values import dump_json
from ..errors import CorruptStoreError, DamagedJournalError, MissingFileError, StoreAccessError
from ..files import afterwards, guard_access, is_denied, is_folder, is_link, names_in, stat_or_none
from ..files.locks import (
    LOCK_SUFFIX,
    MAINTENANCE_LOCK,
    FileLock,
    OtherHostError,
    holder,
    is_stray_lock,
)
from ..journal.episodes import EpisodeColumns, EpisodeRecord
from ..journal.reading import PartReader
from ..journal.records import RunHeader
from ..journal.run_journal import (
    DAMAGED_SUFFIX,
    check_journals,
    is_journal,
    is_own_name,
    lock_path,
    part_paths,
    remove_journal,
    sealed_numbers,
    set_aside,
)
from ..layout import EPISODES, RUNS, Layout, check_identity
from ..parquet.files import read_parquet
from ..rewrite.operation import finish_interrupted
from ..schema import ENV_BUNDLE, StepSchema, StoreHandle
from ..segments.seal import Seal, Tables, commit_run, live_name, seal_segment
from .recovered_episodes import JournalEpisodes, RecoveredEpisode
from .reopening import seal_reopened
from .single_messages import add_transitions

LOG = logging.getLogger("episodelake")
#: Patient: a process that looks at a lock may be stopped while it has it.
_LOOK_SECONDS = 30.0


@dataclass(frozen=True)
class RecoveredRun:
    """The result of recovering the journal of one dead writer.

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


def recover(
    store: StoreHandle, *, other_hosts: bool = False, progress: Progress | None = None
) -> list[RecoveredRun]:
    """Seal the journals of dead writers, then mend the tables if a maintenance operation died.

    Args:
        other_hosts: also what was left on hosts whose locks do not reach this one.
        progress: called with the journals done and all of them.

    Raises:
        StoreAccessError, ConcurrentCommitError, CorruptStoreError: see `recover_journals` and
            `finish_interrupted`.
    """
    recovered = recover_journals(store, other_hosts=other_hosts, progress=progress)
    if other_hosts or store.layout.is_unfinished():
        finish_interrupted(store, other_hosts=other_hosts)
    return recovered


def recover_journals(
    store: StoreHandle, *, other_hosts: bool = False, progress: Progress | None = None
) -> list[RecoveredRun]:
    """Seal the journals of all dead writers of a store; journals of live writers are left alone.

    Only a journal whose own bytes are damaged is set aside. Where anything else fails (a table that is
    damaged or away, a disk or file server in trouble, no free file descriptors) the journal stays for the
    next call.

    A journal that is damaged elsewhere than at its end is recovered as far as it can be, and is then set
    aside (renamed to `<run id>.damaged`), not deleted. One that this user may not read or change is left for
    its owner, with a warning; so is one of a host whose locks do not reach this one.

    Args:
        other_hosts: recover also the journals of such hosts; no writer may be alive there.
        progress: called with the journals done and all of them.

    Raises:
        StoreAccessError, ConcurrentCommitError: something could not be read or committed; the journal stays.
        CorruptStoreError: a journal is damaged and was set aside, or a table is damaged and the journal
            stays; the others are recovered.
    """
    recovered, troubles = [], []
    journals = _journals_with_locks(store.layout, troubles)
    report = progress or (lambda done, total: None)
    for done, directory in enumerate(journals, 1):
        with _reported(directory, troubles):
            path = lock_path(directory)
            lock = FileLock.acquire(path, other_hosts=other_hosts)
            if lock is None and not holder(path)[0]:
                # Somebody had it for a moment, to look at it.
                lock = FileLock.wait_for(path, _LOOK_SECONDS, other_hosts=other_hosts)
            if lock is not None:
                recovered.append(_recover_locked(store, directory, lock))
        report(done, len(journals))
    if troubles:
        raise CorruptStoreError(" ".join(dict.fromkeys(troubles)))
    return [run for run in recovered if run is not None]


def _journals_with_locks(layout: Layout, troubles: list[str]) -> list[Path]:
    """Return the journals that may wait for recovery, after removing locks whose journal is gone."""
    entries: list[Path] = []
    for folder in layout.journal_places:
        check_journals(folder)
        entries += [folder / name for name in names_in(folder)] if is_folder(folder) else []
    journals = []
    for entry in entries:
        if entry.name.endswith(LOCK_SUFFIX) and entry.name != MAINTENANCE_LOCK:
            with _reported(entry, troubles):
                _remove_stray_lock(entry)
            continue
        if is_link(entry):
            troubles.append(f"{entry} is a link, which may lead out of the store. Remove it.")
        elif not entry.name.endswith(DAMAGED_SUFFIX) and is_journal(entry):
            journals.append(entry)
    return journals


@contextlib.contextmanager
def _reported(path: Path, troubles: list[str]) -> Iterator[None]:
    """Go on with the other journals where this one is damaged or belongs to another user."""
    try:
        with guard_access("recover the journal", path):
            yield
    except CorruptStoreError as error:
        troubles.append(str(error))
    except OtherHostError as error:
        warnings.warn(str(OtherHostError(f"The journal {path} belongs to", error.owner)), RuntimeWarning, 5)
    except StoreAccessError as error:
        if not is_denied(error):
            raise
        warnings.warn(f"The journal at {path} is left for its owner. {error}", RuntimeWarning, stacklevel=5)


def _recover_locked(store: StoreHandle, directory: Path, lock: FileLock) -> RecoveredRun | None:
    """Recover one journal whose lock is held, and let go of it."""
    try:
        return _recover_run(store, directory)
    except DamagedJournalError as error:
        raise CorruptStoreError(f"{error} The journal is now {set_aside(directory)}.") from error
    except CorruptStoreError as error:
        raise CorruptStoreError(f"{error} The journal {directory} stays for the next recovery.") from error
    finally:
        lock.release(remove=_is_gone(directory))


def _is_gone(directory: Path) -> bool:
    """Return whether a journal is known to be empty."""
    try:
        return not any(map(is_own_name, names_in(directory)))
    except MissingFileError:
        return True
    except StoreAccessError:
        return False


@contextlib.contextmanager
def _blaming(directory: Path) -> Iterator[None]:
    """Blame a journal for what contradicts the format while nothing but the journal is read."""
    try:
        yield
    except DamagedJournalError:
        raise
    except CorruptStoreError as error:
        raise DamagedJournalError(f"The journal {directory} is damaged: {error}") from error


def _recover_run(store: StoreHandle, directory: Path) -> RecoveredRun | None:
    layout = store.layout
    with guard_access("recover the journal", directory):
        # Before anything is committed: parts that cannot be deleted would be recovered again and again. Its
        # writer may have closed, and removed the journal, since the journals were listed.
        if stat_or_none(directory, follow=False) is not None and not os.access(
            directory, os.R_OK | os.W_OK | os.X_OK
        ):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    paths = part_paths(directory)
    if not paths:
        if is_folder(directory):
            _close_run(layout, directory)
            remove_journal(directory)
        return None
    with _blaming(directory):
        readers = [PartReader(path) for path in paths]
        episodes = _read(readers, store.schema)
        header = next((reader.header for reader in readers if reader.header is not None), None)
        if header is not None and header.run_id != directory.name:
            raise DamagedJournalError(f"It says that it belongs to the run {header.run_id!r}.")
    torn = sum(reader.torn_bytes for reader in readers)
    if header is None:
        # Its writer died before it wrote a row since the last seal.
        _close_run(layout, directory)
        _put_away(directory, readers)
        return RecoveredRun(directory.name, 0, 0, 0, torn) if torn else None
    tables = Tables.open(layout)
    done = _committed_episodes(layout, tables, header.run_id)
    sealed = tables.episodes.applied(header.run_id)
    with _blaming(directory):
        done |= sealed_numbers(directory, sealed)
        bulk = []
        if store.manifest.rollouts is not None:
            alone = {n: each for n, each in episodes.items() if n not in done and not each.steps}
            bulk = add_transitions(store.schema, paths, alone)
        now = _last_moment(directory, header, episodes.values())
        records = [
            episode.record(number, now)
            for number, episode in episodes.items()
            if number not in done and episode.grew
        ]
    run = _seal_all(store, tables, header, records, paths, now, bulk)
    # Its writer may have died between a commit and the sync of its name; only the journal proves it then.
    for table in (tables.runs, tables.steps, tables.episodes):
        table.sync()
    left = f"Its journal {directory} stays; the next recovery removes it."
    with afterwards(f"The run {header.run_id!r} is in the store", left):
        _put_away(directory, readers)
    return replace(run, torn_bytes=torn)


def _put_away(directory: Path, readers: Sequence[PartReader]) -> None:
    """Remove a journal that was read; one that is damaged elsewhere than at its end is set aside."""
    if any(reader.damaged for reader in readers) or not all(reader.ended for reader in readers[:-1]):
        set_aside(directory)
    else:
        remove_journal(directory)


def _remove_stray_lock(path: Path) -> None:
    """Remove a lock whose owner died after its journal was gone; files of others stay."""
    directory = path.with_name(path.name.removesuffix(LOCK_SUFFIX))
    if stat_or_none(directory, follow=False) is None and (is_link(path) or is_stray_lock(path)):
        lock = FileLock.acquire(path)
        if lock is not None:
            lock.release(remove=stat_or_none(directory, follow=False) is None)


def _close_run(layout: Layout, directory: Path) -> None:
    """Commit the end of a run whose writer died after its last seal; its row says what is needed."""
    run_id = directory.name
    tables = Tables.open(layout)
    if tables.runs.applied(run_id) != 0:
        return
    row = read_parquet(layout.table(RUNS) / live_name(run_id))
    row = align_to_schema(row, tables.runs.schema, fill=False)
    metadata = dump_json(merge_rows(METADATA, row)[0])
    names = ("run_id", "name", "env_spec", "versions", ENV_BUNDLE.name)
    texts = {name: row.column(name)[0].as_py() for name in names if name in row.column_names}
    started_at = row.column("started_at").cast(pa.int64())[0].as_py()
    header = RunHeader(**texts, started_at=started_at, metadata=metadata)
    commit_run(tables, header, max(started_at, directory.stat().st_mtime_ns // 1000))


def _seal_all(
    store: StoreHandle,
    tables: Tables,
    header: RunHeader,
    records: list[EpisodeRecord],
    paths: list[Path],
    now: int,
    bulk: list[pa.RecordBatch],
) -> RecoveredRun:
    records.sort(key=lambda record: (record.ended_at, record.number))
    if records:
        segment = max(tables.steps.applied(header.run_id), tables.episodes.applied(header.run_id)) + 1
        job = Seal(header, segment, EpisodeColumns.of(records), paths[0].parent, paths, bulk)
        seal = seal_reopened if job.records.continued else seal_segment
        seal(store, tables, job)
    if records or tables.episodes.applied(header.run_id) >= 0:
        check_identity(tables.layout)
        commit_run(tables, header, max([record.ended_at for record in records], default=now))
    interrupted = sum(record.end_reason == "interrupted" for record in records)
    steps = sum(record.transitions for record in records)
    LOG.info("recovered run %s: %d episodes, %d interrupted", header.run_id, len(records), interrupted)
    return RecoveredRun(header.run_id, len(records), interrupted, steps, 0)


def _read(readers: Iterable[PartReader], schema: StepSchema) -> dict[int, RecoveredEpisode]:
    journal = JournalEpisodes(schema)
    whole = True
    seen = 0
    for reader in readers:
        for batch in reader.batches(after_gap=not whole, seen=seen):
            journal.add(batch)
        whole = reader.ended
        seen = reader.seen
    return journal.episodes


def _committed_episodes(layout: Layout, tables: Tables, run_id: str) -> set[int]:
    """Return the numbers of the run's episodes in the store."""
    numbers: set[int] = set()
    for file in tables.episodes.files():
        if file.may_hold_run(run_id):
            table = read_parquet(layout.table(EPISODES) / file.name, ["run_id", "number"])
            pairs = zip(table.column("run_id").to_pylist(), table.column("number").to_pylist(), strict=True)
            numbers |= {number for owner, number in pairs if owner == run_id}
    return numbers


def _last_moment(directory: Path, header: RunHeader, episodes: Iterable[RecoveredEpisode]) -> int:
    """Return when the journal was last written, in microseconds: the best guess of when its writer died.

    A file's clock may be some milliseconds behind the one that its writer read, and a copied file may have
    any time; nothing ends before it began.
    """
    moments = [header.started_at, *(path.stat().st_mtime_ns // 1000 for path in part_paths(directory))]
    for episode in episodes:
        moments += [episode.begin.get("started_at", 0), (episode.end or {}).get("ended_at", 0)]
    return max(moments)
