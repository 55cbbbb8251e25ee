"""Reopening: a writer continues an episode of the store, and its seal replaces the old one.

The writer copies its rows to a journal and appends to them. The seal gives the old episode files of its own,
which changes nothing that a reader sees; then one commit to `episodes` adds the whole episode and removes the
old file. A crash between these leaves either the old episode or the whole one, and recovery repeats the seal.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..delta.log import TableFile
from ..delta.table import TableChangedError
from ..dynamic import logical_types as kinds
from ..dynamic.column_groups import INFO, METADATA, POLICY, ColumnGroup, merge_rows
from ..errors import (
    CorruptStoreError,
    EpisodeNotFoundError,
    InvalidArgumentError,
    MissingFileError,
    RecorderStateError,
)
from ..journal.episodes import Continued, EpisodeFacts
from ..journal.reading import PartReader
from ..journal.run_journal import journal_folders, part_paths
from ..layout import STEPS, Layout
from ..rewrite.operation import Operation, finish_interrupted, is_maintenance_file
from ..rewrite.rewriting import NewSegment, freed_segments, write_segments
from ..rewrite.rows import AlignedFiles
from ..schema import (
    JOURNAL_KIND,
    JOURNAL_NUMBER,
    LAST_OBSERVATION,
    MISSING,
    RESET_ROW,
    STEP_ROW,
    StepSchema,
    StoreHandle,
)
from ..segments.seal import Seal, Tables, seal_segment
from ..spaces.codec import single_value

#: The metadata of a continued episode has the ids of the episodes that it took the place of, oldest first.
CONTINUES = "continues"
_COLUMN = METADATA.column((CONTINUES,))
_ATTEMPTS = 5


class UnfinishedEpisode:
    """An episode of the store that has been cut or interrupted.

    Args:
        store: the store.
        steps: the columns of its steps, with their kinds.
        row: its row of the episodes table.

    Attributes:
        facts: seed, options and metadata of the episode that continues it.
        length, episode_return, env_index, started_at: its own.
    """

    def __init__(self, store: StoreHandle, steps: pa.Schema, row: pa.Table) -> None:
        self._store = store
        self._steps = steps
        self._row: dict[str, Any] = {
            name: row.column(name)[0].as_py() for name in store.schema.episodes.names
        }
        marks = row.column(LAST_OBSERVATION.name) if LAST_OBSERVATION.name in row.column_names else [None]
        self._last_missing = str(marks[0]) == MISSING
        self.id: str = self._row["episode_id"]
        self.length: int = self._row["length"]
        self.episode_return: float | list[float] = self._row["episode_return"]
        self.env_index: int | None = self._row["env_index"]
        self.started_at: int = row.column("started_at").cast(pa.int64())[0].as_py()
        wide, metadata = self._row["wide_seed"], merge_rows(METADATA, row)[0]
        before = metadata.get(CONTINUES)
        self.facts = EpisodeFacts(
            self._row["seed"] if wide is None else int(wide),
            self._row["options"],
            {**metadata, CONTINUES: [*(before if isinstance(before, list) else ()), self.id]},
            Continued(self.id, self.length),
        )

    def check(self) -> None:
        """Refuse an episode that the environment ended.

        Raises:
            InvalidArgumentError: it is terminated or truncated, or its last observation is missing.
        """
        reason = self._row["end_reason"]
        if reason not in ("cut", "interrupted"):
            raise InvalidArgumentError(
                f"The episode {self.id!r} is {reason} after {self.length} steps, so nothing can follow. Only "
                "episodes that were cut or interrupted can be reopened: begin a new one."
            )
        if self._last_missing:
            raise InvalidArgumentError(
                f"The last observation of the episode {self.id!r} is missing, so the next action would have "
                "no observation. Begin a new episode."
            )

    def last_row(self) -> LastRow:
        """Return its last row.

        Raises:
            CorruptStoreError: the file of its steps is damaged.
        """
        rows = self._last_row()
        codec = self._store.schema.observation
        observation = codec.decode([rows.column(column.name) for column in codec.fields])
        info, policy = (merge_rows(group, _of_group(rows, group))[0] for group in (INFO, POLICY))
        return LastRow(single_value(observation, 0), info, policy)

    def _last_row(self) -> pa.RecordBatch:
        """Return the last row, its frames decoded."""
        video = self._store.schema.video
        (rows,) = deque(self._rows(0 if video else self.length), maxlen=1)
        last = rows.slice(rows.num_rows - 1)
        for column in video:
            last = column.decoded_row(rows, rows.num_rows - 1, last)
        return last

    def arrivals(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield its rows as they arrived, as journal batches, a row group at a time.

        The policy values of the last observation are left out: they go with the action taken there.

        Args:
            number: of the episode that continues it.

        Raises:
            CorruptStoreError: the file of its steps is damaged.
        """
        before: pa.RecordBatch | None = None
        for batch in self._rows():
            yield _arrivals(self._store.schema, number, before, batch)
            before = batch.slice(batch.num_rows - 1)

    def _rows(self, first: int = 0) -> Iterator[pa.RecordBatch]:
        folder = self._store.layout.table(STEPS)
        aligned = AlignedFiles(lambda name: folder / name, self._steps, (self._row["segment"],))
        start = self._row["row_start"]
        return aligned.with_kinds(
            aligned.rows(self._row["segment"], start + first, start + self._row["row_count"])
        )


