"""The list of episodes: the rows of one version in memory, filtered, sorted and read by the page.

Rows of the episodes table are small (about 130 bytes each), steps are not touched. Orders and filters are
kept as positions, so a page of a million episodes costs as little as one of a hundred.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ...store.errors import EpisodeNotFoundError, QueryError
from ..damaged_files import check_files
from ..sql.names_nearby import near_names
from ..sql.sources import Sources
from ..sql.text import literal, quote
from ..view import EpisodeView

POSITION = "position"
#: Where steps lie in files; nobody looks at that.
_HIDDEN = ("segment", "row_start", "row_count")
_ROWS = "_rows"
_KEPT_ORDERS = 8
_UNKNOWN = re.compile(r'Referenced column "([^"]*)" not found')
#: Behind the error of `end_reason = truncated`, which compares two columns.
_TEXTS = "\nTexts stand in single quotes, as in end_reason = 'truncated'."
_SORTABLE = (pl.String, pl.Boolean, pl.Datetime)


@dataclass(frozen=True)
class Choice:
    """Which episodes the list shows, and in which order.

    Attributes:
        conditions: SQL conditions that all hold, as texts over the episodes table.
        run_ids: the runs to show; none for all.
        sort: the column to sort by.
        descending: largest first. NULL comes last either way.
    """

    conditions: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    sort: str = POSITION
    descending: bool = True

    @property
    def where(self) -> str:
        """All of it as one SQL condition; empty for all episodes."""
        parts = [condition.strip() for condition in self.conditions if condition.strip()]
        if self.run_ids:
            parts.append(f"run_id IN ({', '.join(map(literal, self.run_ids))})")
        # On a line of its own, so that a comment at the end of a condition hides nothing.
        return parts[0] if len(parts) == 1 else " AND ".join(f"({part}\n)" for part in parts)

    @property
    def sql(self) -> str:
        """The query that gives these episodes, in this order, for `store.sql`."""
        where = f"\nWHERE {self.where}" if self.where else ""
        if self.sort == POSITION:
            return f"SELECT * FROM episodes{where}"
        way = "DESC" if self.descending else "ASC"
        return f"SELECT * FROM episodes{where}\nORDER BY {quote(self.sort)} {way} NULLS LAST"

    def sorted_by(self, column: str, descending: bool) -> Choice:
        """The same episodes in another order."""
        return replace(self, sort=column, descending=descending)


@dataclass(frozen=True)
class Run:
    """A run that episodes of the list come from.

    Attributes:
        run_id: its id.
        label: its name; its id where several have that name.
        episodes: how many of its episodes there are.
    """

    run_id: str
    label: str
    episodes: int


@dataclass
class EpisodeList:
    """The episodes of one version. Safe to use from several threads.

    Args:
        view: the version, with all its episodes or some of them.
    """

    view: EpisodeView
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _orders: dict[tuple[str, bool], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        frame = self.view.episodes.drop(_HIDDEN, strict=False).collect()
        self.frame = frame.with_row_index(POSITION)
        self._connection = _connected(self.view, self.frame)

    def close(self) -> None:
        """Let go of the connection; the list is not used any more."""
        with self._lock:
            self._connection.close()

    def __len__(self) -> int:
        """Number of episodes."""
        return self.frame.height

    @cached_property
    def columns(self) -> list[str]:
        """The columns that have a value somewhere, the ones that people look at first."""
        first = ["episode_id", "run_id", "episode_return", "length", "end_reason", "seed"]
        always = first[:-1]
        last = [
            "number",
            "env_index",
            "started_at",
            "ended_at",
            "terminated",
            "truncated",
            "wide_seed",
            "options",
        ]
        names = [name for name in self.frame.columns if name != POSITION]
        told = [name for name in names if name in always or self.frame[name].null_count() < len(self)]
        middle = [name for name in told if name not in first and name not in last]
        return [name for name in (*first, *middle, *last) if name in told]

    def sortable(self, column: str) -> bool:
        """Whether the list can be sorted by a column: not by lists."""
        kind = self.frame.schema[column]
        return kind.is_numeric() or kind in _SORTABLE

    @cached_property
    def runs(self) -> list[Run]:
        """The runs of these episodes, in the order in which they began."""
        counts = dict(self.frame["run_id"].value_counts().iter_rows())
        named = self.view.runs.select("run_id", "name", "started_at").collect().sort("started_at", "run_id")
        names = [name or run_id for run_id, name, _ in named.iter_rows()]
        return [
            Run(run_id, label if names.count(label) == 1 else run_id, counts[run_id])
            for (run_id, _, _), label in zip(named.iter_rows(), names, strict=True)
            if run_id in counts
        ]

    def positions(self, choice: Choice) -> np.ndarray:
        """The episodes of a choice, in its order: int64 positions in the view.

        Raises:
            QueryError: a condition is not valid; the message names the nearest columns.
        """
        order = self._order(choice.sort if choice.sort in self.frame.columns else POSITION, choice.descending)
        if not choice.where:
            return order
        for condition in choice.conditions:
            self._check(condition)
        return order[self._mask(choice.where)[order]]

    def _order(self, column: str, descending: bool) -> np.ndarray:
        key = (column, descending)
        with self._lock:
            if key in self._orders:
                return self._orders[key]
        if column == POSITION:
            order = np.arange(len(self))[:: -1 if descending else 1]
        elif self.sortable(column):
            order = sorted_positions(self.frame[column], descending)
        else:
            raise QueryError(f"The list cannot be sorted by {column!r}, which holds lists.")
        with self._lock:
            while len(self._orders) >= _KEPT_ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[key] = order
        return order

    def _check(self, condition: str) -> None:
        """Refuse a condition that would mean something else once it stands in brackets."""
        if condition.strip():
            self._selected(condition, limit=0)

    def _mask(self, condition: str) -> np.ndarray:
        kept = np.zeros(len(self), bool)
        kept[self._selected(condition)] = True
        return kept

    def _selected(self, condition: str, limit: int | None = None) -> np.ndarray:
        with self._lock:
            try:
                rows = self._connection.view(_ROWS)
                expression = duckdb.SQLExpression(condition)
                (kind,) = rows.select(expression).types
                if kind != "BOOLEAN":
                    raise QueryError(f"The condition {condition!r} gives {kind}; expected a comparison.")
                found = rows.filter(expression).select(POSITION)
                found = found if limit is None else found.limit(limit)
                return found.fetchnumpy()[POSITION].astype(np.int64)
            except (duckdb.Error, ValueError) as error:
                if isinstance(error, QueryError):
                    raise
                raise self._query_error(condition, error) from error

    def _query_error(self, condition: str, error: Exception) -> QueryError:
        """What is wrong with a condition, with the columns that may have been meant."""
        reason = str(error).partition("\n")[0]
        columns = [name for name in self.frame.columns if name != POSITION]
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            texts = _TEXTS if isinstance(error, duckdb.ConversionException) else ""
            return QueryError(f"The condition {condition!r} is not valid: {reason}{texts}")
        close = near_names(unknown[1], columns, 3)
        near = f" Did you mean {' or '.join(close)}?" if close else ""
        return QueryError(
            f"There is no column {unknown[1]!r}.{near}\nColumns: {', '.join(columns)}. "
            'Names with a dot need double quotes, as in "metadata.x".'
        )

    def rows(self, positions: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The rows at some positions, each with its position."""
        wanted = pl.Series(positions, dtype=pl.UInt32) if len(positions) else []
        return self.frame[wanted].to_dicts()

    def position_of(self, episode_id: str) -> int:
        """Where an episode stands in this version.

        Raises:
            EpisodeNotFoundError: it is not in this version.
        """
        found = self.frame["episode_id"].index_of(episode_id)
        if found is None:
            raise EpisodeNotFoundError(f"Version {self.version} has no episode {episode_id!r} any more.")
        return found

    @property
    def version(self) -> int:
        """The version that is shown."""
        return self.view._reader.snapshot.version


