"""The row buffer: where `reset` and `step` put their values, one preallocated row each.

It stands between a recorder and the journal. Adding a step costs a few array assignments; turning rows into
Arrow columns happens once per batch. A row counts only when everything of it was put, so a value that does
not fit leaves the buffer as it was. One thread adds rows; another may take finished rows meanwhile, since
a row is never touched again once `count` includes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.common.arguments import as_flag
from ...store.dynamic.column_groups import ColumnSet, DynamicRows
from ...store.dynamic.logical_types import field
from ...store.errors import InvalidArgumentError
from ...store.journal.episodes import AgentRecord, EpisodeFacts
from ...store.names import ACTION, OBSERVATION, REWARD, TERMINATED, TRUNCATED
from ...store.schema import LATE_ROW, RESET_ROW, STEP_ROW, StepSchema, StoreHandle
from ...store.spaces.arrow import flat_array
from ...store.spaces.fixed import FixedBuffer
from ..session.row_source import ArrivedRows

_CHUNK_BYTES = 4 << 20
_MOST_ROWS = 4096
_FEWEST_ROWS = 16
NOT_PLAIN = (None,) * 7


@dataclass(slots=True)
class LiveEpisode:
    """An episode that is being recorded, with its state so far.

    Attributes:
        discarded: whether it is being given up.
        continued: transitions of the episode of the store that it continues.
    """

    number: int
    env_index: int | None
    started_at: int
    facts: EpisodeFacts
    length: int = 0
    episode_return: Any = 0.0
    terminated: bool = False
    truncated: bool = False
    discarded: bool = False
    continued: int = 0

    @property
    def transitions(self) -> int:
        """How many transitions it has, of all agents."""
        return self.length

    def agent_records(self) -> tuple[AgentRecord, ...]:
        """Return what is known of its agents, where it has many."""
        return ()


class ArrivalBuffer:
    """Rows of one run that are not in the journal yet.

    Args:
        schema: the store's step schema.
        capacity: how many rows at the most.
        fewest: there is room for so many, whatever they weigh.

    Attributes:
        flushed: how many of its rows are in the journal.
        observed: how many of its rows an observer has taken.
        number: the episode of its last row; -1 where there is none.
    """

    def __init__(self, schema: StepSchema, capacity: int, fewest: int = _FEWEST_ROWS) -> None:
        self._row_bytes = schema.journal_row_bytes
        self.capacity = max(_FEWEST_ROWS, fewest, min(capacity, _CHUNK_BYTES // self._row_bytes))
        self.count = 0
        self.flushed = self.observed = 0
        self._schema = schema
        self._observations = schema.observation.row_buffer(self.capacity)
        self._actions = schema.action.row_buffer(self.capacity)
        self._rewards = schema.reward.buffer(self.capacity)
        self._put_observation = self._observations.put
        self._put_reward = self._rewards.put
        assert isinstance(self._rewards, FixedBuffer)
        self._reward_values = self._rewards.array
        self._reward_numbers = self._reward_values.data
        #: Copies an action into a row. Done for the next row, before the environment gets to see the action;
        #: raises SpaceMismatchError if it does not fit the space.
        self.put_action = self._actions.put
        self._terminated = np.zeros(self.capacity, bool)
        self._truncated = np.zeros(self.capacity, bool)
        self._kinds = np.full(self.capacity, STEP_ROW, np.int16)
        self._infos, self._policies, self._extras = DynamicRows(), DynamicRows(), DynamicRows()
        #: Puts an info into a row, which `drop_uncounted` takes back.
        self.put_info: Callable[[int, Mapping], None] = self._infos.put
        self._scalar_reward = not schema.reward_shape
        #: Rows, dtype and shape of actions and of observations, and the rewards, for callers that put small
        #: arrays and a float themselves; None for what only `put_action` and `add_step` take.
        self.plain: tuple[Any, ...] = NOT_PLAIN
        if self._scalar_reward:
            self.plain = (*self._actions.plain, *self._observations.plain, self._reward_numbers)
        self.number = -1
        self._starts: list[tuple[int, int]] = []

    @property
    def next_capacity(self) -> int:
        """How many rows the next buffer should take, after what the rows so far weighed."""
        return max(_FEWEST_ROWS, min(_MOST_ROWS, _CHUNK_BYTES // self._row_bytes))

    def add_reset(
        self, episode: LiveEpisode, observation: Any, info: Mapping | None, extra: Mapping | None
    ) -> None:
        """Add row 0 of an episode.

        Raises:
            SpaceMismatchError: the observation does not fit the space, or info or extra is no mapping;
                nothing was added.
        """
        row = self.count
        self._put_observation(row, observation)
        try:
            self._kinds[row] = RESET_ROW
            self._put_dynamic(row, info, None, extra)
            self._starts.append((row, episode.number))
            self.number = episode.number
            self.count = row + 1
        except BaseException:
            self._clear(row)
            raise

    def add_step(
        self,
        episode: LiveEpisode,
        reward: Any,
        observation: Any,
        terminated: Any,
        truncated: Any,
        info: Mapping | None,
        policy: Mapping | None = None,
        extra: Mapping | None = None,
    ) -> None:
        """Add what the step with the action put before brought; arrays are copied here and now.

        Raises:
            SpaceMismatchError: a value does not fit its space, or a mapping is none; nothing was added.
        """
        if terminated is not False:
            terminated = as_flag("terminated", terminated)
        if truncated is not False:
            truncated = as_flag("truncated", truncated)
        row = self.count
        self._put_observation(row, observation)
        if reward.__class__ is float and self._scalar_reward:
            self._reward_numbers[row] = reward
        else:
            self._put_reward(row, reward)
            reward = self._reward_numbers[row] if self._scalar_reward else self._reward_values[row].tolist()
        length = episode.length + 1
        if self._scalar_reward:
            total = episode.episode_return + reward
        else:
            pairs = zip(episode.episode_return, reward, strict=True)
            total = [before + part for before, part in pairs]
        try:
            if info or policy or extra:
                self._put_dynamic(row, info, policy, extra)
            if terminated:
                self._terminated[row] = True
            if truncated:
                self._truncated[row] = True
            if episode.number != self.number:
                self._starts.append((row, episode.number))
                self.number = episode.number
            # One assignment, which no signal interrupts: a row counts with its tally.
            if terminated or truncated:
                live, flags = episode, (terminated or episode.terminated, truncated or episode.truncated)
                state = row + 1, length, total, *flags
                self.count, live.length, live.episode_return, live.terminated, live.truncated = state
            else:
                self.count, episode.length, episode.episode_return = row + 1, length, total
        except BaseException:
            self._clear(row)
            raise

    def add_late(self, episode: LiveEpisode, policy: Mapping) -> None:
        """Add what was logged about the last observation, after the last step.

        Raises:
            SpaceMismatchError: it is no mapping; nothing was added.
        """
        row = self.count
        try:
            self._kinds[row] = LATE_ROW
            self._policies.put(row, policy)
            self._starts.append((row, episode.number))
            self.number = episode.number
            self.count = row + 1
        except BaseException:
            self._clear(row)
            raise

    def _put_dynamic(
        self, row: int, info: Mapping | None, policy: Mapping | None, extra: Mapping | None
    ) -> None:
        if info:
            self.put_info(row, info)
        for rows, mapping in ((self._policies, policy), (self._extras, extra)):
            if mapping:
                rows.put(row, mapping)

    def choose_infos(self, chosen: Callable[[Mapping], Mapping] | None) -> None:
        """Store of each info what this function returns; all of it if None."""
        put = self._infos.put
        self.put_info = put if chosen is None else lambda row, info: put(row, chosen(info))

    def drop_uncounted(self, row: int) -> None:
        """Undo what an interrupted call put into a row, unless the row counts."""
        if row == self.count:
            self._clear(row)

    def _clear(self, row: int) -> None:
        """Undo what was put into a row that does not count."""
        self._terminated[row] = self._truncated[row] = False
        self._kinds[row] = STEP_ROW
        for rows in (self._infos, self._policies, self._extras):
            rows.drop(row)
        while self._starts and self._starts[-1][0] >= row:
            self._starts.pop()
        self.number = -1

    def first_of(self, number: int) -> int | None:
        """Return the first row of an episode here, None if it has none."""
        return next((row for row, started in self._starts if started == number), None)

    def arrived(self, ended: Sequence[tuple[int, bool]]) -> ArrivedRows:
        """Return the rows that no observer has taken, and count them as taken."""
        start, self.observed = self.observed, self.count
        stop = self.observed
        rows = slice(start, stop)
        return ArrivedRows(
            self._numbers(start, stop),
            self._kinds[rows],
            {
                OBSERVATION: self._observations.values(start, stop),
                ACTION: self._actions.values(start, stop),
                REWARD: self._reward_values[rows],
                TERMINATED: self._terminated[rows],
                TRUNCATED: self._truncated[rows],
            },
            0,
            {},
            ended,
        )

    def numbers(self, start: int, stop: int) -> set[int]:
        """Return the episodes that rows `[start, stop)` belong to."""
        return set(self._numbers(start, stop).tolist())

    def batch(self, start: int, stop: int, columns: Sequence[ColumnSet]) -> pa.RecordBatch:
        """Rows `[start, stop)` as one journal batch.

        Args:
            start, stop: rows that are complete (`stop <= count`).
            columns: the run's column sets of info, policy and extra, in this order, or the first of them.

        Returns:
            A batch that shares memory with this buffer.
        """
        row_kinds = self._kinds[start:stop]
        stepped = _mask(row_kinds == STEP_ROW)
        observed = _mask(row_kinds != LATE_ROW)
        arrays: list[pa.Array] = [pa.array(self._numbers(start, stop)), pa.array(row_kinds)]
        arrays += self._agent_arrays(start, stop)
        arrays += self._observations.arrays(start, stop, observed)
        arrays += self._actions.arrays(start, stop, stepped)
        arrays += self._rewards.arrays(start, stop, stepped)
        flags = self._terminated, self._truncated
        arrays += [flat_array(each[start:stop], pa.bool_(), stepped) for each in flags]
        groups = zip(columns, (self._infos, self._policies, self._extras), strict=False)
        dynamic = [column_set.columns(rows, start, stop) for column_set, rows in groups]
        batch = with_dynamic_columns(pa.record_batch(arrays, self._schema.journal), dynamic)
        if stop > start:
            self._row_bytes = max(self._row_bytes, batch.nbytes // (stop - start))
        return batch

    def _agent_arrays(self, start: int, stop: int) -> list[pa.Array]:
        """Return the columns that say whose rows these are, where an episode has many agents."""
        return []

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        if self._starts and start >= self._starts[-1][0]:
            return np.full(stop - start, self._starts[-1][1], np.int64)
        rows = np.array([row for row, _ in self._starts], np.int64)
        numbers = np.array([number for _, number in self._starts], np.int64)
        return numbers[np.searchsorted(rows, np.arange(start, stop), side="right") - 1]


def _mask(valid: np.ndarray) -> np.ndarray | None:
    return None if valid.all() else valid


def with_dynamic_columns(
    batch: pa.RecordBatch, groups: Sequence[Mapping[str, tuple[str, pa.Array]]]
) -> pa.RecordBatch:
    """Append dynamic columns (`{column: (kind, array)}` per group) to a journal batch."""
    columns = [(field(name, kind), array) for group in groups for name, (kind, array) in group.items()]
    if not columns:
        return batch
    schema = batch.schema
    for column, _ in columns:
        schema = schema.append(column)
    return pa.record_batch([*batch.columns, *(array for _, array in columns)], schema)


def check_agents(store: StoreHandle, *, many: bool) -> None:
    """Refuse a store for several agents to a source for one, and the other way round.

    Raises:
        InvalidArgumentError: the store is of the other kind.
    """
    if many and not store.schema.groups:
        raise InvalidArgumentError(
            f"{store.layout.root} is a store for one agent; the environment has several. Create a store for "
            "it with episodelake.create(path, env)."
        )
    if store.schema.groups and not many:
        agents = ", ".join(agent for group in store.schema.groups for agent in group.agents)
        raise InvalidArgumentError(
            f"{store.layout.root} is a store for several agents ({agents}). Record a PettingZoo environment "
            "into it with EpisodeStore.record, or write with EpisodeStore.team_writer."
        )