@dataclass(frozen=True)
class LastRow:
    """The last observation of an episode, its info, and the policy values logged with it."""

    observation: Any
    info: dict[Any, Any]
    policy: dict[Any, Any]


def _of_group(rows: pa.RecordBatch, group: ColumnGroup) -> pa.Table:
    return pa.Table.from_batches([rows]).select([c.name for c in rows.schema if group.owns(c)])


def _arrivals(
    schema: StepSchema, number: int, before: pa.RecordBatch | None, batch: pa.RecordBatch
) -> pa.RecordBatch:
    """Return rows of steps as arrivals: an outcome comes with the observation after it.

    Args:
        before: the row before; None at the first one.
    """
    count = batch.num_rows
    parts = [batch] if before is None else [before, batch]
    first = len(parts) - 1
    places = np.arange(first - 1, first - 1 + count)
    outcomes = pa.array(places, mask=places < 0)
    row_kinds = np.where(places < 0, RESET_ROW, STEP_ROW).astype(np.int16)
    fields: list[pa.Field] = [JOURNAL_NUMBER, JOURNAL_KIND]
    arrays: list[pa.Array] = [pa.array(np.full(count, number)), pa.array(row_kinds)]
    dynamic = [
        kinds.field(column.name, kind, kinds.field_overflow(column))
        for column in batch.schema
        if (kind := kinds.field_kind(column)) is not None
    ]
    for column in [*list(schema.journal)[2:], *dynamic]:
        values = pa.concat_arrays([part.column(column.name) for part in parts])
        values = values.take(outcomes) if schema.is_outcome(column.name) else values.slice(first)
        if values.null_count < count or column.name in schema.journal.names:
            fields.append(column)
            arrays.append(values.cast(column.type))
    return pa.record_batch(arrays, schema=pa.schema(fields))


@contextlib.contextmanager
def reopening(store: StoreHandle, episode_id: str) -> Iterator[UnfinishedEpisode]:
    """Find an episode to continue, while no other process of this machine can reopen or move it.

    Args:
        store: the store.
        episode_id: its id, or that of an episode that it took the place of.

    Raises:
        EpisodeNotFoundError: there is no such episode in the newest version.
        InvalidArgumentError: it is terminated or truncated, or its last observation is missing.
        RecorderStateError: a live writer of this machine continues it.
    """
    with Operation.begin(store, "reopen") as operation:
        row = _find(operation, episode_id)
        episode = UnfinishedEpisode(store, operation.tables.steps.schema, row)
        episode.check()
        _check_unclaimed(store.layout, episode.id)
        yield episode


