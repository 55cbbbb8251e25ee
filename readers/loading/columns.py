"""The columns that a loader reads: their names, dtypes and shapes, and how a block's cells become arrays.

A column of a transition (action, reward, flags, policy values) has no value in an episode's last row; there
its array has zeros, so that all arrays of a loader have the same rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ...store import kinds
from ...store.annotation_files import StepAnnotation
from ...store.errors import CorruptStoreError, InvalidArgumentError
from ...store.families import STEP_FAMILIES
from ...store.schema import ACTION, FLAGS, OBSERVATION, REWARD
from ...store.snapshot import Snapshot
from ...store.spaces import SpaceCodec
from ..blocks import Block
from ..frames import steps_frame
from .tree import Tree, leaves, map_leaves

#: What a batch has if no columns are named.
DEFAULT_COLUMNS = (OBSERVATION, ACTION, REWARD, *FLAGS)
#: Ends the name of a column that tells where a loose column has a value.
PRESENT = "_present"


class Column(ABC):
    """A column of the rows.

    Attributes:
        name: its key in a batch.
        template: its arrays with no rows: dtypes and shapes.
    """

    name: str
    template: Tree

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The columns of steps files that it is made from."""

    @abstractmethod
    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """Its arrays for a block, a row for each row or, of a column of transitions, for each transition.

        They may share the block's memory.

        Raises:
            CorruptStoreError: a cell cannot be what the store's schema says.
        """

    @property
    def of_transitions(self) -> bool:
        """Whether an episode's last row has no value."""
        return False

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
        copy = _copy_transitions(block.stepped, rows) if self.of_transitions else _copy_rows(rows)
        map_leaves(copy, into, self.values(block, snapshot))


@dataclass(frozen=True)
class SpaceColumn(Column):
    """Observations, actions or rewards."""

    name: str
    template: Tree
    codec: SpaceCodec

    @property
    def fields(self) -> tuple[str, ...]:
        """See `Column`."""
        own = tuple(field.name for field in self.codec.fields)
        return (*own, FLAGS[0]) if self.of_transitions else own

    @property
    def of_transitions(self) -> bool:
        """See `Column`."""
        return self.name != OBSERVATION

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        return block.outcomes(self.name) if self.of_transitions else block.observations()


@dataclass(frozen=True)
class FlagColumn(Column):
    """`terminated` or `truncated`."""

    name: str
    template: Tree

    @property
    def fields(self) -> tuple[str, ...]:
        """See `Column`."""
        return tuple(dict.fromkeys((self.name, FLAGS[0])))

    @property
    def of_transitions(self) -> bool:
        """See `Column`."""
        return True

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        return block.flags(self.name)


@dataclass(frozen=True)
class LooseColumn(Column):
    """A number or an array of an info, of the policy, or of the user; where absent, NaN or 0.

    Attributes:
        field: the column of steps.
        annotation: the annotation that it is, if it was added later.
        presence: give whether there is a value, instead of the value.
    """

    name: str
    template: Tree
    field: pa.Field
    annotation: StepAnnotation | None = None
    presence: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """See `Column`."""
        return () if self.annotation is not None else (self.field.name,)

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        if self.annotation is not None:
            cells = block.added(snapshot, self.annotation, 0, block.count)
        else:
            cells = block.table([self.field], 0, block.count).column(0)
        if self.presence:
            return cells.is_valid().to_numpy()
        if not pa.types.is_list(cells.type):
            return _scalars(cells, self.template.dtype)
        return self._arrays(cells)

    def _arrays(self, cells: pa.ChunkedArray) -> np.ndarray:
        shape, dtype = self.template.shape[1:], self.template.dtype
        lists = cells.combine_chunks()
        there = lists.is_valid().to_numpy(zero_copy_only=False)
        flat = _scalars(lists.drop_null().flatten(), dtype)
        size = int(np.prod(shape))
        if len(flat) != size * np.count_nonzero(there):
            raise CorruptStoreError(f"The column {self.field.name!r} has arrays of other sizes than {size}.")
        full = np.full((len(there), *shape), _absent(dtype), dtype)
        full[there] = flat.reshape(-1, *shape)
        return full


def check_names(names: Any) -> None:
    """Refuse what is no list of names.

    Raises:
        InvalidArgumentError: it is something else; of a single name too, which must stand in a list.
    """
    if isinstance(names, str):
        raise InvalidArgumentError(f"columns={names!r}: expected a list of names: [{names!r}].")
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"columns={names!r:.200}: expected a list of names.")


def choose_columns(snapshot: Snapshot, positions: np.ndarray, names: Sequence[str]) -> tuple[Column, ...]:
    """The columns of some names.

    Raises:
        InvalidArgumentError: there is no such column (the message names those that are), or its values are
            not arrays of one shape.
    """
    return tuple(_choose(snapshot, positions, name) for name in dict.fromkeys(names))


