"""`ReadContext`: some episodes of one snapshot, and the readers of their rows.

The bottom of this package. Frames, queries, loaders, charts, cards and replays take a context; `EpisodeView`
holds one and delegates to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from ..store.errors import InvalidArgumentError
from ..store.snapshot import Snapshot
from .blocks import BlockReader
from .episode_rows import EpisodeRowReader

#: Values of `?` and `$1` in order, or of `$name` by name.
Parameters = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class SqlCondition:
    """An SQL condition over the episodes table, with the values of its parameters if it has some."""

    text: str
    parameters: Parameters | None = None

    def __str__(self) -> str:
        """Return the text, and the parameters if there are some."""
        return self.text if self.parameters is None else f"{self.text} with {self.parameters!r}"


@dataclass(frozen=True, eq=False)
class ReadContext:
    """Some episodes of a snapshot, in an order.

    Attributes:
        snapshot: the version of the store.
        blocks: the open files of steps; contexts of one snapshot share them.
        rows: the rows of episodes; shared too.
        positions: int64, positions in the snapshot; None for all.
        conditions: the filters that gave these positions, one after the other; None if they came otherwise.
    """

    snapshot: Snapshot
    blocks: BlockReader
    rows: EpisodeRowReader
    positions: np.ndarray | None = None
    conditions: tuple[pl.Expr | SqlCondition, ...] | None = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> ReadContext:
        """Return all episodes of a snapshot."""
        return cls(snapshot, BlockReader(snapshot), EpisodeRowReader(snapshot))

    def choose(
        self, positions: np.ndarray, conditions: tuple[pl.Expr | SqlCondition, ...] | None = None
    ) -> ReadContext:
        """Return the context of other episodes of the same snapshot."""
        return replace(self, positions=positions, conditions=conditions)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.snapshot.episode_count if self.positions is None else len(self.positions)

    @property
    def all_positions(self) -> np.ndarray:
        """int64: the positions, also where all episodes are chosen."""
        return np.arange(len(self)) if self.positions is None else self.positions

    @cached_property
    def segments(self) -> frozenset[str] | None:
        """The files that hold the steps of these episodes; None for all of the snapshot."""
        return None if self.positions is None else self.snapshot.segments_of(self.positions)

    def check_not_empty(self, purpose: str) -> None:
        """Refuse to do something without episodes.

        Args:
            purpose: such as "to load".

        Raises:
            InvalidArgumentError: there is no episode; the message names the filters that left none.
        """
        if len(self):
            return
        if not self.snapshot.episode_count:
            why = "the store has none."
        elif self.conditions:
            filters = " and ".join(str(each) for each in self.conditions)
            why = f"of {self.snapshot.episode_count:,} episodes none has {filters}. Check the filter."
        else:
            why = f"the view has none of the store's {self.snapshot.episode_count:,} episodes."
        raise InvalidArgumentError(f"There is no episode {purpose}: {why}{self.refresh_hint()}")

    def refresh_hint(self) -> str:
        """Return a hint that a newer version exists, for errors about something not found; else nothing."""
        newer = self.snapshot.newer_version()
        if newer is None:
            return ""
        return (
            f" This shows version {self.snapshot.version} of the store; refresh() moves to version {newer}."
        )
