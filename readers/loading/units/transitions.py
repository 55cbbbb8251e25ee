"""Single transitions: an observation, the action taken there, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....store.reserved import ACTION, END_REASON, FLAGS, NEXT_OBSERVATION, OBSERVATION, REWARD, STEP
from ..columns.episode_index import EpisodeIndex
from ..columns.gather import take_rows
from ..columns.step_arrays import StepArrays
from ..output.tree import Tree
from .unit import Chosen, Computed, ReadKey, Units, end_reasons


@dataclass(frozen=True)
class Transitions(Units):
    """Single transitions, the default; `store.loader(256)`. Arrays of a batch have the shape (b, ...)."""

    default_keys = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`."""
        index = arrays.index
        rows = index.starts[chosen.episodes] + chosen.numbers

        def read(key: str, column: str, shift: int) -> Tree:
            return take_rows(arrays.columns[column], rows + shift if shift else rows)

        computed = {
            STEP: lambda: chosen.numbers,
            END_REASON: lambda: end_reasons(index, chosen.episodes, chosen.numbers),
        }
        return computed, read
