"""Several whole episodes handed over as arrays, in one journal batch.

Imports write them so, since a batch for each short episode costs more than its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.dynamic.column_groups import ColumnSet, DynamicRows
from ...store.journal.episodes import (
    EpisodeColumns,
    EpisodeFacts,
    EpisodeRecord,
    add_in_order,
    end_reason_of,
    timestamp_now,
)
from ...store.schema import RESET_ROW, STEP_ROW, StepSchema
from ..rows.arrivals import with_dynamic_columns
from ..rows.step_rows import WholeRows
from ..session.finished_episodes import BulkEpisodes
from ..session.session import RunSession
from .source_keys import SourceKeys, with_source_key
from .whole_episode import WholeEpisode

#: Arguments of `write_episode` that are not about steps.
_FACTS = ("seed", "options", "metadata", "env_index", "source_key")


def write_many(
    session: RunSession[WholeRows],
    schema: StepSchema,
    sources: SourceKeys,
    episodes: Sequence[Mapping[str, Any]],
) -> int | None:
    """Write episodes and return their transitions, without those that `on_duplicate="skip"` leaves out.

    Args:
        episodes: keyword arguments of `EpisodeWriter.write_episode`.

    Returns:
        None if one batch cannot hold them; then nothing was recorded, and they can be written one by one.

    Raises:
        EpisodelakeError: as `write_episode` for one of them; nothing was recorded.
    """
    fresh = sources.fresh([each.get("source_key") for each in episodes])
    episodes = [each for each, is_fresh in zip(episodes, fresh, strict=True) if is_fresh]
    if not episodes:
        return 0
    facts, wholes = [], []
    for given in episodes:
        seed, options, metadata, env_index, key = (given.get(name) for name in _FACTS)
        facts.append((env_index, EpisodeFacts.of(seed, options, with_source_key(metadata, key))))
        steps = {name: value for name, value in given.items() if name not in _FACTS}
        wholes.append(WholeEpisode.checked(schema, **steps))
    numbers = session.take_numbers(len(wholes)) + np.arange(len(wholes))
    batch = _arrivals(schema, numbers, wholes, session.columns)
    if batch is None:
        return None
    records = [
        record_of(schema, int(number), env_index, whole, own)
        for number, whole, (env_index, own) in zip(numbers, wholes, facts, strict=True)
    ]
    session.rows.add(BulkEpisodes(EpisodeColumns.of(records), [batch]))
    sources.add([each["source_key"] for each in episodes if each.get("source_key") is not None])
    return sum(whole.length for whole in wholes)


def record_of(
    schema: StepSchema, number: int, env_index: int | None, whole: WholeEpisode, facts: EpisodeFacts
) -> EpisodeRecord:
    """Return the record of an episode that has just ended."""
    now = timestamp_now()
    total: Any = [0.0] * schema.reward_shape[0] if schema.reward_shape else 0.0
    return EpisodeRecord(
        number=number,
        env_index=env_index,
        started_at=now,
        ended_at=now,
        length=whole.length,
        episode_return=add_in_order(total, whole.rewards),
        terminated=whole.terminated,
        truncated=whole.truncated,
        end_reason=end_reason_of(whole.terminated, whole.truncated, "cut"),
        facts=replace(facts, last_missing=whole.last_missing),
    )


def _arrivals(
    schema: StepSchema, numbers: np.ndarray, wholes: Sequence[WholeEpisode], columns: Sequence[ColumnSet]
) -> pa.RecordBatch | None:
    """Return the arrivals of episodes as a journal batch that owns its memory.

    Returns:
        None if one batch cannot hold them: they have values of different types, late rows or too many rows.

    Raises:
        SpaceMismatchError: observations, actions or rewards do not fit.
    """
    lengths = np.array([whole.length for whole in wholes])
    total = int(lengths.sum()) + len(wholes)
    most = min(schema.observation.max_rows, schema.action.max_rows)
    if total > most or any(whole.late is not None for whole in wholes):
        return None
    observed = np.array([whole.observed for whole in wholes])
    try:
        seen = _joined([whole.observations for whole in wholes])
        acted = _joined([whole.actions for whole in wholes])
    except _DifferentError:
        return None
    rewards = np.concatenate([whole.rewards for whole in wholes])
    resets = np.zeros(total, bool)
    resets[np.cumsum(lengths + 1) - lengths - 1] = True
    ends = np.cumsum(lengths + 1) - 1
    flags = []
    for name in ("terminated", "truncated"):
        values = np.zeros(total, bool)
        values[ends] = [getattr(whole, name) for whole in wholes]
        flags.append(pa.array(values, mask=resets))
    missing = np.zeros(total, bool)
    missing[ends] = observed == lengths
    outcomes = schema.action.encode_many(acted, len(rewards))
    outcomes += schema.reward.encode_many(rewards, len(rewards))
    arrays: list[pa.Array] = [
        pa.array(np.repeat(numbers, lengths + 1)),
        pa.array(np.where(resets, RESET_ROW, STEP_ROW).astype(np.int16)),
        *(_spread(each, missing) for each in schema.observation.encode_many(seen, int(observed.sum()))),
        *(_spread(each, resets) for each in outcomes),
        *flags,
    ]
    dynamic = []
    for column_set, name in zip(columns, ("infos", "policies", "extras"), strict=True):
        if any(getattr(whole, name) is not None for whole in wholes):
            rows = [row for whole in wholes for row in _rows(whole, name)]
            dynamic.append(column_set.columns(DynamicRows.of(rows), 0, total))
    return with_dynamic_columns(pa.record_batch(arrays, schema.journal), dynamic)


def _rows(whole: WholeEpisode, name: str) -> Sequence[Mapping | None]:
    """Return a mapping for each arrival; what the policy said came with the step after the reset."""
    rows = getattr(whole, name)
    if rows is None:
        return [None] * (whole.length + 1)
    return [None, *rows] if name == "policies" else rows


def _spread(array: pa.Array, nulls: np.ndarray) -> pa.Array:
    """Return an array with NULL at the marked rows and its values, in order, at the others."""
    if not nulls.any():
        return array
    return array.take(pa.array(np.cumsum(~nulls) - 1, mask=nulls))


class _DifferentError(Exception):
    """Values of several types: joined, one would take the type of the other."""


def _joined(parts: Sequence[Any]) -> Any:
    """Return batches of values as one, in memory of its own."""
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise _DifferentError
    if isinstance(first, Mapping):
        if any(part.keys() != first.keys() for part in parts):
            raise _DifferentError
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        if any(len(part) != len(first) for part in parts):
            raise _DifferentError
        return tuple(_joined(each) for each in zip(*parts, strict=True))
    if type(first) is not np.ndarray or any(
        (part.dtype, part.shape[1:]) != (first.dtype, first.shape[1:]) for part in parts
    ):
        raise _DifferentError
    return np.concatenate(parts)
