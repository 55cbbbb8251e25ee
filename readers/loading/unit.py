"""The interface that all kinds of units share, and the search for the episode of a unit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from ...store.names import AGENT_ID, END_REASON, EPISODE, STEP, is_observation
from ...store.names import source_of as uncached_source_of
from ..columns.selection import EpisodeIndex
from ..columns.step_arrays import StepArrays
from ..columns.tree import Tree, map_leaves

#: Keys that are computed from a unit's position.
COMPUTED = (AGENT_ID, END_REASON, EPISODE, STEP)

#: A batch asks for the same few keys each time.
source_of = lru_cache(1024)(uncached_source_of)

Batch = dict[str, Any]
#: Arrays by key, each computed only if the batch has the key.
Computed = Mapping[str, Callable[[], Any]]
#: Returns the array of a key, given the column it reads and how many rows after the unit's own.
ReadKey = Callable[[str, str, int], Tree]


class Units(ABC):
    """A kind of unit: how many an episode has, and how a batch of them is gathered."""

    #: Whether a batch is padded to its longest unit, so that batches differ in their second axis.
    ragged = False
    #: The keys of a batch if none are named.
    default_keys: tuple[str, ...] = ()
    #: The keys that a batch has whichever columns are named.
    required_keys: tuple[str, ...] = ()
    #: Keys that this kind adds, and the columns that they are made from.
    own_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """Return how many units each episode has; int64, shape (E,)."""

    def needs_last(self, keys: Sequence[str]) -> bool:
        """Return whether a batch with such keys has the last observation of an episode."""
        return any(step and is_observation(column) for column, step in map(source_of, keys))

    @abstractmethod
    def gathering(self, arrays: StepArrays, chosen: Chosen) -> tuple[Computed, ReadKey]:
        """Return how to make the arrays of the chosen units: those that are computed, and all others."""

    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """Return a batch of the chosen units: fresh arrays by key, of shape (b, ...)."""
        computed, read = self.gathering(arrays, chosen)
        index, episodes = arrays.index, chosen.episodes
        computed = {
            EPISODE: lambda: episodes if index.numbers is None else index.numbers[episodes],
            AGENT_ID: lambda: None if index.agents is None else index.agents[episodes],
            **computed,
        }
        return {key: computed[key]() if key in computed else read(key, *source_of(key)) for key in keys}

    def join(self, batches: Sequence[Batch]) -> Batch:
        """Join several batches into one, as `gather` would have returned it."""
        return map_leaves(lambda *parts: np.concatenate(parts), *batches)

    def columns(self, keys: Sequence[str]) -> list[str]:
        """Return the columns of the rows that the keys of a batch are made from."""
        made = {**dict.fromkeys(COMPUTED, ()), **self.own_keys}
        return list(dict.fromkeys(name for key in keys for name in made.get(key, (source_of(key)[0],))))


@dataclass(frozen=True)
class Chosen:
    """Units of a batch.

    Attributes:
        episodes: int64, shape (b,): the episode of each.
        numbers: int64, shape (b,): the unit's number within its episode.
    """

    episodes: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        """Return the number of units b."""
        return len(self.episodes)

    def __getitem__(self, some: slice) -> Chosen:
        """Return some of them."""
        return Chosen(self.episodes[some], self.numbers[some])


def end_reasons(index: EpisodeIndex, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return how the episode ends with the transition from each step: int8, an index into `END_REASONS`."""
    ends = steps == index.lengths[episodes] - 1
    if index.left_out:
        ends &= steps < index.usable[episodes]
    return np.where(ends, index.end_reasons[episodes], np.int8(0))


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
