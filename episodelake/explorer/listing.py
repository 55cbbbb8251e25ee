"""The episodes of one version as the page lists them, and the colours of runs.

Rows of the episodes table are small (about 130 bytes each); steps are not read. Orders, filters and charts
are kept, so a page of a million episodes costs as little as one of a hundred.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl

from .. import EpisodeStore, EpisodeView
from ..errors import QueryError
from ..plugin import collected, literal, quote
from ..readers.charts.theme import END_COLORS, PALETTE, shown
from .facets import Facet, facet_of

T = TypeVar("T")

#: No column of a user begins with an underscore.
POSITION = "_position"
#: How columns of the runs' metadata begin.
RUN_KEY, METADATA = "run.", "metadata."
#: The places of steps in files, which the list does not show.
_HIDDEN = ("segment", "row_start", "row_count")
_KEPT = 12
_SORTABLE = (pl.String, pl.Boolean, pl.Datetime)


@dataclass(frozen=True)
class Choice:
    """Which episodes the list shows, and in which order.

    Attributes:
        conditions: SQL conditions that all hold, as texts over the episodes table.
        run_ids: the runs to show; none for all.
        sort: the column to sort by.
        descending: largest first. NULL comes last either way.
        ids: the only episodes to show; None for all.
        about: the name of these in addresses and on the page.
        chips: further conditions, each of which the page can remove.
    """

    conditions: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    sort: str = POSITION
    descending: bool = True
    ids: tuple[str, ...] | None = None
    about: str = ""
    chips: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The whole choice as one SQL condition; empty for all episodes."""
        texts = (*self.conditions, *self.chips)
        parts = [condition.strip() for condition in texts if condition.strip()]
        if self.run_ids:
            parts.append(f"run_id IN ({', '.join(map(literal, self.run_ids))})")
        if self.ids is not None:
            parts.append(f"episode_id IN ({', '.join(map(literal, self.ids)) or 'NULL'})")
        # On a line of its own, so that a comment at the end of a condition hides nothing.
        return parts[0] if len(parts) == 1 else " AND ".join(f"({part}\n)" for part in parts)

    @property
    def sql(self) -> str:
        """The query that gives these episodes, in this order but for equal keys, for `store.sql`."""
        where = f"\nWHERE {self.where}" if self.where else ""
        if self.sort == POSITION:
            return f"SELECT * FROM episodes{where}"
        way = "DESC" if self.descending else "ASC"
        return f"SELECT * FROM episodes{where}\nORDER BY {column_sql(self.sort)} {way} NULLS LAST"

    @property
    def in_order(self) -> Choice:
        """The same episodes in the order of positions: what charts of them are kept by."""
        return self.sorted_by(POSITION, True)

    def sorted_by(self, column: str, descending: bool) -> Choice:
        """Return the same episodes in another order."""
        return replace(self, sort=column, descending=descending)


def column_sql(name: str) -> str:
    """Return a column of the list as conditions name it."""
    key = name.removeprefix(RUN_KEY)
    return quote(name, always=False) if key == name else f"run.{quote(key, always=False)}"


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


_MOST_GROUPS = 50
_MOST_FACETS = 12


def _few(values: pl.Series) -> bool:
    return not values.dtype.is_nested() and 1 < values.n_unique() <= _MOST_GROUPS


