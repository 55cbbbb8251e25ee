"""Rows of a source to rows of `steps`: T+1 for each episode; the last has the last observation alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

#: Where row T of an episode comes from: it stands in the source, or is made of the last transition's next
#: observation. Otherwise `last_observation` of the import decides.
STANDS, FOLLOWS = "stands", "follows"


class Layout:
    """Where the rows of some episodes go.

    Args:
        kinds: of each episode, where its row T comes from: `STANDS`, `FOLLOWS`, or a `LastObservation`.
        counts: the rows of each in the source.

    Attributes:
        numbers: the number of the episode of each row of the result.
        follows: bool, which episodes have their row T made of the last transition's next observation.
    """

    def __init__(self, kinds: Sequence[str], counts: Sequence[int] | np.ndarray) -> None:
        self.follows = np.array([kind == FOLLOWS for kind in kinds])
        self.missing = np.array([kind == "missing" for kind in kinds])
        appended = np.array([kind not in (STANDS, "drop") for kind in kinds])
        rows = np.asarray(counts) + appended
        #: The last row of each episode in the result.
        self.lasts = np.cumsum(rows) - 1
        total = int(np.sum(counts))
        self.first_rows = np.cumsum(counts) - counts
        self.numbers = pa.array(np.repeat(np.arange(len(rows)), rows))
        self._length = int(rows.sum())
        self._firsts = self.lasts + 1 - rows
        self._appended = self.lasts[appended]
        self._identity = not appended.any()
        # Which row of the source each row of the result has; an appended row repeats the one before it.
        self._order = np.arange(self._length) - np.repeat(np.cumsum(appended) - appended, rows)
        self._order[self._appended] -= 1
        self._followed = self._order.copy()
        self._followed[self.lasts[self.follows]] += total

    def mark_missing(self, observations: pa.Array) -> None:
        """Mark the episodes whose last row stands in the table without an observation."""
        self.missing |= observations.take(pa.array(self.lasts)).is_null().to_numpy(zero_copy_only=False)

    def observed(self, now: pa.Array, after: pa.Array | None) -> pa.Array:
        """Return observations, with those of row T."""
        if self._identity:
            return now
        order = self._followed
        if after is not None:
            now = pa.concat_arrays([now, after.cast(now.type) if after.type != now.type else after])
        return _take(now, order, self.lasts[self.missing])

    def acted(self, values: pa.Array) -> pa.Array:
        """Return values that row T lacks."""
        return _take(values, self._order, self.lasts)

    def passed(self, values: pa.Array, after: pa.Array | None) -> pa.Array:
        """Return values that come over as they are; an appended row has those of `after`, or NULL."""
        if self._identity:
            return values
        if after is None:
            return _take(values, self._order, self._appended)
        order = self._order.copy()
        order[self._appended] += len(values)
        return _take(pa.concat_arrays([values, after.cast(values.type)]), order, np.array([], np.int64))

    def arrived(self, values: pa.Array) -> pa.Array:
        """Return values that came with the observation after the action of their row."""
        order = self._order - 1
        order[self._appended] += 1
        return _take(values, order, self._firsts)

    def flags(self, ended: np.ndarray) -> pa.Array:
        """Return flags that are set on the last transition."""
        values = np.zeros(self._length, bool)
        values[self.lasts - 1] = ended
        unset = np.zeros(self._length, bool)
        unset[self.lasts] = True
        return pa.array(values, mask=unset)


def _take(values: pa.Array, order: np.ndarray, without: np.ndarray) -> pa.Array:
    """Return rows in an order; those of the result at `without` are NULL."""
    unset = np.zeros(len(order), bool)
    unset[without] = True
    if isinstance(values.type, pa.FixedSizeListType) and _is_flat(values):
        # Faster than Arrow's take, by far.
        flat = values.flatten()
        size = values.type.list_size
        taken = flat.to_numpy(zero_copy_only=False).reshape(len(values), size)[order]
        return pa.FixedSizeListArray.from_arrays(
            pa.array(taken.reshape(-1), flat.type), size, mask=pa.array(unset)
        )
    return values.take(pa.array(order, mask=unset))


def _is_flat(values: pa.Array) -> bool:
    inner = values.type.value_type
    flat = pa.types.is_integer(inner) or inner in (pa.float32(), pa.float64())
    return flat and not values.null_count and not values.flatten().null_count
