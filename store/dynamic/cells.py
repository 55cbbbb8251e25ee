"""Typed columns from numpy arrays: some rows have a value, the others are NULL.

`logical_types.build` does the same for single values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..compatibility import numpy_type
from ..spaces.arrow import equal_lists, flat_array
from .logical_types import physical_type


def cells_column(kind: str, rows: np.ndarray, values: np.ndarray, length: int) -> pa.Array:
    """Return the column of `length` rows in which row `rows[i]` has `values[i]`; of two values the later
    counts.

    Args:
        kind: that of every value; see `kinds.batch_kind`.
        rows: int64, any order.
        values: numbers of shape (len(rows), ...).
        length: rows of the column.
    """
    physical = physical_type(kind)
    where = np.full(length, -1, np.int64)
    where[rows] = np.arange(len(rows))
    valid = where >= 0
    mask = None if valid.all() else valid
    if not pa.types.is_list(physical):
        # Where there is no value any number will do, since the row is NULL.
        flat = values[where].astype(_storage(physical), copy=False)
        return flat_array(flat, physical, mask)
    flat = values[where[valid]].astype(_storage(physical.value_type), copy=False)
    size = int(np.prod(values.shape[1:], dtype=np.int64))
    inner = flat_array(flat.reshape(-1), physical.value_type)
    return equal_lists(inner, size, length, mask)


def _storage(physical: pa.DataType) -> np.dtype:
    return numpy_type(physical)
