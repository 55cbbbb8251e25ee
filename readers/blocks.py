"""Row groups: the unit in which steps are read and decoded.

A `Block` is one row group of one segment, or a part of one. It reads a column when first asked for, and keeps
it, so episodes that share a row group share the work. `BlockReader` opens segment files and finds the
row groups that an episode lies in.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..store.dynamic.columns import columns_or_nulls
from ..store.errors import CorruptStoreError
from ..store.files import Place
from ..store.parquet.files import open_parquet, over_files, read_whole, reading_file
from ..store.snapshot import Snapshot
from ..store.spaces import SpaceCodec
from ..store.spaces.arrow import flat_array, list_array, values_of
from ..store.spaces.fixed import FixedNode
from ..store.tables.annotation_files import StepAnnotation
from ..store.tables.overflow import Overflow

_OPEN_FILES = 64
#: The end of a path in a Parquet schema, of values that are in lists.
_LISTS = re.compile(r"(\.list\.(element|item))+$")
#: Blocks that are kept for other episodes: so many, and as many bytes of what was read and decoded of them.
_KEPT_BLOCKS, _KEPT_BYTES = 64, 256 << 20


class SegmentFile:
    """An open steps file: its row groups and where each begins.

    Args:
        path: the file.
        data: its bytes, where they were read.
    """

    def __init__(self, path: Place, data: bytes | None = None) -> None:
        self.path = path
        self._data = data
        self.parquet: pq.ParquetFile = open_parquet(path, data=data)
        metadata = self.parquet.metadata
        counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.columns = frozenset(self.parquet.schema_arrow.names)
        # A Parquet reader serves one thread at a time; each read takes a free one or opens another.
        self._free = [self.parquet]

    def stored_bytes(self, column: str) -> int:
        """Return the bytes of a column's values by the footer, before their compression; 0 if it lacks it."""
        return self.stored_values(column)[1]

    def stored_values(self, column: str) -> tuple[int, int]:
        """Return how many numbers or texts a column has, those in lists counted each, and their bytes."""
        metadata = self.parquet.metadata
        if column not in self.columns or not metadata.num_row_groups:
            return 0, 0
        group = metadata.row_group(0)
        paths = [group.column(i).path_in_schema for i in range(metadata.num_columns)]
        number = next(i for i, path in enumerate(paths) if _LISTS.sub("", path) == column)
        chunks = [metadata.row_group(i).column(number) for i in range(metadata.num_row_groups)]
        return sum(chunk.num_values for chunk in chunks), sum(
            chunk.total_uncompressed_size for chunk in chunks
        )

    def groups_of(self, row_start: int, row_count: int) -> range:
        """Return the row groups that cover rows `[row_start, row_start + row_count)`.

        Raises:
            CorruptStoreError: the file has fewer rows.
        """
        if row_start + row_count > self.starts[-1]:
            raise CorruptStoreError(
                f"{self.path} has {self.starts[-1]} rows; an episode points at rows {row_start} to "
                f"{row_start + row_count}. The file is not the one that was committed."
            )
        first = int(np.searchsorted(self.starts, row_start, side="right")) - 1
        last = int(np.searchsorted(self.starts, row_start + row_count, side="left"))
        return range(first, last)

    def read(self, groups: Sequence[int], columns: Iterable[str], *, threads: bool = True) -> pa.Table:
        """Read columns of some row groups; columns that this file lacks are left out.

        Args:
            groups: numbers of row groups.
            columns: names.
            threads: decode the columns in parallel; not needed where several reads run in parallel already.

        Raises:
            CorruptStoreError: the data is damaged.
        """
        (table,) = self.batches(groups, columns, threads=threads)
        return table

    def batches(
        self, groups: Sequence[int], columns: Iterable[str], most: int | None = None, *, threads: bool = True
    ) -> Iterator[pa.Table]:
        """Yield the same rows, in order and at most so many at a time; all at once without `most`.

        Raises:
            CorruptStoreError: the data is damaged.
        """
        wanted = [name for name in columns if name in self.columns]
        left = sum(int(self.starts[group + 1] - self.starts[group]) for group in groups)
        try:
            reader = self._free.pop()
        except IndexError:
            reader = open_parquet(self.path, self.parquet.metadata, data=self._data)
        try:
            with reading_file(self.path):
                if most is None:
                    tables = iter([reader.read_row_groups(list(groups), columns=wanted, use_threads=threads)])
                else:
                    batches = reader.iter_batches(most, list(groups), columns=wanted, use_threads=threads)
                    tables = (pa.Table.from_batches([batch]) for batch in batches)
                for table in tables:
                    count = table.num_rows
                    left -= count
                    # Arrow takes the number of values from the headers of pages, which have no checksum.
                    if table.column_names != wanted or any(len(column) != count for column in table.columns):
                        raise ValueError("its columns are not those of its footer, or of different lengths")
                    yield table
                if left:
                    raise ValueError(f"it does not have the rows that its footer lists: {left} are missing")
        finally:
            self._free.append(reader)


