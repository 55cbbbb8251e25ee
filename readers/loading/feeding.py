"""Loaders of some episodes: of one version, or of a store that grows."""

from __future__ import annotations

import math
import warnings
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from ...store.common.arguments import expect
from ...store.errors import InvalidArgumentError
from ...store.frames import VideoColumn
from ...store.names import AGENT_ID
from ..columns.cache_folder import CacheFolder
from ..columns.column import Column, EncodedColumn, SpaceColumn
from ..columns.episode_columns import choose_followed, choose_loaded
from ..columns.mapped import Cache, map_arrays
from ..columns.selection import Selection, select, whole_episodes
from ..columns.specs import unknown_column
from ..columns.step_arrays import ColumnSource, read_arrays
from ..context import ReadContext
from ..dataset_facts import frame_rates
from ..frames import collect_episodes, positioned_episodes
from .config import LoaderConfig, check_selection, choose_units, evaluate_weights
from .feed import ArrayFeed, Batches, BatchSource, Shard
from .follow_feed import FollowFeed
from .follow_window import Follow
from .joint import JointGroup, joint_keys, joint_source, teams_of
from .loader import Loader, PrioritizedLoader
from .number_sets import NumberSet
from .orders import Order
from .outputs import Output
from .priorities import Priorities, Prioritized
from .stream import StreamFeed, StreamOrder
from .stream_blocks import blocks_of, parts_of
from .transforms.on_read import DerivedColumns, TransformPipeline
from .units import Deltas, UnitIndex, Units

#: Of a stream: decoded values at a time by default.
_BUFFER_BYTES = 1 << 30
#: Of a stream: of each row's place in the order; of each column that a transform adds, in most cases.
_ORDER_BYTES, _DERIVED_BYTES = 4, 8
#: Files whose footers are read to size a stream of encoded frames.
_MEASURED = 4
#: The episodes that a shuffled batch should have units of, at least.
_MIXED = 4
#: Episodes whose steps are marked at a time.
_EPISODES, _NUMBER = 1 << 14, "_number"


class FedUnits(Units):
    """A kind of unit that is not cut from the steps of episodes, but makes its loader itself."""

    @abstractmethod
    def loader(self, context: ReadContext, config: LoaderConfig) -> Loader:
        """Return a loader of the episodes of one version of a store.

        Raises:
            InvalidArgumentError: an argument does not go with these units.
        """


def chosen_episodes(
    context: ReadContext, config: LoaderConfig
) -> tuple[LoaderConfig, Selection, tuple[JointGroup, ...]]:
    """Return the episodes, or parts of agents, that units are cut from, and the teams of joint units.

    The config comes back with the columns that joint units have if none are named.

    Raises:
        InvalidArgumentError: the store has no such agent or group, or no frame rate for deltas in seconds.
    """
    snapshot, positions = context.snapshot, context.all_positions
    if isinstance(config.units, Deltas) and config.units.unit == "seconds":
        rates = frame_rates(snapshot, context.positions)
        config = replace(config, units=config.units.in_steps(rates))
    teams = teams_of(snapshot, positions, config.group) if config.joint else ()
    if teams:
        selection = whole_episodes(snapshot, positions)
        if config.columns is None:
            config = replace(config, columns=joint_keys(teams, config.units))
    else:
        selection = select(snapshot, positions, config.agent, config.group)
        # An agent that never acted has nothing to learn from.
        selection = selection.part(selection.index.lengths > 0) if selection.agents else selection
    index = replace(selection.index, left_out=config.needs_last)
    return config, replace(selection, index=index), teams


