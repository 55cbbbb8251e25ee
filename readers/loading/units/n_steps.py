"""n-step transitions: the discounted reward of the next n steps, and the observation after them.

The n-step return of Sutton and Barto (Reinforcement Learning, 2nd edition, section 7.1): a learner's target
is `reward + discount * value(next_observation)`. A span ends with its episode at the latest.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from ....store.reserved import (
    ACTION,
    DISCOUNT,
    END_REASON,
    FLAGS,
    NEXT_OBSERVATION,
    OBSERVATION,
    REWARD,
    SPAN,
    STEP,
    TERMINATED,
    TRUNCATED,
)
from ..arguments import discount_factor, step_count
from ..columns.episode_index import EpisodeIndex
from ..columns.gather import blank, take_rows, take_stretches
from ..columns.step_arrays import StepArrays
from ..output.tree import Tree
from .unit import Chosen, Computed, ReadKey, Units, end_reasons


@dataclass(frozen=True)
class NSteps(Units):
    """n-step transitions, one from each step of an episode; `store.loader(256, el.NSteps(5, gamma=0.99))`.

    A batch has, each of shape (b,): `span` (int64), the k <= n steps up to the episode's end at the latest;
    `reward`, the sum of gamma^i times the i-th reward; `discount` (float64), gamma^k, or 0 where the span
    terminated. `next_observation`, `terminated` and `truncated` are those of the span's end.

    Args:
        n: most transitions of a span, from 1 on.
        gamma: discount of a step, from 0 to 1.

    Raises:
        InvalidArgumentError: a value is outside its range.
    """

    default_keys = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION, *FLAGS, DISCOUNT, SPAN)
    own_keys: ClassVar = {DISCOUNT: (TERMINATED,), SPAN: ()}

    n: int
    _: KW_ONLY
    gamma: float = 0.99

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", step_count("n", self.n, 1))
        object.__setattr__(self, "gamma", discount_factor("gamma", self.gamma))

    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """See `Units`."""
        return index.usable

    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """See `Units`."""
        index, columns = arrays.index, arrays.columns
        rows = index.starts[chosen.episodes] + chosen.numbers
        span = np.minimum(self.n, index.usable[chosen.episodes] - chosen.numbers)
        last = rows + span - 1

        def read(key: str, column: str, shift: int) -> Tree:
            return take_rows(columns[column], rows + span if shift else rows)

        computed = {
            REWARD: lambda: self.returns(take_stretches(columns[REWARD], rows, self.n), span),
            TERMINATED: lambda: take_rows(columns[TERMINATED], last),
            TRUNCATED: lambda: take_rows(columns[TRUNCATED], last),
            DISCOUNT: lambda: self.discounts(columns[TERMINATED][last], span),
            SPAN: lambda: span,
            STEP: lambda: chosen.numbers,
            END_REASON: lambda: end_reasons(index, chosen.episodes, chosen.numbers + span - 1),
        }
        return computed, read

    @property
    def _powers(self) -> np.ndarray:
        return self.gamma ** np.arange(self.n + 1)

    def discounts(self, terminated: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return the factors of the values after the spans: float64, shape (b,)."""
        return np.where(terminated, 0.0, self._powers[span])

    def returns(self, stretches: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return discounted sums over the spans, in order of time; shape (b,), or (b, k) for k objectives.

        Args:
            stretches: fresh rewards, shape (b, n) or (b, n, k); those after the spans are overwritten.
            span: int64, shape (b,).
        """
        # Not multiplied by 0: what is not a number in one episode must not reach another.
        inside = np.arange(self.n) < span[:, None]
        blank(stretches, ~inside)
        factors = np.where(inside, self._powers[:-1], 0.0)
        return np.einsum("bn,bn...->b...", factors, stretches)
