"""The values of an episode that ends now, decoded from its rows when an episode callback asks for them.

The rows are still in the row buffer where the episode is short, else in the journal, which the session reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.dynamic.column_groups import INFO, merge_rows
from ...store.errors import RecorderStateError
from ...store.schema import JOURNAL_AGENT, JOURNAL_KIND, LATE_ROW, STEP_ROW, StepSchema
from ...store.segments.episode_record import AgentRecord
from ...store.spaces import SpaceCodec

#: Returns journal batches with the rows of one episode in order, with columns of infos if asked.
ReadRows = Callable[[bool], Sequence[pa.RecordBatch]]


class EpisodeValues:
    """Values of one episode, while its callback runs.

    Args:
        schema: the store's.
        read: gives its rows.
        rows: how many there must be, those of values logged last left out.
        agents: of a multi-agent episode, in the order in which they appeared.
    """

    def __init__(
        self, schema: StepSchema, read: ReadRows, rows: int, agents: Sequence[AgentRecord] = ()
    ) -> None:
        self._schema, self._rows, self._agents = schema, rows, agents
        self._read: ReadRows | None = read

    def close(self) -> None:
        """Read nothing more: the rows are about to leave the buffer and the journal."""
        self._read = None

    def __getstate__(self) -> dict[str, Any]:
        """Keep nothing: the rows stay in this process."""
        return {"_read": None}

    def get(self, name: str) -> Any:
        """Return an attribute of `LaneValues`; of a multi-agent episode by agent.

        Raises:
            RecorderStateError: the callback has returned, and the rows were not read before.
            StoreAccessError: the journal cannot be written or read.
        """
        lanes = self._lanes_with_infos if name == "infos" else self._lanes
        if not self._schema.groups:
            return getattr(lanes[0], name)
        return {agent.agent_id: getattr(lane, name) for agent, lane in zip(self._agents, lanes, strict=True)}

    @cached_property
    def _lanes(self) -> list[LaneValues]:
        return self._found(infos=False)

    @cached_property
    def _lanes_with_infos(self) -> list[LaneValues]:
        return self._found(infos=True)

    def _found(self, *, infos: bool) -> list[LaneValues]:
        if self._read is None:
            raise RecorderStateError(
                "The values of an episode can be read while its episode callback runs. Read them there, or "
                "from the store once the episode is sealed."
            )
        batches = [_chosen(batch, JOURNAL_KIND, lambda kind: kind != LATE_ROW) for batch in self._read(infos)]
        if sum(batch.num_rows for batch in batches) != self._rows:
            raise RecorderStateError(
                "The episode was recovered by another process meanwhile: read the store."
            )
        if not self._schema.groups:
            return [LaneValues(self._schema, batches)]
        return [
            LaneValues(
                self._schema.parts[agent.group],
                [_chosen(batch, JOURNAL_AGENT, lambda own, index=index: own == index) for batch in batches],
            )
            for index, agent in enumerate(self._agents)
        ]


class LaneValues:
    """The values of a single agent.

    Args:
        schema: the agent's own.
        batches: its rows, T+1 in all.
    """

    def __init__(self, schema: StepSchema, batches: Sequence[pa.RecordBatch]) -> None:
        self._schema, self._batches = schema, batches
        self._steps = [_chosen(batch, JOURNAL_KIND, lambda kind: kind == STEP_ROW) for batch in batches]

    @cached_property
    def observations(self) -> Any:
        """T+1 observations, stacked."""
        return _decoded(self._schema.observation, self._batches)

    @cached_property
    def actions(self) -> Any:
        """T actions, stacked."""
        return _decoded(self._schema.action, self._steps)

    @cached_property
    def rewards(self) -> np.ndarray:
        """T rewards."""
        return _decoded(self._schema.reward, self._steps)

    @cached_property
    def infos(self) -> list[dict[Any, Any]]:
        """T+1 infos."""
        return [info for batch in self._batches for info in merge_rows(INFO, pa.Table.from_batches([batch]))]


def _chosen(
    batch: pa.RecordBatch, column: pa.Field, wanted: Callable[[np.ndarray], np.ndarray]
) -> pa.RecordBatch:
    """Return some rows of a batch, which share no memory with it."""
    return batch.filter(pa.array(wanted(batch.column(column.name).to_numpy())))


def _decoded(codec: SpaceCodec, batches: Sequence[pa.RecordBatch]) -> Any:
    schema = pa.schema(codec.fields)
    columns = [batch.select(schema.names) for batch in batches]
    return codec.decode(pa.Table.from_batches(columns, schema).combine_chunks().columns)
