"""Columns that formats share: checked ids, steps and flags of Arrow data, and names that are paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.errors import DatasetError


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """Return a column as one array."""
    column = rows.column(name)
    if isinstance(column, pa.Array):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])
    )


def check_present(
    rows: pa.Table | pa.RecordBatch, names: Sequence[str], purpose: str, place: str, first: int = 0
) -> None:
    """Refuse NULL and NaN in some columns.

    Args:
        purpose: of these columns.
        place: the table, for errors.
        first: the number of the first row.

    Raises:
        DatasetError: names the column and the row.
    """
    for name in names:
        column = column_of(rows, name)
        wrong = column.is_null(nan_is_null=True)
        if wrong.true_count:
            row = int(np.flatnonzero(wrong.to_numpy(zero_copy_only=False))[0])
            value = "NaN" if column[row].is_valid else "NULL"
            raise DatasetError(
                f"{place}: `{name}` is {value} in row {first + row}; it {purpose}. Filter such rows out, or "
                "fill in the column."
            )


def flags_of(column: pa.Array, name: str) -> pa.Array:
    """Return flags as booleans.

    Raises:
        DatasetError: they are neither booleans nor 0 and 1.
    """
    if pa.types.is_boolean(column.type):
        return column
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        given = column.drop_null().to_numpy(zero_copy_only=False)
        if ((given == 0) | (given == 1)).all():
            return column.cast(pa.bool_())
        wrong = given[(given != 0) & (given != 1)][0]
        raise DatasetError(f"The flag `{name}` has the value {wrong}; expected booleans, or 0 and 1.")
    raise DatasetError(f"The flag `{name}` has type {column.type}; expected booleans, or 0 and 1.")


def nested(columns: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Return columns named by path as nested dicts."""
    found: dict[str, Any] = {}
    for path, values in columns.items():
        *groups, name = path.split(separator)
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = values
    return found