def _choose(snapshot: Snapshot, positions: np.ndarray, name: str) -> Column:
    schema = snapshot.schema
    codecs = {OBSERVATION: schema.observation, ACTION: schema.action, REWARD: schema.reward}
    if name in codecs:
        return SpaceColumn(name, _space_template(codecs[name]), codecs[name])
    if name in FLAGS:
        return FlagColumn(name, np.zeros(0, bool))
    return _choose_loose(snapshot, positions, name)


def _choose_loose(snapshot: Snapshot, positions: np.ndarray, name: str) -> Column:
    known = loose_fields(snapshot)
    base = name.removesuffix(PRESENT)
    field = known.get(name) or known.get(base)
    if field is None:
        raise unknown_column(snapshot, name)
    annotation = snapshot.annotation_files.annotations.get(field.name)
    if name not in known:
        return LooseColumn(name, np.zeros(0, bool), field, annotation, presence=True)
    dtype, shape = _loose_type(field)
    if shape == (-1,):
        shape = (_common_length(snapshot, positions, name),)
    return LooseColumn(name, np.zeros((0, *shape), dtype), field, annotation)


def unknown_column(snapshot: Snapshot, name: str) -> InvalidArgumentError:
    """The error for a column that is not there; it names those that are."""
    available = ", ".join((*DEFAULT_COLUMNS, "next_observation", "end_reason", *loose_fields(snapshot)))
    return InvalidArgumentError(
        f"There is no column {name!r} to load. There are: {available}; and for each column of infos, policy "
        f"and users one that ends in {PRESENT!r} and tells where it has a value."
    )


def loose_fields(snapshot: Snapshot) -> dict[str, pa.Field]:
    """The columns of steps whose values are numbers or arrays, beside those of the spaces."""
    standard = {name for name, _ in snapshot.schema.step_keys} | set(snapshot.schema.steps.names)
    own = [field for field in snapshot.steps_schema if any(family.owns(field) for family in STEP_FAMILIES)]
    found = {field.name: field for field in own if field.name not in standard}
    for name, annotation in snapshot.annotation_files.annotations.items():
        found[name] = pa.field(name, annotation.type)
    return {name: field for name, field in found.items() if _is_numeric(field)}


def _is_numeric(field: pa.Field) -> bool:
    kind = field.type.value_type if pa.types.is_list(field.type) else field.type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _loose_type(field: pa.Field) -> tuple[np.dtype, tuple[int, ...]]:
    kind = kinds.field_kind(field)
    if kind is not None and kind.startswith("array:"):
        return kinds.array_parts(kind)
    listed = pa.types.is_list(field.type)
    physical = field.type.value_type if listed else field.type
    return np.dtype(physical.to_pandas_dtype()), (-1,) if listed else ()


def _common_length(snapshot: Snapshot, positions: np.ndarray, name: str) -> int:
    lengths = pl.col(name).drop_nulls().list.len().unique()
    found = steps_frame(snapshot, positions).select(lengths).collect().to_series().to_list()
    if len(found) > 1:
        raise InvalidArgumentError(
            f"The column {name!r} has arrays of different lengths, such as {sorted(found)[:5]}; a batch "
            "needs one shape. Choose episodes in which it has one, or leave the column out."
        )
    return found[0] if found else 0


def _space_template(codec: SpaceCodec) -> Tree:
    template = codec.decode([pa.array([], field.type) for field in codec.fields])
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


def _copy_transitions(
    stepped: np.ndarray, rows: Sequence[tuple[int, int, int]]
) -> Callable[[np.ndarray, np.ndarray], None]:
    """Copies the values of transitions to their rows, and zeros to the others."""

    def copy(into: np.ndarray, values: np.ndarray) -> None:
        if len(values) != np.count_nonzero(stepped):
            raise CorruptStoreError(
                f"{np.count_nonzero(stepped)} rows have a transition, but {len(values)} have a value of one. "
                "The store's steps are damaged: verify() names the file."
            )
        done, seen = 0, 0
        for start, count, place in sorted(rows):
            here = stepped[start : start + count]
            first = seen + np.count_nonzero(stepped[done:start])
            done, seen = start + count, first + np.count_nonzero(here)
            target = into[place : place + count]
            target[here] = values[first:seen]
            target[np.flatnonzero(~here)] = 0

    return copy


def _scalars(cells: pa.ChunkedArray | pa.Array, dtype: np.dtype) -> np.ndarray:
    if cells.null_count:
        cells = pc.fill_null(cells, pa.scalar(_absent(dtype).item(), cells.type))
    array = cells.to_numpy() if isinstance(cells, pa.ChunkedArray) else cells.to_numpy(zero_copy_only=False)
    return array.astype(dtype, copy=False)


def _absent(dtype: np.dtype) -> np.generic:
    return dtype.type(np.nan if dtype.kind == "f" else 0)
