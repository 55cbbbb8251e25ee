"""Rows of a column in another order: by Arrow, or by numpy for lists of one size, which is faster."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..spaces.arrow import equal_lists

_FEWEST_ROWS = 256


def take_rows(array: pa.Array, rows: np.ndarray, absent: np.ndarray | None = None) -> pa.Array:
    """Return the given rows of a column; where `absent` is set the result is NULL."""
    if len(rows) >= _FEWEST_ROWS and pa.types.is_list(array.type):
        found = _equal_lists(array, rows, absent)
        if found is not None:
            return found
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
        # The row behind the last one is asked for only where nothing stands.
        inside = np.minimum(rows, len(array) - 1)
        valid = whole[inside] if absent is None else whole[inside] & ~absent
        wanted = inside[valid]
    values = array.values.to_numpy()[offsets[0] : offsets[-1]].reshape(-1, size)
    places = (offsets[wanted] - offsets[0]) // size
    flat = np.take(values, places, axis=0).reshape(-1)
    return equal_lists(pa.array(flat), size, len(rows), valid)
