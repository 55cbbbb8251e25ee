"""One episode of a dead writer's journal, collected row by row and event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..dynamic.values import load_json
from ..errors import CorruptStoreError
from ..schema import (
    ENV_STEP,
    FLAGS,
    JOURNAL_KIND,
    LAST_OBSERVATION,
    MISSING,
    REWARD,
    STEP_ROW,
    StepSchema,
)
from ..segments.episode_record import (
    AgentRecord,
    Continued,
    EndReason,
    EpisodeFacts,
    EpisodeRecord,
    add_in_order,
    end_reason_of,
)
from .row_index import RowSpans


@dataclass(frozen=True)
class Outcomes:
    """Rewards and flags of the transitions of a batch, rows of one lane together.

    Attributes:
        stepped: bool: which rows have a transition.
        rewards: float64, shape (n,) or (n, k).
        terminated, truncated: bool.
        env_step: int64, steps of the environment, in a multi-agent store.
    """

    stepped: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    env_step: np.ndarray | None = None

    @staticmethod
    def of(runs: RowSpans, schema: StepSchema) -> Outcomes:
        """Read them; a row without a transition has zeros."""
        rows = runs.rows(0, runs.batch.num_rows).rows
        stepped = rows.column(JOURNAL_KIND.name).to_numpy() == STEP_ROW
        rewards = np.zeros((len(stepped), *schema.reward_shape))
        rewards[stepped] = schema.reward.decode([rows.column(REWARD).filter(pa.array(stepped))])
        terminated, truncated = (
            rows.column(name).fill_null(False).to_numpy(zero_copy_only=False) for name in FLAGS
        )
        counted = rows.column(ENV_STEP).fill_null(0).to_numpy() if schema.groups else None
        return Outcomes(stepped, rewards, terminated, truncated, counted)


@dataclass
class FoundEpisode:
    """An episode as of its journal rows and events, up to the row last read."""

    begin: dict[str, Any]
    end: dict[str, Any] | None = None
    steps: int = 0
    episode_return: float | list[float] = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def continues(self) -> Continued | None:
        """The episode of the store that it continues."""
        found = self.begin.get("continues")
        return None if found is None else Continued(found, self.begin.get("continued_steps") or 0)

    @property
    def grew(self) -> bool:
        """Whether it has a step that no segment has."""
        return self.steps > (0 if self.continues is None else self.continues.length)

    def introduce(self, event: dict[str, Any]) -> None:
        """Refuse the event that says who an agent is: only multi-agent stores have it."""
        raise CorruptStoreError(f"A journal of a store without agents tells of one: {event}.")

    def add(self, outcomes: Outcomes, start: int, stop: int, agent: int = 0) -> None:
        """Add the rows `[start, stop)` of a batch."""
        stepped = start + np.flatnonzero(outcomes.stepped[start:stop])
        if not len(stepped):
            return
        self.episode_return = add_in_order(self.episode_return, outcomes.rewards[stepped])
        self.steps += len(stepped)
        self.terminated = bool(outcomes.terminated[stepped[-1]])
        self.truncated = bool(outcomes.truncated[stepped[-1]])

    def record(self, number: int, now: int) -> EpisodeRecord:
        """Return the episode's row."""
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
        """Return a row from the episode's events and the sums of its rows."""
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
            facts=EpisodeFacts(
                self.begin.get("seed"),
                self.begin.get("options"),
                load_json(metadata, "the journal") if metadata else {},
                self.continues,
                end.get(LAST_OBSERVATION.name) == MISSING,
            ),
            agents=agents,
        )
