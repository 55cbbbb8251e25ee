"""Rows of dynamic mappings, kept so that turning them into columns is cheap.

Mappings with the same keys in the same order share one list of values, so a key's column is a stride through
it. One thread puts rows; another may read rows that are complete meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SpaceMismatchError
from .logical_types import flatten
from .values import IMMUTABLE, freeze


@dataclass
class Cells:
    """The values of one key path and the rows they stand in."""

    rows: list[int]
    values: list[Any]

    def dense(self, length: int) -> list[Any]:
        """Return one entry per row, None where there is no value."""
        if len(self.rows) == length and self.rows == list(range(length)):
            return self.values
        found: list[Any] = [None] * length
        for row, value in zip(self.rows, self.values, strict=True):
            found[row] = value
        return found


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
                rows.put(row, owned(mapping))
        return rows

    def put(self, row: int, mapping: Mapping[Any, Any]) -> None:
        """Add a mapping that `owned` gave."""
        keys = tuple(mapping)
        try:
            rows, values = self._alike[keys]
        except KeyError:
            rows, values = self._alike[keys] = [], []
        values.extend(mapping.values())
        rows.append(row)

    def drop(self, row: int) -> None:
        """Take the last row back, if it is this one, also where an interrupt left it half put."""
        for keys, (rows, values) in self._alike.items():
            if rows and rows[-1] == row:
                rows.pop()
            del values[len(rows) * len(keys) :]

    def drop_from(self, row: int) -> None:
        """Take back `row` and the rows behind it, also where an interrupt left one half put."""
        for keys, (rows, values) in self._alike.items():
            del rows[bisect_left(rows, row) :]
            del values[len(rows) * len(keys) :]

    def cells(self, start: int, stop: int) -> dict[tuple[Any, ...], Cells]:
        """Return the leaves of rows `[start, stop)` by key path; row numbers count from `start`."""
        found: dict[tuple[Any, ...], Cells] = {}
        for keys, (rows, values) in list(self._alike.items()):
            first, last = bisect_left(rows, start), bisect_left(rows, stop)
            members = [row - start for row in rows[first:last]]
            width = len(keys)
            for index, key in enumerate(keys):
                column = values[first * width + index : last * width : width]
                if dict in set(map(type, column)):
                    for row, value in zip(members, column, strict=True):
                        for path, leaf in flatten({key: value}):
                            _extend(found, path, [row], [leaf])
                elif members:
                    _extend(found, (key,), members, column)
        return found


def owned(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping with the same entries, none of which the caller can change later.

    Raises:
        SpaceMismatchError: it is no mapping.
    """
    try:
        present = mapping.values()
    except AttributeError:
        raise _no_mapping(mapping) from None
    for value in present:
        if value.__class__ not in IMMUTABLE:
            return freeze(mapping)
    return mapping


def _no_mapping(found: object) -> SpaceMismatchError:
    return SpaceMismatchError(
        f"An info (or policy, or extra) is {type(found).__name__}; expected a mapping from names to values."
    )


def _extend(found: dict[tuple[Any, ...], Cells], path: tuple, rows: list[int], values: list[Any]) -> None:
    known = found.get(path)
    if known is None:
        found[path] = Cells(list(rows), values)
    else:
        known.rows += rows
        known.values += values
