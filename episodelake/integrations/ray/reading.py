"""What tasks of Ray Data read: rows of steps, whole episodes, and units cut by the loader's own code.

The driver pins a version and deals out episodes, neighbours together. Each task opens the store at that
version and reads its episodes with the public API, so its values are those of a view and of a loader.
"""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from os import PathLike, fspath
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import ray.data
from ray.data import Dataset, Datasource, ReadTask
from ray.data.block import BlockMetadata
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from ..._store import EpisodeStore, open_store
from ...readers.columns.mapped import Cache
from ...readers.columns.selection import select
from ...readers.columns.specs import check_names
from ...readers.columns.tree import leaves
from ...readers.loading.config import LoaderConfig
from ...readers.loading.feed import Batches, Shard
from ...readers.loading.feeding import chosen_episodes
from ...readers.loading.outputs import Output
from ...readers.loading.transforms.on_read import TransformPipeline
from ...readers.loading.units import Transitions, Units
from ...readers.loading.windows import Episodes, unpadded
from ...readers.view import EpisodeView
from ...store.common.arguments import suggest
from ...store.errors import InvalidArgumentError, StoreNotFoundError
from ...store.names import ACTION, EPISODE, LENGTH, OBSERVATION, REWARD
from ...store.spaces.arrow import plain_table
from ...store.spaces.fixed import FixedNode

#: A task reads about so many decoded bytes at least, and makes blocks of units of about as many.
_BLOCK_BYTES = 64 << 20
#: About how many bytes a cell takes whose size is known only when it is read.
_CELL_BYTES = 16


@dataclass(frozen=True)
class Address:
    """A version of a store, wherever a task runs."""

    path: str
    version: int
    storage_options: tuple[tuple[str, str], ...] | None

    def open(self) -> EpisodeStore:
        """Open the store; a process keeps the last few open.

        Raises:
            StoreNotFoundError: this machine does not see the store.
            VersionNotFoundError: the version was vacuumed meanwhile.
        """
        return _opened(self)


@lru_cache(8)
def _opened(address: Address) -> EpisodeStore:
    options = None if address.storage_options is None else dict(address.storage_options)
    try:
        return open_store(address.path, address.version, storage_options=options)
    except StoreNotFoundError as error:
        raise StoreNotFoundError(
            f"The machine {socket.gethostname()!r} does not see the store at {address.path!r}. Every machine "
            "of the cluster reads it: put it on a file system that all share, or on an object store."
        ) from error


@dataclass(frozen=True)
class Reading:
    """What a task makes of its episodes.

    Attributes:
        read: yields the blocks of a view. It gets the place of the view's first
            episode among all that are read, and the wanted names, None for all.
        rows: int64, shape (E,): how many rows each episode gives.
        row_bytes: bytes of a row in memory.
    """

    read: Callable[[EpisodeView, int, Sequence[str] | None], Iterator[pa.Table]]
    rows: np.ndarray
    row_bytes: int


