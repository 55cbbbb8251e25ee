"""What is known of an episode besides its steps: the value that becomes its row in the episodes table."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from .errors import InvalidArgumentError
from .values import dump_json, freeze

EndReason = Literal["terminated", "truncated", "cut", "interrupted"]


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
        seed: the seed of its reset, if known; any size.
        options: JSON text of the reset's options, or None.
        metadata: frozen mapping.
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
    seed: int | None = None
    options: str | None = None
    metadata: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeFacts:
    """What a caller says of an episode, checked and copied.

    Attributes:
        seed: of its reset, any size.
        options: JSON text of the reset's options, or None.
        metadata: frozen mapping.
    """

    seed: int | None
    options: str | None
    metadata: dict[Any, Any]

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
        """The same with more metadata; new values count before old ones."""
        return replace(self, metadata={**self.metadata, **_mapping("metadata", metadata)})


def _mapping(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping | None):
        raise InvalidArgumentError(f"{name} is {type(value).__name__}; expected a mapping.")
    return freeze(value or {})


@dataclass(frozen=True)
class SegmentRows:
    """Where each episode of a segment stands in the steps file: first row and number of rows (T+1)."""

    segment: str
    row_start: Sequence[int]
    row_count: Sequence[int]


def timestamp_now() -> int:
    """The present, in microseconds since 1970, UTC."""
    return int(datetime.now(UTC).timestamp() * 1e6)


def end_reason_of(terminated: bool, truncated: bool, otherwise: EndReason) -> EndReason:
    """The end reason that the flags imply; `otherwise` if neither is set."""
    if terminated:
        return "terminated"
    return "truncated" if truncated else otherwise


def add_in_order(total: float | list[float], rewards: np.ndarray) -> float | list[float]:
    """Add rewards, shape (n,) or (n, k), to a return one after the other, as a plain loop would."""
    start = np.broadcast_to(np.asarray(total, np.float64), (1, *rewards.shape[1:]))
    return np.cumsum(np.concatenate([start, rewards.astype(np.float64)]), axis=0)[-1].tolist()
