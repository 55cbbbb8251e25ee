"""Arrow rows under another schema: in its order, cast to its types, NULL where a column is absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

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