def unit_counts(
    context: ReadContext,
    units: Units,
    columns: Sequence[str] | None,
    *,
    transforms: Sequence[Any] = (),
    agent: str | None = None,
    group: str | None = None,
    joint: bool = False,
) -> np.ndarray:
    """Return how many units a loader cuts from each episode; int64, shape (E,).

    It warns of transitions that are left out.

    Args:
        context: the episodes.
        units, columns, transforms, agent, group, joint: as for `store.loader`.

    Raises:
        InvalidArgumentError: as for `store.loader`.
    """
    config = LoaderConfig(
        choose_units(units, window=None, n_step=None, gamma=None),
        columns,
        TransformPipeline.of(transforms),
        Batches.of(1),
        Shard(),
        Output.of("numpy").converter(),
        seed=0,
        shuffle=False,
        weights=None,
        cache=Cache(),
        agent=agent,
        group=group,
        joint=joint,
    )
    config, selection, _ = chosen_episodes(context, config)
    config.warn_left_out(selection.index)
    counts = config.units.counts(selection.index)
    numbers = selection.index.numbers
    return counts if numbers is None else np.bincount(numbers, counts, len(context)).astype(np.int64)


def loader_of(context: ReadContext, config: LoaderConfig) -> Loader:
    """Make a loader of the episodes of one version of a store."""
    if isinstance(config.units, FedUnits):
        return config.units.loader(context, config)
    snapshot = context.snapshot
    config, selection, teams = chosen_episodes(context, config)
    index = selection.index
    if AGENT_ID in config.keys and not selection.agents:
        raise unknown_column(snapshot, selection, AGENT_ID)
    unit_index = UnitIndex(config.units, index)
    edges = unit_index.edges
    check_selection(config, index, edges)
    config.warn_left_out(index)
    chosen = None
    if config.transitions is not None:
        chosen = units_where(context, selection, config, edges)
        unit_index = unit_index.only(chosen)
        edges = unit_index.edges
    weights = evaluate_weights(snapshot, selection, edges, config.weights)
    order = config.order(edges, weights)
    if teams:
        source = joint_source(ColumnSource(context.blocks, selection, ()), teams, config.stored_columns)
    else:
        columns = choose_loaded(snapshot, selection, config.stored_columns)
        if config.cache.kind != "mmap":
            columns = _kept_encoded(columns, config, snapshot.schema.video)
        source = ColumnSource(context.blocks, selection, columns)
    make = _stream_feed if config.cache.kind == "stream" else _array_feed
    feed = make(source, config, order, unit_index)
    identity = {
        "store": snapshot.manifest.store_id,
        "version": snapshot.version,
        "episodes": zlib.crc32(selection.positions.tobytes()),
        "units": repr(config.units),
        "order": type(order).__name__,
        "weights": None if weights is None else zlib.crc32(weights.tobytes()),
        "seed": config.seed,
        # Always there, so that a state of some units does not fit a loader of all.
        "left_out": int(index.missing.sum()) or None
        if index.left_out and index.missing is not None
        else None,
        "transitions": None if chosen is None else zlib.crc32(chosen.words.astype("<u8").tobytes()),
    }
    if selection.agents:
        identity["agents"] = list(selection.agents)
    if teams:
        identity["joint"] = {team.group: list(team.agents) for team in teams}
    batches = BatchSource(feed, config.batching, config.shard, config.pipeline.on_batch)
    kind = Loader if config.prioritized is None else PrioritizedLoader
    return kind(batches, identity | feed.facts(), config.output, config.pipeline.modules)


def _kept_encoded(
    columns: tuple[Column, ...], config: LoaderConfig, video: Sequence[VideoColumn]
) -> tuple[Column, ...]:
    """Return columns whose frames are decoded when a batch is made, unless a transform reads all of them."""
    read = {
        name for each in config.pipeline.on_read if isinstance(each, DerivedColumns) for name in each.reads
    }
    return tuple(
        EncodedColumn.of_video(column, video)
        if isinstance(column, SpaceColumn) and column.name not in read
        else column
        for column in columns
    )


def _array_feed(source: ColumnSource, config: LoaderConfig, order: Order, unit_index: UnitIndex) -> ArrayFeed:
    """Read the columns into memory, or map them from a cache folder."""
    cache, rule = config.cache, config.prioritized
    if any(column.is_ragged for column in source.columns):
        # How many rows are decoded at a time depends on their size.
        source = replace(source, columns=_measured(source))
    if cache.kind == "memory":
        arrays = read_arrays(source)
    else:
        folder = CacheFolder.of(cache.folder, cache.max_bytes)
        # Transforms that write columns first read others from beginning to end.
        scattered = (config.shuffle or config.weights is not None) and not config.pipeline.writes
        arrays = map_arrays(source, folder, config.units.rows if scattered else math.inf)
    prepared = config.pipeline.prepare(arrays, config.kept_columns)
    priorities = None if rule is None else Priorities(rule, config.seed, order.length)
    return ArrayFeed(prepared, config.units, config.keys, order, unit_index, priorities)


