"""Files of a table: those that its log lists, and new ones to be listed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import unquote

from ..errors import CorruptStoreError
from ..files import Place

_PLAIN = re.compile(r"[^/\\:%\x00.][^/\\:%\x00]{0,254}")
_MOST_ROWS = 2**36


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


@dataclass(frozen=True)
class TableFile:
    """A file that one version of a table consists of.

    Attributes:
        name: file name, relative to the table.
        size: bytes.
        moment: milliseconds since 1970; files of a version are ordered by it.
        stats: its statistics in the log, as JSON.
        listed: whether the log lists it; else `stats` has rows and columns only.
    """

    name: str
    size: int
    moment: int
    stats: str | None
    listed: bool = True

    @staticmethod
    def of(path: Any, size: Any, moment: Any, stats: Any) -> TableFile:
        """Return the file that an add action lists.

        Raises:
            ValueError: a value cannot be one of an add action.
        """
        if type(path) is not str or type(size) is not int or type(moment) is not int:
            raise ValueError(f"it adds the file {path!r} of {size!r} bytes at {moment!r}")
        if stats is not None and type(stats) is not str:
            raise ValueError(f"the file {path!r} has the statistics {stats!r}")
        return TableFile(unquote(path), size, moment, stats)

    @staticmethod
    def unlisted(name: str, rows: int, size: int, columns: list[str]) -> TableFile:
        """Return a file that the log does not list."""
        statistics = {"numRecords": rows, "nullCount": dict.fromkeys(columns, 0)}
        return TableFile(name, size, 0, json.dumps(statistics), listed=False)

    @cached_property
    def _known(self) -> tuple[int, frozenset[str], Mapping[str, Any], Mapping[str, Any]]:
        """Rows, columns, smallest and largest values; the counts of NULLs are not kept in memory."""
        statistics = self._statistics()
        rows = statistics.get("numRecords") or 0
        if type(rows) is not int:
            raise ValueError(f"the file {self.name!r} has {rows!r} rows")
        columns = _column_set(tuple(statistics.get("nullCount") or ()))
        smallest, largest = (dict(statistics.get(key) or {}) for key in ("minValues", "maxValues"))
        return rows, columns, smallest, largest

    def _statistics(self) -> dict[str, Any]:
        return dict(json.loads(self.stats or "{}"))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._known[0]

    @property
    def columns(self) -> frozenset[str]:
        """Names of the columns that it has: those whose NULLs were counted."""
        return self._known[1]

    def bounds(self, name: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value of a column; None if the log lacks them."""
        low, high = self._known[2].get(name), self._known[3].get(name)
        return None if low is None or high is None else (low, high)

    def may_hold_run(self, run_id: str) -> bool:
        """Return whether a file of episodes can have some of a run: their ids begin with the run's."""
        low, high = self.bounds("episode_id") or ("", "\U0010ffff")
        return low <= f"{run_id}0" and high >= f"{run_id}/"

    def again(self) -> NewFile:
        """Return the same file to be listed once more, at its place."""
        return replace(self.as_new(self.name), moment=self.moment)

    def as_new(self, name: str) -> NewFile:
        """Return the same content to be listed under another name, at the end."""
        counts = self._statistics().get("nullCount") or {}
        return NewFile(name, self.rows, counts, self._known[2], self._known[3])

    def check(self, table: Place) -> None:
        """Refuse a name that leads out of the table's folder, and impossible statistics.

        Raises:
            CorruptStoreError: the log is damaged.
        """
        try:
            rows = self.rows
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptStoreError(f"The log of {table} is damaged: {error}.") from error
        if not _PLAIN.fullmatch(self.name) or not 0 <= rows < _MOST_ROWS:
            raise CorruptStoreError(
                f"The log of {table} lists the file {self.name!r} with {rows} rows; expected the name of a "
                "file in that folder. The log is damaged."
            )


@lru_cache(4096)
def _column_set(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names as a set that files with the same columns share."""
    return frozenset(names)
