"""Rollouts of one message whose writer died: with the transition that they lack they are episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..journal.packed_columns import PackedRows
from ..journal.reading import PartReader
from ..names import FLAGS, REWARD
from ..schema import JOURNAL_KIND, JOURNAL_NUMBER, LAST_OBSERVATION, MISSING, RESET_ROW, STEP_ROW, StepSchema
from .recovered_episodes import RecoveredEpisode

#: Own columns of a message; the second one is there where the role does not say who sampled it.
_ROLE, _SAMPLED = "role", "sampled"


def add_transitions(
    schema: StepSchema, parts: Sequence[Path], episodes: Mapping[int, RecoveredEpisode]
) -> list[pa.RecordBatch]:
    """Give episodes of a first row alone a transition whose observation is missing.

    Args:
        schema: of a store of rollouts.
        parts: the parts of the journal.
        episodes: those without a step, by number; those with a message get one.

    Returns:
        The journal rows of the transitions.

    Raises:
        CorruptStoreError: a part is damaged.
    """
    if not episodes:
        return []
    sampled: dict[int, bool] = {}
    for part in parts:
        for batch in PartReader(part).batches():
            numbers, row_kinds = (
                batch.rows.column(column.name).to_numpy() for column in (JOURNAL_NUMBER, JOURNAL_KIND)
            )
            for row in np.flatnonzero(np.isin(numbers, list(episodes)) & (row_kinds == RESET_ROW)).tolist():
                own = PackedRows.of(batch.rows, part).part(row, row + 1).unpacked().to_pylist()[0]
                if own.get(_ROLE) is not None:
                    said = own.get(_SAMPLED)
                    sampled[int(numbers[row])] = own[_ROLE] == "assistant" if said is None else bool(said)
    for number in sampled:
        episodes[number].steps = 1
        # Its end as far as it is known: none of the flags.
        episodes[number].end = {**episodes[number].begin, LAST_OBSERVATION.name: MISSING}
    if not sampled:
        return []
    values: dict[str, list[Any]] = {
        JOURNAL_NUMBER.name: list(sampled),
        JOURNAL_KIND.name: [STEP_ROW] * len(sampled),
        schema.action.fields[0].name: [int(each) for each in sampled.values()],
        REWARD: [0.0] * len(sampled),
        **{flag: [False] * len(sampled) for flag in FLAGS},
    }
    nothing = [None] * len(sampled)
    arrays = [pa.array(values.get(column.name, nothing), column.type) for column in schema.journal]
    return [pa.record_batch(arrays, schema=schema.journal)]
