"""Row block of vector environments, filled a batch at a time.

The counterpart of `arrivals` for many episodes at once, between a vector recorder and the journal. A batch of
n environments takes n neighbouring rows: one numpy copy for each column, whatever n is. When rows go to the
journal they are brought into the order of their episodes, so that the rows of one episode are neighbours
there and sealing reads each of them once.

One thread adds rows; another may take finished ones meanwhile: a row, and what happened to episodes with it,
counts as soon as `counted` includes it, and is never touched again until the block is cleared.

Dynamic values stay the arrays that they came in (`DynamicBlock`). An entry is one key path, the rows that
have it, and their values in one array. A numeric array becomes a typed column without a look at its elements;
anything else is taken apart into cells only when a journal batch is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.dynamic.column_groups import Cells, ColumnSet, DynamicRows
from ...store.dynamic.columns import cells_column
from ...store.dynamic.logical_types import batch_kind, flatten
from ...store.dynamic.values import freeze_value
from ...store.journal.episodes import Begins, Ends
from ...store.journal.packed_columns import gathered
from ...store.names import ACTION, OBSERVATION, REWARD, TERMINATED, TRUNCATED
from ...store.schema import LATE_ROW, STEP_ROW, StepSchema
from ...store.spaces.arrow import flat_array
from ...store.spaces.fixed import FixedBuffer
from ..session.row_source import ArrivedRows
from .arrivals import with_dynamic_columns

KeyPath = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DynamicEntry:
    """Values of one key path.

    Attributes:
        path: the key path.
        rows: the row of each value, int64; rising, and a row once at the most.
        values: numbers, shape (n, ...), or objects, shape (n,); owned by us.
    """

    path: KeyPath
    rows: np.ndarray
    values: np.ndarray


def owned_values(values: np.ndarray) -> np.ndarray:
    """Return a copy that the caller cannot change later; objects are frozen one by one."""
    if values.dtype.kind in "biuf" and values.dtype.isnative:
        return np.array(values, order="C")
    frozen = np.empty(len(values), object)
    for index, value in enumerate(values):
        frozen[index] = freeze_value(value)
    return frozen


class DynamicBlock:
    """Dynamic values of one group in one block of rows: batches of them, and single rows.

    One thread adds; another may read rows that are complete meanwhile.
    """

    def __init__(self) -> None:
        self._entries: list[DynamicEntry] = []
        self._single = DynamicRows()

    def add(self, entry: DynamicEntry) -> None:
        """Add the values of one key path; where a row has the path already, the later value counts."""
        self._entries.append(entry)

    def put(self, row: int, mapping: Any) -> None:
        """Add the mapping of a single row; values that the caller could change later are copied."""
        self._single.put(row, mapping)

    def drop_from(self, row: int) -> None:
        """Forget what belongs to `row` or to rows after it: they do not count."""
        self._entries = [entry for entry in self._entries if not len(entry.rows) or entry.rows[0] < row]
        self._single.drop_from(row)

    def columns(
        self, columns: ColumnSet, start: int, stop: int, positions: np.ndarray, length: int
    ) -> dict[str, tuple[str, pa.Array]]:
        """`{column: (kind, array)}` for rows `[start, stop)`.

        Args:
            columns: the run's columns of this group.
            start, stop: rows of the block that are complete.
            positions: where each of them stands in the result, -1 for a row that is left out.
            length: how many rows the result has.
        """
        typed: dict[str, tuple[str, pa.Array]] = {}
        cells = _moved(self._single.cells(start, stop), positions)
        for path, entries in _by_path(self._entries, start, stop).items():
            column = None if path in cells else _typed(path, entries, columns)
            rows = positions[np.concatenate([entry.rows for entry in entries]) - start]
            if column is None:
                _add_cells(cells, entries, rows)
            else:
                name, kind = column
                values = np.concatenate([entry.values for entry in entries])
                kept = rows >= 0
                if kept.any():
                    typed[name] = (kind, cells_column(kind, rows[kept], values[kept], length))
        return columns.of_cells(cells, length, typed)


def _by_path(entries: Iterable[DynamicEntry], start: int, stop: int) -> dict[KeyPath, list[DynamicEntry]]:
    grouped: dict[KeyPath, list[DynamicEntry]] = {}
    for entry in list(entries):
        if len(entry.rows) and start <= entry.rows[0] < stop:
            grouped.setdefault(entry.path, []).append(entry)
    return grouped


def _typed(path: KeyPath, entries: Sequence[DynamicEntry], columns: ColumnSet) -> tuple[str, str] | None:
    """Name and kind of the column that takes the arrays as they are; None if there is no such column."""
    kinds = {batch_kind(entry.values) for entry in entries}
    # Rows of different sizes have one kind, and still make no array.
    if len(kinds) != 1 or len({entry.values.shape[1:] for entry in entries}) != 1:
        return None
    (kind,) = kinds
    name = None if kind is None else columns.column_for(path, kind)
    return None if name is None or kind is None else (name, kind)


def _add_cells(cells: dict[KeyPath, Cells], entries: Sequence[DynamicEntry], rows: np.ndarray) -> None:
    """Take arrays apart into cells; of two values for one row the later counts."""
    values = [value for entry in entries for value in entry.values]
    chosen = {row: value for row, value in zip(rows.tolist(), values, strict=True) if row >= 0}
    for row, value in chosen.items():
        for path, leaf in _leaves(entries[0].path, value):
            cell = cells.setdefault(path, Cells([], []))
            assert isinstance(cell.rows, list)
            cell.rows.append(row)
            cell.values.append(leaf)


def _leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    if type(value) is dict:
        yield from flatten({path[-1]: value}, path[:-1])
    else:
        yield path, value


def _moved(cells: dict[KeyPath, Cells], positions: np.ndarray) -> dict[KeyPath, Cells]:
    moved: dict[KeyPath, Cells] = {}
    for path, cell in cells.items():
        pairs = [(positions[row], value) for row, value in zip(cell.rows, cell.values, strict=True)]
        kept = [(int(row), value) for row, value in pairs if row >= 0]
        if kept:
            moved[path] = Cells([row for row, _ in kept], [value for _, value in kept])
    return moved


#: What a block takes before it goes to the journal.
BLOCK_BYTES = 8 << 20
_MOST_ROWS = 131_072
#: The number of rows that belong to no episode: they are left out of the journal.
NO_EPISODE = -1


class VectorBuffer:
    """Rows of one run that are not in the journal yet, in the order in which they came.

    Args:
        schema: the store's step schema.
        rows: how many rows one call of the environment may bring; there is room for two at least.

    Attributes:
        counted: how many rows, begins and ends are complete; one value, so that they count at once.
        capacity: how many there may be.
        numbers: the episode of each row, or NO_EPISODE.
        kinds: what each row is, see `schema`; a step, until something else is put.
        begins, ends: what happened to episodes, in order.
        flushed, begun, ended: how many rows, begins and ends are in the journal.
        observed: how many rows, begins and ends an observer has taken.
    """

    def __init__(self, schema: StepSchema, rows: int) -> None:
        most = min(_MOST_ROWS, BLOCK_BYTES // schema.journal_row_bytes)
        self.capacity = max(2 * rows, most)
        self.observations = schema.observation.buffer(self.capacity)
        self.actions = schema.action.buffer(self.capacity)
        self.rewards = schema.reward.buffer(self.capacity)
        assert isinstance(self.rewards, FixedBuffer)
        #: The rewards as numbers: float64, shape (capacity,) or (capacity, k).
        self.reward_values = self.rewards.array
        #: The sum of rewards up to each row, where somebody puts it; of the same shape.
        self.returns = np.zeros_like(self.reward_values)
        self.terminated = np.zeros(self.capacity, bool)
        self.truncated = np.zeros(self.capacity, bool)
        self.numbers = np.full(self.capacity, NO_EPISODE, np.int64)
        self.kinds = np.full(self.capacity, STEP_ROW, np.int16)
        self._schema = schema
        self.clear()

    def clear(self) -> None:
        """Forget all rows; the memory is used again."""
        self.counted: tuple[int, int, int] = (0, 0, 0)
        self.flushed = self.begun = self.ended = 0
        self.observed = (0, 0, 0)
        self.kinds[:] = STEP_ROW
        self.begins: list[Begins] = []
        self.ends: list[Ends] = []
        self.infos, self.policies, self.extras = DynamicBlock(), DynamicBlock(), DynamicBlock()

    @property
    def count(self) -> int:
        """Rows that are complete."""
        return self.counted[0]

    def drop_uncounted(self, whole: int) -> None:
        """Forget what an interrupted call left behind the rows that count.

        Args:
            whole: rows before this one are whole, although those after `count` do not count yet.
        """
        count, begins, ends = self.counted
        self.kinds[max(whole, count) :] = STEP_ROW
        self.begins, self.ends = self.begins[:begins], self.ends[:ends]
        for dynamic in (self.infos, self.policies, self.extras):
            dynamic.drop_from(max(whole, count))

    def arrived(self) -> ArrivedRows | None:
        """Return what no observer has taken, and count it as taken; None if there is nothing."""
        (start, begun, ended), counted = self.observed, self.counted
        if self.observed == counted:
            return None
        self.observed, stop = counted, counted[0]
        rows = slice(start, stop)
        begins, ends = self.begins[begun : counted[1]], self.ends[ended : counted[2]]
        return ArrivedRows(
            self.numbers[rows],
            self.kinds[rows],
            {
                OBSERVATION: self.observations.values(start, stop),
                ACTION: self.actions.values(start, stop),
                REWARD: self.reward_values[rows],
                TERMINATED: self.terminated[rows],
                TRUNCATED: self.truncated[rows],
            },
            0,
            {
                number: env
                for begin in begins
                for number, env in zip(begin.numbers.tolist(), begin.env_index.tolist(), strict=True)
            },
            [
                (number, not length)
                for end in ends
                for number, length in zip(end.numbers.tolist(), end.lengths.tolist(), strict=True)
            ],
        )

    def batch(
        self, start: int, stop: int, columns: Sequence[ColumnSet], number: int | None = None
    ) -> pa.RecordBatch:
        """Rows `[start, stop)` as a journal batch, ordered by episode, those without an episode left out.

        Args:
            start, stop: rows that are complete (`stop <= count`).
            columns: the run's column sets of info, policy and extra, in this order, or the first of them.
            number: leave the rows of other episodes out.

        Returns:
            A batch that shares no memory with this block; without `number`, frames do and are `UNGATHERED`.
        """
        numbers = self.numbers[start:stop]
        order = _order(numbers) if number is None else np.flatnonzero(numbers == number)
        rows = order + start
        row_kinds = self.kinds[rows]
        stepped, observed = _mask(row_kinds == STEP_ROW), _mask(row_kinds != LATE_ROW)
        arrays: list[pa.Array] = [pa.array(numbers[order]), pa.array(row_kinds)]
        arrays += self.observations.gather(rows, observed)
        arrays += self.actions.gather(rows, stepped)
        arrays += self.rewards.gather(rows, stepped)
        flags = self.terminated, self.truncated
        arrays += [flat_array(each[rows], pa.bool_(), stepped) for each in flags]
        # A call that is not complete may have put values of rows after these.
        positions = np.full(self.capacity - start, -1, np.int64)
        positions[order] = np.arange(len(order))
        groups = zip(columns, (self.infos, self.policies, self.extras), strict=False)
        dynamic = [
            group.columns(column_set, start, stop, positions, len(order)) for column_set, group in groups
        ]
        batch = pa.record_batch(arrays, names=self._schema.journal.names)
        return with_dynamic_columns(batch if number is None else gathered(batch), dynamic)


def _order(numbers: np.ndarray) -> np.ndarray:
    """Return the order that joins the rows of each episode, as they came, without rows of no episode."""
    if not len(numbers):
        return np.arange(0)
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < 1 << 16:
        # Numpy sorts 16 bits by counting, several times faster than anything wider.
        numbers = (numbers - low).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")
        return order[np.count_nonzero(numbers == 0) :] if low == NO_EPISODE else order
    order = np.argsort(numbers, kind="stable")
    return order[np.count_nonzero(numbers == NO_EPISODE) :]


def _mask(valid: np.ndarray) -> np.ndarray | None:
    return None if valid.all() else valid
