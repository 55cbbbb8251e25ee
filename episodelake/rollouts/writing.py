"""`RolloutWriter`: writes rollouts of language agents, whole or message by message, into an open store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .. import EpisodeWriter
from ..errors import InvalidArgumentError, RecorderStateError
from ..plugin import ReadContext, ReadView, Snapshot
from ..types import EpisodeRow, OpenEpisode
from .declaration import Rollouts
from .rollout import Rollout
from .steps import MessageStep, RolloutFacts, finite, rollout_steps
from .tokens import MASK, PER_SAMPLED, message_tokens


class RolloutWriter(EpisodeWriter):
    """Write rollouts of language agents; a writer of a store that was created with `Rollouts`.

    It also has all that an `EpisodeWriter` has. An instance belongs to one thread and one process.
    """

    @cached_property
    def _short(self) -> dict[OpenRollout, None]:
        """Open rollouts of one message, which have no transition yet."""
        return {}

    def close(self) -> None:
        """End open rollouts, seal everything and finish the run; see `EpisodeWriter.close`."""
        for rollout in list(self._short):
            rollout._cut()
        super().close()

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
        arguments = rollout_steps(
            messages,
            vocabulary=self.vocabulary,
            parents=parents,
            sampled=sampled,
            times=times,
            tokens=tokens,
            mask=mask,
            numbers=_numbers(logprobs, reference_logprobs, advantages, loss_weights, token_rewards),
            rewards=rewards,
            weights=weights,
            facts={
                "group": group,
                "sample": sample,
                "task": task,
                "policy_version": policy_version,
                "stop_reason": stop_reason,
                "error": error,
            },
            truncated=truncated,
            metadata=metadata,
        )
        return self.write_episode(**arguments, source_key=source_key)

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

        What was appended is in the journal after `flush_seconds` at most, and survives the end of the
        process.

        Args:
            group, sample, task, policy_version, source_key, metadata: as for `write_rollout`.

        Raises:
            InvalidArgumentError: metadata has a key that is an argument.
        """
        facts = RolloutFacts.of(
            None, None, metadata, group=group, sample=sample, task=task, policy_version=policy_version
        )
        return OpenRollout(self, facts.metadata, source_key)

    def reopen_rollout(self, rollout_id: str) -> OpenRollout:
        """Continue a rollout that was cut or interrupted, of any run; see `EpisodeWriter.reopen`.

        Its next message has the number after the last one. Rewards of messages stay, but that of the last one
        is 0: its row waited for the next message.

        Args:
            rollout_id: the id of the rollout, or of one that it took the place of.

        Raises:
            EpisodeNotFoundError: the newest version of the store has no such rollout.
            InvalidArgumentError: it is terminated or truncated, or ends without a message.
            RecorderStateError: another writer of this machine, or this one, continues it already; or this
                writer is closed.
            StoreAccessError: its rows cannot be read, or the journal cannot be written.
        """
        episode = self.reopen(rollout_id)
        handle = self.session.store
        try:
            newest = ReadView(ReadContext.of(Snapshot(handle.layout, handle.manifest)))
            old = Rollout(newest[episode.continues])
            if len(old.sampled) <= len(old.episode):
                raise InvalidArgumentError(
                    f"The rollout {old.id!r} ends without a message, so none can follow. Begin a new one."
                )
        except BaseException:
            episode.discard()
            raise
        return OpenRollout(self, {}, None, (episode, old.sampled))

    @property
    def vocabulary(self) -> int | None:
        """How many token ids there are; None if the store does not declare it."""
        return Rollouts.of(self.session.store.manifest.rollouts or {}).vocabulary


def _numbers(*values: Any) -> dict[str, Any]:
    """Return the arguments with numbers of tokens, given in the order of `PER_SAMPLED`, by name."""
    return dict(zip(PER_SAMPLED, values, strict=True))


class OpenRollout:
    """A rollout that `RolloutWriter.begin_rollout` started, or `reopen_rollout` continues."""

    def __init__(
        self,
        writer: RolloutWriter,
        metadata: Mapping[str, Any],
        source_key: str | None,
        continued: tuple[OpenEpisode | None, Sequence[bool]] = (None, ()),
    ) -> None:
        self._writer = writer
        self._metadata = metadata
        self._source_key = source_key
        #: The episode, and whether the model sampled each of its messages.
        self._open, sampled = continued
        self._skipped = False
        self._over = False
        self._count = len(sampled)
        self._first: Mapping[str, Any] = {}
        #: Of the last message, whose row is complete when the next one comes.
        self._sampled, self._reward = self._count > 0 and sampled[-1], 0.0

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
        self._check_open()
        step = MessageStep.of(message, self._count, sampled, parent, time)
        numbers = _numbers(logprobs, reference_logprobs, advantages, loss_weights, token_rewards)
        place = f"message {self._count}"
        row = step.row(
            message_tokens(tokens, {MASK: mask, **numbers}, step.sampled, self._writer.vocabulary, place)
        )
        worth = finite("reward", reward)
        if self._open is None and not self._skipped:
            # Only a rollout with a message is an episode.
            self._open = self._writer.begin(
                step.parent, extra=row, source_key=self._source_key, metadata=self._metadata
            )
            self._skipped = self._open is None
            if self._open is not None:
                self._first = row
                self._writer._short[self] = None
        elif self._open is not None:
            self._open.append(int(self._sampled), self._reward, step.parent, extra=row)
            self._writer._short.pop(self, None)
        self._sampled, self._reward = step.sampled, worth
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
        if self._open is None:
            self._check_open()
            self._over = True
            if not self._skipped:
                raise RecorderStateError("The rollout has no message: nothing was stored.")
            return None
        if not self._over:
            # A call that failed later may be repeated.
            reward = finite("the sum of rewards", self._reward + facts.reward)
            self._open.append(int(self._sampled), reward, -1, not truncated, truncated)
            self._over = True
            self._writer._short.pop(self, None)
        return self._open.end(dict(facts.metadata))

    def discard(self) -> None:
        """Drop the rollout: none of its messages are stored, also after a crash.

        Raises:
            RecorderStateError: it has ended already, or the writer is closed.
        """
        if self._open is None:
            self._check_open()
        else:
            self._open.discard()
            self._writer._short.pop(self, None)
        self._over = True

    def _cut(self) -> None:
        """Store its only message as an episode that was cut: without a transition, `close` would drop it."""
        assert self._open is not None
        self._writer.write_episode(
            observations=np.array([-1]),
            actions=np.array([int(self._sampled)]),
            rewards=[self._reward],
            terminations=False,
            truncations=False,
            last_observation="missing",
            extra=[self._first],
            # The open rollout holds its source key until it is dropped.
            metadata={**self._metadata, **({"source_key": self._source_key} if self._source_key else {})},
        )
        self.discard()

    def _check_open(self) -> None:
        if self._over:
            raise RecorderStateError("The rollout has ended: begin a new one before the next message.")
