"""The four groups of dynamic columns, and the way from rows of mappings to columns and back.

    info    -> `info.<key>`       row t holds the info that came with observation t
    policy  -> `policy.<key>`     row t holds the policy's outputs for action t
    extra   -> `<key>`            the user's own step columns, aligned with the observation
    metadata-> `metadata.<key>`   of an episode or of a run

A `ColumnSet` remembers for one group which column each key path has and its kind, so that every batch of a
run is typed alike. It sits between the row buffer and the journal; `merge_rows` is its inverse in the reader.

`DynamicRows` keeps rows of mappings so that turning them into columns is cheap. Mappings with the same keys
in the same order share one list of values, so a key's column is a stride through it. One thread puts rows;
another may read rows that are complete meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .. import names
from ..errors import CorruptStoreError, InvalidArgumentError, SpaceMismatchError
from . import logical_types as kinds
from .values import IMMUTABLE, dump_json, freeze, load_object


@dataclass(frozen=True)
class ColumnGroup:
    """One group of dynamic columns; `prefix` starts every column name of it."""

    prefix: str

    @property
    def json_column(self) -> str:
        """The column for values that no typed column takes."""
        return f"{self.prefix}_json"

    def column(self, path: Sequence[str]) -> str:
        """Return the column name of a key path."""
        return self.prefix + names.join(*path)

    def path(self, column: str) -> tuple[str, ...]:
        """Return the key path of a column name.

        Raises:
            CorruptStoreError: the name is not percent-encoded, or nested deeper than any value is.
        """
        rest = column.removeprefix(self.prefix)
        try:
            if rest.count(".") < _DEEPEST_PATH:
                return names.split(rest)
            problem = f"it nests deeper than {_DEEPEST_PATH} keys"
        except InvalidArgumentError as error:
            problem = str(error)
        raise CorruptStoreError(f"{column[:100]!r} cannot be the name of a column: {problem}")

    def columns_of(self, rows: Sequence[Mapping[Any, Any] | None]) -> dict[str, tuple[str, pa.Array]]:
        """Return mappings, one for each row, as columns: kind and values by name."""
        return ColumnSet(self, ()).columns(DynamicRows.of(rows), 0, len(rows))

    def owns(self, column: pa.Field) -> bool:
        """Return whether a schema field belongs to this group."""
        if self.prefix:
            named = column.name.startswith(self.prefix)
        else:
            named = not column.name.startswith((INFO.prefix, POLICY.prefix, METADATA.prefix))
        return named and kinds.field_kind(column) is not None


INFO = ColumnGroup("info.")
POLICY = ColumnGroup("policy.")
EXTRA = ColumnGroup("")
METADATA = ColumnGroup("metadata.")
STEP_GROUPS = (INFO, POLICY, EXTRA)
#: A key for every step, say a step's number, would otherwise make a column each, for ever.
_MOST_COLUMNS = 512
_DEEPEST_PATH = 128
_JSON_COLUMNS = frozenset(group.json_column for group in (*STEP_GROUPS, METADATA))


@dataclass
class Cells:
    """Values of one key path and their rows: a range from 0 on, if all have one.

    Attributes:
        types: of the values; empty where they are not known.
    """

    rows: range | list[int]
    values: list[Any]
    types: set[type] = field(default_factory=set)


class DynamicRows:
    """Mappings by row number; rows are put in rising order, and those without a mapping are left out."""

    def __init__(self) -> None:
        self._alike: dict[tuple[Any, ...], tuple[list[int], list[Any]]] = {}

    @staticmethod
    def of(mappings: Sequence[Mapping[Any, Any] | None]) -> DynamicRows:
        """Return rows 0, 1, ... of a sequence; None and empty mappings are left out."""
        rows = DynamicRows()
        for row, mapping in enumerate(mappings):
            if mapping:
                rows.put(row, mapping)
        return rows

    def put(self, row: int, mapping: Mapping[Any, Any]) -> None:
        """Add a mapping; values that the caller could change later are copied.

        Raises:
            SpaceMismatchError: it is no mapping.
        """
        # Each step of an environment comes here, so nothing is called or looked up twice.
        try:
            present = mapping.values()
        except AttributeError:
            raise SpaceMismatchError(
                f"An info (or policy, or extra) is {type(mapping).__name__}; expected a mapping from names "
                "to values."
            ) from None
        for value in present:
            if value.__class__ not in IMMUTABLE:
                mapping = freeze(mapping)
                present = mapping.values()
                break
        keys = tuple(mapping)
        try:
            rows, values = self._alike[keys]
        except KeyError:
            rows, values = self._alike[keys] = [], []
        values.extend(present)
        rows.append(row)

    def drop(self, row: int) -> None:
        """Take the last row back, if it is this one, also where an interrupt left it half put."""
        for keys, (rows, values) in self._alike.items():
            if rows and rows[-1] == row:
                rows.pop()
            del values[len(rows) * len(keys) :]

    def drop_from(self, row: int) -> None:
        """Take back `row` and the rows after it, also where an interrupt left one half put."""
        for keys, (rows, values) in self._alike.items():
            del rows[bisect_left(rows, row) :]
            del values[len(rows) * len(keys) :]

    def cells(self, start: int, stop: int) -> dict[tuple[Any, ...], Cells]:
        """Return the leaves of rows `[start, stop)` by key path; row numbers count from `start`."""
        by_path: dict[tuple[Any, ...], Cells] = {}
        for keys, (rows, values) in list(self._alike.items()):
            first, last = bisect_left(rows, start), bisect_left(rows, stop)
            members: range | list[int] = [row - start for row in rows[first:last]]
            if members == list(range(stop - start)):
                members = range(stop - start)
            width = len(keys)
            for index, key in enumerate(keys):
                column = values[first * width + index : last * width : width]
                types = set(map(type, column))
                if dict in types:
                    for row, value in zip(members, column, strict=True):
                        for path, leaf in kinds.flatten({key: value}):
                            _extend(by_path, path, Cells([row], [leaf], {type(leaf)}))
                elif members:
                    _extend(by_path, (key,), Cells(members[:], column, types))
        return by_path


def _extend(cells: dict[tuple[Any, ...], Cells], path: tuple, more: Cells) -> None:
    known = cells.get(path)
    if known is None:
        cells[path] = more
        return
    if isinstance(known.rows, range):
        known.rows = list(known.rows)
    known.rows += more.rows
    known.values += more.values
    known.types |= more.types


class ColumnSet:
    """The typed columns of one group, as known to one run.

    Args:
        group: which group.
        committed: the table's own fields.
        fixed: keep the kinds of the committed columns; else they widen, as those of a journal may.
        closed: make no columns but the committed ones.

    Attributes:
        overflow: for columns whose numbers stand in the JSON column only, the kind that would show them.
    """

    def __init__(
        self, group: ColumnGroup, committed: Iterable[pa.Field], *, fixed: bool = False, closed: bool = False
    ) -> None:
        self.group = group
        self.overflow: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._closed = closed
        self._fixed: set[str] = set()
        self._spelled: dict[str, str] = {}
        self._columns: dict[tuple[Any, ...], str | None] = {}
        for column in committed:
            if group.owns(column):
                self._kinds[column.name] = kinds.field_kind(column) or kinds.JSON_KIND
                if fixed or closed:
                    self._fixed.add(column.name)
                self._spelled[column.name.casefold()] = column.name

    def columns(self, rows: DynamicRows, start: int, stop: int) -> dict[str, tuple[str, pa.Array]]:
        """Turn rows `[start, stop)` into `{column: (kind, array)}`, each array `stop - start` long.

        A row that was not put, or has not the key, is NULL. What no typed column takes
        stands in the group's JSON column.
        """
        return self.of_cells(rows.cells(start, stop), stop - start, {})

    def column_for(self, path: tuple[Any, ...], kind: str) -> str | None:
        """Return the column that takes values of a kind under a key path as they are; None if there is
        none.
        """
        column = self._column(path)
        if column is None:
            return None
        return column if self._widened(column, kind) == kind else None

    def of_cells(
        self, cells: Mapping[tuple[Any, ...], Cells], length: int, typed: dict[str, tuple[str, pa.Array]]
    ) -> dict[str, tuple[str, pa.Array]]:
        """Return the columns of `length` rows from the cells of each key path, and those made already."""
        columns = dict(typed)
        leftovers: dict[int, dict[Any, Any]] = {}
        for path, of_path in cells.items():
            self._add(path, of_path, length, columns, leftovers)
        if leftovers:
            texts = [dump_json(leftovers[row]) if row in leftovers else None for row in range(length)]
            columns[self.group.json_column] = (kinds.JSON_KIND, pa.array(texts, pa.string()))
        return columns

    def _add(
        self,
        path: tuple[Any, ...],
        cells: Cells,
        length: int,
        columns: dict[str, tuple[str, pa.Array]],
        leftovers: dict[int, dict[Any, Any]],
    ) -> None:
        """Add the column of one key; values of another kind than the column's go to `leftovers`."""
        column = self._column(path)
        uniform = None if column is None else kinds.uniform_kind(cells.values, cells.types)
        kind = None if column is None else self._kind(column, cells.values, uniform)
        rows, values, types = cells.rows, cells.values, cells.types
        if kind is None or uniform != kind:
            rows, values, types = [], [], set()
            for row, value in zip(cells.rows, cells.values, strict=True):
                shown = None if kind is None else kinds.shown_kind(kind, value)
                if shown == kind and kind is not None:
                    exact = kinds.accepts(kind, value)
                    rows.append(row)
                    values.append(value if exact else kinds.show(kind, value))
                    if exact:
                        continue
                elif shown is not None and column is not None:
                    kinds.widen(self.overflow, column, shown)
                # Readers heed the JSON column, which keeps the value exactly.
                kinds.nest(leftovers.setdefault(row, {}), path, value)
        if rows and kind is not None and column is not None:
            columns[column] = (kind, kinds.spread(kind, rows, values, types, length))

    def _column(self, path: tuple[Any, ...]) -> str | None:
        """Return the column of a key path; None if its name cannot be one, clashes in case, or is one too
        many.
        """
        if path not in self._columns:
            self._columns[path] = self._name(path)
        return self._columns[path]

    def _name(self, path: tuple[Any, ...]) -> str | None:
        if not all(type(key) is str and names.has_utf8(key) for key in path):
            return None
        column = self.group.column(path)
        folded = column.casefold()
        room = not self._closed and len(self._spelled) < _MOST_COLUMNS
        if folded in _JSON_COLUMNS or (folded not in self._spelled and not room):
            return None
        return column if self._spelled.setdefault(column.casefold(), column) == column else None

    def _kind(self, column: str, values: Sequence[Any], fresh: str | None) -> str | None:
        """Return the kind of a column from now on; `fresh` is that of all the values, None for several."""
        if fresh is None:
            # From the known kind on: a text in front must not hide a number after it that widens the column.
            fresh = kinds.common_kind(values, self._kinds.get(column))
        return self._kinds.get(column) if fresh is None else self._widened(column, fresh)

    def _widened(self, column: str, kind: str) -> str:
        """Return the kind of a column from now on, when values of a kind come."""
        known = self._kinds.get(column)
        if known is None:
            self._kinds[column] = kind
        elif known != kind and column not in self._fixed:
            self._kinds[column] = kinds.joined(known, kind) or known
        return self._kinds[column]


