"""`PlainSteps`: the fast path of a vector recorder for steps without infos, callbacks or logged values.

Where sub-environments reset themselves at the next step, such a step is five copies and two sums. Which
episodes began and ended is worked out later, for many steps at once: when rows go to the journal, or when a
caller asks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ...store.common.foreign_arrays import to_numpy
from ...store.journal.episodes import Begins, Ends
from ...store.schema import RESET_ROW
from ..rows.vector_buffer import VectorBuffer
from .env_episodes import EnvState
from .vector_values import flags

_SET = b"\x01"


class PlainSteps:
    """Steps in one block, from the row `base` on; those after the block's count are pending.

    One thread adds steps, another may resolve them meanwhile.

    Args:
        block: where the rows go.
        state: before the first of them.

    Attributes:
        stop: the row after the last step.
    """

    def __init__(self, block: VectorBuffer, state: EnvState) -> None:
        self.block = block
        self.stop = self._base = block.count
        self._count = len(state.numbers)
        self._moments: list[int] = []
        self._returns = state.returns.copy()
        self._resets = np.zeros(self._count, bool)
        if state.restart is not None:
            self._resets[state.restart] = True
        self._any_reset = state.restart is not None

    def add(self, result: tuple[Any, ...]) -> None:
        """Add the outcome of a step; its actions are in the rows already.

        Raises:
            SpaceMismatchError: a value does not fit; nothing was added.
        """
        observations, rewards, terminations, truncations, _ = result
        block, row, count = self.block, self.stop, self._count
        rows = slice(row, row + count)
        terminated = flags(terminations, (count,), "terminations")
        truncated = flags(truncations, (count,), "truncations")
        block.observations.put_many(row, to_numpy(observations), count)
        block.rewards.put_many(row, to_numpy(rewards), count)
        block.terminated[rows] = terminated
        block.truncated[rows] = truncated
        with np.errstate(over="ignore", invalid="ignore"):  # inf and -inf may come together
            returns = np.add(self._returns, block.reward_values[rows], out=block.returns[rows])
        done = terminated | truncated
        if self._any_reset:
            # A reset is no transition, whatever came with it.
            block.kinds[rows][self._resets] = RESET_ROW
            returns[self._resets] = 0.0
            done = done > self._resets
        self._moments.append(time.time_ns() // 1000)
        self._returns, self._resets, self._any_reset = returns, done, _SET in done.tobytes()
        self.stop = row + count

    def resolve(self, state: EnvState, first: int) -> ResolvedSteps | None:
        """Return the outcome of pending steps; None if there is none.

        Args:
            state: before them.
            first: the number of the next episode.
        """
        start, stop = self.block.count, self.stop
        return None if start >= stop else ResolvedSteps(self, state, first, start, stop)

    def moments(self, start: int, stop: int) -> np.ndarray:
        """When the steps of these rows were taken, microseconds since 1970, UTC."""
        steps = slice((start - self._base) // self._count, (stop - self._base) // self._count)
        return np.array(self._moments[steps], np.int64)


class ResolvedSteps:
    """The sum of some steps.

    Attributes:
        stop: the row after them.
        state: after them.
        begins: the episodes that began.
        finished: the episodes that ended, and of which nothing more can come.
        ended: the episodes that ended with the last step.
        transitions, episodes: how many transitions there were, and how many episodes ended.
    """

    def __init__(self, steps: PlainSteps, before: EnvState, first: int, start: int, stop: int) -> None:
        block, count = steps.block, len(before.numbers)
        self.stop = stop
        self._ticks = (stop - start) // count
        self._before, self._first = before, first
        self._moments = steps.moments(start, stop)
        resets = (block.kinds[start:stop] == RESET_ROW).nonzero()[0]
        self._begun_step, begun_env = np.divmod(resets, count)
        numbers = self._numbers(resets, count)
        block.numbers[start:stop] = numbers
        self.begins = Begins(
            np.arange(first, first + len(resets)), begun_env, self._moments[self._begun_step], {}
        )
        flagged = block.terminated[start:stop] | block.truncated[start:stop]
        flagged[resets] = False
        done = flagged.nonzero()[0]
        last = int(np.searchsorted(done, (self._ticks - 1) * count))
        self.finished = self._ends(block, start, done[:last], numbers, count)
        self.ended = self._ends(block, start, done[last:], numbers, count)
        self.transitions, self.episodes = len(flagged) - len(resets), len(done)
        self.state = self._after(block, numbers[-count:], stop - count, count)

    def _numbers(self, resets: np.ndarray, count: int) -> np.ndarray:
        """Return the episode of each row: numbers grow, so each holds until a greater one comes."""
        numbers = np.zeros((self._ticks, count), np.int64)
        numbers[0] = self._before.numbers
        flat = numbers.reshape(-1)
        flat[resets] = np.arange(self._first, self._first + len(resets))
        return np.maximum.accumulate(numbers, axis=0).reshape(-1)

    def _table(self, numbers: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Tick and moment at which episodes began, shape (n, 2)."""
        old = np.stack([self._before.begun[envs], self._before.started_at[envs]], 1)
        fresh = numbers >= self._first
        places = numbers[fresh] - self._first
        old[fresh, 0] = self._before.tick + 1 + self._begun_step[places]
        old[fresh, 1] = self.begins.started_at[places]
        return old

    def _ends(
        self, block: VectorBuffer, start: int, done: np.ndarray, numbers: np.ndarray, count: int
    ) -> Ends:
        step, envs = np.divmod(done, count)
        own = numbers[done]
        begun = self._table(own, envs)
        lengths = self._before.tick + 1 + step - begun[:, 0]
        facts = self._before.facts
        known = {number: facts[number] for number in own.tolist() if number in facts} if facts else {}
        rows = done + start
        return Ends(
            np.stack([own, envs, lengths, begun[:, 1]], 1),
            block.returns[rows],
            block.terminated[rows],
            block.truncated[rows],
            self._moments[step],
            known,
        )

    def _after(self, block: VectorBuffer, numbers: np.ndarray, row: int, count: int) -> EnvState:
        state = self._before.copy()
        state.tick += self._ticks
        state.set_all(numbers, self._table(numbers, np.arange(count)))
        state.returns = block.returns[row : row + count].copy()
        envs = self.ended.env_index
        state.terminated, state.truncated = np.zeros((2, count), bool)
        state.terminated[envs], state.truncated[envs] = self.ended.terminated, self.ended.truncated
        state.restart = envs if len(envs) else None
        state.stopped = (self.ended,) if len(envs) else ()
        state.forget((*self._before.stopped, self.finished))
        return state
