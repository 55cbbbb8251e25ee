"""Files of the tables as commits list them: written rows together with their statistics.

The sealer and the maintenance operations make their episodes files here, so both carry the same statistics.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..delta.files import NewFile
from ..errors import CorruptStoreError
from ..files import Place
from ..parquet.files import open_parquet, parquet_writer, reading_error

_EPISODE_ROW_GROUP = 65_536
_EPISODE_ROW_BYTES = 256


def write_table_file(place: Place, table: pa.Table, moment: int | None = None) -> NewFile:
    """Write rows of `episodes` or `runs` as one file, and say how to list it.

    Args:
        place: the file.
        table: its rows; the metadata of columns is not written.
        moment: the place of the file in the order of files; None for the end.

    Raises:
        StoreAccessError: it could not be written.
    """
    schema = pa.schema([column.remove_metadata() for column in table.schema])
    with parquet_writer(place, schema, _EPISODE_ROW_BYTES) as writer:
        writer.write_table(table.cast(schema), row_group_size=_EPISODE_ROW_GROUP)
    smallest, largest = _bounds(table)
    return NewFile(place.name, table.num_rows, null_counts(table), smallest, largest, moment)


def null_counts(table: pa.Table) -> dict[str, int]:
    """Return how many NULLs each column has."""
    return {name: column.null_count for name, column in zip(table.column_names, table.columns, strict=True)}


def _bounds(table: pa.Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Smallest and largest values of the columns that commits carry statistics of; finite ones only."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    column = "episode_id" if "episode_id" in table.column_names else "run_id"
    for name in (column, "length", "episode_return"):
        if name not in table.column_names or pa.types.is_list(table.schema.field(name).type):
            continue
        values = table.column(name)
        # min_max passes over NaN, which a statistic must not.
        if pa.types.is_floating(values.type) and not np.isfinite(values.to_numpy()).all():
            continue
        found = pc.call_function("min_max", [values]).as_py()
        if found["min"] is not None:
            smallest[name], largest[name] = found["min"], found["max"]
    return smallest, largest


def list_steps_file(place: Place) -> NewFile:
    """Return how to list a steps file that lies there already, told from its footer and its ids.

    Raises:
        CorruptStoreError: it is damaged or missing.
    """
    file = open_parquet(place)
    nulls = dict.fromkeys(file.schema_arrow.names, 0)
    try:
        for group in range(file.num_row_groups):
            for name, column in zip(nulls, file.read_row_group(group).columns, strict=True):
                nulls[name] += column.null_count
        ids = file.read(columns=["episode_id"]).column("episode_id")
    except (pa.ArrowException, OSError, KeyError) as error:
        raise reading_error(place, error) from error
    found = pc.call_function("min_max", [ids]).as_py()
    if found["min"] is None:
        raise CorruptStoreError(f"The file {place} has no episode ids.")
    bounds = ({"episode_id": found["min"]}, {"episode_id": found["max"]})
    return NewFile(place.name, file.metadata.num_rows, nulls, *bounds)