class Block:
    """Rows `[first, first + count)` of a segment file, columns decoded when first asked for.

    Args:
        file: the segment.
        groups: its row groups that are read.
        first, count: the rows that this block shows.
    """

    def __init__(self, file: SegmentFile, groups: range, first: int, count: int) -> None:
        self.file = file
        self.groups = groups
        self.first = first
        self.count = count
        self._raw: dict[str, pa.ChunkedArray] = {}
        self._decoded: dict[str, Any] = {}
        self._added: dict[str, pa.ChunkedArray] = {}
        #: Columns that were asked for.
        self.touched: set[str] = set()
        # Parts of a block that are read ahead ask for the same columns at the same time. Of a process, since
        # a forked child has no thread that would release a lock which was held.
        self._reading = os.getpid(), Lock()
        #: About how many bytes its columns hold, read and decoded, if it is `kept` for other episodes. A sum,
        #: since each look-up asks each block.
        self.nbytes = 0
        self.kept = False

    def _keep(self, columns: dict[str, Any], name: str, values: Any) -> Any:
        """Add to `_raw`, `_decoded` or `_added`, and return the values."""
        columns[name] = values
        if self.kept:
            self.nbytes += _size(values)
        return values

    def load(self, columns: Iterable[str], *, threads: bool = True) -> None:
        """Read the columns that are not here yet, in one go; `threads` as for `SegmentFile.read`.

        Any thread may call it: each column is read once.
        """
        missing = [name for name in columns if name not in self._raw and name in self.file.columns]
        if not missing:
            return
        process, reading = self._reading
        if process != os.getpid():
            self._reading = _, reading = os.getpid(), Lock()
        with reading:
            missing = [name for name in missing if name not in self._raw]
            if missing:
                self._read(missing, threads=threads)
                self.touched.update(missing)

    def _read(self, missing: list[str], *, threads: bool) -> None:
        """Add columns that the file has to `_raw`."""
        table = self.file.read(self.groups, missing, threads=threads)
        offset = self.first - int(self.file.starts[self.groups[0]])
        whole = offset == 0 and table.num_rows == self.count
        for name in missing:
            column = table.column(name)
            self._keep(self._raw, name, column if whole else column.slice(offset, self.count))

    def table(self, columns: Sequence[pa.Field], start: int, count: int) -> pa.Table:
        """Return some rows as an Arrow table; columns that the file lacks are NULL."""
        self.load(field.name for field in columns)
        here = {c.name: self._raw[c.name].slice(start, count) for c in columns if c.name in self._raw}
        with reading_file(self.file.path):
            return pa.table(columns_or_nulls(here, columns, count), schema=pa.schema(list(columns)))

    def shown(
        self, columns: Sequence[pa.Field], overflow: Mapping[str, Overflow], start: int, count: int
    ) -> pa.Table:
        """Return some rows as an Arrow table, all numbers of a column in it; see `table`."""
        wanted = {column.name: column for column in columns}
        beside = [overflow[name].json_column for name in wanted if name in overflow]
        table = self.table(
            [*wanted.values(), *(pa.field(name, pa.string()) for name in beside if name not in wanted)],
            start,
            count,
        )
        for index, column in enumerate(wanted.values()):
            if column.name in overflow:
                own = overflow[column.name]
                cells = own.fill(table.column(index), table.column(own.json_column))
                table = table.set_column(index, pa.field(column.name, own.type), cells)
        return table.select(list(wanted))

    def added(
        self, snapshot: Snapshot, annotation: StepAnnotation, start: int, count: int
    ) -> pa.ChunkedArray:
        """Return some rows of a column that steps got later; NULL where it has no value.

        Raises:
            CorruptStoreError: the annotation's file is damaged.
        """
        if annotation.name not in self._added:
            self._keep(self._added, annotation.name, self._read_added(snapshot, annotation))
        return self._added[annotation.name].slice(start, count)

    def _read_added(self, snapshot: Snapshot, annotation: StepAnnotation) -> pa.ChunkedArray:
        places = snapshot.annotation_places(annotation.name, [self.file.path.name])
        if not places:
            return pa.chunked_array([pa.nulls(self.count, annotation.type)])
        (place,) = places
        beside = SegmentFile(place)
        groups = beside.groups_of(self.first, self.count)
        table = beside.read(groups, [annotation.name])
        if annotation.name not in table.column_names:
            raise CorruptStoreError(f"The file {place} has no column {annotation.name!r}.")
        return table.column(0).slice(self.first - int(beside.starts[groups[0]]), self.count)

    def part(self, codec: SpaceCodec, *, of_transitions: bool) -> Any:
        """Return all observations, actions or rewards of the block, or a part of them, decoded.

        Rows without an observation (see `observed`) are left out.

        Args:
            codec: of the values.
            of_transitions: leave out the last row of each episode.
        """
        if codec.root not in self._decoded:
            arrays = self._valid_cells(codec, of_transitions=of_transitions)
            self._keep(self._decoded, codec.root, codec.decode(arrays))
        return self._decoded[codec.root]

    def columns_of(self, codec: SpaceCodec, *, of_transitions: bool) -> Any:
        """Return the same as `SpaceCodec.decode_columns` has it, decoded each time."""
        return codec.decode_columns(self._valid_cells(codec, of_transitions=of_transitions))

    def _valid_cells(self, codec: SpaceCodec, *, of_transitions: bool) -> list[pa.Array | pa.ChunkedArray]:
        names = [field.name for field in codec.fields]
        self.load([*names, "terminated"] if of_transitions else names)
        arrays = [_single(self._column(name)) for name in names]
        valid = self.stepped if of_transitions else self.observed(codec)
        return arrays if valid is None else [without_nulls(array, valid) for array in arrays]

    def frames_at(self, leaf: FixedNode, start: int, rows: np.ndarray) -> np.ndarray:
        """Return frames of some rows; of encoded ones, what these need is decoded.

        Args:
            leaf: of the frames.
            start: the first row of an episode, or of an agent in it.
            rows: counted from there, in any order.
        """
        return leaf.frames_at(self.cells(leaf.column).slice(start), rows)

    def cells(self, name: str) -> pa.ChunkedArray:
        """Return a column as it is stored."""
        self.load([name])
        return self._column(name)

    def observed(self, codec: SpaceCodec) -> np.ndarray | None:
        """Bool, one per row: False where an episode's last observation is missing; None if none is.

        Args:
            codec: of observations or a part of them.
        """
        key = f"{codec.root} observed"
        if key not in self._decoded:
            self.load(field.name for field in codec.fields)
            columns = [self._column(field.name) for field in codec.required[:1]]
            lacking = any(column.null_count for column in columns)
            # A row before the last one that lacks its observation is damaged, which decoding reports.
            valid = values_of(columns[0].is_valid()) | self.stepped if lacking else None
            self._keep(self._decoded, key, None if valid is None or valid.all() else valid)
        return self._decoded[key]

    def observations_before(self, codec: SpaceCodec, row: int) -> int:
        """Return the number of observations before a row of this block."""
        observed = self.observed(codec)
        if observed is None:
            return row
        key = f"{codec.root} before"
        if key not in self._decoded:
            self._keep(self._decoded, key, np.concatenate([[0], np.cumsum(observed)]))
        return int(self._decoded[key][row])

    def flags(self, name: str) -> np.ndarray:
        """`terminated` or `truncated` of every transition of the block."""
        if name not in self._decoded:
            self.load([name])
            flags = values_of(self._column(name).drop_null())
            flags.flags.writeable = False
            self._keep(self._decoded, name, flags)
        return self._decoded[name]

    @property
    def stepped(self) -> np.ndarray:
        """Bool, one per row: True where the row has a transition."""
        if "stepped" not in self._decoded:
            self.load(["terminated"])
            self._keep(self._decoded, "stepped", values_of(self._column("terminated").is_valid()))
        return self._decoded["stepped"]

    def transitions_before(self, row: int) -> int:
        """Return the number of transitions before a row of this block."""
        if "before" not in self._decoded:
            self._keep(self._decoded, "before", np.concatenate([[0], np.cumsum(self.stepped)]))
        return int(self._decoded["before"][row])

    def _column(self, name: str) -> pa.ChunkedArray:
        try:
            return self._raw[name]
        except KeyError:
            raise CorruptStoreError(f"The file {self.file.path} has no column {name!r}.") from None


