"""The rows of each episode in the arrays of a loader, and how it ended."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from ....store.tables.pointers import Pointers

#: The end reasons by their code in a batch; 0 means that the episode goes on.
END_REASONS = ("", "terminated", "truncated", "cut", "interrupted")
END_TYPE = pl.Enum(END_REASONS)


@dataclass(frozen=True)
class EpisodeIndex:
    """Episodes one after the other, each with a row for every observation: T + 1 rows for T transitions.

    Attributes:
        lengths: int64, shape (E,): transitions of each.
        end_reasons: int8, shape (E,): index into `END_REASONS`.
        numbers: int64, shape (E,): the number of each in the view; None if they are all of its episodes.
        agents: int64, shape (E,): the number of the agent of each; None for whole episodes.
        missing: bool, shape (E,): whether its last observation is missing; None if none is.
        left_out: whether units leave out a last transition whose next observation is missing.
    """

    lengths: np.ndarray
    end_reasons: np.ndarray
    numbers: np.ndarray | None = None
    agents: np.ndarray | None = None
    missing: np.ndarray | None = None
    left_out: bool = False

    @staticmethod
    def of(frame: pl.DataFrame, missing: np.ndarray | None = None) -> EpisodeIndex:
        """Return the index of rows of the episodes table: their `length` and `end_reason`, an `END_TYPE`."""
        return EpisodeIndex(
            frame["length"].to_numpy().astype(np.int64),
            frame["end_reason"].to_physical().to_numpy().astype(np.int8),
            missing=missing,
        )

    def __len__(self) -> int:
        """Return the number of episodes E."""
        return len(self.lengths)

    def __getitem__(self, some: slice | np.ndarray) -> EpisodeIndex:
        """Return the index of some of the episodes."""
        numbers = np.arange(len(self)) if self.numbers is None else self.numbers
        agents = None if self.agents is None else self.agents[some]
        missing = None if self.missing is None else self.missing[some]
        ends = self.lengths[some], self.end_reasons[some]
        return EpisodeIndex(*ends, numbers[some], agents, missing, self.left_out)

    @property
    def last_seen(self) -> np.ndarray:
        """int64, shape (E,): the step of each episode's last observation."""
        return self.lengths if self.missing is None else self.lengths - self.missing

    @property
    def usable(self) -> np.ndarray:
        """int64, shape (E,): the transitions of each that units are made of, from the first one on."""
        return self.last_seen if self.left_out else self.lengths

    @cached_property
    def starts(self) -> np.ndarray:
        """int64, shape (E + 1,): the first row of each episode, and the number of all rows."""
        return np.concatenate([[0], np.cumsum(self.lengths + 1)])

    @property
    def rows(self) -> int:
        """Number of rows of all episodes."""
        return int(self.starts[-1])

    @property
    def transitions(self) -> int:
        """Number of transitions of all episodes."""
        return self.rows - len(self)

    @property
    def last_transitions(self) -> np.ndarray:
        """int64, shape (E,): the row of each episode's last transition."""
        return self.starts[1:] - 2

    @property
    def stepped(self) -> np.ndarray:
        """bool, shape (rows,): whether a transition leaves from a row."""
        stepped = np.ones(self.rows, bool)
        stepped[self.padding] = False
        return stepped

    @property
    def padding(self) -> np.ndarray:
        """int64, shape (E,): the row of each episode's last observation, at which nothing was done."""
        return self.starts[1:] - 1


def rows_digest(pointers: Pointers) -> str:
    """Return a hash that identifies the rows of some episodes, by where they are.

    The names of files distinguish copies of a store that were continued separately.
    """
    used, segment = np.unique(pointers.segment, return_inverse=True)
    digest = hashlib.sha256(json.dumps([pointers.segments[number] for number in used]).encode())
    for part in (segment, pointers.row_start, pointers.row_count):
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()
