"""The values of one row of an episode, read without its other rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..store.dynamic.column_groups import EXTRA, INFO, POLICY, STEP_FAMILIES, ColumnGroup, merge_rows
from .episode_data import EpisodeData

_KEYS = {"episode_id", "agent_id", "t"}


def row_values(episode: EpisodeData, t: int) -> tuple[dict[str, Any], dict[Any, Any], dict[Any, Any]]:
    """Return the values at t: the step's columns without images, the infos, and all others.

    The others are policy outputs, own columns and annotations. Of several agents, take one agent's episode.

    Raises:
        CorruptStoreError: the steps are damaged; the message names the file.
    """
    snapshot, start = episode._rows.snapshot, episode._start + t
    annotations = snapshot.annotation_files.annotations
    fields = [
        field
        for field in episode._columns
        if field.name not in _KEYS
        and field.name not in annotations
        and not pa.types.is_binary(field.type)
        and not any(family.owns(field) for family in STEP_FAMILIES)
    ]
    step = episode._block.table(fields, start, 1).to_pylist()[0] if fields else {}
    others = {**_dynamic(episode, POLICY, start), **_dynamic(episode, EXTRA, start)}
    for name, annotation in annotations.items():
        (others[name],) = episode._block.added(snapshot, annotation, start, 1).to_pylist()
    return step, _dynamic(episode, INFO, start), others


def _dynamic(episode: EpisodeData, family: ColumnGroup, start: int) -> dict[Any, Any]:
    fields = [field for field in episode._columns if family.owns(field)]
    return merge_rows(family, episode._block.table(fields, start, 1))[0] if fields else {}
