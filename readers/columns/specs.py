"""The columns that a loader reads: names, dtypes and shapes; infos, policy values and columns of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ...store.common.arguments import expect, suggest
from ...store.common.compatibility import numpy_type
from ...store.dynamic.column_groups import STEP_GROUPS
from ...store.dynamic.columns import group_of
from ...store.dynamic.logical_types import LogicalType, field_kind
from ...store.dynamic.values import load_object
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
)
from ...store.parquet.page_checks import content_digests
from ...store.schema import ENV_STEP
from ...store.snapshot import Snapshot
from ...store.spaces.arrow import values_of
from ...store.spaces.lists import list_lengths
from ...store.tables.annotation_files import StepAnnotation
from ...store.tables.overflow import Overflow
from ...store.tables.table_files import Pointers
from ..blocks import Block, is_numeric
from ..frames import collected, steps_frame
from .column import Column, FlagColumn, ObservedColumn, SpaceColumn
from .ragged import Ragged, offsets_of
from .selection import Selection
from .texts import text_array
from .tree import Tree

#: What a batch has if no columns are named.
DEFAULT_COLUMNS = (OBSERVATION, ACTION, REWARD, *FLAGS)
_PARTED = (f"{OBSERVATION}.", f"{ACTION}.")
#: Suffix of a column that is True where a dynamic column has a value.
PRESENT = "_present"


@dataclass(frozen=True)
class DynamicColumn(Column):
    """A number, a text or an array of an info, of the policy, or of the user; where absent, NaN, 0, "" or,
    of arrays of different lengths, an empty one.

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
        return self._decoded(self._cells(block, snapshot))

    def write(
        self, block: Block, snapshot: Snapshot, into: Tree, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        """See `Column`; texts and arrays of other episodes, which may be longer, are not decoded."""
        sized = not self.presence and (self.template.dtype.kind == "U" or pa.types.is_list(self.field.type))
        if (
            not sized
            or isinstance(self.template, Ragged)
            or sum(count for _, count, _ in rows) == block.count
        ):
            super().write(block, snapshot, into, rows)
            return
        wanted = np.concatenate([np.arange(first, first + count) for first, count, _ in rows])
        values = self._decoded(self._cells(block, snapshot).take(pa.array(wanted)))
        done = 0
        for _, count, place in rows:
            into[place : place + count] = values[done : done + count]
            done += count

    def _cells(self, block: Block, snapshot: Snapshot) -> pa.ChunkedArray:
        if self.annotation is not None:
            return block.added(snapshot, self.annotation, 0, block.count)
        overflow = {} if self.overflow is None else {self.field.name: self.overflow}
        return block.shown([self.field], overflow, 0, block.count).column(0)

    def _decoded(self, cells: pa.ChunkedArray) -> Any:
        if self.presence:
            return values_of(cells.is_valid())
        if isinstance(self.template, Ragged):
            lists = cells.combine_chunks()
            return Ragged(_scalars(lists.flatten(), self.template.dtype), offsets_of(list_lengths(lists)))
        if not pa.types.is_list(cells.type):
            return _scalars(cells, self.template.dtype)
        return self._arrays(cells)

    def check(self, snapshot: Snapshot, selection: Selection) -> None:
        """See `Column`."""
        if self.presence:
            return
        if self.annotation is None:
            refuse_other_kinds(snapshot, selection, self.field.name, batches=True)
        shape = self.template.shape[1:]
        if pa.types.is_list(self.field.type) and _dynamic_type(self.field)[1] == (-1,):
            others = [each for each in _lengths(snapshot, selection, self.field.name) if (each,) != shape]
            if others:
                raise InvalidArgumentError(
                    f"The column {self.name!r} has an array of {others[0]} values in new episodes, and had "
                    f"arrays of {shape[0]}; a batch needs one shape. Choose episodes in which it has one, or "
                    "leave the column out."
                )

    def _arrays(self, cells: pa.ChunkedArray) -> np.ndarray:
        shape, dtype = self.template.shape[1:], self.template.dtype
        lists = cells.combine_chunks()
        there = values_of(lists.is_valid())
        flat = _scalars(lists.drop_null().flatten(), dtype)
        size = int(np.prod(shape))
        if len(flat) != size * np.count_nonzero(there):
            raise CorruptStoreError(f"The column {self.field.name!r} has arrays of other sizes than {size}.")
        full = np.full((len(there), *shape), _absent(dtype), dtype)
        full[there] = flat.reshape(np.count_nonzero(there), *shape)
        return full


@dataclass(frozen=True)
class MixedColumn(DynamicColumn):
    """Arrays of several axes that differ in the first: of one shape typed, the others in the JSON column."""

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """See `Column`."""
        group = group_of(self.field.name)
        table = block.table([self.field, pa.field(group.json_column, pa.string())], 0, block.count)
        cells, texts = (column.combine_chunks() for column in table.columns)
        others: dict[int, Any] = {}
        for row, text in enumerate(texts.to_pylist()):
            if text is not None and (value := _value_in(text, self.field.name)) is not None:
                others[row] = value
        rows = list(others)
        if self.presence:
            present = values_of(cells.is_valid())
            present[rows] = True
            return present
        item = self.template.values.shape[1:]
        flat = _scalars(cells.flatten(), self.template.dtype).reshape(-1, *item)
        lengths = list_lengths(cells) // int(np.prod(item))
        pieces = np.split(flat, offsets_of(lengths)[rows])
        lengths[rows] = [len(value) for value in others.values()]
        joined = [pieces[0]]
        for value, piece in zip(others.values(), pieces[1:], strict=True):
            joined += [value, piece]
        return Ragged(np.concatenate(joined), offsets_of(lengths))

    def write(
        self, block: Block, snapshot: Snapshot, into: Tree, rows: Sequence[tuple[int, int, int]]
    ) -> None:
        """See `Column`."""
        Column.write(self, block, snapshot, into, rows)


def check_names(names: Any) -> None:
    """Check that the value is a list of names.

    Raises:
        InvalidArgumentError: it is something else, such as a single name outside a list.
    """
    text = isinstance(names, str)
    valid = not text and isinstance(names, Collection) and all(isinstance(name, str) for name in names)
    expect(valid, "columns", names, f"a list of names: [{names!r}]" if text else "a list of names")


@dataclass(frozen=True)
class EpisodeColumns:
    """Columns of the table of episodes, which loaders have beside those of steps.

    Attributes:
        makers: by name, a function that returns the column, given its name and that of the key.
    """

    makers: Mapping[str, Callable[[str, str], Column]]

    def column(self, name: str) -> Column | None:
        """Return the column of a key, None if there is none."""
        base = name if name in self.makers else name.removesuffix(PRESENT)
        return self.makers[base](base, name) if base in self.makers else None


def choose_columns(
    snapshot: Snapshot,
    selection: Selection,
    names: Sequence[str],
    episodes: EpisodeColumns | None = None,
    *,
    ragged: bool = False,
) -> tuple[Column, ...]:
    """Return the columns of some names.

    Args:
        snapshot: what they belong to.
        selection: the episodes whose rows are read.
        names: of columns.
        episodes: further columns, for names that no column of steps has; None for numbers of steps alone.
        ragged: also columns whose rows differ in length.

    Raises:
        InvalidArgumentError: there is no such column (the message names those that are), or its values are
            not arrays of one shape.
    """
    known = cache(partial(_known_fields, snapshot, selection, texts=episodes is not None))
    return tuple(
        _choose(snapshot, selection, name, known, episodes, ragged=ragged) for name in dict.fromkeys(names)
    )


def _known_fields(snapshot: Snapshot, selection: Selection, *, texts: bool) -> dict[str, pa.Field]:
    return _dynamic_fields_of(snapshot, selection) | (text_fields(snapshot) if texts else {})


def _choose(
    snapshot: Snapshot,
    selection: Selection,
    name: str,
    known: Callable[[], dict[str, pa.Field]],
    episodes: EpisodeColumns | None,
    *,
    ragged: bool,
) -> Column:
    schema = selection.schema
    codecs = {OBSERVATION: schema.observation, ACTION: schema.action, REWARD: schema.reward}
    if name in codecs:
        return SpaceColumn.of(name, codecs[name], ragged=ragged)
    part = codecs[name.partition(".")[0]].part(f"{schema.prefix}{name}") if name.startswith(_PARTED) else None
    if part is not None:
        return SpaceColumn.of(name, part, ragged=ragged)
    if name == OBSERVATION_PRESENT:
        return ObservedColumn.of(schema.observation)
    if name in FLAGS:
        return FlagColumn(name, np.zeros(0, bool), tuple(dict.fromkeys((name, FLAGS[0]))), True)
    return _choose_dynamic(snapshot, selection, name, known(), episodes, ragged=ragged)


def _choose_dynamic(
    snapshot: Snapshot,
    selection: Selection,
    name: str,
    known: dict[str, pa.Field],
    episodes: EpisodeColumns | None,
    *,
    ragged: bool,
) -> Column:
    base = name.removesuffix(PRESENT)
    field = known.get(name) or known.get(base)
    if field is None:
        column = None if episodes is None else episodes.column(name)
        if column is None:
            raise unknown_column(snapshot, selection, name, () if episodes is None else episodes.makers)
        return column
    annotation = snapshot.annotation_files.annotations.get(field.name)
    overflow = None if annotation is not None else snapshot.overflow(STEPS).get(field.name)
    stored = field if overflow is None else overflow.column
    template, presence = np.zeros(0, bool), name not in known
    if ragged and annotation is None and _differs_in_first(snapshot, selection, field):
        dtype, shape = _dynamic_type(field)
        if not presence:
            template = Ragged(np.zeros((0, *shape[1:]), dtype), np.zeros(1, np.int64))
        fields = (stored.name, group_of(field.name).json_column)
        return MixedColumn(name, template, fields, False, stored, None, presence)
    if not presence:
        if annotation is None:
            refuse_other_kinds(snapshot, selection, field.name, batches=episodes is not None)
        if is_text_field(field):
            dtype, shape = _text_type(snapshot, selection, field.name), ()
        else:
            dtype, shape = _dynamic_type(field)
        template = np.zeros((0, *shape), dtype) if shape != (-1,) else None
        if template is None:
            template = _any_length(snapshot, selection, name, dtype, ragged=ragged)
    fields = () if annotation is not None else (stored.name,)
    if overflow is not None:
        fields = (stored.name, overflow.json_column)
    return DynamicColumn(name, template, fields, False, stored, annotation, presence, overflow)


def unknown_column(
    snapshot: Snapshot, selection: Selection, name: str, others: Collection[str] = ()
) -> InvalidArgumentError:
    """Return the error for an unknown column; it names the known ones, and others that there are."""
    schema = selection.schema
    codecs = (schema.observation, schema.action)
    parts = [part.root.removeprefix(schema.prefix) for codec in codecs for part in codec.parts]
    dynamic = _dynamic_fields_of(snapshot, selection)
    others = (*(text_fields(snapshot) if others else ()), *others)
    columns = (*DEFAULT_COLUMNS, NEXT_OBSERVATION, END_REASON, STEP, EPISODE, *parts, *dynamic, *others)
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


def _own_fields(snapshot: Snapshot) -> dict[str, pa.Field]:
    standard = {name for name, _ in snapshot.schema.step_keys} | set(snapshot.schema.steps.names)
    shown = snapshot.filled_schema(STEPS)
    own = [field for field in shown if any(group.owns(field) for group in STEP_GROUPS)]
    fields = {field.name: field for field in own if field.name not in standard}
    for name, annotation in snapshot.annotation_files.annotations.items():
        fields[name] = pa.field(name, annotation.type)
    return fields


def dynamic_fields(snapshot: Snapshot) -> dict[str, pa.Field]:
    """Return the columns of steps whose values are numbers or arrays, beside those of the spaces."""
    return {name: field for name, field in _own_fields(snapshot).items() if is_numeric(field.type)}


def text_fields(snapshot: Snapshot) -> dict[str, pa.Field]:
    """Return the columns of steps whose values are texts."""
    return {name: field for name, field in _own_fields(snapshot).items() if is_text_field(field)}


def is_text_field(field: pa.Field) -> bool:
    """Return whether the values of a dynamic column are texts."""
    kind = field_kind(field)
    return pa.types.is_string(field.type) and kind in (None, "str")


def _dynamic_type(field: pa.Field) -> tuple[np.dtype, tuple[int, ...]]:
    logical = LogicalType.of_column(field)
    if logical is not None and logical.form == "array":
        assert logical.dtype is not None
        return logical.dtype, logical.shape
    listed = pa.types.is_list(field.type)
    physical = field.type.value_type if listed else field.type
    return numpy_type(physical), (-1,) if listed else ()


def _rows_of(snapshot: Snapshot, selection: Selection) -> pl.LazyFrame:
    steps = steps_frame(snapshot, selection.positions)
    return steps.filter(pl.col(AGENT_ID).is_in(selection.agents)) if selection.agents else steps


def _text_type(snapshot: Snapshot, selection: Selection, name: str) -> np.dtype:
    """Return the dtype that has room for all texts of a column of steps.

    Raises:
        InvalidArgumentError: see `text_array`.
    """
    texts = collected(_rows_of(snapshot, selection).select(pl.col(name).drop_nulls().unique())).to_series()
    return text_array(texts.to_list(), f"The column {name!r}").dtype


def refuse_other_kinds(snapshot: Snapshot, selection: Selection, name: str, *, batches: bool) -> None:
    """Refuse a column of infos, policy values or the user beside which the JSON column has other values.

    Args:
        snapshot: what it belongs to.
        selection: the episodes whose rows are read.
        name: of the column.
        batches: refuse values of any other kind, such as texts beside numbers; else only numbers and arrays
            of another shape, since statistics count other values as absent.

    Raises:
        InvalidArgumentError: a row has one.
    """
    for value in _other_values(snapshot, selection, name):
        shape = _is_numbers(value)
        # What is in a mapping belongs to other columns.
        if shape or (batches and value is not None and not isinstance(value, dict)):
            what, example = ("shape", str(np.shape(value))) if shape else ("kind", f"{value!r:.100}")
            raise InvalidArgumentError(
                f"The column {name!r} has values of different {what}s, such as {example}; a batch needs one "
                f"{what}. Choose episodes in which it has one, or leave the column out."
            )


def _other_values(snapshot: Snapshot, selection: Selection, name: str) -> Iterator[Any]:
    """Yield the values of a dynamic column that may be in the JSON column; None where there is none."""
    group = group_of(name)
    if name == ENV_STEP or group.json_column not in snapshot.table_schema(STEPS).names:
        return
    quoted = json.dumps(group.path(name)[-1])
    rows = _rows_of(snapshot, selection).filter(
        pl.col(name).is_null() & pl.col(group.json_column).str.contains(quoted, literal=True)
    )
    for text in collected(rows.select(group.json_column)).to_series():
        yield _value_in(text, name)


def _value_in(text: str, name: str) -> Any:
    """Return the value of a column in a cell of its JSON column; None if there is none."""
    group = group_of(name)
    value: Any = load_object(text, f"The column {group.json_column!r}")
    for key in group.path(name):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _differs_in_first(snapshot: Snapshot, selection: Selection, field: pa.Field) -> bool:
    """Return whether the values of a column are arrays of several axes, which differ in the first alone."""
    dtype, shape = _dynamic_type(field)
    if len(shape) < 2 or 0 in shape[1:]:
        return False
    others = [each for each in _other_values(snapshot, selection, field.name) if each is not None]
    return bool(others) and all(
        isinstance(each, np.ndarray) and each.dtype == dtype and each.shape[1:] == shape[1:] and each.ndim > 1
        for each in others
    )


def _is_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, bool | int | float) for item in items)


