"""`Rollout`: one rollout of a store, with its messages, tokens and branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import Episode
from ..errors import CorruptStoreError
from .messages import ROLE, SAMPLED, is_models, message_of
from .tokens import PER_SAMPLED, MessageTokens


@dataclass(frozen=True)
class Branch:
    """A path of messages from a first one to one that no message continues: one sequence to train on.

    Attributes:
        numbers: the numbers of its messages, in order.
        messages: the messages in OpenAI's form.
        tokens: int32, shape (n,): all ids of the messages, one after the other.
        mask: bool, shape (n,): which of them the model sampled.
        first: bool, shape (n,): False where an earlier branch has the token already.
        numbers_of_sampled: by column, float32 of shape (n,): NaN for tokens without such a number.
    """

    numbers: tuple[int, ...]
    messages: list[dict[str, Any]]
    tokens: np.ndarray
    mask: np.ndarray
    first: np.ndarray
    numbers_of_sampled: Mapping[str, np.ndarray] = field(repr=False)

    @property
    def logprobs(self) -> np.ndarray:
        """Log-probabilities: float32, shape (n,); NaN for tokens without one."""
        return self.numbers_of_sampled["logprobs"]


class Rollout:
    """One rollout, read from its episode; values are decoded when they are asked for.

    Args:
        episode: of a store of rollouts.
    """

    def __init__(self, episode: Episode) -> None:
        self.episode = episode

    def __repr__(self) -> str:
        """Show the id, the number of messages and the reward."""
        return f"Rollout({self.id!r}, messages={len(self._rows)}, reward={self.reward:g})"

    @property
    def id(self) -> str:
        """The id of its episode."""
        return self.episode.id

    @property
    def reward(self) -> float:
        """The sum of its rewards."""
        reward = self.episode.episode_return
        assert isinstance(reward, float)
        return reward

    @property
    def metadata(self) -> dict[Any, Any]:
        """Its facts: `group`, `rewards`, `policy_version` and so on, and the caller's own."""
        return self.episode.metadata

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        extra = self.episode.extra
        rows = [
            {name: _at(values, t) for name, values in extra.items()} for t in range(len(self.episode) + 1)
        ]
        # The last row has a message only if the rollout was cut before its end.
        return [row for row in rows if row.get(ROLE) is not None]

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """All messages in OpenAI's form, in the order in which they were written; equal to those."""
        return [message_of(row) for row in self._rows]

    @cached_property
    def parents(self) -> list[int]:
        """For each message the number of the message that it continues; -1 for none.

        Raises:
            CorruptStoreError: that is no earlier message, as only other writers can have stored it.
        """
        parents = np.asarray(self.episode.observations)[: len(self._rows)].tolist()
        for number, parent in enumerate(parents):
            if not -1 <= parent < number:
                raise CorruptStoreError(
                    f"Message {number} of the rollout {self.id!r} continues message {parent}; expected an "
                    "earlier one, or -1 for none."
                )
        return parents

    @cached_property
    def sampled(self) -> list[bool]:
        """For each message whether the model sampled it."""
        actions = np.asarray(self.episode.actions).astype(bool).tolist()
        # An action follows the last message only at the end of the rollout.
        later = [
            is_models(row[ROLE]) if row.get(SAMPLED) is None else row[SAMPLED]
            for row in self._rows[len(actions) :]
        ]
        return [*actions, *later][: len(self._rows)]

    @cached_property
    def times(self) -> list[float | None]:
        """For each message when it was finished, in seconds since 1970; None if that is not known."""
        return [None if row.get("time") is None else float(row["time"]) for row in self._rows]

    @cached_property
    def tokens(self) -> list[MessageTokens | None]:
        """For each message its tokens; None if it has none."""
        return [MessageTokens.of(row, sampled=own) for row, own in zip(self._rows, self.sampled, strict=True)]

    @cached_property
    def paths(self) -> list[tuple[int, ...]]:
        """The numbers of the messages of each branch."""
        continued = set(self.parents)
        branches = []
        for leaf in sorted(set(range(len(self._rows))) - continued):
            path = [leaf]
            while self.parents[path[-1]] >= 0:
                path.append(self.parents[path[-1]])
            branches.append(tuple(reversed(path)))
        return branches

    @cached_property
    def branches(self) -> list[Branch]:
        """Its branches in the order of their last messages; one if no message is continued twice."""
        seen: set[int] = set()
        made = []
        for path in self.paths:
            made.append(self._branch(path, seen))
            seen.update(path)
        return made

    def _branch(self, path: tuple[int, ...], seen: set[int]) -> Branch:
        pieces = [(at, piece) for at in path if (piece := self.tokens[at]) is not None]
        mask = _joined([piece.mask for _, piece in pieces], bool)
        numbers = {}
        for name in PER_SAMPLED:
            values = np.full(len(mask), np.nan, np.float32)
            if any(name in piece.numbers for _, piece in pieces):
                values[mask] = _joined(
                    [
                        piece.numbers.get(name, np.full(np.count_nonzero(piece.mask), np.nan, np.float32))
                        for _, piece in pieces
                    ],
                    np.float32,
                )
            numbers[name] = values
        return Branch(
            path,
            [self.messages[at] for at in path],
            _joined([piece.tokens for _, piece in pieces], np.int32),
            mask,
            _joined([np.full(len(piece.tokens), at not in seen) for at, piece in pieces], bool),
            numbers,
        )


def _joined(parts: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])


def _at(values: Any, t: int) -> Any:
    """Return the value of an own column at a step, as it was written; None if there is none."""
    if t >= len(values):
        return None
    value = values[t]
    return value.item() if isinstance(value, np.generic) else value
