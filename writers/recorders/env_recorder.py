"""`EnvRecorder`: the base of all recorders of environments, which begins their run and closes them.

`EpisodeRecorder` is the base of those with one episode at a time: of a single environment, or of one with
several agents. `EnvsRecorder` is the base of those of many environments, of vectors and of pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, Generic, TypedDict, TypeVar, Unpack

import numpy as np

from ...store.common.arguments import expect
from ...store.dynamic.values import load_json
from ...store.environments.saving import saved_as
from ...store.errors import RecorderStateError
from ...store.journal.episodes import end_reason_of
from ...store.schema import OpenStore
from ..rows.arrivals import LiveEpisode
from ..rows.block_rows import BlockRows
from ..rows.step_rows import StepRows
from ..rows.vector_buffer import NO_EPISODE
from ..session.environment import keep_env
from ..session.journal import SessionOptions
from ..session.row_source import RowSource
from ..session.run import KeptEnv, RunOwner, run_header
from ..session.session import RunSession
from .callbacks import (
    EpisodeCallback,
    EpisodeSummary,
    EpisodeValues,
    Guarded,
    StepCallback,
    apply_episode_callback,
)
from .env_checks import check_unrecorded
from .env_recording import EnvRecording
from .observed import ObservedPart
from .vector_values import InfoChoice, RecordInfos

#: In the metadata of a run: the saved environment of the store that it recorded, as `name@version`.
SAVED_ENVIRONMENT = "saved_environment"

Rows = TypeVar("Rows", bound=RowSource)
Steps = TypeVar("Steps", bound=StepRows)
Live = TypeVar("Live", bound=LiveEpisode)


class RunKeywords(TypedDict, total=False):
    """Keyword arguments of `EpisodeStore.record` and of all recorders that describe their run."""

    run: str | None
    metadata: Mapping[str, Any] | None
    step_callback: StepCallback | None
    episode_callback: EpisodeCallback | None
    files: Mapping[str, str | PathLike[str]] | None
    packages: Sequence[str]
    record_infos: RecordInfos


class RecorderKeywords(RunKeywords, total=False):
    """Keyword arguments of all recorders; see `Recorder`."""

    options: SessionOptions | None


class EnvRecorder(RunOwner[Rows], Generic[Rows]):
    """The base of all recorders."""

    #: Where `collect` stands with this recorder between two of its calls: its batch, and the policy's state.
    collection: tuple[Any, Any] | None = None
    _paused = False
    _guards: tuple[Guarded | None, ...] = ()

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

    def _begin_run(
        self,
        store: OpenStore,
        env: Any,
        rows: Callable[[RunSession[Any]], Rows],
        *,
        describe: Callable[[KeptEnv, Any], KeptEnv] | None = None,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        step_callback: StepCallback | None = None,
        episode_callback: EpisodeCallback | None = None,
        options: SessionOptions | None = None,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
        record_infos: RecordInfos = True,
    ) -> Rows:
        """Keep the environment in the store and begin a run; return its row source.

        Args:
            describe: returns the record of an environment that is none of Gymnasium's.

        Raises:
            InvalidArgumentError: a recorder of the same store stands below the environment, or an argument
                makes no sense.
        """
        self._infos = InfoChoice.of(record_infos)
        # Guarded, so that it is known when one of them is being called.
        self._step_callback = Guarded.of("step_callback", step_callback)
        self._episode_callback = Guarded.of("episode_callback", episode_callback)
        self._guards = (self._step_callback, self._episode_callback)
        check_unrecorded(env, store.handle)
        layout = store.handle.layout
        kept = keep_env(layout, env, files, packages)
        saved = saved_as(layout, kept.env_spec, kept.env_bundle)
        if saved is not None and isinstance(metadata, Mapping | None):
            metadata = {SAVED_ENVIRONMENT: saved, **(metadata or {})}
        if describe is not None:
            kept = describe(kept, env)
        return self._open_run(store, run_header(run, metadata, kept), options, rows)

    def close(self, **kwargs: Any) -> None:
        """End open episodes, seal everything, finish the run and close the environment.

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
        """End the current episode, where the recorder knows more of it than the session."""

    def _close_env(self, **kwargs: Any) -> None:
        self.env.close(**kwargs)  # type: ignore[attr-defined]


