"""`Recorder`: a Gymnasium wrapper that records every episode of one environment.

It hands what `reset` and `step` take and return to a run session, and gives the caller exactly what the
environment gave. See Gymnasium's documentation of `Env.step`, `Env.reset` and `Wrapper` for the semantics
that it keeps, and of `wrappers.Autoreset` and `vector.AutoresetMode` for environments that reset themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from ..store.arrivals import LiveEpisode
from ..store.errors import (
    InvalidArgumentError,
    RecorderStateError,
)
from ..store.handle import OpenStore
from ..store.records import end_reason_of
from ..store.values import freeze, freeze_value, load_json
from .autoreset import stated_mode
from .callbacks import (
    EpisodeCallback,
    EpisodeSummary,
    StepCallback,
    StepData,
    apply_episode_callback,
    apply_step_callback,
)
from .environment import keep_env
from .nesting import check_unrecorded
from .options import SessionOptions
from .run import run_header
from .session import RunSession
from .spaces_check import check_spaces


class Recorder(gymnasium.Wrapper):
    """Record the episodes of one environment into a store.

    Every array is copied when it is handed over. `reset()` in the middle of an episode ends it as `cut`;
    `reset()` without a step stores nothing. Leaving a `with` block, even by an exception, keeps what was.
    An instance belongs to one thread and one process.

    Args:
        env: the environment; its spaces must be the store's.
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        step_callback: sees, and may change, each step before it is recorded; see `StepData`.
        episode_callback: sees each finished episode and returns metadata for it; see `EpisodeSummary`.
        options: durability and when to flush and seal; see `SessionOptions`.
        files: files that the environment needs, by name; kept with the run, see `EpisodeStore.make_env`.
        packages: distributions that it needs and that its spec does not show.

    Raises:
        SpaceMismatchError: the environment's spaces are not the store's.
        InvalidArgumentError: a vector environment was given, or no environment; a file cannot be kept.
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        store: OpenStore,
        *,
        run: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        step_callback: StepCallback | None = None,
        episode_callback: EpisodeCallback | None = None,
        options: SessionOptions | None = None,
        files: Mapping[str, str | PathLike[str]] | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        if isinstance(env, VectorEnv):
            raise InvalidArgumentError(
                "A vector environment was given; a Recorder takes one environment. Use VectorRecorder, or "
                "store.record(), which takes either."
            )
        if not isinstance(env, gymnasium.Env):
            raise InvalidArgumentError(
                f"env is {type(env).__name__}; expected an environment, as gymnasium.make gives it, a vector "
                "environment, or an environment of PettingZoo."
            )
        check_unrecorded(env, store.handle)
        super().__init__(env)
        check_spaces(
            store.handle.schema,
            {"observation_space": env.observation_space, "action_space": env.action_space},
        )
        self._autoreset = _autoreset_mode(env)
        kept = keep_env(store.handle.layout, env, files, packages)
        header = run_header(run, metadata, env, kept)
        self._session = RunSession(store.handle, header, options or SessionOptions())
        self._step_callback = step_callback
        self._episode_callback = episode_callback
        # The episode in hand; and the same while it goes on, None once it is done or the recorder is closed.
        self._episode: LiveEpisode | None = None
        self._running: LiveEpisode | None = None
        # Whether the environment itself said done, and whether it goes on although the episode was ended.
        self._env_done = False
        self._muted = False
        self._special = step_callback is not None or self._autoreset is AutoresetMode.SAME_STEP
        self._logged: dict[str, Any] | None = None
        self._final_metadata: Mapping[str, Any] = {}
        #: Where `collect` stands with this recorder between two of its calls.
        self.collection: Any = None

    @property
    def run_id(self) -> str:
        """The id of this recorder's run."""
        return self._session.header.run_id

    @property
    def episode_id(self) -> str | None:
        """The id of the episode in hand; None before the first reset."""
        return None if self._episode is None else self._session.episode_id(self._episode)

    @property
    def session(self) -> RunSession:
        """The run that it writes."""
        return self._session

    @property
    def episode(self) -> LiveEpisode | None:
        """The episode in hand, also when it has ended; None before the first reset."""
        return self._episode

    @property
    def running(self) -> LiveEpisode | None:
        """The episode that the next step goes to; None where a reset comes first."""
        return self._running

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start an episode; a running one ends as `cut`.

        Raises:
            SpaceMismatchError: the first observation does not fit the store's space.
            RecorderStateError: the recorder is closed.
        """
        self._session.check_usable()
        self._finish()
        fresh = _generator_seed(self.env) is None
        # The environment may change the options: keep them as they were passed.
        kept = None if options is None else freeze(options)
        observation, info = self.env.reset(seed=seed, options=options)
        self._begin(observation, info, self._seed(seed, fresh), kept)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the transition.

        Raises:
            SpaceMismatchError: the action does not fit (the environment is not stepped), or what came
                back does not; nothing of the step is recorded, the episode up to here is kept.
            RecorderStateError: before the first reset, after the end of an episode, or after `close`.
        """
        episode = self._running
        if episode is None:
            return self._step_outside(action)
        buffer = self._session.room()
        buffer.put_action(buffer.count, action)
        result = self.env.step(action)
        observation, reward, terminated, truncated, info = result
        try:
            if self._special:
                self._record_special(episode, action, result)
                return result
            buffer.add_step(episode, reward, observation, terminated, truncated, info, self._logged)
        except BaseException:
            # The environment has gone on, so the next transition would not follow the last one recorded.
            self._stop(env_done=terminated or truncated)
            raise
        self._logged = None
        if terminated or truncated:
            self._stop(env_done=True)
        return result

    def log(self, /, **values: Any) -> None:
        """Add `policy.<key>` values to the current step: the row of the observation in hand.

        They stand beside the action taken there; after the last step they stand on the row of the last
        observation. Of two values for one key the later counts.

        Raises:
            RecorderStateError: there is no episode.
        """
        if self._muted:
            return
        if self._episode is None:
            raise RecorderStateError("There is no step to log for: call reset() first.")
        frozen = {key: freeze_value(value) for key, value in values.items()}
        self._logged = frozen if self._logged is None else {**self._logged, **frozen}

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        if self._running is None:
            self._finish()
        self._session.seal()

    def close(self) -> None:
        """Seal everything, finish the run and close the environment; a second call does nothing.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        if self._session.closed:
            return
        try:
            self.detach()
        finally:
            self.env.close()

    def detach(self) -> None:
        """Seal everything and finish the run, as `close` does, but leave the environment open.

        Raises:
            StoreAccessError, ConcurrentCommitError: sealing failed; the journal keeps everything, call again.
        """
        try:
            self._finish()
        finally:
            self._session.close()

    # Episodes

    def _seed(self, seed: int | None, fresh: bool) -> int | None:
        """The seed given; else that of the environment's generator if it had none before; else None."""
        if seed is not None or not fresh:
            return seed
        try:
            found = self.env.np_random_seed
        except AttributeError:
            return None
        return found if isinstance(found, int) and found >= 0 else None

    def _begin(self, observation: Any, info: dict, seed: int | None = None, options: Any = None) -> None:
        step = StepData(0, observation, info=info)
        if self._step_callback is not None:
            step = apply_step_callback(self._step_callback, step)
        self._episode = self._running = self._session.begin(
            step.observation, step.info, seed=seed, options=options, extra=step.extra
        )
        self._env_done = self._muted = False
        if step.end:
            self._stop(env_done=False)

    def _record_special(self, episode: LiveEpisode, action: Any, result: tuple) -> None:
        """Record a step with a callback, or of an environment that may reset itself within the step."""
        observation, reward, terminated, truncated, info = result
        env_done = bool(terminated or truncated)
        restart = env_done and self._autoreset is AutoresetMode.SAME_STEP
        last_observation, last_info, next_info = _final(result) if restart else (observation, info, info)
        policy, self._logged = self._logged or {}, None
        t = episode.length + 1
        step = StepData(t, last_observation, action, reward, terminated, truncated, last_info, policy)
        if self._step_callback is not None:
            step = apply_step_callback(self._step_callback, step)
        self._add(episode, step, staged=step.action is action)
        if env_done or step.end or step.terminated or step.truncated:
            self._stop(env_done)
        if restart:
            self._finish()
            self._begin(observation, next_info)

    def _add(self, episode: LiveEpisode, step: StepData, *, staged: bool) -> None:
        buffer = self._session.room()
        if not staged:
            buffer.put_action(buffer.count, step.action)
        terminated, truncated = bool(step.terminated), bool(step.truncated)
        buffer.add_step(
            episode, step.reward, step.observation, terminated, truncated, step.info, step.policy, step.extra
        )

    def _stop(self, env_done: bool) -> None:
        """Let no further step into the episode; it stays in hand, so that its last row can be logged for."""
        self._running = None
        self._env_done = env_done
        self._muted = not env_done
        if self._episode is not None and self._episode.length:
            self._final_metadata = self._call_episode_callback(self._episode)

    def _finish(self) -> None:
        """End the episode in hand, if any."""
        going_on = self._running is not None
        episode, self._episode, self._running = self._episode, None, None
        late, self._logged = self._logged, None
        if episode is None:
            return
        metadata, self._final_metadata = self._final_metadata, {}
        try:
            if going_on and episode.length:
                metadata = self._call_episode_callback(episode)
        finally:
            # A callback that fails passes on its exception; the episode is kept all the same.
            self._session.end(episode, "cut", metadata, late)

    def _call_episode_callback(self, episode: LiveEpisode) -> Mapping[str, Any]:
        if self._episode_callback is None:
            return {}
        return apply_episode_callback(self._episode_callback, self.summary(episode))

    def summary(self, episode: LiveEpisode) -> EpisodeSummary:
        """What there is to say of an episode of this recorder, as an episode callback sees it."""
        return EpisodeSummary(
            id=self._session.episode_id(episode),
            number=episode.number,
            length=episode.length,
            episode_return=episode.episode_return,
            terminated=episode.terminated,
            truncated=episode.truncated,
            end_reason=end_reason_of(episode.terminated, episode.truncated, "cut"),
            seed=episode.facts.seed,
            options=_options(episode),
            metadata=dict(episode.facts.metadata),
        )

    def _step_outside(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step when no episode is running."""
        self._session.check_usable()
        if self._env_done and self._autoreset is AutoresetMode.NEXT_STEP:
            self._finish()
            result = self.env.step(action)
            self._begin(result[0], result[4])
            return result
        if self._env_done:
            raise RecorderStateError(
                "The episode has ended: call reset() before the next step(). An environment that resets "
                "itself must say so, by gymnasium.wrappers.Autoreset or by metadata['autoreset_mode']."
            )
        if self._muted:
            return self._step_unrecorded(action)
        raise RecorderStateError("There is no episode yet: call reset() before the first step().")

    def _step_unrecorded(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step of an environment that goes on after its episode's recording was ended."""
        result = self.env.step(action)
        self._env_done = bool(result[2] or result[3])
        if self._env_done and self._autoreset is AutoresetMode.SAME_STEP:
            self._finish()
            self._begin(result[0], _final(result)[2])
        return result


def _options(episode: LiveEpisode) -> Mapping[str, Any] | None:
    text = episode.facts.options
    return None if text is None else load_json(text, "the journal")


def _generator_seed(env: gymnasium.Env) -> object:
    """The seed of the environment's generator, or None if it has none yet (asking Gymnasium would make
    one).
    """
    return getattr(env.unwrapped, "_np_random_seed", None)


def _final(result: tuple) -> tuple[Any, dict, dict]:
    """The true last observation and info of a SAME_STEP reset, and the info of the new episode's reset."""
    observation, *_, info = result
    rest = {key: value for key, value in info.items() if key not in ("final_obs", "final_info")}
    return info.get("final_obs", observation), info.get("final_info", {}), rest


def _autoreset_mode(env: gymnasium.Env) -> AutoresetMode | None:
    """How the environment resets itself, if it does."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.Autoreset):
            return AutoresetMode.NEXT_STEP
        layer = layer.env
    return stated_mode(env.metadata, "The environment's")
