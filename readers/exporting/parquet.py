"""Plain Parquet: one file with the transitions of a view, or with its steps.

The file's metadata have the spaces and the names of your own step columns, so importing it gives a store with
the same. Frames are bytes, as
in `steps`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pyarrow.parquet as pq

from ...store.names import EXTRA_KEY, SPACES_KEY
from ...store.spaces import space_to_json
from .tables import OPTIONS, TableExport
from .target import Export


class _Format:
    name = "parquet"
    extra = None
    folder = False
    agents = False
    annotations = True
    options: ClassVar[dict[str, str]] = OPTIONS

    def write(self, export: Export, target: Path) -> None:
        """Write the file."""
        table = TableExport(export)
        manifest = export.context.snapshot.manifest
        spaces = [space_to_json(manifest.observation_space), space_to_json(manifest.action_space)]
        told = {SPACES_KEY: spaces, EXTRA_KEY: table.extra}
        schema = table.schema.with_metadata({key: json.dumps(value) for key, value in told.items()})
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            for rows in table.batches():
                writer.write_table(rows.cast(schema))


FORMAT = _Format()
