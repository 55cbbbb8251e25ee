"""Where each episode's rows stand in the arrays of a loader, and how it ended."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import polars.exceptions

from ...store.layout import EPISODES
from ...store.snapshot import Snapshot
from ..damaged_files import check_files
from ..frames import positioned_episodes

#: What stands in a batch for each end reason, by position; 0 means that the episode goes on.
END_REASONS = ("", "terminated", "truncated", "cut", "interrupted")


@dataclass(frozen=True)
class EpisodeIndex:
    """Episodes one after the other, each with a row for every observation: T + 1 rows for T transitions.

    Attributes:
        lengths: int64, shape (E,): transitions of each.
        end_reasons: int8, shape (E,): index into `END_REASONS`.
    """

    lengths: np.ndarray
    end_reasons: np.ndarray

    def __len__(self) -> int:
        """Number of episodes E."""
        return len(self.lengths)

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
    def padding(self) -> np.ndarray:
        """int64, shape (E,): the row of each episode's last observation, at which nothing was done."""
        return self.starts[1:] - 1


def rows_digest(snapshot: Snapshot, positions: np.ndarray) -> str:
    """Tells the rows of the episodes at some positions from all others of a version, by where they are.

    The names of files tell copies of a store apart that went on separately.
    """
    pointers = snapshot.pointers
    used, segment = np.unique(pointers.segment[positions], return_inverse=True)
    digest = hashlib.sha256(json.dumps([pointers.segments[number] for number in used]).encode())
    for part in (segment, pointers.row_start[positions], pointers.row_count[positions]):
        digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()


def index_of(snapshot: Snapshot, positions: np.ndarray) -> EpisodeIndex:
    """The index of the episodes at some positions of a snapshot.

    Raises:
        CorruptStoreError: the episodes table is damaged.
    """
    codes = pl.Enum(END_REASONS)
    frame = positioned_episodes(snapshot, positions).select("length", pl.col("end_reason").cast(codes))
    try:
        found = frame.collect()
    except polars.exceptions.PolarsError:
        check_files(snapshot, EPISODES)
        raise
    return EpisodeIndex(
        found["length"].to_numpy().astype(np.int64),
        found["end_reason"].to_physical().to_numpy().astype(np.int8),
    )
