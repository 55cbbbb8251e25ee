"""Priorities of units: how likely each is drawn, and how much it counts for it (Schaul et al. 2016).

Prioritised experience replay (Schaul, Quan, Antonoglou and Silver 2016, https://arxiv.org/abs/1511.05952,
section 3.3 and 3.4): unit i is drawn with probability P(i) = p_i / sum of all p, where
p_i = (priority_i + epsilon) ** alpha, and counts with the weight (N * P(i)) ** -beta, scaled so that the
largest is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...store.errors import InvalidArgumentError
from .sum_tree import SumTree


@dataclass(frozen=True)
class Prioritised:
    """How a loader draws by priority; `loader(prioritised=Prioritised())`.

    Attributes:
        alpha: from 0 on: how much the priorities matter; 0 draws all units alike.
        beta: 0 to 1: how much the weights make up for it; 1 wholly. A loader's `beta` can be raised as the
            training goes on.
        epsilon: above 0, added to each priority, so that none is never drawn again; 0 if zero means that.
        weights: what the largest weight belongs to: "all" (the unit least likely to be drawn of all, so that
            a unit's weight depends on the priorities alone, as in the OpenAI Baselines and TorchRL) or
            "batch" (the least likely of the batch, so that each batch has a weight of 1, as in Dopamine).
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6
    weights: Literal["all", "batch"] = "all"

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha, math.inf)
        _check_number("epsilon", self.epsilon, math.inf)
        check_beta(self.beta)
        if self.weights not in ("all", "batch"):
            raise InvalidArgumentError(f"weights={self.weights!r}: expected 'all' or 'batch'.")


def check_beta(beta: Any) -> float:
    """The exponent of weights.

    Raises:
        InvalidArgumentError: it is no number from 0 to 1.
    """
    return _check_number("beta", beta, 1.0)


def _check_number(name: str, value: Any, most: float) -> float:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 <= value <= most or math.isinf(value):
        span = "a number from 0 on" if math.isinf(most) else f"a number from 0 to {most:g}"
        raise InvalidArgumentError(f"{name}={value!r}: expected {span}.")
    return float(value)


class Priorities:
    """The priorities of numbered units.

    Args:
        rule: how they are used.
        powers: float64, shape (n,): (priority + epsilon) ** alpha of each unit; copied.
    """

    def __init__(self, rule: Prioritised, powers: np.ndarray) -> None:
        self._rule = rule
        self._tree = SumTree(powers)
        self.beta = rule.beta

    def __len__(self) -> int:
        """Number of units."""
        return len(self._tree)

    @property
    def powers(self) -> np.ndarray:
        """(priority + epsilon) ** alpha of each unit: float64, shape (n,); not to be written to."""
        return self._tree.values

    def draw(self, fractions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw units, each independently.

        Args:
            fractions: float64, shape (b,), each in [0, 1), uniformly distributed.

        Returns:
            The units, int64, and their weights, float64, both of shape (b,).

        Raises:
            InvalidArgumentError: all priorities are zero, or their sum is not finite.
        """
        total = self._tree.total
        if not 0.0 < total < math.inf:
            raise InvalidArgumentError(
                f"The priorities (with alpha={self._rule.alpha}) add up to {total}, so no unit can be drawn. "
                "Give one unit a priority above zero, or Prioritised(epsilon=...) one, and none so large."
            )
        units = self._tree.find(fractions)
        powers = self._tree.values[units]
        # Both N and the sum cancel out against the largest weight.
        least = self._tree.least if self._rule.weights == "all" else powers.min(initial=np.inf)
        return units, (least / powers) ** self.beta

    def change(self, units: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of some units, as `checked_update` gives them."""
        self._tree.change(units, power(self._rule, priorities))

    def restore(self, powers: np.ndarray) -> None:
        """Set all, as `powers` gave them."""
        self._tree = SumTree(powers)


def power(rule: Prioritised, priorities: np.ndarray | float) -> np.ndarray:
    """What units of some priorities are drawn in proportion to."""
    shifted = np.asarray(priorities, np.float64) + rule.epsilon
    # Numpy's 0 ** 0 is 1: with alpha 0 all are drawn alike.
    return shifted**rule.alpha


def checked_update(units: Any, priorities: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What `update_priorities` got, as arrays.

    Args:
        units: whole numbers, each in [0, count).
        priorities: as many numbers.
        count: how many units there are.

    Returns:
        int64 and float64, both of shape (b,).

    Raises:
        InvalidArgumentError: a unit is none, a priority is negative or not finite, or their numbers differ.
    """
    places, values = _array("units", units), _array("priorities", priorities)
    if not places.size and not values.size:
        return np.zeros(0, np.int64), np.zeros(0)
    if places.ndim != 1 or places.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"units has the shape {places.shape} and the dtype {places.dtype}; expected whole numbers of the "
            "shape (b,): the 'unit' of a batch."
        )
    if values.shape != places.shape or values.dtype.kind not in "fiu":
        raise InvalidArgumentError(
            f"There are {len(places)} units, and priorities of the shape {values.shape} and the dtype "
            f"{values.dtype}; expected one number for each unit: the shape {places.shape}."
        )
    if places.min() < 0 or places.max() >= count:
        number = int(np.flatnonzero((places < 0) | (places >= count))[0])
        raise InvalidArgumentError(
            f"There is no unit {places[number]} (number {number} of {len(places)}): units go from 0 to "
            f"{count - 1}. No priority was changed."
        )
    # NaN makes both comparisons false.
    if not (values.min() >= 0 and values.max() < math.inf):
        wrong = np.flatnonzero(~np.isfinite(values) | (values < 0))
        raise InvalidArgumentError(
            f"The priority of unit {places[wrong[0]]} (number {wrong[0]} of {len(places)}) is "
            f"{values[wrong[0]]}; {len(wrong)} are like that. Expected finite numbers from 0 on, such as the "
            "absolute TD errors. No priority was changed."
        )
    return places.astype(np.int64), values.astype(np.float64)


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"{name} cannot be read as a numpy array: {error} Of a torch tensor give "
            "tensor.detach().cpu().float(). No priority was changed."
        ) from error
