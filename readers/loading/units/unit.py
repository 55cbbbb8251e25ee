"""What all kinds of units have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....store.schema import OBSERVATION
from ..episode_index import EpisodeIndex
from ..step_arrays import StepArrays
from ..tree import map_leaves

NEXT_OBSERVATION = "next_observation"
END_REASON = "end_reason"
EPISODE = "episode"
STEP = "t"
MASK = "mask"

#: Keys that are worked out from where a unit stands; the rest are columns.
_WORKED_OUT = {END_REASON: (), EPISODE: (), STEP: (), NEXT_OBSERVATION: (OBSERVATION,)}

Batch = dict[str, Any]


class Units(ABC):
    """A kind of unit: how many an episode has, and how a batch of them is gathered."""

    #: Whether a batch is padded to its longest unit, so that batches differ in their second axis.
    ragged = False

    @property
    @abstractmethod
    def default_keys(self) -> tuple[str, ...]:
        """The keys of a batch if none are named."""

    @property
    def own_keys(self) -> dict[str, tuple[str, ...]]:
        """Keys that this kind adds, and the columns that they are made from."""
        return {}

    @property
    def alike(self) -> bool:
        """Whether the shape of a unit does not depend on the others of its batch."""
        return True

    @abstractmethod
    def counts(self, index: EpisodeIndex) -> np.ndarray:
        """How many units each episode has; int64, shape (E,)."""

    @abstractmethod
    def gather(self, arrays: StepArrays, keys: Sequence[str], chosen: Chosen) -> Batch:
        """A batch of units.

        Args:
            arrays: the columns.
            keys: what the batch has.
            chosen: which units.

        Returns:
            Fresh arrays by key, of shape (b, ...).
        """

    def join(self, batches: Sequence[Batch]) -> Batch:
        """One batch of the units of several, as `gather` would have given it."""
        return map_leaves(lambda *parts: np.concatenate(parts), *batches)

    def columns(self, keys: Sequence[str]) -> list[str]:
        """The columns of the rows that the keys of a batch are made from."""
        made = _WORKED_OUT | self.own_keys
        return list(dict.fromkeys(name for key in keys for name in made.get(key, (key,))))


@dataclass(frozen=True)
class Chosen:
    """Units of a batch.

    Attributes:
        episodes: int64, shape (b,): the episode of each.
        numbers: int64, shape (b,): which of its episode's units each is.
    """

    episodes: np.ndarray
    numbers: np.ndarray

    def __len__(self) -> int:
        """How many."""
        return len(self.episodes)


def end_reasons(index: EpisodeIndex, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """How the episode ends with the transition from each step: int8, an index into `END_REASONS`."""
    return np.where(steps == index.lengths[episodes] - 1, index.end_reasons[episodes], np.int8(0))
