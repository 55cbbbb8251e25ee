"""Results of a run, read from the episodes table, for a worker that died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...store.layout import EPISODES, Layout
from ...store.segments.parquet import open_parquet
from ...store.tables.version import TableVersion

_COLUMNS = ["run_id", "length", "episode_return", "terminated", "truncated", "end_reason", "ended_at"]
_AGENTS = ["agents", "agent_returns", "agent_lengths"]


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode of the table.

    Attributes:
        length, episode_return, terminated, truncated, end_reason: its columns.
        agent_returns, agent_lengths: of several agents, by agent.
    """

    length: int
    episode_return: Any
    terminated: bool
    truncated: bool
    end_reason: str
    agent_returns: Mapping[str, Any] = field(default_factory=dict)
    agent_lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if the environment ended it."""
        return self.terminated or self.truncated


def recorded_episodes(layout: Layout, run_id: str) -> list[RecordedEpisode]:
    """Return the episodes of a run that readers can see now, in the order of their ends.

    Raises:
        CorruptStoreError: a file of the table is damaged.
    """
    rows: list[dict[str, Any]] = []
    for file in TableVersion(layout.table(EPISODES)).files():
        if file.may_hold_run(run_id):
            parquet = open_parquet(layout.table(EPISODES) / file.name)
            there = [name for name in _AGENTS if name in parquet.schema_arrow.names]
            found = parquet.read(columns=[*_COLUMNS, *there]).to_pylist()
            rows += [row for row in found if row["run_id"] == run_id]
    rows.sort(key=lambda row: row["ended_at"])
    return [_recorded(row) for row in rows]


def _recorded(row: dict[str, Any]) -> RecordedEpisode:
    values = {name: row[name] for name in _COLUMNS if name not in ("run_id", "ended_at")}
    agents = row.get("agents") or []
    returns, lengths = (dict(zip(agents, row.get(name) or [], strict=True)) for name in _AGENTS[1:])
    return RecordedEpisode(**values, agent_returns=returns, agent_lengths=lengths)
