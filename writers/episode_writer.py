"""`EpisodeWriter`: fill a store without an environment, step by step or in whole episodes.

For imports, for robots, for anything that has its own loop. A thin front for a run session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ..store.arrivals import LiveEpisode
from ..store.batches import single_value
from ..store.errors import RecorderStateError
from ..store.families import check_extra
from ..store.handle import OpenStore
from ..store.records import EndReason, EpisodeFacts, EpisodeRecord, add_in_order, end_reason_of, timestamp_now
from .options import SessionOptions
from .run import run_header
from .session import RunSession
from .whole_episode import WholeEpisode, arrivals_batches

_FEWEST_BULK_STEPS = 64


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


class OpenEpisode:
    """An episode that `EpisodeWriter.begin` started; several may be open at once."""

    def __init__(self, session: RunSession, live: LiveEpisode) -> None:
        self._session = session
        self._live = live
        self._ended = False

    @property
    def id(self) -> str:
        """The episode's id."""
        return self._session.episode_id(self._live)

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
            policy: said of the action, becomes `policy.<key>`.
            extra: your own columns, on the row of the observation.

        Raises:
            SpaceMismatchError: a value does not fit; nothing of the step was recorded.
            RecorderStateError: the episode has ended.
        """
        live = self._live
        if self._ended or live.terminated or live.truncated or self._session.closed:
            self._session.check_usable()
            raise RecorderStateError(
                f"The episode {self.id} has ended: begin a new one before the next step."
            )
        if extra:
            check_extra(extra)
        buffer = self._session.room()
        buffer.put_action(buffer.count, action)
        buffer.add_step(live, reward, observation, terminated, truncated, info, policy, extra)

    def end(self, metadata: Mapping[str, Any] | None = None) -> EpisodeRow:
        """Finish the episode; without a flag set its end reason is "cut".

        Raises:
            RecorderStateError: it has ended already, or has no step (then nothing is stored).
        """
        if self._ended:
            raise RecorderStateError(f"The episode {self.id} has ended already.")
        self._session.check_usable()
        record = self._session.end(self._live, "cut", metadata)
        self._ended = True
        if record is None:
            raise RecorderStateError(
                f"The episode {self.id} has no step: nothing was stored. Append steps before end()."
            )
        return _row(self._session, record)


class EpisodeWriter:
    """Write episodes of one run.

    An instance belongs to one thread and one process; use one writer per process.

    Args:
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        options: durability and when to flush and seal; see `SessionOptions`.

    Raises:
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        store: OpenStore,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
    ) -> None:
        self._schema = store.handle.schema
        self._session = RunSession(store.handle, run_header(run, metadata, None), options or SessionOptions())

    @property
    def run_id(self) -> str:
        """The id of this writer's run."""
        return self._session.header.run_id

    def begin(
        self,
        observation: Any,
        info: Mapping[str, Any] | None = None,
        *,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> OpenEpisode:
        """Start an episode with its first observation.

        Raises:
            SpaceMismatchError: the observation does not fit; no episode was started.
            RecorderStateError: the writer is closed.
        """
        live = self._session.begin(
            observation, info, seed=seed, options=options, metadata=metadata, env_index=env_index, extra=extra
        )
        return OpenEpisode(self._session, live)

    def write_episode(
        self,
        *,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        infos: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        env_index: int | None = None,
    ) -> EpisodeRow:
        """Write a whole episode of T transitions from arrays.

        Args:
            observations: T+1 stacked values (nested dicts and tuples of arrays for Dict and Tuple spaces,
                a list of values for ragged ones).
            actions: T stacked values.
            rewards: shape (T,), or (T, k) for vector rewards.
            terminations, truncations: bool, shape (T,), or one bool for the last transition.
            infos: T+1 mappings, or one mapping of arrays of length T+1.
            policy: arrays of length T (or T+1 with a value for the last observation).
            extra: arrays of length T+1, your own columns.
            seed, options, metadata, env_index: of the episode.

        Raises:
            SpaceMismatchError: shapes, dtypes or lengths do not fit, or a flag is set before the last
            transition;
                nothing was recorded.
            InvalidArgumentError: there is no transition.
            RecorderStateError: the writer is closed.
        """
        self._session.check_usable()
        if extra:
            check_extra(extra)
        whole = WholeEpisode.of(
            self._schema, observations, actions, rewards, terminations, truncations, infos, policy, extra
        )
        if whole.length < _FEWEST_BULK_STEPS:
            record = self._write_steps(whole, seed, options, metadata, env_index)
        else:
            record = self._write_bulk(whole, seed, options, metadata, env_index)
        return _row(self._session, record)

    def _write_steps(
        self, whole: WholeEpisode, seed: Any, options: Any, metadata: Any, env_index: int | None
    ) -> EpisodeRecord:
        """A short episode goes through the row buffer, where many share one journal batch."""
        session = self._session
        live = session.begin(
            single_value(whole.observations, 0),
            whole.infos[0],
            seed=seed,
            options=options,
            metadata=metadata,
            env_index=env_index,
            extra=whole.extras[0],
        )
        try:
            for t in range(whole.length):
                buffer = session.room()
                buffer.put_action(buffer.count, single_value(whole.actions, t))
                last = t == whole.length - 1
                buffer.add_step(
                    live,
                    whole.rewards[t],
                    single_value(whole.observations, t + 1),
                    last and whole.terminated,
                    last and whole.truncated,
                    whole.infos[t + 1],
                    whole.policies[t],
                    whole.extras[t + 1],
                )
            record = session.end(live, "cut", late=whole.policies[-1])
        except BaseException:
            session.discard(live)
            raise
        assert record is not None
        return record

    def _write_bulk(
        self, whole: WholeEpisode, seed: Any, options: Any, metadata: Any, env_index: int | None
    ) -> EpisodeRecord:
        facts = EpisodeFacts.of(seed, options, metadata)
        number = self._session.take_number()
        batches = arrivals_batches(self._schema, number, whole, self._session.columns)
        now = timestamp_now()
        total = [0.0] * self._schema.reward_shape[0] if self._schema.reward_shape else 0.0
        record = EpisodeRecord(
            number=number,
            env_index=env_index,
            started_at=now,
            ended_at=now,
            length=whole.length,
            episode_return=add_in_order(total, whole.rewards),
            terminated=whole.terminated,
            truncated=whole.truncated,
            end_reason=end_reason_of(whole.terminated, whole.truncated, "cut"),
            seed=facts.seed,
            options=facts.options,
            metadata=facts.metadata,
        )
        self._session.add_whole(record, batches)
        return record

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        self._session.seal()

    def close(self) -> None:
        """End what is open, seal everything and finish the run; a second call does nothing.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        self._session.close()

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception from within the block passes on."""
        self.close()


def _row(session: RunSession, record: EpisodeRecord) -> EpisodeRow:
    return EpisodeRow(
        episode_id=session.episode_id(record),
        run_id=session.header.run_id,
        number=record.number,
        length=record.length,
        episode_return=record.episode_return,
        terminated=record.terminated,
        truncated=record.truncated,
        end_reason=record.end_reason,
        seed=record.seed,
        metadata=record.metadata,
    )
