"""The columns that a loader reads: their names, dtypes and shapes, and how a block's cells become arrays.

A column of a transition (action, reward, flags, policy values) has no value in an episode's last row; there
its array has zeros, so that all arrays of a loader have the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ...store.common.arguments import suggest
from ...store.common.compatibility import numpy_type
from ...store.dynamic import logical_types as kinds
from ...store.dynamic.column_groups import STEP_FAMILIES
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.layout import STEPS
from ...store.names import (
    ACTION,
    AGENT_ID,
    END_REASON,
    EPISODE,
    FLAGS,
    NEXT_OBSERVATION,
    OBSERVATION,
    OBSERVATION_PRESENT,
    REWARD,
    STEP,
    is_observation,
)
from ...store.parquet.page_checks import content_digests
from ...store.schema import ENV_STEP
from ...store.snapshot import Snapshot
from ...store.spaces import SpaceCodec
from ...store.spaces.arrow import values_of
from ...store.tables.annotation_files import StepAnnotation
from ...store.tables.overflow import Overflow
from ...store.tables.table_files import Pointers
from ..blocks import Block, is_numeric
from ..frames import steps_frame
from .selection import Selection
from .tree import Tree, leaves, map_leaves

#: What a batch has if no columns are named.
DEFAULT_COLUMNS = (OBSERVATION, ACTION, REWARD, *FLAGS)
_PARTED = (f"{OBSERVATION}.", f"{ACTION}.")
#: Suffix of a column that is True where a dynamic column has a value.
PRESENT = "_present"


@dataclass(frozen=True)
class Column(ABC):
    """A column of the rows.

    Attributes:
        name: its key in a batch.
        template: its arrays with no rows: dtypes and shapes.
        fields: the columns of steps files that it is made from.
        of_transitions: whether an episode's last row has no value.
    """

    name: str
    template: Tree
    fields: tuple[str, ...]
    of_transitions: bool

    def facts(self, snapshot: Snapshot, pointers: Pointers) -> dict[str, Any]:
        """Return the values that a cache tells columns apart by, beside the rows; JSON can hold them."""
        return {"column": self.name, "annotation": None}

    @abstractmethod
    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """Return its arrays for a block: one row per row or, of a column of transitions, per transition.

        They may share the block's memory.

        Raises:
            CorruptStoreError: a cell cannot be what the store's schema says.
        """

    def write(
        self, block: Block, snapshot: Snapshot, into: Tree, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        """Copy stretches of a block's rows into the arrays of all rows.

        Args:
            block: the block.
            snapshot: what it belongs to.
            into: arrays of shape (n, ...).
            rows: for each stretch its first row in the block, how many there are, and where they go.

        Raises:
            CorruptStoreError: see `values`.
        """
        valid = block.stepped if self.of_transitions else self.observed(block, snapshot, rows)
        copy = _copy_rows(rows) if valid is None else _copy_valid(valid, rows)
        map_leaves(copy, into, self.values(block, snapshot))

    def observed(
        self, block: Block, snapshot: Snapshot, rows: Sequence[tuple[int, int, int]]
    ) -> np.ndarray | None:
        """Return which rows of a block `values` has, bool; None for all.

        Raises:
            CorruptStoreError: a row lacks a value that it must have.
        """
        return None


@dataclass(frozen=True)
class SpaceColumn(Column):
    """Observations, actions or rewards, or a part of a Dict or Tuple: `observation.camera`."""

    codec: SpaceCodec

    @staticmethod
    def of(name: str, codec: SpaceCodec) -> SpaceColumn:
        """Return the column of a space.

        Raises:
            InvalidArgumentError: its values have no fixed shape.
        """
        own, stepped = tuple(field.name for field in codec.fields), not is_observation(name)
        return SpaceColumn(name, _space_template(codec), (*own, FLAGS[0]) if stepped else own, stepped, codec)

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        return block.part(self.codec, of_transitions=self.of_transitions)

    def observed(
        self, block: Block, snapshot: Snapshot, rows: Sequence[tuple[int, int, int]]
    ) -> np.ndarray | None:
        """See `Column`."""
        observed = block.observed(self.codec)
        if observed is None:
            return None
        wanted = np.concatenate([np.arange(start, start + count) for start, count, _ in rows])
        lacking = wanted[~observed[wanted]] + block.first
        if not np.isin(lacking, snapshot.rows_without_observation(block.file.path.name)).all():
            raise CorruptStoreError(
                f"{block.file.path} lacks observations of episodes that have all of them by the table "
                "episodes. verify() names them."
            )
        return observed


@dataclass(frozen=True)
class ObservedColumn(Column):
    """Whether a row has its observation: False for a last one that is missing."""

    codec: SpaceCodec

    @staticmethod
    def of(codec: SpaceCodec) -> ObservedColumn:
        """Return the column for the observations of a codec."""
        fields = tuple(field.name for field in codec.fields)
        return ObservedColumn(OBSERVATION_PRESENT, np.zeros(0, bool), fields, False, codec)

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        observed = block.observed(self.codec)
        return np.ones(block.count, bool) if observed is None else observed


@dataclass(frozen=True)
class FlagColumn(Column):
    """`terminated` or `truncated`."""

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        return block.flags(self.name)


@dataclass(frozen=True)
class DynamicColumn(Column):
    """A number or an array of an info, of the policy, or of the user; where absent, NaN or 0.

    Attributes:
        field: the column of steps.
        annotation: the annotation that it is, if it was added later.
        presence: give whether there is a value, instead of the value.
        overflow: the column of further numbers, if there are any.
    """

    field: pa.Field
    annotation: StepAnnotation | None = None
    presence: bool = False
    overflow: Overflow | None = None

    def facts(self, snapshot: Snapshot, pointers: Pointers) -> dict[str, Any]:
        """See `Column`."""
        facts = super().facts(snapshot, pointers)
        if self.annotation is not None:
            used = [pointers.segments[number] for number in np.unique(pointers.segment)]
            facts["annotation"] = content_digests(snapshot.annotation_places(self.annotation.name, used))
        return facts if self.overflow is None else {**facts, "overflow": self.overflow.kind}

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        if self.annotation is not None:
            cells = block.added(snapshot, self.annotation, 0, block.count)
        else:
            overflow = {} if self.overflow is None else {self.field.name: self.overflow}
            cells = block.shown([self.field], overflow, 0, block.count).column(0)
        if self.presence:
            return values_of(cells.is_valid())
        if not pa.types.is_list(cells.type):
            return _scalars(cells, self.template.dtype)
        return self._arrays(cells)

    def _arrays(self, cells: pa.ChunkedArray) -> np.ndarray:
        shape, dtype = self.template.shape[1:], self.template.dtype
        lists = cells.combine_chunks()
        there = values_of(lists.is_valid())
        flat = _scalars(lists.drop_null().flatten(), dtype)
        size = int(np.prod(shape))
        if len(flat) != size * np.count_nonzero(there):
            raise CorruptStoreError(f"The column {self.field.name!r} has arrays of other sizes than {size}.")
        full = np.full((len(there), *shape), _absent(dtype), dtype)
        full[there] = flat.reshape(-1, *shape)
        return full


def check_names(names: Any) -> None:
    """Check that the value is a list of names.

    Raises:
        InvalidArgumentError: it is something else, such as a single name outside a list.
    """
    if isinstance(names, str):
        raise InvalidArgumentError(f"columns={names!r}: expected a list of names: [{names!r}].")
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"columns={names!r:.200}: expected a list of names.")


def choose_columns(snapshot: Snapshot, selection: Selection, names: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of some names.

    Raises:
        InvalidArgumentError: there is no such column (the message names those that are), or its values are
            not arrays of one shape.
    """
    return tuple(_choose(snapshot, selection, name) for name in dict.fromkeys(names))


