"""Delta windows: for each key the values at some steps before and after a transition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....store.schema import OBSERVATION
from ..episode_index import EpisodeIndex
from ..gather import take_rows
from ..step_arrays import StepArrays
from .unit import END_REASON, EPISODE, MASK, NEXT_OBSERVATION, STEP, Batch, Chosen, Units, end_reasons


@dataclass(frozen=True)
class Deltas(Units):
    """Each transition of an episode is a unit; each key has values at steps relative to it.

    Before the first and after the last value of its episode a key repeats that value, and its mask is False.
    Observations reach to the last one, which no transition follows.

    Attributes:
        steps: by key, the relative steps; a key that a batch has beside these has the transition's own value.
    """

    steps: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def own_keys(self) -> dict[str, tuple[str, ...]]:
        """See `Units`."""
        return {MASK: ()}

    @property
    def default_keys(self) -> tuple[str, ...]:
        """See `Units`."""
        return (*(name for name, _ in self.steps), MASK)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.lengths

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """See `Units`; a key with k steps has the shape (b, k, ...), its mask (b, k)."""
        index = arrays.index
        starts = index.starts[chosen.episodes]
        wanted = dict(self.steps)
        batch: Batch = {}
        masks: dict[str, np.ndarray] = {}
        for key in keys:
            if key == END_REASON:
                batch[key] = end_reasons(index, chosen.episodes, chosen.numbers)
            elif key in (EPISODE, STEP):
                batch[key] = chosen.episodes if key == EPISODE else chosen.numbers
            elif key in wanted:
                steps = chosen.numbers[:, None] + np.array(wanted[key])
                rows, masks[key] = _inside(steps, self._last(index, key, chosen.episodes)[:, None])
                batch[key] = take_rows(arrays.columns[_column(key)], starts[:, None] + rows + _shift(key))
            elif key != MASK:
                rows = starts + chosen.numbers + _shift(key)
                batch[key] = take_rows(arrays.columns[_column(key)], rows)
        return {key: masks if key == MASK else batch[key] for key in keys}

    @staticmethod
    def _last(index: EpisodeIndex, key: str, episodes: np.ndarray) -> np.ndarray:
        """The last step at which a key has a value."""
        return index.lengths[episodes] - (key != OBSERVATION)


def _column(key: str) -> str:
    return OBSERVATION if key == NEXT_OBSERVATION else key


def _shift(key: str) -> int:
    return int(key == NEXT_OBSERVATION)


def _inside(steps: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nearest = np.clip(steps, 0, last)
    return nearest, nearest == steps
