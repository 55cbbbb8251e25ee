"""From journal rows to a steps file: order the rows by episode, shift, write row groups.

Works on batches that point into the mapped journal and holds one row group in memory, or two where
columns are packed, whatever the length of an episode. A row group never splits an episode that fits in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .ahead import ahead
from .arrow_take import take_rows
from .journal_reading import PartReader
from .loose_merge import SegmentColumns
from .packed_columns import Arena, has_packed
from .parquet import parquet_writer
from .places import Place
from .record_columns import LaneColumns
from .row_index import Pieces, RowIndex
from .schema import AGENT_ID, StepSchema

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
        fields = [_named_once(column) for column in schema.steps] + columns.fields
        self._file_schema = pa.schema(fields)
        self._row_bytes = schema.journal_row_bytes
        self._group_rows = 0
        self._names: dict[str, Sequence[str]] = {}
        self._nulls = dict.fromkeys(self._file_schema.names, 0)
        self._rows = 0
        self._arenas = [Arena(0), Arena(0)]

    def write(
        self, ids: Sequence[str], lanes: LaneColumns, index: RowIndex, readers: Sequence[PartReader]
    ) -> WrittenSteps:
        """Write the lanes in their order, those of an episode together, and make the file durable.

        Args:
            ids: of the episodes.
            lanes: whose rows are written.
            index: where they are.
            readers: the parts that hold them.

        Raises:
            StoreAccessError: the file could not be written; the caller may try again.
        """
        rows = max(1, sum(reader.rows for reader in readers))
        self._row_bytes = max(self._row_bytes, sum(reader.row_bytes for reader in readers) // rows)
        self._group_rows = max(1, min(GROUP_ROWS, GROUP_BYTES // self._row_bytes))
        packed = any(has_packed(runs.batch.schema) for runs in index.pieces.runs)
        if packed:
            self._arenas = [Arena(GROUP_BYTES), Arena(GROUP_BYTES)]
        self._names = {"episode_id": ids}
        if lanes.names is not None:
            self._names["episode_id"] = np.repeat(np.array(ids, object), np.diff(lanes.first)).tolist()
            self._names[AGENT_ID] = lanes.names
        with parquet_writer(self._path, self._file_schema, self._row_bytes) as writer:
            # Gathering small rows is not worth a thread beside those that record.
            groups = self._groups(lanes, index)
            for table in ahead(groups) if packed else groups:
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                self._count(table)
                for reader in readers:
                    reader.release()
        return WrittenSteps(self._rows, self._nulls)

    def _count(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._nulls[name] += column.null_count

    def _groups(self, lanes: LaneColumns, index: RowIndex) -> Iterator[pa.Table]:
        counts = lanes.per_episode(index.steps_rows)
        ends = np.cumsum(counts)
        episode = 0
        while episode < len(ends):
            before = ends[episode] - counts[episode]
            last = int(np.searchsorted(ends, before + self._group_rows, side="right"))
            if last == episode:
                last += 1
                for lane in range(*lanes.first[[episode, last]].tolist()):
                    yield from self._split(index, lane)
            else:
                yield self._whole(index, *lanes.first[[episode, last]].tolist())
            episode = last

    def _whole(self, index: RowIndex, first: int, last: int) -> pa.Table:
        """The steps rows of the whole lanes `[first, last)`."""
        arrivals, places = self._gather(index.pieces.part(*index.first[[first, last]].tolist()))
        counts, lates = index.counts[first:last], index.lates[first:last]
        kept = counts - lates
        owners = np.repeat(np.arange(first, last), kept)
        t = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
        rows = np.repeat(np.cumsum(counts) - counts, kept) + t
        last_without_outcome = (t == kept[owners - first] - 1) & ~lates[owners - first]
        return self._steps(arrivals, places, rows, last_without_outcome, owners, t)

    def _split(self, index: RowIndex, lane: int) -> Iterator[pa.Table]:
        """The steps rows of a lane of an episode that is longer than a row group, in several tables."""
        pieces = index.pieces.part(*index.first[[lane, lane + 1]].tolist())
        steps_rows = int(index.steps_rows[lane])
        for start in range(0, steps_rows, self._group_rows):
            stop = min(start + self._group_rows, steps_rows)
            arrivals, places = self._gather(pieces.between(start, stop + 1))
            rows = np.arange(stop - start)
            last = np.zeros(stop - start, bool)
            last[-1] = stop == steps_rows and not index.lates[lane]
            owners = np.full(stop - start, lane)
            yield self._steps(arrivals, places, rows, last, owners, rows + start)

    def _gather(self, pieces: Pieces) -> tuple[pa.Table, np.ndarray]:
        """Copy pieces into one table in the journal's layout, loose columns made alike.

        Returns:
            The table, and the row of it that each row of the pieces stands in.
        """
        # The table before this one is being written while this one is gathered.
        self._arenas.reverse()
        self._arenas[0].clear()
        chunks, first_row = pieces.chunks(self._row_bytes, self._arenas[0])
        sizes = pieces.stops - pieces.starts
        places = np.arange(sizes.sum()) + np.repeat(first_row - (np.cumsum(sizes) - sizes), sizes)
        return pa.Table.from_batches([self._columns.align(chunk) for chunk in chunks]), places

    def _steps(
        self,
        arrivals: pa.Table,
        places: np.ndarray,
        rows: np.ndarray,
        last_without_outcome: np.ndarray,
        owners: np.ndarray,
        t: np.ndarray,
    ) -> pa.Table:
        """Pair each observation (arrival `rows`) with the outcome that arrived one row later."""
        observed = places[rows]
        contiguous = len(rows) == arrivals.num_rows and bool((np.diff(observed) == 1).all())
        outcomes = places[np.minimum(rows + 1, len(places) - 1)]
        arrays: list[pa.Array | pa.ChunkedArray] = []
        for column in self._file_schema:
            if column.name in self._names:
                arrays.append(self._named(column.name, owners))
            elif column.name == "t":
                arrays.append(pa.array(t))
            elif self._schema.is_outcome(column.name):
                arrays.append(take_rows(_plain(arrivals, column.name), outcomes, last_without_outcome))
            elif contiguous:
                arrays.append(arrivals.column(column.name))
            else:
                arrays.append(take_rows(_plain(arrivals, column.name), observed))
        return pa.table(arrays, schema=self._file_schema)

    def _named(self, column: str, owners: np.ndarray) -> pa.Array:
        """The names of the lanes that own some rows; the lanes follow one another."""
        first, last = int(owners[0]), int(owners[-1])
        names = pa.array(self._names[column][first : last + 1], pa.string())
        return pa.DictionaryArray.from_arrays((owners - first).astype(np.int32), names)


def _named_once(column: pa.Field) -> pa.Field:
    """How a column is handed over: names as dictionaries, which Parquet makes of them anyhow."""
    once = column.name in ("episode_id", AGENT_ID)
    return pa.field(column.name, pa.dictionary(pa.int32(), pa.string())) if once else column


def _plain(table: pa.Table, name: str) -> pa.Array:
    """A column of a table whose chunks were combined."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