class EpisodeRecorder(EnvRecorder[Steps], Generic[Steps, Live]):
    """The base of recorders with one episode at a time."""

    _rows: Steps

    def _begin_episodes(
        self,
        store: OpenStore,
        env: Any,
        rows: Callable[[RunSession[Any]], Steps],
        describe: Callable[[KeptEnv, Any], KeptEnv] | None = None,
        **given: Unpack[RecorderKeywords],
    ) -> None:
        """Begin a run without an episode."""
        self._rows = self._begin_run(store, env, rows, describe=describe, **given)
        if self._infos.keys is not None:
            self._rows.choose_infos(self._infos.chosen)
        # The current episode; and the same while it goes on, None once it is done or the recorder is closed.
        self._episode: Live | None = None
        self._running: Live | None = None
        # Whether the environment goes on after a callback ended the episode and its steps are not recorded;
        # and, if not, why a reset must come before the next step.
        self._muted = False
        self._reset_because = "There is no episode yet."
        self._logged: dict[str, Any] = {}
        self._final_metadata: Mapping[str, Any] = {}

    @property
    def episode(self) -> Live | None:
        """The current episode, also when it has ended; None before the first reset."""
        return self._episode

    @property
    def running(self) -> Live | None:
        """The episode that the next step goes to; None where a reset comes first."""
        return self._running

    @property
    def episode_id(self) -> str | None:
        """The id of the current episode; None before the first reset."""
        return None if self._episode is None else self._session.episode_id(self._episode.number)

    def discard_episode(self) -> None:
        """Drop the current episode: none of its rows are stored, also after a crash.

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

    def _logs(self) -> bool:
        """Return whether to keep logged values: not while nothing is recorded.

        Raises:
            RecorderStateError: there is no episode.
        """
        if self._muted or (self._episode is None and self._paused):
            return False
        if self._episode is None:
            raise RecorderStateError("There is no step to log for: call reset() first.")
        return True

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
        """Let no further step into the episode; it stays current, so that its last row can be logged for."""
        self._expect_reset(reset_because)
        episode, self._running = self._running, None
        self._muted = muted
        if episode is not None:
            self._final_metadata = self._call_episode_callback(episode)

    def _end_finished(self) -> None:
        if self._running is None:
            self._finish()

    def _finish(self) -> None:
        """End the current episode, if any."""
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


class EnvsRecorder(EnvRecorder[BlockRows]):
    """The base of recorders with several environments."""

    _recording: EnvRecording

    def _begin_envs(
        self,
        store: OpenStore,
        envs: Any,
        num_envs: int,
        part: ObservedPart | None,
        **given: Unpack[RecorderKeywords],
    ) -> None:
        """Begin a run without episodes."""
        # A call may bring the first rows of new episodes beside the last ones of others.
        self._begin_run(store, envs, partial(BlockRows, rows=2 * num_envs), **given)
        self._recording = EnvRecording(
            self._session, store.handle.schema, num_envs, self._episode_callback, self._infos
        )
        self._recording.part = part

    @property
    def recording(self) -> EnvRecording:
        """The current episodes."""
        return self._recording

    @property
    def episode_ids(self) -> list[str | None]:
        """The id of the current episode of each environment; None where there is none."""
        numbers = self._recording.state.numbers.tolist()
        return [None if number == NO_EPISODE else self._session.episode_id(number) for number in numbers]

    @property
    def episodes(self) -> int:
        """How many episodes were recorded and have ended."""
        return self._recording.episodes

    @property
    def transitions(self) -> int:
        """How many transitions were recorded, those of running episodes included."""
        return self._recording.transitions

    def discard_episode(self, env_index: int | Sequence[int] | np.ndarray | None = None) -> None:
        """Drop the current episodes of some environments: none of their rows are stored, also after a crash.

        An environment's current episode is the running one, or the one that has just ended, until the
        environment's next episode begins or `flush` or `seal` is called. Its steps up to the next episode are
        not recorded.

        Args:
            env_index: the environment, or several; needed unless there is only one.

        Raises:
            InvalidArgumentError: `env_index` is missing, or does not name environments.
            RecorderStateError: an environment has no episode (then none is discarded), the recorder is
                closed, or a callback called this.
            StoreAccessError: the journal has rows of the episodes and cannot be written; the next flush
                writes that they are discarded.
        """
        self._check_between_steps()
        self._session.confirm_discard(self._recording.discard(self._checked_envs(env_index), ended=True))

    def _checked_envs(self, env_index: Any) -> np.ndarray:
        count = self._recording.num_envs
        if env_index is None and count == 1:
            return np.zeros(1, np.int64)
        envs = np.atleast_1d(np.asarray([] if env_index is None else env_index))
        fits = envs.ndim == 1 and envs.dtype.kind in "iu" and len(envs) and len(np.unique(envs)) == len(envs)
        expected = f"the index of an environment, or several different ones, from 0 to {count - 1}"
        expect(fits and 0 <= envs.min() <= envs.max() < count, "env_index", env_index, expected)
        return envs.astype(np.int64)

    def _pause(self) -> None:
        self._recording.end(self._recording.everyone)
        self._recording.discard(self._recording.everyone, ended=False)
        self._paused = True
        self._recording.calls.raise_late()

    def _end_finished(self) -> None:
        self._recording.end(np.arange(0))
