"""Parquet: one file with the transitions of a view, or with its steps; importing it gives the same store."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from ...readers.exporting.tables import LAYOUT, TABLES, TableExport
from ...readers.exporting.target import Export, export_format


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
