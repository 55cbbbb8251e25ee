"""Frames of a loader's rows as they are encoded: a leaf of a tree, beside plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.errors import CorruptStoreError
from ...store.frames import ImageShape, decode_cells
from .tree import Tree, map_leaves

#: The cell of a row without a frame: no frame, and no chunk, has this size.
_BLANK = b"\0"


@dataclass(frozen=True)
class EncodedRows:
    """Frames that are decoded when rows are taken; like an array of shape (n, *image.shape), uint8.

    Attributes:
        name: the column, for errors.
        data: uint8, the bytes of the cells, one after the other.
        edges: int64, shape (n + 1,): where each cell begins, and the end of the last one.
        image: the shape of a frame.
    """

    name: str
    data: np.ndarray
    edges: np.ndarray
    image: ImageShape

    dtype = np.dtype(np.uint8)
    itemsize = 1

    def __len__(self) -> int:
        """Return the number of rows n."""
        return len(self.edges) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the decoded array."""
        return (len(self), *self.image.shape)

    @property
    def ndim(self) -> int:
        """The axes of the decoded array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes held, encoded."""
        return self.data.nbytes + self.edges.nbytes

    def parts(self) -> tuple[np.ndarray, ...]:
        """Return plain arrays; `of_parts` makes it again."""
        shape = np.array(self.image.shape, np.int64)
        return self.data, self.edges, np.frombuffer(self.name.encode(), np.uint8), shape

    @staticmethod
    def of_parts(data: np.ndarray, edges: np.ndarray, name: np.ndarray, shape: np.ndarray) -> EncodedRows:
        """Return the rows that `parts` took apart."""
        return EncodedRows(bytes(name).decode(), data, edges, ImageShape(tuple(shape.tolist())))

    def take(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Decode rows, each of their groups of pictures once.

        Args:
            rows: int64, of any shape (b, ...).
            axis: 0, as numpy's `take` has it.

        Returns:
            A fresh array of shape (b, ..., *image.shape); zeros where a row has no frame.

        Raises:
            CorruptStoreError: the frames are damaged.
        """
        flat = np.asarray(rows, np.int64).reshape(-1)
        blank = np.flatnonzero(np.diff(self.edges)[flat] == len(_BLANK))
        frames = np.zeros((len(flat), *self.image.shape), np.uint8)
        there = np.delete(np.arange(len(flat)), blank) if len(blank) else slice(None)
        try:
            decoded = decode_cells(self.data, self.edges, self.image, flat[there])
        except ValueError as error:
            raise CorruptStoreError(f"column '{self.name}': {error}. verify() names the file.") from error
        if not len(blank):
            return decoded.reshape(*np.shape(rows), *self.image.shape)
        frames[there] = decoded
        return frames.reshape(*np.shape(rows), *self.image.shape)

    def __getitem__(self, key: Any) -> np.ndarray:
        """Decode rows as an array is indexed along its first axis."""
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        rows = np.arange(len(self))[first]
        return self.take(rows)[(*[slice(None)] * rows.ndim, *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Decode all rows."""
        frames = self.take(np.arange(len(self)))
        return frames if dtype is None else frames.astype(dtype)


@dataclass
class RowsToFill:
    """The cells of rows that are being read, in any order.

    Attributes:
        name, image: as for `EncodedRows`.
        rows: how many there are.
    """

    name: str
    image: ImageShape
    rows: int
    _pieces: list[tuple[int, pa.ChunkedArray]] = field(default_factory=list)

    def put(self, cells: pa.ChunkedArray, rows: Sequence[tuple[int, int, int]]) -> None:
        """Add stretches of cells: the first, how many, and where they go. Any thread may do so."""
        self._pieces += [(place, cells.slice(start, count)) for start, count, place in rows]

    def filled(self) -> EncodedRows:
        """Return the rows; all must have been put."""
        sizes = np.zeros(self.rows + 1, np.int64)
        parts: list[np.ndarray] = []
        for place, cells in sorted(self._pieces, key=lambda piece: piece[0]):
            given = cells.fill_null(_BLANK) if cells.null_count else cells
            for chunk in given.chunks:
                _, offsets, data = chunk.buffers()
                own = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
                sizes[place + 1 : place + 1 + len(chunk)] = np.diff(own)
                if own[-1] > own[0]:
                    parts.append(np.frombuffer(data, np.uint8)[int(own[0]) : int(own[-1])])
                place += len(chunk)
        data = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
        return EncodedRows(self.name, data, np.cumsum(sizes), self.image)


def filled(tree: Tree) -> Tree:
    """Return a tree whose columns were read."""
    return map_leaves(lambda leaf: leaf if isinstance(leaf, np.ndarray) else leaf.filled(), tree)
