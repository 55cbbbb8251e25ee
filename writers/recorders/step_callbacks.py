"""Step callbacks of several environments: each of them is shown its own step, one after the other.

With a callback a step takes a Python call for each environment. The rows stand in the block already; what a
callback changes is put into them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...store.dynamic.logical_types import nest
from ...store.journal.episodes import Ends
from ...store.schema import RESET_ROW
from ..rows.vector_buffer import NO_EPISODE, VectorBuffer
from .callbacks import StepCallback, StepData, apply_step_callback, continues
from .env_episodes import EnvState
from .env_recording import EnvRecording
from .vector_values import SameStepInfos, info_of, single


class StepCalls:
    """The calls for one batch of rows.

    Args:
        recording: the current episodes.
        block: where the rows are.
        callback: the user's.
        observations, infos: the batch's.
        ids: int64: the environments of the batch.
        parts: the infos at environments that are done, where they have reset themselves within the step.
    """

    def __init__(
        self,
        recording: EnvRecording,
        block: VectorBuffer,
        callback: StepCallback,
        observations: Any,
        infos: Mapping[Any, Any],
        ids: np.ndarray,
        parts: SameStepInfos | None = None,
    ) -> None:
        self._recording, self._block, self._callback = recording, block, callback
        self._observations, self._infos, self._ids = observations, infos, ids.tolist()
        self._parts = parts
        #: By row: the environments whose next episode the callback begins there, and what it returned.
        self.continued: dict[int, tuple[int, StepData]] = {}

    def resets(self, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Show the first observations at these places of the batch, recorded in `rows`.

        Returns:
            Bool, one for each place of the batch: whether the callback ended its episode there.
        """
        rest = self._infos if self._parts is None else self._parts.fresh
        ending = np.zeros(len(self._ids), bool)
        for place, row in zip(places.tolist(), rows.tolist(), strict=True):
            observation = single(self._recording.observation_space, self._observations, place)
            info = info_of(rest, place, len(self._ids))
            ending[place] = self._show(row, StepData(0, observation, info=info, **self._source(place)))
        return ending

    def steps(
        self, row: int, state: EnvState, actions: Callable[[int], Any], final: np.ndarray
    ) -> np.ndarray:
        """Show the rows of the batch that belong to an episode; they begin at `row`.

        Args:
            row: of the first environment.
            state: after the step.
            actions: returns the action that an environment took.
            final: bool, one for each place: the last observation and info are among the final ones.

        Returns:
            Bool, one for each place: whether the callback ended its episode there.
        """
        block = self._block
        rows = np.arange(row, row + len(self._ids))
        own = block.numbers[rows] != NO_EPISODE
        reset = block.kinds[rows] == RESET_ROW
        ending = self.resets(np.flatnonzero(own & reset), rows[own & reset])
        for place in np.flatnonzero(own & ~reset).tolist():
            observation, info = self._of(place, bool(final[place]))
            env, at = self._ids[place], row + place
            step = StepData(
                t=int(state.tick - state.begun[env]),
                observation=observation,
                action=actions(env),
                reward=_reward(block.reward_values[at]),
                terminated=bool(block.terminated[at]),
                truncated=bool(block.truncated[at]),
                info=info,
                policy=self._policy(env),
                **self._source(place),
            )
            ending[place] = self._show(at, step)
        return ending

    def go_on(self, ends: Ends, stop: int, state: EnvState) -> tuple[Ends, int]:
        """Begin the next episodes where the callback goes on without a reset.

        Args:
            ends: the episodes that ended with these rows.
            stop: the next free row.
            state: after the step.

        Returns:
            The other episodes that ended, and the next free row.
        """
        if not self.continued:
            return ends, stop
        block, rows = self._block, np.array(list(self.continued))
        envs = np.array([env for env, _ in self.continued.values()])
        mine = np.isin(ends.env_index, envs)
        finished = ends.chosen(mine)
        block.ends.append(finished)
        state.forget((finished,))
        begins = state.start(self._recording.session.take_numbers(len(envs)), envs)
        fresh = np.arange(stop, stop + len(envs))
        block.observations.copy_rows(fresh, block.observations, rows)
        block.numbers[fresh], block.kinds[fresh] = begins.numbers, RESET_ROW
        block.begins.append(begins)
        for row, (_, answer) in zip(fresh.tolist(), self.continued.values(), strict=True):
            info = self._recording.infos.chosen(answer.info)
            for dynamic, mapping in ((block.infos, info), (block.extras, answer.extra)):
                if mapping:
                    dynamic.put(row, mapping)
        return ends.chosen(~mine), stop + len(envs)

    def _of(self, place: int, final: bool) -> tuple[Any, dict[Any, Any]]:
        space, count = self._recording.observation_space, len(self._ids)
        if not final or self._parts is None:
            return single(space, self._observations, place), info_of(self._infos, place, count)
        info = info_of(self._parts.final, place, count) | info_of(self._parts.added, place, count)
        return self._recording.last_observed(self._infos["final_obs"], place), info

    def _source(self, place: int) -> dict[str, Any]:
        """Return which environment a step is of."""
        env, envs = self._ids[place], self._recording.sub_envs
        return {"env_index": env, "env": envs[env] if envs else None}

    def _policy(self, env: int) -> dict[Any, Any]:
        policy: dict[Any, Any] = {}
        for path, (values, mask) in self._recording.logged.items():
            if mask is None or mask[env]:
                nest(policy, path, values[env])
        return policy

    def _show(self, row: int, step: StepData) -> bool:
        """Call the callback, put what it changed, and say whether it ended the episode."""
        answer = apply_step_callback(self._callback, step, self._recording.session.store.schema)
        block = self._block
        if answer.observation is not step.observation:
            block.observations.put(row, answer.observation)
        if answer.action is not step.action:
            block.actions.put(row, answer.action)
        if answer.reward is not step.reward:
            block.rewards.put(row, answer.reward)
        if step.t:
            block.terminated[row], block.truncated[row] = bool(answer.terminated), bool(answer.truncated)
        info = self._recording.infos.chosen(answer.info)
        groups = (block.infos, info), (block.policies, answer.policy), (block.extras, answer.extra)
        for dynamic, mapping in groups:
            if mapping:
                dynamic.put(row, mapping)
        flagged, done = bool(answer.terminated or answer.truncated), step.terminated or step.truncated
        if flagged and not (answer.end or done):
            self._recording.ended_early.add(step.env_index)
        if continues(answer):
            if step.t and not done:
                self.continued[row] = (step.env_index, answer)
            return step.t > 0
        if answer.end and not done:
            self._recording.going_on.add(step.env_index)
        return bool(answer.end or flagged)


def _reward(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else float(value)
