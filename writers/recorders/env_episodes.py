"""Which episode each of several environments is in, as arrays.

Stands between a recorder of several environments and its session. Every call makes a copy of the state,
changes that, and puts it in the place of the other once its rows count. So an interrupt, wherever it comes,
leaves either the state before a call or the state after it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from ...store.common.foreign_arrays import to_numpy
from ...store.dynamic.values import load_json
from ...store.journal.episodes import NO_FACTS, Begins, Ends, EpisodeFacts, end_reason_of
from ..rows.block_rows import BlockRows
from ..rows.vector_buffer import NO_EPISODE
from ..session.session import RunSession
from .callbacks import EpisodeCallback, EpisodeSummary, EpisodeValues, apply_episode_callback
from .vector_values import LoggedValues

# The columns of a state's table. The table of `Ends` has the environment and the length in the places of the
# second and the third.
_NUMBER, _RUNNING, _BEGUN, _STARTED = range(4)
_NO_FACTS: Mapping[int, EpisodeFacts] = {}


@dataclass(slots=True)
class EnvState:
    """The current episodes; every array has one entry for each environment.

    Attributes:
        tick: counts the calls that brought a transition.
        table: int64, shape (num_envs, 4): see the properties below. One array, since it is copied often.
        returns: sum of the rewards in order of time, float64, shape (num_envs,) or (num_envs, k).
        terminated, truncated: the flags that the last transition set.
        stopped: episodes that take no more transitions; the last of their values may still come.
        restart: environments that reset themselves at the next step, or None; with autoreset disabled those
            that wait for a reset.
        facts: by episode number: seed, options, metadata, where there are any.
        whole: every environment is running, or about to restart.
        unset: no flag at all.
        owned: whether the table is this state's own.
    """

    tick: int
    table: np.ndarray
    returns: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    stopped: tuple[Ends, ...]
    restart: np.ndarray | None
    facts: Mapping[int, EpisodeFacts]
    whole: bool
    unset: np.ndarray
    owned: bool = False

    @staticmethod
    def empty(num_envs: int, reward_shape: Sequence[int]) -> EnvState:
        """No episode anywhere."""
        table = np.zeros((num_envs, 4), np.int64)
        table[:, [_NUMBER, _RUNNING]] = NO_EPISODE
        unset = np.zeros(num_envs, bool)
        returns = np.zeros((num_envs, *reward_shape))
        return EnvState(0, table, returns, unset, unset, (), None, _NO_FACTS, False, unset)

    @property
    def numbers(self) -> np.ndarray:
        """The current episode; NO_EPISODE if there is none."""
        return self.table[:, _NUMBER]

    @property
    def running(self) -> np.ndarray:
        """The same, but NO_EPISODE where the environment goes on and nothing of it is recorded."""
        return self.table[:, _RUNNING]

    @property
    def begun(self) -> np.ndarray:
        """The tick at which the episode began: its length is the ticks since then."""
        return self.table[:, _BEGUN]

    @property
    def started_at(self) -> np.ndarray:
        """When the episode began: microseconds since 1970, UTC."""
        return self.table[:, _STARTED]

    def stepped(self) -> EnvState:
        """After a call that brought transitions: the ticks are one more, all else is still to be changed."""
        return EnvState(
            self.tick + 1,
            self.table,
            self.returns,
            self.unset,
            self.unset,
            self.stopped,
            self.restart,
            self.facts,
            self.whole,
            self.unset,
        )

    def copy(self) -> EnvState:
        """Return a copy that may be changed."""
        copied = replace(self, table=self.table.copy(), returns=self.returns.copy())
        copied.owned = True
        return copied

    def own(self) -> np.ndarray:
        """Return the table, to be changed: a copy, if it is still that of the state before."""
        if not self.owned:
            self.table, self.owned = self.table.copy(), True
        return self.table

    def set_all(self, numbers: np.ndarray, begun: np.ndarray) -> None:
        """Set the current episodes, which began at these ticks and moments, shape (num_envs, 2)."""
        table = self.own()
        table[:, _NUMBER] = table[:, _RUNNING] = numbers
        table[:, [_BEGUN, _STARTED]] = begun

    def hold_back(self, envs: np.ndarray) -> None:
        """Leave the last tick of these environments uncounted; `envs` is a mask."""
        self.own()[:, _BEGUN] += envs

    def start(self, first: int, envs: np.ndarray, facts: Mapping[int, EpisodeFacts] | None = None) -> Begins:
        """Begin episodes in the environments `envs`, numbered from `first`.

        Args:
            facts: by environment.
        """
        numbers = np.arange(first, first + len(envs))
        now = _now()
        fresh = np.empty((len(envs), 4), np.int64)
        fresh[:] = 0, 0, self.tick, now
        fresh[:, _NUMBER] = fresh[:, _RUNNING] = numbers
        self.own()[envs] = fresh
        self.returns[envs] = 0.0
        known: Mapping[int, EpisodeFacts] = _NO_FACTS
        if facts:
            known = {n: facts[env] for n, env in zip(numbers.tolist(), envs.tolist(), strict=True)}
            self.facts = {**self.facts, **known}
        return Begins(numbers, envs, fresh[:, _STARTED], known)

    def mute(self, envs: np.ndarray) -> None:
        """Record no further transition of these environments, although they go on."""
        if len(envs):
            self.own()[envs, _RUNNING] = NO_EPISODE
            self.whole = False

    def leave(self, envs: np.ndarray) -> None:
        """Mark these environments as without an episode."""
        if len(envs):
            table = self.own()
            table[envs, _NUMBER] = table[envs, _RUNNING] = NO_EPISODE
            self.whole = False

    def finish(self) -> None:
        """Nothing more comes of the episodes that were stopped."""
        for ends in self.stopped:
            self.own()[ends.env_index, _RUNNING] = NO_EPISODE
        self.forget(self.stopped)
        self.stopped = ()

    def open_envs(self, envs: np.ndarray) -> np.ndarray:
        """Return those of the environments whose episode still takes transitions."""
        chosen = envs[self.running[envs] != NO_EPISODE]
        for ends in self.stopped:
            chosen = np.setdiff1d(chosen, ends.env_index)
        # Of a step that was recorded in parts, those that ended with the first part may be finished already.
        return chosen if self.restart is None else np.setdiff1d(chosen, self.restart)

    def forget(self, ends: Sequence[Ends]) -> None:
        """Drop what is known of episodes that are gone."""
        if self.facts:
            gone = {number for each in ends for number in each.numbers.tolist()}
            self.facts = {number: facts for number, facts in self.facts.items() if number not in gone}

    def ends(self, envs: np.ndarray) -> Ends:
        """Return the current episodes of these environments, as they are now."""
        table = self.table.take(envs, 0)
        table[:, _BEGUN] = self.tick - table[:, _BEGUN]
        table[:, _RUNNING] = envs
        known: Mapping[int, EpisodeFacts] = _NO_FACTS
        if self.facts:
            numbers = table[:, _NUMBER].tolist()
            known = {number: self.facts[number] for number in numbers if number in self.facts}
        flags = self.terminated[envs], self.truncated[envs]
        moments = np.full(len(envs), _now())
        return Ends(table, self.returns[envs], *flags, moments, known)


def _now() -> int:
    return time.time_ns() // 1000


class GatheredEnds:
    """Episodes that have ended, kept until somebody counts them; nothing is kept at first."""

    def __init__(self) -> None:
        self._wanted = False
        self._ends: deque[Ends] = deque()

    def start(self, *, wanted: bool) -> None:
        """Forget what there is, and keep what comes from now on, or nothing."""
        self._wanted = wanted
        self._ends.clear()

    def add(self, *ends: Ends) -> None:
        """Keep these, if they are wanted; any thread may call it."""
        if self._wanted:
            self._ends.extend(each for each in ends if len(each.table))

    def take(self) -> Iterator[Ends]:
        """Yield those that were kept, in order; they are kept no longer."""
        while self._ends:
            yield self._ends.popleft()


class EpisodeCalls:
    """Calls of an episode callback for several environments, and summaries of their episodes.

    Args:
        session: the run.
        callback: the user's; None for none.

    Attributes:
        wanted: whether there is a callback.
    """

    def __init__(self, session: RunSession[BlockRows], callback: EpisodeCallback | None) -> None:
        self._session = session
        self._callback = callback
        self.wanted = callback is not None
        self._error: BaseException | None = None

    def add_metadata(self, ends: Ends, stop: int | None) -> None:
        """Let the callback add metadata to episodes that have just ended.

        The episodes are recorded even if it raises: its error is kept for `raise_late`.

        Args:
            stop: see `EnvRecording.noted`.
        """
        if self._callback is None:
            return
        known = dict(ends.facts)
        for index, number in enumerate(ends.numbers.tolist()):
            if ends.lengths[index]:
                facts = known.setdefault(number, NO_FACTS)
                try:
                    values = self._values(number, int(ends.lengths[index]) + 1, stop)
                    summary = replace(self._summary(ends, index, facts), values=values)
                    known[number] = facts.with_metadata(apply_episode_callback(self._callback, summary))
                except BaseException as error:
                    self._error = self._error or error
        ends.facts = known

    def raise_late(self) -> None:
        """Raise what the callback raised since the last call."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def summaries(self, ends: Ends) -> list[EpisodeSummary]:
        """Return the summaries of episodes that have ended, without those that have no step."""
        return [
            self._summary(ends, index, ends.facts.get(number, NO_FACTS))
            for index, number in enumerate(ends.numbers.tolist())
            if ends.lengths[index]
        ]

    def _values(self, number: int, rows: int, stop: int | None) -> EpisodeValues:
        source, columns = self._session.rows, self._session.columns[:1]
        stop = source.current.count if stop is None else stop
        return EpisodeValues(
            self._session.store.schema,
            lambda infos: source.recorded(number, rows, stop, columns if infos else ()),
            rows,
        )

    def _summary(self, ends: Ends, index: int, facts: EpisodeFacts) -> EpisodeSummary:
        terminated, truncated = bool(ends.terminated[index]), bool(ends.truncated[index])
        number = int(ends.numbers[index])
        return EpisodeSummary(
            id=self._session.episode_id(number),
            number=number,
            length=int(ends.lengths[index]),
            episode_return=ends.returns[index].tolist(),
            terminated=terminated,
            truncated=truncated,
            end_reason=end_reason_of(terminated, truncated, "cut"),
            seed=facts.seed,
            options=None if facts.options is None else load_json(facts.options, "the journal"),
            metadata=dict(facts.metadata),
            env_index=int(ends.env_index[index]),
        )


