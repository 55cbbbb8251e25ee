"""Steps of whole episodes as Arrow columns, checked and brought into the types of the steps table.

`EpisodeWriter.write_episodes` uses it. Rows come as in the steps table: row t has observation t and the
action taken there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.common.arguments import as_flags
from ...store.dynamic import logical_types as kinds
from ...store.dynamic.column_groups import EXTRA, INFO, POLICY, ColumnGroup, ColumnSet, DynamicRows
from ...store.dynamic.columns import array_kinds, group_of, remembered
from ...store.dynamic.values import load_object
from ...store.errors import CorruptStoreError, EpisodelakeError, InvalidArgumentError, SpaceMismatchError
from ...store.names import EPISODE, EPISODE_ID, FLAGS, REWARD, STEP
from ...store.schema import STEP_ROW, StepSchema
from ...store.spaces.arrow import flat_array, plain_array, plain_table
from ..rows.arrivals import with_dynamic_columns
from .arrow_kinds import as_kind, python_values

_EMPTY = (
    "is NULL; only the last row of an episode has no action, reward and flags. The rows of an episode are "
    "neighbours, in order of time."
)
_FILLED = (
    "has a value on the last row, which holds the last observation alone; expected NULL. An episode of T "
    "transitions has T+1 rows."
)

_SURPLUS = "has a value, but the last observation of this episode is missing; expected NULL."

#: Columns that name the episode of a row.
EPISODE_KEYS = (EPISODE, EPISODE_ID)


@dataclass(frozen=True)
class Piece:
    """Rows of whole episodes, or a part of one long episode.

    Attributes:
        rows: the rows.
        lengths: int64, rows of each episode in it.
        names: names of the episodes, for errors.
        keys: names of the episodes in the data; None if only their lengths are known.
        starts: whether the first row is the first of its episode.
        ends: whether the last row is the last of its episode.
        added: whether the last row of each episode was added, since the source has no row for it.
        missing: bool, one per episode: whether its last observation is missing; None if none is.
    """

    rows: pa.Table
    lengths: np.ndarray
    names: Sequence[str]
    keys: Sequence[Any] = ()
    starts: bool = True
    ends: bool = True
    added: bool = False
    missing: np.ndarray | None = None

    @property
    def observed(self) -> np.ndarray | None:
        """Bool, one per row: whether it has an observation; None if all have one."""
        if self.missing is None or not self.ends:
            return None
        observed = np.ones(self.rows.num_rows, bool)
        observed[self.edges[1:][self.missing] - 1] = False
        return observed

    def with_last_rows(self) -> Piece:
        """Return the same with one more row, of NULLs, after each episode."""
        if len(self.lengths) == 1:
            last = pa.table([pa.nulls(1, field.type) for field in self.rows.schema], schema=self.rows.schema)
            rows = pa.concat_tables([self.rows, last])
        else:
            count, stops = self.rows.num_rows, self.edges[1:]
            order = np.insert(np.arange(count), stops, 0)
            added = np.insert(np.zeros(count, bool), stops, True)
            rows = plain_table(self.rows).take(pa.array(order, mask=added))
        return replace(self, rows=rows, lengths=self.lengths + 1, added=True)

    @property
    def edges(self) -> np.ndarray:
        """First row of each episode, then the end of the last one."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def chosen(self, which: np.ndarray) -> Piece:
        """Return only the episodes where a bool array is set."""
        if which.all():
            return self
        places = np.flatnonzero(which).tolist()
        return replace(
            self,
            rows=plain_table(self.rows).filter(pa.array(np.repeat(which, self.lengths))),
            lengths=self.lengths[which],
            names=[self.names[place] for place in places],
            keys=[self.keys[place] for place in places],
        )

    def parts(self, most: int) -> Iterator[Piece]:
        """Cut an episode of more than `most` rows; the last part has two rows at least."""
        count = self.rows.num_rows
        if count <= most or len(self.lengths) > 1:
            yield self
            return
        most -= count % most == 1
        for start in range(0, count, most):
            rows = self.rows.slice(start, most)
            stop = start + rows.num_rows
            lengths = np.array([rows.num_rows])
            yield replace(self, rows=rows, lengths=lengths, starts=start == 0, ends=stop == count)

    def place(self, row: int) -> str:
        """Name the episode and the row in it, for errors."""
        episode = int(np.searchsorted(self.edges, row, side="right")) - 1
        return f"Episode {self.names[episode]}, row {row - int(self.edges[episode])}"


