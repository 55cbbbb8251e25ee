"""What a view of episodes offers to a learner: loaders of its units."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from .arguments import (
    Asked,
    Weights,
    check_selection,
    check_single_agents,
    choose_order,
    choose_units,
    evaluate_weights,
    whole_number,
)
from .batch_source import Batching
from .caching import Cache, Wanted, make_feed
from .columns import choose_columns
from .episode_index import index_of
from .follow_window import check_endless, check_follow, check_held, check_made_now
from .following import following_loader
from .loader import Loader
from .orders import Drawn
from .outputs import OutputName, choose_output
from .priorities import Prioritised
from .prioritised import check_prioritised, prioritised_loader
from .shard import choose_shard
from .transforms.on_read import BatchTransform, OnRead, Stages
from .unit_index import UnitIndex

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
        shard: tuple[int, int] | Literal["distributed"] = (0, 1),
        uneven: Literal["pad", "drop"] = "pad",
        cache: Cache = "memory",
        cache_folder: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        buffer_bytes: int | None = None,
        transforms: Sequence[OnRead | BatchTransform] = (),
        output: OutputName = "numpy",
        device: Any = None,
        prefetch: int = 0,
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
            shard: (rank, world), to take one of `world` disjoint shares of equal length; "distributed" for
                this process's in torch.distributed.
            uneven: "pad" or "drop": what happens to units that do not divide by `world`.
            cache: where the columns are: "memory", decoded; "mmap", decoded once into files of this machine
                that processes share; "stream", read again each epoch, in groups of row groups.
            cache_folder: of "mmap"; None for `EPISODELAKE_CACHE`, or the user's folder for caches.
            cache_bytes: most bytes of that folder; None for 50 GiB or half of the disk, if that is less.
            buffer_bytes: of "stream": most bytes of decoded values at a time (1 GiB if not given).
            transforms: applied in turn; first those of whole episodes (`ReturnToGo`, `GAE`, `Relabel`,
                `FrameStack`), whose columns every batch has, then those of batches.
            output, device: hand out "numpy" arrays, "torch" tensors, "jax" arrays or a "tensordict", on a
                device.
            prefetch: make so many batches ahead, in a thread.
            follow: draw for ever from the newest version of the store, with replacement; see
                `FollowingLoader`. A filter holds for new episodes too.
            refresh_seconds: how old what a batch shows of the store may be (1 if not given).
            newest_steps, newest_episodes: of the newest episodes only, so many transitions or episodes.
            wait_seconds: how long to wait if there is no episode (60 if not given).

        Raises:
            InvalidArgumentError: an argument makes no sense; there is no such column, or no such unit.
            MissingPackageError: the package of the output is not installed.
            QueryError: the weights' expression is not valid.
            CorruptStoreError: a file of the store is damaged.
            StoreAccessError: the cache folder cannot be written, is full, or may not hold that much.
        """
        asked = Asked(
            choose_units(
                n_step=n_step,
                gamma=gamma,
                window=window,
                stride=stride,
                pad=pad,
                burn_in=burn_in,
                deltas=deltas,
                whole_episodes=whole_episodes,
            ),
            columns,
            Stages.of(transforms),
            Batching(whole_number("batch_size", batch_size, 1), drop_last, choose_shard(shard, uneven)),
            choose_output(output, device),
            whole_number("seed", seed, 0),
            weights,
            prioritised,
        )
        check_prioritised(prioritised, shuffle=shuffle, weights=weights)
        ahead = whole_number("prefetch", prefetch, 0)
        check_made_now(follow or prioritised is not None, prefetch=ahead)
        followed = check_follow(
            follow,
            refresh_seconds=refresh_seconds,
            newest_steps=newest_steps,
            newest_episodes=newest_episodes,
            wait_seconds=wait_seconds,
        )
        if followed is not None:
            check_endless(shuffle)
            check_held(
                cache=cache, cache_folder=cache_folder, cache_bytes=cache_bytes, buffer_bytes=buffer_bytes
            )
            return following_loader(self, followed, asked)
        wanted = self._wanted(asked, shuffle=shuffle, replacement=replacement)
        feed = make_feed(wanted, cache, cache_folder, cache_bytes, buffer_bytes)
        identity = _identity(wanted, asked.seed) | feed.facts()
        if prioritised is not None:
            return prioritised_loader(feed, prioritised, asked, identity)
        return Loader(feed, asked.batching, identity, asked.stages.on_batch, asked.output, ahead)

    def _wanted(self, asked: Asked, *, shuffle: bool, replacement: bool) -> Wanted:
        """What a feed is to give of the episodes of this view; of the columns nothing is read yet."""
        snapshot, positions = self._reader.snapshot, self._all_positions()
        check_single_agents(snapshot)
        units, stages = asked.units, asked.stages
        index = index_of(snapshot, positions)
        unit_index = UnitIndex(units, index)
        edges = unit_index.edges
        check_selection(units, index, edges)
        keys = stages.keys(units, asked.columns)
        columns = choose_columns(snapshot, positions, stages.columns(units, keys))
        weighed = evaluate_weights(snapshot, positions, edges, asked.weights)
        drawn = replacement or asked.weights is not None
        order = choose_order(edges, shuffle=shuffle, replacement=drawn, weights=weighed, seed=asked.seed)
        return Wanted(self._reader.blocks, positions, index, columns, units, keys, order, unit_index, stages)


def _identity(wanted: Wanted, seed: int) -> dict[str, Any]:
    """What the units and their order depend on, wherever the columns are kept."""
    snapshot, order = wanted.blocks.snapshot, wanted.order
    weights = order.weights if isinstance(order, Drawn) else None
    return {
        "store": snapshot.manifest.store_id,
        "version": snapshot.version,
        "episodes": zlib.crc32(wanted.positions.tobytes()),
        "units": repr(wanted.units),
        "order": type(order).__name__,
        "weights": None if weights is None else zlib.crc32(weights.tobytes()),
        "seed": seed,
    }
