"""A following loader's window: the newest episodes of a snapshot, and the arrays that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ...store.common.arguments import expect, is_real, whole_number
from ...store.delta.log import TableFile
from ...store.errors import InvalidArgumentError
from ...store.layout import EPISODES
from ...store.snapshot import Snapshot
from ..columns.selection import END_TYPE, EpisodeIndex, Selection
from ..columns.step_arrays import StepArrays
from ..columns.tree import Tree, leaves, map_leaves
from ..context import ReadContext, SqlCondition
from ..frames import POSITION, collect_episodes, positioned_episodes, table_frame
from .units import Units

_ID = "episode_id"


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Settings of a following loader; `store.loader(256, follow=el.Follow(newest_steps=100_000))`.

    Args:
        refresh_seconds: greatest age of what a batch shows of the store, from 0 on.
        newest_steps: draw from the newest episodes with at most so many transitions together, and always from
            the newest one; None for all.
        newest_episodes: draw from so many newest episodes; None for all.
        wait_seconds: how long to wait for an episode while there is none; `EpisodeTimeoutError` after that.

    Raises:
        InvalidArgumentError: a time is negative or no number, or a count is no whole number from 1 on.
    """

    refresh_seconds: float = 1.0
    newest_steps: int | None = None
    newest_episodes: int | None = None
    wait_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("refresh_seconds", "wait_seconds"):
            value = getattr(self, name)
            expect(is_real(value) and value >= 0, name, value, "seconds from 0 on")
        for name in ("newest_steps", "newest_episodes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)

    def first(self, lengths: np.ndarray) -> int:
        """Return the number of the first episode in the window; the newest episode is the last."""
        episodes, first = len(lengths), 0
        if self.newest_episodes is not None:
            first = max(episodes - self.newest_episodes, 0)
        if self.newest_steps is not None and episodes:
            from_there = np.cumsum(lengths[::-1])
            fitting = int(np.searchsorted(from_there, self.newest_steps, side="right"))
            first = max(first, episodes - max(fitting, 1))
        return first

    def filled(self, episodes: int, steps: int) -> bool:
        """Return whether the window reaches no further than so many newest episodes with so many steps."""
        return (self.newest_episodes is not None and episodes >= self.newest_episodes) or (
            self.newest_steps is not None and steps >= self.newest_steps
        )


@dataclass(frozen=True)
class Contents:
    """The episodes of a window, in commit order.

    Attributes:
        version: of the store.
        ids: strings, one for each episode.
        positions: int64, shape (E,), in the snapshot.
        index: their lengths and how they ended.
    """

    version: int
    ids: pl.Series
    positions: np.ndarray
    index: EpisodeIndex

    def __len__(self) -> int:
        """Return the number of episodes E."""
        return len(self.positions)

    def selection(self, snapshot: Snapshot) -> Selection:
        """Return the episodes for reading, in the snapshot that they were found in."""
        pointers = snapshot.pointers.chosen(self.positions)
        return Selection(self.positions, pointers, self.index, snapshot.schema)


class WindowReader:
    """Reads the episodes of a window, newest file first; a file that was read is not read again.

    Args:
        conditions: the filters of the view that is followed.
        follow: how far the window reaches.
    """

    def __init__(self, conditions: Sequence[pl.Expr | SqlCondition], follow: Follow) -> None:
        self._conditions = tuple(conditions)
        self._follow = follow
        # What each file of the window has, by its name: positions count within the file.
        self._frames: dict[str, pl.DataFrame] = {}

    def contents(self, context: ReadContext) -> Contents:
        """Return the episodes that the window reaches: a pure function of the snapshot.

        The newest episodes are those committed last. The clocks of writers do not matter: one that is ahead
        would fill the window.

        Args:
            context: all episodes of a snapshot.

        Raises:
            CorruptStoreError: the episodes table is damaged.
        """
        snapshot = context.snapshot
        exprs = [condition for condition in self._conditions if isinstance(condition, pl.Expr)]
        if len(exprs) == len(self._conditions) and all(map(by_row, exprs)):
            episodes = self._newest(snapshot, exprs)
        else:
            from ..filters import filter_episodes

            # Whether an episode passes may depend on others, so all of them are read.
            for condition in self._conditions:
                context = filter_episodes(context, condition)
            frame = positioned_episodes(snapshot, context.all_positions)
            episodes = collect_episodes(snapshot, frame.select(*_SHOWN).sort(POSITION))
        episodes = episodes.slice(self._follow.first(episodes["length"].to_numpy()))
        positions = episodes[POSITION].to_numpy().astype(np.int64)
        index = EpisodeIndex.of(episodes, snapshot.missing_at(positions))
        return Contents(snapshot.version, episodes[_ID], positions, index)

    def _newest(self, snapshot: Snapshot, conditions: Sequence[pl.Expr]) -> pl.DataFrame:
        """Return the episodes of the last files, as many files as the window needs, in commit order."""
        files = snapshot.episode_files
        rows = [file.rows for file in files]
        stop, first, batch = len(files), sum(rows), 1
        kept: dict[str, pl.DataFrame] = {}
        parts = [
            collect_episodes(
                snapshot, table_frame(snapshot, EPISODES, files=[]).with_row_index(POSITION).select(*_SHOWN)
            )
        ]
        episodes = steps = 0
        while stop and not self._follow.filled(episodes, steps):
            stop -= 1
            first -= rows[stop]
            name = files[stop].name
            if name not in self._frames:
                low = stop
                while low and stop - low + 1 < batch and files[low - 1].name not in self._frames:
                    low -= 1
                self._read(snapshot, files[low : stop + 1], conditions)
                batch = min(batch * 2, _MOST_FILES)
            kept[name] = part = self._frames[name]
            parts.append(part.with_columns(pl.col(POSITION) + first))
            episodes += len(part)
            steps += int(part["length"].sum())
        self._frames = kept
        return pl.concat(parts[::-1])

    def _read(self, snapshot: Snapshot, files: list[TableFile], conditions: Sequence[pl.Expr]) -> None:
        """Read neighbouring files at once, and keep what each of them has."""
        frame = table_frame(snapshot, EPISODES, files).with_row_index(POSITION)
        for condition in conditions:
            frame = frame.filter(condition)
        episodes = collect_episodes(snapshot, frame.select(*_SHOWN))
        edges = np.cumsum([0, *(file.rows for file in files)])
        cuts = np.searchsorted(episodes[POSITION].to_numpy(), edges)
        for file, edge, low, high in zip(files, edges, cuts, cuts[1:], strict=False):
            part = episodes.slice(int(low), int(high - low))
            self._frames[file.name] = part.with_columns(pl.col(POSITION) - int(edge))


#: Read at once at most.
_MOST_FILES = 512
_SHOWN = (
    pl.col(POSITION).cast(pl.Int64),
    pl.col(_ID),
    pl.col("length"),
    pl.col("end_reason").cast(END_TYPE),
)


def by_row(condition: pl.Expr) -> bool:
    """Return whether a condition certainly looks at one row at a time: comparisons of columns and constants.

    >>> by_row((pl.col("length") > 5) & pl.col("seed").is_not_null())
    True
    >>> by_row(pl.col("length") > pl.col("length").mean())
    False
    """
    try:
        return _is_by_row(json.loads(condition.meta.serialize(format="json")))
    except (pl.exceptions.PolarsError, ValueError):
        return False


def _is_by_row(node: Any) -> bool:
    if not isinstance(node, dict) or len(node) != 1:
        return False
    ((kind, content),) = node.items()
    if kind == "Literal":
        return "Dyn" in content or ("Scalar" in content and "List" not in content["Scalar"])
    if kind == "Column":
        return True
    if kind == "BinaryExpr":
        return _is_by_row(content["left"]) and _is_by_row(content["right"])
    if kind == "Function" and isinstance(content["function"], dict):
        function = content["function"].get("Boolean")
        name = next(iter(function), None) if isinstance(function, dict) else function
        return name in _BY_ROW and all(map(_is_by_row, content["input"]))
    return False


#: Functions of Polars that look at one row at a time.
_BY_ROW = {"Not", "IsNull", "IsNotNull", "IsNan", "IsNotNan", "IsFinite", "IsInfinite", "IsBetween"}


def no_contents(version: int) -> Contents:
    """Return those of a store without an episode."""
    empty = np.zeros(0, np.int64)
    return Contents(version, pl.Series(_ID, [], pl.String), empty, EpisodeIndex(empty, empty.astype(np.int8)))


def places_among(ids: pl.Series, known: pl.Series) -> np.ndarray:
    """Return the position of each id among known ones: int64, -1 for unknown ids."""
    others = pl.DataFrame({_ID: known}).with_row_index(POSITION)
    matched = pl.DataFrame({_ID: ids}).join(others, on=_ID, how="left", maintain_order="left")
    return matched[POSITION].cast(pl.Int64).fill_null(-1).to_numpy()


#: The arrays have room for so much more than they hold when they are made anew.
_ROOM = 1.5


class EpisodeWindow:
    """Episodes in the order in which they came; each has a slot, and numbers for its units that never change.

    Those that are no longer wanted stay until there is no room; then the others move to new arrays. So each
    row is moved about twice on its way through a window, and the arrays are at most half as large again as
    what was wanted when they were made.

    Args:
        units: what is numbered.
    """

    def __init__(self, units: Units) -> None:
        empty = np.zeros(0, np.int64)
        self._units = units
        self._ids = pl.Series([], dtype=pl.String)
        self._columns: dict[str, Tree] = {}
        self._capacity = 0
        #: The number of each slot's first unit: int64, ascending.
        self.bases = empty
        #: How many unit numbers were given out.
        self.numbered = 0
        #: All slots.
        self.arrays = StepArrays(EpisodeIndex(empty, empty.astype(np.int8)), {})

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, with the room that is free."""
        return sum(leaf.nbytes for tree in self._columns.values() for _, leaf in leaves(tree))

    def slots(self, ids: pl.Series) -> np.ndarray:
        """Return the slots of some episodes: int64, -1 where one is not held."""
        return places_among(ids, self._ids)

    def add(self, ids: pl.Series, new: StepArrays, kept: np.ndarray) -> None:
        """Take in episodes. Slots may move.

        Args:
            ids: of the new episodes.
            new: their columns, which are taken over.
            kept: bool, one for each slot: whether it is still wanted.

        Raises:
            InvalidArgumentError: a column has another dtype or shape than before; nothing has changed.
        """
        self._check_alike(new)
        if self.arrays.index.rows + new.index.rows > self._capacity:
            self._make_room(kept, new)
        first = self.arrays.index.rows
        if self._capacity > first:
            for name, tree in new.columns.items():
                map_leaves(lambda into, own: _write(into, first, own), self._columns[name], tree)
        counts = self._units.counts(new.index)
        bases = self.numbered + np.cumsum(counts) - counts
        self.numbered += int(counts.sum())
        self.bases = np.concatenate([self.bases, bases])
        self._ids = pl.concat([self._ids, ids.rename(self._ids.name)])
        self._show(_extended(self.arrays.index, new.index))

    def _check_alike(self, new: StepArrays) -> None:
        """Refuse values that the arrays cannot hold as they are: only what a function gives can differ."""
        for name in self._columns:
            pairs = zip(leaves(self._columns[name], name), leaves(new.columns[name], name), strict=True)
            for (part, held), (_, own) in pairs:
                if (held.dtype, held.shape[1:]) != (own.dtype, own.shape[1:]):
                    raise InvalidArgumentError(
                        f"{part!r} of new episodes is {own.dtype} of shape {own.shape[1:]}, and was "
                        f"{held.dtype} of shape {held.shape[1:]}. The transform must return one dtype "
                        "and shape."
                    )

    def _make_room(self, kept: np.ndarray, new: StepArrays) -> None:
        old = self.arrays.index
        index = old[kept]
        self._capacity = int((index.rows + new.index.rows) * _ROOM)
        stretches = list(_stretches(old, kept))
        for name, tree in new.columns.items():
            # One column after the other, so that no more than one is there twice.
            self._columns[name] = map_leaves(
                lambda own, rows: _moved(rows, stretches, own, self._capacity),
                tree,
                self._columns.get(name, tree),
            )
        self.bases = self.bases[kept]
        self._ids = self._ids.filter(pl.Series(kept))
        self._show(index)

    def _show(self, index: EpisodeIndex) -> None:
        shown = {
            name: map_leaves(lambda leaf: leaf[: index.rows], tree) for name, tree in self._columns.items()
        }
        self.arrays = StepArrays(index, shown)


def _extended(one: EpisodeIndex, other: EpisodeIndex) -> EpisodeIndex:
    missing = [
        np.zeros(len(index), bool) if index.missing is None else index.missing for index in (one, other)
    ]
    return EpisodeIndex(
        np.concatenate([one.lengths, other.lengths]),
        np.concatenate([one.end_reasons, other.end_reasons]),
        missing=None if one.missing is other.missing is None else np.concatenate(missing),
        left_out=other.left_out,
    )


def _stretches(index: EpisodeIndex, kept: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the rows of kept slots, as stretches from one row to another."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(np.int8)))
    rows = index.starts[changes].tolist()
    yield from zip(rows[::2], rows[1::2], strict=True)


def _moved(rows: np.ndarray, stretches: list[tuple[int, int]], like: np.ndarray, capacity: int) -> np.ndarray:
    into = np.empty((capacity, *like.shape[1:]), like.dtype)
    place = 0
    for start, stop in stretches:
        into[place : place + stop - start] = rows[start:stop]
        place += stop - start
    return into


def _write(into: np.ndarray, first: int, values: np.ndarray) -> None:
    into[first : first + len(values)] = values
