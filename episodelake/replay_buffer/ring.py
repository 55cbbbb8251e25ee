"""A ring of rows: observations with the transitions that leave from them, linked in order of time.

Rows arrive from many environments at once, so the rows of an episode are not neighbours: each row has the
number of the next row of its environment. A row's number counts all rows that ever arrived; its slot is that
number modulo the rows of the ring. Transitions have numbers of their own, by which learners name them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..plugin import map_leaves
from ..readers.columns.column import Column
from ..readers.columns.tree import Tree, leaves, take_rows

#: The number of a row that does not exist.
NO_ROW = -1
#: A ring has room for some more observations than transitions: one in eight, and at least so many.
_SPARE_ROWS = 1024


class Ring:
    """The newest transitions, up to `capacity`, and their observations.

    Memory is allocated at once. It grows only if episodes are so short that their last observations do not
    fit: to twice the rows at most.

    Args:
        columns: of the rows; those of transitions belong to the row from which one leaves.
        capacity: transitions.

    Attributes:
        columns: by name, arrays of shape (slots, ...) or trees of those.
        after: int64, shape (slots,): the next row of the same environment, or `NO_ROW`.
        stepped: bool: whether a transition leaves from a row.
        is_first, is_last: bool: whether a row is the first or last of its episode.
        episodes: int64: an episode's label, the same for its rows and for those of no other one.
        rows: how many rows ever arrived.
        transitions: how many transitions ever arrived.
        first: the number of the oldest transition that is there.
    """

    def __init__(self, columns: Sequence[Column], capacity: int) -> None:
        self.capacity = capacity
        self.slots = capacity + max(capacity // 8, _SPARE_ROWS)
        self._most_slots = 2 * capacity + _SPARE_ROWS
        self.columns = {column.name: _zeros(column.template, self.slots) for column in columns}
        self.after = np.full(self.slots, NO_ROW)
        self.stepped, self.is_first, self.is_last = np.zeros((3, self.slots), bool)
        self.episodes = np.zeros(self.slots, np.int64)
        # The last transition that needs a row: which arrives there, or leaves from there.
        self._needed_by = np.full(self.slots, -1)
        # The row from which each transition leaves.
        self._starts = np.zeros(capacity, np.int64)
        self.rows = self.transitions = self.first = 0
        #: The transitions that are there and were discarded.
        self.discarded = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        own = [self.after, self.stepped, self.is_first, self.is_last]
        own += [self.episodes, self._needed_by, self._starts]
        columns = [leaf for tree in self.columns.values() for _, leaf in leaves(tree)]
        return sum(array.nbytes for array in (*own, *columns))

    def __len__(self) -> int:
        """Return how many transitions there are, without those that were discarded."""
        return self.transitions - self.first - len(self.discarded)

    def has(self, row: int) -> bool:
        """Return whether a row is there."""
        return row >= max(self.rows - self.slots, 0)

    def starts(self, transitions: np.ndarray) -> np.ndarray:
        """Return the slots from which transitions leave; the transitions must be there."""
        return self._starts.take(transitions % self.capacity) % self.slots

    def next_slots(self, slots: np.ndarray) -> np.ndarray:
        """Return the slots of the next rows; that of some row where there is none."""
        return self.after.take(slots) % self.slots

    def walk(self, slots: np.ndarray, length: int) -> np.ndarray:
        """Return the slots of rows and of those that follow them: int64, shape (b, length).

        Where no row follows, the further slots are those of some rows.
        """
        # Nearly always the rows of an environment are as far from each other as the first two.
        apart = np.maximum((self.after[slots] - slots) % self.slots, 1)
        guessed = (slots[:, None] + apart[:, None] * np.arange(length)) % self.slots
        right = (self.next_slots(guessed[:, :-1]) == guessed[:, 1:]).all(1)
        if not right.all():
            wrong = np.flatnonzero(~right)
            here = slots[wrong]
            for step in range(1, length):
                here = self.next_slots(here)
                guessed[wrong, step] = here
        return guessed

    def take(self, name: str, slots: np.ndarray) -> Tree:
        """Return fresh arrays with the values of a column in some slots, of any shape."""
        return take_rows(self.columns[name], slots)

    def reserve(self, rows: int, transitions: int) -> np.ndarray:
        """Return the slots of the next rows, and forget the rows that they replace.

        Args:
            rows: how many; at most an eighth of the slots.
            transitions: how many of them arrive with a transition.
        """
        target = self.rows + np.arange(rows)
        first = max(self.transitions + transitions - self.capacity, self.first)
        while (overwritten := self._newest_use(target)) >= first and self.slots < self._most_slots:
            self._grow(min(self.slots + self.slots // 4, self._most_slots))
        self.first = max(first, overwritten + 1)
        slots = target % self.slots
        self.rows += rows
        self.after[slots] = self._needed_by[slots] = NO_ROW
        self.stepped[slots] = self.is_first[slots] = self.is_last[slots] = False
        return slots

    def _newest_use(self, target: np.ndarray) -> int:
        return int(self._needed_by[target % self.slots].max(initial=-1))

    def _grow(self, slots: int) -> None:
        rows = np.arange(max(self.rows - self.slots, 0), self.rows)
        old, new = rows % self.slots, rows % slots

        def moved(leaf: np.ndarray) -> np.ndarray:
            fresh = np.zeros((slots, *leaf.shape[1:]), leaf.dtype)
            fresh[new] = leaf[old]
            return fresh

        self.columns = map_leaves(moved, self.columns)
        self.after, self.stepped = moved(self.after), moved(self.stepped)
        self.is_first, self.is_last = moved(self.is_first), moved(self.is_last)
        self.episodes = moved(self.episodes)
        needed = np.full(slots, -1)
        needed[new] = self._needed_by[old]
        self._needed_by, self.slots = needed, slots

    def link(self, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
        """Add transitions, in order of time; return the slots from which they leave.

        Args:
            earlier, later: the rows from which they leave and at which they arrive, int64, shape (n,); all
                must be there.
        """
        numbers = self.transitions + np.arange(len(later))
        slots = earlier % self.slots
        self.after[slots], self.stepped[slots] = later, True
        self._needed_by[later % self.slots] = numbers
        self._needed_by[slots] = numbers
        self._starts[numbers % self.capacity] = earlier
        self.transitions += len(later)
        self.first = max(self.first, self.transitions - self.capacity)
        self.discarded = self.discarded[self.discarded >= self.first]
        return slots

    def arriving_at(self, row: int) -> int | None:
        """Return the slot from which the transition to an episode's last row leaves; None if it is gone."""
        number = int(self._needed_by[row % self.slots])
        return None if number < self.first else int(self.starts(np.array(number)))

    def discard(self, label: int, first: int) -> None:
        """Take an episode out: its transitions keep their numbers and are not sampled.

        Args:
            label: of the episode.
            first: its first row.
        """
        slots = np.arange(max(first, self.rows - self.slots, 0), self.rows) % self.slots
        slots = slots[self.episodes[slots] == label]
        # The number of the transition that leaves from a row is the last that needs it.
        numbers = self._needed_by[slots[self.stepped[slots]]]
        self.discarded = np.concatenate([self.discarded, numbers])
        self.stepped[slots] = self.is_last[slots] = False


def _zeros(template: Tree, rows: int) -> Tree:
    return map_leaves(lambda leaf: np.zeros((rows, *leaf.shape[1:]), leaf.dtype), template)
