"""Step callbacks of several environments: each of them is shown its own step, one after the other.

With a callback a step takes a Python call for each environment. The rows stand in the block already; what a
callback changes is put into them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..store.block_buffer import NOBODY, BlockBuffer
from ..store.kinds import nest
from ..store.loose_rows import owned
from ..store.schema import RESET_ROW
from .callbacks import StepCallback, StepData, apply_step_callback
from .env_episodes import EnvState
from .env_recording import EnvRecording
from .vector_values import FINAL, final_value, info_of, single, to_numpy


class StepCalls:
    """The calls for one batch of rows.

    Args:
        recording: the episodes in hand.
        block: where the rows are.
        callback: the user's.
        observations, infos: of all environments, as the batch has them.
    """

    def __init__(
        self,
        recording: EnvRecording,
        block: BlockBuffer,
        callback: StepCallback,
        observations: Any,
        infos: Mapping[Any, Any],
    ) -> None:
        self._recording, self._block, self._callback = recording, block, callback
        self._observations, self._infos = observations, infos
        self._count = recording.num_envs

    def resets(self, envs: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Show the first observations of these environments, which stand in `rows`.

        Returns:
            Bool, one for each environment: whether the callback ended its episode there.
        """
        rest = {key: value for key, value in self._infos.items() if key not in FINAL}
        ending = np.zeros(self._count, bool)
        for env, row in zip(envs.tolist(), rows.tolist(), strict=True):
            observation = single(self._recording.observation_space, self._observations, env)
            step = StepData(0, observation, info=info_of(rest, env, self._count), env_index=env)
            ending[env] = self._show(row, step)
        return ending

    def steps(self, row: int, state: EnvState, actions: Any, final: np.ndarray) -> np.ndarray:
        """Show the transitions of all environments that have a row from `row` on which is somebody's.

        Args:
            row: of the first environment.
            state: after the step.
            actions: of all environments, as numpy.
            final: bool, one for each environment: the last observation and info are among the final ones.

        Returns:
            Bool, one for each environment: whether the callback ended its episode there.
        """
        block = self._block
        rows = np.arange(row, row + self._count)
        own = block.numbers[rows] != NOBODY
        reset = block.kinds[rows] == RESET_ROW
        ending = self.resets(np.flatnonzero(own & reset), rows[own & reset])
        lengths = state.tick - state.begun
        for env in np.flatnonzero(own & ~reset).tolist():
            observation, info = self._of(env, bool(final[env]))
            at = row + env
            step = StepData(
                t=int(lengths[env]),
                observation=observation,
                action=single(self._recording.action_space, actions, env),
                reward=_reward(block.reward_values[at]),
                terminated=bool(block.terminated[at]),
                truncated=bool(block.truncated[at]),
                info=info,
                policy=self._policy(env),
                env_index=env,
            )
            ending[env] = self._show(at, step)
        return ending

    def batch(
        self, row: int, envs: np.ndarray, shown: np.ndarray, state: EnvState, actions: Mapping[int, Any]
    ) -> np.ndarray:
        """Show a batch of some environments, as a pool gives it; its rows stand from `row` on.

        Args:
            envs: whose rows they are, in order.
            shown: bool, one for each row: whether it is recorded.
            state: after the step.
            actions: what each environment was sent last.

        Returns:
            Bool, one for each row: whether the callback ended its episode there.
        """
        block, space = self._block, self._recording.observation_space
        self._count = len(envs)
        ending = np.zeros(len(envs), bool)
        for place in np.flatnonzero(shown).tolist():
            env, at = int(envs[place]), row + place
            observation = single(space, self._observations, place)
            step = StepData(0, observation, info=info_of(self._infos, place, len(envs)), env_index=env)
            if block.kinds[at] != RESET_ROW:
                step = replace(
                    step,
                    t=int(state.tick - state.begun[env]),
                    action=actions[env],
                    reward=_reward(block.reward_values[at]),
                    terminated=bool(block.terminated[at]),
                    truncated=bool(block.truncated[at]),
                    policy=self._policy(env),
                )
            ending[place] = self._show(at, step)
        return ending

    def _of(self, env: int, final: bool) -> tuple[Any, dict[Any, Any]]:
        space = self._recording.observation_space
        if not final:
            return single(space, self._observations, env), info_of(self._infos, env, self._count)
        told = self._infos.get("final_info", {})
        info = info_of(told, env, self._count) if isinstance(told, Mapping) else dict(told[env] or {})
        return final_value(space, to_numpy(self._infos["final_obs"]), env), info

    def _policy(self, env: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for path, (values, mask) in self._recording.logged.items():
            if mask is None or mask[env]:
                nest(found, path, values[env])
        return found

    def _show(self, row: int, step: StepData) -> bool:
        """Call the callback, put what it changed, and say whether it ended the episode."""
        answer = apply_step_callback(self._callback, step)
        block = self._block
        if answer.observation is not step.observation:
            block.observations.put(row, answer.observation)
        if answer.action is not step.action:
            block.actions.put(row, answer.action)
        if answer.reward is not step.reward:
            block.rewards.put(row, answer.reward)
        if step.t:
            block.terminated[row], block.truncated[row] = bool(answer.terminated), bool(answer.truncated)
        families = (block.infos, answer.info), (block.policies, answer.policy), (block.extras, answer.extra)
        for loose, mapping in families:
            if mapping:
                loose.put(row, owned(mapping))
        return bool(answer.end or answer.terminated or answer.truncated)


def _reward(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else float(value)
