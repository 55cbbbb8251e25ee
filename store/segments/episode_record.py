"""Metadata of one episode: the value that becomes its row in the episodes table."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from ..dynamic.values import dump_json, freeze
from ..errors import InvalidArgumentError

EndReason = Literal["terminated", "truncated", "cut", "interrupted"]


@dataclass(frozen=True)
class AgentRecord:
    """One agent of a finished episode.

    Attributes:
        agent_id: its name.
        group: the index of its group.
        length: its number of transitions, 0 if it never acted.
        episode_return: sum of its rewards in order of time.
        terminated, truncated: what the environment said of it last.
    """

    agent_id: str
    group: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode.

    Attributes:
        number: counts the episodes of a run from 0.
        env_index: which sub-environment it came from; 0 for a single environment.
        started_at, ended_at: microseconds since 1970, UTC.
        length: number of transitions T.
        episode_return: sum of the rewards in order of time (float64), a list for vector rewards.
        terminated, truncated: the flags of the last transition, as the environment said.
        end_reason: why the recording ended.
        facts: its seed, options and metadata.
        agents: of a multi-agent episode, in the order in which they appeared; then `length` counts steps of
            the environment and `episode_return` is the sum over the agents.
    """

    number: int
    env_index: int | None
    started_at: int
    ended_at: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool
    end_reason: EndReason
    facts: EpisodeFacts
    agents: tuple[AgentRecord, ...] = ()

    @property
    def transitions(self) -> int:
        """The number of transitions, over all agents."""
        return sum(agent.length for agent in self.agents) if self.agents else self.length


@dataclass(frozen=True)
class Continued:
    """An episode of the store that another one continues, and replaces once that has more steps.

    Attributes:
        episode_id: its id.
        length: its transitions, with which the other one begins.
    """

    episode_id: str
    length: int


@dataclass(frozen=True)
class EpisodeFacts:
    """Seed, reset options and metadata that a caller gives for an episode, checked and copied.

    Attributes:
        seed: of its reset, any size.
        options: JSON text of the reset's options, or None.
        metadata: frozen mapping.
        continues: the episode of the store whose place it takes.
        last_missing: whether its source lacked the last observation.
    """

    seed: int | None
    options: str | None
    metadata: dict[Any, Any]
    continues: Continued | None = None
    last_missing: bool = False

    @staticmethod
    def of(seed: Any, options: Any, metadata: Any) -> EpisodeFacts:
        """Check and copy.

        Raises:
            InvalidArgumentError: the seed is no whole number, or the others are no mappings.
        """
        try:
            number = None if seed is None else operator.index(seed)
        except TypeError as error:
            raise InvalidArgumentError(f"seed={seed!r}: expected a whole number or None.") from error
        kept = None if options is None else dump_json(_mapping("options", options))
        return EpisodeFacts(number, kept, _mapping("metadata", metadata))

    def with_metadata(self, metadata: Any) -> EpisodeFacts:
        """Return the same with more metadata; new values count before old ones."""
        return replace(self, metadata={**self.metadata, **_mapping("metadata", metadata)})


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping | None):
        raise InvalidArgumentError(f"{name} is {type(value).__name__}; expected a mapping.")
    return freeze(value or {})


@dataclass(frozen=True)
class SegmentRows:
    """The rows of each episode in the steps file of a segment: first row and number of rows (T+1)."""

    segment: str
    row_start: Sequence[int]
    row_count: Sequence[int]


def timestamp_now() -> int:
    """Return the present, in microseconds since 1970, UTC."""
    return int(datetime.now(UTC).timestamp() * 1e6)


def end_reason_of(terminated: bool, truncated: bool, otherwise: EndReason) -> EndReason:
    """Return the end reason that the flags imply; `otherwise` if neither is set."""
    if terminated:
        return "terminated"
    return "truncated" if truncated else otherwise


def add_in_order(total: float | list[float], rewards: np.ndarray) -> float | list[float]:
    """Add rewards, shape (n,) or (n, k), to a return one after the other, as a plain loop would."""
    # The sum of a lane or a recovered episode begins with 0.0, whatever the shape of its rewards.
    start = np.broadcast_to(total, (1, *rewards.shape[1:]))
    return np.cumsum(np.concatenate([start, rewards], dtype=np.float64), axis=0)[-1].tolist()


def team_flags(agents: Sequence[AgentRecord]) -> tuple[bool, bool]:
    """`terminated` and `truncated` of a whole episode, from its agents'.

    Both are unset while an agent goes on. Then the episode is terminated if all agents are, and truncated if
    any is.
    """
    if not agents or not all(agent.terminated or agent.truncated for agent in agents):
        return False, False
    return all(agent.terminated for agent in agents), any(agent.truncated for agent in agents)


def team_return(returns: Sequence[float | list[float]], objectives: int | None) -> float | list[float]:
    """Return the sum of the agents' returns in their order; `objectives` is None for scalar rewards."""
    start = 0.0 if objectives is None else [0.0] * objectives
    return add_in_order(start, np.array(returns, np.float64)) if returns else start
