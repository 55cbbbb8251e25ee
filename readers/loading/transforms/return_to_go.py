"""`ReturnToGo`: what is still to come of an episode's rewards, at each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....store.schema import REWARD
from ..arguments import discount_factor
from ..columns.step_arrays import StepArrays
from .on_read import DerivedColumns
from .recurrence import discounted_sums


@dataclass(frozen=True)
class ReturnToGo(DerivedColumns):
    """Adds the discounted sum of the rewards from each step to its episode's end; float64.

    `R_t = reward_t + gamma * R_(t+1)`: Sutton and Barto, Reinforcement Learning, 2nd edition, section 3.3.
    With gamma 1 it is what a Decision Transformer is conditioned on (Chen et al. 2021, "Decision Transformer:
    Reinforcement Learning via Sequence Modeling"). The sum ends with the recorded rewards, also where the
    episode was truncated or cut; what might have come later is not guessed.

    Args:
        gamma: discount of a step.
        key: the name of the column, so that a batch can have several.
    """

    gamma: float = 1.0
    key: str = "return_to_go"

    def __post_init__(self) -> None:
        """Check the discount."""
        object.__setattr__(self, "gamma", discount_factor("gamma", self.gamma))

    @property
    def reads(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (REWARD,)

    @property
    def writes(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (self.key,)

    def compute(self, arrays: StepArrays) -> Mapping[str, np.ndarray]:
        """See `DerivedColumns`."""
        rewards = np.asarray(arrays.columns[REWARD], np.float64)
        return {self.key: discounted_sums(rewards, arrays.index, self.gamma)}