@dataclass(frozen=True)
class Outcomes:
    """Rewards and final flags of the episodes of a piece.

    Attributes:
        rewards: float64, shape (transitions,) or (transitions, k).
        terminated, truncated: bool, one per episode: the flags of its last transition.
    """

    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class ArrowRows:
    """Turns pieces of one source into batches of finished rows.

    Args:
        schema: the store's step schema.
        names: the columns of the source.
        columns: the run's column sets of info, policy and extra, in this order.

    Raises:
        SpaceMismatchError: a column of the spaces is missing.
        InvalidArgumentError: a column has a reserved name, or two have one name.
    """

    def __init__(self, schema: StepSchema, names: Sequence[str], columns: Sequence[ColumnSet]) -> None:
        self._schema = schema
        self._groups = list(zip((INFO, POLICY, EXTRA), columns, strict=True))
        needed = [column.name for column in (*schema.observation.fields, *schema.outcome_fields)]
        missing = [name for name in needed if name not in names]
        if missing:
            raise SpaceMismatchError(
                f"The data lack the columns {missing}; they have {list(names)}. Expected the columns of "
                f"`steps`: {needed}, and `info.*`, `policy.*` or your own."
            )
        folded = [name.casefold() for name in names]
        twice = sorted({name for name in names if folded.count(name.casefold()) > 1})
        if twice:
            raise InvalidArgumentError(
                f"The data have more than one column of the name {twice}. Rename them."
            )
        own = [name for name in names if name not in (*needed, *EPISODE_KEYS, STEP)]
        self._dynamic = {
            group: [name for name in own if group_of(name) == group] for group, _ in self._groups
        }
        self._paths = {
            name: _path(schema, group, name) for group, keys in self._dynamic.items() for name in keys
        }
        self._has_step = STEP in names

    def converted(self, piece: Piece, numbers: np.ndarray) -> tuple[pa.RecordBatch, Outcomes]:
        """Return the rows of a piece as one batch of finished rows.

        Args:
            piece: the rows.
            numbers: int64, the numbers of its episodes.

        Raises:
            SpaceMismatchError: a value does not fit, or a row that an episode needs is missing; the message
                names the episode and the row.
        """
        try:
            return self._converted(piece, numbers)
        except _Located as error:
            raise SpaceMismatchError(str(error)) from error.__cause__
        except EpisodelakeError as error:
            raise self._located(piece, error) from error

    def _converted(self, piece: Piece, numbers: np.ndarray) -> tuple[pa.RecordBatch, Outcomes]:
        columns = {
            name: owned(column)
            for name, column in zip(piece.rows.column_names, piece.rows.columns, strict=True)
        }
        self._check_steps(piece, columns)
        kinds_of_rows = pa.array(np.full(piece.rows.num_rows, STEP_ROW, np.int16))
        arrays = [pa.array(np.repeat(numbers, piece.lengths)), kinds_of_rows]
        arrays += self._observations(piece, columns)
        outcomes, made = self._outcomes(piece, columns)
        declared = remembered(piece.keys) | array_kinds(piece.rows.schema)
        dynamic = [self._typed(*group, columns, declared) for group in self._groups]
        batch = pa.record_batch([*arrays, *made], self._schema.journal)
        return with_dynamic_columns(batch, dynamic), outcomes

    def _observations(self, piece: Piece, columns: Mapping[str, pa.Array]) -> list[pa.Array]:
        codec, observed = self._schema.observation, piece.observed
        arrays = [columns[each.name] for each in codec.fields]
        if observed is None:
            return codec.adopt(arrays)
        for column, array in zip(codec.fields, arrays, strict=True):
            surplus = array.is_valid().to_numpy(zero_copy_only=False) & ~observed
            if surplus.any():
                raise _Located(f"{piece.place(int(surplus.argmax()))}: `{column.name}` {_SURPLUS}")
        leaves = {leaf.column for leaf in codec.leaves}
        rows = plain_table(pa.table(arrays, [column.name for column in codec.fields]))
        kept = [
            column if name in leaves else column.filter(pa.array(observed))
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        ]
        return codec.adopt([owned(column) for column in kept], observed)

    def _outcomes(self, piece: Piece, columns: Mapping[str, pa.Array]) -> tuple[Outcomes, list[pa.Array]]:
        """Return action, reward and flags, in the types of the store."""
        acted = np.ones(piece.rows.num_rows, bool)
        if piece.ends:
            acted[piece.edges[1:] - 1] = False
        whole = {REWARD, *FLAGS, *(leaf.column for leaf in self._schema.action.leaves)}
        action = [column.name for column in self._schema.action.fields]
        stated: dict[str, pa.Array] = {}
        for name in (*action, REWARD, *FLAGS):
            stated[name] = columns[name]
            valid = columns[name].is_valid().to_numpy(zero_copy_only=False)
            wrong = valid & ~acted
            if name in whole:
                wrong |= ~valid & acted
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                raise _Located(f"{piece.place(row)}: `{name}` {_EMPTY if acted[row] else _FILLED}")
            if name not in whole:
                stated[name] = columns[name].filter(pa.array(acted))
        made = self._schema.action.adopt([stated[name] for name in action], acted)
        (leaf,) = self._schema.reward.leaves
        rewards = self._schema.reward.decode([leaf.adopt(stated[REWARD].drop_null())])
        flags = [self._flags(piece, name, columns[name], acted) for name in FLAGS]
        outcomes = Outcomes(rewards, *(each[piece.edges[1:] - 2] for each in flags))
        masked = [flat_array(each, pa.bool_(), acted) for each in flags]
        return outcomes, [*made, leaf.spread(rewards, acted), *masked]

    @staticmethod
    def _flags(piece: Piece, name: str, outcomes: pa.Array, acted: np.ndarray) -> np.ndarray:
        """Return a flag of each row; False where there is none."""
        number = pa.types.is_integer(outcomes.type) or pa.types.is_floating(outcomes.type)
        if outcomes.type != pa.bool_() and not number:
            raise _Located(f"`{name}` has type {outcomes.type}; expected booleans, or 0 and 1.")
        zero = pa.scalar(0).cast(outcomes.type)
        flags = as_flags(f"`{name}`", outcomes.fill_null(zero).to_numpy(zero_copy_only=False))
        early = flags & acted
        if piece.ends:
            early[piece.edges[1:] - 2] = False
        if early.any():
            raise _Located(
                f"{piece.place(int(early.argmax()))}: `{name}` is set before the last transition. Split the "
                "data into episodes first."
            )
        return flags

    def _check_steps(self, piece: Piece, columns: Mapping[str, pa.Array]) -> None:
        if not self._has_step or not piece.starts:
            return
        expected = np.arange(piece.rows.num_rows) - np.repeat(piece.edges[:-1], piece.lengths)
        equal = pc.call_function("equal", [columns[STEP], pa.array(expected)])
        equal = equal.fill_null(False).to_numpy(zero_copy_only=False)
        if piece.added and piece.ends:
            equal[piece.edges[1:] - 1] = True
        if not equal.all():
            row = int(np.flatnonzero(~equal)[0])
            raise _Located(
                f"{piece.place(row)}: `{STEP}` is {columns[STEP][row]}; expected {expected[row]}. Rows of an "
                "episode are neighbours, in order of time, from 0 on."
            )

    def _typed(
        self,
        group: ColumnGroup,
        column_set: ColumnSet,
        columns: Mapping[str, pa.Array],
        declared: Mapping[str, str],
    ) -> dict[str, tuple[str, pa.Array]]:
        """Return the dynamic columns of a group, in its types; NULL where a row has not the key.

        Args:
            declared: the kinds of array columns, where the source states them.
        """
        names = [name for name in self._dynamic[group] if columns[name].null_count < len(columns[name])]
        # Values in the JSON column count before those of the other columns.
        exact = group.json_column in names
        typed: dict[str, tuple[str, pa.Array]] = {}
        single: list[str] = []
        for name in names:
            made = None if exact else as_kind(columns[name], declared.get(name))
            column = made and column_set.column_for(self._paths[name], made[0])
            if made and column:
                typed[column] = made
            else:
                single.append(name)
        if not single:
            return typed
        single.sort(key=lambda name: name == group.json_column)
        mappings = self._mappings({name: columns[name] for name in single}, declared)
        return column_set.of_cells(DynamicRows.of(mappings).cells(0, len(mappings)), len(mappings), typed)

    def _mappings(self, columns: Mapping[str, pa.Array], declared: Mapping[str, str]) -> list[dict[Any, Any]]:
        """Columns as one mapping per row."""
        mappings: list[dict[Any, Any]] = [{} for _ in next(iter(columns.values()))]
        for name, array in columns.items():
            for mapping, value in zip(mappings, python_values(array, declared.get(name)), strict=True):
                if value is not None and self._paths[name]:
                    kinds.nest(mapping, self._paths[name], value)
                elif value is not None:
                    for key, item in load_object(value, f"the column {name!r}").items():
                        kinds.nest(mapping, (key,), item)
        return mappings

    def _located(self, piece: Piece, error: EpisodelakeError) -> EpisodelakeError:
        """Name the first episode and row that alone raise such an error."""
        edges, observed = set(piece.edges.tolist()), piece.observed
        for row in range(piece.rows.num_rows):
            last = row + 1 in edges
            seen = observed is None or bool(observed[row])
            try:
                self._check_row(piece.rows.slice(row, 1), last=last, seen=seen)
            except EpisodelakeError as wrong:
                # The hint of columns that do not fit is about damaged files.
                hint = "" if isinstance(wrong, CorruptStoreError) else wrong.hint
                return SpaceMismatchError(f"{piece.place(row)}: {wrong.problem}", hint=hint)
        return error

    def _check_row(self, row: pa.Table, *, last: bool, seen: bool) -> None:
        codecs = [self._schema.observation] if seen else []
        if not last:
            codecs += [self._schema.action, self._schema.reward]
        for codec in codecs:
            codec.adopt([owned(row.column(column.name)) for column in codec.fields])


class _Located(SpaceMismatchError):
    """An error that names its place already."""


def _path(schema: StepSchema, group: ColumnGroup, name: str) -> tuple[str, ...]:
    """Return the key path of a dynamic column; () for the JSON column."""
    if name == group.json_column:
        return ()
    try:
        path = group.path(name)
    except CorruptStoreError as error:
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of a step column: keys are percent-encoded as in `steps` "
            f"({error}). Rename the column."
        ) from error
    if group == EXTRA:
        schema.check_extra({path[0]: None})
    return path


def owned(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Copy a column, which may share a caller's memory, to one array of a plain type."""
    chunks = [column] if isinstance(column, pa.Array) else column.chunks
    array = pa.concat_arrays([*chunks, pa.nulls(0, column.type)])
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return plain_array(array)
