"""What a loader that follows a store shows of a snapshot: its newest episodes, as far as a window reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import polars.exceptions

from ...store.errors import InvalidArgumentError
from ...store.layout import EPISODES
from ..damaged_files import check_files
from ..frames import POSITION, positioned_episodes
from .arguments import whole_number
from .episode_index import END_REASONS, EpisodeIndex

if TYPE_CHECKING:
    from .feeding import FeedingView

_ID = "episode_id"


@dataclass(frozen=True)
class Follow:
    """How a loader follows a store.

    Attributes:
        refresh_seconds: how old what it knows of the store may be when it makes a batch.
        newest_steps: keep the newest episodes with so many transitions together; None for all. The newest
            episode is always kept.
        newest_episodes: keep so many episodes; None for all.
        wait_seconds: how long it waits for an episode if there is none.
    """

    refresh_seconds: float = 1.0
    newest_steps: int | None = None
    newest_episodes: int | None = None
    wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("refresh_seconds", "wait_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise InvalidArgumentError(f"{name}={value!r}: expected seconds from 0 on.")
        for name in ("newest_steps", "newest_episodes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)

    def first(self, lengths: np.ndarray) -> int:
        """From which of some episodes on the window reaches; the newest one stands last."""
        episodes, first = len(lengths), 0
        if self.newest_episodes is not None:
            first = max(episodes - self.newest_episodes, 0)
        if self.newest_steps is not None and episodes:
            from_there = np.cumsum(lengths[::-1])
            fitting = int(np.searchsorted(from_there, self.newest_steps, side="right"))
            first = max(first, episodes - max(fitting, 1))
        return first


@dataclass(frozen=True)
class Contents:
    """The episodes of a window, in the order of their ends.

    Attributes:
        version: of the store.
        ids: strings, one for each episode.
        positions: int64, shape (E,), in the snapshot.
        index: their lengths and how they ended.
    """

    version: int
    ids: pl.Series
    positions: np.ndarray
    index: EpisodeIndex

    def __len__(self) -> int:
        """Number of episodes E."""
        return len(self.positions)


def contents_of(view: FeedingView, follow: Follow) -> Contents:
    """The episodes of a view that the window reaches: a pure function of the snapshot.

    Raises:
        CorruptStoreError: the episodes table is damaged.
    """
    snapshot = view._reader.snapshot
    reasons = pl.col("end_reason").cast(pl.Enum(END_REASONS))
    frame = positioned_episodes(snapshot, view._all_positions())
    frame = frame.select(POSITION, _ID, "ended_at", "length", reasons).sort("ended_at", _ID)
    try:
        found = frame.collect()
    except polars.exceptions.PolarsError:
        check_files(snapshot, EPISODES)
        raise
    found = found.slice(follow.first(found["length"].to_numpy()))
    index = EpisodeIndex(
        found["length"].to_numpy().astype(np.int64),
        found["end_reason"].to_physical().to_numpy().astype(np.int8),
    )
    return Contents(snapshot.version, found[_ID], found[POSITION].to_numpy().astype(np.int64), index)


def no_contents(version: int) -> Contents:
    """Those of a store without an episode."""
    empty = np.zeros(0, np.int64)
    return Contents(version, pl.Series(_ID, [], pl.String), empty, EpisodeIndex(empty, empty.astype(np.int8)))


def places_among(ids: pl.Series, known: pl.Series) -> np.ndarray:
    """Where each id stands among others: int64, -1 where it does not."""
    others = pl.DataFrame({_ID: known}).with_row_index(POSITION)
    found = pl.DataFrame({_ID: ids}).join(others, on=_ID, how="left", maintain_order="left")
    return found[POSITION].cast(pl.Int64).fill_null(-1).to_numpy()


def check_made_now(live: bool, *, prefetch: int) -> None:
    """Refuse to make batches ahead that depend on what happens until they are asked for.

    Raises:
        InvalidArgumentError: they were to be made ahead.
    """
    if live and prefetch:
        raise InvalidArgumentError(
            f"prefetch={prefetch} makes batches ahead; what a loader draws that follows a store, or draws by "
            "priority, depends on what comes in between. Leave prefetch out."
        )


def check_endless(shuffle: bool) -> None:
    """Refuse an order that needs an end.

    Raises:
        InvalidArgumentError: it was asked for.
    """
    if shuffle:
        raise InvalidArgumentError(
            "shuffle=True gives each unit once an epoch, but a store that is followed has no end. Leave it "
            "out: units are drawn at random, with replacement."
        )


def check_held(*, cache: str, **options: Any) -> None:
    """Refuse to keep the episodes of a loader that follows anywhere but in memory.

    Raises:
        InvalidArgumentError: another place was named.
    """
    given = [name for name, value in options.items() if value is not None]
    if cache != "memory" or given:
        raise InvalidArgumentError(
            f"cache={cache!r}{''.join(f', {name}' for name in given)}: a loader that follows a store holds "
            "its window in memory. Leave them out, and bound it with newest_steps=... or newest_episodes=..."
        )


def check_follow(follow: bool, **options: Any) -> Follow | None:
    """The arguments of a loader that follows.

    Args:
        follow: whether it does.
        options: those of `Follow`; None where they were not given.

    Raises:
        InvalidArgumentError: a value makes no sense, or was given to a loader that does not follow.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if follow:
        return Follow(**given)
    if given:
        raise InvalidArgumentError(f"{' and '.join(given)} belongs to follow=True, which was not given.")
    return None


def seconds(value: float) -> str:
    """A time for a message."""
    return "for ever" if math.isinf(value) else f"{value:g} seconds"