class StoreDatasource(Datasource):
    """Episodes of one version of a store, in tasks of whole neighbouring episodes.

    Args:
        view: the episodes.
        address: the version that they are of.
        reading: what tasks make of them.
    """

    def __init__(self, view: EpisodeView, address: Address, reading: Reading) -> None:
        super().__init__()
        self._projection_map: dict[str, str] | None = None
        self._positions, self._address, self._reading = view.positions, address, reading

    def get_name(self) -> str:
        """Return the name of the tasks."""
        return "Episodelake"

    def supports_projection_pushdown(self) -> bool:
        """Return True: tasks read the columns that are asked for."""
        return True

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all columns of all rows."""
        return int(self._reading.rows.sum()) * self._reading.row_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return tasks, each of neighbouring episodes: at most `parallelism`, and none much smaller than
        others or than 64 MiB.
        """
        rows, row_bytes = self._reading.rows, self._reading.row_bytes
        capacity = max(-(-int(rows.sum()) // max(parallelism, 1)), _BLOCK_BYTES // max(row_bytes, 1), 1)
        return [self._task(part, per_task_row_limit) for part in groups_of(rows, capacity)]

    def _task(self, part: slice, limit: int | None) -> ReadTask:
        count = int(self._reading.rows[part].sum())
        metadata = BlockMetadata(count, count * self._reading.row_bytes, None, None)
        read = partial(
            _blocks,
            self._address,
            self._positions[part],
            part.start,
            self._reading.read,
            self._get_data_columns(),
        )
        return ReadTask(read, metadata, per_task_row_limit=limit)


def groups_of(sizes: np.ndarray, capacity: int) -> list[slice]:
    """Cut neighbours into groups of about `capacity`: a group ends with the one that reaches it.

    Args:
        sizes: int64, shape (E,), such as rows of episodes.
    """
    ends = np.cumsum(sizes)
    if not len(ends) or not ends[-1]:
        return []
    edges = np.unique(np.searchsorted(ends, np.arange(capacity, int(ends[-1]), capacity)) + 1)
    bounds = [0, *edges.tolist(), len(sizes)]
    return [slice(*pair) for pair in pairwise(bounds) if pair[0] < pair[1]]


def _blocks(
    address: Address,
    positions: np.ndarray,
    first: int,
    read: Callable[[EpisodeView, int, Sequence[str] | None], Iterator[pa.Table]],
    columns: Sequence[str] | None,
) -> Iterator[pa.Table]:
    store = address.open()
    return read(EpisodeView(store.context.choose(positions)), first, columns)


def _step_rows(
    last: bool, names: Sequence[str], view: EpisodeView, first: int, columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Yield the steps of a view, a table for all."""
    wanted = [name for name in names if columns is None or name in columns]
    frame = (view.steps if last else view.transitions).select(wanted)
    table = plain_table(frame.collect().to_arrow())
    for name, leaf in _fixed_leaves(view).items():
        if name in wanted:
            place = wanted.index(name)
            table = table.set_column(place, name, _tensor(table.column(name), leaf))
    yield table


def _tensor(column: pa.ChunkedArray, leaf: FixedNode) -> pa.Array:
    """Return a column in the shape and dtype of its space; where it is NULL, tensors are zero."""
    valid = column.is_valid().to_numpy()
    stored = column.drop_null().combine_chunks()
    values = leaf.decode([stored if stored.type == leaf.fields[0].type else leaf.adopt(stored)])
    if not valid.all():
        values, some = np.zeros((len(valid), *leaf.shape), leaf.native), values
        values[valid] = some
    if leaf.shape:
        return ArrowTensorArray.from_numpy(values)
    return pa.array(values, mask=~valid)


def _fixed_leaves(view: EpisodeView) -> dict[str, FixedNode]:
    """Return the parts of the spaces with a fixed shape, by column."""
    parts = view.context.snapshot.schema.parts
    codecs = [codec for part in parts for codec in (part.observation, part.action, part.reward)]
    return {leaf.column: leaf for codec in codecs for leaf in codec.leaves if isinstance(leaf, FixedNode)}


def _row_counts(view: EpisodeView, last: bool) -> np.ndarray:
    """Return the number of steps of each episode, or of its transitions; int64, shape (E,)."""
    snapshot, positions = view.context.snapshot, view.positions
    rows = snapshot.pointers.row_count[positions]
    if last:
        return rows
    if not snapshot.schema.groups:
        return rows - 1
    indices = [select(snapshot, positions, group=group.name).index for group in snapshot.schema.groups]
    return sum(np.bincount(index.numbers, index.lengths, len(rows)).astype(np.int64) for index in indices)


def _episode_rows(
    names: Sequence[str],
    steps: Sequence[str],
    agent: str | None,
    view: EpisodeView,
    first: int,
    columns: Sequence[str] | None,
) -> Iterator[pa.Table]:
    """Yield the episodes of a view, a table for all."""
    chosen = [name for name in names if columns is None or name in columns]
    table = plain_table(view.episodes.select(chosen).collect().to_arrow())
    wanted = [name for name in steps if columns is None or any(_within(each, name) for each in columns)]
    if wanted:
        (batch,) = view.loader(len(view), Episodes(), columns=[*wanted, LENGTH], agent=agent)
        parts = [dict(leaves(episode)) for episode in unpadded(batch)]
        for name in parts[0]:
            if name != LENGTH and (columns is None or name in columns):
                values = ArrowVariableShapedTensorArray.from_numpy([part[name] for part in parts])
                table = table.append_column(name, values)
    yield table


def _within(name: str, key: str) -> bool:
    """Return whether a column is a key or a part of it: `observation.camera` is one of `observation`."""
    return name == key or name.startswith(f"{key}.")


def _unit_rows(
    options: Mapping[str, Any], size: int, view: EpisodeView, first: int, columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Yield the units of a view, `size` at a time."""
    for batch in view.loader(size, **options):
        rows = dict(leaves(batch))
        if EPISODE in rows:
            rows[EPISODE] += first
        chosen = {name: values for name, values in rows.items() if columns is None or name in columns}
        yield pa.table({name: ArrowTensorArray.from_numpy(values) for name, values in chosen.items()})


def _unit_counts(view: EpisodeView, options: Mapping[str, Any]) -> np.ndarray:
    """Return how many units each episode has; int64, shape (E,)."""
    config = LoaderConfig(
        options["units"] or Transitions(),
        options["columns"],
        TransformPipeline.of(options["transforms"]),
        Batches.of(1),
        Shard(),
        Output.of("numpy").converter(),
        seed=0,
        shuffle=False,
        weights=None,
        cache=Cache(),
        agent=options["agent"],
        group=options["group"],
        joint=options["joint"],
    )
    config, selection, _ = chosen_episodes(view.context, config)
    counts = config.units.counts(selection.index)
    numbers = selection.index.numbers
    return counts if numbers is None else np.bincount(numbers, counts, len(view)).astype(np.int64)


def read_steps(
    path: str | PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    last: bool = False,
    where: pl.Expr | str | None = None,
    version: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    **read_options: Any,
) -> Dataset:
    """Read transitions, one row each, as `store.transitions` has them.

    Observations, actions and vector rewards that have a shape are tensors of that shape, numbers and tensors
    have the dtype of the space. Rows come in the order of the store's files. A column that is not asked for,
    here or by `select_columns`, is not read.

    Args:
        path: the store's folder or URL, which every machine of the cluster sees.
        columns: names; None for all.
        last: also the row of each episode's last observation, as `store.steps` has it. What belongs to a
            transition is NULL there, and zero in tensors.
        where: a condition over the episodes table; steps of other episodes are not read.
        version: a number or a tag; None for the newest. It is pinned, so a store that grows changes nothing.
        storage_options: how to reach an object store.
        read_options: those of `ray.data.read_datasource`, such as `override_num_blocks`.

    Raises:
        InvalidArgumentError: there is no such column, or the store is in memory.
        QueryError: `where` is not valid.
    """
    view, address = _view(path, where, version, storage_options)
    schema = (view.steps if last else view.transitions).collect_schema()
    names = _checked(columns, schema.names(), "steps")
    fixed = _fixed_leaves(view)
    row_bytes = sum(fixed[name].row_bytes if name in fixed else _CELL_BYTES for name in names)
    rows = _row_counts(view, last)
    return _dataset(view, address, Reading(partial(_step_rows, last, names), rows, row_bytes), read_options)


def read_episodes(
    path: str | PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    steps: Sequence[str] = (OBSERVATION, ACTION, REWARD),
    where: pl.Expr | str | None = None,
    version: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    agent: str | None = None,
    **read_options: Any,
) -> Dataset:
    """Read episodes, one row each: their columns in `store.episodes`, and their steps as tensors.

    Of an episode of T transitions, observations have the shape (T + 1, ...) and everything else (T, ...).
    Rows come in the order of the store.

    Args:
        path, where, version, storage_options, read_options: as for `read_steps`.
        columns: names of columns of episodes; None for all.
        steps: keys of a loader of `Episodes()`; parts of a Dict space are columns of their own,
            `observation.camera`. Without any, steps are not read.
        agent: in a store of several agents, the agent whose steps are read.

    Raises:
        InvalidArgumentError: there is no such column, or it has values without a fixed shape; the store is in
            memory.
        QueryError: `where` is not valid.
    """
    view, address = _view(path, where, version, storage_options)
    names = _checked(columns, view.episodes.collect_schema().names(), "episodes")
    row_bytes = len(names) * _CELL_BYTES
    if steps and len(view):
        (batch,) = view[:1].loader(1, Episodes(), columns=[*steps, LENGTH], agent=agent)
        row_bytes += (
            _bytes_of(batch) * int(_row_counts(view, last=True).mean()) // max(int(batch[LENGTH][0]), 1)
        )
    reading = Reading(
        partial(_episode_rows, names, tuple(steps), agent), np.ones(len(view), np.int64), row_bytes
    )
    return _dataset(view, address, reading, read_options)


def read_units(
    path: str | PathLike[str],
    units: Units | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: pl.Expr | str | None = None,
    version: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    transforms: Sequence[Any] = (),
    agent: str | None = None,
    group: str | None = None,
    joint: bool = False,
    **read_options: Any,
) -> Dataset:
    """Read units for learners, one row each: what `store.loader(units=units)` puts into batches.

    Parts of a Dict or Tuple space are columns of their own, `observation.camera`. Rows come in the order of
    the store. For a learner, mix them with `random_shuffle()` or `iter_torch_batches(
    local_shuffle_buffer_size=...)`, and give each worker its part with `streaming_split`.

    Args:
        path, where, version, storage_options, read_options: as for `read_steps`.
        units: the kind of unit; None for `Transitions()`. Not `Episodes()`, see `read_episodes`.
        columns, transforms, agent, group, joint: as for `store.loader`.

    Raises:
        InvalidArgumentError: as for `store.loader`; or the store is in memory.
        QueryError: `where` is not valid.
    """
    if isinstance(units, Episodes):
        raise InvalidArgumentError("Episodes differ in length: read them with read_episodes().")
    view, address = _view(path, where, version, storage_options)
    options = {"units": units, "columns": columns, "transforms": transforms, "agent": agent, "group": group}
    options["joint"] = joint
    counts = _unit_counts(view, options)
    row_bytes = 1
    if counts.any():
        first = int(np.flatnonzero(counts)[0])
        row_bytes = _bytes_of(next(iter(view[first : first + 1].loader(1, **options))))
    size = max(_BLOCK_BYTES // row_bytes, 1)
    return _dataset(
        view, address, Reading(partial(_unit_rows, options, size), counts, row_bytes), read_options
    )


def _view(
    path: str | PathLike[str],
    where: pl.Expr | str | None,
    version: int | str | None,
    storage_options: Mapping[str, str] | None,
) -> tuple[EpisodeView, Address]:
    store = open_store(path, version, storage_options=storage_options)
    root = store.context.snapshot.layout.root
    if fspath(path).startswith("memory://"):
        raise InvalidArgumentError(f"{path!r} is in the memory of this process, which no task of Ray sees.")
    options = None if storage_options is None else tuple(sorted(storage_options.items()))
    view = store if where is None else store.filter(where)
    return view[:], Address(str(root), store.version, options)


def _bytes_of(batch: Mapping[str, Any]) -> int:
    return max(sum(leaf.nbytes for _, leaf in leaves(batch)), 1)


def _checked(columns: Sequence[str] | None, known: Sequence[str], of: str) -> tuple[str, ...]:
    if columns is None:
        return tuple(known)
    check_names(columns)
    for name in columns:
        if name not in known:
            raise InvalidArgumentError(
                f"There is no column {name!r} of {of}.{suggest(name, known)} There are: {', '.join(known)}."
            )
    return tuple(columns)


def _dataset(view: EpisodeView, address: Address, reading: Reading, options: Mapping[str, Any]) -> Dataset:
    view.context.check_not_empty("to read")
    return ray.data.read_datasource(StoreDatasource(view, address, reading), **options)