def merge_rows(group: ColumnGroup, table: pa.Table) -> list[dict[Any, Any]]:
    """Rebuild one mapping per row of `table` from the group's columns and its JSON column.

    Raises:
        CorruptStoreError: a JSON cell, a kind or a value cannot be read; the message names the column.
    """
    rows: list[dict[Any, Any]] = [{} for _ in range(table.num_rows)]
    # The JSON column last, since its values count where both have one.
    own = sorted(filter(group.owns, table.schema), key=lambda column: column.name == group.json_column)
    for column in own:
        path, read = _cell_reader(group, column)
        if kinds.field_kind(column) == kinds.TIMESTAMP_KIND:
            continue
        try:
            _put_cells(rows, path, table.column(column.name), read)
        except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
            raise CorruptStoreError(
                f"The column {column.name!r} holds a value that its kind cannot have ({error}). The file was "
                "damaged or was written by something else."
            ) from error
    return rows


def _cell_reader(group: ColumnGroup, column: pa.Field) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """Return the key path of a dynamic column, () for the JSON column, and what turns a cell into its
    value.
    """
    kind = kinds.field_kind(column) or kinds.JSON_KIND
    is_json = column.name == group.json_column
    if column.type != kinds.physical_type(kind) or (kind == kinds.JSON_KIND) != is_json:
        raise CorruptStoreError(
            f"The column {column.name!r} has type {column.type} and is marked with the kind {kind!r}; the "
            "two do not go together. The table's schema is damaged."
        )
    if is_json:
        return (), lambda cell: load_object(cell, f"the column {column.name!r}")
    return group.path(column.name), kinds.reader(kind)


def _put_cells(
    rows: list[dict[Any, Any]], path: tuple[str, ...], cells: pa.ChunkedArray, read: Callable[[Any], Any]
) -> None:
    for row, cell in zip(rows, cells.to_pylist(), strict=True):
        if cell is None:
            continue
        if path:
            kinds.nest(row, path, read(cell))
        else:
            for key, value in read(cell).items():
                kinds.nest(row, (key,), value)
