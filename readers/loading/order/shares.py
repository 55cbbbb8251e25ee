"""The part of a mixture that each unit comes from: a pure function of the shares and the unit's number.

Exactly: the first G units are shared out as seats are among parties, by the divisors 1, 3, 5, ... (Webster,
Sainte-Laguë). Each part has its share of G, rounded; whole numbers are met exactly. Of all ways to round this
is one in which no part ever loses a unit as G grows (largest remainders do: the Alabama paradox; Balinski and
Young 1982: Fair Representation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np

from .permutation import hash_words, uniforms

_MIX = 5


class Shares(Protocol):
    """The number of units of each part in a range of units."""

    def counts(self, first: int, stop: int) -> list[int]:
        """Return how many of the units `first` to `stop` - 1 come from each part."""
        ...


@dataclass(frozen=True)
class ExactShares:
    """Shares that are met as exactly as whole units can, at any time.

    Attributes:
        shares: of each part; they add up to 1.
    """

    shares: tuple[Fraction, ...]

    @cached_property
    def _whole(self) -> list[int]:
        """The shares as whole numbers."""
        common = math.lcm(*(share.denominator for share in self.shares))
        return [int(share * common) for share in self.shares]

    def counts(self, first: int, stop: int) -> list[int]:
        """See `Shares`."""
        before, after = self._seats(first), self._seats(stop)
        return [late - early for early, late in zip(before, after, strict=True)]

    def _seats(self, total: int) -> list[int]:
        """Units of each part among the first `total`."""
        # Rounded shares are the seats of some total near by; add or remove the next ones.
        whole = self._whole
        seats = [(2 * part * total + sum(whole)) // (2 * sum(whole)) for part in whole]
        while sum(seats) < total:
            claims = [share / (2 * seat + 1) for share, seat in zip(self.shares, seats, strict=True)]
            seats[claims.index(max(claims))] += 1
        while sum(seats) > total:
            held = [
                (share / (2 * seat - 1), -part)
                for part, (share, seat) in enumerate(zip(self.shares, seats, strict=True))
                if seat
            ]
            seats[-min(held)[1]] -= 1
        return seats


@dataclass(frozen=True)
class DrawnShares:
    """Each unit's part is drawn on its own, so that shares are met in expectation (multinomial).

    Attributes:
        shares: of each part; they add up to 1.
        seed: of the draws.
    """

    shares: tuple[Fraction, ...]
    seed: int

    def counts(self, first: int, stop: int) -> list[int]:
        """See `Shares`."""
        drawn = uniforms(hash_words(self.seed, _MIX), np.arange(first, stop))
        reached = np.cumsum([float(share) for share in self.shares])
        # The last share may be rounded to end a little before 1.
        parts = np.searchsorted(reached[:-1], drawn, side="right")
        return np.bincount(parts, minlength=len(self.shares)).tolist()


def normalised(weights: Sequence[float | Fraction]) -> tuple[Fraction, ...]:
    """Return shares that add up to exactly 1; 0.1 counts as one tenth."""
    exact = [Fraction(weight).limit_denominator(1_000_000_000) for weight in weights]
    return tuple(weight / sum(exact) for weight in exact)
