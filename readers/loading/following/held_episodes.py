"""Arrays of the episodes in a window, which grow with new episodes and drop old ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from ....store.errors import InvalidArgumentError
from ..columns.episode_index import EpisodeIndex
from ..columns.step_arrays import StepArrays
from ..output.tree import Tree, leaves, map_leaves
from ..units.unit import Units
from .window import places_among

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
                        f"{held.dtype} of shape {held.shape[1:]}. What works it out must give the same."
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
