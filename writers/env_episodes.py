"""Which episode each of several environments is in, as arrays.

Stands between a recorder of several environments and its session. A state is never changed: each call makes
the next one, which counts as soon as it takes the place of the other. So an interrupt, wherever it comes,
leaves either the state before a call or the state after it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..store.block_buffer import NOBODY
from ..store.record_columns import Begins, Ends
from ..store.records import EpisodeFacts


@dataclass(slots=True)
class EnvState:
    """The episodes in hand; every array has one entry for each environment.

    Attributes:
        tick: counts the calls that brought a transition.
        numbers: the episode in hand, int64; NOBODY if there is none.
        running: the same, but NOBODY unless its next transition is to be recorded.
        begun: the tick at which it began: an episode's length is the ticks since then.
        started_at: microseconds since 1970, UTC.
        returns: sum of the rewards in order of time, float64, shape (n,) or (n, k).
        terminated, truncated: the flags that the last transition set.
        stopped: episodes that take no more transitions; the last of their values may still come.
        restart: environments that reset themselves at the next step, or None.
        facts: by episode number: seed, options, metadata, where there are any.
    """

    tick: int
    numbers: np.ndarray
    running: np.ndarray
    begun: np.ndarray
    started_at: np.ndarray
    returns: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    stopped: tuple[Ends, ...]
    restart: np.ndarray | None
    facts: dict[int, EpisodeFacts]

    @staticmethod
    def empty(num_envs: int, reward_shape: Sequence[int]) -> EnvState:
        """No episode anywhere."""
        nobody = np.full(num_envs, NOBODY, np.int64)
        nothing = np.zeros(num_envs, np.int64)
        unset = np.zeros(num_envs, bool)
        returns = np.zeros((num_envs, *reward_shape))
        return EnvState(0, nobody, nobody, nothing, nothing, returns, unset, unset, (), None, {})

    def stepped(self, returns: np.ndarray) -> EnvState:
        """After a transition of every environment, of which nothing else is known yet."""
        unset = np.zeros(len(self.numbers), bool)
        return EnvState(
            self.tick + 1,
            self.numbers,
            self.running,
            self.begun,
            self.started_at,
            returns,
            unset,
            unset,
            self.stopped,
            self.restart,
            self.facts,
        )

    def held_back(self, envs: np.ndarray) -> EnvState:
        """The ticks of these environments do not count; `envs` is a mask."""
        return replace(self, begun=self.begun + envs)

    def started(
        self, first: int, row: int, envs: np.ndarray, facts: Mapping[int, EpisodeFacts] | None = None
    ) -> tuple[EnvState, Begins]:
        """New episodes begin in the environments `envs`, numbered from `first`, with rows from `row` on.

        Args:
            facts: by environment.
        """
        numbers = np.arange(first, first + len(envs))
        now = _now()
        known = {} if not facts else {int(n): facts[e] for n, e in zip(numbers, envs.tolist(), strict=True)}
        state = EnvState(
            self.tick,
            _put(self.numbers, envs, numbers),
            _put(self.running, envs, numbers),
            _put(self.begun, envs, self.tick),
            _put(self.started_at, envs, now),
            _put(self.returns, envs, 0.0),
            self.terminated,
            self.truncated,
            self.stopped,
            self.restart,
            {**self.facts, **known} if known else self.facts,
        )
        return state, Begins(row, numbers, envs, now, known)

    def muted(self, envs: np.ndarray) -> EnvState:
        """No further transition of these environments is recorded."""
        return replace(self, running=_put(self.running, envs, NOBODY))

    def without(self, envs: np.ndarray) -> EnvState:
        """These environments have no episode in hand any more."""
        nobody = _put(self.numbers, envs, NOBODY)
        return replace(self, numbers=nobody, running=_put(self.running, envs, NOBODY))

    def ends(self, envs: np.ndarray) -> Ends:
        """The episodes in hand of these environments, as they are now."""
        numbers = self.numbers[envs]
        known = {}
        if self.facts:
            known = {number: self.facts[number] for number in numbers.tolist() if number in self.facts}
        return Ends(
            row=-1,
            numbers=numbers,
            env_index=envs,
            started_at=self.started_at[envs],
            lengths=self.tick - self.begun[envs],
            returns=self.returns[envs],
            terminated=self.terminated[envs],
            truncated=self.truncated[envs],
            ended_at=_now(),
            facts=known,
        )


def _put(values: np.ndarray, envs: np.ndarray, new: object) -> np.ndarray:
    changed = values.copy()
    changed[envs] = new
    return changed


def _now() -> int:
    return time.time_ns() // 1000
