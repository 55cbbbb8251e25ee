"""n-step transitions: what an action brought within n steps, and where that leads.

The n-step return of Sutton and Barto (Reinforcement Learning, 2nd edition, section 7.1): a learner's target
is `reward + discount * value(next_observation)`. A span ends with its episode at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....store.schema import ACTION, FLAGS, OBSERVATION, REWARD, TERMINATED, TRUNCATED
from ..episode_index import EpisodeIndex
from ..gather import blank, take_rows, take_stretches
from ..step_arrays import StepArrays
from .unit import END_REASON, EPISODE, NEXT_OBSERVATION, STEP, Batch, Chosen, Units, end_reasons

DISCOUNT = "discount"
SPAN = "span"


@dataclass(frozen=True)
class NSteps(Units):
    """Each transition of an episode begins a unit.

    Attributes:
        n: most transitions of a span.
        gamma: discount of a step.
    """

    n: int
    gamma: float

    @property
    def default_keys(self) -> tuple[str, ...]:
        """See `Units`."""
        return (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS, DISCOUNT, SPAN)

    @property
    def own_keys(self) -> dict[str, tuple[str, ...]]:
        """See `Units`."""
        return {DISCOUNT: (TERMINATED,), SPAN: ()}

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.lengths

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """See `Units`."""
        index = arrays.index
        rows = index.starts[chosen.episodes] + chosen.numbers
        span = np.minimum(self.n, index.lengths[chosen.episodes] - chosen.numbers)
        last = rows + span - 1
        batch: Batch = {}
        for key in keys:
            if key == REWARD:
                batch[key] = self._rewards(arrays.columns[REWARD], rows, span)
            elif key == NEXT_OBSERVATION:
                batch[key] = take_rows(arrays.columns[OBSERVATION], rows + span)
            elif key in (TERMINATED, TRUNCATED):
                batch[key] = take_rows(arrays.columns[key], last)
            elif key == DISCOUNT:
                ended = arrays.columns[TERMINATED][last]
                batch[key] = np.where(ended, 0.0, self._powers[span])
            elif key == SPAN:
                batch[key] = span
            elif key == END_REASON:
                batch[key] = end_reasons(index, chosen.episodes, chosen.numbers + span - 1)
            elif key in (EPISODE, STEP):
                batch[key] = chosen.episodes if key == EPISODE else chosen.numbers
            else:
                batch[key] = take_rows(arrays.columns[key], rows)
        return batch

    @property
    def _powers(self) -> np.ndarray:
        return self.gamma ** np.arange(self.n + 1)

    def _rewards(self, rewards: np.ndarray, rows: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Discounted sums over the spans, in order of time; shape (b,), or (b, k) for k objectives."""
        stretches = take_stretches(rewards, rows, self.n)
        # Not multiplied by 0: what is not a number in one episode must not reach another.
        inside = np.arange(self.n) < span[:, None]
        blank(stretches, ~inside)
        factors = np.where(inside, self._powers[:-1], 0.0)
        return np.einsum("bn,bn...->b...", factors, stretches)
