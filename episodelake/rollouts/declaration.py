"""`Rollouts`: the declaration of a store whose episodes are rollouts of language agents.

A message is a step. Its observation is the number of the message that it continues, -1 at the beginning; its
action is 1 if the model sampled it. See docs/rollouts.md and docs/decisions/176-rollouts.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gymnasium import spaces

from ..errors import InvalidArgumentError
from ..plugin import expect, whole_number

#: Messages of a rollout, at most.
MOST_MESSAGES = 2**31 - 1


@dataclass(frozen=True)
class Rollouts:
    """A store of rollouts, for `create`: `el.create("grpo", el.Rollouts(tokenizer="Qwen/Qwen3-8B"))`.

    Nothing is downloaded: both values are kept as they are, so that readers know what token ids mean.

    Args:
        tokenizer: the name of the tokenizer of all token ids; None if the rollouts have none.
        tokenizer_hash: a hash of its files, in the form that you like.
        vocabulary: how many token ids it has; ids beyond are refused. None if it is not known.
        context: the most tokens of a sequence that the model takes, for `store.health()`.

    Raises:
        InvalidArgumentError: a name is no text, or a number is not positive.
    """

    tokenizer: str | None = None
    tokenizer_hash: str | None = None
    vocabulary: int | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        for name in ("tokenizer", "tokenizer_hash"):
            value = getattr(self, name)
            expect(value is None or (isinstance(value, str) and value), name, value, "a text, or None")
        for name in ("vocabulary", "context"):
            size = getattr(self, name)
            if size is not None:
                object.__setattr__(self, name, whole_number(name, size, 1, 2**31 - 1))

    def to_json(self) -> dict[str, Any]:
        """Return the entry `rollouts` of `store.json`."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    @staticmethod
    def of(declared: Mapping[str, Any]) -> Rollouts:
        """Return the declaration that the entry `rollouts` of `store.json` has."""
        known = {each.name for each in fields(Rollouts)}
        # Later versions may declare more.
        return Rollouts(**{name: value for name, value in declared.items() if name in known})

    @property
    def observation_space(self) -> spaces.Discrete:
        """The number of the message that a message continues, from -1 on."""
        return spaces.Discrete(MOST_MESSAGES + 1, start=-1)

    @property
    def action_space(self) -> spaces.Discrete:
        """1 where the model sampled the message, 0 where it was given."""
        return spaces.Discrete(2)


def check_rollouts(declared: Mapping[str, Any] | None) -> None:
    """Refuse a store that is none of rollouts.

    Args:
        declared: the entry `rollouts` of its `store.json`; None if there is none.

    Raises:
        InvalidArgumentError: there is none.
    """
    if declared is None:
        raise InvalidArgumentError(
            "The episodes of this store are no rollouts.",
            hint="A store of rollouts is made by episodelake.create(path, episodelake.Rollouts()).",
        )
