"""One step of a vector environment on its way into the block.

The rows of a step: one for each sub-environment, in their order; behind them what was logged for last
observations; behind those the first rows of episodes that began within the step (SAME_STEP). Rows without an
episode are left out when the block goes to the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...store.common.compatibility import AutoresetMode
from ...store.errors import SpaceMismatchError
from ...store.schema import RESET_ROW, STEP_ROW
from ..rows.vector_buffer import NO_EPISODE, VectorBuffer
from .callbacks import StepCallback
from .env_episodes import EnvState
from .env_recording import EnvRecording, add_told
from .step_callbacks import StepCalls
from .vector_values import FINAL, final_value, flags, to_numpy

_SET = b"\x01"


class VectorStep:
    """The result of a step, and the rows and the state that come of it.

    Args:
        recording: the current episodes.
        block: where the rows go; the actions stand in them already.
        mode: how the sub-environments reset themselves.
        actions, result: what the environment took and returned.
        keep: bool, shape (num_envs,): nothing of the other sub-environments is recorded; all if None.

    Raises:
        SpaceMismatchError: a value does not fit its space.
    """

    def __init__(
        self,
        recording: EnvRecording,
        block: VectorBuffer,
        mode: AutoresetMode,
        actions: Any,
        result: tuple[Any, Any, Any, Any, Mapping[str, Any]],
        keep: np.ndarray | None = None,
    ) -> None:
        observations, rewards, terminations, truncations, self._infos = result
        count = recording.num_envs
        self._recording, self._block, self._mode = recording, block, mode
        self._keep, self._actions = keep, actions
        self._row, self._stop = block.count, block.count + count
        self._at = self._stop
        self._calls: StepCalls | None = None
        # NEXT_STEP: the environments for which this step was a reset.
        self._reset: np.ndarray | None = None
        self._observations = to_numpy(observations)
        rows = slice(self._row, self._stop)
        terminated = flags(terminations, (count,), "terminations")
        truncated = flags(truncations, (count,), "truncations")
        block.observations.put_many(self._row, self._observations, count)
        block.rewards.put_many(self._row, to_numpy(rewards), count)
        block.terminated[rows], block.truncated[rows] = terminated, truncated
        self._done = terminated | truncated
        if keep is not None:
            self._done &= keep

    def record(self, callback: StepCallback | None) -> None:
        """Put the rest of the rows, and make all of it count."""
        recording, block = self._recording, self._block
        rows = slice(self._row, self._stop)
        recording.begin_call()
        before = recording.state
        state = before.stepped()
        any_done = _SET in self._done.tobytes()
        if callback is None:
            state.returns = self._returns(before.returns)
        if before.restart is not None and self._mode is AutoresetMode.NEXT_STEP:
            self._restart(state, before.restart)
        block.numbers[rows] = state.running
        if self._keep is not None:
            block.numbers[rows][~self._keep] = NO_EPISODE
            state.hold_back(~self._keep)
        same_step = any_done and self._mode is AutoresetMode.SAME_STEP
        if same_step:
            self._put_final()
        ending = None
        if callback is not None:
            ending = self._call_back(callback, state, same_step)
            state.returns = self._returns(before.returns)
        elif self._infos or recording.logged:
            self._put_dynamic(same_step)
        count = len(self._done) if self._reset is None else len(self._done) - len(self._reset)
        if not state.whole or self._keep is not None:
            kinds, numbers = block.kinds[rows], block.numbers[rows]
            count = int(np.count_nonzero((kinds == STEP_ROW) & (numbers != NO_EPISODE)))
        if any_done or ending is not None:
            self._end(state, ending)
        recording.add_transitions(count)
        recording.commit(block, self._at, state)

    def _returns(self, before: np.ndarray) -> np.ndarray:
        """Return the sums of rewards after this step; what is in the block counts, whatever came from
        outside.
        """
        returns = before + self._block.reward_values[self._row : self._stop]
        if self._reset is not None:
            # A reset is no transition, whatever reward came with it.
            returns[self._reset] = 0.0
        if self._keep is not None:
            returns[~self._keep] = before[~self._keep]
        return returns

    def _call_back(self, callback: StepCallback, state: EnvState, same_step: bool) -> np.ndarray:
        self._calls = StepCalls(self._recording, self._block, callback, self._observations, self._infos)
        final = self._done if same_step else np.zeros_like(self._done)
        return self._calls.steps(self._row, state, to_numpy(self._actions), final)

    def _put_dynamic(self, same_step: bool) -> None:
        recording = self._recording
        if recording.logged:
            envs = recording.everyone
            envs = envs if self._reset is None else np.delete(envs, self._reset)
            recording.logged.put(self._block, self._row + envs, envs)
        if self._infos:
            self._put_infos(same_step)

    # Values of single environments

    def _put_final(self) -> None:
        """SAME_STEP: the true last observations take the place of the new episodes' first ones."""
        if "final_obs" not in self._infos:
            raise SpaceMismatchError(
                "Episodes ended and infos have no 'final_obs'; expected the last observations there, as "
                "AutoresetMode.SAME_STEP says. Pass autoreset_mode= if the environment resets otherwise."
            )
        recording, final = self._recording, to_numpy(self._infos["final_obs"])
        put = self._block.observations.put
        for env in np.flatnonzero(self._done).tolist():
            put(self._row + env, final_value(recording.observation_space, final, env))

    def _put_infos(self, same_step: bool) -> None:
        """Infos as they came; under SAME_STEP those of a reset belong to the new episode's first row."""
        infos, count, chosen = self._infos, self._recording.num_envs, self._recording.infos
        rows = np.arange(self._row, self._stop)
        if not same_step:
            add_told(self._block.infos, infos, count, rows, chosen)
            return
        final = infos.get("final_info", {})
        here = np.where(self._done, rows, -1)
        if isinstance(final, Mapping):
            add_told(self._block.infos, final, count, here, chosen)
        else:
            for env in np.flatnonzero(self._done).tolist():
                self._block.infos.put(self._row + env, chosen.owned(final[env] or {}))
        rows[self._done] = -1
        heard = self._heard()
        rows[heard] = np.arange(self._stop, self._stop + len(heard))
        rest = {key: value for key, value in infos.items() if key not in FINAL}
        add_told(self._block.infos, rest, count, rows, chosen)

    def _heard(self) -> np.ndarray:
        """Return the environments that are done and whose next episodes are to be recorded."""
        return np.flatnonzero(self._done & ~self._recording.silent)

    # Episodes

    def _restart(self, state: EnvState, restarting: np.ndarray) -> None:
        """NEXT_STEP: this step was a reset for the environments whose episode had ended before."""
        recording, block = self._recording, self._block
        chosen, left = restarting, None
        if self._keep is not None:
            chosen, left = restarting[self._keep[restarting]], restarting[~self._keep[restarting]]
        self._at = recording.late(block, self._at, restarting, recording.state)
        recording.finish_stopped(block, state)
        block.kinds[self._row + chosen] = RESET_ROW
        self._done[chosen] = False
        self._reset = chosen
        heard = chosen if state.whole else chosen[~recording.silent[chosen]]
        block.begins.append(state.start(recording.session.take_numbers(len(heard)), heard))
        state.restart = left if left is not None and len(left) else None
        if not state.whole:
            state.whole = bool((state.running != NO_EPISODE).all())

    def _end(self, state: EnvState, ending: np.ndarray | None) -> None:
        """End the episodes that are done, and those that a callback ended."""
        recording, block = self._recording, self._block
        rows = slice(self._row, self._stop)
        done = self._done.nonzero()[0]
        ended = done
        if ending is None and self._keep is None and state.whole:
            state.terminated, state.truncated = block.terminated[rows].copy(), block.truncated[rows].copy()
        else:
            running = block.numbers[rows] != NO_EPISODE
            state.terminated = block.terminated[rows] & running
            state.truncated = block.truncated[rows] & running
            stopping = self._done if ending is None else self._done | ending
            ended = (stopping & running).nonzero()[0]
        ends = recording.noted(state.ends(ended), self._stop)
        recording.gathered.add(ends)
        if ending is not None:
            state.mute((ending & ~self._done).nonzero()[0])
        if self._calls is not None:
            ends, self._at = self._calls.go_on(ends, self._at, state)
        if self._mode is AutoresetMode.SAME_STEP:
            self._restart_at_once(state)
            block.ends.append(ends)
            state.forget((ends,))
            return
        state.stopped = (*state.stopped, ends)
        if len(done):
            state.restart = done if state.restart is None else np.union1d(state.restart, done)

    def _restart_at_once(self, state: EnvState) -> None:
        """SAME_STEP: environments that are done show the first observation of their next episode."""
        recording, block = self._recording, self._block
        heard = self._heard()
        if not len(heard):
            return
        row, self._at = self._at, self._at + len(heard)
        block.observations.put_many(row, self._observations, len(heard), heard)
        block.kinds[row : self._at] = RESET_ROW
        begins = state.start(recording.session.take_numbers(len(heard)), heard)
        block.numbers[row : self._at] = begins.numbers
        block.begins.append(begins)
        if self._calls is not None:
            ending = np.flatnonzero(self._calls.resets(heard, np.arange(row, self._at)))
            block.ends.append(state.ends(ending))
            state.mute(ending)
