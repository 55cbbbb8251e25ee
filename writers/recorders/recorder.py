"""`Recorder`: a Gymnasium wrapper that records every episode of one environment.

It hands what `reset` and `step` take and return to a run session, and gives the caller exactly what the
environment gave. See Gymnasium's documentation of `Env.step`, `Env.reset` and `Wrapper` for the semantics
that it keeps, and of `wrappers.Autoreset` and `vector.AutoresetMode` for environments that reset themselves.
"""

from __future__ import annotations

from typing import Any, Unpack

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from numpy import float64, ndarray

from ...store.common.arguments import expect
from ...store.common.compatibility import AutoresetMode
from ...store.dynamic.values import freeze_value
from ...store.errors import InvalidArgumentError, RecorderStateError
from ...store.journal.episodes import copied_options
from ...store.schema import OpenStore
from ..rows.arrivals import ArrivalBuffer, LiveEpisode
from ..rows.step_rows import StepRows
from .callbacks import ENDED_EARLY, INTERRUPTED, StepData, apply_step_callback, continues
from .env_checks import check_spaces, stated_mode
from .env_recorder import EpisodeRecorder, RecorderKeywords
from .observed import ObservationChoice, ObservedPart, part_space
from .vector_values import SameStepInfos


class Recorder(EpisodeRecorder[StepRows, LiveEpisode], gymnasium.Wrapper):
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
        record_infos, observation: which infos, and which part of observations, to store; see
            `EpisodeStore.record`.

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
        observation: ObservationChoice | None = None,
        **given: Unpack[RecorderKeywords],
    ) -> None:
        if isinstance(env, VectorEnv):
            raise InvalidArgumentError(
                "A vector environment was given; a Recorder takes one environment. Use VectorRecorder, or "
                "store.record(), which takes either."
            )
        expected = "an environment, as gymnasium.make gives it, a vector environment, or one of PettingZoo"
        expect(isinstance(env, gymnasium.Env), "env", env, expected)
        super().__init__(env)
        schema = store.handle.schema
        self._part = ObservedPart.of(env.observation_space, observation)
        compared = part_space(self._part, env.observation_space, schema.observation_space)
        check_spaces(schema, {"observation_space": compared, "action_space": env.action_space})
        self._autoreset = _autoreset_mode(env)
        self._begin_episodes(store, env, StepRows, **given)
        # Whether the environment itself said done.
        self._env_done = False
        # The keys of infos that resets gave; see `SameStepInfos`.
        self._reset_keys: set[Any] | None = None if env.unwrapped is env else set()
        plain = self._step_callback is None and self._part is None
        self._special = not plain or self._autoreset is AutoresetMode.SAME_STEP

    @property
    def spec(self) -> EnvSpec | None:
        """The spec of the environment without the recorder, from which `gymnasium.make` makes it again."""
        return self.env.spec

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start an episode; a running one ends as `cut`.

        Raises:
            SpaceMismatchError: the first observation does not fit the store's space.
            InvalidArgumentError: the options are no mapping; nothing was reset.
            RecorderStateError: the recorder is closed.
        """
        self._session.check_usable()
        kept = copied_options(options)
        self._expect_reset(INTERRUPTED)
        self._finish()
        fresh = _generator_seed(self.env) is None
        observation, info = self.env.reset(seed=seed, options=options)
        if self._reset_keys is not None:
            self._reset_keys.update(info)
        self._begin(observation, info, self._seed(seed, fresh), kept)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the transition.

        Raises:
            SpaceMismatchError: the action does not fit (the environment is not stepped), or what came
                back does not; nothing of the step is recorded, and the episode ends as it was before it.
            RecorderStateError: before the first reset, after the end of an episode, after an exception in
                `step` or `reset`, or after `close`.
        """
        episode = self._running
        if episode is None:
            return self._step_outside(action)
        buffer = self._rows.buffer
        if buffer.count >= buffer.capacity:
            buffer = self._rows.room()
        row = buffer.count
        # Calls are most of what a step costs, so values as they nearly always are get into their rows here.
        actions, action_type, action_shape, seen, seen_type, seen_shape, rewards = buffer.plain
        if action.__class__ is ndarray and action.dtype is action_type and action.shape == action_shape:
            actions[row] = action.tobytes()
        else:
            buffer.put_action(row, action)
        try:
            result = self.env.step(action)
            if row != buffer.count:
                buffer, row = self._stage_again(episode, action)
            observation, reward, terminated, truncated, info = result
            if self._special:
                self._record_special(episode, action, result)
            elif (
                observation.__class__ is ndarray
                and observation.dtype is seen_type
                and observation.shape == seen_shape
                and (reward.__class__ is float or reward.__class__ is float64)
                and not (terminated is not False or truncated is not False or self._logged)
                and episode.number == buffer.number
            ):
                seen[row] = observation.tobytes()
                rewards[row] = reward
                if info:
                    buffer.put_info(row, info)
                if reward.__class__ is not float:
                    reward = float(reward)
                length, total = episode.length + 1, episode.episode_return + reward
                # One assignment, which no signal interrupts: a row counts with its tally.
                buffer.count, episode.length, episode.episode_return = row + 1, length, total
            else:
                buffer.add_step(episode, reward, observation, terminated, truncated, info, self._logged)
                if self._logged:
                    self._logged = {}
                if terminated or truncated:
                    self._stop(env_done=True)
        except BaseException:
            buffer.drop_uncounted(row)
            # The environment may have moved, so the next transition would not follow the last one recorded.
            if self._running is not None:
                self._stop(reset_because=INTERRUPTED)
            raise
        return result

    def log(self, /, **values: Any) -> None:
        """Add `policy.<key>` values to the current step: the row of the current observation.

        They stand beside the action taken there; after the last step they stand on the row of the last
        observation. Of two values for one key the later counts.

        Raises:
            RecorderStateError: there is no episode.
        """
        if self._logs():
            self._logged = {**self._logged, **{key: freeze_value(value) for key, value in values.items()}}

    # Episodes

    def _seed(self, seed: int | None, fresh: bool) -> int | None:
        """Return the seed given; else that of the environment's generator if it had none before; else
        None.
        """
        if seed is not None or not fresh:
            return seed
        try:
            own_seed = self.env.np_random_seed
        except AttributeError:
            return None
        return own_seed if isinstance(own_seed, int) and own_seed >= 0 else None

    def _begin(self, observation: Any, info: dict, seed: int | None = None, options: Any = None) -> None:
        if self._paused:
            self._env_done, self._muted = False, True
            return
        step = StepData(0, self._stored(observation), info=info, env=self.env)
        if self._step_callback is not None:
            step = apply_step_callback(self._step_callback, step, self._session.store.schema)
        self._episode = self._running = self._rows.begin(
            step.observation, step.info, seed=seed, options=options, extra=step.extra
        )
        self._env_done = self._muted = False
        if step.end and not continues(step):
            self._stop(muted=True)

    def _stage_again(self, episode: LiveEpisode, action: Any) -> tuple[ArrivalBuffer, int]:
        """Put an action into the next row after the environment's step used this recorder itself."""
        if self._running is not None and self._running is not episode:
            raise RecorderStateError(
                "The environment reset its own recorder in the middle of a step, which now belongs to no "
                "running episode and is not recorded.",
                hint="Call reset() between steps.",
            )
        buffer = self._rows.room()
        buffer.put_action(buffer.count, action)
        return buffer, buffer.count

    def _record_special(self, episode: LiveEpisode, action: Any, result: tuple) -> None:
        """Record a step with a callback, or of an environment that may reset itself within the step."""
        observation, reward, terminated, truncated, info = result
        env_done = bool(terminated or truncated)
        restart = env_done and self._autoreset is AutoresetMode.SAME_STEP
        last_observation, last_info, next_info = self._final(result) if restart else (observation, info, info)
        policy, self._logged = self._logged, {}
        t = episode.length + 1
        last = self._stored(last_observation)
        step = StepData(t, last, action, reward, terminated, truncated, last_info, policy, env=self.env)
        if self._step_callback is not None:
            step = apply_step_callback(self._step_callback, step, self._session.store.schema)
        self._add(episode, step, staged=step.action is action)
        if continues(step) and not env_done:
            self._stop()
            self._finish()
            self._episode = self._running = self._rows.begin(step.observation, step.info, extra=step.extra)
        elif env_done or step.end:
            self._stop(env_done=env_done, muted=not env_done)
        elif step.terminated or step.truncated:
            self._stop(reset_because=ENDED_EARLY)
        if restart:
            self._finish()
            self._begin(observation, next_info)

    def _add(self, episode: LiveEpisode, step: StepData, *, staged: bool) -> None:
        buffer = self._rows.room()
        if not staged:
            buffer.put_action(buffer.count, step.action)
        outcome = step.reward, step.observation, step.terminated, step.truncated
        buffer.add_step(episode, *outcome, step.info, step.policy, step.extra)

    def _expect_reset(self, because: str) -> None:
        self._env_done = False
        super()._expect_reset(because)

    def _stop(self, *, env_done: bool = False, **reasons: Any) -> None:
        super()._stop(**reasons)
        self._env_done = env_done

    def _stored(self, observation: Any) -> Any:
        """Return what is stored of an observation."""
        return observation if self._part is None else self._part.one(observation)

    def _final(self, result: tuple) -> tuple[Any, dict, dict]:
        """Return the true last observation and info of a SAME_STEP reset, and the info of the new episode's
        reset.
        """
        observation, *_, info = result
        parts = SameStepInfos.of(info, 1, self._reset_keys)
        return info.get("final_obs", observation), {**parts.final, **parts.added}, parts.fresh

    def _step_outside(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Return a step when no episode is running."""
        self._session.check_usable()
        if self._env_done and self._autoreset is AutoresetMode.NEXT_STEP:
            self._finish()
            self._expect_reset(INTERRUPTED)
            result = self.env.step(action)
            self._begin(result[0], result[4])
            return result
        if self._env_done and not self._paused:
            raise RecorderStateError(
                "The episode has ended: call reset() before the next step(). An environment that resets "
                "itself must say so, by gymnasium.wrappers.Autoreset or by metadata['autoreset_mode']."
            )
        if self._muted or self._paused:
            return self._step_unrecorded(action)
        raise RecorderStateError(f"{self._reset_because} Call reset() before the next step().")

    def _step_unrecorded(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step an environment that goes on while nothing of it is recorded."""
        self._expect_reset(INTERRUPTED)
        result = self.env.step(action)
        self._env_done, self._muted = bool(result[2] or result[3]), True
        if self._env_done and self._autoreset is AutoresetMode.SAME_STEP:
            self._finish()
            self._begin(result[0], self._final(result)[2])
        return result


def _generator_seed(env: gymnasium.Env) -> object:
    """Return the seed of the environment's generator, or None if it has none yet (asking Gymnasium would make
    one).
    """
    while isinstance(env, gymnasium.Wrapper):  # `unwrapped` of some wrappers is the wrapper
        env = env.env
    return getattr(env, "_np_random_seed", None)


def _autoreset_mode(env: gymnasium.Env) -> AutoresetMode | None:
    """Return how the environment resets itself, if it does."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.Autoreset):
            return AutoresetMode.NEXT_STEP
        layer = layer.env
    return stated_mode(env.metadata, "The environment's")
