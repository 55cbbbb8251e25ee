"""What step and episode callbacks are given, and what they may give back.

Both are plain callables. A step callback sees every `reset` and every `step` of a recorder before it is
recorded; an episode callback sees every finished episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..store.errors import InvalidArgumentError
from ..store.families import check_extra
from ..store.records import EndReason


@dataclass(frozen=True)
class StepData:
    """One `reset` or one `step`, as it is about to be recorded.

    The values are the environment's own objects: change what is recorded with `dataclasses.replace`, not in
    place, or the caller of the environment sees the change too.

    Attributes:
        t: index of the observation within the episode; 0 for a reset.
        observation: the observation that came back.
        action, reward, terminated, truncated: of the transition that led here; None for a reset.
        info: the info that came with the observation.
        policy: what was logged for the action.
        extra: the user's own columns, on the row of the observation.
        end: set it to end the episode here; steps up to the next reset are not recorded.
        env_index: which sub-environment; 0 for a single one.
    """

    t: int
    observation: Any
    action: Any = None
    reward: Any = None
    terminated: bool | None = None
    truncated: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    end: bool = False
    env_index: int = 0


@dataclass(frozen=True)
class EpisodeSummary:
    """A finished episode, as an episode callback sees it.

    Attributes:
        id, number: of the episode.
        length: transitions T.
        episode_return: sum of rewards (a list for vector rewards).
        terminated, truncated: the flags of the last transition.
        end_reason: "terminated", "truncated" or "cut".
        seed: of the reset, if known.
        options: of the reset, if any.
        metadata: the episode's metadata so far.
        env_index: which sub-environment; 0 for a single one.
    """

    id: str
    number: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool
    end_reason: EndReason
    seed: int | None
    options: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    env_index: int = 0


StepCallback = Callable[[StepData], StepData | Mapping[str, Any] | None]
EpisodeCallback = Callable[[EpisodeSummary], Mapping[str, Any] | None]


def apply_step_callback(callback: StepCallback, step: StepData) -> StepData:
    """Call a step callback and read its answer: None keeps the step, a mapping adds extra columns.

    Raises:
        InvalidArgumentError: the answer is something else.
    """
    answer = callback(step)
    if answer is None:
        return step
    if isinstance(answer, Mapping):
        answer = replace(step, extra={**step.extra, **answer})
    if isinstance(answer, StepData):
        _check(answer)
        return answer
    raise InvalidArgumentError(
        f"A step callback returned {type(answer).__name__}; expected StepData, a mapping of extra "
        f"columns, or None."
    )


def _check(step: StepData) -> None:
    for name in ("info", "policy", "extra"):
        found = getattr(step, name)
        if not isinstance(found, Mapping):
            raise InvalidArgumentError(f"StepData.{name} is {type(found).__name__}; expected a mapping.")
    for name in ("terminated", "truncated"):
        found = getattr(step, name)
        if not (found is None and step.t == 0) and not isinstance(found, bool | np.bool_):
            raise InvalidArgumentError(f"StepData.{name} is {found!r}; expected True or False.")
    check_extra(step.extra)


def apply_episode_callback(callback: EpisodeCallback, episode: EpisodeSummary) -> Mapping[str, Any]:
    """Call an episode callback and return the metadata that it adds.

    Raises:
        InvalidArgumentError: the answer is neither a mapping nor None.
    """
    answer = callback(episode)
    if answer is None:
        return {}
    if isinstance(answer, Mapping):
        return answer
    raise InvalidArgumentError(
        f"An episode callback returned {type(answer).__name__}; expected a mapping of metadata, or None."
    )
