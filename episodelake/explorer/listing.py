"""The store that the page shows: its newest version, the episodes of one, and the colours of its runs.

Rows of the episodes table are small (about 130 bytes each); steps are not read. Orders and filters are cached
as arrays, so a page of a million episodes costs as little as one of a hundred.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from .._store import EpisodeStore
from ..lakes.lake import Lake
from ..readers.charts.theme import END_COLORS, PALETTE, shown
from ..readers.choosing import sorted_positions
from ..readers.sql.text import literal, quote
from ..readers.view import EpisodeView
from ..store.card import known_entries
from ..store.errors import CorruptStoreError, EpisodelakeError, QueryError
from ..store.journal.run_journal import journal_runs
from .checkup import Checkup

#: No column of a user begins with an underscore.
POSITION = "_position"
#: How columns of the runs' metadata begin.
RUN_KEY, METADATA = "run.", "metadata."
#: The places of steps in files, which the list does not show.
_HIDDEN = ("segment", "row_start", "row_count")
_KEPT_ARRAYS = 8
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
    """

    conditions: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    sort: str = POSITION
    descending: bool = True
    ids: tuple[str, ...] | None = None
    about: str = ""

    @property
    def where(self) -> str:
        """The whole choice as one SQL condition; empty for all episodes."""
        parts = [condition.strip() for condition in self.conditions if condition.strip()]
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
        key = self.sort.removeprefix(RUN_KEY)
        sort = quote(key) if key == self.sort else f"run.{quote(key)}"
        return f"SELECT * FROM episodes{where}\nORDER BY {sort} {way} NULLS LAST"

    def sorted_by(self, column: str, descending: bool) -> Choice:
        """Return the same episodes in another order."""
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


_MOST_GROUPS = 50


def _few(values: pl.Series) -> bool:
    return not values.dtype.is_nested() and 1 < values.n_unique() <= _MOST_GROUPS


