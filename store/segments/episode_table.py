"""The rows of the episodes table for one segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..dynamic.column_groups import ColumnSet
from ..dynamic.logical_types import field
from ..dynamic.rows import DynamicRows
from ..schema import LAST_OBSERVATION, MISSING, StepSchema
from .episode_columns import EpisodeColumns
from .episode_record import SegmentRows

_LARGEST = 2**63 - 1


def episodes_table(
    schema: StepSchema,
    run_id: str,
    ids: Sequence[str],
    records: EpisodeColumns,
    rows: SegmentRows,
    metadata: ColumnSet,
) -> pa.Table:
    """Return the episodes of a segment, one row each; `ids` are theirs, in order."""
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
        **_agent_columns(schema, records),
    }
    base = schema.episodes
    arrays = [
        pa.array(columns.get(column.name, getattr(records, column.name, None)), column.type)
        for column in base
    ]
    fields = list(base)
    if any(each.last_missing for each in facts):
        fields.append(LAST_OBSERVATION)
        missing = [MISSING if each.last_missing else None for each in facts]
        arrays.append(pa.array(missing, LAST_OBSERVATION.type))
    dynamic = DynamicRows.of([each.metadata for each in facts])
    for name, (kind, array) in metadata.columns(dynamic, 0, len(records)).items():
        fields.append(field(name, kind))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))


def _agent_columns(schema: StepSchema, records: EpisodeColumns) -> dict[str, Any]:
    """Return the columns of episodes that only multi-agent stores have."""
    if not schema.groups:
        return {}
    teams = [records.agents[number] for number in records.number.tolist()]
    return {
        "agents": [[agent.agent_id for agent in team] for team in teams],
        "agent_groups": [[schema.groups[agent.group].name for agent in team] for team in teams],
        "agent_lengths": [[agent.length for agent in team] for team in teams],
        "agent_returns": [[agent.episode_return for agent in team] for team in teams],
        "agent_terminations": [[agent.terminated for agent in team] for team in teams],
        "agent_truncations": [[agent.truncated for agent in team] for team in teams],
    }