def sorted_positions(column: pl.Series, descending: bool) -> np.ndarray:
    """Positions, int64, in the order of a column: equal values by position, nulls last, NaN above numbers."""
    kind = column.dtype
    plain = kind.is_integer() or (kind.is_float() and not column.is_nan().any())
    if plain and not column.null_count():
        values = column.to_numpy()
        if descending:
            values = -values if kind.is_float() else ~values
        return _sorted_numbers(values)
    order = pl.arg_sort_by(_ROWS, descending=descending, nulls_last=True, maintain_order=True)
    return column.alias(_ROWS).to_frame().select(order).to_series().to_numpy().astype(np.int64)


def _sorted_numbers(values: np.ndarray) -> np.ndarray:
    """Their positions from the lowest to the highest, equal ones by position.

    numpy's unstable sort uses wide instructions: sorting twice takes half the time of one stable sort.
    """
    order = np.argsort(values)
    ranked = values[order]
    differs = np.zeros(len(order), np.int64)
    differs[1:] = ranked[1:] != ranked[:-1]
    groups = np.cumsum(differs) * len(order)
    keys = groups + order
    keys.sort()
    return keys - groups


def _connected(view: EpisodeView, frame: pl.DataFrame) -> duckdb.DuckDBPyConnection:
    """A connection that sees these rows, and in subqueries `episodes` and `runs`, and nothing else."""
    snapshot = view._reader.snapshot
    sources = Sources(snapshot, confined=True)
    connection = sources.connection
    try:
        connection.register(_ROWS, frame.to_arrow())
        columns = ", ".join(quote(name) for name in frame.columns if name != POSITION)
        connection.execute(f"CREATE VIEW episodes AS SELECT {columns} FROM {_ROWS}")
        connection.register("runs", view.runs.collect().to_arrow())
        sources.confine()
    except (duckdb.Error, pa.ArrowException):
        connection.close()
        check_files(snapshot, "episodes")
        raise
    return connection