def _lengths(snapshot: Snapshot, selection: Selection, name: str) -> list[int]:
    """Return the lengths of the arrays of a column, ascending."""
    lengths = pl.col(name).drop_nulls().list.len().unique().sort()
    return collected(_rows_of(snapshot, selection).select(lengths)).to_series().to_list()


def _any_length(
    snapshot: Snapshot, selection: Selection, name: str, dtype: np.dtype, *, ragged: bool
) -> np.ndarray | Ragged:
    """Return the template of arrays of any length: of one shape if they all have the same."""
    distinct = _lengths(snapshot, selection, name)
    if len(distinct) > 1 and ragged:
        return Ragged(np.zeros(0, dtype), np.zeros(1, np.int64))
    if len(distinct) > 1:
        raise InvalidArgumentError(
            f"The column {name!r} has arrays of different lengths, such as {distinct[:5]}; a batch "
            "needs one shape. Choose episodes in which it has one, or leave the column out."
        )
    return np.zeros((0, distinct[0] if distinct else 0), dtype)


def _scalars(cells: pa.ChunkedArray | pa.Array, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "U":
        texts = np.array(cells.fill_null("").to_pylist(), np.str_)
        if texts.itemsize > dtype.itemsize:  # numpy would cut it
            raise CorruptStoreError("A text is longer than all texts of its column. verify() names the file.")
        return texts.astype(dtype)
    values = values_of(cells)
    if cells.null_count:
        values = np.where(values_of(cells.is_valid()), values, _absent(values.dtype))
    return values.astype(dtype, copy=False)


def _absent(dtype: np.dtype) -> np.generic:
    return dtype.type(np.nan if dtype.kind == "f" else 0)
