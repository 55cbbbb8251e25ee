"""`ReplayBuffer`: samples the steps of a store's recorders as soon as they are recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import NSteps, Output, Prioritized
from ..errors import InvalidArgumentError, RecorderStateError
from ..plugin import ReadContext, map_leaves, whole_number
from ..plugin.columns import ACTION, OBSERVATION, REWARD, TERMINATED, TRUNCATED
from ..readers.columns.selection import select
from ..readers.columns.specs import choose_columns
from ..readers.columns.step_arrays import ColumnSource
from ..readers.loading.config import choose_units
from ..readers.loading.orders import hash_words, uniforms
from ..readers.loading.outputs import OutputName
from ..readers.loading.priorities import Priorities, checked_update
from ..readers.loading.units import Batch
from ..store.names import DISCOUNT, FLAGS, NEXT_OBSERVATION, SPAN, UNIT, WEIGHT
from ..store.schema import StoreHandle
from ..writers.session.session import RunSession
from .ring import NO_ROW, Ring
from .row_feed import RecorderFeed, RowFeed, stored_rows

#: Sets the draws of a seed apart from those of loaders.
_SAMPLE = 5
#: Beyond so many rounds of draws, sequences are drawn from a list of all.
_ROUNDS = 32
IS_FIRST, IS_LAST, IS_TERMINAL = "is_first", "is_last", "is_terminal"


class ReplayBuffer:
    """The newest transitions of a store, in memory; `store.replay_buffer(1_000_000)` returns one.

    `store.record(env, buffer=buffer)` lets a recorder feed it: a step can be sampled once `step` has
    returned, and is journalled and sealed as usual. Several recorders may feed one buffer. The rows of a
    recorder are copied when the buffer is sampled, so recording itself does no work for it.

    Batches are those of a loader: dicts of fresh arrays under the same keys, with the same dtypes and shapes.
    An episode that was cut counts as truncated at its last transition. Discarded episodes disappear.

    One thread may sample while others record. Which transitions are drawn is a pure function of the seed, how
    many were drawn before, and the transitions in the buffer.
    """

    def __init__(
        self,
        context: ReadContext,
        capacity: int,
        *,
        seed: int = 0,
        prioritized: Prioritized | None = None,
        output: OutputName | Output = "numpy",
    ) -> None:
        capacity = whole_number("capacity", capacity, 1)
        if context.snapshot.schema.groups:
            raise InvalidArgumentError("A replay buffer holds single agents; this store has several.")
        self._seed = whole_number("seed", seed, 0)
        self._output = Output.of(output).converter()
        names = (OBSERVATION, ACTION, REWARD, *FLAGS)
        selection = select(context.snapshot, context.all_positions)
        columns = choose_columns(context.snapshot, selection, names)
        self._store_id = context.snapshot.manifest.store_id
        self._ring = ring = Ring(columns, capacity)
        self._lock = threading.RLock()
        self._feeds: list[tuple[RecorderFeed, RunSession[Any]]] = []
        self._drawn = 0
        self._priorities: Priorities | None = None
        if prioritized is not None:
            self._priorities = Priorities(prioritized, self._seed)
            self._priorities.restore(np.zeros(capacity))
        self._largest = 1.0
        #: Of the transitions that have priorities: how many ever arrived, the first, how many were discarded.
        self._prioritized = 0, 0, 0
        feed = RowFeed(ring)
        for rows, whole in stored_rows(ColumnSource(context.blocks, selection, columns), capacity):
            row = ring.rows
            feed.take(rows)
            ring.is_first[row % ring.slots] &= whole

    def __repr__(self) -> str:
        """Show how full it is."""
        return f"ReplayBuffer({len(self)} of {self.capacity} transitions)"

    def __len__(self) -> int:
        """Return how many transitions can be sampled."""
        with self._pulled() as ring:
            return len(ring)

    @property
    def capacity(self) -> int:
        """How many transitions it holds at most."""
        return self._ring.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays: `capacity` transitions, and some more observations."""
        return self._ring.nbytes

    def check_store(self, store: StoreHandle) -> None:
        """Refuse to be fed from another store.

        Raises:
            InvalidArgumentError: the buffer belongs to another one.
        """
        if store.manifest.store_id != self._store_id:
            raise InvalidArgumentError(
                f"buffer={self!r} belongs to another store than {store.layout.root}. Give one that this "
                "store's replay_buffer() returned."
            )

    def observe(self, session: RunSession[Any]) -> None:
        """Take the rows of a recorder's session from now on; `store.record(env, buffer=buffer)` calls it."""
        feed = RecorderFeed(self._ring, self._lock, session.rows)
        session.rows.observer = feed
        self._feeds.append((feed, session))

    @property
    def beta(self) -> float:
        """The exponent of the importance weights, 0 to 1; it may be raised as the training goes on.

        Raises:
            RecorderStateError: the buffer has no priorities.
        """
        return self._by_priority().beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._by_priority().beta = beta

    # Sampling

    def sample(self, batch_size: int = 256, *, n_step: int | None = None, gamma: float | None = None) -> Any:
        """Draw transitions with replacement, all alike or by priority.

        Arrays have the shape (batch_size, ...), under the keys of `Transitions`; with `n_step` those of
        `NSteps`. A span also ends at the newest step of an episode that goes on: its `discount` and
        `next_observation` fit that. With priorities a batch also has `unit`, the numbers of the transitions
        for `update_priorities`, and `weight`, as that of a `PrioritizedLoader`.

        Args:
            batch_size: how many.
            n_step: most transitions of a span; None for single transitions.
            gamma: discount of `n_step`, 0 to 1; 0.99 by default.

        Raises:
            InvalidArgumentError: a value is outside its range, or there is no transition.
        """
        single = n_step is None and gamma is None
        units = None if single else choose_units(None, window=None, n_step=n_step, gamma=gamma)
        size = whole_number("batch_size", batch_size, 1)
        with self._pulled() as ring:
            numbers, weights = self._draw(size)
            slots = ring.starts(numbers)
            batch = (
                self._spans(slots, units) if isinstance(units, NSteps) else self._transitions(slots, slots)
            )
        if weights is not None:
            batch |= {UNIT: numbers, WEIGHT: weights}
        return self._output(batch)

    def sample_sequences(self, batch_size: int = 16, length: int = 64) -> Any:
        """Draw sequences of steps of one environment, which run on across the ends of episodes.

        Arrays have the shape (batch_size, length, ...), with the keys `observation`, `action`, `reward`,
        `terminated`, `truncated`, `is_first`, `is_last` and `is_terminal`. A step has the action taken at its
        observation, and that action's reward, as in the store and in RLDS. An episode of T transitions has
        T + 1 steps: at its last observation `is_last` is True, `action`, `reward` and flags are zero, and
        `is_terminal` says whether it terminated there. A sequence begins at any transition, all alike.

        Args:
            batch_size: how many sequences.
            length: steps of each.

        Raises:
            InvalidArgumentError: a value is outside its range, or no environment has so many steps.
        """
        size, length = whole_number("batch_size", batch_size, 1), whole_number("length", length, 1)
        with self._pulled() as ring:
            slots = self._sequences(size, length)
            stepped = ring.stepped[slots]
            batch: Batch = {OBSERVATION: ring.take(OBSERVATION, slots)}
            for key in (ACTION, REWARD, *FLAGS):
                batch[key] = ring.take(key, slots)
                map_leaves(lambda leaf: leaf.__setitem__(~stepped, 0), batch[key])
            batch[IS_FIRST], batch[IS_LAST] = ring.is_first[slots], ring.is_last[slots]
            # A sequence begins at a transition, so never at a last step.
            batch[IS_TERMINAL] = np.zeros_like(stepped)
            batch[IS_TERMINAL][:, 1:] = batch[TERMINATED][:, :-1]
        return self._output(batch)

    def update_priorities(self, units: Any, priorities: Any) -> None:
        """Set the priorities of transitions, such as absolute TD errors; those that are gone are skipped.

        A new transition begins with the largest priority that was ever set, 1 at first.

        Args:
            units: the `unit` of a batch, shape (b,).
            priorities: finite numbers from 0 on, shape (b,).

        Raises:
            InvalidArgumentError: there never was such a unit, or a priority is negative or not finite.
            RecorderStateError: the buffer has no priorities.
        """
        rule = self._by_priority()
        with self._pulled() as ring:
            units, values = checked_update(units, priorities, ring.transitions)
            self._largest = max(self._largest, float(values.max(initial=0.0)))
            there = units >= ring.first
            if len(ring.discarded):
                there[there] = ring.stepped[ring.starts(units[there])]
            rule.change(units[there] % ring.capacity, values[there])

    def _by_priority(self) -> Priorities:
        if self._priorities is None:
            raise RecorderStateError(
                "The replay buffer draws all transitions alike. Make it with prioritized=el.Prioritized()."
            )
        return self._priorities

    @contextmanager
    def _pulled(self) -> Iterator[Ring]:
        """Bring in what the recorders have added; the ring then stays as it is."""
        for feed, session in self._feeds[:]:
            closed = session.closed
            feed.pull()
            if closed:
                self._feeds.remove((feed, session))
        with self._lock:
            if self._priorities is not None:
                self._prioritize(self._priorities)
            yield self._ring

    def _prioritize(self, priorities: Priorities) -> None:
        """Give new transitions a priority, and take it from those that are gone before their turn."""
        ring = self._ring
        if (content := (ring.transitions, ring.first, len(ring.discarded))) == self._prioritized:
            return
        new = np.arange(max(self._prioritized[0], ring.first), ring.transitions) % ring.capacity
        if len(new):
            priorities.change(new, np.full(len(new), self._largest))
        gone = [np.arange(max(ring.transitions - ring.capacity, 0), ring.first), ring.discarded]
        if len(left := np.concatenate(gone)):
            priorities.remove(left % ring.capacity)
        self._prioritized = content

    def _fractions(self, count: int) -> np.ndarray:
        draws = np.arange(self._drawn, self._drawn + count)
        self._drawn += count
        return uniforms(hash_words(self._seed, 0, _SAMPLE), draws)

    def _draw(self, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the numbers of transitions, and their weights where drawn by priority."""
        ring, priorities = self._ring, self._priorities
        self._check_any()
        if priorities is not None:
            draws = np.arange(self._drawn, self._drawn + count)
            self._drawn += count
            places, weights = priorities.draw(0, draws)
            return ring.first + (places - ring.first) % ring.capacity, weights
        numbers = self._alike(count)
        while len(ring.discarded) and len(gone := np.flatnonzero(~ring.stepped[ring.starts(numbers)])):
            numbers[gone] = self._alike(len(gone))
        return numbers, None

    def _alike(self, count: int) -> np.ndarray:
        """Return numbers of transitions; some may have been discarded."""
        ring = self._ring
        return ring.first + (self._fractions(count) * (ring.transitions - ring.first)).astype(np.int64)

    def _check_any(self) -> None:
        if not len(self._ring):
            raise InvalidArgumentError(
                "There is no transition to sample. Record steps first, with store.record(env, buffer=buffer)."
            )

    # Gathering

    def _transitions(self, slots: np.ndarray, last: np.ndarray) -> Batch:
        """Return the transitions from `slots`, with what the transitions from `last` led to."""
        ring = self._ring
        return {
            OBSERVATION: ring.take(OBSERVATION, slots),
            ACTION: ring.take(ACTION, slots),
            REWARD: ring.take(REWARD, slots),
            NEXT_OBSERVATION: ring.take(OBSERVATION, ring.next_slots(last)),
            TERMINATED: ring.take(TERMINATED, last),
            TRUNCATED: ring.take(TRUNCATED, last),
        }

    def _spans(self, slots: np.ndarray, units: NSteps) -> Batch:
        ring = self._ring
        # No episode of the buffer has more.
        steps = ring.walk(slots, min(units.n, len(ring)))
        # No transition leaves from the last row of an episode.
        span = np.logical_and.accumulate(ring.stepped[steps], axis=1).sum(axis=1)
        batch = self._transitions(slots, steps[np.arange(len(slots)), span - 1])
        batch[REWARD] = units.returns(ring.take(REWARD, steps), span)
        return batch | {DISCOUNT: units.discounts(batch[TERMINATED], span), SPAN: span}

    def _sequences(self, count: int, length: int) -> np.ndarray:
        """Return the slots of complete sequences, int64, shape (count, length)."""
        ring = self._ring
        self._check_any()
        all_of_them = starts = np.empty((0, length), np.int64)
        if length <= ring.slots:
            for _ in range(_ROUNDS):
                drawn = self._whole(self._alike(count - len(starts)), length)
                starts = np.concatenate([starts, drawn])
                if len(starts) == count:
                    return starts
            # Few places have so many steps after them: choose among all of them.
            all_of_them = self._whole(np.arange(ring.first, ring.transitions), length)
        if not len(all_of_them):
            raise InvalidArgumentError(
                f"length={length}: no environment has so many steps in the replay buffer, which has "
                f"{len(ring)} transitions. Record more, or choose shorter sequences."
            )
        places = (self._fractions(count - len(starts)) * len(all_of_them)).astype(np.int64)
        return np.concatenate([starts, all_of_them[places]])

    def _whole(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Return the slots of the sequences from some transitions that have so many steps."""
        ring = self._ring
        slots = ring.walk(ring.starts(numbers), length)
        # Beyond the newest row of an environment nothing follows; discarded rows are neither.
        whole = (ring.stepped[slots] | ring.is_last[slots]).all(1)
        return slots[whole & (ring.after[slots[:, :-1]] != NO_ROW).all(1)]
