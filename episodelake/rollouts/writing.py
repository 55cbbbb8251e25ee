"""`RolloutWriter`: writes rollouts of language agents, whole or message by message, into an open store."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import EpisodeWriter
from ..errors import InvalidArgumentError, RecorderStateError
from ..plugin import whole_number
from ..types import EpisodeRow, OpenEpisode
from .declaration import Rollouts
from .messages import ROLE, SAMPLED, columns_of, is_models
from .tokens import MASK, PER_SAMPLED, MessageTokens, TokenArguments, checked, is_array

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
        if not isinstance(metadata, Mapping | None):
            raise InvalidArgumentError(f"metadata is {metadata!r:.100}; expected a mapping.")
        taken = sorted({*FACTS, "rewards", "weights"} & set(metadata or {}))
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
            reward = _finite("rewards", rewards)
        split = {**({"rewards": named} if named else {}), **({"weights": factors} if factors else {})}
        return RolloutFacts({**(metadata or {}), **known, **split}, reward)


class RolloutWriter(EpisodeWriter):
    """Write rollouts of language agents; a writer of a store that was created with `Rollouts`.

    It also has all that an `EpisodeWriter` has. An instance belongs to one thread and one process.
    """

    def write_rollout(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        parents: Sequence[int] | None = None,
        sampled: Sequence[bool] | None = None,
        times: Sequence[float | None] | None = None,
        tokens: Any = None,
        mask: Any = None,
        logprobs: Any = None,
        reference_logprobs: Any = None,
        advantages: Any = None,
        loss_weights: Any = None,
        token_rewards: Any = None,
        rewards: Mapping[str, float] | float | None = None,
        weights: Mapping[str, float] | None = None,
        group: str | None = None,
        sample: int | None = None,
        task: str | None = None,
        policy_version: int | None = None,
        stop_reason: str | None = None,
        error: Any = None,
        truncated: bool = False,
        source_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> EpisodeRow | None:
        """Write a whole rollout.

        Args:
            messages: each once, in OpenAI's form: mappings with `role`, `content`, `tool_calls` and so on.
                Reading gives back equal mappings.
            parents: for each message the number of the message that it continues, -1 for none; before it in
                the list. None if each continues the one before. A message that several continue begins
                branches.
            sampled: whether the model sampled each message; None for those of the role `assistant`.
            times: when each message was finished, in seconds since 1970; None where that is not known.
            tokens: ids that each message adds to the context: a list with an array, or None, for each
                message; or one array for all messages of a rollout without branches, which is cut where the
                mask begins and ends.
            mask: which of them the model sampled, in the same form; of a list, None means all tokens of
                sampled messages.
            logprobs, reference_logprobs, advantages, loss_weights, token_rewards: a number for each sampled
                token, or for each token, in the same form; kept as float32. One number for `advantages` is
                the advantage of the rollout.
            rewards: the reward, or its parts by name. The reward is the sum of the parts times `weights`.
            weights: of parts of the reward; 1 where there is none.
            group: names the prompt; rollouts of one group are samples of the same one.
            sample: the number of the rollout in its group.
            task, policy_version, stop_reason, error: facts of the rollout.
            truncated: whether the rollout was cut off, by its length for instance.
            source_key: names the rollout in the dataset it comes from; see `EpisodeWriter`.
            metadata: further facts, such as `usage` and `timing`.

        Returns:
            The episode; None if there is one with this source key and `on_duplicate` is "skip".

        Raises:
            InvalidArgumentError: there is no message, an argument does not go with the messages, a parent is
                no earlier message, ids are out of range, or a number is NaN; nothing was recorded.
            RecorderStateError: the writer is closed.
        """
        if advantages is not None and not is_array(advantages):
            advantage, advantages = _finite("advantages", advantages), None
        else:
            advantage = None
        facts = RolloutFacts.of(
            rewards,
            weights,
            metadata,
            group=group,
            sample=sample,
            task=task,
            policy_version=policy_version,
            stop_reason=stop_reason,
            error=error,
            advantage=advantage,
        )
        given = _listed("messages", messages)
        rows = [columns_of(message, f"message {at}") for at, message in enumerate(given)]
        if not rows:
            raise InvalidArgumentError("The rollout has no message; expected at least one.")
        count = len(rows)
        flags = [None] * count if sampled is None else _of_length("sampled", sampled, count)
        own = [
            _own(f"sampled[{at}]", flag, row[ROLE])
            for at, (flag, row) in enumerate(zip(flags, rows, strict=True))
        ]
        above = _parents(parents, count)
        numbers = dict(
            zip(
                PER_SAMPLED,
                (logprobs, reference_logprobs, advantages, loss_weights, token_rewards),
                strict=True,
            )
        )
        cut = TokenArguments(tokens, mask, numbers).by_message(
            own, self.vocabulary, line=above == list(range(-1, count - 1))
        )
        moments = [None] * count if times is None else _of_length("times", times, count)
        for row, *further in zip(rows, own, cut, moments, strict=True):
            row.update(_further(row[ROLE], *further))
        return self.write_episode(
            observations=np.array([*above, -1]),
            actions=np.array(own, np.int64),
            rewards=[0.0] * (count - 1) + [facts.reward],
            terminations=not truncated,
            truncations=truncated,
            extra={name: [row.get(name) for row in (*rows, {})] for name in _names(rows)},
            source_key=source_key,
            metadata=facts.metadata,
        )

    def begin_rollout(
        self,
        *,
        group: str | None = None,
        sample: int | None = None,
        task: str | None = None,
        policy_version: int | None = None,
        source_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> OpenRollout:
        """Start a rollout that grows message by message; several may be open at once.

        From its second message on, what was appended is in the journal after `flush_seconds` at most, and
        survives the end of the process.

        Args:
            group, sample, task, policy_version, source_key, metadata: as for `write_rollout`.

        Raises:
            InvalidArgumentError: metadata has a key that is an argument.
        """
        facts = RolloutFacts.of(
            None, None, metadata, group=group, sample=sample, task=task, policy_version=policy_version
        )
        return OpenRollout(self, facts.metadata, source_key)

    @property
    def vocabulary(self) -> int | None:
        """How many token ids there are; None if the store does not declare it."""
        return Rollouts.of(self.session.store.manifest.rollouts or {}).vocabulary


class OpenRollout:
    """A rollout that `RolloutWriter.begin_rollout` started."""

    def __init__(self, writer: RolloutWriter, metadata: Mapping[str, Any], source_key: str | None) -> None:
        self._writer = writer
        self._metadata = metadata
        self._source_key = source_key
        self._open: OpenEpisode | None = None
        self._skipped = False
        self._count = 0
        #: Of the last message, whose row is complete when the next one comes.
        self._sampled, self._reward = False, 0.0

    def __len__(self) -> int:
        """Return how many messages it has."""
        return self._count

    def append(
        self,
        message: Mapping[str, Any],
        *,
        parent: int | None = None,
        sampled: bool | None = None,
        tokens: Any = None,
        mask: Any = None,
        logprobs: Any = None,
        reference_logprobs: Any = None,
        advantages: Any = None,
        loss_weights: Any = None,
        token_rewards: Any = None,
        reward: float = 0.0,
        time: float | None = None,
    ) -> int:
        """Add a message and return its number, from 0.

        Args:
            message: in OpenAI's form.
            parent: the number of the message that it continues, -1 for none; None for the one before.
            sampled: whether the model sampled it; None for messages of the role `assistant`.
            tokens, mask, logprobs, reference_logprobs, advantages, loss_weights, token_rewards: of this
                message, as for `RolloutWriter.write_rollout`.
            reward: for this message; `end` adds the reward of the rollout to that of the last one.
            time: when it was finished, in seconds since 1970.

        Raises:
            InvalidArgumentError: a value does not fit; nothing of the message was recorded.
            RecorderStateError: the rollout has ended.
        """
        place = f"message {self._count}"
        row = columns_of(message, place)
        own = _own("sampled", sampled, row[ROLE])
        above = self._count - 1 if parent is None else _parent("parent", parent, self._count)
        given = (logprobs, reference_logprobs, advantages, loss_weights, token_rewards)
        numbers = {MASK: mask, **dict(zip(PER_SAMPLED, given, strict=True))}
        if tokens is None and any(values is not None for values in numbers.values()):
            raise InvalidArgumentError(f"{place}: numbers of tokens came without tokens.")
        piece = None if tokens is None else checked(tokens, numbers, own, self._writer.vocabulary, place)
        row.update(_further(row[ROLE], own, piece, time))
        worth = _finite("reward", reward)
        if self._open is None and not self._skipped:
            # Only a rollout with a message is an episode.
            self._open = self._writer.begin(
                above, extra=row, source_key=self._source_key, metadata=self._metadata
            )
            self._skipped = self._open is None
        elif self._open is not None:
            self._open.append(int(self._sampled), self._reward, above, extra=row)
        self._sampled, self._reward = own, worth
        self._count += 1
        return self._count - 1

    def end(
        self,
        *,
        rewards: Mapping[str, float] | float | None = None,
        weights: Mapping[str, float] | None = None,
        advantage: float | None = None,
        stop_reason: str | None = None,
        error: Any = None,
        truncated: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> EpisodeRow | None:
        """Finish the rollout.

        Args:
            rewards, weights, stop_reason, error, truncated, metadata: as for `RolloutWriter.write_rollout`.
            advantage: of the whole rollout.

        Returns:
            The episode; None if there was one with its source key and `on_duplicate` is "skip".

        Raises:
            InvalidArgumentError: a reward is not finite; the rollout is still open.
            RecorderStateError: it has ended already, or has no message (then nothing is stored).
        """
        facts = RolloutFacts.of(
            rewards, weights, metadata, stop_reason=stop_reason, error=error, advantage=advantage
        )
        if self._skipped:
            return None
        if self._open is None:
            raise RecorderStateError("The rollout has no message: nothing was stored.")
        reward = self._reward + facts.reward
        self._open.append(int(self._sampled), reward, -1, not truncated, truncated)
        return self._open.end(dict(facts.metadata))

    def discard(self) -> None:
        """Drop the rollout: none of its messages are stored, also after a crash.

        Raises:
            RecorderStateError: it has ended already, or the writer is closed.
        """
        if self._open is not None:
            self._open.discard()


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _further(role: str, sampled: bool, piece: MessageTokens | None, moment: float | None) -> dict[str, Any]:
    columns: dict[str, Any] = {} if piece is None else piece.columns(sampled=sampled)
    if sampled != is_models(role):
        columns[SAMPLED] = sampled
    return columns if moment is None else {**columns, "time": _finite("times", moment)}


def _of_length(name: str, values: Any, count: int) -> list[Any]:
    listed = _listed(name, values)
    if len(listed) != count:
        raise InvalidArgumentError(f"{name} has {len(listed)} entries, and there are {count} messages.")
    return listed


def _listed(name: str, values: Any) -> list[Any]:
    """Return the entries of anything that has them in an order."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping | Set):
        raise InvalidArgumentError(f"{name} is {type(values).__name__}; expected a list.")
    return list(values)


