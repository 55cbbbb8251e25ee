"""Single transitions: an observation, what was done, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....store.schema import ACTION, FLAGS, OBSERVATION, REWARD
from ..episode_index import EpisodeIndex
from ..gather import take_rows
from ..step_arrays import StepArrays
from .unit import END_REASON, EPISODE, NEXT_OBSERVATION, STEP, Batch, Chosen, Units, end_reasons


@dataclass(frozen=True)
class Transitions(Units):
    """Each transition of an episode is a unit."""

    @property
    def default_keys(self) -> tuple[str, ...]:
        """See `Units`."""
        return (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.lengths

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """See `Units`."""
        index = arrays.index
        rows = index.starts[chosen.episodes] + chosen.numbers
        batch: Batch = {}
        for key in keys:
            if key == NEXT_OBSERVATION:
                batch[key] = take_rows(arrays.columns[OBSERVATION], rows + 1)
            elif key == END_REASON:
                batch[key] = end_reasons(index, chosen.episodes, chosen.numbers)
            elif key in (EPISODE, STEP):
                batch[key] = chosen.episodes if key == EPISODE else chosen.numbers
            else:
                batch[key] = take_rows(arrays.columns[key], rows)
        return batch
