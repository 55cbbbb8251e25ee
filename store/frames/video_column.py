"""Cells of a frame column: raw frames, chunks, and empty ones for the further frames of the chunk above."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import CorruptStoreError, StoreAccessError
from . import ffmpeg, lossless
from .chunks import MAGIC, Chunk
from .encoding import Video
from .images import ImageShape

#: Fewer chunks are decoded without threads.
_FEWEST_FOR_THREADS = 3


class DamagedFramesError(ValueError):
    """Frames that cannot be decoded.

    Attributes:
        row: of their chunk, or of a frame without one, among the cells that were given.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row

    def named(self, message: str, place: str) -> str:
        """Return a message with this error in it that names another place than the row."""
        return message.replace(f" in row {self.row} ", f" {place} ", 1)


@contextmanager
def naming_frames(name: str, first: int) -> Iterator[None]:
    """Name an episode and its step in errors of frames, which name a row of what was read.

    Args:
        name: of the episode, or of an agent in it.
        first: its first row there.
    """
    try:
        yield
    except CorruptStoreError as error:
        cause = error.__cause__
        if not isinstance(cause, DamagedFramesError):
            raise
        raise CorruptStoreError(cause.named(str(error), f"at t={cause.row - first} of {name}")) from cause


Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True)
class VideoColumn:
    """A column of frames that is encoded.

    Attributes:
        name: the column.
        image: the shape of a frame.
        encoding: what new frames are encoded with.
    """

    name: str
    image: ImageShape
    encoding: Video

    @property
    def frame_bytes(self) -> int:
        """About how many bytes a frame takes when it is encoded."""
        return max(16, self.image.size // (2 if self.encoding.lossless else 64))

    def encode(self, cells: pa.Array, starts: np.ndarray) -> pa.Array:
        """Return the same rows with raw frames encoded; chunks that are there, and NULLs, stay.

        Args:
            cells: binary.
            starts: bool, one per row: where an episode, or an agent's part of one, begins. The first row
                begins one as well.
        """
        sizes, data = _sizes(cells), _data(cells)
        raw = (sizes == self.image.size) & _valid(cells)
        made: list[bytes | None] = cells.to_pylist() if not raw.all() else [b""] * len(cells)
        for start, stop in _runs(raw, starts):
            begin = int(data.starts[start])
            frames = data.bytes[begin : begin + (stop - start) * self.image.size]
            row = start
            for chunk in self._chunks(frames.reshape((stop - start, *self.image.shape))):
                made[row : row + chunk.frames] = chunk.cells(self.image.size)
                row += chunk.frames
            if row != stop:
                raise StoreAccessError(
                    f"The encoder of {self.encoding} returned {row - start} of {stop - start} frames of "
                    f"{self.name}. The journal keeps them; try again, or with another codec."
                )
        return pa.array(made, pa.binary())

    def decoded(self, rows: Rows) -> Rows:
        """Return rows with raw frames in this column; those that lack the column as they are.

        Args:
            rows: from a row on that needs none before it.

        Raises:
            CorruptStoreError: a cell is neither a frame nor a part of an encoded one.
        """
        index = rows.schema.get_field_index(self.name)
        if index < 0:
            return rows
        cells = rows.column(index)
        cells = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        chosen = np.flatnonzero(_valid(cells))
        if (_sizes(cells)[chosen] == self.image.size).all():
            return rows
        try:
            frames = decode_frames(cells, self.image, chosen)
        except ValueError as error:
            raise CorruptStoreError(f"column '{self.name}': {error}.") from error
        made: list[Any] = [None] * len(cells)
        for row, frame in zip(chosen.tolist(), frames, strict=True):
            made[row] = frame.data.cast("B")
        return rows.set_column(index, rows.schema.field(index), pa.array(made, pa.binary()))

    def decoded_row(self, rows: pa.RecordBatch, row: int, into: pa.RecordBatch) -> pa.RecordBatch:
        """Return a row with its frame decoded.

        Args:
            rows: from a row on that needs none before it.
            row: which of them.
            into: that row.

        Raises:
            CorruptStoreError: the cell is neither a frame nor a part of an encoded one.
        """
        index = into.schema.get_field_index(self.name)
        cells = rows.column(index)
        if not cells[row].is_valid:
            return into
        try:
            (frame,) = decode_frames(cells, self.image, np.array([row]))
        except ValueError as error:
            raise CorruptStoreError(f"column '{self.name}': {error}.") from error
        return into.set_column(index, into.schema.field(index), pa.array([frame.tobytes()], pa.binary()))

    def _chunks(self, frames: np.ndarray) -> Iterable[Chunk]:
        if self.encoding.lossless:
            return lossless.encode(frames, self.image)
        return ffmpeg.encode(frames, self.image, self.encoding)


@dataclass(frozen=True)
class _Data:
    starts: np.ndarray
    bytes: np.ndarray


def _data(cells: pa.Array) -> _Data:
    _, offsets, data = cells.buffers()
    starts = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
    return _Data(starts, np.frombuffer(data if data is not None else b"", np.uint8))


def _sizes(cells: pa.Array) -> np.ndarray:
    return np.diff(_data(cells).starts)


def _valid(cells: pa.Array) -> np.ndarray:
    if not cells.null_count:
        return np.ones(len(cells), bool)
    return cells.is_valid().to_numpy(zero_copy_only=False)


def _runs(raw: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the stretches of raw frames that belong together."""
    before = np.concatenate([[False], raw[:-1]])
    begins = np.flatnonzero(raw & (starts | ~before))
    ends = np.flatnonzero(raw & np.concatenate([starts[1:] | ~raw[1:], [True]])) + 1
    return zip(begins.tolist(), ends.tolist(), strict=True)


def chunk_starts(cells: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return where rows begin that need none before them, bool: all but those of empty cells."""
    parts = cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]
    found = [(_sizes(part) > 0) | ~_valid(part) for part in parts]
    return np.concatenate(found) if found else np.zeros(0, bool)


def has_chunks(cells: pa.Array, image_size: int) -> bool:
    """Return whether a cell of a frame column is a chunk.

    Args:
        cells: binary.
        image_size: the bytes of a raw frame.
    """
    data = _data(cells)
    sizes = np.diff(data.starts)
    others = np.flatnonzero((sizes != image_size) & (sizes > 0))
    if not len(others):
        return False
    start = int(data.starts[others[0]])
    return bytes(data.bytes[start : start + len(MAGIC)]) == MAGIC


def whole_chunks(tables: Iterable[pa.Table], columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the same rows in tables that each begin with a chunk, or a raw frame, of each column.

    Args:
        tables: rows in order; the first begins so.
        columns: frame columns; those that a table lacks are passed over.
    """
    held: list[pa.Table] = []
    rows = cut = 0  # of what is held; and its last row at which all columns begin
    for table in tables:
        if not table.num_rows:
            continue
        starts = np.flatnonzero(_common_starts(table, columns))
        if held and len(starts) and starts[0] == 0:
            yield pa.concat_tables(held)
            held, rows, cut = [], 0, 0
        elif cut:
            joined = pa.concat_tables(held)
            yield joined.slice(0, cut)
            held, rows, cut = [joined.slice(cut)], rows - cut, 0
        cut = rows + int(starts[-1]) if len(starts) else cut
        held.append(table)
        rows += table.num_rows
    if held:
        yield pa.concat_tables(held)


def _common_starts(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """Return where all columns begin with a chunk or a raw frame: bool, one per row."""
    begins = [chunk_starts(table.column(name)) for name in columns if name in table.column_names]
    return np.logical_and.reduce([np.ones(table.num_rows, bool), *begins])


def encoded_tables(
    tables: Iterable[pa.Table], columns: Sequence[VideoColumn], *, ahead: int = 0
) -> Iterator[pa.Table]:
    """Yield rows of steps with raw frames encoded, by threads: all columns of a table at a time.

    Args:
        tables: with the column `t`; each begins with a chunk or a raw frame of each column.
        columns: those that are encoded.
        ahead: so many of the next tables are encoded at the same time, and held.
    """
    coming: deque[tuple[pa.Table, Iterator[pa.Array]]] = deque()
    workers = min(len(columns) * (1 + ahead), os.cpu_count() or 1)
    pool = ThreadPoolExecutor(workers, "episodelake encoding")
    try:
        for table in tables:
            coming.append((table, _encoded_columns(table, columns, pool)))
            if len(coming) > ahead:
                yield _with_columns(*coming.popleft(), columns)
        while coming:
            yield _with_columns(*coming.popleft(), columns)
    finally:
        # The collector may close this generator inside a lock of `threading`, so no thread is joined here.
        pool.shutdown(wait=False, cancel_futures=True)


def _encoded_columns(
    rows: pa.Table, columns: Sequence[VideoColumn], pool: ThreadPoolExecutor
) -> Iterator[pa.Array]:
    starts = rows.column("t").to_numpy() == 0

    def encode(column: VideoColumn) -> pa.Array:
        cells = rows.column(column.name)
        return column.encode(cells.chunk(0) if cells.num_chunks == 1 else cells.combine_chunks(), starts)

    try:
        return pool.map(encode, columns)
    except RuntimeError:  # The interpreter ends, and starts no more threads.
        return map(encode, columns)


def _with_columns(rows: pa.Table, encoded: Iterator[pa.Array], columns: Sequence[VideoColumn]) -> pa.Table:
    for column, cells in zip(columns, encoded, strict=True):
        index = rows.schema.get_field_index(column.name)
        rows = rows.set_column(index, rows.schema.field(index), cells)
    return rows


def decode_frames(cells: pa.Array, image: ImageShape, rows: np.ndarray | None = None) -> np.ndarray:
    """Return frames of a column; see `decode_cells`.

    Args:
        cells: binary, no NULLs, in the order of the store.
        image: the shape of a frame.
        rows: the rows to return, in any order; None for all.
    """
    data = _data(cells)
    return decode_cells(data.bytes, data.starts, image, np.arange(len(cells)) if rows is None else rows)


def decode_cells(data: np.ndarray, edges: np.ndarray, image: ImageShape, rows: np.ndarray) -> np.ndarray:
    """Return frames of a column; each of their chunks is decoded once, several in parallel.

    Args:
        data: uint8, the bytes of the cells.
        edges: where each cell begins, and the end of the last one.
        image: the shape of a frame.
        rows: int64, shape (n,): the cells whose frames to return, in any order.

    Returns:
        uint8, (n, *image.shape), writable and its own memory.

    Raises:
        DamagedFramesError: a cell is neither a frame, a chunk nor a frame of the chunk above.
        MissingPackageError: PyAV is not installed.
    """
    sizes = np.diff(edges)
    frames = np.empty((len(rows), *image.shape), np.uint8)
    heads = np.maximum.accumulate(np.where(sizes > 0, np.arange(len(sizes)), -1))
    owners = heads[rows]
    order = np.argsort(owners, kind="stable")
    firsts = np.flatnonzero(np.diff(owners[order], prepend=-2))

    def decode(places: np.ndarray) -> None:
        head = int(owners[places[0]])
        if head < 0:
            row = int(rows[places[0]])
            raise DamagedFramesError(
                row, f"the frame in row {row} belongs to a chunk in a row before, which is missing"
            )
        wanted, back = np.unique(rows[places] - head, return_inverse=True)
        try:
            decoded = _decoded(data[int(edges[head]) : int(edges[head + 1])], image, wanted)
        except ValueError as error:
            raise DamagedFramesError(head, f"the chunk in row {head} is damaged: {error}") from error
        frames[places] = decoded[back]

    parts = np.split(order, firsts[1:]) if len(order) else []
    run = map if len(parts) < _FEWEST_FOR_THREADS else _decoders(os.getpid()).map
    try:
        done = run(decode, parts)
    except RuntimeError:  # The interpreter ends, and starts no more threads.
        done = map(decode, parts)
    for _ in done:
        pass
    return frames


@lru_cache(1)
def _decoders(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process that decode, for all callers: they do not live on in a forked child.

    What they run waits for none of them, so callers in threads of other pools cannot block each other.
    """
    return ThreadPoolExecutor(os.cpu_count() or 1, "episodelake decoding")


def _decoded(cell: np.ndarray, image: ImageShape, wanted: np.ndarray) -> np.ndarray:
    """Return frames of a chunk, or a raw frame.

    Args:
        wanted: which of its frames, ascending.
    """
    if len(cell) == image.size:
        if wanted[-1]:
            raise ValueError("it is a raw frame, and empty cells follow it")
        return cell.reshape((1, *image.shape))
    chunk = Chunk.parse(cell.data)
    if chunk.frames <= wanted[-1]:
        raise ValueError(f"it has {chunk.frames} frames; expected at least {int(wanted[-1]) + 1}")
    return (lossless if chunk.codec == "lossless" else ffmpeg).decode(chunk, image, wanted)
