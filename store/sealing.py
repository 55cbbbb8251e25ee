"""From journal rows to a steps file: order the rows by episode, shift, write row groups.

Works on batches that point into the mapped journal and holds one row group in memory at a time, whatever
the length of an episode. A row group never splits an episode that fits in one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from .errors import CorruptStoreError
from .journal_reading import PartReader
from .layout import episode_id
from .loose_merge import SegmentColumns
from .parquet import parquet_writer
from .places import Place
from .schema import AGENT_ID, JOURNAL_AGENT, JOURNAL_KIND, JOURNAL_NUMBER, LATE_ROW, StepSchema

#: The most a row group of steps takes before compression.
GROUP_BYTES = 32 << 20
GROUP_ROWS = 131_072


@dataclass(frozen=True)
class Piece:
    """Some rows of one batch: `[start, stop)` of it, or of `chosen` (row indices) if that is set."""

    batch: pa.RecordBatch
    start: int
    stop: int
    chosen: np.ndarray | None = None

    def part(self, start: int, stop: int) -> Piece:
        """Rows `[start, stop)` of this piece."""
        return Piece(self.batch, self.start + start, self.start + stop, self.chosen)

    def rows(self) -> pa.RecordBatch:
        """The rows themselves; a contiguous piece shares memory with its batch."""
        if self.chosen is None:
            return self.batch.slice(self.start, self.stop - self.start)
        return self.batch.take(pa.array(self.chosen[self.start : self.stop]))

    def follows(self, other: Piece) -> bool:
        """Whether this piece continues another without a gap."""
        return self.batch is other.batch and self.chosen is other.chosen and self.start == other.stop


class Lane(NamedTuple):
    """Whose rows: the episode's number, and which of its agents (0 where there is one)."""

    number: int
    agent: int


@dataclass
class EpisodeRows:
    """Where the arrivals of one lane are: its pieces in order, and whether the last row is a late one."""

    pieces: list[Piece] = field(default_factory=list)
    count: int = 0
    late: bool = False

    def add(self, piece: Piece, late: bool) -> None:
        """Append rows that arrived after all earlier ones."""
        self.pieces.append(piece)
        self.count += piece.stop - piece.start
        self.late = late

    def cut(self, steps_rows: int) -> EpisodeRows:
        """The first rows only; what arrived after them is left out.

        Raises:
            CorruptStoreError: there are not so many.
        """
        if self.steps_rows < steps_rows:
            raise CorruptStoreError(
                f"The journal has {self.steps_rows} rows of an episode that has {steps_rows}: some are lost."
            )
        if self.steps_rows == steps_rows:
            return self
        # The rest arrived behind a gap in a damaged journal, or in a step that was interrupted and never
        # counted.
        return EpisodeRows(list(_range(self.pieces, 0, steps_rows)), steps_rows)

    @property
    def steps_rows(self) -> int:
        """Rows in the steps table: T+1."""
        return self.count - self.late


@dataclass(frozen=True)
class NamedRows:
    """The arrivals of one lane under the names that their steps get.

    Attributes:
        number: of the episode.
        agent_id: the agent; None where an episode has one.
        rows: the arrivals.
    """

    number: int
    agent_id: str | None
    rows: EpisodeRows


def collect_rows(readers: Iterable[PartReader], wanted: frozenset[int]) -> dict[Lane, EpisodeRows]:
    """Find the rows of the wanted episodes in all batches of the given parts."""
    found: dict[Lane, EpisodeRows] = {}
    seen = 0
    for reader in readers:
        for batch in reader.batches(seen=seen):
            for lane, piece, late in split(batch.rows):
                if lane.number in wanted:
                    found.setdefault(lane, EpisodeRows()).add(piece, late)
        seen = reader.seen
    return found


def split(batch: pa.RecordBatch) -> Iterator[tuple[Lane, Piece, bool]]:
    """Yield `(lane, its rows in this batch, whether the last of them is a late row)`."""
    if batch.num_rows == 0:
        return
    numbers = batch.column(JOURNAL_NUMBER.name).to_numpy()
    row_kinds = batch.column(JOURNAL_KIND.name).to_numpy()
    has_agents = JOURNAL_AGENT.name in batch.schema.names
    agents = batch.column(JOURNAL_AGENT.name).to_numpy() if has_agents else np.zeros(len(numbers), np.int32)
    chosen = None
    same = numbers[1:] == numbers[:-1]
    if (numbers[1:] < numbers[:-1]).any() or (same & (agents[1:] < agents[:-1])).any():
        chosen = np.lexsort((agents, numbers))
        numbers, agents, row_kinds = numbers[chosen], agents[chosen], row_kinds[chosen]
    changes = (numbers[1:] != numbers[:-1]) | (agents[1:] != agents[:-1])
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    stops = [*starts[1:], len(numbers)]
    firsts = zip(numbers[starts].tolist(), agents[starts].tolist(), strict=True)
    lates = (row_kinds[np.asarray(stops) - 1] == LATE_ROW).tolist()
    for lane, start, stop, late in zip(firsts, starts, stops, lates, strict=True):
        yield Lane(*lane), Piece(batch, start, stop, chosen), late


@dataclass(frozen=True)
class WrittenSteps:
    """What a steps file holds, for its statistics."""

    rows: int
    null_counts: dict[str, int]


