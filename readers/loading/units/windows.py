"""Windows: a fixed number of steps in a row, within one episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....store.schema import ACTION, FLAGS, OBSERVATION, REWARD
from ..episode_index import EpisodeIndex
from ..gather import blank, take_stretches
from ..step_arrays import StepArrays
from .unit import END_REASON, EPISODE, MASK, NEXT_OBSERVATION, STEP, Batch, Chosen, Units, end_reasons

Pad = Literal["left", "right"]


@dataclass(frozen=True)
class Windows(Units):
    """`burn_in + length` transitions in a row; what lies outside the episode is zero and not in the mask.

    Without padding a window begins at every `stride`-th step at which a whole one fits. Padded on the right,
    one begins at every `stride`-th step; padded on the left, one ends at the last step and at every
    `stride`-th step before it. Steps to burn in stand before the window; near the beginning of an episode
    there are fewer, and the rest is padding.

    Attributes:
        length: transitions of a window.
        stride: steps from a window to the next.
        pad: on which side windows may be padded.
        burn_in: steps before it.
    """

    length: int
    stride: int = 1
    pad: Pad | None = None
    burn_in: int = 0

    @property
    def own_keys(self) -> dict[str, tuple[str, ...]]:
        """See `Units`."""
        return {MASK: ()}

    @property
    def default_keys(self) -> tuple[str, ...]:
        """See `Units`."""
        return (OBSERVATION, ACTION, REWARD, *FLAGS, MASK)

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        if self.pad is None:
            return np.maximum((index.lengths - self.length) // self.stride + 1, 0)
        return -(-index.lengths // self.stride)

    def _first_steps(self, index: EpisodeIndex, chosen: Chosen) -> np.ndarray:
        """The step at which each begins, burn-in included; negative where it is padded on the left."""
        steps = chosen.numbers * self.stride
        if self.pad == "left":
            lengths = index.lengths[chosen.episodes]
            steps += (lengths - 1) % self.stride - self.length + 1
        return steps - self.burn_in

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """See `Units`; arrays have the shape (b, burn_in + length, ...)."""
        index = arrays.index
        size = self.burn_in + self.length
        first = self._first_steps(index, chosen)
        starts = index.starts[chosen.episodes] + first
        mask = self._mask(index, chosen.episodes, first)
        absent = None if mask.all() else ~mask
        batch: Batch = {}
        for key in keys:
            if key == MASK:
                batch[key] = mask
            elif key in (END_REASON, STEP):
                steps = first[:, None] + np.arange(size)
                reasons = end_reasons(index, chosen.episodes[:, None], steps)
                batch[key] = reasons if key == END_REASON else steps
            elif key == EPISODE:
                batch[key] = chosen.episodes
            else:
                following = key == NEXT_OBSERVATION
                column = arrays.columns[OBSERVATION if following else key]
                batch[key] = take_stretches(column, starts + following, size)
                if absent is not None:
                    blank(batch[key], absent)
        return batch

    def _mask(self, index: EpisodeIndex, episodes: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Which steps are real: bool, shape (b, burn_in + length)."""
        if self.pad is None and not self.burn_in:
            return np.ones((len(first), self.length), bool)
        steps = first[:, None] + np.arange(self.burn_in + self.length)
        return (steps >= 0) & (steps < index.lengths[episodes][:, None])