def _stream_feed(
    source: ColumnSource, config: LoaderConfig, order: Order, unit_index: UnitIndex
) -> StreamFeed:
    """Plan groups of row groups that fit into half of the buffer."""
    if config.weights is not None:
        raise InvalidArgumentError(
            "weights=... draws from all units at any time, but a stream holds a part of them. Use "
            "cache='mmap', or choose episodes with filter(...)."
        )
    source = replace(source, columns=_measured(source))
    row_bytes = source.row_bytes + _DERIVED_BYTES * len(config.pipeline.writes)
    # One half for the group whose batches are taken, one for the group that is read; with its units' order.
    buffer = _BUFFER_BYTES if config.cache.buffer_bytes is None else config.cache.buffer_bytes
    group_rows = max(buffer // 2 // (row_bytes + _ORDER_BYTES), 1)
    counts = np.diff(unit_index.edges)
    seed = config.seed if config.shuffle else None
    blocks = blocks_of(source, counts, group_rows=group_rows, sort=config.shuffle)
    groups = StreamOrder(blocks, group_rows, seed)
    other: StreamOrder | None = None
    if config.shuffle and group_rows < _mixed_rows(source):
        parts = None
        if type(source) is ColumnSource and not config.pipeline.on_read and not _has_encoded(source):
            parts = parts_of(source, config.units, counts, group_rows=group_rows)
        if parts is None or parts.rows.mean() * 2 > group_rows:
            _warn_unmixed(source, group_rows)
        if parts is not None:
            groups, other = StreamOrder(parts, group_rows, seed), groups
    return StreamFeed(source, config.units, config.keys, groups, config.pipeline, other)


def _has_encoded(source: ColumnSource) -> bool:
    """Return whether frames depend on those before them, so that no row can be decoded by itself."""
    encodings = source.blocks.snapshot.schema.encodings
    return any(name in encodings for column in source.columns for name in column.fields)


def _mixed_rows(source: ColumnSource) -> int:
    """Return the rows of as many episodes as a shuffled batch should have units of."""
    episodes = len(source.index)
    return min(episodes, _MIXED) * source.index.rows // max(episodes, 1)


def _measured(source: ColumnSource) -> tuple[Column, ...]:
    """Return the columns with the sizes of encoded frames, and of rows that differ in length, as the largest
    files of the episodes have them.
    """
    sized = [column for column in source.columns if isinstance(column, EncodedColumn) or column.is_ragged]
    # Of several agents, the rows of others have no frames.
    sized = [column for column in sized if column.is_ragged or not source.selection.agents]
    if not sized:
        return source.columns
    pointers = source.selection.pointers
    rows = np.bincount(pointers.segment, pointers.row_count, len(pointers.segments))
    largest = [number for number in np.argsort(-rows, kind="stable")[:_MEASURED].tolist() if rows[number]]
    files = source.blocks.files(pointers.segments[number] for number in largest)
    return tuple(column.measured(files) if files and column in sized else column for column in source.columns)


def _warn_unmixed(source: ColumnSource, group_rows: int) -> None:
    """Warn of batches with units of few episodes each."""
    episodes = len(source.index)
    size = _mixed_rows(source) * 2 * (source.row_bytes + _ORDER_BYTES) >> 20
    room = group_rows * episodes / source.index.rows
    warnings.warn(
        f"The buffer of this stream has room for the rows of {room:.1f} of {episodes} episodes, so a "
        "shuffled batch has units of few episodes. "
        f"cache=el.Cache('stream', buffer_bytes={size} << 20) mixes {min(episodes, _MIXED)}. "
        "Frames that are stored as video take less room (docs/video.md).",
        RuntimeWarning,
        stacklevel=6,
    )


def units_where(
    context: ReadContext, selection: Selection, config: LoaderConfig, edges: np.ndarray
) -> NumberSet:
    """Return the units whose first transition fulfils the condition of a loader.

    Memory: 8 bytes for each transition that fulfils it, and one for each unit, until it returns.

    Args:
        context, selection, config: the episodes, and the condition.
        edges: int64, shape (E + 1,): the first unit of each episode, of all units.

    Raises:
        QueryError: the condition is not valid.
        InvalidArgumentError: no unit begins with such a transition.
    """
    from ..steps_where import times_where

    every, condition = config.units.every, config.transitions
    assert every is not None
    assert condition is not None
    found = times_where(context, condition)
    frame = positioned_episodes(context.snapshot, selection.positions).select("episode_id")
    ids = collect_episodes(context.snapshot, frame).with_row_index(_NUMBER)
    marked = np.zeros(int(edges[-1]), bool)
    for some in found.join(ids, on="episode_id").iter_slices(_EPISODES):
        episodes = np.repeat(some[_NUMBER].to_numpy().astype(np.int64), some["t"].list.len().to_numpy())
        steps = some["t"].explode().to_numpy()
        units = edges[episodes] + steps // every
        begins = (steps % every == 0) & (units < edges[episodes + 1])
        marked[units[begins]] = True
    if not marked.any():
        raise InvalidArgumentError(
            f"No {config.units} begins with a transition that fulfils {condition!s:.200}: there are "
            f"{len(marked)} units. Check the condition, with steps_where(...)."
            f"{_of_left_out(selection, config)}"
        )
    return NumberSet(marked)


def _of_left_out(selection: Selection, config: LoaderConfig) -> str:
    """Return the end of an error: how to load the last transitions that units leave out, if there are any."""
    if not int((selection.index.lengths - selection.index.usable).sum()):
        return ""
    return (
        f" Last transitions without next observations are left out. To load them, {config.left_out_advice}."
    )


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
        choose_followed(snapshot, select(snapshot, np.zeros(0, np.int64)), columns)
    feed = FollowFeed(context, follow, config)
    identity = {
        "store": snapshot.manifest.store_id,
        "followed": [str(condition) for condition in context.conditions],
        "newest": [follow.newest_steps, follow.newest_episodes],
        "units": repr(config.units),
        "weights": None if config.weights is None or config.prioritized else str(config.weights),
        "seed": config.seed,
    }
    source = BatchSource(feed, config.batching, config.shard, config.pipeline.on_batch)
    return FollowingLoader(source, identity | feed.facts(), config.output, config.pipeline.modules)


def _check_followable(follow: Follow, config: LoaderConfig) -> None:
    expected = "el.Follow(refresh_seconds=..., newest_steps=..., ...), or None"
    expect(isinstance(follow, Follow), "follow", follow, expected)
    config.check_no_prefetch("follows a store")
    if isinstance(config.units, FedUnits):
        raise InvalidArgumentError(
            f"A loader of {config.units} cannot follow a store. Leave follow out, and make a loader of the "
            "newest version from time to time: store.refresh().loader(...)."
        )
    if config.transitions is not None:
        raise InvalidArgumentError(
            "transitions=... chooses among the steps of one version, but a store that is followed gets more. "
            "Leave out one of transitions and follow."
        )
    if isinstance(config.units, Deltas) and config.units.unit == "seconds":
        raise InvalidArgumentError(
            "Deltas in seconds cannot follow a store, whose next episodes may have another frame rate. Give "
            "steps."
        )
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
    if config.batching.drop_last:
        raise InvalidArgumentError(
            "drop_last=True drops the last batch of an epoch, but a store that is followed has no end. Leave "
            "it out."
        )
    if config.cache != Cache():
        raise InvalidArgumentError(
            f"{config.cache}: a loader that follows a store holds its window in memory. Leave the cache out, "
            "and bound the window with el.Follow(newest_steps=...) or el.Follow(newest_episodes=...)."
        )