def _choose(snapshot: Snapshot, selection: Selection, name: str) -> Column:
    schema = selection.schema
    codecs = {OBSERVATION: schema.observation, ACTION: schema.action, REWARD: schema.reward}
    if name in codecs:
        return SpaceColumn.of(name, codecs[name])
    part = codecs[name.partition(".")[0]].part(f"{schema.prefix}{name}") if name.startswith(_PARTED) else None
    if part is not None:
        return SpaceColumn.of(name, part)
    if name == OBSERVATION_PRESENT:
        return ObservedColumn.of(schema.observation)
    if name in FLAGS:
        return FlagColumn(name, np.zeros(0, bool), tuple(dict.fromkeys((name, FLAGS[0]))), True)
    return _choose_dynamic(snapshot, selection, name)


def _choose_dynamic(snapshot: Snapshot, selection: Selection, name: str) -> Column:
    known = _dynamic_fields_of(snapshot, selection)
    base = name.removesuffix(PRESENT)
    field = known.get(name) or known.get(base)
    if field is None:
        raise unknown_column(snapshot, selection, name)
    annotation = snapshot.annotation_files.annotations.get(field.name)
    overflow = None if annotation is not None else snapshot.overflow(STEPS).get(field.name)
    stored = field if overflow is None else overflow.column
    template, presence = np.zeros(0, bool), name not in known
    if not presence:
        dtype, shape = _dynamic_type(field)
        if shape == (-1,):
            shape = (_common_length(snapshot, selection, name),)
        template = np.zeros((0, *shape), dtype)
    fields = () if annotation is not None else (stored.name,)
    if overflow is not None:
        fields = (stored.name, overflow.json_column)
    return DynamicColumn(name, template, fields, False, stored, annotation, presence, overflow)