class BlockPart(Block):
    """Some rows of a block, such as those of one agent; what it reads, the block keeps for other parts.

    Args:
        whole: the block.
        rows: a slice of its rows, or bool, one per row.
    """

    def __init__(self, whole: Block, rows: slice | np.ndarray) -> None:
        if isinstance(rows, slice):
            start, count = rows.start, rows.stop - rows.start
        else:
            start, count = 0, int(np.count_nonzero(rows))
        super().__init__(whole.file, whole.groups, whole.first + start, count)
        self._whole = whole
        self._rows = rows

    def _chosen(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        if isinstance(self._rows, slice):
            return column.slice(self._rows.start, self.count)
        return column.filter(flat_array(self._rows, pa.bool_()))

    def hold(self, table: pa.Table) -> None:
        """Take columns of its rows that were read."""
        self._raw.update(zip(table.column_names, table.columns, strict=True))

    def _read(self, missing: list[str], *, threads: bool) -> None:
        self._whole.load(missing, threads=threads)
        for name in missing:
            self._raw[name] = self._chosen(self._whole._raw[name])

    def _read_added(self, snapshot: Snapshot, annotation: StepAnnotation) -> pa.ChunkedArray:
        return self._chosen(self._whole.added(snapshot, annotation, 0, self._whole.count))


def is_numeric(kind: pa.DataType) -> bool:
    """Return whether a column has numbers or booleans, or lists of them."""
    inner = kind.value_type if pa.types.is_list(kind) else kind
    return pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)


