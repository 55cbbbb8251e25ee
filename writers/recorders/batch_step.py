"""One batch of a vector environment or a pool on its way into the block.

The rows of a batch: one for each of its environments, in their order; after them what was logged for last
observations; after those the first rows of episodes that began within the step (SAME_STEP, or a callback
that goes on without a reset). Rows without an episode are left out when the block goes to the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...store.common.compatibility import AutoresetMode
from ...store.common.foreign_arrays import to_numpy
from ...store.errors import SpaceMismatchError
from ...store.schema import RESET_ROW, STEP_ROW
from ..rows.vector_buffer import NO_EPISODE, VectorBuffer
from .callbacks import StepCallback
from .env_episodes import EnvState
from .env_recording import EnvRecording, add_infos
from .step_callbacks import StepCalls
from .vector_values import SameStepInfos, flags

_SET = b"\x01"


class BatchStep:
    """The result of a call of the environment, and the rows and the state that come of it.

    Args:
        recording: the current episodes.
        block: where the rows go; the actions stand in them already.
        ids: int64: the environments of the batch; `recording.everyone` itself for all of them in order.
        resets: int64, rising: the places in the batch at which environments were reset, or None.
        result: observations, rewards, terminations, truncations and infos of the batch.
        mode: how the environments reset themselves; None for a pool, which says so at each reset.

    Raises:
        SpaceMismatchError: a value does not fit its space.
    """

    def __init__(
        self,
        recording: EnvRecording,
        block: VectorBuffer,
        ids: np.ndarray,
        resets: np.ndarray | None,
        result: tuple[Any, Any, Any, Any, Mapping[str, Any]],
        mode: AutoresetMode | None = None,
    ) -> None:
        observations, rewards, terminations, truncations, self._infos = result
        count = len(ids)
        self._recording, self._block, self._mode = recording, block, mode
        self._ids, self._resets = ids, resets
        self._aligned = ids is recording.everyone
        self._row, self._stop = block.count, block.count + count
        self._at = self._stop
        self._calls: StepCalls | None = None
        self._observations = recording.observed(observations, count)
        rows = slice(self._row, self._stop)
        terminated = flags(terminations, (count,), "terminations")
        truncated = flags(truncations, (count,), "truncations")
        block.observations.put_many(self._row, self._observations, count)
        block.rewards.put_many(self._row, to_numpy(rewards), count)
        block.terminated[rows], block.truncated[rows] = terminated, truncated
        self._done = terminated | truncated
        if resets is not None:
            # A reset is no transition, whatever came with it.
            self._done[resets] = False

    def record(self, callback: StepCallback | None, actions: Callable[[int], Any]) -> None:
        """Put the rest of the rows, and make all of it count.

        Args:
            callback: the user's, if any.
            actions: for the callback: returns the action that an environment took.
        """
        recording, block = self._recording, self._block
        rows = slice(self._row, self._stop)
        recording.begin_call()
        before = recording.state
        state = before.stepped()
        if not self._aligned:
            absent = np.ones(recording.num_envs, bool)
            absent[self._ids] = False
            state.hold_back(absent)
        any_done = _SET in self._done.tobytes()
        state.returns = self._returns(before.returns)
        if before.stopped or self._resets is not None:
            self._restart(before, state)
        block.numbers[rows] = state.running if self._aligned else state.running[self._ids]
        same_step = any_done and self._mode is AutoresetMode.SAME_STEP
        parts = None
        if same_step:
            self._put_final()
            parts = SameStepInfos.of(self._infos, len(self._ids), recording.reset_keys)
        ending = None
        if callback is not None:
            self._calls = StepCalls(
                recording, block, callback, self._observations, self._infos, self._ids, parts
            )
            final = self._done if same_step else np.zeros_like(self._done)
            ending = self._calls.steps(self._row, state, actions, final)
            state.returns = self._returns(before.returns)
        elif self._infos or recording.logged:
            self._put_dynamic(parts)
        count = len(self._done) if self._resets is None else len(self._done) - len(self._resets)
        if not state.whole:
            kinds, numbers = block.kinds[rows], block.numbers[rows]
            count = int(np.count_nonzero((kinds == STEP_ROW) & (numbers != NO_EPISODE)))
        if any_done or ending is not None:
            self._end(state, ending)
        recording.add_transitions(count)
        recording.commit(block, self._at, state, self._used_up(before))

    def _envs(self, places: np.ndarray) -> np.ndarray:
        """Return the environments at some places of the batch."""
        return places if self._aligned else self._ids[places]

    def _returns(self, before: np.ndarray) -> np.ndarray:
        """Return the sums of rewards after this step; what is in the block counts, whatever came from
        outside.
        """
        rewards = self._block.reward_values[self._row : self._stop]
        with np.errstate(over="ignore", invalid="ignore"):  # inf and -inf may come together
            if self._aligned:
                returns = before + rewards
            else:
                returns = before.copy()
                returns[self._ids] += rewards
        if self._resets is not None:
            returns[self._envs(self._resets)] = 0.0
        return returns

    def _used_up(self, before: EnvState) -> np.ndarray | None:
        """Return the environments whose logged values have been put; None for all."""
        if self._aligned:
            return None
        return np.concatenate([self._ids, *(ends.env_index for ends in before.stopped)])

    # Values of single environments

    def _put_dynamic(self, parts: SameStepInfos | None) -> None:
        recording = self._recording
        if recording.logged:
            places = recording.everyone[: len(self._ids)]
            places = places if self._resets is None else np.delete(places, self._resets)
            recording.logged.put(self._block, self._row + places, self._envs(places))
        if self._infos:
            self._put_infos(parts)

    def _put_final(self) -> None:
        """SAME_STEP: the true last observations take the place of the new episodes' first ones."""
        if "final_obs" not in self._infos:
            raise SpaceMismatchError(
                "Episodes ended and infos have no 'final_obs'; expected the last observations there, as "
                "AutoresetMode.SAME_STEP says. Pass autoreset_mode= if the environment resets otherwise."
            )
        final, put = self._infos["final_obs"], self._block.observations.put
        for env in np.flatnonzero(self._done).tolist():
            put(self._row + env, self._recording.last_observed(final, env))

    def _put_infos(self, parts: SameStepInfos | None) -> None:
        """Infos as they came; under SAME_STEP those of a reset belong to the new episode's first row."""
        infos, count, chosen = self._infos, len(self._ids), self._recording.infos
        rows = np.arange(self._row, self._stop)
        if parts is None:
            add_infos(self._block.infos, infos, count, rows, chosen)
            return
        add_infos(self._block.infos, parts.final, count, np.where(self._done, rows, -1), chosen)
        add_infos(self._block.infos, parts.added, count, rows.copy(), chosen)
        rows[self._done] = -1
        heard = self._heard()
        rows[heard] = np.arange(self._stop, self._stop + len(heard))
        add_infos(self._block.infos, parts.fresh, count, rows, chosen)

    def _heard(self) -> np.ndarray:
        """Return the environments that are done and whose next episodes are to be recorded."""
        return np.flatnonzero(self._done & ~self._recording.silent)

    # Episodes

    def _restart(self, before: EnvState, state: EnvState) -> None:
        """Finish the episodes that were stopped, and begin those of the environments that were reset."""
        recording, block = self._recording, self._block
        fresh = self._ids[:0] if self._resets is None else self._envs(self._resets)
        # A pool may reset environments that are still running.
        cut = before.open_envs(fresh) if self._mode is None else fresh[:0]
        if recording.logged or self._mode is None:
            envs = np.unique(np.concatenate([cut, *(ends.env_index for ends in before.stopped)]))
            self._at = recording.late(block, self._at, envs, before)
            recording.stored(envs, before)
        block.ends += before.stopped
        if len(cut):
            block.ends.append(recording.noted(before.ends(cut)))
        state.finish()
        if self._resets is None:
            return
        recording.begun(fresh)
        block.kinds[self._row + self._resets] = RESET_ROW
        heard = fresh if state.whole else fresh[~recording.silent[fresh]]
        block.begins.append(state.start(recording.session.take_numbers(len(heard)), heard))
        state.restart = None
        if not state.whole:
            state.whole = bool((state.running != NO_EPISODE).all())

    def _end(self, state: EnvState, ending: np.ndarray | None) -> None:
        """End the episodes that are done, and those that a callback ended."""
        recording, block = self._recording, self._block
        rows = slice(self._row, self._stop)
        places = done = self._done.nonzero()[0]
        if ending is not None or not state.whole:
            stopping = self._done if ending is None else self._done | ending
            places = (stopping & (block.numbers[rows] != NO_EPISODE)).nonzero()[0]
        envs = self._envs(places)
        state.terminated, state.truncated = np.zeros((2, recording.num_envs), bool)
        state.terminated[envs] = block.terminated[self._row + places]
        state.truncated[envs] = block.truncated[self._row + places]
        ends = recording.noted(state.ends(envs), self._stop)
        recording.gathered.add(ends)
        if self._mode is None:
            state.mute(envs)
        elif ending is not None:
            state.mute((ending & ~self._done).nonzero()[0])
        if self._calls is not None:
            ends, self._at = self._calls.go_on(ends, self._at, state)
        if self._mode is AutoresetMode.SAME_STEP:
            self._restart_at_once(state)
            block.ends.append(ends)
            state.forget((ends,))
            return
        state.stopped = (ends,)
        if self._mode is not None and len(done):
            state.restart = done

    def _restart_at_once(self, state: EnvState) -> None:
        """SAME_STEP: environments that are done show the first observation of their next episode."""
        recording, block = self._recording, self._block
        heard = self._heard()
        if not len(heard):
            return
        row, self._at = self._at, self._at + len(heard)
        block.observations.put_many(row, self._observations, len(heard), heard)
        block.kinds[row : self._at] = RESET_ROW
        recording.begun(heard)
        begins = state.start(recording.session.take_numbers(len(heard)), heard)
        block.numbers[row : self._at] = begins.numbers
        block.begins.append(begins)
        if self._calls is not None:
            ending = np.flatnonzero(self._calls.resets(heard, np.arange(row, self._at)))
            block.ends.append(state.ends(ending))
            state.mute(ending)
