"""Rows of a table to the columns of `steps`: T+1 rows for each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import DatasetError
from ...plugin import ForeignTable, Losses
from ...plugin.columns import EPISODE, REWARD, TERMINATED, TRUNCATED, with_kind
from ...writers.importing.columns import flags_of
from ...writers.importing.episode_rows import (
    DIFFERING,
    FOLLOWS,
    NO_TRANSITION,
    NOTHING_LEFT,
    STANDS,
    RowLayout,
    count_endings,
    differing,
)
from ...writers.importing.formats import LastObservation
from .mapping import Leaf, ResolvedMapping, Tree, leaves
from .spaces import is_number, values_of
from .spans import Span


class DifferingRows:
    """Compares the rows of some neighbouring episodes with each other.

    Args:
        spans: the episodes.
        losses: where differences are counted.
    """

    def __init__(self, spans: Sequence[Span], losses: Losses) -> None:
        counts = np.array([span.rows for span in spans])
        self._firsts = np.cumsum(counts) - counts
        self._owners = np.repeat(self._firsts, counts)
        self._goes_on = np.ones(int(counts.sum()), bool)
        self._goes_on[np.cumsum(counts) - 1] = False
        self._next = np.zeros(max(0, len(self._goes_on) - 1), bool)
        self._losses = losses

    def compare_next(self, values: pa.Array, following: pa.Array) -> None:
        """Compare next values with those of the next row; an observation has several such columns."""
        self._next |= differing(following.slice(0, len(self._next)), values.slice(1)) & self._goes_on[:-1]

    def count_next(self) -> None:
        """Count the rows whose next observation is not that of the next row, which is the one kept."""
        self._losses.add(DIFFERING, int(self._next.sum()))

    def count_changes(self, name: str, values: pa.Array) -> None:
        """Count the rows with another value than the first of their episode, which is the one kept."""
        differ = differing(values, values.take(pa.array(self._owners)))
        self._losses.add(f"values of {name} that differ from the first of their episode", int(differ.sum()))


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
        """Return "present", "follows", "drop", "repeat" or "missing"."""
        if not span.acted:
            return STANDS
        return FOLLOWS if self.has_next and span.followed else self.last_observation

    def length(self, span: Span) -> int:
        """Return the transitions of an episode."""
        return span.rows - (self.of(span) in (STANDS, "drop"))

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

    def count_empty(self, spans: Sequence[Span], losses: Losses) -> None:
        """Count the episodes without any transition left."""
        for span in spans:
            if not span.fault and self.length(span) < 1:
                losses.add(NO_TRANSITION if self.of(span) == STANDS else NOTHING_LEFT)


def convert(
    rows: pa.Table,
    spans: Sequence[Span],
    mapping: ResolvedMapping,
    following: Mapping[str, str],
    endings: Endings,
    losses: Losses,
) -> ForeignTable:
    """Return neighbouring episodes as `write_episodes` takes them.

    Args:
        rows: their rows.
        following: columns of ours, and the columns with their values one row on.
        losses: where values are counted that other rows contradict.

    Raises:
        DatasetError: a value cannot be read.
    """
    acting = rows
    if mapping.action_leads_to:
        _count_led(rows, spans, mapping, losses)
        acting = _advanced(rows, mapping)
    kinds = [endings.of(span) for span in spans]
    layout = RowLayout(kinds, [span.rows for span in spans])
    differing = DifferingRows(spans, losses)
    names = pa.array([span.name for span in spans], pa.string())
    steps: dict[str, pa.Array] = {EPISODE: names.take(layout.numbers)}
    for leaf in leaves(mapping.observation):
        now = _column(leaf, rows, spans)
        after = _next_of(leaf, mapping.following, rows, spans) if layout.follows.any() else None
        if after is not None:
            differing.compare_next(now, after)
        steps[leaf.name] = layout.observed(now, after)
    differing.count_next()
    _check_last(steps[next(leaves(mapping.observation)).name], spans, endings, layout)
    layout.mark_missing(steps[next(leaves(mapping.observation)).name])
    actions = {leaf.name: _column(leaf, acting, spans) for leaf in leaves(mapping.action)}
    steps |= {name: layout.acted(values) for name, values in actions.items()}
    if not mapping.action_leads_to:
        _count_unacted(next(iter(actions.values())), "actions of a last row without a reward", spans, losses)
    if mapping.reward is None:
        rewards: pa.Array = pa.array(np.full(rows.num_rows, np.nan))
    else:
        (leaf,) = leaves(mapping.reward)
        rewards = _rewards(_column(leaf, acting, spans), leaf, spans)
        if not mapping.action_leads_to:
            _count_unacted(rewards, "rewards of a last row without an action", spans, losses)
    steps[REWARD] = layout.acted(rewards)
    count_endings(kinds, rewards.take(pa.array(_lasts(spans))).to_pylist(), losses)
    flags = [endings.flags(span, mapping) for span in spans]
    for name, values in zip((TERMINATED, TRUNCATED), zip(*flags, strict=True), strict=True):
        steps[name] = layout.flags(np.array(values, bool))
    _check_flags(acting, spans, mapping, endings)
    for name, column in mapping.passed.items():
        values = values_of(Leaf(name, (column,)), rows)
        after = values_of(Leaf(name, (following[name],)), rows) if name in following else None
        steps[name] = layout.passed(values, after)
    episodes = _episodes(rows, spans, mapping, layout, differing)
    return ForeignTable(_with_kinds(steps, mapping.passed, rows), episodes)


def _with_kinds(columns: Mapping[str, Any], origins: Mapping[str, str], rows: pa.Table) -> pa.Table:
    """Return columns as a table, with the kinds that the columns of `rows` they come from are marked with."""
    table = pa.table(dict(columns))
    fields = [
        with_kind(field, rows.schema.field(origins[field.name]) if field.name in origins else None)
        for field in table.schema
    ]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def _column(leaf: Leaf, rows: pa.Table, spans: Sequence[Span]) -> pa.Array:
    """Return the values of a leaf: those of its column, or of its columns as vectors.

    Raises:
        DatasetError: columns are no numbers, have NULL in different rows, or have an integer that the
            common type of the columns cannot hold.
    """
    if not leaf.vector:
        return values_of(leaf, rows)
    parts = [values_of(Leaf(leaf.name, (column,)), rows) for column in leaf.columns]
    valid = parts[0].is_valid().to_numpy(zero_copy_only=False)
    for column, part in zip(leaf.columns, parts, strict=True):
        if not np.array_equal(part.is_valid().to_numpy(zero_copy_only=False), valid):
            raise DatasetError(
                f"The column `{column}` of `{leaf.name}` is NULL in other rows than `{leaf.columns[0]}`."
            )
        if not is_number(part.type):
            raise DatasetError(
                f"The column `{column}` of `{leaf.name}` has type {part.type}; expected numbers."
            )
    filled = [
        part.fill_null(False if pa.types.is_boolean(part.type) else 0).to_numpy(zero_copy_only=False)
        for part in parts
    ]
    stacked = np.stack(filled, axis=1)
    for index, (column, part) in enumerate(zip(leaf.columns, filled, strict=True)):
        _check_exact(part, stacked[:, index], f"the column `{column}` of `{leaf.name}`", spans)
    values = pa.array(stacked.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(
        values, len(parts), mask=None if valid.all() else pa.array(~valid)
    )


def _check_exact(integers: np.ndarray, floats: np.ndarray, name: str, spans: Sequence[Span]) -> None:
    """Refuse an integer that a float would round."""
    source, target = integers.dtype, floats.dtype
    if source.kind not in "iu" or target.kind != "f" or source.itemsize < target.itemsize:
        return
    limit = 2 ** (np.finfo(target).nmant + 1)
    for row in np.flatnonzero((integers > limit) | (integers < -limit)).tolist():
        if int(floats[row]) != int(integers[row]):
            episode, place = _place(spans, row)
            raise DatasetError(
                f"Episode {episode}, row {place}: {name} has the integer {integers[row]}, which "
                f"{target} would round to {int(floats[row])}. Give integers a column of their own, "
                "as a part of a Dict space or an extra; or cast the column to floats, if they mean the "
                "rounded number."
            )


def _place(spans: Sequence[Span], row: int) -> tuple[str, int]:
    """Return the name of the episode of a row, and the row in it."""
    starts = [span.start - spans[0].start for span in spans]
    index = int(np.searchsorted(starts, row, side="right")) - 1
    return spans[index].name, row - starts[index]


def _next_of(leaf: Leaf, following: Tree | None, rows: pa.Table, spans: Sequence[Span]) -> pa.Array:
    assert following is not None
    after = next(each for each in leaves(following) if each.name == f"next_{leaf.name}")
    return _column(after, rows, spans)


def _seeds(values: pa.Array, column: str) -> pa.Array:
    """Return seeds as integers, also those that a missing one has made floats."""
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.int64())
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise DatasetError(f"The seeds in `{column}` have type {values.type}; expected whole numbers.")
    try:
        return values.cast(pa.int64())
    except pa.ArrowException as error:
        raise DatasetError(f"The seeds in `{column}` are no whole numbers of 64 bits: {error}.") from error


def _check_last(observations: pa.Array, spans: Sequence[Span], endings: Endings, layout: RowLayout) -> None:
    """Refuse a row with an action and without an observation that would be the last one."""
    missing = observations.take(pa.array(layout.lasts)).is_null().to_numpy(zero_copy_only=False)
    for index in np.flatnonzero(missing).tolist():
        if endings.of(spans[index]) == "drop":
            raise DatasetError(
                f"Episode {spans[index].name}: its last row has an action, and NULL as its observation."
            )


def _advanced(rows: pa.Table, mapping: ResolvedMapping) -> pa.Table:
    """Return rows with the actions, rewards and flags of the row after each.

    Those of the first row of an episode come to the last of the one before, where nothing reads them.
    """
    for name in mapping.led_columns:
        column = rows.column(name).combine_chunks()
        ahead = pa.concat_arrays([column.slice(1), column.slice(0, 1)])
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), ahead)
    return rows


def _states(value: Any) -> bool:
    """Return whether a value, or one in a list, is neither missing nor 0."""
    if isinstance(value, list | tuple):
        return any(map(_states, value))
    return value is not None and bool(value) and value == value


def _count_led(rows: pa.Table, spans: Sequence[Span], mapping: ResolvedMapping, losses: Losses) -> None:
    """Count what first rows have where nothing led to their observation: actions and rewards other than 0.

    Raises:
        DatasetError: a flag is set there.
    """
    firsts = pa.array([span.start - spans[0].start for span in spans])
    first = rows.take(firsts)
    for name in (mapping.terminated, mapping.truncated, mapping.done):
        if name is not None:
            flags = flags_of(values_of(Leaf(name, (name,)), first), name).fill_null(False)
            if flags.true_count:
                span = spans[flags.index(True).as_py()]
                raise DatasetError(
                    f"Episode {span.name}: `{name}` is set in its first row, to which no action led. Give "
                    "each episode an id of its own."
                )
    for tree, what in ((mapping.action, "an action"), (mapping.reward, "a reward")):
        some = np.zeros(len(spans), bool)
        for leaf in leaves(tree) if tree is not None else ():
            some |= [_states(value) for value in _column(leaf, first, spans).to_pylist()]
        losses.add(f"{what} of a first row, which led to no observation", int(some.sum()))


def _lasts(spans: Sequence[Span]) -> list[int]:
    """Return the last row of each of some neighbouring episodes."""
    return [span.start - spans[0].start + span.rows - 1 for span in spans]


def _count_unacted(values: pa.Array, loss: str, spans: Sequence[Span], losses: Losses) -> None:
    """Count the values in last rows that are no transitions, since they lack the action or the reward."""
    last = [row for row, span in zip(_lasts(spans), spans, strict=True) if not span.acted]
    if last:
        losses.add(loss, len(last) - values.take(pa.array(last)).null_count)


def _rewards(values: pa.Array, leaf: Leaf, spans: Sequence[Span]) -> pa.Array:
    kind = values.type
    if pa.types.is_nested(kind) or kind == pa.float64():
        return values
    if not (is_number(kind) or pa.types.is_decimal(kind)):
        raise DatasetError(f"The reward `{leaf}` has type {kind}; expected numbers.")
    floats = values.cast(pa.int8() if pa.types.is_boolean(kind) else kind).cast(pa.float64(), safe=False)
    if pa.types.is_integer(kind):
        exact, rounded = (each.fill_null(0).to_numpy(zero_copy_only=False) for each in (values, floats))
        _check_exact(exact, rounded, f"the reward `{leaf}`", spans)
    if pa.types.is_decimal(kind) and floats.cast(kind, safe=False) != values:
        raise DatasetError(
            f"The reward `{leaf}` has type {kind}, with more digits than float64 holds. Cast it to floats."
        )
    return floats


def _check_flags(rows: pa.Table, spans: Sequence[Span], mapping: ResolvedMapping, endings: Endings) -> None:
    """Refuse flags before the last transition."""
    last = np.array(_lasts(spans)) - [not span.acted for span in spans]
    for name in (mapping.terminated, mapping.truncated, mapping.done):
        if name is None:
            continue
        flags = flags_of(values_of(Leaf(name, (name,)), rows), name).fill_null(False)
        values = flags.to_numpy(zero_copy_only=False).copy()
        values[last] = False
        if values.any():
            row = int(values.argmax())
            episode, place = _place(spans, row)
            raise DatasetError(
                f"Episode {episode}: `{name}` is set in its row {place}, before the last transition. Give "
                "each episode an id of its own."
            )


def _episodes(
    rows: pa.Table,
    spans: Sequence[Span],
    mapping: ResolvedMapping,
    layout: RowLayout,
    differing: DifferingRows,
) -> pa.Table:
    first = pa.array(layout.first_rows)
    columns: dict[str, Any] = {EPISODE: pa.array([span.name for span in spans], pa.string())}
    for key, column in mapping.metadata.items():
        values = values_of(Leaf(key, (column,)), rows)
        differing.count_changes(column, values)
        columns[f"metadata.{key}"] = values.take(first)
    if mapping.agent is not None:
        columns["metadata.agent"] = pa.array([str(span.key[-1]) for span in spans])
    if mapping.seed is not None:
        values = values_of(Leaf("seed", (mapping.seed,)), rows)
        differing.count_changes(mapping.seed, values)
        columns["seed"] = _seeds(values.take(first), mapping.seed)
    columns |= layout.facts()
    origins = {f"metadata.{key}": column for key, column in mapping.metadata.items()}
    return _with_kinds(columns, origins, rows)
