"""`Turn`: a message of a rollout as people read it, in the terminal and in the explorer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .messages import name_of
from .rollout import Rollout
from .tokens import LOGPROBS, MessageTokens

#: Keys of a message that a turn has a place for.
_SHOWN = ("role", "content", "name", "reasoning_content", "tool_call_id", "tool_calls")


@dataclass(frozen=True)
class Turn:
    """A message of a rollout. All texts are the writer's: escape them before you show them.

    Attributes:
        number: of the message.
        parent: the number of the message that it continues; -1 for none.
        sampled: whether the model sampled it.
        role: its role, with its name and the id of the call that it answers.
        text: its content; parts that are no text are JSON, each on a line.
        reasoning: what the model thought; empty for nothing.
        calls: the name and the arguments of each called tool.
        others: its other keys, with their values as JSON.
        tokens: None if it has none.
    """

    number: int
    parent: int
    sampled: bool
    role: str
    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    others: Mapping[str, str]
    tokens: MessageTokens | None

    @property
    def continues(self) -> int | None:
        """The message that it continues, if that is not the one before it."""
        return None if self.parent == self.number - 1 else self.parent

    @property
    def token_count(self) -> int:
        """The number of its tokens."""
        return 0 if self.tokens is None else len(self.tokens.tokens)

    @property
    def sampled_count(self) -> int:
        """The number of its tokens that the model sampled."""
        return 0 if self.tokens is None else int(self.tokens.mask.sum())

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability of its sampled tokens; None without any."""
        logprobs = None if self.tokens is None else self.tokens.numbers.get(LOGPROBS)
        return None if logprobs is None or not len(logprobs) else float(logprobs.mean(dtype=float))


def turns_of(rollout: Rollout) -> list[Turn]:
    """Return the messages of a rollout, in the order of their numbers.

    Raises:
        CorruptStoreError: its steps are damaged.
    """
    facts = zip(rollout.parents, rollout.sampled, rollout.messages, rollout.tokens, strict=True)
    return [_turn(number, *each) for number, each in enumerate(facts)]


def departures(rollout: Rollout) -> list[int | None]:
    """Return for each branch the last message that it shares with an earlier branch; None for none."""
    seen: set[int] = set()
    parents: list[int | None] = []
    for path in rollout.paths:
        parents.append(max(seen.intersection(path), default=None))
        seen.update(path)
    return parents


def reward_parts(metadata: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Return the parts of a rollout's reward: name, value and weight of each."""
    parts, weights = (_mapping(metadata.get(name)) for name in ("rewards", "weights"))
    return [
        {"name": str(name), "value": value, "weight": weights.get(name, 1.0)} for name, value in parts.items()
    ]


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _turn(
    number: int, parent: int, sampled: bool, message: Mapping[str, Any], tokens: MessageTokens | None
) -> Turn:
    name, answers = message.get("name"), message.get("tool_call_id")
    role = _text(message["role"]) + (f" {_text(name)}" if name else "")
    reasoning, calls = message.get("reasoning_content"), message.get("tool_calls")
    if not isinstance(calls, list):
        calls = [calls] if calls else []
    return Turn(
        number,
        parent,
        sampled,
        f"{role} of {_text(answers)}" if answers else role,
        _content(message.get("content")),
        _text(reasoning) if reasoning else "",
        tuple(map(_call, calls)),
        {str(key): _text(value) for key, value in message.items() if key not in _SHOWN},
        tokens,
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except TypeError:  # keys that JSON lacks
        return str(value)


def _content(content: Any) -> str:
    """Return a content as one text: texts of parts one after the other, other parts on lines of their own."""
    if not isinstance(content, list):
        return "" if content is None else _text(content)
    text = ""
    for part in content:
        own = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        text += own if isinstance(own, str) else f"\n{_text(part)}\n"
    return text.strip("\n")


def _call(call: Any) -> tuple[str, str]:
    """Return the name of a called tool and its arguments; of a call of another form, all of it."""
    name = name_of(call)
    if name is None:
        return "?", _text(call)
    function = call.get("function", call)
    return name, _text(function.get("arguments", ""))
