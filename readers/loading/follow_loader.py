"""`FollowingLoader`: a loader without end, over the newest episodes of a store that others write to."""

from __future__ import annotations

import numpy as np
import polars as pl

from ...store.errors import InvalidArgumentError
from ..columns.mapped import Cache
from ..columns.selection import select
from ..columns.specs import choose_columns
from ..context import ReadContext
from .config import LoaderConfig
from .feed import BatchSource
from .follow_feed import FollowFeed
from .follow_window import Follow
from .loader import Loader
from .priorities import Prioritized


class FollowingLoader(Loader):
    """Batches of the units of a store's newest episodes, for ever, while writers add to it.

    `store.loader(follow=el.Follow())` returns one. Units are drawn with replacement. Between batches, once
    `refresh_seconds` have passed, it moves to the newest version of the store and reads the rows of new
    episodes. So a batch shows what was committed `refresh_seconds` before it was made. Episodes that were
    deleted, or that the filter no longer selects, go at the next refresh.

    Its state holds the number of units drawn and the version. If the store still has that version, the same
    batches follow; in a newer version it draws from the episodes there are now, and those that stayed keep
    their priorities. A state of a version that the store does not have is refused.
    """

    live = True
    _feed: FollowFeed

    def __repr__(self) -> str:
        """Show the episodes and the position in one line."""
        return (
            f"FollowingLoader({len(self._feed.contents)} episodes with {self.units} units at version "
            f"{self.version}, batches of {self._source.batching.size}, position {self._position})"
        )

    def __bool__(self) -> bool:
        """Return True, though it has no length."""
        return True

    def __len__(self) -> int:
        """Raise a TypeError: it never ends.

        Raises:
            TypeError: always; this is no sequence.
        """
        raise TypeError("A loader that follows a store has no length: it never ends.")

    @property
    def units(self) -> int:
        """Units there are at the moment."""
        return self._feed.unit_count

    @property
    def epoch_units(self) -> None:
        """None: it never ends."""
        return None

    @property
    def version(self) -> int:
        """The version of the store that it shows at the moment."""
        return self._feed.contents.version

    @property
    def episodes(self) -> list[str]:
        """The ids of the episodes that it shows, in commit order; `episode` counts these."""
        return self._feed.contents.ids.to_list()

    def refresh(self) -> None:
        """Move to the newest version of the store now.

        Raises:
            CorruptStoreError: a file is damaged; the loader keeps what it showed.
        """
        self._feed.look()


def following_loader(follow: Follow, context: ReadContext, config: LoaderConfig) -> FollowingLoader:
    """Make a loader that follows a store.

    Raises:
        InvalidArgumentError: an argument does not fit a store that grows, the context is a slice, or
            there is no such column.
    """
    _check_followable(follow, config)
    snapshot = context.snapshot
    if snapshot.schema.groups or config.joint or (config.agent, config.group) != (None, None):
        raise InvalidArgumentError(
            "A store of several agents cannot be followed. Leave follow out, and make a loader of the newest "
            "version from time to time: store.refresh().loader(agent=...)."
        )
    if context.conditions is None:
        raise InvalidArgumentError(
            "A slice of a store has no newer version, so it cannot be followed. Follow the store or a filter "
            "of it: store.filter(...).loader(follow=el.Follow()); newest_episodes=... keeps the last ones."
        )
    # An unknown column raises here already, where that can be known.
    columns = config.stored_columns
    if snapshot.episode_count:
        choose_columns(snapshot, select(snapshot, np.zeros(0, np.int64)), columns)
    feed = FollowFeed(context, follow, config)
    identity = {
        "store": snapshot.manifest.store_id,
        "followed": [str(condition) for condition in context.conditions],
        "newest": [follow.newest_steps, follow.newest_episodes],
        "units": repr(config.units),
        "weights": None if config.weights is None or config.prioritized else str(config.weights),
        "seed": config.seed,
    }
    source = BatchSource(feed, config.batching, config.shard, config.stages.on_batch)
    return FollowingLoader(source, identity | feed.facts(), config.output, config.stages.on_take)


def _check_followable(follow: Follow, config: LoaderConfig) -> None:
    if not isinstance(follow, Follow):
        raise InvalidArgumentError(
            f"follow={follow!r}: expected el.Follow(refresh_seconds=..., newest_steps=..., ...), or None."
        )
    config.check_no_prefetch("follows a store")
    if not isinstance(config.weights, None | str | pl.Expr | Prioritized):
        raise InvalidArgumentError(
            f"weights has {len(config.weights)} numbers, but a store that is followed gets more episodes. "
            "Give a Polars expression over the episodes, 'steps' or 'episodes'."
        )
    if config.shuffle:
        raise InvalidArgumentError(
            "shuffle=True gives each unit once an epoch, but a store that is followed has no end. Leave it "
            "out: units are drawn at random, with replacement."
        )
    if config.cache != Cache():
        raise InvalidArgumentError(
            f"{config.cache}: a loader that follows a store holds its window in memory. Leave the cache out, "
            "and bound the window with el.Follow(newest_steps=...) or el.Follow(newest_episodes=...)."
        )
