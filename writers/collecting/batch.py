"""The loop's view of an environment: a batch of one or many, with a recorder behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...store.segments.episode_columns import Ends
from ..buffers.arrivals import LiveEpisode
from ..recorders.callbacks import EpisodeSummary
from .goal import CollectProgressState
from .resets import Resets


@dataclass(frozen=True)
class Taken:
    """Result of one step of a batch.

    Attributes:
        steps: transitions that were recorded.
        ended: episodes that have ended and are recorded; of a vector environment in columns. None are told of
            where the course has them told late.
        reward, terminated, truncated: as the environment gave them.
    """

    steps: int
    ended: Sequence[LiveEpisode] | Ends
    reward: Any
    terminated: Any
    truncated: Any


class Batch(Protocol):
    """An environment, or many, whose steps are recorded."""

    #: How many environments; None for a single one, whose values have no batch axis.
    size: int | None
    #: What the policy is given next. The environment's own objects.
    observation: Any
    info: Mapping[str, Any]

    def enter(self, course: CollectProgressState, resets: Resets) -> None:
        """Begin a call: what is recorded of the next steps is what the course still wants."""
        ...

    def settle(self) -> Sequence[int]:
        """Reset what waits for it; the environments whose next action is the first of an episode."""
        ...

    def catch_up(self) -> Taken | None:
        """Record what an earlier call left to be recorded; None if there is nothing."""
        ...

    def step(self, action: Any, columns: Mapping[str, Any]) -> Taken:
        """Take one step with the environment's action; `columns` are recorded beside it."""
        ...

    def ended_late(self) -> Iterable[Ends]:
        """Episodes that have ended and that no step told of."""
        ...

    def leave(self, complete: bool) -> int:
        """End a call; how many episodes are running.

        Args:
            complete: whether the call brought what was asked for. Where episodes were, those that are
                running are then given up.
        """
        ...

    def summaries(self, ended: Any) -> list[EpisodeSummary]:
        """Return the summaries of ended episodes for a hook, in the form of `Taken`."""
        ...
