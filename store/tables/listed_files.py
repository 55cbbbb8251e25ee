"""Files as a table's log lists them: those that are there, and those that are to come."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import CorruptStoreError
from ..places import Place

_PLAIN = re.compile(r"[^/\\\\:%\x00.][^/\\\\:%\x00]{0,254}")
_MOST_ROWS = 2**36
_NULLS, _MIN, _MAX = "null_count.", "min.", "max."


@dataclass(frozen=True)
class NewFile:
    """A written Parquet file that is to become part of a table.

    Attributes:
        name: file name, relative to the table.
        rows: number of rows.
        null_counts: by column; says at the same time which columns the file has.
        smallest, largest: statistics of a few columns.
        moment: its place in the order of files, as for `TableFile`; None for the end.
    """

    name: str
    rows: int
    null_counts: Mapping[str, int]
    smallest: Mapping[str, Any]
    largest: Mapping[str, Any]
    moment: int | None = None

    def action(self, table: Place, moment: int) -> dict[str, Any]:
        """Return the Delta action that adds the file; `moment` is used if it has none of its own."""
        statistics = {
            "numRecords": self.rows,
            "minValues": dict(self.smallest),
            "maxValues": dict(self.largest),
            "nullCount": dict(self.null_counts),
        }
        # Looked up now: a file that is gone must not be listed.
        size = (table / self.name).size()
        return {
            "add": {
                "path": self.name,
                "partitionValues": {},
                "size": size,
                "modificationTime": moment if self.moment is None else self.moment,
                "dataChange": True,
                "stats": json.dumps(statistics),
            }
        }


class ListedRows:
    """The rows of a log, one for each file; a column is taken apart once, when a cell of it is asked for.

    Args:
        actions: the flattened add actions of a version.
    """

    def __init__(self, actions: pa.Table) -> None:
        self._actions = actions
        self._columns: dict[str, list[Any]] = {}
        self.names = tuple(actions.column_names)

    def cell(self, row: int, name: str) -> Any:
        """Return a cell; None where the log says nothing."""
        if name not in self._columns:
            there = name in self.names
            self._columns[name] = self._actions.column(name).to_pylist() if there else []
        column = self._columns[name]
        return column[row] if column else None


@dataclass(frozen=True)
class TableFile:
    """A file that one version of a table consists of.

    Attributes:
        name: file name, relative to the table.
        rows: number of rows.
        size: bytes.
        moment: milliseconds since 1970; files of a version are ordered by it.
        columns: names of the columns it has.
        source: the log's rows, and the number of this file's among them; None if the log lacks it.
    """

    name: str
    rows: int
    size: int
    moment: int
    columns: frozenset[str]
    source: tuple[ListedRows, int] | None = None

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value of a column; None where the log does not say."""
        if self.source is None:
            return None
        rows, row = self.source
        found = rows.cell(row, _MIN + name), rows.cell(row, _MAX + name)
        return None if None in found else found

    def may_hold_run(self, run_id: str) -> bool:
        """Return whether a file of episodes can have some of a run: their ids begin with the run's."""
        low, high = self.bounds("episode_id") or ("", "\U0010ffff")
        return low <= f"{run_id}0" and high >= f"{run_id}/"

    def again(self) -> NewFile:
        """Return the same file to be listed once more, at its place."""
        return replace(self.as_new(self.name), moment=self.moment)

    def as_new(self, name: str) -> NewFile:
        """Return the same content to be listed under another name, at the end."""
        absent, smallest, largest = (self._statistics(kind) for kind in (_NULLS, _MIN, _MAX))
        return NewFile(name, self.rows, absent, smallest, largest)

    def _statistics(self, prefix: str) -> dict[str, Any]:
        if self.source is None:
            return {}
        rows, row = self.source
        cells = {
            name.removeprefix(prefix): rows.cell(row, name) for name in rows.names if name.startswith(prefix)
        }
        return {name: value for name, value in cells.items() if value is not None}


def files_of(actions: pa.Table, table: Place) -> list[TableFile]:
    """Return the files that the flattened add actions of a version name, in the order of their moments.

    Raises:
        CorruptStoreError: a name leads out of the table's folder, or a number of rows is none.
    """
    order = pc.call_function(
        "sort_indices",
        [actions.select(["modification_time", "path"])],
        pc.SortOptions([("modification_time", "ascending"), ("path", "ascending")]),
    )
    actions = actions.take(order).combine_chunks()
    names = ("path", "num_records", "size_bytes", "modification_time")
    columns = [actions.column(name).to_pylist() for name in names]
    for name, rows in zip(columns[0], columns[1], strict=True):
        if not _PLAIN.fullmatch(name) or not 0 <= (rows or 0) < _MOST_ROWS:
            raise CorruptStoreError(
                f"The log of {table} lists the file {name!r} with {rows} rows; expected the name of a "
                "file in that folder. The log is damaged."
            )
    sets, listed = _column_sets(actions), ListedRows(actions)
    return [
        TableFile(name, rows or 0, size, moment, found, (listed, row))
        for row, (name, rows, size, moment, found) in enumerate(zip(*columns, sets, strict=True))
    ]


def _validity(cells: pa.Array) -> np.ndarray:
    """Return which cells are not NULL: uint8, 0 or 1, one for each."""
    valid = pc.call_function("cast", [cells.is_valid()], pc.CastOptions.safe(pa.uint8()))
    # Read from its buffer: pyarrow's own way to numpy imports pandas first.
    return np.frombuffer(valid.buffers()[1], np.uint8, len(valid), valid.offset)


def _column_sets(actions: pa.Table) -> list[frozenset[str]]:
    """Return which columns each file has: those whose NULLs were counted. Files that agree share the set."""
    counted = [name for name in actions.column_names if name.startswith(_NULLS)]
    if not counted or not actions.num_rows:
        return [frozenset()] * actions.num_rows
    packed = np.stack([_validity(actions.column(name).chunk(0)) for name in counted], axis=1)
    present = packed.astype(bool)
    kinds, which = np.unique(packed, axis=0, return_inverse=True)
    first = {index: row for row, index in reversed(list(enumerate(which.ravel().tolist())))}
    bare = np.array([name.removeprefix(_NULLS) for name in counted])
    sets = [frozenset(bare[present[first[index]]].tolist()) for index in range(len(kinds))]
    return [sets[index] for index in which.ravel().tolist()]