def _parents(parents: Sequence[int] | None, count: int) -> list[int]:
    if parents is None:
        return list(range(-1, count - 1))
    listed = enumerate(_of_length("parents", parents, count))
    return [-1 if parent is None else _parent(f"parents[{at}]", parent, at) for at, parent in listed]


def _parent(name: str, value: Any, at: int) -> int:
    """Return the number of the message that message `at` continues."""
    try:
        if not isinstance(value, bool | np.bool_) and -1 <= operator.index(value) < at:
            return operator.index(value)
    except TypeError:  # no whole number
        pass
    raise InvalidArgumentError(
        f"{name} is {value!r:.100}; expected the number of an earlier message, or -1 for none."
    )


def _own(name: str, value: Any, role: str) -> bool:
    """Return whether the model sampled a message."""
    if value is None:
        return is_models(role)
    plain = value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value
    if isinstance(plain, bool | int | float) and plain in (0, 1):
        return bool(plain)
    raise InvalidArgumentError(f"{name} is {value!r:.100}; expected True or False.")


def _fact(name: str, value: Any) -> Any:
    """Return a fact of the type that its column in the view `rollouts` has.

    A column of several types would show only some of them.
    """
    if name == "error":
        return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else value
    if name == "advantage":
        return _finite(name, value)
    if name in ("sample", "policy_version"):
        return whole_number(name, value, -(2**63), 2**63 - 1)
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is {value!r:.100}; expected a text.")
    return value


def _named(name: str, values: Any) -> dict[str, float]:
    """Return numbers by name."""
    if not isinstance(values, Mapping):
        raise InvalidArgumentError(f"{name} is {values!r:.100}; expected a mapping of names to numbers.")
    for each in values:
        if not isinstance(each, str):
            raise InvalidArgumentError(f"{name} has the name {each!r:.100}; expected texts.")
    return {str(each): _finite(f"{name}[{each!r}]", value) for each, value in values.items()}


def _sum(parts: Iterable[float]) -> float:
    try:
        total = math.fsum(parts)
    except (OverflowError, ValueError):  # too large, or infinite products
        total = math.inf
    return _finite("the sum of rewards", total)


def _finite(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{name} is {value!r:.100}; expected a finite number.")
    return number
