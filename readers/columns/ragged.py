"""Rows of different lengths: their values one after the other, and where each row begins among them.

They are leaves of a tree, beside plain arrays. A column that is cached and the batches taken from it have
the same form, so taking rows is gathering ranges of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.common.arguments import whole_number
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.spaces.arrow import flat_array
from ...store.spaces.lists import Lists
from .tree import Tree, take_rows


def range_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the positions that ranges cover, range after range.

    Args:
        starts: int64, shape (n,): the first position of each.
        lengths: int64, shape (n,): how many positions each has, from 0 on.

    Returns:
        int64, shape (sum of the lengths,).
    """
    stops = np.cumsum(lengths)
    # What each range adds to the number of a position in the result.
    shifts = starts - stops + lengths
    positions = np.repeat(shifts, lengths)
    positions += np.arange(len(positions))
    return positions


def gather_ranges(values: Tree, starts: np.ndarray, lengths: np.ndarray) -> Tree:
    """Copy ranges of values, one after the other.

    Args:
        values: an array of shape (m, *item), or a tree of those.
        starts: int64, shape (n,): the first value of each range.
        lengths: int64, shape (n,): how many values each has, from 0 on; all are within [0, m).

    Returns:
        Fresh arrays of shape (sum of the lengths, *item).
    """
    return take_rows(values, range_positions(starts, lengths))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return where rows of some lengths begin, and the end of the last one: int64, shape (n + 1,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, as loaders give Sequence, Text and Graph spaces, and arrays of any length.

    Row i has the values `values[offsets[i]:offsets[i + 1]]`. Rows may have several axes, such as those of
    windows; they are then counted in C order. `len`, indices and slices are those of an array of the shape
    `leading`.

    Args:
        values: the values of all rows, one after the other, an array of m values. For sequences of sequences
            `Ragged` again, whose rows are the values.
        offsets: int64, shape (n + 1,): from 0 to m, ascending.
        leading: the axes of the n rows; None for one axis.

    Raises:
        InvalidArgumentError: the offsets do not fit the values, or the axes do not fit the rows.
    """

    values: Any
    offsets: np.ndarray = field(repr=False)
    leading: tuple[int, ...] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets)
        if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"Ragged(): offsets are {offsets.dtype} of shape {offsets.shape}; expected integers of shape "
                "(rows + 1,)."
            )
        if offsets[0] != 0 or offsets[-1] != len(self.values) or (offsets[1:] < offsets[:-1]).any():
            raise InvalidArgumentError(
                f"Ragged(): offsets from {offsets[0]} to {offsets[-1]} do not cut {len(self.values)} values; "
                "expected ascending ones from 0 to the number of values."
            )
        rows = len(offsets) - 1
        leading = (rows,) if self.leading is None else tuple(self.leading)
        if math.prod(leading) != rows:
            raise InvalidArgumentError(f"Ragged(): {rows} rows have not the shape {leading}.")
        object.__setattr__(self, "offsets", offsets.astype(np.int64, copy=False))
        object.__setattr__(self, "leading", leading)

    @staticmethod
    def of(lists: Any) -> Any:
        """Return decoded `Lists` as rows; any other leaf as it is."""
        if not isinstance(lists, Lists):
            return lists
        return Ragged(Ragged.of(lists.values), offsets_of(lists.lengths))

    def __repr__(self) -> str:
        """Show the shape, the dtype and the range of lengths."""
        lengths = self.lengths
        between = f", lengths {lengths.min()} to {lengths.max()}" if lengths.size else ""
        return f"Ragged(shape={self.shape}, dtype={self.dtype}{between})"

    def __len__(self) -> int:
        """Return the number of rows along the first axis."""
        return self.leading[0]

    @property
    def lengths(self) -> np.ndarray:
        """How many values each row has, int64, of the shape `leading`."""
        return np.diff(self.offsets).reshape(self.leading)

    @property
    def dtype(self) -> np.dtype:
        """That of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """That of padded rows: `leading`, None for the length, and the shape of a value."""
        return (*self.leading, None, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        """The axes of padded rows."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row takes."""
        return self.nbytes // max(len(self.offsets) - 1, 1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Raise an error: it is no array."""
        raise InvalidArgumentError(
            f"{self!r} is no array, since its rows differ in length. Take .values and .offsets, or "
            ".to_padded()."
        )

    # Rows

    def __getitem__(self, key: Any) -> Any:
        """Return rows: of a single one its values, of several a `Ragged`; slices are views.

        Args:
            key: as an array of the shape `leading` is indexed.

        Raises:
            IndexError: there is no such row.
        """
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return self._between(start, max(start, stop), (max(stop - start, 0), *self.leading[1:]))
        if isinstance(key, int | np.integer):
            number = int(key) if key >= 0 else int(key) + len(self)
            if not 0 <= number < len(self):
                raise IndexError(f"There is no row {key}; there are {len(self)}.")
            if len(self.leading) == 1:
                return self.values[int(self.offsets[number]) : int(self.offsets[number + 1])]
            return self._between(number, number + 1, self.leading[1:])
        rows = np.arange(len(self.offsets) - 1).reshape(self.leading)[key]
        return self._rows(rows) if rows.ndim else Ragged(self.values, self.offsets)[int(rows)]

    def __iter__(self) -> Iterator[Any]:
        """Yield each row along the first axis."""
        return (self[number] for number in range(len(self)))

    def _between(self, start: int, stop: int, leading: tuple[int, ...]) -> Ragged:
        each = math.prod(self.leading[1:])
        offsets = self.offsets[start * each : stop * each + 1]
        values = self.values[int(offsets[0]) : int(offsets[-1])]
        return _made(values, offsets - offsets[0], leading)

    def _rows(self, rows: np.ndarray) -> Ragged:
        flat = rows.reshape(-1)
        starts = self.offsets[flat]
        lengths = self.offsets[flat + 1] - starts
        return _made(gather_ranges(self.values, starts, lengths), offsets_of(lengths), rows.shape)

    def take(self, rows: np.ndarray, axis: int = 0) -> Ragged:
        """Copy rows.

        Args:
            rows: int64, of any shape (b, ...), within those of a single axis.
            axis: 0, as numpy's `take` has it.

        Returns:
            Fresh rows with the axes of `rows`.
        """
        return self._rows(np.asarray(rows))

    # Other forms

    def to_padded(
        self, value: Any = 0, length: int | Sequence[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of one length.

        Args:
            value: fills shorter rows.
            length: of the rows; None for that of the longest. For sequences of sequences also one for each
                level.

        Returns:
            A fresh array, whose axes are those of the rows, the length and those of a value; and a bool array
            without the axes of a value: where it has values of a row.

        Raises:
            InvalidArgumentError: a row is longer.
        """
        if length is None or isinstance(length, int | np.integer):
            own, inner = length, length
        else:
            own, inner = length[0], tuple(length[1:])
        lengths = np.diff(self.offsets)
        longest = int(lengths.max(initial=0))
        size = longest if own is None else whole_number("length", own, 0)
        if longest > size:
            raise InvalidArgumentError(
                f"A row has {longest} values, which do not fit into length={size}. Choose a larger length, "
                "or cut rows with a transform."
            )
        there = np.arange(size) < lengths[:, None]
        if isinstance(self.values, Ragged):
            values, mask = self.values.to_padded(value, inner)
            padded_mask = np.zeros((*there.shape, *mask.shape[1:]), bool)
            padded_mask[there] = mask
        else:
            values, padded_mask = self.values, there
        padded = np.full((*there.shape, *values.shape[1:]), value, values.dtype)
        padded[there] = values
        return padded.reshape(*self.leading, *padded.shape[1:]), padded_mask.reshape(
            *self.leading, *padded_mask.shape[1:]
        )

    def to_arrow(self) -> pa.Array:
        """Return an Arrow array of lists, which shares the memory; booleans are copied.

        It has a row for each one along the first axis. The axes of a value, and further ones of the rows, are
        lists of a fixed size.
        """
        values = self.values.to_arrow() if isinstance(self.values, Ragged) else _arrow_items(self.values)
        offsets = pa.py_buffer(np.ascontiguousarray(self.offsets))
        kind = pa.large_list(values.type)
        lists = pa.Array.from_buffers(kind, len(self.offsets) - 1, [None, offsets], children=[values])
        return _fixed_lists(lists, self.leading)

    def texts(self) -> list[Any]:
        """Return rows of bytes in UTF-8 as texts: a list, nested as the axes of the rows are.

        Raises:
            InvalidArgumentError: the values are no bytes in UTF-8.
        """
        if isinstance(self.values, Ragged):
            texts = self.values.texts()
            edges = self.offsets.tolist()
            rows = [texts[start:stop] for start, stop in pairwise(edges)]
        elif self.dtype == np.uint8 and self.values.ndim == 1:
            buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(np.ascontiguousarray(self.values))]
            try:
                rows = pa.Array.from_buffers(pa.large_string(), len(self.offsets) - 1, buffers).to_pylist()
            except UnicodeDecodeError as error:
                raise InvalidArgumentError(f"texts(): the values are not UTF-8: {error}.") from error
        else:
            raise InvalidArgumentError(f"texts(): {self!r} has no texts; expected bytes (uint8).")
        return _nested(rows, self.leading)

    # Parts of batches

    def with_values(self, values: Any) -> Ragged:
        """Return rows of the same lengths with other values."""
        return Ragged(values, self.offsets, self.leading)

    def blanked(self, absent: np.ndarray) -> Ragged:
        """Return a copy in which some rows are empty; `absent` is bool, of the shape `leading`."""
        lengths = np.where(absent.reshape(-1), 0, np.diff(self.offsets))
        values = gather_ranges(self.values, self.offsets[:-1], lengths)
        return _made(values, offsets_of(lengths), self.leading)

    @staticmethod
    def joined(parts: Sequence[Ragged]) -> Ragged:
        """Join rows along the first axis."""
        nested = isinstance(parts[0].values, Ragged)
        join = Ragged.joined if nested else np.concatenate
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        leading = sum(part.leading[0] for part in parts), *parts[0].leading[1:]
        return _made(join([part.values for part in parts]), offsets_of(lengths), leading)

    def lengthened(self, count: int) -> Ragged:
        """Return rows of shape (b, t) with so many along the second axis, those after the t ones empty."""
        lengths = np.zeros((self.leading[0], count), np.int64)
        lengths[:, : self.leading[1]] = self.lengths
        return _made(self.values, offsets_of(lengths.reshape(-1)), lengths.shape)

    def parts(self) -> tuple[Any, ...]:
        """Return the arrays that it consists of; `of_parts` makes it again."""
        return self.values, self.offsets, np.array(self.leading, np.int64)

    @staticmethod
    def of_parts(values: Any, offsets: np.ndarray, leading: np.ndarray) -> Ragged:
        """Return the rows that `parts` took apart."""
        return _made(values, offsets, tuple(leading.tolist()))


def _made(values: Any, offsets: np.ndarray, leading: tuple[int, ...]) -> Ragged:
    """Return rows that are known to fit, without checking them."""
    ragged = object.__new__(Ragged)
    for name, value in (("values", values), ("offsets", offsets), ("leading", leading)):
        object.__setattr__(ragged, name, value)
    return ragged


def _arrow_items(values: np.ndarray) -> pa.Array:
    flat = np.ascontiguousarray(values).reshape(-1)
    return _fixed_lists(flat_array(flat, pa.from_numpy_dtype(values.dtype)), values.shape)


def _fixed_lists(array: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    for axis in range(len(shape) - 1, 0, -1):
        count = math.prod(shape[:axis])
        array = pa.Array.from_buffers(pa.list_(array.type, shape[axis]), count, [None], children=[array])
    return array


def _nested(rows: list[Any], leading: tuple[int, ...]) -> list[Any]:
    for size in leading[:0:-1]:
        rows = [rows[start : start + size] for start in range(0, len(rows), size)]
    return rows


@dataclass
class RaggedToFill:
    """Rows of different lengths that are being read, in any order.

    Attributes:
        like: rows of the same kind.
        rows: how many there are.
    """

    like: Ragged
    rows: int
    _pieces: list[tuple[int, Ragged]] = field(default_factory=list)

    def put(
        self, values: Ragged, rows: Sequence[tuple[int, int, int]], valid: np.ndarray | None = None
    ) -> None:
        """Add stretches of rows. Any thread may do so.

        Args:
            values: rows of a block.
            rows: for each stretch its first row in the block, how many there are, and where they go.
            valid: bool: which rows of the block `values` has, in order; the others are empty. None for all.

        Raises:
            CorruptStoreError: there are other rows than that.
        """
        if valid is not None:
            if len(values) != np.count_nonzero(valid):
                raise CorruptStoreError(
                    f"{np.count_nonzero(valid)} rows have a transition or an observation, but {len(values)} "
                    "have a value of it. The store's steps are damaged: verify() names the file."
                )
            lengths = np.zeros(len(valid), np.int64)
            lengths[valid] = values.lengths
            values = Ragged(values.values, offsets_of(lengths))
        self._pieces += [(place, values[start : start + count]) for start, count, place in rows]

    def filled(self) -> Ragged:
        """Return the rows; all must have been put."""
        pieces = [piece for _, piece in sorted(self._pieces, key=lambda pair: pair[0])]
        return Ragged.joined([self.like[:0], *pieces])
