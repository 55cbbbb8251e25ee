"""Images of some rows of steps: `decode_frames`, and the cells of `frame_at` in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ..store.agents import lanes_of
from ..store.common.arguments import known_name
from ..store.errors import InvalidArgumentError
from ..store.frames import naming_frames
from ..store.names import AGENT_ID
from .blocks import Block
from .context import ReadContext
from .frames import collected, positions_of_ids

if TYPE_CHECKING:
    from ..store.spaces.fixed import FixedNode

_COLUMN, _PLACE = "_column", "_place"


def decode_frames(context: ReadContext, rows: Any, column: str) -> np.ndarray:
    """Return the images of rows; see `ReadView.decode_frames`."""
    leaf = _leaf(context, column)
    table = _rows(rows, frame_keys(context))
    images = np.empty((table.height, *leaf.shape), leaf.native)
    for lane, part in _lanes(context, table):
        t = part["t"].to_numpy()
        wrong = t[(t < 0) | (t >= lane.observations)]
        if len(wrong):
            raise lane.no_step(int(wrong[0]))
        images[part[_PLACE].to_numpy()] = lane.frames(leaf, t)
    return images


def frame_keys(context: ReadContext) -> list[str]:
    """Return the columns of steps that identify an observation."""
    return ["episode_id", *([AGENT_ID] if context.snapshot.schema.groups else []), "t"]


def frame_cells(context: ReadContext, columns: Any, *keys: Any) -> pa.Array:
    """Return frames as the cells of a raw column: large binary, one per row; NULL where an argument is.

    An observation that an episode lacks, the last one, is NULL too.

    Args:
        columns: the names of frame columns, text.
        keys: the values of `frame_keys`.

    Raises:
        InvalidArgumentError, EpisodeNotFoundError, CorruptStoreError: as for `ReadView.decode_frames`.
    """
    names = frame_keys(context)
    table = pl.DataFrame([pl.Series(_COLUMN, columns), *map(pl.Series, names, keys)])
    leaves = {name: _leaf(context, name) for name in table[_COLUMN].drop_nulls().unique()}
    rows = table.with_row_index(_PLACE).drop_nulls()
    sizes = np.zeros(table.height, np.int64)
    wanted: list[tuple[_Lane, FixedNode, np.ndarray, np.ndarray]] = []
    for lane, part in _lanes(context, rows):
        t = part["t"].to_numpy()
        wrong = t[(t < 0) | (t > lane.length)]
        if len(wrong):
            raise lane.no_step(int(wrong[0]))
        for (name,), own in part.filter(t < lane.observations).group_by(_COLUMN):
            leaf, places = leaves[str(name)], own[_PLACE].to_numpy()
            sizes[places] = leaf.row_bytes
            wanted.append((lane, leaf, places, own["t"].to_numpy()))
    edges = np.concatenate([[0], np.cumsum(sizes)])
    data = np.empty(int(edges[-1]), np.uint8)
    for lane, leaf, places, t in wanted:
        frames = lane.frames(leaf, t).reshape(len(t), -1).view(np.uint8)
        for place, frame in zip(places.tolist(), frames, strict=True):
            data[edges[place] : edges[place + 1]] = frame
    valid = pa.array(sizes > 0).buffers()[1]
    buffers = [valid, pa.py_buffer(edges), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)


@dataclass(frozen=True)
class _Lane:
    """The rows of an episode, or of one agent in it.

    Attributes:
        name: the episode, and the agent if there are several, for errors.
        block: has the rows.
        start: its first row there.
        length: the number of its transitions.
        observations: how many it has.
    """

    name: str
    block: Block
    start: int
    length: int
    observations: int

    def frames(self, leaf: FixedNode, t: np.ndarray) -> np.ndarray:
        """Return the images of some steps, in any order; errors of frames name the step."""
        with naming_frames(self.name, 0):
            return self.block.frames_at(leaf, self.start, t)

    def no_step(self, t: int) -> InvalidArgumentError:
        """Return the error for a step that it lacks."""
        return InvalidArgumentError(
            f"There is no observation t={t} of {self.name}; it has 0 to {self.observations - 1}."
        )


def _lanes(context: ReadContext, table: pl.DataFrame) -> Iterator[tuple[_Lane, pl.DataFrame]]:
    """Yield the lanes that rows name, each with its rows and their places in the column `_PLACE`."""
    snapshot = context.snapshot
    missing = snapshot.last_missing
    positions = positions_of_ids(context, table["episode_id"].unique(maintain_order=True).to_list())
    for (episode_id,), rows in table.group_by("episode_id", maintain_order=True):
        position = positions[str(episode_id)]
        last = missing is None or not missing[position]
        block, start = context.blocks.single(position)
        if not snapshot.schema.groups:
            length = snapshot.place(position)[2] - 1
            yield _Lane(repr(episode_id), block, start, length, length + last), rows
            continue
        stored, index = context.rows.find(position)
        lanes = lanes_of(stored.slice(index, 1), snapshot.schema.groups)
        numbers = {agent: number for number, agent in enumerate(lanes.agent.to_pylist())}
        for (agent,), own in rows.group_by(AGENT_ID, maintain_order=True):
            problem = f"The episode {episode_id!r} has no agent {agent!r}."
            known_name(agent, numbers, problem, "Its agents are")
            length = int(lanes.length[numbers[agent]])
            first = start + int(lanes.offset[numbers[agent]])
            yield _Lane(f"{agent!r} in {episode_id!r}", block, first, length, length + last), own


def _leaf(context: ReadContext, column: str) -> FixedNode:
    leaves = [leaf for part in context.snapshot.schema.parts for leaf in part.observation.leaves]
    frames = {leaf.column: leaf for leaf in leaves if leaf.binary}
    known_name(column, frames, f"There is no column {column!r} of frames.", "Those are")
    return frames[column]


def _rows(rows: Any, keys: list[str]) -> pl.DataFrame:
    """Return the keys of rows, with the column `_PLACE`."""
    if isinstance(rows, pl.LazyFrame):
        rows = collected(rows.select(keys))
    elif isinstance(rows, duckdb.DuckDBPyRelation):
        rows = rows.pl()
    elif not isinstance(rows, pl.DataFrame):
        rows = pl.DataFrame(pl.from_arrow(rows))
    missing = [name for name in keys if name not in rows.columns]
    if missing:
        raise InvalidArgumentError(
            f"rows lacks {', '.join(missing)}; it has {', '.join(rows.columns) or 'no columns'}. Keep the "
            f"columns {', '.join(keys)}, which say where a frame is."
        )
    t = rows["t"]
    if not t.dtype.is_integer() or t.null_count():
        raise InvalidArgumentError(
            f"rows has t of {t.dtype} with {t.null_count()} NULLs; expected whole numbers, as in steps."
        )
    return rows.select(keys).with_row_index(_PLACE)