@dataclass
class EpisodeList:
    """The episodes of one version. Safe to use from several threads.

    Args:
        store: pinned at the version.

    Attributes:
        run_metadata: the metadata of each run that is no list, as columns beside its `run_id`.
    """

    store: EpisodeStore
    run_metadata: pl.DataFrame = field(init=False, repr=False)
    facets: dict[str, Facet] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        frame = collected(self.store.episodes.drop(_HIDDEN, strict=False))
        runs = collected(self.store.runs)
        keys = {
            name: RUN_KEY + name.removeprefix(METADATA)
            for name in runs.columns
            if name.startswith(METADATA) and not runs[name].dtype.is_nested()
        }
        self.run_metadata = runs = runs.select("run_id", *keys).rename(keys)
        frame = frame.join(runs, on="run_id", how="left", maintain_order="left") if keys else frame
        self.frame = frame.with_row_index(POSITION)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.frame.height

    @cached_property
    def columns(self) -> list[str]:
        """The columns that have a value somewhere, the most interesting first."""
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
        filled = [name for name in names if name in always or self.frame[name].null_count() < len(self)]
        middle = [name for name in filled if name not in first and name not in last]
        return [name for name in (*first, *middle, *last) if name in filled]

    @cached_property
    def groups(self) -> list[str]:
        """The columns and keys of runs' metadata that have a few values, to group episodes by."""
        own = [name for name in self.columns if name.startswith((RUN_KEY, METADATA)) or name == "env_index"]
        own.sort(key=lambda name: not name.startswith(RUN_KEY))
        return [name for name in (*own, "end_reason") if _few(self.frame[name])]

    @cached_property
    def facetable(self) -> list[str]:
        """The columns that can be a facet."""
        kinds = self.frame.schema
        return [
            name
            for name in self.columns
            if name != "episode_id" and (kinds[name].is_numeric() or kinds[name] in (pl.String, pl.Boolean))
        ]

    @cached_property
    def usual_facets(self) -> list[str]:
        """The facets that a page shows at first."""
        keys = [name for name in self.facetable if name.startswith((RUN_KEY, METADATA))]
        more = [*self.groups, *(name for name in keys if self.frame.schema[name].is_numeric())]
        names = dict.fromkeys(["end_reason", "episode_return", "length", "run_id", *more])
        return [name for name in names if name in self.facetable and name != "env_index"][:_MOST_FACETS]

    def facet(self, name: str) -> Facet:
        """Return a facet of all episodes; made once."""
        if name not in self.facets:
            labels = self.labels if name == "run_id" else {}
            self.facets[name] = facet_of(self.frame[name], column_sql(name), labels)
        return self.facets[name]

    def sortable(self, column: str) -> bool:
        """Return whether the list can be sorted by a column: not by lists."""
        kind = self.frame.schema[column]
        return kind.is_numeric() or kind in _SORTABLE

    @cached_property
    def runs(self) -> list[Run]:
        """The runs of these episodes, in the order in which they began."""
        counts = dict(self.frame["run_id"].value_counts().iter_rows())
        named = collected(self.store.runs.select("run_id", "name", "started_at")).sort("started_at", "run_id")
        names = [name or run_id for run_id, name, _ in named.iter_rows()]
        return [
            Run(run_id, label if names.count(label) == 1 else run_id, counts[run_id])
            for (run_id, _, _), label in zip(named.iter_rows(), names, strict=True)
            if run_id in counts
        ]

    def chosen(self, choice: Choice) -> EpisodeView:
        """Return the episodes of a choice, in the order of positions.

        Raises:
            QueryError: a condition is not valid; the message names the nearest columns.
        """
        mask = self.mask(choice)
        return self.store if mask is None else self.store[np.flatnonzero(mask)]

    def positions(self, choice: Choice) -> np.ndarray:
        """Return the positions of the episodes of a choice, int64, in its order.

        Raises:
            QueryError: a condition is not valid, or the column to sort by holds lists.
        """
        mask = self.mask(choice)
        if choice.sort == POSITION or choice.sort not in self.frame.columns:
            chosen = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
            return chosen[:: -1 if choice.descending else 1]
        if not self.sortable(choice.sort):
            raise QueryError(f"The list cannot be sorted by {choice.sort!r}, which holds lists.")
        if mask is not None and 2 * np.count_nonzero(mask) < len(mask):
            # Sooner sorted than all, whose order is kept.
            return positions_by(self.frame.filter(mask), choice.sort, choice.descending)
        key = ("order", choice.sort, choice.descending)
        order = self.cached(key, lambda: positions_by(self.frame, choice.sort, choice.descending))
        return order if mask is None else order[mask[order]]

    def mask(self, choice: Choice) -> np.ndarray | None:
        """Return which episodes a choice keeps, as bool by position; None for all."""
        # Each is run alone: joined with AND, `true) OR (true` would be valid.
        texts = (*choice.conditions, *choice.chips)
        filters: list[tuple[Any, str | pl.Expr]] = [(text, text) for text in texts if text.strip()]
        if choice.run_ids:
            filters.append((("runs", choice.run_ids), pl.col("run_id").is_in(choice.run_ids)))
        if choice.ids is not None:
            filters.append((("ids", choice.ids), pl.col("episode_id").is_in(choice.ids)))
        mask = None
        for key, condition in filters:
            kept = self.cached(key, lambda condition=condition: self._kept(condition))
            mask = kept if mask is None else mask & kept
        return mask

    def _kept(self, condition: str | pl.Expr) -> np.ndarray:
        kept = np.zeros(len(self), bool)
        kept[self.store.filter(condition).positions] = True
        return kept

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """Return what a function makes, or made before by this key; the least recently used are dropped."""
        with self._lock:
            if key in self._made:
                self._made[key] = self._made.pop(key)
                return self._made[key]
        made = make()
        with self._lock:
            self._made[key] = made
            while len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return made

    def rows(self, positions: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the rows at some positions, each with its position."""
        wanted = pl.Series(positions, dtype=pl.UInt32) if len(positions) else []
        return self.frame[wanted].to_dicts()

    def position_of(self, episode_id: str) -> int | None:
        """Return the position of an episode in this version; None if it is not in it."""
        return self.frame["episode_id"].index_of(episode_id)

    def short_id(self, episode_id: str) -> str:
        """Return the id of an episode with the label of its run in place of the run's id."""
        run_id, slash, number = episode_id.rpartition("/")
        return f"{self.labels.get(run_id, run_id)}{slash}{number}"

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of each run, by its id."""
        return {run.run_id: run.label for run in self.runs}

    def amounts(self, positions: np.ndarray | None = None) -> str:
        """Return how many episodes and runs there are, as a text; of some, by position, out of how many."""
        runs = len(self.runs)
        plural = "" if runs == 1 else "s"
        if positions is None or len(positions) == len(self):
            return f"{len(self):,} episodes · {runs:,} run{plural}"
        chosen = np.count_nonzero(np.bincount(self._run_numbers[positions]))
        return f"{len(positions):,} of {len(self):,} episodes · {chosen:,} of {runs:,} run{plural}"

    @cached_property
    def _run_numbers(self) -> np.ndarray:
        """A number for the run of each episode."""
        return self.frame["run_id"].rank("dense").to_numpy()

    @property
    def version(self) -> int:
        """The version that is shown."""
        return self.store.version


def positions_by(frame: pl.DataFrame, column: str, descending: bool) -> np.ndarray:
    """Positions of rows, int64, by a column: equal values by position, nulls last, NaN above numbers."""
    rows = frame.select(POSITION, column)
    ordered = rows.sort(column, descending=descending, nulls_last=True, maintain_order=True)
    return ordered[POSITION].to_numpy().astype(np.int64)


#: Beyond the palette its colours come again, nearer to white or to black by this share.
_NEARER = 0.35


class SeriesColors:
    """A colour for each series: for runs in the order in which they are met, for others as charts show them.

    End reasons have their colours of the library's charts. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._taken = 0
        self._lock = threading.Lock()

    def meet(self, runs: Sequence[Run]) -> None:
        """Give new runs their colours. A run whose label changed keeps its colour."""
        with self._lock:
            for run in runs:
                self._places[shown(run.label)] = self._place(shown(run.run_id))

    def knows(self, name: str) -> bool:
        """Return whether a series has a colour already, by the name that a chart has for it."""
        with self._lock:
            return name in END_COLORS or name in self._places

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the colours of series, by the names that a chart has for them; new ones get the next
        colours.
        """
        if set(names) <= set(END_COLORS):
            return [END_COLORS[name] for name in names]
        with self._lock:
            return [_color(self._place(name)) for name in names]

    def _place(self, name: str) -> int:
        if name not in self._places:
            self._places[name] = self._taken
            self._taken += 1
        return self._places[name]


def _color(place: int) -> str:
    again, index = divmod(place, len(PALETTE))
    color = PALETTE[index]
    if not again % 3:
        return color
    goal = 255 if again % 3 == 1 else 0
    mixed = (round(int(color[at : at + 2], 16) * (1 - _NEARER) + goal * _NEARER) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in mixed)
