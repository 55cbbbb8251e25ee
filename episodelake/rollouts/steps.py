"""A whole rollout as the arguments of `EpisodeWriter.write_episode`, for writers and formats alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from .messages import ROLE, columns_of
from .tokens import MessageTokens, TokenArguments

#: Metadata of a rollout with a meaning, in the order of the view `rollouts`.
FACTS = ("group", "sample", "task", "policy_version", "stop_reason", "error", "advantage")


@dataclass(frozen=True)
class RolloutFacts:
    """Facts of a rollout as a whole.

    Attributes:
        metadata: the episode's metadata.
        reward: the rollout's reward; 0 if there is none.
    """

    metadata: Mapping[str, Any]
    reward: float

    @staticmethod
    def of(
        rewards: Mapping[str, float] | float | None,
        weights: Mapping[str, float] | None,
        metadata: Mapping[str, Any] | None,
        **facts: Any,
    ) -> RolloutFacts:
        """Return the facts that `write_rollout` was given; see there for the errors."""
        known = {name: value for name, value in facts.items() if value is not None}
        taken = sorted({*known, "rewards", "weights"} & set(metadata or {}))
        if taken:
            raise InvalidArgumentError(
                f"metadata has {', '.join(taken)}, which are arguments of their own. Give them there."
            )
        parts = rewards if isinstance(rewards, Mapping) else {}
        named = {str(name): finite(f"rewards[{name!r}]", value) for name, value in parts.items()}
        factors = {str(name): finite(f"weights[{name!r}]", value) for name, value in (weights or {}).items()}
        unknown = sorted(set(factors) - set(named))
        if unknown:
            raise InvalidArgumentError(
                f"weights names {', '.join(unknown)}; rewards has {', '.join(named) or 'no names'}."
            )
        reward = math.fsum(value * factors.get(name, 1.0) for name, value in named.items())
        if rewards is not None and not isinstance(rewards, Mapping):
            reward = finite("rewards", rewards)
        split = {**({"rewards": named} if named else {}), **({"weights": factors} if factors else {})}
        return RolloutFacts({**(metadata or {}), **known, **split}, reward)


def rollout_steps(
    messages: Sequence[Mapping[str, Any]],
    *,
    vocabulary: int | None = None,
    parents: Sequence[int] | None = None,
    sampled: Sequence[bool] | None = None,
    times: Sequence[float | None] | None = None,
    tokens: Any = None,
    mask: Any = None,
    numbers: Mapping[str, Any] | None = None,
    rewards: Mapping[str, float] | float | None = None,
    weights: Mapping[str, float] | None = None,
    facts: Mapping[str, Any] | None = None,
    truncated: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return observations, actions, rewards, flags, own columns and metadata of a rollout.

    Args:
        vocabulary: how many token ids there are; None if that is not known.
        numbers: by column of `PER_SAMPLED`; one number for `advantages` is that of the rollout.
        facts: by name of `FACTS`, without `advantage`; None stands for none.
        others: as for `RolloutWriter.write_rollout`.

    Raises:
        InvalidArgumentError: see `RolloutWriter.write_rollout`.
    """
    given = dict(numbers or {})
    advantage = given.get("advantages")
    if isinstance(advantage, int | float | np.number):
        advantage, given["advantages"] = finite("advantages", advantage), None
    else:
        advantage = None
    whole = RolloutFacts.of(rewards, weights, metadata, **(facts or {}), advantage=advantage)
    rows = [columns_of(message, f"message {at}") for at, message in enumerate(messages)]
    if not rows:
        raise InvalidArgumentError("The rollout has no message; expected at least one.")
    count = len(rows)
    if sampled is None:
        own = [row[ROLE] == "assistant" for row in rows]
    else:
        own = [bool(each) for each in _of_length("sampled", sampled, count)]
    above = _parents(parents, count)
    cut = TokenArguments(tokens, mask, given).by_message(own, vocabulary)
    moments = [None] * count if times is None else _of_length("times", times, count)
    for row, piece, moment in zip(rows, cut, moments, strict=True):
        row.update(further(piece, moment))
    return {
        "observations": np.array([*above, -1]),
        "actions": np.array(own, np.int64),
        "rewards": [0.0] * (count - 1) + [whole.reward],
        "terminations": not truncated,
        "truncations": truncated,
        # Only the last step has no message.
        "extra": [*rows, None],
        "metadata": whole.metadata,
    }


def further(piece: MessageTokens | None, moment: float | None) -> dict[str, Any]:
    """Return the own columns of a message beside those of `columns_of`: its tokens and time."""
    columns: dict[str, Any] = {} if piece is None else piece.columns()
    return columns if moment is None else {**columns, "time": finite("times", moment)}


def _of_length(name: str, values: Sequence[Any], count: int) -> list[Any]:
    listed = list(values)
    if len(listed) != count:
        raise InvalidArgumentError(f"{name} has {len(listed)} entries, and there are {count} messages.")
    return listed


def _parents(parents: Sequence[int] | None, count: int) -> list[int]:
    if parents is None:
        return list(range(-1, count - 1))
    above = [-1 if parent is None else int(parent) for parent in _of_length("parents", parents, count)]
    for at, parent in enumerate(above):
        if not -1 <= parent < at:
            raise InvalidArgumentError(
                f"parents[{at}] is {parent}; expected the number of an earlier message, or -1 for none."
            )
    return above


def finite(name: str, value: Any) -> float:
    """Return a value as a number; the error has its name."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{name} is {value!r:.100}; expected a finite number.")
    return number