def unknown_column(snapshot: Snapshot, selection: Selection, name: str) -> InvalidArgumentError:
    """Return the error for an unknown column; it names the known ones."""
    schema = selection.schema
    codecs = (schema.observation, schema.action)
    parts = [leaf.column.removeprefix(schema.prefix) for codec in codecs for leaf in codec.leaves]
    dynamic = _dynamic_fields_of(snapshot, selection)
    columns = (*DEFAULT_COLUMNS, NEXT_OBSERVATION, END_REASON, STEP, EPISODE, *parts, *dynamic)
    known = list(dict.fromkeys(columns))
    return InvalidArgumentError(
        f"There is no column {name!r} to load.{suggest(name, known)} There are: {', '.join(known)}. Infos "
        f"and policy values of the next row are there too (next_info.cost), and for infos, policy values "
        f"and columns of your own a key that ends in {PRESENT!r} and is True where they have a value."
    )


def _dynamic_fields_of(snapshot: Snapshot, selection: Selection) -> dict[str, pa.Field]:
    """Return `dynamic_fields` and, of agents, the number of the environment's step."""
    own = {ENV_STEP: snapshot.schema.steps.field(ENV_STEP)} if selection.agents else {}
    return {**dynamic_fields(snapshot), **own}


def dynamic_fields(snapshot: Snapshot) -> dict[str, pa.Field]:
    """Return the columns of steps whose values are numbers or arrays, beside those of the spaces."""
    standard = {name for name, _ in snapshot.schema.step_keys} | set(snapshot.schema.steps.names)
    shown = snapshot.filled_schema(STEPS)
    own = [field for field in shown if any(family.owns(field) for family in STEP_FAMILIES)]
    fields = {field.name: field for field in own if field.name not in standard}
    for name, annotation in snapshot.annotation_files.annotations.items():
        fields[name] = pa.field(name, annotation.type)
    return {name: field for name, field in fields.items() if is_numeric(field.type)}


def _dynamic_type(field: pa.Field) -> tuple[np.dtype, tuple[int, ...]]:
    kind = kinds.field_kind(field)
    if kind is not None and (logical := kinds.LogicalType.of(kind)).family == "array":
        assert logical.dtype is not None
        return logical.dtype, logical.shape
    listed = pa.types.is_list(field.type)
    physical = field.type.value_type if listed else field.type
    return numpy_type(physical), (-1,) if listed else ()


def _common_length(snapshot: Snapshot, selection: Selection, name: str) -> int:
    lengths = pl.col(name).drop_nulls().list.len().unique()
    steps = steps_frame(snapshot, selection.positions)
    if selection.agents:
        steps = steps.filter(pl.col(AGENT_ID).is_in(selection.agents))
    distinct = steps.select(lengths).collect().to_series().to_list()
    if len(distinct) > 1:
        raise InvalidArgumentError(
            f"The column {name!r} has arrays of different lengths, such as {sorted(distinct)[:5]}; a batch "
            "needs one shape. Choose episodes in which it has one, or leave the column out."
        )
    return distinct[0] if distinct else 0


def _space_template(codec: SpaceCodec) -> Tree:
    template = codec.decode([pa.nulls(0, field.type) for field in codec.fields])
    for name, leaf in leaves(template, codec.root):
        if not isinstance(leaf, np.ndarray):
            raise InvalidArgumentError(
                f"The values of {name!r} have no fixed shape ({codec.space}), so they do not fit into a "
                "batch of arrays. Name the columns to load with columns=[...], or read episode by episode."
            )
    return template


def _copy_rows(rows: Sequence[tuple[int, int, int]]) -> Callable[[np.ndarray, np.ndarray], None]:
    def copy(into: np.ndarray, values: np.ndarray) -> None:
        for start, count, place in rows:
            into[place : place + count] = values[start : start + count]

    return copy


#: Episodes of fewer rows are copied by a mask, longer ones one by one.
_SHORT = 32


def _copy_valid(
    valid: np.ndarray, rows: Sequence[tuple[int, int, int]]
) -> Callable[[np.ndarray, np.ndarray], None]:
    """Copy values to the rows that have one, and zeros to the others."""

    def copy(into: np.ndarray, values: np.ndarray) -> None:
        if len(values) != np.count_nonzero(valid):
            raise CorruptStoreError(
                f"{np.count_nonzero(valid)} rows have a transition or an observation, but {len(values)} have "
                "a value of it. The store's steps are damaged: verify() names the file."
            )
        done, seen = 0, 0
        for start, count, place in sorted(rows):
            here = valid[start : start + count]
            first = seen + np.count_nonzero(valid[done:start])
            done, seen = start + count, first + np.count_nonzero(here)
            target, given = into[place : place + count], values[first:seen]
            blanks = np.flatnonzero(~here)
            if len(blanks) * _SHORT > count:
                target[here] = given
            else:
                for number, (low, stop) in enumerate(pairwise([-1, *blanks.tolist(), count])):
                    target[low + 1 : stop] = given[low + 1 - number : stop - number]
            target[blanks] = 0

    return copy


def _scalars(cells: pa.ChunkedArray | pa.Array, dtype: np.dtype) -> np.ndarray:
    values = values_of(cells)
    if cells.null_count:
        values = np.where(values_of(cells.is_valid()), values, _absent(values.dtype))
    return values.astype(dtype, copy=False)


def _absent(dtype: np.dtype) -> np.generic:
    return dtype.type(np.nan if dtype.kind == "f" else 0)
