"""Decoded rows of different lengths: how many values each has, and all values one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .arrow import values_of


@dataclass(frozen=True)
class Lists:
    """Rows of different lengths.

    Attributes:
        lengths: int64, shape (n,).
        values: the values of all rows, one after the other: an array, or `Lists` again.
    """

    lengths: np.ndarray
    values: Any

    def __len__(self) -> int:
        """Return the number of rows n."""
        return len(self.lengths)


def list_lengths(array: pa.Array) -> np.ndarray:
    """Return the lengths of the lists of an array, 0 where it is NULL: int64."""
    lengths = np.diff(values_of(array.offsets)).astype(np.int64)
    if array.null_count:
        lengths[~values_of(array.is_valid())] = 0
    return lengths


def text_bytes(array: pa.Array) -> Lists:
    """Return the UTF-8 bytes of the texts of an array without NULL; they share its memory."""
    _, offsets, data = array.buffers()
    if not len(array):
        return Lists(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    edges = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Lists(np.diff(edges).astype(np.int64), values[edges[0] : edges[-1]])


def cut_values(values: Any, lengths: np.ndarray) -> Any:
    """Cut each array of nested dicts and tuples into rows of the same lengths."""
    if isinstance(values, dict):
        return {key: cut_values(part, lengths) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(cut_values(part, lengths) for part in values)
    return Lists(lengths, values)
