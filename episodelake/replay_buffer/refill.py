"""From the episodes of a store to the rows of a replay buffer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..readers.columns.step_arrays import ColumnSource, StepArrays, read_arrays
from ..readers.columns.tree import map_leaves
from ..store.names import OBSERVATION
from ..store.schema import LATE_ROW, RESET_ROW, STEP_ROW
from ..writers.session.row_source import ArrivedRows

#: Episodes are read together up to about so many rows.
_ROWS_AT_ONCE = 1 << 16


def stored_rows(source: ColumnSource, transitions: int) -> Iterator[tuple[ArrivedRows, bool]]:
    """Yield the newest transitions of a store, oldest first, as if they had just arrived.

    The newest are those of the episodes committed last. Of the oldest episode there may be only the end.

    Yields:
        Rows, and whether the first of them is the first of its episode.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    index = source.index
    later = np.cumsum(index.last_seen[::-1])[::-1]
    first = int(np.count_nonzero(later[1:] >= transitions)) if len(index) else 0
    skipped = max(int(later[first]) - transitions, 0) if len(index) else 0
    while first < len(index):
        rows = np.cumsum(index.lengths[first:] + 1)
        stop = first + max(int(np.searchsorted(rows, _ROWS_AT_ONCE, side="right")), 1)
        arrays = read_arrays(source.part(slice(first, stop)))
        yield _as_arrived(arrays, first, skipped), not skipped
        first, skipped = stop, 0


def _as_arrived(arrays: StepArrays, first: int, skipped: int) -> ArrivedRows:
    """Return the rows of episodes, the first of which has the number `first`, without `skipped` rows."""
    index = arrays.index
    kinds = np.full(index.rows, STEP_ROW)
    # In a store a row has the action taken at its observation; here it has the action before it.
    before = np.maximum(np.arange(index.rows) - 1, 0)
    values = {
        name: tree if name == OBSERVATION else map_leaves(lambda leaf: leaf[before], tree)
        for name, tree in arrays.columns.items()
    }
    kinds[index.starts[:-1]] = kinds[skipped] = RESET_ROW
    numbers = np.repeat(np.arange(first, first + len(index)), index.lengths + 1)
    if index.missing is not None:
        # The transition to an observation that is missing does not arrive.
        kinds[index.padding[index.missing]] = LATE_ROW
    ended = [(number, False) for number in range(first, first + len(index))]
    return ArrivedRows(numbers[skipped:], kinds[skipped:], values, skipped, {}, ended)
