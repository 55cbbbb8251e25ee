"""Rows of a table to the columns of `steps`: T+1 rows for each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ....store.errors import DatasetError
from ....store.losses import Losses
from ....store.reserved import EPISODE, FLAGS, REWARD
from ..columns import flags_of
from ..dataset import ForeignTable, LastObservation
from ..last_observation import LOST, NOTHING_LEFT
from .mapping import Leaf, ResolvedMapping, Tree, leaves
from .spaces import values_of
from .spans import Span

#: Where row T of an episode comes from: it stands in the table, or is made.
_STANDS, _FOLLOWS = "stands", "follows"


@dataclass(frozen=True)
class Endings:
    """Where the last observation of each episode comes from.

    Attributes:
        last_observation: as the caller says.
        has_next: whether the table has next observations.
    """

    last_observation: LastObservation
    has_next: bool

    def of(self, span: Span) -> str:
        """Return "stands", "follows", "drop", "repeat" or "missing"."""
        if not span.acted:
            return _STANDS
        return _FOLLOWS if self.has_next and span.followed else self.last_observation

    def length(self, span: Span) -> int:
        """Return the transitions of an episode."""
        return span.rows - (self.of(span) in (_STANDS, "drop"))

    def flags(self, span: Span, mapping: ResolvedMapping) -> tuple[bool, bool]:
        """Return whether an episode was terminated and truncated."""
        if self.of(span) == "drop":
            return False, False
        terminated, truncated = span.terminated, span.truncated
        if mapping.terminated is None and mapping.truncated is not None:
            terminated = span.done and not truncated
        if mapping.truncated is None and mapping.terminated is not None:
            truncated = span.done and not terminated
        return terminated, truncated

    def count(self, spans: Sequence[Span], losses: Losses) -> None:
        """Count what is lost at the ends of episodes."""
        for span in spans:
            if span.fault:
                continue
            ending = self.of(span)
            if self.length(span) < 1:
                losses.add(NOTHING_LEFT)
            elif ending in LOST:
                losses.add(LOST[ending])


def convert(
    rows: pa.Table,
    spans: Sequence[Span],
    mapping: ResolvedMapping,
    following: Mapping[str, str],
    endings: Endings,
) -> ForeignTable:
    """Return neighbouring episodes as `write_episodes` takes them.

    Args:
        rows: their rows.
        following: columns of ours, and the columns with their values one row on.

    Raises:
        DatasetError: a value cannot be read.
    """
    layout = _Layout(spans, endings)
    names = pa.array([span.name for span in spans], pa.string())
    steps: dict[str, pa.Array] = {EPISODE: names.take(layout.numbers)}
    for leaf in leaves(mapping.observation):
        now = _column(leaf, rows)
        after = _next_of(leaf, mapping.following, rows) if layout.follows.any() else None
        steps[leaf.name] = layout.observed(now, after)
    layout.mark_missing(steps[next(leaves(mapping.observation)).name])
    for leaf in leaves(mapping.action):
        steps[leaf.name] = layout.acted(_column(leaf, rows))
    if mapping.reward is None:
        steps[REWARD] = layout.acted(pa.array(np.full(rows.num_rows, np.nan)))
    else:
        (leaf,) = leaves(mapping.reward)
        steps[REWARD] = layout.acted(_rewards(_column(leaf, rows)))
    flags = [endings.flags(span, mapping) for span in spans]
    for name, values in zip(FLAGS, zip(*flags, strict=True), strict=True):
        steps[name] = layout.flags(np.array(values, bool))
    _check_flags(rows, spans, mapping, endings)
    for name, column in mapping.passed.items():
        values = _column(Leaf(name, (column,)), rows)
        after = _column(Leaf(name, (following[name],)), rows) if name in following else None
        steps[name] = layout.passed(values, after)
    return ForeignTable(pa.table(steps), _episodes(rows, spans, mapping, layout))


class _Layout:
    """Where the rows of some episodes go.

    Attributes:
        numbers: the number of the episode of each row of the result.
        follows: bool, which episodes have their row T made of the last transition's next observation.
    """

    def __init__(self, spans: Sequence[Span], endings: Endings) -> None:
        kinds = [endings.of(span) for span in spans]
        self.follows = np.array([kind == _FOLLOWS for kind in kinds])
        self.missing = np.array([kind == "missing" for kind in kinds])
        appended = np.array([kind not in (_STANDS, "drop") for kind in kinds])
        counts = np.array([span.rows for span in spans])
        rows = counts + appended
        stops = np.cumsum(rows)
        #: The last row of each episode in the result.
        self.lasts = stops - 1
        total = int(counts.sum())
        self.first_rows = np.cumsum(counts) - counts
        self.numbers = pa.array(np.repeat(np.arange(len(spans)), rows))
        self._length = int(rows.sum())
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


def _column(leaf: Leaf, rows: pa.Table) -> pa.Array:
    """Return the values of a leaf: those of its column, or of its columns as vectors."""
    if not leaf.vector:
        return values_of(leaf, rows)
    parts = [values_of(Leaf(leaf.name, (column,)), rows) for column in leaf.columns]
    valid = parts[0].is_valid().to_numpy(zero_copy_only=False)
    for column, part in zip(leaf.columns, parts, strict=True):
        if not np.array_equal(part.is_valid().to_numpy(zero_copy_only=False), valid):
            raise DatasetError(
                f"The column `{column}` of `{leaf.name}` is NULL in other rows than `{leaf.columns[0]}`."
            )
    stacked = np.stack([part.fill_null(0).to_numpy(zero_copy_only=False) for part in parts], axis=1)
    values = pa.array(stacked.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(
        values, len(parts), mask=None if valid.all() else pa.array(~valid)
    )


def _next_of(leaf: Leaf, following: Tree | None, rows: pa.Table) -> pa.Array:
    assert following is not None
    found = next(each for each in leaves(following) if each.name == f"next_{leaf.name}")
    return _column(found, rows)


def _rewards(values: pa.Array) -> pa.Array:
    if pa.types.is_nested(values.type) or values.type == pa.float64():
        return values
    try:
        return values.cast(pa.float64())
    except pa.ArrowException as error:
        raise DatasetError(f"The reward has type {values.type}; expected numbers.") from error


def _check_flags(rows: pa.Table, spans: Sequence[Span], mapping: ResolvedMapping, endings: Endings) -> None:
    """Refuse flags before the last transition."""
    last = np.array([span.start - spans[0].start + span.rows - 1 - (not span.acted) for span in spans])
    for name in (mapping.terminated, mapping.truncated, mapping.done):
        if name is None:
            continue
        flags = flags_of(values_of(Leaf(name, (name,)), rows), name).fill_null(False)
        values = flags.to_numpy(zero_copy_only=False).copy()
        values[last] = False
        if values.any():
            row = int(values.argmax())
            starts = [span.start - spans[0].start for span in spans]
            index = int(np.searchsorted(starts, row, side="right")) - 1
            raise DatasetError(
                f"Episode {spans[index].name}: `{name}` is set in its row {row - starts[index]}, before the "
                "last transition. Give each episode an id of its own."
            )


def _episodes(rows: pa.Table, spans: Sequence[Span], mapping: ResolvedMapping, layout: _Layout) -> pa.Table:
    first = pa.array(layout.first_rows)
    found: dict[str, Any] = {EPISODE: pa.array([span.name for span in spans], pa.string())}
    for key, column in mapping.metadata.items():
        found[f"metadata.{key}"] = values_of(Leaf(key, (column,)), rows).take(first)
    if mapping.agent is not None:
        found["metadata.agent"] = pa.array([str(span.key[-1]) for span in spans])
    if mapping.seed is not None:
        found["seed"] = values_of(Leaf("seed", (mapping.seed,)), rows).take(first)
    if layout.missing.any():
        found["last_observation"] = pa.array(
            ["missing" if each else None for each in layout.missing], pa.string()
        )
    return pa.table(found)
