"""From the rows of one recorder, or of the store, to the ring: which row follows which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from ..plugin import map_leaves, warn_caller
from ..plugin.columns import ACTION, OBSERVATION, REWARD, TERMINATED, TRUNCATED
from ..readers.columns.step_arrays import ColumnSource, StepArrays, read_arrays
from ..readers.columns.tree import Tree
from ..readers.loading.config import left_out
from ..store.schema import LATE_ROW, RESET_ROW, STEP_ROW
from ..writers.rows.vector_buffer import NO_EPISODE
from ..writers.session.row_source import ArrivedRows, ObservableRows
from .ring import NO_ROW, Ring

_labels = count(1)


@dataclass
class _OpenEpisode:
    """An episode that has not ended: its environment, its first and newest rows, and the row before it."""

    label: int
    env: int
    first: int
    before: int
    newest: int


class RowFeed:
    """Brings rows into a ring, in order of arrival.

    Args:
        ring: where they go.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._open: dict[int, _OpenEpisode] = {}
        # The newest row of each environment, of episodes that were not discarded.
        self._newest: dict[int, int] = {}

    def take(self, arrived: ArrivedRows) -> None:
        """Add rows, and note which episodes ended."""
        rows = np.flatnonzero((arrived.kinds != LATE_ROW) & (arrived.numbers != NO_EPISODE))
        at_once = self._ring.slots // 8
        for start in range(0, len(rows), at_once):
            self._add(arrived, rows[start : start + at_once])
        for number, discarded in arrived.ended:
            self._end(number, discarded)

    def _add(self, arrived: ArrivedRows, rows: np.ndarray) -> None:
        ring, values = self._ring, arrived.values
        stepped = arrived.kinds[rows] == STEP_ROW
        slots = ring.reserve(len(rows), int(np.count_nonzero(stepped)))
        new = np.arange(ring.rows - len(rows), ring.rows)
        previous = self._previous(arrived.numbers[rows], new, slots, arrived.envs)
        at = arrived.start + rows
        _copy(ring.columns[OBSERVATION], slots, values[OBSERVATION], at)
        ring.is_first[slots] = ~stepped
        ring.is_last[slots] = stepped & (values[TERMINATED][at] | values[TRUNCATED][at])
        # An environment that paused for as many rows as the ring has lost the observation before its step.
        linked = stepped & (previous >= max(ring.rows - ring.slots, 0))
        left = ring.link(previous[linked], new[linked])
        for name in (ACTION, REWARD, TERMINATED, TRUNCATED):
            _copy(ring.columns[name], left, values[name], at[linked])

    def _previous(
        self, numbers: np.ndarray, new: np.ndarray, slots: np.ndarray, envs: Mapping[int, int]
    ) -> np.ndarray:
        """Return the row before each new row in its episode, or `NO_ROW`; begin the episodes that are new."""
        if (numbers == numbers[0]).all():
            # Always so for a single environment; rows then follow each other.
            previous = new - 1
            previous[0], self._ring.episodes[slots] = self._extend(
                int(numbers[0]), int(new[0]), int(new[-1]), envs
            )
            return previous
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        edges = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(order)]])
        firsts, lasts = order[edges[:-1]], order[edges[1:] - 1]
        previous = np.empty_like(new)
        previous[order[1:]] = new[order[:-1]]
        labels: list[int] = []
        for number, first, last in zip(
            numbers[firsts].tolist(), firsts.tolist(), new[lasts].tolist(), strict=True
        ):
            previous[first], label = self._extend(number, int(new[first]), last, envs)
            labels.append(label)
        self._ring.episodes[slots[order]] = np.repeat(labels, np.diff(edges))
        return previous

    def _extend(self, number: int, first: int, last: int, envs: Mapping[int, int]) -> tuple[int, int]:
        """Give an episode new rows, or begin it; return the row before them, or `NO_ROW`, and its label."""
        episode = self._open.get(number)
        before = NO_ROW if episode is None else episode.newest
        if episode is None:
            episode = self._open[number] = self._begin(envs.get(number, 0), first)
        episode.newest = self._newest[episode.env] = last
        return before, episode.label

    def _begin(self, env: int, first: int) -> _OpenEpisode:
        before = self._newest.get(env, NO_ROW)
        if self._ring.has(before):
            self._ring.after[before % self._ring.slots] = first
        return _OpenEpisode(next(_labels), env, first, before, first)

    def _end(self, number: int, discarded: bool) -> None:
        episode, ring = self._open.pop(number, None), self._ring
        if episode is None:
            return
        if discarded:
            self._unlink(episode)
            ring.discard(episode.label, episode.first)
        elif ring.has(episode.newest):
            ring.is_last[episode.newest % ring.slots] = True
            left = ring.arriving_at(episode.newest)
            if left is not None:
                # To a learner an episode that did not terminate counts as truncated.
                ring.columns[TRUNCATED][left] |= not ring.columns[TERMINATED][left]

    def _unlink(self, discarded: _OpenEpisode) -> None:
        """Let the episode after a discarded one, which may have begun already, follow the one before it."""
        ring, before = self._ring, discarded.before
        if ring.has(discarded.newest) and ring.has(before):
            ring.after[before % ring.slots] = ring.after[discarded.newest % ring.slots]
        if self._newest[discarded.env] == discarded.newest:
            self._newest[discarded.env] = before
        for episode in self._open.values():
            if episode.before == discarded.newest:
                episode.before = before