def _find(operation: Operation, episode_id: str) -> pa.Table:
    files = operation.tables.episodes.files()
    row = _rows_where(operation, files, "episode_id", lambda value: value == episode_id)
    if row is None:
        # The one that continues it.
        later = [file for file in files if _COLUMN in file.columns]
        row = _rows_where(
            operation, later, _COLUMN, lambda value: isinstance(value, list) and episode_id in value
        )
    if row is None:
        raise EpisodeNotFoundError(
            f"{operation.store.layout.root} has no episode {episode_id!r}. An episode can be reopened once "
            "it is stored: seal() or close() its writer, or recover it with episodelake.recover(path)."
        )
    return row


def _rows_where(
    operation: Operation, files: Collection[TableFile], column: str, wanted: Any
) -> pa.Table | None:
    """Return the last row whose value in a column is wanted."""
    for file in reversed(list(files)):
        values = operation.read_episodes([file], [column]).column(column).to_pylist()
        places = [place for place, value in enumerate(values) if wanted(value)]
        if places:
            return operation.read_episodes([file]).slice(places[-1], 1)
    return None


def _check_unclaimed(layout: Layout, episode_id: str) -> None:
    """Refuse an episode that the journal of a live writer continues."""
    for folder in journal_folders(*layout.journal_places):
        numbers: set[int] = set()
        for event in _events(folder):
            if event.get("continues") == episode_id:
                numbers.add(event["number"])
            elif event["event"] == "discard":
                numbers.discard(event["number"])
        if numbers:
            raise RecorderStateError(
                f"The run {folder.name!r} continues the episode {episode_id!r} already. Close its writer, or "
                "discard the episode there."
            )


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; parts that its writer deletes meanwhile are passed over."""
    for path in part_paths(folder):
        try:
            for batch in PartReader(path).batches():
                yield from batch.events()
        except CorruptStoreError:
            continue  # set aside by the next recovery
        except MissingFileError:
            continue


def seal_reopened(store: StoreHandle, tables: Tables, job: Seal) -> None:
    """Write and commit a segment with episodes that continue others; the same commit removes these.

    Raises:
        StoreAccessError: a file could not be written (a full disk, say); nothing became visible, repeat it.
        ConcurrentCommitError: other writers kept winning; nothing became visible, repeat it.
    """
    ids = [each.episode_id for each in job.records.continued]
    for attempt in range(_ATTEMPTS):
        if tables.episodes.applied(job.header.run_id) < job.segment:
            _set_apart(store, ids)
        try:
            seal_segment(store, tables, job)
            break
        except TableChangedError:
            # It was compacted between the two.
            if attempt == _ATTEMPTS - 1:
                raise
    if store.layout.is_unfinished():
        finish_interrupted(store)


def _set_apart(store: StoreHandle, ids: Collection[str]) -> None:
    """Give each of these episodes a file of its own in both tables, after that of its neighbours."""
    wanted = pc.SetLookupOptions(pa.array(ids, pa.string()))
    with Operation.begin(store, "reopen") as operation:
        old: list[TableFile] = []
        new: list[NewSegment] = []
        for file in operation.tables.episodes.files():
            low, high = file.bounds("episode_id") or ("", "\U0010ffff")
            if not any(low <= each <= high for each in ids):
                continue
            rows = operation.read_episodes([file])
            hit = pc.call_function("is_in", [rows.column("episode_id")], wanted).to_numpy()
            if not hit.any() or (len(hit) == 1 and is_maintenance_file(rows.column("segment")[0].as_py())):
                continue
            old.append(file)
            if not hit.all():
                new.append(NewSegment.of(rows.filter(pa.array(~hit)), file.moment))
            new += [
                NewSegment.of(rows.slice(place, 1), file.moment) for place in np.flatnonzero(hit).tolist()
            ]
        if old:
            freed = freed_segments(operation, old)
            written = write_segments(operation, new, shuffled=False, progress=None)
            operation.commit((written.steps, freed), (written.episodes, old))
        # If this process dies after the commit that removes the episodes, their steps stay listed.
        operation.note()
