"""The rows of segments that the rows of a frame address by episode, agent (if there are several) and t."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..agents import LANE_COLUMNS, RETURNS, Lanes, lanes_of
from ..errors import CorruptStoreError, InvalidArgumentError
from ..layout import STEPS
from ..parquet.files import open_parquet
from ..rewrite.operation import Operation
from ..schema import AGENT_ID
from ..tables.table_files import POINTERS, pointers_of

_ID = "episode_id"
_T = "t"


def unknown_episodes(operation: Operation, ids: pa.Array) -> str:
    """Return the message for episode ids that the newest version lacks."""
    there = operation.read_episodes(operation.tables.episodes.files(), [_ID]).column(_ID)
    hits = pc.call_function("is_in", [ids], pc.SetLookupOptions(there.combine_chunks()))
    missing = ids.filter(pc.call_function("invert", [hits])).to_pylist()
    shown = ", ".join(repr(each) for each in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return f"The store has no episode {shown}{more}; episodes in the newest version: {len(there):,}."


class StepTargets:
    """The row of a segment that each row of the frame addresses.

    Args:
        operation: the operation that annotates.
        episodes: rows of the episodes table: ids and pointers.
        position: for each row of the frame, the row of `episodes`.
        row: for each row of the frame, the row of the episode's rows.
        lanes: where each agent's rows are; None if there is one agent.
    """

    def __init__(
        self,
        operation: Operation,
        episodes: pa.Table,
        position: np.ndarray,
        row: np.ndarray,
        lanes: Lanes | None,
    ) -> None:
        self._operation = operation
        self._ids = episodes.column(_ID).combine_chunks()
        self._pointers = pointers_of(episodes, operation.store.layout.root)
        self._position = position
        self._rows = self._pointers.row_start[position] + row
        self._lanes = lanes
        self._counts = {file.name: file.rows for file in operation.tables.steps.files()}

    def by_segment(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield `(segment, rows of the frame, rows of the segment)`."""
        segment = self._pointers.segment[self._position]
        for index in np.unique(segment):
            chosen = np.flatnonzero(segment == index)
            yield self._pointers.segments[index], chosen, self._rows[chosen]

    def rows_of(self, segment: str) -> int:
        """Return how many rows the segment has."""
        if segment not in self._counts:
            place = self._operation.store.layout.table(STEPS) / segment
            self._counts[segment] = open_parquet(place).metadata.num_rows
        return self._counts[segment]

    def keys(self, segment: str) -> list[pa.Array]:
        """Return the keys of every row of the segment; NULL where no episode points."""
        owner, starts, counts = self._stretches()
        members = np.flatnonzero(self._pointers.segment[owner] == self._pointers.segments.index(segment))
        index = np.full(self.rows_of(segment), -1, np.int64)
        t = np.zeros(len(index), np.int64)
        stretches = (members, starts[members], counts[members])
        for member, start, count in zip(*(each.tolist() for each in stretches), strict=True):
            index[start : start + count] = member
            t[start : start + count] = np.arange(count)
        hidden = index < 0
        taken = pa.array(index, mask=hidden)
        ids = self._ids.take(pa.array(owner)).take(taken)
        agents = [] if self._lanes is None else [self._lanes.agent.take(taken)]
        return [ids, *agents, pa.array(t, mask=hidden)]

    def _stretches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the stretches of rows that count t from 0: episodes, first rows, and numbers of rows."""
        pointers, lanes = self._pointers, self._lanes
        if lanes is None:
            return np.arange(len(pointers.row_start)), pointers.row_start, pointers.row_count
        return lanes.episode, pointers.row_start[lanes.episode] + lanes.offset, lanes.length + 1


def step_targets(operation: Operation, table: pa.Table) -> StepTargets:
    """Find the rows that a frame addresses.

    Raises:
        InvalidArgumentError: an episode, an agent or a step is unknown, or there twice.
        CorruptStoreError: an episode has impossible agents.
    """
    schema = operation.store.schema
    columns = [_ID, *POINTERS, *((*LANE_COLUMNS, RETURNS) if schema.groups else ())]
    episodes = operation.read_episodes(operation.tables.episodes.files(), columns)
    ids = table.column(_ID).combine_chunks()
    options = pc.SetLookupOptions(episodes.column(_ID).combine_chunks())
    where = pc.call_function("index_in", [ids], options)
    if where.null_count:
        raise InvalidArgumentError(unknown_episodes(operation, ids.unique()))
    position = where.to_numpy().astype(np.int64)
    t = table.column(_T).to_numpy()
    lanes = lanes_of(episodes, schema.groups) if schema.groups else None
    if lanes is None:
        offset, counts = np.zeros(len(t), np.int64), episodes.column("row_count").to_numpy()[position]
    else:
        if lanes.bad.any():
            wrong = episodes.column(_ID)[int(np.flatnonzero(lanes.bad)[0])].as_py()
            raise CorruptStoreError(f"The episode {wrong!r} has agents that cannot be. Run verify.")
        lane = _lane_of(lanes, position, table.column(AGENT_ID).combine_chunks(), ids)
        offset, counts = lanes.offset[lane], lanes.length[lane] + 1
    wrong = np.flatnonzero((t < 0) | (t >= counts))
    if len(wrong):
        first = int(wrong[0])
        raise InvalidArgumentError(
            f"The episode {ids[first].as_py()!r} has no step t={int(t[first])}; t goes from 0 to "
            f"{int(counts[first]) - 1}."
        )
    row = offset + t
    if len(np.unique(np.stack([position, row]), axis=1).T) != len(t):
        keys = " and ".join(name for name, _ in schema.step_keys)
        raise InvalidArgumentError(f"The frame has a pair of {keys} more than once.")
    return StepTargets(operation, episodes, position, row, lanes)


def _lane_of(lanes: Lanes, position: np.ndarray, agents: pa.Array, ids: pa.Array) -> np.ndarray:
    """Return the lane of each pair of an episode and an agent.

    Raises:
        InvalidArgumentError: the episode has no such agent.
    """
    encoded = lanes.agent.dictionary_encode()
    where = pc.call_function("index_in", [agents], pc.SetLookupOptions(encoded.dictionary))
    code = where.fill_null(-1).to_numpy()
    many = len(encoded.dictionary)
    known = lanes.episode * many + encoded.indices.to_numpy()
    wanted = position * many + code
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], wanted), max(len(known) - 1, 0))
    missing = np.flatnonzero((code < 0) | (known[order][place] != wanted))
    if len(missing):
        first = int(missing[0])
        raise InvalidArgumentError(
            f"The episode {ids[first].as_py()!r} has no agent {agents[first].as_py()!r}."
        )
    return order[place]
