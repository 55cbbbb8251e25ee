"""The rows of the episodes table for one segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from .families import ColumnSet
from .kinds import field
from .loose_rows import LooseRows
from .record_columns import EpisodeColumns
from .records import SegmentRows
from .schema import StepSchema

_LARGEST = 2**63 - 1


def episodes_table(
    schema: StepSchema,
    run_id: str,
    ids: Sequence[str],
    records: EpisodeColumns,
    rows: SegmentRows,
    metadata: ColumnSet,
) -> pa.Table:
    """The episodes of a segment, one row each; `ids` are theirs, in order."""
    facts = records.facts_in_order()
    seeds = [each.seed for each in facts]
    columns: dict[str, Any] = {
        "episode_id": ids,
        "run_id": [run_id] * len(records),
        "episode_return": records.episode_return.tolist(),
        "seed": [seed if seed is not None and abs(seed) <= _LARGEST else None for seed in seeds],
        "wide_seed": [str(seed) if seed is not None and abs(seed) > _LARGEST else None for seed in seeds],
        "options": [each.options for each in facts],
        "segment": [rows.segment] * len(records),
        "row_start": rows.row_start,
        "row_count": rows.row_count,
    }
    base = schema.episodes
    arrays = [
        pa.array(columns.get(column.name, getattr(records, column.name, None)), column.type)
        for column in base
    ]
    fields = list(base)
    loose = LooseRows.of([each.metadata for each in facts])
    for name, (kind, array) in metadata.columns(loose, 0, len(records)).items():
        fields.append(field(name, kind))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))
