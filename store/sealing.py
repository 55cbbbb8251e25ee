"""From journal rows to a steps file: order the rows by episode, shift, write row groups.

Works on batches that point into the mapped journal and holds one row group in memory at a time, whatever
the length of an episode. A row group never splits an episode that fits in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .arrow_take import take_rows
from .journal_reading import PartReader
from .loose_merge import SegmentColumns
from .parquet import parquet_writer
from .places import Place
from .row_index import Pieces, RowIndex
from .schema import StepSchema

#: The most a row group of steps takes before compression.
GROUP_BYTES = 32 << 20
GROUP_ROWS = 131_072


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
    """

    def __init__(self, path: Place, schema: StepSchema, columns: SegmentColumns) -> None:
        self._path = path
        self._schema = schema
        self._columns = columns
        fields = [*schema.steps, *columns.fields]
        self._file_schema = pa.schema(fields)
        self._row_bytes = schema.journal_row_bytes
        self._group_rows = 0
        self._ids: Sequence[str] = ()
        self._nulls = dict.fromkeys(self._file_schema.names, 0)
        self._rows = 0

    def write(self, ids: Sequence[str], index: RowIndex, readers: Sequence[PartReader]) -> WrittenSteps:
        """Write the episodes in the order of the index and make the file durable.

        Args:
            ids: of the episodes, in that order.
            index: where their rows are.
            readers: the parts that hold them.

        Raises:
            StoreAccessError: the file could not be written; the caller may try again.
        """
        rows = max(1, sum(reader.rows for reader in readers))
        self._row_bytes = max(self._row_bytes, sum(reader.row_bytes for reader in readers) // rows)
        self._group_rows = max(1, min(GROUP_ROWS, GROUP_BYTES // self._row_bytes))
        self._ids = ids
        with parquet_writer(self._path, self._file_schema, self._row_bytes) as writer:
            for table in self._groups(index):
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                self._count(table)
                for reader in readers:
                    reader.release()
        return WrittenSteps(self._rows, self._nulls)

    def _count(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._nulls[name] += column.null_count

    def _groups(self, index: RowIndex) -> Iterator[pa.Table]:
        ends = np.cumsum(index.steps_rows)
        episode, count = 0, len(ends)
        while episode < count:
            before = ends[episode] - index.steps_rows[episode]
            last = int(np.searchsorted(ends, before + self._group_rows, side="right"))
            if last == episode:
                yield from self._split(index, episode)
                last += 1
            else:
                yield self._whole(index, episode, last)
            episode = last

    def _whole(self, index: RowIndex, first: int, last: int) -> pa.Table:
        """The steps rows of the whole episodes `[first, last)`."""
        arrivals, places = self._gather(index.pieces.part(*index.first[[first, last]].tolist()))
        counts, lates = index.counts[first:last], index.lates[first:last]
        kept = counts - lates
        numbers = np.repeat(np.arange(last - first), kept)
        t = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        rows = np.repeat(np.cumsum(counts) - counts, kept) + t
        last_without_outcome = (t == kept[numbers] - 1) & ~lates[numbers]
        return self._steps(arrivals, places, rows, last_without_outcome, self._ids[first:last], numbers, t)

    def _split(self, index: RowIndex, episode: int) -> Iterator[pa.Table]:
        """The steps rows of an episode that is longer than a row group, in several tables."""
        ids = [self._ids[episode]]
        pieces = index.pieces.part(*index.first[[episode, episode + 1]].tolist())
        steps_rows = int(index.steps_rows[episode])
        for start in range(0, steps_rows, self._group_rows):
            stop = min(start + self._group_rows, steps_rows)
            arrivals, places = self._gather(pieces.between(start, stop + 1))
            rows = np.arange(stop - start)
            last = np.zeros(stop - start, bool)
            last[-1] = stop == steps_rows and not index.lates[episode]
            numbers = np.zeros(stop - start, np.int64)
            yield self._steps(arrivals, places, rows, last, ids, numbers, rows + start)

    def _gather(self, pieces: Pieces) -> tuple[pa.Table, np.ndarray]:
        """Copy pieces into one table in the journal's layout, loose columns made alike.

        Returns:
            The table, and the row of it that each row of the pieces stands in.
        """
        chunks, first_row = pieces.chunks(self._row_bytes)
        sizes = pieces.stops - pieces.starts
        places = np.arange(sizes.sum()) + np.repeat(first_row - (np.cumsum(sizes) - sizes), sizes)
        table = pa.Table.from_batches([self._columns.align(chunk) for chunk in chunks])
        return table.combine_chunks(), places

    def _steps(
        self,
        arrivals: pa.Table,
        places: np.ndarray,
        rows: np.ndarray,
        last_without_outcome: np.ndarray,
        ids: Sequence[str],
        numbers: np.ndarray,
        t: np.ndarray,
    ) -> pa.Table:
        """Pair each observation (arrival `rows`) with the outcome that arrived one row later."""
        observed = places[rows]
        contiguous = len(rows) == arrivals.num_rows and bool((np.diff(observed) == 1).all())
        outcomes = places[np.minimum(rows + 1, len(places) - 1)]
        arrays: list[pa.Array | pa.ChunkedArray] = []
        for column in self._file_schema:
            if column.name == "episode_id":
                arrays.append(pa.DictionaryArray.from_arrays(numbers.astype(np.int32), pa.array(ids)))
            elif column.name == "t":
                arrays.append(pa.array(t))
            elif self._schema.is_outcome(column.name):
                arrays.append(take_rows(_plain(arrivals, column.name), outcomes, last_without_outcome))
            elif contiguous:
                arrays.append(arrivals.column(column.name))
            else:
                arrays.append(take_rows(_plain(arrivals, column.name), observed))
        arrays[0] = arrays[0].cast(pa.string())
        return pa.table(arrays, schema=self._file_schema)


def _plain(table: pa.Table, name: str) -> pa.Array:
    """A column of a table whose chunks were combined."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