class StoredEnds:
    """Episodes that ended and take no more values, while their environments wait for the next ones."""

    def __init__(self, num_envs: int) -> None:
        self._numbers = np.full(num_envs, NO_EPISODE)
        self._kept: dict[tuple[Any, ...], np.ndarray] = {}

    def add(self, envs: np.ndarray, state: EnvState, logged: LoggedValues) -> None:
        """Note the environments whose episodes end now, with what was logged for their last observations."""
        self._numbers[envs] = state.numbers[envs]
        for kept in self._kept.values():
            kept[envs] = False
        for path, (_, mask) in logged.items():
            kept = self._kept.setdefault(path, np.zeros(len(self._numbers), bool))
            kept[envs] = True if mask is None else mask[envs]
        self._kept = {path: kept for path, kept in self._kept.items() if kept.any()}

    def forget(self, envs: np.ndarray) -> None:
        """Drop what is known of environments that were reset since, whether or not they are recorded."""
        self._numbers[envs] = NO_EPISODE

    def without_row(self, state: EnvState, paths: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Return for which environments a value of these keys has no row: bool, shape (num_envs,).

        Where the last observation has a value of a key, a further one is no loss: a loop may log it twice.
        Neither is one of an episode that was given up, or of an environment that is not recorded.
        """
        stored = (self._numbers == state.numbers) & (state.numbers != NO_EPISODE)
        lost = np.zeros(len(stored), bool)
        for path in paths:
            lost |= stored & ~self._kept[path] if path in self._kept else stored
        return lost


class InFlight:
    """Environments in flight.

    Args:
        pool: the pool.
        action_space: the action space of one environment.
        num_envs: how many environments the pool has.

    Attributes:
        mask: bool, shape (num_envs,): which environments are in flight.
        batch_size: how many environments one `recv` waits for; None if the pool does not say.
    """

    def __init__(self, pool: Any, action_space: gymnasium.Space, num_envs: int) -> None:
        self._pool = pool
        self._action_space = action_space
        self.mask = np.zeros(num_envs, bool)
        self.batch_size = _batch_size(pool, num_envs)

    @property
    def missing(self) -> int:
        """How many more environments must be sent something before `recv` can return."""
        return max(0, (self.batch_size or 0) - int(np.count_nonzero(self.mask)))

    def landed(self, infos: Mapping[str, Any]) -> None:
        """Take out the environments of a batch; one without ids is refused where it is recorded."""
        if "env_id" in infos:
            self.mask[np.asarray(to_numpy(infos["env_id"]), np.int64)] = False

    def drain(self) -> None:
        """Receive and drop all that is in flight.

        EnvPool hands out full batches only, and ends the process where environments in flight are reset. So
        a last batch that is not full is filled with random steps of environments that have come back.
        """
        size = self.batch_size
        rest = int(np.count_nonzero(self.mask)) % size if size else 0
        if size and rest:
            idle = np.flatnonzero(~self.mask)[: size - rest]
            self._pool.send(batch_space(self._action_space, len(idle)).sample(), idle.astype(np.int32))
            self.mask[idle] = True
        while self.mask.any():
            self.landed(self._pool.recv()[-1])


def _batch_size(pool: Any, num_envs: int) -> int | None:
    config = getattr(pool, "config", None)
    size = config.get("batch_size") if isinstance(config, Mapping) else None
    size = getattr(pool, "batch_size", None) if size is None else size
    if not isinstance(size, int | np.integer):
        return None
    return min(int(size), num_envs) if size > 0 else num_envs
