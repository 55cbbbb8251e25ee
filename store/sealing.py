"""From journal rows to a steps file: order the rows by episode, shift, write row groups.

Works on batches that point into the mapped journal and holds one row group in memory at a time, whatever
the length of an episode. A row group never splits an episode that fits in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from .errors import CorruptStoreError
from .journal_reading import PartReader
from .layout import episode_id
from .loose_merge import SegmentColumns
from .parquet import parquet_writer
from .places import Place
from .schema import JOURNAL_KIND, JOURNAL_NUMBER, LATE_ROW, StepSchema

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


@dataclass
class EpisodeRows:
    """Where the arrivals of one episode are: its pieces in order, and whether the last row is a late one."""

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


def collect_rows(readers: Iterable[PartReader], wanted: frozenset[int]) -> dict[int, EpisodeRows]:
    """Find the rows of the wanted episodes in all batches of the given parts."""
    found: dict[int, EpisodeRows] = {number: EpisodeRows() for number in wanted}
    seen = 0
    for reader in readers:
        for batch in reader.batches(seen=seen):
            for number, piece, late in split(batch.rows):
                if number in found:
                    found[number].add(piece, late)
        seen = reader.seen
    return found


def split(batch: pa.RecordBatch) -> Iterator[tuple[int, Piece, bool]]:
    """Yield `(episode number, its rows in this batch, whether the last of them is a late row)`."""
    if batch.num_rows == 0:
        return
    numbers = batch.column(JOURNAL_NUMBER.name).to_numpy()
    row_kinds = batch.column(JOURNAL_KIND.name).to_numpy()
    chosen = None
    if (numbers[1:] < numbers[:-1]).any():
        chosen = np.argsort(numbers, kind="stable")
        numbers, row_kinds = numbers[chosen], row_kinds[chosen]
    starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
    stops = [*starts[1:], len(numbers)]
    firsts = numbers[starts].tolist()
    lates = (row_kinds[np.asarray(stops) - 1] == LATE_ROW).tolist()
    for number, start, stop, late in zip(firsts, starts, stops, lates, strict=True):
        yield number, Piece(batch, start, stop, chosen), late


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

    def write(
        self, episodes: Sequence[tuple[int, EpisodeRows]], readers: Sequence[PartReader]
    ) -> WrittenSteps:
        """Write the episodes in the given order and make the file durable.

        Raises:
            StoreAccessError: the file could not be written; the caller may try again.
        """
        rows = max(1, sum(reader.rows for reader in readers))
        self._row_bytes = max(self._row_bytes, sum(reader.row_bytes for reader in readers) // rows)
        self._group_rows = max(1, min(GROUP_ROWS, GROUP_BYTES // self._row_bytes))
        with parquet_writer(self._path, self._file_schema, self._row_bytes) as writer:
            for table in self._groups(episodes):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                self._count(table)
                for reader in readers:
                    reader.release()
        return WrittenSteps(self._rows, self._nulls)

    def _count(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._nulls[name] += column.null_count

    def _groups(self, episodes: Sequence[tuple[int, EpisodeRows]]) -> Iterator[pa.Table]:
        group: list[tuple[int, EpisodeRows]] = []
        rows = 0
        for number, found in episodes:
            if group and rows + found.steps_rows > self._group_rows:
                yield self._whole(group)
                group, rows = [], 0
            if found.steps_rows > self._group_rows:
                yield from self._split(number, found)
                continue
            group.append((number, found))
            rows += found.steps_rows
        if group:
            yield self._whole(group)

    def _whole(self, group: Sequence[tuple[int, EpisodeRows]]) -> pa.Table:
        """The steps rows of whole episodes."""
        arrivals = self._gather(piece for _, found in group for piece in found.pieces)
        counts = np.array([found.count for _, found in group])
        lates = np.array([found.late for _, found in group])
        kept = counts - lates
        numbers = np.repeat(np.arange(len(group)), kept)
        t = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        starts = np.repeat(np.cumsum(counts) - counts, kept)
        rows = starts + t
        last_without_outcome = (t == kept[numbers] - 1) & ~lates[numbers]
        ids = [episode_id(self._run_id, number) for number, _ in group]
        return self._steps(arrivals, rows, last_without_outcome, ids, numbers, t)

    def _split(self, number: int, found: EpisodeRows) -> Iterator[pa.Table]:
        """The steps rows of an episode that is longer than a row group, in several tables."""
        ids = [episode_id(self._run_id, number)]
        for start in range(0, found.steps_rows, self._group_rows):
            stop = min(start + self._group_rows, found.steps_rows)
            arrivals = self._gather(_range(found.pieces, start, stop + 1))
            rows = np.arange(stop - start)
            last = np.zeros(stop - start, bool)
            last[-1] = stop == found.steps_rows and not found.late
            yield self._steps(arrivals, rows, last, ids, np.zeros(stop - start, np.int64), rows + start)

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
        ids: Sequence[str],
        numbers: np.ndarray,
        t: np.ndarray,
    ) -> pa.Table:
        """Pair each observation (arrival `rows`) with the outcome that arrived one row later."""
        contiguous = len(rows) == arrivals.num_rows and bool((np.diff(rows) == 1).all())
        outcomes = pa.array(rows + 1, mask=last_without_outcome)
        arrays: list[pa.Array | pa.ChunkedArray] = []
        for column in self._file_schema:
            if column.name == "episode_id":
                arrays.append(pa.DictionaryArray.from_arrays(numbers.astype(np.int32), pa.array(ids)))
            elif column.name == "t":
                arrays.append(pa.array(t))
            elif self._schema.is_outcome(column.name):
                arrays.append(arrivals.column(column.name).take(outcomes))
            elif contiguous:
                arrays.append(arrivals.column(column.name))
            else:
                arrays.append(arrivals.column(column.name).take(pa.array(rows)))
        arrays[0] = arrays[0].cast(pa.string())
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
