"""From journal rows to a steps file: order the rows by episode, shift, write row groups.

Whole episodes come as finished rows, which are not shifted.

Works on batches that point into the mapped journal and holds one row group in memory, or two where
columns are packed, whatever the length of an episode. A row group never splits an episode that fits in one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from ..common.prefetch import peeked, prefetch
from ..dynamic.columns import SegmentColumns
from ..files import Place
from ..frames import VideoColumn, encoded_tables, whole_chunks
from ..journal.episodes import LaneColumns
from ..journal.packed_columns import PACKED, Arena, PackedRows, Packer, has_packed, packed_bytes, units_of
from ..journal.reading import PartReader
from ..journal.row_index import Pieces, RowIndex
from ..parquet.writing import PagedColumn, parquet_writer
from ..schema import AGENT_ID, JOURNAL_KIND, RESET_ROW, StepSchema
from ..spaces.arrow import equal_lists

#: The most a row group of steps takes before compression.
GROUP_BYTES = 32 << 20
GROUP_ROWS = 131_072
#: The most that the frames of one group of pictures may take while they are encoded together.
_PICTURES_BYTES = 256 << 20
#: Fewer rows than this are taken by Arrow.
_FEWEST_ROWS = 256


@dataclass(frozen=True)
class WrittenSteps:
    """Row and NULL counts of a steps file, for its statistics, its bytes and the checksum of its footer."""

    rows: int
    null_counts: dict[str, int]
    nbytes: int
    footer: str


class StepsFile:
    """Writes one steps file.

    Args:
        path: where; an older file of that name is replaced.
        schema: the store's step schema.
        columns: the dynamic columns of this segment.
    """

    def __init__(self, path: Place, schema: StepSchema, columns: SegmentColumns) -> None:
        self._path = path
        self._schema = schema
        self._columns = columns
        fields = [_named_once(column) for column in schema.steps] + columns.fields
        self._file_schema = pa.schema(fields)
        self._row_bytes = schema.journal_row_bytes
        self._video = schema.video
        self._group_rows = 0
        self._names: dict[str, Sequence[str]] = {}
        self._nulls = dict.fromkeys(self._file_schema.names, 0)
        self._rows = 0
        self._arenas = [Arena(0), Arena(0)]
        # Columns whose pages are copied. Those of a dead writer are unpacked, and so checked.
        self._paged: list[str] = []

    def write(
        self,
        ids: Sequence[str],
        lanes: LaneColumns,
        index: RowIndex,
        readers: Sequence[PartReader],
        bulk: Sequence[pa.RecordBatch] = (),
    ) -> WrittenSteps:
        """Write the lanes in their order, those of an episode together, and make the file durable.

        Args:
            ids: of the episodes.
            lanes: whose rows are written.
            index: where they are.
            readers: the parts that hold them.
            bulk: the batches of finished rows in memory that hold them.

        Raises:
            StoreAccessError: the file could not be written; the caller may try again.
        """
        sizes = [(reader.rows, reader.row_bytes) for reader in readers]
        sizes += [(batch.num_rows, batch.get_total_buffer_size()) for batch in bulk]
        rows, size = map(sum, zip(*sizes, strict=True))
        self._row_bytes = max(self._row_bytes, size // max(1, rows))
        self._group_rows = max(1, min(GROUP_ROWS, GROUP_BYTES // self._row_bytes))
        if self._video:
            self._group_rows = _whole_pictures(self._group_rows, self._video)
        packed = any(has_packed(runs.batch.schema) for runs in index.pieces.runs)
        if packed and not self._video:
            # Tables with video are held until several make a row group, so each has memory of its own.
            self._arenas = [Arena(GROUP_BYTES), Arena(GROUP_BYTES)]
            if all(reader.own for reader in readers):
                self._paged = self._frame_columns()
        self._names = {"episode_id": ids}
        if lanes.names is not None:
            self._names["episode_id"] = np.repeat(np.array(ids, object), np.diff(lanes.first)).tolist()
            self._names[AGENT_ID] = lanes.names
        stored_bytes = self._row_bytes - sum(each.image.size - each.frame_bytes for each in self._video)
        # Gathering small rows is not worth a thread beside those that record.
        groups = self._groups(lanes, index)
        tables = prefetch(groups) if packed or self._video else groups
        first, tables = peeked(self._encoded_groups(tables) if self._video else tables)
        with parquet_writer(self._path, self._file_schema, max(1, stored_bytes), first) as writer:
            del first
            for table in tables:
                rows, paged = self._apart(table)
                writer.write_table(rows, row_group_size=max(1, table.num_rows), paged=paged)
                self._count(table)
                for reader in readers:
                    reader.release()
        return WrittenSteps(self._rows, self._nulls, writer.nbytes, writer.footer)

    def _frame_columns(self) -> list[str]:
        """Return the columns of frames that stay in the rows in which they arrived."""
        outcome = self._schema.is_outcome
        return [
            each.name for each in self._schema.steps if each.type == pa.binary() and not outcome(each.name)
        ]

    def _apart(self, table: pa.Table) -> tuple[pa.Table, dict[str, PagedColumn]]:
        """Return the rows as Arrow writes them, NULL in columns of pages, and these columns."""
        paged: dict[str, PagedColumn] = {}
        for index, column in enumerate(table.schema):
            if column.type == PACKED:
                pages = table.column(index)
                paged[column.name] = PagedColumn(units_of(pages.chunks), packed_bytes(column))
                plain = self._file_schema.field(index)
                table = table.set_column(index, plain, pa.nulls(len(pages), plain.type))
        return table, paged

    def _encoded_groups(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield row groups with encoded frames; chunks that came as such may reach over tables."""
        return whole_chunks(self._encoded(tables), [column.name for column in self._video])

    def _encoded(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Encode the frames of tables, and join them: encoded, many of them make one row group."""
        held: list[pa.Table] = []
        for table in encoded_tables(tables, self._video):
            held.append(table)
            rows, size = (sum(getattr(each, name) for each in held) for name in ("num_rows", "nbytes"))
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                yield pa.concat_tables(held)
                held = []
        if held:
            yield pa.concat_tables(held)

    def _count(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        for name, column in zip(table.column_names, table.columns, strict=True):
            self._nulls[name] += column.null_count

    def _groups(self, lanes: LaneColumns, index: RowIndex) -> Generator[pa.Table, None, None]:
        counts = lanes.per_episode(index.steps_rows)
        ends = np.cumsum(counts)
        # Rows that are shifted and rows that are not never share a group.
        finished = index.finished[lanes.first[:-1]]
        changes = np.append(np.flatnonzero(finished[1:] != finished[:-1]) + 1, len(ends))
        episode = 0
        while episode < len(ends):
            before = ends[episode] - counts[episode]
            last = int(np.searchsorted(ends, before + self._group_rows, side="right"))
            if last == episode:
                last += 1
                for lane in range(*lanes.first[[episode, last]].tolist()):
                    yield from self._split(index, lane)
            else:
                last = min(last, int(changes[np.searchsorted(changes, episode, side="right")]))
                yield self._whole(index, *lanes.first[[episode, last]].tolist())
            episode = last

    def _whole(self, index: RowIndex, first: int, last: int) -> pa.Table:
        """Return the steps rows of the lanes `[first, last)`."""
        arrivals, places = self._gather(index.pieces.part(*index.first[[first, last]].tolist()))
        counts, lates = index.counts[first:last], index.lates[first:last]
        kept = counts - lates
        ends = np.cumsum(kept)
        owners = np.repeat(np.arange(first, last, dtype=np.int32), kept)
        t = np.arange(ends[-1])
        t -= np.repeat(ends - kept, kept)
        rows = np.repeat(np.cumsum(counts) - counts, kept) + t if lates.any() else None
        blank = None if index.finished[first] else (ends - 1)[~lates]
        return self._steps(arrivals, places, rows, blank, owners, t)

    def _split(self, index: RowIndex, lane: int) -> Iterator[pa.Table]:
        """Yield the steps rows of a lane of an episode that is longer than a row group, in several tables."""
        pieces = index.pieces.part(*index.first[[lane, lane + 1]].tolist())
        steps_rows = int(index.steps_rows[lane])
        for start in range(0, steps_rows, self._group_rows):
            stop = min(start + self._group_rows, steps_rows)
            finished = bool(index.finished[lane])
            arrivals, places = self._gather(pieces.between(start, stop + (not finished)))
            last = [stop - start - 1] if stop == steps_rows and not index.lates[lane] else []
            blank = None if finished else np.array(last, np.int64)
            owners = np.full(stop - start, lane, np.int32)
            yield self._steps(arrivals, places, None, blank, owners, np.arange(start, stop))

    def _gather(self, pieces: Pieces) -> tuple[pa.Table, np.ndarray | None]:
        """Copy pieces into one table in the journal's layout, dynamic columns made alike.

        Returns:
            The table, and the row of it that each row of the pieces stands in; None if they stand in order.
        """
        # The table before this one is being written while this one is gathered.
        self._arenas.reverse()
        self._arenas[0].clear()
        chunks, first_row = pieces.chunks(self._row_bytes, self._arenas[0], self._paged)
        sizes = pieces.stops - pieces.starts
        moved = first_row - (np.cumsum(sizes) - sizes)
        places = np.arange(sizes.sum()) + np.repeat(moved, sizes) if moved.any() else None
        # Schemas that differ only in the kinds of columns are equal, so they are compared as bytes.
        alike = groupby(chunks, lambda chunk: chunk.schema.serialize().to_pybytes())
        tables = [self._columns.align(pa.Table.from_batches(list(members))) for _, members in alike]
        return pa.concat_tables(tables), places

    def _steps(
        self,
        arrivals: pa.Table,
        places: np.ndarray | None,
        rows: np.ndarray | None,
        blank: np.ndarray | None,
        owners: np.ndarray,
        t: np.ndarray,
    ) -> pa.Table:
        """Pair each observation with the outcome that arrived one row later.

        Args:
            arrivals: the rows that arrived.
            places: the row of `arrivals` that each of them stands in; None if they stand in order.
            rows: which of them has the observation of each result row; None for the first ones in order.
            blank: the result rows without an outcome; None for finished rows, which have theirs.
            owners: the lane of each result row.
            t: its step.
        """
        count, start, observed = len(t), 0, None
        if places is not None or rows is not None:
            rows = np.arange(count) if rows is None else rows
            observed = rows if places is None else places[rows]
            if count and (np.diff(observed) == 1).all():
                start, observed = int(observed[0]), None
        # From here on, None stands for the rows from `start` on.
        following = None
        if blank is not None:
            outcomes = np.arange(1, count + 1) if rows is None else rows + 1
            outcomes = np.minimum(outcomes, (arrivals.num_rows if places is None else len(places)) - 1)
            absent = np.zeros(count, bool)
            absent[blank] = True
            if places is not None:
                outcomes = places[outcomes]
            # A late row may stand elsewhere, even where the observations stand in order. The row after an
            # episode's last one is the reset of the next, which has no outcome either.
            in_order = observed is None and bool(
                ((outcomes == np.arange(start + 1, start + count + 1)) | absent).all()
            )
            if not in_order or not _precede_resets(arrivals, blank + start):
                following = outcomes, absent
        pages = self._pages(arrivals, start, count) if observed is None else {}
        if not pages and has_packed(arrivals.schema):
            arrivals = pa.Table.from_batches(
                [PackedRows.of(batch, None).unpacked() for batch in arrivals.to_batches()]
            )
        fields = list(self._file_schema)
        arrays: list[pa.Array | pa.ChunkedArray] = []
        for index, column in enumerate(self._file_schema):
            if column.name in self._names:
                arrays.append(self._named(column.name, owners))
            elif column.name == "t":
                arrays.append(pa.array(t))
            elif column.name in pages:
                fields[index], array = pages[column.name]
                arrays.append(array)
            elif blank is not None and self._schema.is_outcome(column.name):
                arrays.append(
                    _shifted(arrivals.column(column.name), start + 1, count)
                    if following is None
                    else take_rows(_plain(arrivals, column.name), *following)
                )
            elif observed is None:
                arrays.append(arrivals.column(column.name).slice(start, count))
            else:
                arrays.append(take_rows(_plain(arrivals, column.name), observed))
        return pa.table(arrays, schema=pa.schema(fields))

    def _pages(self, arrivals: pa.Table, start: int, count: int) -> dict[str, tuple[pa.Field, pa.Array]]:
        """Return some rows of the columns of pages; none if a column has a NULL among them."""
        pages: dict[str, tuple[pa.Field, pa.Array]] = {}
        for column in arrivals.schema:
            if column.type == PACKED:
                array = _plain(arrivals, column.name)
                if array.null_count:
                    return {}
                pages[column.name] = (
                    column,
                    Packer().between(array, packed_bytes(column), start, start + count),
                )
        return pages

    def _named(self, column: str, owners: np.ndarray) -> pa.Array:
        """Return the names of the lanes that own some rows; the lanes follow one another."""
        first, last = int(owners[0]), int(owners[-1])
        names = pa.array(self._names[column][first : last + 1], pa.string())
        return pa.DictionaryArray.from_arrays(owners - np.int32(first), names)


def _whole_pictures(rows: int, columns: Sequence[VideoColumn]) -> int:
    """Return so many rows that chunks are cut short seldom, if memory has room for them."""
    gop = max(each.encoding.gop or 1 for each in columns)
    most = max(rows, _PICTURES_BYTES // sum(each.image.size for each in columns))
    return min(-(-rows // gop) * gop, most)


def _precede_resets(arrivals: pa.Table, rows: np.ndarray) -> bool:
    """Return whether the row after each of these is a reset, or after the table."""
    kinds = _plain(arrivals, JOURNAL_KIND.name).to_numpy()
    behind = rows + 1
    return bool((kinds[behind[behind < len(kinds)]] == RESET_ROW).all())


def _named_once(column: pa.Field) -> pa.Field:
    """Return how a column is handed over: names as dictionaries, which Parquet makes of them anyhow."""
    once = column.name in ("episode_id", AGENT_ID)
    return pa.field(column.name, pa.dictionary(pa.int32(), pa.string())) if once else column


def _shifted(column: pa.ChunkedArray, first: int, count: int) -> pa.ChunkedArray:
    """Rows from `first` on, and NULL after the last row of the column."""
    rows = column.slice(first, count)
    missing = pa.nulls(count - len(rows), column.type)
    return pa.chunked_array([*rows.chunks, missing], column.type)


def _plain(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a table whose chunks were combined."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def take_rows(array: pa.Array, rows: np.ndarray, absent: np.ndarray | None = None) -> pa.Array:
    """Return the given rows of a column; where `absent` is set the result is NULL."""
    if len(rows) >= _FEWEST_ROWS and pa.types.is_list(array.type):
        lists = _equal_lists(array, rows, absent)
        if lists is not None:
            return lists
    return array.take(pa.array(rows, mask=absent))


def _equal_lists(array: pa.Array, rows: np.ndarray, absent: np.ndarray | None) -> pa.Array | None:
    """Return the same for a column of lists of numbers that all have one size, or are NULL; None for any
    other.
    """
    offsets = array.offsets.to_numpy()
    sizes = np.diff(offsets)
    size = int(sizes.max(initial=0))
    kind = array.type.value_type
    if not size or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or array.values.null_count:
        return None
    whole = sizes == size
    if not whole.all() and not ((whole | (sizes == 0)).all() and array.null_count == (~whole).sum()):
        return None
    wanted, valid = rows, None
    if absent is not None or not whole.all():
        # The row after the last one is asked for only where nothing stands.
        inside = np.minimum(rows, len(array) - 1)
        valid = whole[inside] if absent is None else whole[inside] & ~absent
        wanted = inside[valid]
    values = array.values.to_numpy()[offsets[0] : offsets[-1]].reshape(-1, size)
    places = (offsets[wanted] - offsets[0]) // size
    flat = np.take(values, places, axis=0).reshape(-1)
    return equal_lists(pa.array(flat), size, len(rows), valid)
