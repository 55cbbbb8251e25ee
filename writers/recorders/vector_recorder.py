"""`VectorRecorder`: a Gymnasium vector wrapper that records every episode of every sub-environment.

See Gymnasium's documentation of `VectorEnv`, `VectorWrapper` and `AutoresetMode` for the semantics that it
keeps. A batch is copied as it comes, one numpy copy for each column; single environments are looked at only
where one has just ended, or where a step callback wants to see each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from ...store.common.compatibility import AutoresetMode, metadata_of
from ...store.common.foreign_arrays import to_numpy
from ...store.errors import RecorderStateError
from ...store.journal.episodes import Ends, EpisodeFacts, copied_options
from ...store.schema import OpenStore
from ..rows.vector_buffer import NO_EPISODE, VectorBuffer
from .batch_step import BatchStep
from .env_checks import autoreset_mode_of, check_spaces
from .env_recorder import EnvsRecorder, RecorderKeywords
from .env_recording import add_infos
from .observed import ObservationChoice, ObservedPart, part_space
from .step_callbacks import StepCalls
from .vector_values import by_key, flags, single


class VectorRecorder(EnvsRecorder, VectorWrapper):
    """Record the episodes of a vector environment into a store.

    Every batch is copied when it is handed over. `reset()` ends running episodes as `cut`; with
    `options["reset_mask"]` only those of the masked sub-environments. Leaving a `with` block, even by an
    exception, keeps what was. An instance belongs to one thread and one process.

    Args:
        envs: the vector environment; its single spaces must be the store's.
        store: the store, as `episodelake.open` gives it.
        run: a readable name for the run.
        metadata: what to keep with the run.
        step_callback: sees, and may change, each step of each sub-environment; see `StepData`. With it every
            step takes a Python call for each of them.
        episode_callback: sees each finished episode and returns metadata for it; see `EpisodeSummary`.
        options: durability and when to flush and seal; see `SessionOptions`.
        files, packages: what the environment needs beside its spec; see `EpisodeStore.record`.
        record_infos, observation: which infos, and which part of observations, to store; see
            `EpisodeStore.record`.
        autoreset_mode: how sub-environments are reset, a `gymnasium.vector.AutoresetMode` or its text. Needed
            where `envs.metadata["autoreset_mode"]` does not say it; given, it counts.

    Raises:
        SpaceMismatchError: the single spaces are not the store's.
        InvalidArgumentError: the autoreset mode is unknown or not said.
        StoreAccessError: the store cannot be written.
    """

    def __init__(
        self,
        envs: VectorEnv,
        store: OpenStore,
        *,
        observation: ObservationChoice | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        **given: Unpack[RecorderKeywords],
    ) -> None:
        super().__init__(envs)
        schema, whole = store.handle.schema, envs.single_observation_space
        part = ObservedPart.of(whole, observation)
        check_spaces(
            schema,
            {
                "single_observation_space": part_space(part, whole, schema.observation_space),
                "single_action_space": envs.single_action_space,
            },
        )
        self._mode = autoreset_mode_of(metadata_of(envs), autoreset_mode)
        self._begin_envs(store, envs, envs.num_envs, part, **given)
        if isinstance(envs.unwrapped, SyncVectorEnv):
            self._recording.sub_envs = envs.unwrapped.envs
        if self._mode is AutoresetMode.SAME_STEP and envs.unwrapped is not envs:
            self._recording.reset_keys = set()
        special = self._step_callback is not None or part is not None
        self._plain = self._mode is AutoresetMode.NEXT_STEP and not special
        # Whether the sub-environments were reset and nothing went wrong since.
        self._open = False

    # What was recorded

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """How the sub-environments are reset."""
        return self._mode

    @property
    def records_all(self) -> bool:
        """Whether every transition from the next reset on is recorded: no callback ends episodes."""
        return self._step_callback is None

    @property
    def usable(self) -> bool:
        """Whether episodes can go on: it was reset, and nothing went wrong since."""
        return self._open and not self._session.closed

    # Gymnasium

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the sub-environments and start an episode in each; running ones end as `cut`.

        Args:
            seed: as the environment takes it. Of a `SyncVectorEnv` or `AsyncVectorEnv` an integer s gives
                sub-environment i the seed s + i, and a list gives each its own; the episodes keep these. A
                natively vectorised environment has one generator for all: its seed belongs to no episode
                alone and is kept as their metadata `vector_seed`.
            options: kept with the episodes; `options["reset_mask"]`, a bool array of shape (num_envs,),
                resets only the sub-environments where it is set.

        Raises:
            SpaceMismatchError: the observations do not fit the store's space.
            InvalidArgumentError: the options are no mapping; nothing was reset.
            RecorderStateError: the recorder is closed.
        """
        self._session.check_usable()
        mask, kept = _split_options(options, self.num_envs)
        fresh = self._fresh_seeds() if seed is None else None
        unmasked = mask is None and options is not None and "reset_mask" in options
        try:
            # The environment may change the options: what is kept was copied before.
            observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        except BaseException as error:
            # An environment that refuses the mask has not moved.
            if not (unmasked and isinstance(error, Exception)):
                self._interrupted()
            raise
        try:
            envs = self._recording.everyone if mask is None else np.flatnonzero(mask)
            self._recording.end(envs)
            facts = self._facts(seed, fresh, kept, envs)
            self._begin(envs, observations, infos, facts)
        except BaseException:
            self._interrupted()
            raise
        self._open = True
        self._recording.end_call()
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the sub-environments and record their transitions.

        Raises:
            SpaceMismatchError: the actions do not fit (no environment is stepped), or what came back does
                not; nothing of the step is recorded, and all episodes end as they were before it.
            RecorderStateError: before the first reset, after an exception or after `close`; with autoreset
                disabled also while a sub-environment that has ended was not reset.
        """
        recording = self._recording
        if self._paused:
            return self._step_paused(actions)
        if recording.ended_early:
            recording.check_going_on(range(self.num_envs))
        block = self._stage(actions)
        try:
            result = self.env.step(actions)
            plain = None
            simple = self._plain and not recording.logged
            if simple and (not result[4] or recording.infos.none):
                plain = recording.plain_steps(block)
            if plain is None:
                self._step(block, actions, result)
            else:
                plain.add(result)
        except BaseException:
            self._interrupted()
            raise
        self._recording.end_call()
        return result

    def _step_paused(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step and record nothing, but know which sub-environments begin their next episodes when."""
        try:
            result = self.env.step(actions)
            if self._mode is not AutoresetMode.SAME_STEP:
                shape = (self.num_envs,)
                done = flags(result[2], shape, "terminations") | flags(result[3], shape, "truncations")
                restart = self._recording.state.restart
                if restart is not None:
                    # With autoreset disabled they wait on; else this step was their reset.
                    done[restart] = self._mode is AutoresetMode.DISABLED
                self._recording.watch(np.flatnonzero(done))
        except BaseException:
            self._interrupted()
            raise
        return result

    def log(self, /, *, mask: Any = None, **values: Any) -> None:
        """Add `policy.<key>` values to the current step of every sub-environment.

        They stand beside the actions taken next; after the last step of an episode they stand on the row of
        its last observation. Log these before `flush` or `seal`, which store the episode: later ones have no
        row, and a `RuntimeWarning` says so once where others have. Of two values for one key the later
        counts.

        Args:
            mask: bool, shape (num_envs,): only these sub-environments; all if None.
            values: arrays of shape (num_envs, ...), lists with one value each, or nested dicts of such.

        Raises:
            RecorderStateError: there is no episode, or all these sub-environments have ended and are stored.
            SpaceMismatchError: a value has not one entry for each sub-environment.
        """
        self._recording.log(values, mask)

    def _finish(self) -> None:
        self._open = False

    # Episodes

    def discard(self, envs: Any) -> None:
        """Give up the running episodes of some sub-environments: nothing of them is stored.

        Args:
            envs: their indices. They are recorded again from their next reset on.
        """
        self._recording.silent[envs] = True
        self._recording.discard(np.asarray(envs, np.int64), ended=False)

    @property
    def ended(self) -> Ends | None:
        """The episodes that the last step ended, or None."""
        return self._recording.ended

    @property
    def at_start(self) -> np.ndarray:
        """Bool, shape (num_envs,): sub-environments at the first observation of an episode."""
        state = self._recording.state
        return (state.begun == state.tick) & (state.running != NO_EPISODE)

    @property
    def resetting(self) -> np.ndarray:
        """Bool, shape (num_envs,): sub-environments that the next step resets; their actions are dropped."""
        resetting = np.zeros(self.num_envs, bool)
        if self._recording.state.restart is not None:
            resetting[self._recording.state.restart] = True
        return resetting

    def _interrupted(self) -> None:
        """Keep what was recorded and end all episodes; the environments' state is now undefined."""
        self._open = False
        self._recording.interrupted()

    def _stage(self, actions: Any) -> VectorBuffer:
        """Copy the actions into the next rows, before the environment gets to see them."""
        if not self._open:
            self._refuse()
        recording = self._recording
        if self._mode is AutoresetMode.DISABLED and recording.state.restart is not None:
            self._check_reset(recording.state.restart.tolist())
        plain, count = recording.plain, recording.num_envs
        if plain is not None and plain.block.capacity - plain.stop >= 2 * count:
            block, row = plain.block, plain.stop
        else:
            block = recording.block()
            row = block.count
        block.actions.put_many(row, to_numpy(actions), count)
        return block

    def _check_reset(self, waiting: list[int]) -> None:
        if waiting:
            raise RecorderStateError(
                f"The episodes of the sub-environments {waiting} have ended and autoreset is disabled: reset "
                'them with reset(options={"reset_mask": mask}) before the next step().'
            )

    def _refuse(self) -> None:
        self._session.check_usable()
        raise RecorderStateError(
            "There are no running episodes: call reset() before the first step(), and again after an "
            "exception in step() or reset(), since the sub-environments may have gone on."
        )

    def _step(self, block: VectorBuffer, actions: Any, result: tuple) -> None:
        recording, mode = self._recording, self._mode
        result = (*result[:4], by_key(result[4], self.num_envs))
        resets = recording.state.restart if mode is AutoresetMode.NEXT_STEP else None
        step = BatchStep(recording, block, recording.everyone, resets, result, mode)
        step.record(self._step_callback, partial(single, recording.action_space, to_numpy(actions)))

    def _begin(self, envs: np.ndarray, observations: Any, infos: Any, facts: dict[int, EpisodeFacts]) -> None:
        """Start episodes with their first observations; observations and infos are those of all."""
        recording, count = self._recording, len(envs)
        recording.silent[envs] = False
        restart = recording.state.restart
        left = None if restart is None else np.setdiff1d(restart, envs)
        if recording.reset_keys is not None:
            recording.reset_keys.update(by_key(infos, self.num_envs))
        if self._paused:
            recording.watch(left)
            return
        block, state = recording.begin(envs, facts)
        row = block.count
        values, infos = recording.observed(observations, self.num_envs), by_key(infos, self.num_envs)
        chosen = None if count == self.num_envs else envs
        block.observations.put_many(row, values, count, chosen)
        if self._step_callback is not None:
            calls = StepCalls(recording, block, self._step_callback, values, infos, recording.everyone)
            ending = np.flatnonzero(calls.resets(envs, np.arange(row, row + count)))
            block.ends.append(state.ends(ending))
            state.mute(ending)
        else:
            rows = np.full(self.num_envs, -1)
            rows[envs] = np.arange(row, row + count)
            add_infos(block.infos, infos, self.num_envs, rows, recording.infos)
        state.restart = left if left is not None and len(left) else None
        recording.commit(block, row + count, state, envs)

    # Seeds

    def _fresh_seeds(self) -> Callable[[], list[Any]] | None:
        """Return how to ask for the seeds that the sub-environments draw now; None if none can be asked.

        Only a generator that does not exist before the reset is known to start with it.
        """
        envs = self.env.unwrapped
        if not isinstance(envs, SyncVectorEnv):
            return None
        own = [env.unwrapped for env in envs.envs]
        fresh = [getattr(env, "_np_random_seed", 0) is None for env in own]
        return lambda: [
            getattr(env, "_np_random_seed", None) if new else None
            for env, new in zip(own, fresh, strict=True)
        ]

    def _facts(
        self, seed: Any, fresh: Callable[[], list[Any]] | None, options: Any, envs: np.ndarray
    ) -> dict[int, EpisodeFacts]:
        """Seed, options and metadata of the episodes that a reset starts, by sub-environment."""
        seeds: list[Any] = [None] * self.num_envs
        metadata = {}
        if isinstance(seed, Sequence | np.ndarray):
            seeds = list(seed)
        elif seed is not None and isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            seeds = [operator.index(seed) + env for env in range(self.num_envs)]
        elif seed is not None:
            metadata = {"vector_seed": operator.index(seed)}
        elif fresh is not None:
            seeds = [drawn if isinstance(drawn, int) and drawn >= 0 else None for drawn in fresh()]
        return {env: EpisodeFacts.of(seeds[env], options, metadata) for env in envs.tolist()}


def _split_options(
    options: Mapping[str, Any] | None, num_envs: int
) -> tuple[np.ndarray | None, dict[Any, Any] | None]:
    """Return the mask of the options, if it is a sound one, and the rest of them to keep."""
    kept = copied_options(options)
    if options is None or kept is None:
        return None, None
    kept.pop("reset_mask", None)
    mask = options.get("reset_mask")
    if isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (num_envs,) and mask.any():
        return mask.copy(), kept or None
    return None, kept
