"""A whole rollout as the arguments of `EpisodeWriter.write_episode`, for writers and formats alike."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidArgumentError
from ..plugin import expect, freeze_value, whole_number
from .messages import ROLE, SAMPLED, columns_of, is_models
from .tokens import MessageTokens, TokenArguments, check_length, is_array

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
        known = {name: _fact(name, value) for name, value in facts.items() if value is not None}
        expect(isinstance(metadata, Mapping | None), "metadata", metadata, "a mapping")
        # Columns know no case: a key "Group" would take the column of the group.
        taken = [str(key) for key in metadata or {} if str(key).lower() in (*FACTS, "rewards", "weights")]
        if taken:
            raise InvalidArgumentError(
                f"metadata has {', '.join(taken)}, which are arguments of their own. Give them there."
            )
        named = _named("rewards", rewards) if isinstance(rewards, Mapping) else {}
        factors = {} if weights is None else _named("weights", weights)
        unknown = sorted(set(factors) - set(named))
        if unknown:
            raise InvalidArgumentError(
                f"weights names {', '.join(unknown)}; rewards has {', '.join(named) or 'no names'}."
            )
        if rewards is None or isinstance(rewards, Mapping):
            reward = _sum(value * factors.get(name, 1.0) for name, value in named.items())
        else:
            reward = finite("rewards", rewards)
        split = {**({"rewards": named} if named else {}), **({"weights": factors} if factors else {})}
        return RolloutFacts(freeze_value({**(metadata or {}), **known, **split}), reward)


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
    if advantage is not None and not is_array(advantage):
        advantage, given["advantages"] = finite("advantages", advantage), None
    else:
        advantage = None
    whole = RolloutFacts.of(rewards, weights, metadata, **(facts or {}), advantage=advantage)
    listed = _listed("messages", messages)
    count = len(listed)
    if not count:
        raise InvalidArgumentError("The rollout has no message; expected at least one.")
    columns = [
        [None] * count if values is None else _of_length(name, values, count)
        for name, values in (("sampled", sampled), ("parents", parents), ("times", times))
    ]
    if parents is not None:
        columns[1] = [-1 if parent is None else parent for parent in columns[1]]
    steps = [
        MessageStep.of(message, at, *facts)
        for at, (message, *facts) in enumerate(zip(listed, *columns, strict=True))
    ]
    line = all(step.parent == at - 1 for at, step in enumerate(steps))
    own = [step.sampled for step in steps]
    cut = TokenArguments(tokens, mask, given).by_message(own, vocabulary, line=line)
    rows = [step.row(piece) for step, piece in zip(steps, cut, strict=True)]
    return {
        "observations": np.array([*(step.parent for step in steps), -1]),
        "actions": np.array(own, np.int64),
        "rewards": [0.0] * (count - 1) + [whole.reward],
        "terminations": not truncated,
        "truncations": truncated,
        # Only the last step has no message.
        "extra": [*rows, None],
        "metadata": whole.metadata,
    }


@dataclass(frozen=True)
class MessageStep:
    """A message as a step, without its tokens.

    Attributes:
        columns: its own columns.
        parent: the number of the message that it continues, -1 for none.
        sampled: whether the model sampled it.
    """

    columns: Mapping[str, Any]
    parent: int
    sampled: bool

    @staticmethod
    def of(message: Any, number: int, sampled: Any, parent: Any, time: Any) -> MessageStep:
        """Return the step of a message.

        Args:
            message: a mapping with a text `role`.
            number: of the message; messages before it have smaller ones.
            sampled: whether the model sampled it; None for a message of the role `assistant`.
            parent: the number of the message that it continues; None for the one before.
            time: when it was finished, in seconds since 1970; None if that is not known.

        Raises:
            InvalidArgumentError: a value does not fit.
        """
        place = f"message {number}"
        columns = columns_of(message, place)
        own = _is_sampled(place, sampled, columns[ROLE])
        if own != is_models(columns[ROLE]):
            columns[SAMPLED] = own
        if time is not None:
            columns["time"] = finite(f"{place}: time", time)
        return MessageStep(columns, number - 1 if parent is None else _parent(place, parent, number), own)

    def row(self, tokens: MessageTokens | None) -> dict[str, Any]:
        """Return all own columns of the message with these tokens."""
        return {**self.columns, **({} if tokens is None else tokens.columns(sampled=self.sampled))}


def _of_length(name: str, values: Any, count: int) -> list[Any]:
    listed = _listed(name, values)
    check_length(name, listed, count)
    return listed


def _listed(name: str, values: Any) -> list[Any]:
    """Return the entries of anything that has them in an order."""
    ordered = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | Set)
    expect(ordered, name, values, "a list")
    return list(values)


def _parent(place: str, value: Any, number: int) -> int:
    try:
        if not isinstance(value, bool | np.bool_) and -1 <= operator.index(value) < number:
            return operator.index(value)
    except TypeError:  # no whole number
        pass
    raise InvalidArgumentError(
        f"{place}: parent is {value!r:.100}; expected the number of an earlier message, or -1 for none."
    )


def _is_sampled(place: str, value: Any, role: str) -> bool:
    if value is None:
        return is_models(role)
    plain = value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value
    if isinstance(plain, bool | int | float) and plain in (0, 1):
        return bool(plain)
    raise InvalidArgumentError(f"{place}: sampled is {value!r:.100}; expected True or False.")


def _fact(name: str, value: Any) -> Any:
    """Return a fact of the type that its column in the view `rollouts` has.

    A column of several types would show only some of them.
    """
    if name == "error":
        return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else value
    if name == "advantage":
        return finite(name, value)
    if name in ("sample", "policy_version"):
        return whole_number(name, value, -(2**63), 2**63 - 1)
    expect(isinstance(value, str), name, value, "a text")
    return value


def _named(name: str, values: Any) -> dict[str, float]:
    """Return numbers by name."""
    named = isinstance(values, Mapping) and all(isinstance(each, str) for each in values)
    expect(named, name, values, "a mapping of names, as texts, to numbers")
    # Of members of enumerations, `str` returns something else than their text.
    return {str.__str__(each): finite(f"{name}[{each!r}]", value) for each, value in values.items()}


def _sum(parts: Iterable[float]) -> float:
    try:
        total = math.fsum(parts)
    except (OverflowError, ValueError):  # too large, or infinite products
        total = math.inf
    return finite("the sum of rewards", total)


def finite(name: str, value: Any) -> float:
    """Return a value as a number; the error has its name."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    expect(math.isfinite(number), name, value, "a finite number")
    return number
