"""Open episodes of writers: what `begin` returns, to append to, and their row once they have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ...store.errors import RecorderStateError
from ...store.journal.episodes import EndReason, EpisodeRecord
from ...store.maintenance.reopening import LastRow
from ..rows.arrivals import LiveEpisode
from ..rows.step_rows import StepRows
from ..session.journal import NotCopyable
from ..session.run import RunOwner
from ..session.session import RunSession


@dataclass(frozen=True)
class EpisodeRow:
    """A finished episode, as it will stand in the episodes table.

    Attributes:
        episode_id, run_id, number: its names.
        length: transitions T.
        episode_return: sum of the rewards in order of time; a list for vector rewards.
        terminated, truncated: the flags of the last transition.
        end_reason: "terminated", "truncated" or "cut".
        seed: the seed it was begun with, or None.
        metadata: its metadata.
    """

    episode_id: str
    run_id: str
    number: int
    length: int
    episode_return: float | list[float]
    terminated: bool
    truncated: bool
    end_reason: EndReason
    seed: int | None
    metadata: dict[Any, Any]

    @staticmethod
    def of(session: RunSession[Any], record: EpisodeRecord) -> EpisodeRow:
        """Return a finished episode of a run."""
        return EpisodeRow(
            episode_id=session.episode_id(record.number),
            run_id=session.header.run_id,
            number=record.number,
            length=record.length,
            episode_return=record.episode_return,
            terminated=record.terminated,
            truncated=record.truncated,
            end_reason=record.end_reason,
            seed=record.facts.seed,
            metadata=record.facts.metadata,
        )


class OpenRecording(NotCopyable):
    """The base of open episodes, of one agent or several.

    Args:
        writer: the writer that began it. A writer that is garbage collected is closed, so its open episodes
            keep it.
        live: the episode.
        finished: returns the row of the episode when it has ended.
    """

    def __init__(
        self,
        writer: RunOwner[Any],
        live: LiveEpisode,
        finished: Callable[[EpisodeRecord], EpisodeRow],
    ) -> None:
        self._writer = writer
        self._session = writer.session
        self._rows: StepRows = writer.session.rows
        self._live = live
        self._finished = finished
        self._ended = False

    @property
    def id(self) -> str:
        """The episode's id."""
        return self._session.episode_id(self._live.number)

    @property
    def length(self) -> int:
        """Its transitions so far; of several agents, the steps of the environment."""
        return self._live.length

    def end(self, metadata: Mapping[str, Any] | None = None) -> EpisodeRow:
        """Finish the episode; unless the flags of its agents ended it, its end reason is "cut".

        Raises:
            RecorderStateError: it has ended already, or has no step (then nothing is stored).
        """
        self._check_open()
        record = self._rows.end(self._live, "cut", metadata)
        self._ended = True
        if record is None:
            raise RecorderStateError(self._nothing_stored())
        return self._finished(record)

    def discard(self) -> None:
        """Drop the episode: none of its rows are stored, also after a crash.

        A call that failed or was interrupted may be repeated; `close` drops the episode then, too.

        Raises:
            RecorderStateError: it has ended already, or the writer is closed.
            StoreAccessError: the journal has rows of it and cannot be written; call again, or the next flush
                writes that it is discarded.
        """
        self._check_open()
        self._rows.discard(self._live)
        self._session.confirm_discard({self._live.number})
        self._ended = True

    def _nothing_stored(self) -> str:
        return f"The episode {self.id} has no step: nothing was stored. Append steps before end()."

    def _check_open(self) -> None:
        """Raise if the episode has ended, or nothing can be recorded now."""
        if self._ended:
            raise RecorderStateError(f"The episode {self.id} has ended already.")
        self._session.check_usable()

    def _refuse_step(self) -> NoReturn:
        """Raise since no step can follow."""
        self._session.check_usable()
        raise RecorderStateError(f"The episode {self.id} has ended: begin a new one before the next step.")


class OpenEpisode(OpenRecording):
    """An episode that `EpisodeWriter.begin` started; several may be open at once."""

    def append(
        self,
        action: Any,
        reward: Any,
        observation: Any,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one transition and the observation that it led to; all values are copied now.

        Args:
            action: taken at the observation before.
            reward: a number, or k numbers for vector rewards.
            observation: what came back.
            terminated, truncated: what the environment said; see Gymnasium's `Env.step`.
            info: came with the observation.
            policy: values beside the action, become `policy.<key>`.
            extra: your own columns, on the row of the observation.

        Raises:
            SpaceMismatchError: a value does not fit; nothing of the step was recorded.
            RecorderStateError: the episode has ended.
        """
        live = self._live
        if self._ended or live.terminated or live.truncated or live.discarded or self._session.closing:
            self._refuse_step()
        if extra:
            self._session.store.schema.check_extra(extra)
        buffer = self._rows.room()
        buffer.put_action(buffer.count, action)
        buffer.add_step(live, reward, observation, terminated, truncated, info, policy, extra)


class ReopenedEpisode(OpenEpisode):
    """An episode of the store that `EpisodeWriter.reopen` continues.

    Attributes:
        continues: the id of the episode that it continues.
        observation, info: the last that were recorded before it was reopened.
    """

    def __init__(
        self,
        writer: RunOwner[Any],
        live: LiveEpisode,
        finished: Callable[[EpisodeRecord], EpisodeRow],
        continues: str,
        last: LastRow,
    ) -> None:
        super().__init__(writer, live, finished)
        self.continues = continues
        self.observation = last.observation
        self.info = last.info
        self._policy = last.policy

    def append(
        self,
        action: Any,
        reward: Any,
        observation: Any,
        terminated: bool = False,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one transition; see `OpenEpisode.append`.

        Policy outputs that were recorded before the episode was reopened stay where `policy` lacks the key.
        """
        first = self._live.length == self._live.continued
        if first and self._policy and isinstance(policy, Mapping | None):
            policy = {**self._policy, **(policy or {})}
        super().append(action, reward, observation, terminated, truncated, info, policy, extra)

    def _nothing_stored(self) -> str:
        return f"Nothing was appended to {self.continues!r}: it stays as it was."