def without_nulls(array: pa.Array | pa.ChunkedArray, valid: np.ndarray) -> pa.Array | pa.ChunkedArray:
    """Return the rows of an array that are valid; lists within one chunk keep their memory."""
    if isinstance(array, pa.ListArray) and array.null_count == len(array) - np.count_nonzero(valid):
        starts = values_of(array.offsets)
        # A NULL list takes no room between its neighbours, so leaving out its offset is enough.
        if not np.diff(starts)[~valid].any():
            kept = np.concatenate([starts[:-1][valid], starts[-1:]])
            return list_array(kept, array.values)
    return array.filter(flat_array(valid, pa.bool_()))


def _single(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return column.chunk(0) if column.num_chunks == 1 else column


def _size(values: Any) -> int:
    """Return about how many bytes columns hold: arrays, or trees and lists of them."""
    if isinstance(values, np.ndarray | pa.ChunkedArray):
        return values.nbytes
    if isinstance(values, Mapping):
        return sum(map(_size, values.values()))
    if isinstance(values, tuple):
        return sum(map(_size, values))
    # Values without a common shape: the first one stands for all.
    return 64 + len(values) * (64 + _size(values[0])) if isinstance(values, list) and values else 64


def _opened(snapshot: Snapshot, name: str) -> SegmentFile:
    snapshot.check_segment(name)
    return SegmentFile(snapshot.segment_path(name))


class BlockReader:
    """Opens the segments of one snapshot and makes blocks; keeps the most recently used files open, and the
    most recently used blocks of `shared`.

    Safe to use from several threads.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        #: Returns the open file of a segment, by name.
        self.file = lru_cache(_OPEN_FILES)(partial(_opened, snapshot))
        self._blocks: OrderedDict[tuple[str, int, int], Block] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Open files are not taken along."""
        return BlockReader, (self.snapshot,)

    def whole(self, name: str) -> SegmentFile:
        """Return the file of a segment of an object store, read in one request; it is not kept open."""
        data = read_whole(self.snapshot.segment_path(name), self.snapshot.listed_bytes(name))
        self.snapshot.check_segment(name)
        return SegmentFile(self.snapshot.segment_path(name), data)

    def files(self, names: Iterable[str]) -> Sequence[SegmentFile]:
        """Return the open files of segments; on an object store several are opened at a time."""
        return over_files(self.file, list(names), self.snapshot.layout.root)

    def single(self, position: int) -> tuple[Block, int]:
        """Return the same as `shared`; a part with the episode alone if its row group was not asked for yet.

        A program that looks at one episode decodes no others.
        """
        block, start, known = self._kept(position)
        if known and not self.snapshot.schema.encodings:
            return block, start
        count = self.snapshot.place(position)[2]
        return BlockPart(block, slice(start, start + count)), 0

    def shared(self, position: int) -> tuple[Block, int]:
        """Return a block that holds an episode, and its first row there: its row group, or it alone where it
        reaches over several.

        Blocks are shared by those who ask for episodes one by one in any order, so that row groups are read
        and decoded once as long as they fit into memory that is bounded.
        """
        return self._kept(position)[:2]

    def _kept(self, position: int) -> tuple[Block, int, bool]:
        """Return the block and the row of `shared`, and whether it was kept before."""
        block, start = self.fresh(position)
        key = (block.file.path.name, block.first, block.count)
        with self._lock:
            known = key in self._blocks
            block = self._blocks.setdefault(key, block)
            block.kept = True
            self._blocks.move_to_end(key)
            size = sum(each.nbytes for each in self._blocks.values())
            while len(self._blocks) > 1 and (size > _KEPT_BYTES or len(self._blocks) > _KEPT_BLOCKS):
                size -= self._blocks.popitem(last=False)[1].nbytes
        return block, start, known

    def fresh(self, position: int) -> tuple[Block, int]:
        """Return an unread copy that is not kept."""
        name, start, count = self.snapshot.place(position)
        file = self.file(name)
        groups = file.groups_of(start, count)
        first, stop = int(file.starts[groups[0]]), int(file.starts[groups[-1] + 1])
        if len(groups) > 1:
            first, stop = start, start + count
        return Block(file, groups, first, stop - first), start - first
