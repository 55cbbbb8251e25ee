"""Orders: the unit at each place of an epoch, as a pure function of the seed and the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from .permutation import Permutation, hash_words, uniforms

_SHUFFLE, _DRAW, _UNIT = 1, 2, 3


class Order(Protocol):
    """An order of units."""

    @property
    def length(self) -> int:
        """Places of an epoch."""
        ...

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return the units at some places, int64; `places` lie in [0, length)."""
        ...


@dataclass(frozen=True)
class Sequential:
    """One unit after the other."""

    length: int

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `Order`."""
        return places


@dataclass(frozen=True)
class Shuffled:
    """Each unit once an epoch, in an order of that epoch's own."""

    length: int
    seed: int

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `Order`."""
        return _permutation(self.length, self.seed, epoch)(places)


@lru_cache(8)
def _permutation(length: int, seed: int, epoch: int) -> Permutation:
    return Permutation(length, hash_words(seed, epoch, _SHUFFLE))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Units drawn independently: an episode by its weight, then one of its units, all alike.

    Attributes:
        length: draws of an epoch.
        seed: of the draws.
        edges: int64, shape (E + 1,): the first unit of each episode.
        weights: float64, shape (E,): not negative, not all zero; None to draw all units alike.
    """

    length: int
    seed: int
    edges: np.ndarray
    weights: np.ndarray | None = field(default=None)

    def units(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """See `Order`."""
        first = uniforms(hash_words(self.seed, epoch, _DRAW), places)
        if self.weights is None:
            return _scaled(first, self.edges[-1])
        reached = self._reached
        # The product may be rounded up to the whole sum, which belongs to no episode.
        wanted = np.minimum(first * reached[-1], np.nextafter(reached[-1], 0.0))
        episodes = np.searchsorted(reached, wanted, side="right")
        second = uniforms(hash_words(self.seed, epoch, _UNIT), places)
        counts = self.edges[episodes + 1] - self.edges[episodes]
        return self.edges[episodes] + _scaled(second, counts)

    @cached_property
    def _reached(self) -> np.ndarray:
        """The sum of the weights up to each episode; those without a unit have none."""
        assert self.weights is not None
        return np.cumsum(np.where(np.diff(self.edges) > 0, self.weights, 0.0))


def _scaled(fractions: np.ndarray, counts: np.ndarray | int) -> np.ndarray:
    # The product may be rounded up to the count itself.
    return np.minimum((fractions * counts).astype(np.int64), np.asarray(counts) - 1)
