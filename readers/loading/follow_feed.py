"""Units of a store that grows: looks for new episodes between batches, and draws from those of a window."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.errors import CorruptStoreError, EpisodeTimeoutError
from ...store.snapshot import Snapshot
from .arguments import Weights, evaluate_weights
from .columns import Column, choose_columns
from .episode_index import EpisodeIndex
from .feed import Places
from .follow_window import Contents, Follow, contents_of, no_contents, places_among, seconds
from .held_episodes import HeldEpisodes
from .orders import Drawn
from .permutation import hash_words, uniforms
from .priorities import Priorities, Prioritised, power
from .prioritised import PRIORITISED, UNIT, WEIGHT
from .step_arrays import StepArrays, read_arrays
from .transforms.on_read import Stages
from .unit_index import UnitIndex
from .units.unit import EPISODE, Batch, Chosen, Units

if TYPE_CHECKING:
    from .feeding import FeedingView

#: Draws do not end; so many are never made.
_NO_END = 1 << 62
_LONGEST_PAUSE = 0.05
_ATTEMPTS = 5


class FollowFeed:
    """Units of the newest episodes of a store, drawn with replacement.

    A draw is a pure function of the seed, its number, and the episodes there are (ordered by their ends), and
    where drawn by priority, the priorities.

    Args:
        view: which store, and which of its episodes.
        follow: how it is followed.
        units: the kind of unit.
        keys: what a batch has.
        stages: what is done to the rows of episodes before units are gathered.
        seed: of the draws.
        weights: as for a loader.
        rule: to draw by priority; None to draw by weights.
    """

    def __init__(
        self,
        view: FeedingView,
        follow: Follow,
        units: Units,
        keys: Sequence[str],
        stages: Stages,
        *,
        seed: int,
        weights: Weights | None,
        rule: Prioritised | None,
    ) -> None:
        self.units = units
        self._view = view
        self._follow = follow
        self._keys = tuple(keys)
        self._stages = stages
        self._seed = seed
        self._weights: Weights | None = weights
        self._rule = rule
        self._columns: tuple[Column, ...] | None = None
        self._held = HeldEpisodes(units)
        self._slots = np.zeros(0, np.int64)
        self._order: Drawn | None = None
        self._looked = -np.inf
        self.contents = no_contents(-1)
        self._arrays = self._held.arrays
        self._unit_index = UnitIndex(units, self.contents.index)
        self.priorities = None if rule is None else Priorities(rule, np.zeros(0))

    def __getstate__(self) -> dict[str, Any]:
        """The clock of another machine may stand anywhere, so a copy looks at once."""
        return vars(self) | {"_looked": -np.inf}

    @property
    def length(self) -> int:
        """See `Feed`; it has no end."""
        return _NO_END

    @property
    def _edges(self) -> np.ndarray:
        """The first unit of each episode that is shown, and the number of all."""
        return self._unit_index.edges

    @property
    def unit_count(self) -> int:
        """Units there are at the moment."""
        return int(self._edges[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that are held."""
        return self._held.nbytes

    def facts(self) -> dict[str, Any]:
        """See `Feed`."""
        return {}

    def batches(self, epoch: int, places: Places, batch_size: int) -> Iterator[Batch]:
        """See `Feed`; before each batch it looks for new episodes if that is due.

        Raises:
            EpisodeTimeoutError: there is no unit, and none came.
        """
        for first in range(0, places.count, batch_size):
            self._look_if_due()
            yield self._drawn(epoch, places.part(first, first + batch_size))

    def pick(self, epoch: int, places: Places) -> Batch:
        """See `Picking`; it looks for new episodes first, as before each batch."""
        self._look_if_due()
        return self._drawn(epoch, places.part(0, places.count))

    def _drawn(self, epoch: int, draws: np.ndarray) -> Batch:
        if self.priorities is not None:
            numbers, weights = self.priorities.draw(
                uniforms(hash_words(self._seed, epoch, PRIORITISED), draws)
            )
        else:
            assert self._order is not None
            numbers, weights = self._order.units(epoch, draws), None
        chosen = self._unit_index.choose(numbers)
        slots = self._slots[chosen.episodes]
        batch = self.units.gather(self._arrays, self._keys, Chosen(slots, chosen.numbers))
        if EPISODE in batch:
            batch[EPISODE] = chosen.episodes
        if weights is not None:
            batch |= {UNIT: self._held.bases[slots] + chosen.numbers, WEIGHT: weights}
        return batch

    # Looking for new episodes

    def _look_if_due(self) -> None:
        if time.monotonic() - self._looked >= self._follow.refresh_seconds:
            self.look()
        if self.unit_count:
            return
        until = time.monotonic() + self._follow.wait_seconds
        while not self.unit_count:
            if time.monotonic() >= until:
                raise EpisodeTimeoutError(self._what_is_missing())
            time.sleep(_LONGEST_PAUSE)
            self.look()

    def _what_is_missing(self) -> str:
        root = self._view._reader.snapshot.layout.root
        there, longest = len(self.contents), int(self.contents.index.lengths.max(initial=0))
        said = f"the {there} that are there have no {self.units}: the longest has {longest} transitions"
        return (
            f"No episode to draw from came to {root} within {seconds(self._follow.wait_seconds)}; "
            f"{said if there else 'it has none that the filter lets through'} (version "
            f"{self.contents.version}). Episodes become visible when their writer seals them: see "
            "seal_seconds of SessionOptions. Raise wait_seconds to wait longer."
        )

    def look(self) -> None:
        """Move to the newest version of the store.

        Raises:
            CorruptStoreError: a file is damaged; it shows what it showed.
            InvalidArgumentError: a column of new episodes has another dtype or shape than before.
        """
        looked = time.monotonic()
        for attempt in range(_ATTEMPTS):
            known = self._view._reader.snapshot
            if self.contents.version == known.version and known.newer_version() is None:
                break
            snapshot = Snapshot(known.layout, known.manifest)
            try:
                self._show(self._view._renewed(snapshot))
                break
            except (CorruptStoreError, FileNotFoundError):
                # Files of a version that is no longer the newest may be vacuumed while they are read.
                if snapshot.newer_version() is None or attempt == _ATTEMPTS - 1:
                    raise
        self._looked = looked

    def _show(self, view: FeedingView) -> None:
        contents = contents_of(view, self._follow)
        unit_index = UnitIndex(self.units, contents.index)
        edges = unit_index.edges
        snapshot, weighed = view._reader.snapshot, None
        if edges[-1]:
            weighed = evaluate_weights(snapshot, contents.positions, edges, self._weights)
        slots = self._held.slots(contents.ids)
        new = slots < 0
        arrays = self._read(view, contents, new) if new.any() else None
        if arrays is not None:
            kept = np.zeros(len(self._held.arrays.index), bool)
            kept[slots[~new]] = True
            self._held.add(contents.ids.filter(pl.Series(new)), arrays, kept)
            # From here on nothing can fail.
            slots = self._held.slots(contents.ids)
            self._arrays = self._stages.stack(self._held.arrays)
        if self.priorities is not None:
            before = places_among(contents.ids, self.contents.ids)
            self.priorities.restore(self._carried(self.priorities.powers, self._edges, before, edges))
        self._view, self.contents, self._slots, self._unit_index = view, contents, slots, unit_index
        self._order = Drawn(int(edges[-1]), self._seed, edges, weighed)

    def _read(self, view: FeedingView, contents: Contents, new: np.ndarray) -> StepArrays:
        snapshot = view._reader.snapshot
        if self._columns is None:
            wanted = self._stages.columns(self.units, self._keys)
            self._columns = choose_columns(snapshot, contents.positions, wanted)
        index = EpisodeIndex(contents.index.lengths[new], contents.index.end_reasons[new])
        arrays = read_arrays(view._reader.blocks, contents.positions[new], index, self._columns)
        return self._stages.derive(arrays, self.units.columns(self._keys))

    # Priorities

    def _carried(
        self, powers: np.ndarray, old_edges: np.ndarray, before: np.ndarray, edges: np.ndarray
    ) -> np.ndarray:
        """The powers of units: as before for episodes that were there, the largest of these for new ones."""
        assert self._rule is not None
        counts = np.diff(edges)
        stayed = np.repeat(before >= 0, counts)
        moved = np.repeat(np.where(before >= 0, old_edges[before] - edges[:-1], 0), counts)
        kept = powers[(np.arange(len(stayed)) + moved)[stayed]]
        largest = kept.max(initial=0.0) or powers.max(initial=0.0) or power(self._rule, 1.0)
        found = np.full(len(stayed), largest)
        found[stayed] = kept
        return found

    def change(self, units: np.ndarray, priorities: np.ndarray) -> None:
        """Set priorities; units of episodes that have gone since are passed over."""
        assert self.priorities is not None
        held = self._held
        slots = np.searchsorted(held.bases, units, side="right") - 1
        numbers = units - held.bases[slots]
        shown = np.full(len(held.bases), -1)
        shown[self._slots] = np.arange(len(self._slots))
        places = shown[slots]
        there = (slots >= 0) & (places >= 0)
        there[there] = numbers[there] < self.counts[places[there]]
        self.priorities.change((self._edges[places] + numbers)[there], priorities[there])

    @property
    def numbered(self) -> int:
        """How many unit numbers were given out."""
        return self._held.numbered

    @property
    def counts(self) -> np.ndarray:
        """Units of each episode that is shown: int64."""
        return np.diff(self._edges)

    def restore(self, ids: Sequence[str], counts: np.ndarray, powers: np.ndarray) -> None:
        """Set the priorities of episodes that are there; others get the largest."""
        assert self.priorities is not None
        edges = np.concatenate([[0], np.cumsum(counts)])
        before = places_among(self.contents.ids, pl.Series(list(ids), dtype=pl.String))
        self.priorities.restore(self._carried(powers, edges, before, self._edges))
