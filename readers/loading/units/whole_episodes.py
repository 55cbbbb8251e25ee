"""Whole episodes, padded to the longest of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ....store.reserved import (
    ACTION,
    END_REASON,
    FLAGS,
    LENGTH,
    MASK,
    OBSERVATION,
    REWARD,
    STEP,
    is_observation,
)
from ..columns.episode_index import EpisodeIndex
from ..columns.gather import blank, take_stretches
from ..columns.step_arrays import StepArrays
from ..output.tree import Tree, map_leaves
from .unit import Batch, Chosen, Computed, ReadKey, Units, end_reasons


@dataclass(frozen=True)
class WholeEpisodes(Units):
    """Whole episodes, padded to the longest of a batch; `store.loader(8, el.WholeEpisodes())`.

    With T the longest length, observations have the shape (b, T + 1, ...) and everything else (b, T, ...).
    Zeros follow the shorter episodes, as `mask` (bool, shape (b, T)) and `length` (int64, shape (b,)) show.
    `unpadded` splits a batch into its episodes.
    """

    ragged = True
    default_keys = (OBSERVATION, ACTION, REWARD, *FLAGS, MASK, LENGTH)
    own_keys: ClassVar = {MASK: (), LENGTH: ()}

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return np.minimum(index.usable, 1)

    def needs_last(self, keys: Sequence[str]) -> bool:
        """See `Units`."""
        return any(map(is_observation, keys)) or super().needs_last(keys)

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`; with T the longest, observations are (b, T + 1, ...), everything else (b, T, ...)."""
        index = arrays.index
        lengths = index.usable[chosen.episodes]
        starts = index.starts[chosen.episodes]
        longest = int(lengths.max(initial=0))
        steps = np.broadcast_to(np.arange(longest), (len(chosen), longest))

        def read(key: str, column: str, shift: int) -> Tree:
            extra = is_observation(key)
            values = take_stretches(arrays.columns[column], starts + shift, longest + extra)
            blank(values, np.arange(longest + extra) >= (lengths + extra)[:, None])
            return values

        computed = {
            MASK: lambda: steps < lengths[:, None],
            STEP: steps.copy,
            LENGTH: lambda: lengths,
            END_REASON: lambda: end_reasons(index, chosen.episodes[:, None], steps),
        }
        return computed, read

    def join(self, batches: Sequence[Batch]) -> Batch:
        """See `Units`; pads all batches to the longest."""
        joined = map_leaves(lambda *parts: np.concatenate(_lengthened(parts)), *batches)
        if STEP in joined:
            joined[STEP][:] = np.arange(joined[STEP].shape[1])
        return joined


def _lengthened(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Pad arrays of shape (b, T, ...) with zeros to the largest T; return those of shape (b,) unchanged."""
    if parts[0].ndim < 2:
        return list(parts)
    longest = max(part.shape[1] for part in parts)
    unchanged = [(0, 0)] * (parts[0].ndim - 2)
    return [np.pad(part, [(0, 0), (0, longest - part.shape[1]), *unchanged]) for part in parts]
