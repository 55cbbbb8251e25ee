"""Arrow columns: rows under another schema, and typed columns from numpy arrays.

Rows take a schema's order and types, with NULL where a column is absent. `logical_types.build` makes columns
of single values.

A frame of Polars, or a result of DuckDB, has no metadata: of an int8 array of shape (2, 3) it shows six
int16 numbers. But its rows have their `episode_id`, which names their run. So a process remembers the kinds
of the array columns of every run whose tables it has handed to an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ..common.compatibility import numpy_type
from ..spaces.arrow import equal_lists, flat_array
from . import logical_types as kinds

_KINDS: dict[str, Mapping[str, str]] = {}
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def align_to_schema(rows: Rows, schema: Iterable[pa.Field], *, fill: bool = True) -> Rows:
    """Return rows with the columns of a schema, and no others.

    Args:
        rows: a table or a record batch.
        schema: the columns to return.
        fill: NULLs stand for a column that `rows` lacks; otherwise it is left out.

    Raises:
        pyarrow.ArrowException: a value does not fit the type of its column.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    wanted = pa.schema([column for column in schema if fill or column.name in columns])
    return type(rows).from_arrays(columns_or_nulls(columns, wanted, rows.num_rows), schema=wanted)


def with_columns(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return rows with the values of some columns replaced, or appended where the rows lack the column."""
    for name, values in columns.items():
        index = rows.schema.get_field_index(name)
        if index < 0:
            rows = rows.append_column(name, values)
        else:
            rows = rows.set_column(index, rows.schema.field(index), values)
    return rows


def columns_or_nulls(columns: Mapping[str, Any], schema: Iterable[pa.Field], count: int) -> list[Any]:
    """Return the columns that a schema names, in its order; `count` NULLs for each that is absent."""
    return [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]


def cells_column(kind: str, rows: np.ndarray, values: np.ndarray, length: int) -> pa.Array:
    """Return the column of `length` rows in which row `rows[i]` has `values[i]`; of two values the later
    counts.

    Args:
        kind: that of every value; see `kinds.batch_kind`.
        rows: int64, any order.
        values: numbers of shape (len(rows), ...).
        length: rows of the column.
    """
    physical = kinds.physical_type(kind)
    where = np.full(length, -1, np.int64)
    where[rows] = np.arange(len(rows))
    valid = where >= 0
    mask = None if valid.all() else valid
    if not pa.types.is_list(physical):
        # Where there is no value any number will do, since the row is NULL.
        flat = values[where].astype(numpy_type(physical), copy=False)
        return flat_array(flat, physical, mask)
    flat = values[where[valid]].astype(numpy_type(physical.value_type), copy=False)
    size = int(np.prod(values.shape[1:], dtype=np.int64))
    inner = flat_array(flat.reshape(-1), physical.value_type)
    return equal_lists(inner, size, length, mask)


def array_kinds(fields: Iterable[pa.Field]) -> dict[str, str]:
    """Return the kinds of those columns whose values are arrays, by name; a file may claim any kind."""
    found = {field.name: kinds.field_kind(field) for field in fields}
    return {name: kind for name, kind in found.items() if kind is not None and kinds.is_array(kind)}


def remember(runs: Iterable[str], columns: Mapping[str, str]) -> None:
    """Remember the kinds of array columns in rows of some runs."""
    _KINDS.update(dict.fromkeys(runs, columns))


def remembered(episodes: Iterable[Any]) -> dict[str, str]:
    """Return the kinds of array columns in rows of episodes with these ids.

    Kinds on which the runs of these episodes do not agree are left out; all are if one of the ids is none of
    a remembered run.
    """
    found: dict[str, set[str]] = {}
    for run in {each.rpartition("/")[0] if isinstance(each, str) else None for each in episodes}:
        if run not in _KINDS:
            return {}
        for name, kind in _KINDS[run].items():
            found.setdefault(name, set()).add(kind)
    return {name: min(each) for name, each in found.items() if len(each) == 1}
