"""What recovery finds of one episode in a dead writer's journal, row by row and event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .errors import CorruptStoreError
from .records import AgentRecord, EndReason, EpisodeRecord, add_in_order, end_reason_of
from .schema import JOURNAL_KIND, REWARD, STEP_ROW, TERMINATED, TRUNCATED
from .sealing import Piece
from .values import load_json


@dataclass
class FoundEpisode:
    """An episode as its journal rows and events tell it, up to the row last read."""

    begin: dict[str, Any]
    end: dict[str, Any] | None = None
    steps: int = 0
    episode_return: float | list[float] = 0.0
    terminated: bool = False
    truncated: bool = False

    def introduce(self, event: dict[str, Any]) -> None:
        """Refuse the event that says who an agent is: only multi-agent stores have it."""
        raise CorruptStoreError(f"A journal of a store without agents tells of one: {event}.")

    def add(self, piece: Piece, agent: int = 0) -> None:
        """Count some rows."""
        rows = piece.rows()
        stepped = np.flatnonzero(rows.column(JOURNAL_KIND.name).to_numpy() == STEP_ROW)
        if not len(stepped):
            return
        taken = pa.array(stepped)
        rewards = np.array(rows.column(REWARD).take(taken).to_pylist(), np.float64)
        self.episode_return = add_in_order(self.episode_return, rewards)
        self.steps += len(stepped)
        last = int(stepped[-1])
        self.terminated = rows.column(TERMINATED)[last].as_py()
        self.truncated = rows.column(TRUNCATED)[last].as_py()

    def record(self, number: int, now: int) -> EpisodeRecord:
        """The episode's row."""
        flags = (self.terminated, self.truncated)
        reason = (self.end or {}).get("reason") or end_reason_of(*flags, "interrupted")
        return self.as_record(number, now, (), self.episode_return, flags, reason)

    def as_record(
        self,
        number: int,
        now: int,
        agents: tuple[AgentRecord, ...],
        episode_return: float | list[float],
        flags: tuple[bool, bool],
        reason: EndReason,
    ) -> EpisodeRecord:
        """A row with what its events told, and what its rows add up to."""
        end = self.end or {}
        metadata = (self.end or self.begin).get("metadata")
        return EpisodeRecord(
            number=number,
            env_index=self.begin.get("env_index"),
            started_at=self.begin.get("started_at", now),
            ended_at=end.get("ended_at", now),
            length=self.steps,
            episode_return=episode_return,
            terminated=flags[0],
            truncated=flags[1],
            end_reason=reason,
            seed=self.begin.get("seed"),
            options=self.begin.get("options"),
            metadata=load_json(metadata, "the journal") if metadata else {},
            agents=agents,
        )
