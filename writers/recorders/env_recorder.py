"""`EnvRecorder`: the base of all recorders of environments, which begins their run and closes them.

`EpisodeRecorder` is the base of those with one episode at a time: of a single environment, or of one with
several agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Generic, TypeVar

from ...store.dynamic.values import load_json
from ...store.errors import RecorderStateError
from ...store.handle import OpenStore
from ...store.journal.run_journal import RunHeader
from ...store.segments.episode_record import end_reason_of
from ..buffers.arrivals import LiveEpisode
from ..environment import keep_env
from ..options import SessionOptions
from ..row_source import RowSource
from ..run import run_header
from ..run_owner import RunOwner
from ..session import RunSession
from ..step_rows import StepRows
from .callbacks import (
    EpisodeCallback,
    EpisodeSummary,
    Guarded,
    StepCallback,
    apply_episode_callback,
)
from .env_checks import check_unrecorded
from .episode_values import EpisodeValues
from .info_choice import InfoChoice

Rows = TypeVar("Rows", bound=RowSource)
Steps = TypeVar("Steps", bound=StepRows)
Live = TypeVar("Live", bound=LiveEpisode)


@dataclass(frozen=True)
class RunArguments:
    """The arguments of all recorders that describe their run; see `Recorder`."""

    run: str | None
    metadata: Mapping[str, Any] | None
    options: SessionOptions | None
    files: Mapping[str, str | PathLike[str]] | None
    packages: Sequence[str]
    infos: InfoChoice


class EnvRecorder(RunOwner[Rows], Generic[Rows]):
    """The base of all recorders."""

    _paused = False
    _guards: tuple[Guarded | None, ...] = ()

    def _guarded(
        self, step_callback: StepCallback | None, episode_callback: EpisodeCallback | None
    ) -> tuple[StepCallback | None, EpisodeCallback | None]:
        """Return the callbacks so that it is known when one of them is being called."""
        step = None if step_callback is None else Guarded(step_callback)
        episode = None if episode_callback is None else Guarded(episode_callback)
        self._guards = (step, episode)
        return step, episode

    @property
    def paused(self) -> bool:
        """Whether `pause` was called, and not `resume` since."""
        return self._paused

    def pause(self) -> None:
        """Record nothing until `resume`; steps and resets reach the environment as before.

        Running episodes end as `cut` with the steps recorded so far, as by a reset. A second call does
        nothing.

        Raises:
            RecorderStateError: the recorder is closed, or a callback called this.
        """
        self._check_between_steps()
        if not self._paused:
            self._pause()

    def resume(self) -> None:
        """Record again after `pause`, from the next episode on: what began during the pause stays unrecorded.

        A call without a pause before it does nothing.

        Raises:
            RecorderStateError: the recorder is closed, or a callback called this.
        """
        self._check_between_steps()
        self._paused = False

    def _pause(self) -> None:
        """End the running episodes; the environment goes on unrecorded until its next episode."""
        raise NotImplementedError

    def _check_between_steps(self) -> None:
        """Refuse to change what is recorded in the middle of a step, or after `close`."""
        self._session.check_usable()
        if any(guard is not None and guard.running for guard in self._guards):
            raise RecorderStateError(
                "A callback called pause(), resume() or discard_episode() of its own recorder, which is in "
                "the middle of a step. Call it after the step; a callback ends an episode with StepData.end."
            )

    def _record_into(
        self,
        store: OpenStore,
        env: Any,
        rows: Callable[[RunSession[Any]], Rows],
        given: RunArguments,
        describe: Callable[..., RunHeader] = run_header,
    ) -> Rows:
        """Keep the environment in the store and begin a run; return its row source.

        Raises:
            InvalidArgumentError: a recorder of the same store stands below the environment.
        """
        check_unrecorded(env, store.handle)
        self._infos = given.infos
        kept = keep_env(store.handle.layout, env, given.files, given.packages)
        header = describe(given.run, given.metadata, env, kept)
        return self._open_run(store, header, given.options, rows)

    def close(self, **kwargs: Any) -> None:
        """End what is open, seal everything, finish the run and close the environment.

        A second call does nothing.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        # Gymnasium also closes vector environments whose constructor has failed, before there is a run.
        if "_session" not in vars(self) or self._session.closed:
            return
        try:
            self.detach()
        finally:
            self._close_env(**kwargs)

    def detach(self) -> None:
        """Seal everything and finish the run, as `close` does, but leave the environment open.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        try:
            self._finish()
        finally:
            self._session.close()
        self._infos.warn_of_missing()

    def _finish(self) -> None:
        """End the episode in hand, where the recorder knows more of it than the session."""

    def _close_env(self, **kwargs: Any) -> None:
        self.env.close(**kwargs)  # type: ignore[attr-defined]


class EpisodeRecorder(EnvRecorder[Steps], Generic[Steps, Live]):
    """The base of recorders with one episode at a time."""

    _rows: Steps

    def _begin_run(self, rows: Steps, episode_callback: EpisodeCallback | None) -> None:
        """Begin without an episode."""
        self._rows = rows
        if self._infos.keys is not None:
            rows.choose_infos(self._infos.owned)
        self._episode_callback = episode_callback
        # The episode in hand; and the same while it goes on, None once it is done or the recorder is closed.
        self._episode: Live | None = None
        self._running: Live | None = None
        # Whether the environment goes on after a callback ended the episode and its steps are not recorded;
        # and, if not, why a reset must come before the next step.
        self._muted = False
        self._reset_because = "There is no episode yet."
        self._logged: dict[str, Any] = {}
        self._final_metadata: Mapping[str, Any] = {}
        #: Where `collect` stands with this recorder between two of its calls.
        self.collection: Any = None

    @property
    def episode(self) -> Live | None:
        """The episode in hand, also when it has ended; None before the first reset."""
        return self._episode

    @property
    def running(self) -> Live | None:
        """The episode that the next step goes to; None where a reset comes first."""
        return self._running

    @property
    def episode_id(self) -> str | None:
        """The id of the episode in hand; None before the first reset."""
        return None if self._episode is None else self._session.episode_id(self._episode.number)

    def discard_episode(self) -> None:
        """Drop the episode in hand: none of its rows are stored, also after a crash.

        It is the running episode, or the one that has just ended, until the next episode begins or `flush` or
        `seal` is called. Steps up to the next episode reach the environment and are not recorded.

        Raises:
            RecorderStateError: there is no episode, the recorder is closed, or a callback called this.
            StoreAccessError: the journal has rows of the episode and cannot be written; the next flush writes
                that it is discarded.
        """
        self._check_between_steps()
        episode = self._episode
        if episode is None or not self._rows.is_live(episode):
            raise RecorderStateError(
                "There is no episode to discard: the recorder is paused, no episode has begun, or the last "
                "one is stored already. Discard an episode before the next reset(), flush() or seal()."
            )
        self._muted = self._muted or self._running is not None
        self._running = None
        self._rows.discard(episode)
        self._episode = None
        self._logged, self._final_metadata = {}, {}
        self._session.confirm_discard({episode.number})

    def _pause(self) -> None:
        self._paused = True
        if self._running is not None:
            try:
                self._finish()
            finally:
                self._muted = True

    def _expect_reset(self, because: str) -> None:
        """Refuse steps until an episode begins."""
        self._muted = False
        self._reset_because = because

    def _stop(self, *, muted: bool = False, reset_because: str = "The episode has ended.") -> None:
        """Let no further step into the episode; it stays in hand, so that its last row can be logged for."""
        self._expect_reset(reset_because)
        episode, self._running = self._running, None
        self._muted = muted
        if episode is not None:
            self._final_metadata = self._call_episode_callback(episode)

    def _end_finished(self) -> None:
        if self._running is None:
            self._finish()

    def _finish(self) -> None:
        """End the episode in hand, if any."""
        going_on, self._running = self._running is not None, None
        episode = self._episode
        if episode is None:
            return
        try:
            if going_on:
                self._final_metadata = self._call_episode_callback(episode)
        finally:
            # A callback that fails passes on its exception; the episode is kept all the same. It stays in
            # hand until it has ended, since an interrupt may come between any two lines.
            if self._rows.is_live(episode):
                self._rows.end(episode, "cut", self._final_metadata, self._logged)
            self._episode = None
            self._logged, self._final_metadata = {}, {}

    def _call_episode_callback(self, episode: Live) -> Mapping[str, Any]:
        if self._episode_callback is None or not episode.transitions:
            return {}
        summary = self.summary(episode)
        agents = episode.agent_records()
        rows = sum(agent.length + 1 for agent in agents) if agents else episode.length + 1
        columns = self._session.columns[:1]
        values = EpisodeValues(
            self._session.store.schema,
            lambda infos: self._rows.recorded(episode.number, rows, columns if infos else ()),
            rows,
            agents,
        )
        return apply_episode_callback(self._episode_callback, replace(summary, values=values))

    def summary(self, episode: Live) -> EpisodeSummary:
        """Return an episode of this recorder as an episode callback sees it."""
        options, agents = episode.facts.options, episode.agent_records()
        return EpisodeSummary(
            id=self._session.episode_id(episode.number),
            number=episode.number,
            length=episode.length,
            episode_return=episode.episode_return,
            terminated=episode.terminated,
            truncated=episode.truncated,
            end_reason=end_reason_of(episode.terminated, episode.truncated, "cut"),
            seed=episode.facts.seed,
            options=None if options is None else load_json(options, "the journal"),
            metadata=dict(episode.facts.metadata),
            agent_lengths={agent.agent_id: agent.length for agent in agents},
            agent_returns={agent.agent_id: agent.episode_return for agent in agents},
        )