class StepsFile:
    """Writes one steps file.

    Args:
        path: where; an older file of that name is replaced.
        schema: the store's step schema.
        columns: the loose columns of this segment.
        run_id: for the episode ids.
    """

    def __init__(self, path: Place, schema: StepSchema, columns: SegmentColumns, run_id: str) -> None:
        self._path = path
        self._schema = schema
        self._columns = columns
        self._run_id = run_id
        fields = [*schema.steps, *columns.fields]
        self._file_schema = pa.schema(fields)
        self._row_bytes = schema.journal_row_bytes
        self._group_rows = 0
        self._nulls = dict.fromkeys(self._file_schema.names, 0)
        self._rows = 0

    def write(self, lanes: Sequence[NamedRows], readers: Sequence[PartReader]) -> WrittenSteps:
        """Write the lanes in the given order, those of an episode together, and make the file durable.

        Raises:
            StoreAccessError: the file could not be written; the caller may try again.
        """
        rows = max(1, sum(reader.rows for reader in readers))
        self._row_bytes = max(self._row_bytes, sum(reader.row_bytes for reader in readers) // rows)
        self._group_rows = max(1, min(GROUP_ROWS, GROUP_BYTES // self._row_bytes))
        with parquet_writer(self._path, self._file_schema, self._row_bytes) as writer:
            for table in self._groups(lanes):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                self._count(table)
                for reader in readers:
                    reader.release()
        return WrittenSteps(self._rows, self._nulls)

    def _count(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._nulls[name] += column.null_count

    def _groups(self, lanes: Sequence[NamedRows]) -> Iterator[pa.Table]:
        group: list[NamedRows] = []
        rows = 0
        for _, members in itertools.groupby(lanes, key=lambda lane: lane.number):
            episode = list(members)
            count = sum(lane.rows.steps_rows for lane in episode)
            if group and rows + count > self._group_rows:
                yield self._whole(group)
                group, rows = [], 0
            if count > self._group_rows:
                yield from self._split(episode)
                continue
            group += episode
            rows += count
        if group:
            yield self._whole(group)

    def _whole(self, group: Sequence[NamedRows]) -> pa.Table:
        """The steps rows of whole lanes."""
        arrivals = self._gather(piece for lane in group for piece in lane.rows.pieces)
        counts = np.array([lane.rows.count for lane in group])
        lates = np.array([lane.rows.late for lane in group])
        kept = counts - lates
        owners = np.repeat(np.arange(len(group)), kept)
        t = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        starts = np.repeat(np.cumsum(counts) - counts, kept)
        rows = starts + t
        last_without_outcome = (t == kept[owners] - 1) & ~lates[owners]
        return self._steps(arrivals, rows, last_without_outcome, group, owners, t)

    def _split(self, episode: Sequence[NamedRows]) -> Iterator[pa.Table]:
        """The steps rows of an episode that is longer than a row group, in several tables."""
        for lane in episode:
            found = lane.rows
            for start in range(0, found.steps_rows, self._group_rows):
                stop = min(start + self._group_rows, found.steps_rows)
                arrivals = self._gather(_range(found.pieces, start, stop + 1))
                rows = np.arange(stop - start)
                last = np.zeros(stop - start, bool)
                last[-1] = stop == found.steps_rows and not found.late
                yield self._steps(arrivals, rows, last, [lane], np.zeros(len(rows), np.int64), rows + start)

    def _gather(self, pieces: Iterable[Piece]) -> pa.Table:
        """Copy pieces into one table in the journal's layout, loose columns made alike."""
        joined: list[Piece] = []
        for piece in pieces:
            if joined and piece.follows(joined[-1]):
                joined[-1] = Piece(piece.batch, joined[-1].start, piece.stop, piece.chosen)
            else:
                joined.append(piece)
        return pa.Table.from_batches([self._columns.align(piece.rows()) for piece in joined]).combine_chunks()

    def _steps(
        self,
        arrivals: pa.Table,
        rows: np.ndarray,
        last_without_outcome: np.ndarray,
        lanes: Sequence[NamedRows],
        owners: np.ndarray,
        t: np.ndarray,
    ) -> pa.Table:
        """Pair each observation (arrival `rows`) with the outcome that arrived one row later."""
        contiguous = len(rows) == arrivals.num_rows and bool((np.diff(rows) == 1).all())
        outcomes = pa.array(rows + 1, mask=last_without_outcome)
        names = {
            "episode_id": [episode_id(self._run_id, lane.number) for lane in lanes],
            AGENT_ID: [lane.agent_id for lane in lanes],
        }
        arrays: list[pa.Array | pa.ChunkedArray] = []
        for column in self._file_schema:
            if column.name in names:
                values = pa.array(names[column.name], pa.string())
                arrays.append(
                    pa.DictionaryArray.from_arrays(owners.astype(np.int32), values).cast(pa.string())
                )
            elif column.name == "t":
                arrays.append(pa.array(t))
            elif self._schema.is_outcome(column.name):
                arrays.append(arrivals.column(column.name).take(outcomes))
            elif contiguous:
                arrays.append(arrivals.column(column.name))
            else:
                arrays.append(arrivals.column(column.name).take(pa.array(rows)))
        return pa.table(arrays, schema=self._file_schema)


def _range(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    """The parts of consecutive pieces that cover rows `[start, stop)`."""
    at = 0
    for piece in pieces:
        length = piece.stop - piece.start
        low, high = max(start - at, 0), min(stop - at, length)
        if low < high:
            yield piece.part(low, high)
        at += length
        if at >= stop:
            return
