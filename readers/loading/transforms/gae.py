"""`GAE`: advantages and the targets of a value function, from the values that a policy logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ....store.errors import InvalidArgumentError
from ....store.reserved import REWARD, TERMINATED
from ..arguments import discount_factor
from ..columns.episode_index import EpisodeIndex
from ..columns.specs import PRESENT
from ..columns.step_arrays import StepArrays
from .on_read import DerivedColumns
from .recurrence import discounted_sums

ADVANTAGE = "advantage"
VALUE_TARGET = "value_target"


@dataclass(frozen=True)
class GAE(DerivedColumns):
    """Adds `advantage` and `value_target`: generalised advantage estimation (Schulman et al. 2016).

    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equations 10 to 16:
    `delta_t = reward_t + gamma * V_(t+1) - V_t`, `advantage_t = delta_t + gamma * lam * advantage_(t+1)`, and
    `value_target_t = advantage_t + V_t`. The sums end with the episode. The V after the last
    transition is 0 where the episode terminated, and the value of the last observation elsewhere (truncated,
    cut, interrupted), which the policy must have logged: `env.log(value=...)` after the last step, or T + 1
    values for `write_episode`. Both columns are float64.

    Args:
        gamma: discount of a step.
        lam: the lambda of the paper, from 0 (one step) to 1 (the whole rest of the episode).
        value: the column of V. Shape () or (1,), or that of the rewards.
        missing: the V of a last observation that has none: "error"; "zero"; or "repeat", the V
            of the observation before it.
    """

    gamma: float = 0.99
    lam: float = 0.95
    value: str = "policy.value"
    missing: Literal["error", "zero", "repeat"] = "error"

    def __post_init__(self) -> None:
        """Check the numbers."""
        object.__setattr__(self, "gamma", discount_factor("gamma", self.gamma))
        object.__setattr__(self, "lam", discount_factor("lam", self.lam))
        if self.missing not in ("error", "zero", "repeat"):
            raise InvalidArgumentError(f"missing={self.missing!r}: expected 'error', 'zero' or 'repeat'.")

    @property
    def reads(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (REWARD, TERMINATED, self.value, self.value + PRESENT)

    @property
    def writes(self) -> tuple[str, ...]:
        """See `EpisodeTransform`."""
        return (ADVANTAGE, VALUE_TARGET)

    def compute(self, arrays: StepArrays) -> Mapping[str, np.ndarray]:
        """See `DerivedColumns`.

        Raises:
            InvalidArgumentError: a value is missing; the message says where and what to do.
        """
        index = arrays.index
        rewards = np.asarray(arrays.columns[REWARD], np.float64)
        values = self._values(arrays, rewards.shape)
        deltas = rewards - values
        deltas[:-1] += self.gamma * values[1:]
        deltas[index.padding] = 0
        advantage = discounted_sums(deltas, index, self.gamma * self.lam)
        targets = advantage + values
        targets[index.padding] = 0
        return {ADVANTAGE: advantage, VALUE_TARGET: targets}

    def _values(self, arrays: StepArrays, shape: tuple[int, ...]) -> np.ndarray:
        """Return the V of every row: float64, in the shape of the rewards."""
        index, present = arrays.index, arrays.columns[self.value + PRESENT]
        values = np.array(arrays.columns[self.value], np.float64)
        if values.shape == (*shape, 1):
            values = values[..., 0]
        if values.shape != shape:
            raise InvalidArgumentError(
                f"The values in {self.value!r} have the shape {values.shape[1:]}, rewards {shape[1:]}. GAE "
                "needs one value for each reward."
            )
        self._check_steps(index, present)
        ended = arrays.columns[TERMINATED][index.last_transitions]
        absent = ~present[index.padding]
        self._check_last(index, np.flatnonzero(absent & ~ended))
        values[index.padding[absent]] = 0 if self.missing == "zero" else values[index.padding[absent] - 1]
        values[index.padding[ended]] = 0
        return values

    def _check_steps(self, index: EpisodeIndex, present: np.ndarray) -> None:
        lost = ~present
        lost[index.padding] = False
        rows = np.flatnonzero(lost)
        if len(rows):
            episode = int(np.searchsorted(index.starts, rows[0], side="right")) - 1
            raise InvalidArgumentError(
                f"{len(rows)} of {index.transitions} transitions have no {self.value!r}, the first at t="
                f"{rows[0] - index.starts[episode]} of the episode at position {episode} of those loaded. "
                "GAE needs a value for each: load only episodes whose policy logged one, or name another "
                "column with value=..."
            )

    def _check_last(self, index: EpisodeIndex, episodes: np.ndarray) -> None:
        if self.missing == "error" and len(episodes):
            raise InvalidArgumentError(
                f"{len(episodes)} of {len(index)} episodes did not terminate and have no {self.value!r} at "
                f"their last observation, the first at position {episodes[0]} of those loaded; GAE needs it "
                "for what the rest would have brought. Log it after the last step (env.log(value=...), or "
                "T + 1 values for write_episode), load only terminated episodes (filter('terminated')), or "
                "choose a substitute: missing='zero' or missing='repeat'."
            )
