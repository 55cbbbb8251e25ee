"""Dynamic values of many rows at once: what a vector environment tells, kept as the arrays that it came in.

The counterpart of `store/dynamic/rows.py` for whole batches. An entry is one key path, the rows that have it,
and their values in one array. A numeric array becomes a typed column without a look at its elements; anything
else is taken apart into cells only when a journal batch is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.dynamic.cells import cells_column
from ...store.dynamic.column_groups import ColumnSet
from ...store.dynamic.logical_types import batch_kind, flatten
from ...store.dynamic.rows import Cells, DynamicRows
from ...store.dynamic.values import freeze_value

Path = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DynamicEntry:
    """Values of one key path.

    Attributes:
        path: the key path.
        rows: the row of each value, int64; rising, and a row once at the most.
        values: numbers, shape (n, ...), or objects, shape (n,); owned by us.
    """

    path: Path
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
    """Dynamic values of one family in one block of rows: batches of them, and single rows.

    One thread adds; another may read rows that are complete meanwhile.
    """

    def __init__(self) -> None:
        self._entries: list[DynamicEntry] = []
        self._single = DynamicRows()

    def add(self, entry: DynamicEntry) -> None:
        """Add the values of one key path; where a row has the path already, the later value counts."""
        self._entries.append(entry)

    def put(self, row: int, mapping: Any) -> None:
        """Add the mapping of a single row; `mapping` is one that `owned` gave."""
        self._single.put(row, mapping)

    def drop_from(self, row: int) -> None:
        """Forget what belongs to `row` or to rows behind it: they do not count."""
        self._entries = [entry for entry in self._entries if not len(entry.rows) or entry.rows[0] < row]
        self._single.drop_from(row)

    def columns(
        self, columns: ColumnSet, start: int, stop: int, positions: np.ndarray, length: int
    ) -> dict[str, tuple[str, pa.Array]]:
        """`{column: (kind, array)}` for rows `[start, stop)`.

        Args:
            columns: the run's columns of this family.
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


def _by_path(entries: Iterable[DynamicEntry], start: int, stop: int) -> dict[Path, list[DynamicEntry]]:
    found: dict[Path, list[DynamicEntry]] = {}
    for entry in list(entries):
        if len(entry.rows) and start <= entry.rows[0] < stop:
            found.setdefault(entry.path, []).append(entry)
    return found


def _typed(path: Path, entries: Sequence[DynamicEntry], columns: ColumnSet) -> tuple[str, str] | None:
    """Name and kind of the column that takes the arrays as they are; None if there is no such column."""
    kinds = {batch_kind(entry.values) for entry in entries}
    # Rows of different sizes have one kind, and still make no array.
    if len(kinds) != 1 or len({entry.values.shape[1:] for entry in entries}) != 1:
        return None
    (kind,) = kinds
    name = None if kind is None else columns.column_for(path, kind)
    return None if name is None or kind is None else (name, kind)


def _add_cells(cells: dict[Path, Cells], entries: Sequence[DynamicEntry], rows: np.ndarray) -> None:
    """Take arrays apart into cells; of two values for one row the later counts."""
    values = [value for entry in entries for value in entry.values]
    chosen = {row: value for row, value in zip(rows.tolist(), values, strict=True) if row >= 0}
    for row, value in chosen.items():
        for path, leaf in _leaves(entries[0].path, value):
            found = cells.setdefault(path, Cells([], []))
            found.rows.append(row)
            found.values.append(leaf)


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if type(value) is dict:
        yield from flatten({path[-1]: value}, path[:-1])
    else:
        yield path, value


def _moved(cells: dict[Path, Cells], positions: np.ndarray) -> dict[Path, Cells]:
    moved: dict[Path, Cells] = {}
    for path, found in cells.items():
        pairs = [(positions[row], value) for row, value in zip(found.rows, found.values, strict=True)]
        kept = [(int(row), value) for row, value in pairs if row >= 0]
        if kept:
            moved[path] = Cells([row for row, _ in kept], [value for _, value in kept])
    return moved
