"""Ray Data reads stores: rows of steps, whole episodes, and units cut by the loader's own code."""

# Ray has an environment of its own, without the type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
from ray.data import Dataset
from ray.data.extensions import ArrowTensorArray, ArrowVariableShapedTensorArray

from ... import Episodes, EpisodeView, Loader, Transitions, unpadded
from ... import open as open_store
from ...errors import InvalidArgumentError
from ...plugin import Address, FixedNode, collected, iterate_blocks, plain_table
from ...plugin.columns import ACTION, EPISODE, METADATA, OBSERVATION, REWARD
from ...plugin.engines import unit_counts
from ...readers.columns.selection import select
from ...readers.columns.specs import check_names
from ...readers.columns.tree import leaves
from ...types import Units
from .datasource import BLOCK_BYTES, Reading, check_columns, check_path, dataset_of

#: About how many bytes a cell takes whose size is known only when it is read.
_CELL_BYTES = 16
LENGTH = "length"
#: Ray Data's column that carries the number of rows where no other column does.
_NO_COLUMN = "__bsp_stub"


def _step_rows(last: bool, view: EpisodeView, first: int, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the steps of a view, a table for all."""
    if not columns:
        yield pa.table({_NO_COLUMN: pa.nulls(int(_row_counts(view, last).sum()))})
        return
    fixed = {name: leaf for name, leaf in _fixed_leaves(view).items() if name in columns}
    tables = []
    for rows in _stored_rows(last, view, columns):
        for name, leaf in fixed.items():
            rows = rows.set_column(columns.index(name), name, _tensor(rows.column(name), leaf))
        tables.append(rows)
    yield pa.concat_tables(tables)


def _stored_rows(last: bool, view: EpisodeView, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the steps of a view as the files have them, a row group at a time."""
    snapshot = view.context.snapshot
    added, shown = snapshot.annotation_files.annotations, snapshot.shown_schema("steps")
    # Any column gives the number of rows where none is asked for.
    stored = [shown.field(name) for name in columns if name in shown.names and name not in added]
    stored = stored or [shown.field(0)]
    facts = [name for name in columns if name not in shown.names and name not in added]
    episodes = plain_table(collected(view.episodes.select(facts)).to_arrow()) if facts else None
    places = {position: place for place, position in enumerate(view.positions.tolist())}
    overflow = snapshot.overflow("steps")
    for block, members in iterate_blocks(view.context):
        rows = block.shown(stored, overflow, 0, block.count)
        for name in columns:
            if name in added:
                rows = rows.append_column(name, block.added(snapshot, added[name], 0, block.count))
        chosen, owner = np.zeros(block.count, bool), np.zeros(block.count, np.int64)
        for position, start, count in members:
            chosen[start : start + count] = True
            owner[start : start + count] = places[position]
        if episodes is not None:
            for name, values in zip(facts, episodes.take(pa.array(owner)).columns, strict=True):
                rows = rows.append_column(name, values)
        if not last:
            chosen &= block.stepped
        rows = rows.select(columns)
        yield rows if chosen.all() else rows.filter(pa.array(chosen))


def _kept_facts(view: EpisodeView) -> list[str]:
    """Return the columns of episodes with their seeds and metadata, as far as there are any."""
    facts = collected(view.episodes.select("seed", cs.starts_with(METADATA.prefix)))
    return [column.name for column in facts if column.null_count() < len(column)]


def _tensor(column: pa.ChunkedArray, leaf: FixedNode) -> pa.Array:
    """Return a column in the shape and dtype of its space; where it is NULL, tensors are zero."""
    valid = column.is_valid().to_numpy()
    values = leaf.decode([column.drop_null() if column.null_count else column])
    if not len(values):
        values = np.zeros((len(valid), *leaf.shape), leaf.native)
    elif len(values) < len(valid):
        # Faster than to fill an array by a mask.
        values = np.take(values, np.cumsum(valid) - 1, axis=0)
        values[~valid] = 0
    if leaf.shape:
        return ArrowTensorArray.from_numpy(values)
    return pa.array(values, mask=~valid)


def _cell_bytes(kind: pa.DataType) -> int:
    return max(kind.bit_width // 8, 1) if pa.types.is_primitive(kind) else _CELL_BYTES


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
    counts = np.zeros(len(rows), np.int64)
    for group in snapshot.schema.groups:
        index = select(snapshot, positions, group=group.name).index
        if index.numbers is not None:
            np.add.at(counts, index.numbers, index.lengths)
    return counts


def _episode_rows(
    steps: Sequence[str], agent: str | None, view: EpisodeView, first: int, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the episodes of a view, a table for all."""
    frame = view.episodes
    names = [name for name in frame.collect_schema().names() if name in columns]
    table = plain_table(collected(frame.select(names or LENGTH)).to_arrow())
    wanted = [key for key in steps if any(_within(name, key) for name in columns)]
    if wanted:
        keys = dict.fromkeys([*wanted, LENGTH, EPISODE])
        # One at a time, nothing is padded.
        batches = _loader(view, 1, {"units": Episodes(), "columns": list(keys), "agent": agent})
        parts = [dict(leaves(episode)) for batch in batches for episode in unpadded(batch)]
        table = table.take(pa.array([part[EPISODE] for part in parts], pa.int64()))
        for name in columns:
            if name not in names:
                values = ArrowVariableShapedTensorArray.from_numpy([part[name] for part in parts])
                table = table.append_column(name, values)
    yield table.select(columns) if columns else pa.table({_NO_COLUMN: pa.nulls(len(table))})


def _within(name: str, key: str) -> bool:
    """Return whether a column is a key or a part of it: `observation.camera` is one of `observation`."""
    return name == key or name.startswith(f"{key}.")


def _unit_rows(
    options: Mapping[str, Any], size: int, view: EpisodeView, first: int, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the units of a view, `size` at a time."""
    for batch in _loader(view, size, options):
        rows = dict(leaves(batch))
        if EPISODE in rows:
            rows[EPISODE] += first
        chosen = {name: ArrowTensorArray.from_numpy(rows[name]) for name in columns}
        yield pa.table(chosen or {_NO_COLUMN: pa.nulls(len(next(iter(rows.values()))))})


def _loader(view: EpisodeView, size: int, options: Mapping[str, Any]) -> Loader:
    """Return a loader of a task; the driver warns of what all of them leave out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return view.loader(size, **options)


def _first_unit(view: EpisodeView, counts: np.ndarray, options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the columns of the first unit, a row of each; empty where no episode has any."""
    some = np.flatnonzero(counts)[:1]
    place = int(some[0]) if len(some) else 0
    return dict(leaves(next(iter(_loader(view[place : place + 1], 1, options))))) if len(some) else {}


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
        columns: names; None for all of the steps, and with `last` the `seed` and `metadata.<key>` of the
            episodes, for `write_steps`. Columns of `store.episodes` have the value of the episode in each of
            its rows.
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
    schema = (
        pl.DataFrame(schema=(view.steps if last else view.transitions).collect_schema()).to_arrow().schema
    )
    fixed, steps = _fixed_leaves(view), {field.name: field.type for field in schema}
    facts = pl.DataFrame(schema=view.episodes.collect_schema()).to_arrow().schema
    known = {field.name: field.type for field in facts} | steps
    chosen = [*steps, *(_kept_facts(view) if last else ())] if columns is None else columns
    sizes = {
        name: fixed[name].row_bytes if name in fixed else _cell_bytes(known[name])
        for name in _checked(chosen, list(known), "steps")
    }
    return dataset_of(
        view, address, Reading(partial(_step_rows, last), _row_counts(view, last), sizes), read_options
    )


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
    Rows come in the order of the store. With steps, these are the episodes of a loader: one without two
    observations, and one without the agent, is left out.

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
    check_names(steps)
    sizes, counts = dict.fromkeys(names, _CELL_BYTES), np.ones(len(view), np.int64)
    if steps:
        options = {"units": Episodes(), "columns": [*dict.fromkeys([*steps, LENGTH])], "agent": agent}
        counts = unit_counts(view.context, **options)
        unit = _first_unit(view, counts, options)
        length = int(unit.pop(LENGTH)[0]) if unit else 1
        mean = int(_row_counts(view, last=True).mean())
        sizes |= {name: values.nbytes * mean // length + 1 for name, values in unit.items()}
    reading = Reading(partial(_episode_rows, tuple(steps), agent), counts, sizes)
    return dataset_of(view, address, reading, read_options)


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
    units = Transitions() if units is None else units
    if isinstance(units, Episodes):
        raise InvalidArgumentError("Episodes differ in length: read them with read_episodes().")
    view, address = _view(path, where, version, storage_options)
    options = {"units": units, "columns": columns, "transforms": transforms, "agent": agent, "group": group}
    options["joint"] = joint
    counts = unit_counts(view.context, **options)
    sizes = {name: values.nbytes for name, values in _first_unit(view, counts, options).items()}
    size = max(BLOCK_BYTES // max(sum(sizes.values()), 1), 1)
    reading = Reading(partial(_unit_rows, options, size), counts, sizes)
    return dataset_of(view, address, reading, read_options)


def _view(
    path: str | PathLike[str],
    where: pl.Expr | str | None,
    version: int | str | None,
    storage_options: Mapping[str, str] | None,
) -> tuple[EpisodeView, Address]:
    check_path(path)
    store = open_store(path, version, storage_options=storage_options)
    view = store if where is None else store.filter(where)
    view.context.check_not_empty("to read")
    return view[:], Address.of(store.handle.layout, store.version)


def _checked(columns: Sequence[str] | None, known: Sequence[str], of: str) -> tuple[str, ...]:
    if columns is None:
        return tuple(known)
    check_names(columns)
    check_columns(columns, known, of)
    return tuple(dict.fromkeys(columns))
