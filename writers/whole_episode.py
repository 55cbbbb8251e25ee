"""A whole episode handed over as arrays: checks, and its arrivals as one journal batch.

`EpisodeWriter.write_episode` uses it. Short episodes are fed through the row buffer with `single_value`; long
ones become one batch with no loop over steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..store.arrivals import with_loose_columns
from ..store.batches import single_value, slice_batch
from ..store.errors import InvalidArgumentError, SpaceMismatchError
from ..store.families import ColumnSet
from ..store.loose_rows import LooseRows
from ..store.schema import LATE_ROW, RESET_ROW, STEP_ROW, StepSchema


@dataclass(frozen=True)
class WholeEpisode:
    """The checked arrays of one episode.

    Attributes:
        length: T.
        observations, actions: batches of T+1 and T values, as given.
        rewards: float64, shape (T,) or (T, k).
        terminated, truncated: flags of the last transition.
        infos, extras: T+1 mappings each.
        policies: T+1 mappings; the last belongs to the last observation and is usually None.
    """

    length: int
    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: bool
    truncated: bool
    infos: Sequence[Mapping | None]
    policies: Sequence[Mapping | None]
    extras: Sequence[Mapping | None]

    @staticmethod
    def of(
        schema: StepSchema,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        infos: Any,
        policy: Mapping[str, Any] | None,
        extra: Mapping[str, Any] | None,
    ) -> WholeEpisode:
        """Check lengths and flags; see `EpisodeWriter.write_episode` for what is raised."""
        checked = _rewards(schema, rewards)
        length = len(checked)
        if length == 0:
            raise InvalidArgumentError(
                "The episode has no transition: rewards are empty. An episode needs at least one step."
            )
        _check_length("observations", observations, length + 1)
        _check_length("actions", actions, length)
        policies = _mappings("policy", policy, length, length + 1)
        return WholeEpisode(
            length,
            observations,
            actions,
            checked,
            _flag("terminations", terminations, length),
            _flag("truncations", truncations, length),
            _mappings("infos", infos, length + 1),
            [*policies, None][: length + 1],
            _mappings("extra", extra, length + 1),
        )


def batch_lengths(values: Any) -> set[int]:
    """The numbers of values that the parts of a batch have: one if it is sound, none if it has no arrays.

    Raises:
        TypeError: a part has no length.
    """
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple):
        return set().union(*map(batch_lengths, values))
    if isinstance(values, str | bytes):
        raise TypeError("text is no batch of values")
    return {len(values)}


def arrivals_batches(
    schema: StepSchema, number: int, whole: WholeEpisode, columns: Sequence[ColumnSet]
) -> list[pa.RecordBatch]:
    """The episode's arrivals as journal batches: one, unless a column would be larger than Arrow allows.

    Raises:
        SpaceMismatchError: observations, actions or rewards do not fit.
    """
    total = whole.length + 1 + (whole.policies[-1] is not None)
    most = max(1, min(schema.observation.max_rows, schema.action.max_rows, total))
    return [
        _arrivals(schema, number, whole, columns, start, min(start + most, total))
        for start in range(0, total, most)
    ]


def _arrivals(
    schema: StepSchema,
    number: int,
    whole: WholeEpisode,
    columns: Sequence[ColumnSet],
    start: int,
    stop: int,
) -> pa.RecordBatch:
    """Arrivals `[start, stop)`: 0 is the reset, t the step that led to observation t, T+1 what came late."""
    late = int(stop > whole.length + 1)
    reset = int(start == 0)
    row_kinds = np.full(stop - start, STEP_ROW, np.int16)
    row_kinds[:reset] = RESET_ROW
    row_kinds[len(row_kinds) - late :] = LATE_ROW
    arrays: list[pa.Array] = [pa.array(np.full(stop - start, number, np.int64)), pa.array(row_kinds)]
    observations = slice_batch(whole.observations, start, stop - late)
    found = schema.observation.encode_many(observations, stop - late - start)
    arrays += [_padded(array, 0, late) for array in found]
    first, last = start + reset - 1, stop - late - 1
    outcomes = schema.action.encode_many(slice_batch(whole.actions, first, last), last - first)
    outcomes += schema.reward.encode_many(whole.rewards[first:last], last - first)
    for flag in (whole.terminated, whole.truncated):
        flags = np.zeros(last - first, bool)
        flags[last - first - 1 :] = flag and last == whole.length
        outcomes.append(pa.array(flags))
    arrays += [_padded(array, reset, late) for array in outcomes]
    families = (
        [*whole.infos, None][start:stop],
        [None, *whole.policies][start:stop],
        [*whole.extras, None][start:stop],
    )
    loose = [
        column_set.columns(LooseRows.of(rows), 0, stop - start)
        for column_set, rows in zip(columns, families, strict=True)
        if any(rows)
    ]
    return with_loose_columns(pa.record_batch(arrays, schema.journal), loose)


def _padded(array: pa.Array, before: int, after: int) -> pa.Array:
    if not before and not after:
        return array
    return pa.concat_arrays([pa.nulls(before, array.type), array, pa.nulls(after, array.type)])


def _check_length(name: str, values: Any, expected: int) -> None:
    found = _lengths(name, values)
    if not found <= {expected}:
        counts = " and ".join(map(str, sorted(found)))
        raise SpaceMismatchError(
            f"{name}: got {counts} values; expected {expected}. An episode of T rewards has T "
            f"actions and T+1 "
            "observations."
        )


def _lengths(name: str, values: Any) -> set[int]:
    try:
        return batch_lengths(values)
    except TypeError as error:
        raise SpaceMismatchError(f"{name} is or holds {type(values).__name__}: {error}.") from error


def _rewards(schema: StepSchema, rewards: Any) -> np.ndarray:
    found = np.asarray(rewards)
    shape = schema.reward_shape
    if found.dtype.kind not in "biuf" or found.shape[1:] != shape or found.ndim != 1 + len(shape):
        expected = "(T,)" if not shape else f"(T, {shape[0]})"
        if found.size or found.ndim != 1:
            raise SpaceMismatchError(
                f"The rewards have dtype {found.dtype} and shape {found.shape}; expected numbers of "
                f"shape {expected}."
            )
    return found.astype(np.float64)


def _flag(name: str, values: Any, length: int) -> bool:
    found = np.asarray(values)
    if found.dtype != bool:
        raise SpaceMismatchError(f"{name} have dtype {found.dtype}; expected bool.")
    if found.ndim == 0:
        return bool(found)
    if found.shape != (length,):
        raise SpaceMismatchError(
            f"{name} have shape {found.shape}; expected ({length},), one per reward, or a single bool."
        )
    if found[:-1].any():
        early = int(np.flatnonzero(found)[0])
        raise SpaceMismatchError(
            f"{name}[{early}] is set before the last transition ({length - 1}). Split the data into "
            f"episodes first."
        )
    return bool(found[-1])


def _mappings(name: str, values: Any, *lengths: int) -> list[Mapping | None]:
    """Rows of mappings, from a list of mappings or a mapping of arrays; empty rows if there are none."""
    if values is None or (isinstance(values, Mapping) and not values):
        return [None] * lengths[0]
    if isinstance(values, Mapping):
        found = _lengths(name, values)
        if len(found) != 1 or not found <= set(lengths):
            counts = " and ".join(map(str, sorted(found)))
            raise SpaceMismatchError(
                f"{name} has columns of length {counts}; expected {_either(lengths)} each."
            )
        return [single_value(values, row) for row in range(found.pop())]
    rows = _lengths(name, values) and list(values)
    if len(rows) not in lengths or not all(isinstance(row, Mapping | None) for row in rows):
        raise SpaceMismatchError(f"{name} has {len(rows)} entries; expected {_either(lengths)} mappings.")
    return list(rows)


def _either(lengths: Sequence[int]) -> str:
    return " or ".join(str(length) for length in lengths)
