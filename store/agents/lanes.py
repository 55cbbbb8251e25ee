"""Lanes: the rows of each agent within its episode, derived from the episodes table.

The rows of a multi-agent episode are those of its agents, one agent after the other, in the order of the
column `agents`. Each lane looks like the rows of a single-agent episode. Readers and the verification start
here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..schema import StepSchema

#: Columns that lanes are derived from.
LANE_COLUMNS = ("agents", "agent_groups", "agent_lengths", "agent_terminations", "agent_truncations")
RETURNS = "agent_returns"
_MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class Lanes:
    """The lanes of some rows of the episodes table, in order; arrays have one entry per lane.

    Attributes:
        episode: the row of the episodes table that it belongs to.
        agent: its agent's name.
        group: the index of its agent's group.
        length: its number of transitions; it has one row more.
        offset: its first row, counted from the episode's first.
        flags: shape (n, 2), of its last transition.
        bad: one entry per episode: True if its columns contradict each other. It has no lanes then.
    """

    episode: np.ndarray
    agent: pa.Array
    group: np.ndarray
    length: np.ndarray
    offset: np.ndarray
    flags: np.ndarray
    bad: np.ndarray


def transitions_in(rows: pa.Table) -> int:
    """Return the number of transitions of some episodes: all rows but one for each agent."""
    count = int(rows.column("row_count").to_numpy().sum())
    if "agents" not in rows.column_names:
        return count - rows.num_rows
    return count - len(rows.column("agents").combine_chunks().flatten())


def lanes_of(rows: pa.Table, schema: StepSchema) -> Lanes:
    """Return the lanes of a multi-agent store's episodes.

    Args:
        rows: with the columns `row_count`, `LANE_COLUMNS` and `RETURNS`.
        schema: the store's.
    """
    columns = {name: rows.column(name).combine_chunks() for name in (*LANE_COLUMNS, RETURNS)}
    sizes = np.stack(
        [pc.call_function("list_value_length", [each]).fill_null(-1).to_numpy() for each in columns.values()]
    )
    bad = (sizes < 1).any(axis=0) | (sizes != sizes[0]).any(axis=0)
    flat = {name: each.filter(pa.array(~bad)).flatten() for name, each in columns.items()}
    episode = np.repeat(np.arange(len(bad)), np.where(bad, 0, sizes[0]))
    known = pc.SetLookupOptions(pa.array([group.name for group in schema.groups], pa.string()))
    group = pc.call_function("index_in", [flat["agent_groups"]], known).fill_null(-1).to_numpy()
    length = flat["agent_lengths"].fill_null(-1).to_numpy()
    wrong = (group < 0) | (length < 0) | (length >= _MOST_ROWS) | _repeated(flat["agents"], episode)
    for name in LANE_COLUMNS:
        wrong |= flat[name].is_null().to_numpy(zero_copy_only=False)
    bad[episode[wrong]] = True
    counts = np.bincount(episode, np.where(wrong, 0, length) + 1, rows.num_rows)
    bad |= counts != rows.column("row_count").fill_null(-1).to_numpy()
    keep = ~bad[episode]
    episode, length, group = episode[keep], length[keep], group[keep]
    flags = [flat[name].fill_null(False).to_numpy(zero_copy_only=False)[keep] for name in LANE_COLUMNS[3:]]
    agent = flat["agents"].filter(pa.array(keep))
    return Lanes(episode, agent, group, length, _offsets(episode, length + 1), np.stack(flags, axis=1), bad)


def _repeated(names: pa.Array, episode: np.ndarray) -> np.ndarray:
    """Return a mask of the agents that appear in their episode before."""
    code = names.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    first = np.zeros(len(code), bool)
    if len(code):
        first[np.unique(np.stack([episode, code]), axis=1, return_index=True)[1]] = True
    return ~first


def _offsets(episode: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the rows of the lanes of the same episode that stand before each lane."""
    before = np.cumsum(counts) - counts
    if not len(before):
        return before
    starts = np.flatnonzero(np.concatenate([[True], episode[1:] != episode[:-1]]))
    return before - np.repeat(before[starts], np.diff(np.append(starts, len(before))))
