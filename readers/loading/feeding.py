"""What a view of episodes offers to a learner: loaders of its units."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from .arguments import (
    Weights,
    check_selection,
    check_single_agents,
    choose_order,
    choose_units,
    evaluate_weights,
    whole_number,
)
from .columns import choose_columns
from .episode_index import index_of
from .feed import ArrayFeed
from .follow_window import check_follow
from .following import following_loader
from .loader import Batching, Loader
from .priorities import Prioritised
from .prioritised import check_prioritised, prioritised_loader
from .shard import Shard
from .step_arrays import read_arrays
from .units.unit import Batch, unit_edges

if TYPE_CHECKING:
    from ...store.snapshot import Snapshot
    from ..view import SnapshotReader


class FeedingView:
    """The part of a view that feeds learners."""

    _reader: SnapshotReader
    _conditions: tuple[pl.Expr | str, ...] | None

    def _renewed(self, snapshot: Snapshot) -> FeedingView:
        raise NotImplementedError

    def _all_positions(self) -> np.ndarray:
        raise NotImplementedError

    def loader(
        self,
        batch_size: int = 256,
        *,
        columns: Sequence[str] | None = None,
        n_step: int | None = None,
        gamma: float | None = None,
        window: int | None = None,
        stride: int = 1,
        pad: Literal["left", "right"] | None = None,
        burn_in: int = 0,
        deltas: Mapping[str, Sequence[int]] | None = None,
        whole_episodes: bool = False,
        shuffle: bool = False,
        replacement: bool = False,
        weights: Weights | None = None,
        prioritised: Prioritised | None = None,
        seed: int = 0,
        drop_last: bool = False,
        shard: tuple[int, int] = (0, 1),
        uneven: Literal["pad", "drop"] = "pad",
        transforms: Sequence[Callable[[Batch], Batch]] = (),
        follow: bool = False,
        refresh_seconds: float | None = None,
        newest_steps: int | None = None,
        newest_episodes: int | None = None,
        wait_seconds: float | None = None,
    ) -> Loader:
        """Batches of transitions, n-step transitions, windows or whole episodes for a learner.

        Args:
            batch_size: units of a batch.
            columns: keys of a batch; None for the usual ones of the kind of unit.
            n_step, gamma: units are n-step transitions, discounted by gamma (0.99 if not given).
            window, stride, pad, burn_in: units are windows of so many transitions.
            deltas: units are transitions with values at relative steps, by key.
            whole_episodes: units are episodes, padded to the longest of a batch.
            shuffle: in a random order, each unit once an epoch.
            replacement: draw units independently, as many as there are an epoch.
            weights: draw episodes by weight, and one of its units: "steps" (all units alike), "episodes" (all
                episodes alike), or an expression over the episodes table.
            prioritised: draw units by priority; see `PrioritisedLoader`.
            seed: of the order; the same seed, epoch and view give the same order on every machine.
            drop_last: leave out the last batch of an epoch if it is smaller.
            shard: (rank, world), to take one of `world` disjoint shares of equal length.
            uneven: "pad" or "drop": what happens to units that do not divide by `world`.
            transforms: applied to each batch in turn.
            follow: draw for ever from the newest version of the store, with replacement; see
                `FollowingLoader`. A filter holds for new episodes too.
            refresh_seconds: how old what a batch shows of the store may be (1 if not given).
            newest_steps, newest_episodes: of the newest episodes only, so many transitions or episodes.
            wait_seconds: how long to wait if there is no episode (60 if not given).

        Raises:
            InvalidArgumentError: an argument makes no sense; there is no such column, or no such unit.
            QueryError: the weights' expression is not valid.
            CorruptStoreError: a file of the store is damaged.
        """
        seed = whole_number("seed", seed, 0)
        batching = Batching(whole_number("batch_size", batch_size, 1), drop_last, Shard(*shard, uneven))
        followed = check_follow(
            follow,
            refresh_seconds=refresh_seconds,
            newest_steps=newest_steps,
            newest_episodes=newest_episodes,
            wait_seconds=wait_seconds,
        )
        units = choose_units(
            n_step=n_step,
            gamma=gamma,
            window=window,
            stride=stride,
            pad=pad,
            burn_in=burn_in,
            deltas=deltas,
            whole_episodes=whole_episodes,
        )
        if followed is not None:
            return following_loader(
                self,
                followed,
                units,
                columns,
                batching,
                transforms,
                seed=seed,
                weights=weights,
                prioritised=prioritised,
                shuffle=shuffle,
            )
        snapshot, positions = self._reader.snapshot, self._all_positions()
        check_single_agents(snapshot)
        index = index_of(snapshot, positions)
        edges = unit_edges(units, index)
        check_selection(units, index, edges)
        keys = tuple(units.default_keys if columns is None else columns)
        chosen = choose_columns(snapshot, positions, units.columns(keys))
        weighed = evaluate_weights(snapshot, positions, edges, weights)
        check_prioritised(prioritised, shuffle=shuffle, weights=weights)
        drawn = replacement or weights is not None
        order = choose_order(edges, shuffle=shuffle, replacement=drawn, weights=weighed, seed=seed)
        arrays = read_arrays(self._reader.blocks, positions, index, chosen)
        identity = {
            "store": snapshot.manifest.store_id,
            "version": snapshot.version,
            "episodes": zlib.crc32(positions.tobytes()),
            "units": repr(units),
            "order": type(order).__name__,
            "weights": None if weighed is None else zlib.crc32(weighed.tobytes()),
            "seed": seed,
        }
        feed = ArrayFeed(arrays, units, keys, order, edges)
        if prioritised is not None:
            return prioritised_loader(feed, prioritised, seed, batching, identity, transforms)
        return Loader(feed, batching, identity, transforms)