@dataclass
class EpisodeList:
    """The episodes of one version. Safe to use from several threads.

    Args:
        store: pinned at the version.
    """

    store: EpisodeStore
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _arrays: dict[Any, np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        frame = self.store.episodes.drop(_HIDDEN, strict=False).collect()
        runs = self.store.runs.collect()
        keys = {
            name: RUN_KEY + name.removeprefix(METADATA)
            for name in runs.columns
            if name.startswith(METADATA) and not runs[name].dtype.is_nested()
        }
        runs = runs.select("run_id", *keys).rename(keys)
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

    def sortable(self, column: str) -> bool:
        """Return whether the list can be sorted by a column: not by lists."""
        kind = self.frame.schema[column]
        return kind.is_numeric() or kind in _SORTABLE

    @cached_property
    def runs(self) -> list[Run]:
        """The runs of these episodes, in the order in which they began."""
        counts = dict(self.frame["run_id"].value_counts().iter_rows())
        named = self.store.runs.select("run_id", "name", "started_at").collect().sort("started_at", "run_id")
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
        mask = self._mask(choice)
        return self.store if mask is None else self.store[np.flatnonzero(mask)]

    def positions(self, choice: Choice) -> np.ndarray:
        """Return the positions of the episodes of a choice, int64, in its order.

        Raises:
            QueryError: a condition is not valid, or the column to sort by holds lists.
        """
        mask = self._mask(choice)
        if choice.sort == POSITION or choice.sort not in self.frame.columns:
            chosen = np.arange(len(self)) if mask is None else np.flatnonzero(mask)
            return chosen[:: -1 if choice.descending else 1]
        order = self._order(choice.sort, choice.descending)
        return order if mask is None else order[mask[order]]

    def _mask(self, choice: Choice) -> np.ndarray | None:
        """Return which episodes a choice keeps, as bool by position; None for all."""
        # Each is run alone: joined with AND, `true) OR (true` would be valid.
        filters: list[tuple[Any, str | pl.Expr]] = [
            (text, text) for text in choice.conditions if text.strip()
        ]
        if choice.run_ids:
            filters.append((choice.run_ids, pl.col("run_id").is_in(choice.run_ids)))
        if choice.ids is not None:
            filters.append((choice.ids, pl.col("episode_id").is_in(choice.ids)))
        mask = None
        for key, condition in filters:
            kept = self._cached(key, lambda condition=condition: self._kept(condition))
            mask = kept if mask is None else mask & kept
        return mask

    def _kept(self, condition: str | pl.Expr) -> np.ndarray:
        kept = np.zeros(len(self), bool)
        kept[self.store.filter(condition).positions] = True
        return kept

    def _order(self, column: str, descending: bool) -> np.ndarray:
        if not self.sortable(column):
            raise QueryError(f"The list cannot be sorted by {column!r}, which holds lists.")
        return self._cached((column, descending), lambda: sorted_positions(self.frame[column], descending))

    def _cached(self, key: Any, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an array by a key; the least recently used ones are dropped."""
        with self._lock:
            if key in self._arrays:
                self._arrays[key] = self._arrays.pop(key)
                return self._arrays[key]
        array = make()
        with self._lock:
            self._arrays[key] = array
            while len(self._arrays) > _KEPT_ARRAYS:
                del self._arrays[next(iter(self._arrays))]
        return array

    def rows(self, positions: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the rows at some positions, each with its position."""
        wanted = pl.Series(positions, dtype=pl.UInt32) if len(positions) else []
        return self.frame[wanted].to_dicts()

    def position_of(self, episode_id: str) -> int | None:
        """Return the position of an episode in this version; None if it is not in it."""
        return self.frame["episode_id"].index_of(episode_id)

    def amounts(self, positions: np.ndarray | None = None) -> str:
        """Return how many episodes and runs there are, as a text; of some, by position, out of how many."""
        runs = len(self.runs)
        plural = "" if runs == 1 else "s"
        if positions is None or len(positions) == len(self):
            return f"{len(self):,} episodes · {runs:,} run{plural}"
        chosen = self.frame["run_id"].gather(positions).n_unique()
        return f"{len(positions):,} of {len(self):,} episodes · {chosen:,} of {runs:,} run{plural}"

    @property
    def version(self) -> int:
        """The version that is shown."""
        return self.store.version


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


#: Seconds between polls; a pause lasts at least this many times the loading of a version.
PAUSE = 2.0
REST = 5.0


@dataclass(frozen=True)
class Shown:
    """A version of the store, ready to be shown.

    Attributes:
        store: the open store, pinned at the version.
        episodes: its list.
        card: the entries of the dataset card that have a meaning, as texts.
        seconds: how long it took to load.
    """

    store: EpisodeStore
    episodes: EpisodeList
    card: dict[str, str]
    seconds: float


def load(store: EpisodeStore) -> Shown:
    """Read the list of an open store's episodes.

    Raises:
        CorruptStoreError: a file of episodes is damaged; the message names it.
    """
    started = time.perf_counter()
    try:
        card = known_entries(store.card)
    except CorruptStoreError as error:
        card = {"problem": str(error)}
    return Shown(store, EpisodeList(store), card, time.perf_counter() - started)


class Watch:
    """Keeps the newest version at hand. One for all pages of a server; safe to use from several threads.

    Args:
        store: an open store, which stays unchanged: other versions are opened beside it.

    Attributes:
        shown: the version to show.
        problem: why the newest version could not be read; None if it was.
        left_out: the errors of files that could not be read from the start; the rest is shown.
        written: whether a live writer of this machine records a run of the store.
        colors: those of its runs, the same in every version and on all pages.
        writable: whether pages may label episodes.
    """

    def __init__(self, store: EpisodeStore, *, pinned: bool = False, writable: bool = False) -> None:
        self.writable = writable
        self.left_out: tuple[str, ...] = ()
        try:
            self.shown = load(store)
        except CorruptStoreError:
            self.shown = self._rest(store)
        self.problem: str | None = None
        self.colors = SeriesColors()
        self.colors.meet(self.shown.episodes.runs)
        self.pinned = pinned
        self._lock = threading.Lock()
        self._earliest = 0.0
        self.written = False
        self._checkup: Checkup | None = None

    def checkup(self) -> Checkup:
        """Return the health of the version that is shown, or of one before while the checkups take long."""
        last, shown = self._checkup, self.shown.store
        if last is None or (
            last.version != shown.version
            and last.ended is not None
            and time.monotonic() - last.ended > REST * last.seconds
        ):
            self._checkup = last = Checkup(shown, last)
        return last

    def close(self) -> None:
        """Stop what runs in the background."""
        if self._checkup is not None:
            self._checkup.stop()

    def _rest(self, store: EpisodeStore) -> Shown:
        """Return a store without its damaged files of episodes or runs."""
        left_out = tuple(store.leave_out_damaged())
        shown = load(store)
        self.left_out = left_out
        return shown

    def look_now(self) -> Shown:
        """Look for a newer version, however short ago the last look was."""
        self._earliest = 0.0
        return self.look()

    def look(self, now: Callable[[], float] = time.monotonic) -> Shown:
        """Poll for a newer version, unless the last poll was a moment ago, and return the one to show.

        The error of an unreadable version is kept in `problem`, and the older version stays.
        """
        if self.pinned or not self._lock.acquire(blocking=False):
            return self.shown
        try:
            if now() < self._earliest:
                return self.shown
            snapshot = self.shown.store.context.snapshot
            self.written = bool(journal_runs(*snapshot.layout.journal_places)[0])
            if snapshot.newer_version() is not None:
                # Refresh a copy, since pages may still read the older version.
                newer = copy.copy(self.shown.store).refresh()
                self.shown = self._rest(newer) if self.left_out else load(newer)
                self.colors.meet(self.shown.episodes.runs)
            self.problem = None
        except EpisodelakeError as error:
            self.problem = str(error)
        finally:
            self._earliest = now() + max(PAUSE * 0.5, REST * self.shown.seconds)
            self._lock.release()
        return self.shown


#: The stores of a lake that are kept open for pages.
_KEPT_STORES = 8


class LakeWatch:
    """Keeps the list of a lake's stores at hand. One for all pages; safe to use from several threads.

    Attributes:
        lake: the lake, which only this object uses.
        stores: the list to show, as `Lake.stores` returns it.
        problem: why the lake could not be looked at again; None if it was.
        writable: whether pages may label episodes.
    """

    def __init__(self, lake: Lake, *, writable: bool = False) -> None:
        self.lake = lake
        self.writable = writable
        self.problem: str | None = None
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._watches: dict[str, Watch] = {}
        started = time.monotonic()
        self.stores = lake.stores()
        self._rest(started, started)

    def _rest(self, started: float, ended: float) -> None:
        self._earliest = ended + max(PAUSE * 0.5, REST * (ended - started))

    def look(self, now: Callable[[], float] = time.monotonic) -> pl.DataFrame:
        """Look at the lake again, unless the last look was a moment ago, and return the list to show."""
        started = now()
        if started < self._earliest or not self._lock.acquire(blocking=False):
            return self.stores
        try:
            self.stores, self.problem = self.lake.refresh().stores(), None
        except EpisodelakeError as error:
            self.problem = str(error)
        finally:
            self._rest(started, now())
            self._lock.release()
        return self.stores

    def store(self, name: str) -> Watch:
        """Return the watch of a store, by its name; those used last stay open.

        Raises:
            EpisodelakeError: there is no such store, or it cannot be read.
        """
        with self._opening:
            watch = self._watches.pop(name, None)
            if watch is None or watch.problem is not None:
                watch = Watch(self.lake[name], writable=self.writable)
            self._watches[name] = watch
            while len(self._watches) > _KEPT_STORES:
                self._watches.pop(next(iter(self._watches))).close()
            return watch

    def close(self) -> None:
        """Stop what runs in the background."""
        for watch in self._watches.values():
            watch.close()
