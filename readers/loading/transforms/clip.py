"""`Clip`: values within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....store.errors import InvalidArgumentError
from ..units.unit import Batch
from .keys import change, key_tuple


@dataclass(frozen=True)
class Clip:
    """Moves values outside [low, high] to the nearer bound; the dtype stays, NaN stays.

    Args:
        keys: a key of the batch or several, or parts of nested values by dotted names. `observation` stands
            for `next_observation` too.
        low, high: numbers; None for no bound.
    """

    keys: str | Sequence[str]
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        """Check the arguments."""
        object.__setattr__(self, "keys", key_tuple(self.keys))
        for name, bound in (("low", self.low), ("high", self.high)):
            if bound is not None and not isinstance(bound, int | float | np.number):
                raise InvalidArgumentError(f"{name}={bound!r}: expected a number or None.")
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not low <= high or (self.low is None and self.high is None):
            raise InvalidArgumentError(f"low={self.low}, high={self.high}: expected low <= high.")

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with clipped arrays under these keys.

        Raises:
            InvalidArgumentError: there is no such key, or no number of its dtype within the bounds.
        """
        return change(batch, key_tuple(self.keys), self._clipped)

    def _clipped(self, leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype.kind not in "iu":
            return np.clip(leaf, self.low, self.high)
        range_ = np.iinfo(leaf.dtype)
        low = range_.min if self.low is None or self.low < range_.min else math.ceil(self.low)
        high = range_.max if self.high is None or self.high > range_.max else math.floor(self.high)
        if low > high:
            raise InvalidArgumentError(f"{self!r}: no {leaf.dtype} lies between {self.low} and {self.high}.")
        return np.clip(leaf, low, high)
