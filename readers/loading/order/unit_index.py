"""Finding the episode of a unit, fast enough to be no part of a batch's cost.

A binary search per unit would take as long as gathering the unit. A table of some entries per episode says
where to look instead; few units then have to look further.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..columns.episode_index import EpisodeIndex
from ..units.unit import Chosen, Units

_ENTRIES_PER_EPISODE = 4


class UnitIndex:
    """Units of all episodes, counted from 0, one episode after the other.

    Args:
        units: the kind of unit.
        index: the episodes.

    Attributes:
        edges: int64, shape (E + 1,): the first unit of each episode, and the number of all.
    """

    def __init__(self, units: Units, index: EpisodeIndex) -> None:
        self.edges = np.concatenate([[0], np.cumsum(units.counts(index))])

    def __len__(self) -> int:
        """Return how many units there are."""
        return int(self.edges[-1])

    def choose(self, numbers: np.ndarray) -> Chosen:
        """Return the episodes of units, and which of their episode's units they are.

        Args:
            numbers: int64, each in [0, len(self)).
        """
        episodes = self._table[numbers >> self._shift]
        further = np.flatnonzero(self.edges[episodes + 1] <= numbers)
        if len(further):
            episodes[further] += 1
            still = further[self.edges[episodes[further] + 1] <= numbers[further]]
            episodes[still] = np.searchsorted(self.edges, numbers[still], side="right") - 1
        return Chosen(episodes, numbers - self.edges[episodes])

    @cached_property
    def _shift(self) -> int:
        """The units of a table's entry have this many bits."""
        entries = _ENTRIES_PER_EPISODE * (len(self.edges) - 1)
        return max(len(self) // max(entries, 1), 1).bit_length() - 1

    @cached_property
    def _table(self) -> np.ndarray:
        """The episode of the first unit of each entry."""
        firsts = np.arange((len(self) >> self._shift) + 1) << self._shift
        return np.searchsorted(self.edges, firsts, side="right") - 1
