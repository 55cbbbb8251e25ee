"""Whole episodes, padded to the longest of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....store.schema import ACTION, FLAGS, OBSERVATION, REWARD
from ..episode_index import EpisodeIndex
from ..gather import blank, take_stretches
from ..step_arrays import StepArrays
from ..tree import map_leaves
from .unit import END_REASON, EPISODE, MASK, NEXT_OBSERVATION, STEP, Batch, Chosen, Units, end_reasons

LENGTH = "length"


@dataclass(frozen=True)
class WholeEpisodes(Units):
    """Each episode is a unit: T + 1 observations, T of everything else; zeros follow the shorter ones."""

    ragged = True

    @property
    def default_keys(self) -> tuple[str, ...]:
        """See `Units`."""
        return (OBSERVATION, ACTION, REWARD, *FLAGS, MASK, LENGTH)

    @property
    def own_keys(self) -> dict[str, tuple[str, ...]]:
        """See `Units`."""
        return {MASK: (), LENGTH: ()}

    @property
    def alike(self) -> bool:
        """See `Units`: a batch is as long as its longest episode."""
        return False

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return np.ones(len(index), np.int64)

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """See `Units`; with T the longest, observations are (b, T + 1, ...), everything else (b, T, ...)."""
        index = arrays.index
        lengths = index.lengths[chosen.episodes]
        starts = index.starts[chosen.episodes]
        longest = int(lengths.max(initial=0))
        steps = np.broadcast_to(np.arange(longest), (len(chosen), longest))
        batch: Batch = {}
        for key in keys:
            if key in (MASK, STEP):
                batch[key] = steps < lengths[:, None] if key == MASK else steps.copy()
            elif key == LENGTH:
                batch[key] = lengths
            elif key == EPISODE:
                batch[key] = chosen.episodes
            elif key == END_REASON:
                batch[key] = end_reasons(index, chosen.episodes[:, None], steps)
            else:
                batch[key] = _stretch(arrays, key, starts, lengths, longest)
        return batch

    def join(self, batches: Sequence[Batch]) -> Batch:
        """See `Units`; all become as long as the longest."""
        joined = map_leaves(lambda *parts: np.concatenate(_lengthened(parts)), *batches)
        if STEP in joined:
            joined[STEP][:] = np.arange(joined[STEP].shape[1])
        return joined


def _lengthened(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays of shape (b, T, ...) with zeros up to the largest T; those of shape (b,) as they are."""
    if parts[0].ndim < 2:
        return list(parts)
    longest = max(part.shape[1] for part in parts)
    unchanged = [(0, 0)] * (parts[0].ndim - 2)
    return [np.pad(part, [(0, 0), (0, longest - part.shape[1]), *unchanged]) for part in parts]


def _stretch(
    arrays: StepArrays, key: str, starts: np.ndarray, lengths: np.ndarray, longest: int
) -> np.ndarray:
    following = key == NEXT_OBSERVATION
    column = arrays.columns[OBSERVATION if following else key]
    extra = key == OBSERVATION
    values = take_stretches(column, starts + following, longest + extra)
    blank(values, np.arange(longest + extra) >= (lengths + extra)[:, None])
    return values