class RecorderFeed:
    """Brings the rows of a recorder into a ring; the observer of its row source.

    Args:
        ring: where they go.
        lock: of the ring.
        source: where they come from.
    """

    def __init__(self, ring: Ring, lock: AbstractContextManager[Any], source: ObservableRows) -> None:
        self.lock = lock
        self._source = source
        self._feed = RowFeed(ring)

    def pull(self) -> None:
        """Take all complete rows that are new; any thread may call it."""
        self._source.complete()
        with self.lock:
            for arrived in self._source.arrived():
                self._feed.take(arrived)


def _copy(into: Tree, slots: np.ndarray, values: Tree, rows: np.ndarray) -> None:
    def copy(target: np.ndarray, source: np.ndarray) -> None:
        target[slots] = source[rows]

    map_leaves(copy, into, values)


#: Episodes are read together up to about so many rows.
_ROWS_AT_ONCE = 1 << 16


def stored_rows(source: ColumnSource, transitions: int) -> Iterator[tuple[ArrivedRows, bool]]:
    """Yield the newest transitions of a store, oldest first, as if they had just arrived.

    The newest are those of the episodes committed last. Of the oldest episode there may be only the end.

    Yields:
        Rows, and whether the first of them is the first of its episode. A `RuntimeWarning` counts the last
        transitions that are left out, since the observation after them is missing.

    Raises:
        CorruptStoreError: a file is damaged.
    """
    index = source.index
    later = np.cumsum(index.last_seen[::-1])[::-1]
    first = int(np.count_nonzero(later[1:] >= transitions)) if len(index) else 0
    skipped = max(int(later[first]) - transitions, 0) if len(index) else 0
    chosen = index[first:]
    if missing := int((chosen.lengths - chosen.last_seen).sum()):
        problem = left_out("The replay buffer", missing, chosen.transitions - skipped)
        warn_caller(f"{problem} A loader has them with the key 'next_observation_present'.")
    while first < len(index):
        rows = np.cumsum(index.lengths[first:] + 1)
        stop = first + max(int(np.searchsorted(rows, _ROWS_AT_ONCE, side="right")), 1)
        arrays = read_arrays(source.part(slice(first, stop)))
        yield _as_arrived(arrays, first, skipped), not skipped
        first, skipped = stop, 0


def _as_arrived(arrays: StepArrays, first: int, skipped: int) -> ArrivedRows:
    """Return the rows of episodes, without `skipped` rows; `first` is the number of the first episode."""
    index = arrays.index
    kinds = np.full(index.rows, STEP_ROW)
    # In a store a row has the action taken at its observation; here it has the action before it.
    before = np.maximum(np.arange(index.rows) - 1, 0)
    values = {
        name: tree if name == OBSERVATION else map_leaves(lambda leaf: leaf[before], tree)
        for name, tree in arrays.columns.items()
    }
    kinds[index.starts[:-1]] = kinds[skipped] = RESET_ROW
    numbers = np.repeat(np.arange(first, first + len(index)), index.lengths + 1)
    if index.missing is not None:
        # The transition to an observation that is missing does not arrive.
        kinds[index.padding[index.missing]] = LATE_ROW
    ended = [(number, False) for number in range(first, first + len(index))]
    return ArrivedRows(numbers[skipped:], kinds[skipped:], values, skipped, {}, ended)
