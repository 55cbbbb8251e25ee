"""Tables of a view in one file: Parquet and CSV.

Importing a Parquet file gives the same store. In CSV a vector has a column for each number: `observation_0`,
`observation_1`, ..., those of an array in C order. Other lists are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin import Export, export_format
from ...plugin.columns import next_name
from ...readers.exporting.tables import BARE_TABLES, LAYOUT, TABLES, TableExport

_MOST_COLUMNS = 4096


@export_format("parquet", holds=TABLES, layout=LAYOUT)
def write_parquet(export: Export, target: Path) -> None:
    """Write one file with the transitions of a view, or with its steps.

    The file's metadata have the spaces, the card, and the names of your own step columns, and those of each
    column the dtype and shape of its arrays, so importing it gives a store with the same. Frames are bytes,
    as in `steps`.
    """
    table = TableExport(export, layout=export.options["layout"])
    schema = table.schema.with_metadata(table.file_metadata)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for rows in table.batches():
            writer.write_table(rows.cast(schema))


@export_format("csv", holds=BARE_TABLES, layout=LAYOUT)
def write_csv(export: Export, target: Path) -> None:
    """Write the file.

    Raises:
        DatasetError: an array has too many numbers, or two columns get one name.
    """
    table = TableExport(export, layout=export.options["layout"])
    schema = export.context.snapshot.schema
    leaves = [leaf for codec in (schema.observation, schema.action, schema.reward) for leaf in codec.leaves]
    sizes = {leaf.column: leaf.size for leaf in leaves if leaf.shape}
    sizes |= {after: sizes[name] for name in [*sizes] if (after := next_name(name)) is not None}
    for leaf in leaves:
        if leaf.size > _MOST_COLUMNS:
            raise DatasetError(
                f"The column {leaf.column!r} holds arrays of shape {leaf.shape}, which CSV would keep in "
                f"{leaf.size} columns; at most {_MOST_COLUMNS} are possible. Export to Parquet."
            )
        if not leaf.size:
            raise DatasetError(f"CSV cannot hold {leaf.column!r}: its shape {leaf.shape} has no item.")
        if len(leaf.shape) > 1:
            export.losses.add(f"the shape {leaf.shape} of {leaf.column}")
    export.losses.add("the types of other columns, which CSV lacks", len(table.dynamic))
    flat = _flattened(table.schema.empty_table(), sizes)
    names = flat.schema.names
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DatasetError(f"Two columns would have the name {twice!r} in CSV. Export to Parquet.")
    with pyarrow.csv.CSVWriter(target, flat.schema) as writer:
        for rows in table.batches():
            writer.write_table(_flattened(rows, sizes))


def _flattened(rows: pa.Table, sizes: dict[str, int]) -> pa.Table:
    columns: list[pa.ChunkedArray | pa.Array] = []
    names: list[str] = []
    for name in rows.schema.names:
        column = rows.column(name)
        if name in sizes:
            parts = list(_parts(column, sizes[name]))
            columns += parts
            names += [f"{name}_{index}" for index in range(len(parts))]
        else:
            columns.append(_texts(column) if pa.types.is_nested(column.type) else column)
            names.append(name)
    return pa.table(columns, names=names)


def _parts(column: pa.ChunkedArray, size: int) -> Iterator[pa.Array]:
    """Yield the numbers of a column of arrays, one place after the other."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    dense = column.drop_null().combine_chunks()
    if pa.types.is_binary(dense.type):
        flat = np.frombuffer(b"".join(dense.to_pylist()), np.uint8)
    else:
        flat = pc.call_function("list_flatten", [dense]).to_numpy(zero_copy_only=False)
    values = flat.reshape(-1, size)
    places = np.cumsum(valid) - 1
    for index in range(size):
        numbers = values[:, index][places] if len(values) else np.zeros(len(valid), flat.dtype)
        yield pa.array(numbers, mask=~valid)


def _texts(column: pa.ChunkedArray) -> pa.Array:
    return pa.array(
        [None if value is None else json.dumps(value) for value in column.to_pylist()], pa.string()
    )
