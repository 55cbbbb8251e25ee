"""`Recorder`: a Gymnasium wrapper that records every episode of one environment.

It hands what `reset` and `step` take and return to a run session, and gives the caller exactly what the
environment gave. See Gymnasium's documentation of `Env.step`, `Env.reset` and `Wrapper` for the semantics
that it keeps, and of `wrappers.Autoreset` and `vector.AutoresetMode` for environments that reset themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from ..store.errors import InvalidArgumentError, RecorderStateError, SpaceMismatchError
from ..store.handle import OpenStore
from ..store.records import end_reason_of
from ..store.schema import StepSchema
from ..store.values import freeze_value, load_json
from .callbacks import (
    EpisodeCallback,
    EpisodeSummary,
    StepCallback,
    StepData,
    apply_episode_callback,
    apply_step_callback,
)
from .run import run_header
from .session import LiveEpisode, RunSession, SessionOptions


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

    Raises:
        SpaceMismatchError: the environment's spaces are not the store's.
        InvalidArgumentError: a vector environment was given.
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
    ) -> None:
        if isinstance(env, VectorEnv):
            raise InvalidArgumentError(
                "A vector environment was given; a Recorder takes one environment. Record its "
                "sub-environments "
                "one by one."
            )
        super().__init__(env)
        _check_spaces(env, store.handle.schema)
        self._session = RunSession(store.handle, run_header(run, metadata, env), options or SessionOptions())
        self._step_callback = step_callback
        self._episode_callback = episode_callback
        self._autoreset = _autoreset_mode(env)
        # The episode in hand; and the same while it goes on, None once it is done or the recorder is closed.
        self._episode: LiveEpisode | None = None
        self._running: LiveEpisode | None = None
        self._done = False
        self._muted = False
        self._was_reset = False
        self._logged: dict[str, Any] | None = None
        self._final_metadata: Mapping[str, Any] = {}

    @property
    def run_id(self) -> str:
        """The id of this recorder's run."""
        return self._session.header.run_id

    @property
    def episode_id(self) -> str | None:
        """The id of the episode in hand; None before the first reset."""
        return None if self._episode is None else self._session.episode_id(self._episode)

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
        observation, info = self.env.reset(seed=seed, options=options)
        self._begin(observation, info, self._seed(seed), options)
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
        session = self._session
        session.stage_action(action)
        result = self.env.step(action)
        observation, reward, terminated, truncated, info = result
        done = terminated or truncated
        if self._step_callback is not None:
            self._record_with_callback(episode, action, result)
        elif done and self._autoreset is AutoresetMode.SAME_STEP:
            self._record_and_restart(episode, result)
        else:
            session.append(episode, reward, observation, terminated, truncated, info, self._logged)
            self._logged = None
            if done:
                self._mark_done()
        return result

    def log(self, **values: Any) -> None:
        """Add `policy.<key>` values to the current step: the row of the observation in hand.

        They stand beside the action taken there; after the last step they stand on the row of the last
        observation. Of two values for one key the later counts.

        Raises:
            RecorderStateError: there is no episode.
        """
        if self._episode is None:
            raise RecorderStateError("There is no step to log for: call reset() first.")
        frozen = {key: freeze_value(value) for key, value in values.items()}
        self._logged = frozen if self._logged is None else {**self._logged, **frozen}

    def seal(self) -> None:
        """Make all finished episodes visible to readers, and wait for it.

        Raises:
            StoreAccessError, ConcurrentCommitError: it failed; nothing is lost, call again.
        """
        if self._done:
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
            self._finish()
            self._session.close()
        finally:
            self.env.close()

    # Episodes

    def _seed(self, seed: int | None) -> int | None:
        """The seed given, else the environment's own on its first reset, else None."""
        first, self._was_reset = not self._was_reset, True
        if seed is not None or not first:
            return seed
        try:
            found = self.env.np_random_seed
        except AttributeError:
            return None
        return found if isinstance(found, int) and found >= 0 else None

    def _begin(self, observation: Any, info: dict, seed: int | None, options: Mapping | None) -> None:
        step = StepData(0, observation, info=info)
        if self._step_callback is not None:
            step = apply_step_callback(self._step_callback, step)
        self._episode = self._session.begin(
            step.observation, step.info, seed=seed, options=options, extra=step.extra
        )
        self._done = self._muted = step.end
        self._running = None if step.end else self._episode

    def _record_with_callback(self, episode: LiveEpisode, action: Any, result: tuple) -> None:
        observation, reward, terminated, truncated, info = result
        restart = self._autoreset is AutoresetMode.SAME_STEP and (terminated or truncated)
        last_observation, last_info, next_info = _final(result) if restart else (observation, info, info)
        policy, self._logged = self._logged or {}, None
        step = StepData(
            episode.length + 1, last_observation, action, reward, terminated, truncated, last_info, policy
        )
        assert self._step_callback is not None
        try:
            answer = apply_step_callback(self._step_callback, step)
        except BaseException:
            self._append(episode, step)
            raise
        if answer.action is not action:
            self._session.stage_action(answer.action)
        self._append(episode, answer)
        if restart:
            self._finish()
            self._begin(observation, next_info, None, None)
        elif answer.end and not self._done:
            self._mark_done()
            self._muted = True

    def _append(self, episode: LiveEpisode, step: StepData) -> None:
        self._session.append(
            episode,
            step.reward,
            step.observation,
            bool(step.terminated),
            bool(step.truncated),
            step.info,
            step.policy,
            step.extra,
        )
        if step.terminated or step.truncated:
            self._mark_done()

    def _record_and_restart(self, episode: LiveEpisode, result: tuple) -> None:
        """A done step of an environment that resets itself within the step."""
        observation, reward, terminated, truncated, _ = result
        last_observation, last_info, next_info = _final(result)
        self._session.append(
            episode, reward, last_observation, terminated, truncated, last_info, self._logged
        )
        self._logged = None
        self._mark_done()
        self._finish()
        self._begin(observation, next_info, None, None)

    def _mark_done(self) -> None:
        """The environment ended the episode; it stays in hand, so that its last observation can be logged."""
        self._done = True
        self._running = None
        if self._episode is not None and self._episode.length:
            self._final_metadata = self._call_episode_callback(self._episode)

    def _finish(self) -> None:
        """End the episode in hand, if any."""
        episode, self._episode, self._running = self._episode, None, None
        if episode is None:
            return
        if not self._done and episode.length:
            self._final_metadata = self._call_episode_callback(episode)
        metadata, self._final_metadata = self._final_metadata, {}
        late, self._logged = self._logged, None
        self._done = self._muted = False
        self._session.end(episode, "cut", metadata, late)

    def _call_episode_callback(self, episode: LiveEpisode) -> Mapping[str, Any]:
        if self._episode_callback is None:
            return {}
        summary = EpisodeSummary(
            id=self._session.episode_id(episode),
            number=episode.number,
            length=episode.length,
            episode_return=episode.episode_return,
            terminated=episode.terminated,
            truncated=episode.truncated,
            end_reason=end_reason_of(episode.terminated, episode.truncated, "cut"),
            seed=episode.seed,
            options=None if episode.options is None else load_json(episode.options, "the journal"),
            metadata=dict(episode.metadata),
        )
        return apply_episode_callback(self._episode_callback, summary)

    def _step_outside(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step when no episode is running."""
        self._session.check_usable()
        if self._muted:
            return self.env.step(action)
        if self._done and self._autoreset is AutoresetMode.NEXT_STEP:
            self._finish()
            result = self.env.step(action)
            self._begin(result[0], result[4], None, None)
            return result
        if self._done:
            raise RecorderStateError(
                f"The episode {self.episode_id} has ended: call reset() before the next step(). An "
                f"environment that "
                "resets itself must say so, by gymnasium.wrappers.Autoreset or by metadata['autoreset_mode']."
            )
        raise RecorderStateError("There is no episode yet: call reset() before the first step().")


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
    mode = (env.metadata or {}).get("autoreset_mode")
    if mode is None or isinstance(mode, AutoresetMode):
        return mode
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(member.value) for member in AutoresetMode)
        raise InvalidArgumentError(
            f"The environment's metadata['autoreset_mode'] is {mode!r}; expected one of {known}."
        ) from None


def _check_spaces(env: gymnasium.Env, schema: StepSchema) -> None:
    pairs = {
        "observation_space": (env.observation_space, schema.observation_space),
        "action_space": (env.action_space, schema.action_space),
    }
    for name, (given, expected) in pairs.items():
        if given != expected:
            raise SpaceMismatchError(
                f"The environment's {name} is {given}; the store's is {expected}. Record into a "
                f"store that was "
                "created with this environment's spaces."
            )
