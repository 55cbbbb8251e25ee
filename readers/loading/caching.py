"""Where the columns of a loader are kept: decoded in memory, mapped from a cache folder, or streamed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...store.errors import InvalidArgumentError
from ..blocks import BlockReader
from .arguments import whole_number
from .cache_folder import CacheFolder, checked_limit, chosen_folder
from .columns import Column
from .episode_index import EpisodeIndex
from .feed import ArrayFeed, Feed
from .mapped import MappedSource, map_arrays
from .orders import Order, Sequential, Shuffled
from .step_arrays import read_arrays
from .stream import StreamFeed
from .stream_order import StreamOrder, blocks_of
from .transforms.on_read import Stages
from .tree import leaves
from .unit_index import UnitIndex
from .units.unit import Units

_ORDER_BYTES = 4
#: Of a column that a transform adds: a number in most cases.
_DERIVED_BYTES = 8

Cache = Literal["memory", "mmap", "stream"]


@dataclass(frozen=True)
class Wanted:
    """What a feed is to give.

    Attributes:
        blocks: opens the store's files.
        positions: int64, of the episodes in the snapshot.
        index: of the same episodes.
        columns: what is read.
        units: the kind of unit.
        keys: what a batch has.
        order: which unit stands where.
        unit_index: which episode a unit is of.
        stages: what is done to rows before units are gathered.
    """

    blocks: BlockReader
    positions: np.ndarray
    index: EpisodeIndex
    columns: tuple[Column, ...]
    units: Units
    keys: Sequence[str]
    order: Order
    unit_index: UnitIndex
    stages: Stages

    @property
    def kept(self) -> list[str]:
        """The columns that units are gathered from."""
        return self.units.columns(self.keys)


def make_feed(
    wanted: Wanted,
    cache: Cache,
    cache_folder: str | os.PathLike[str] | None,
    cache_bytes: int | None,
    buffer_bytes: int | None,
) -> Feed:
    """The feed of a loader; the arguments are those of `FeedingView.loader`.

    Raises:
        InvalidArgumentError: an argument makes no sense, or does not go with this cache.
        StoreAccessError: the cache folder cannot be written, is full, or may not hold that much.
        CorruptStoreError: a file of the store is damaged.
    """
    _check_belonging(cache, "mmap", cache_folder=cache_folder, cache_bytes=cache_bytes)
    _check_belonging(cache, "stream", buffer_bytes=buffer_bytes)
    blocks, positions, index, columns = wanted.blocks, wanted.positions, wanted.index, wanted.columns
    match cache:
        case "memory":
            arrays = read_arrays(blocks, positions, index, columns)
        case "mmap":
            folder = CacheFolder(chosen_folder(cache_folder), checked_limit(cache_bytes))
            arrays = map_arrays(MappedSource(blocks, positions, index, columns, folder))
        case "stream":
            return _stream(wanted, 1 << 30 if buffer_bytes is None else buffer_bytes)
        case _:
            raise InvalidArgumentError(f"cache={cache!r}: expected 'memory', 'mmap' or 'stream'.")
    prepared = wanted.stages.prepare(arrays, wanted.kept)
    return ArrayFeed(prepared, wanted.units, wanted.keys, wanted.order, wanted.unit_index)


def _stream(wanted: Wanted, buffer_bytes: int) -> StreamFeed:
    order = wanted.order
    if not isinstance(order, Shuffled | Sequential):
        raise InvalidArgumentError(
            "weights and replacement draw from all units at any time, and a stream holds a part of them. Use "
            "cache='mmap', or choose episodes with filter(...)."
        )
    row_bytes = _DERIVED_BYTES * len(wanted.stages.writes) + sum(
        leaf.itemsize * int(np.prod(leaf.shape[1:]))
        for column in wanted.columns
        for _, leaf in leaves(column.template)
    )
    # Half for the group that is handed out, half for the one that is read; with the order of its units.
    group_rows = max(whole_number("buffer_bytes", buffer_bytes, 1) // 2 // (row_bytes + _ORDER_BYTES), 1)
    shuffled = isinstance(order, Shuffled)
    counts = np.diff(wanted.unit_index.edges)
    blocks = blocks_of(
        wanted.blocks, wanted.positions, wanted.index, counts, group_rows=group_rows, sort=shuffled
    )
    return StreamFeed(
        wanted.blocks,
        wanted.positions,
        wanted.index,
        wanted.columns,
        wanted.units,
        wanted.keys,
        counts,
        StreamOrder(blocks, group_rows, order.seed if shuffled else None),
        wanted.stages,
    )


def _check_belonging(cache: Any, owner: str, **given: Any) -> None:
    foreign = [name for name, value in given.items() if value is not None]
    if foreign and cache != owner:
        raise InvalidArgumentError(
            f"{' and '.join(foreign)} belong to cache={owner!r}; the cache is {cache!r}. Leave them out, or "
            f"give cache={owner!r}."
        )
