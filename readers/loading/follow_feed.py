"""Units of a growing store: refreshes between batches, and draws from the newest episodes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from ...store.errors import CorruptStoreError, EpisodeTimeoutError, LoaderStateError
from ...store.names import EPISODE, UNIT, WEIGHT
from ...store.snapshot import Snapshot
from ..columns.column import Column
from ..columns.episode_columns import choose_followed
from ..columns.step_arrays import ColumnSource, StepArrays, read_arrays
from ..context import ReadContext
from .config import LoaderConfig, evaluate_weights
from .feed import Feed, ShardSlice
from .follow_window import Contents, EpisodeWindow, Follow, WindowReader, no_contents, places_among
from .orders import Drawn
from .priorities import Priorities, checked_update, read_priorities
from .units import Batch, Chosen, UnitIndex

#: Draws do not end; so many are never made.
_NO_END = 1 << 62
_LONGEST_PAUSE = 0.05
_ATTEMPTS = 5


class FollowFeed(Feed):
    """Units of the newest episodes of a store, drawn with replacement.

    A draw is a pure function of the seed, its number, and the episodes there are (ordered by their ends), and
    where drawn by priority, the priorities.

    Args:
        context: which store, and which of its episodes.
        follow: how it is followed.
        config: the kind of unit, its keys, the transforms, and how units are drawn.
    """

    def __init__(self, context: ReadContext, follow: Follow, config: LoaderConfig) -> None:
        self.units = units = config.units
        self._context = context
        self._follow = follow
        self._window = WindowReader(context.conditions or (), follow)
        self._config = config
        self._columns: tuple[Column, ...] | None = None
        self._held = EpisodeWindow(units)
        self._slots = np.zeros(0, np.int64)
        self._order: Drawn | None = None
        self._looked = -np.inf
        self._warned = False
        self.contents = no_contents(-1)
        self._arrays = self._held.arrays
        self._unit_index = UnitIndex(units, self.contents.index)
        rule = config.prioritized
        self.priorities = None if rule is None else Priorities(rule, config.seed)

    def __getstate__(self) -> dict[str, Any]:
        """Let a copy refresh at once, since the clock of another machine may differ."""
        return vars(self) | {"_looked": -np.inf}

    @property
    def length(self) -> int:
        """See `Feed`; it has no end."""
        return _NO_END

    @property
    def ahead(self) -> bool:
        """See `Feed`; each batch has the episodes of its moment."""
        return False

    @property
    def _edges(self) -> np.ndarray:
        """The first unit of each episode in the window, and the number of all."""
        return self._unit_index.edges

    @property
    def unit_count(self) -> int:
        """Units there are at the moment."""
        return int(self._edges[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that are held."""
        return self._held.nbytes

    def take(self, epoch: int, places: ShardSlice, counts: Iterator[int]) -> Iterator[Batch]:
        """See `Feed`; before each batch it looks for new episodes if that is due.

        Raises:
            EpisodeTimeoutError: there is no unit, and none came.
        """
        first = 0
        for count in counts:
            self._look_if_due()
            yield self._drawn(epoch, places.part(first, first + count))
            first += count

    def _drawn(self, epoch: int, draws: np.ndarray) -> Batch:
        if self.priorities is not None:
            numbers, weights = self.priorities.draw(epoch, draws)
        else:
            assert self._order is not None
            numbers, weights = self._order.units(epoch, draws), None
        chosen = self._unit_index.choose(numbers)
        slots = self._slots[chosen.episodes]
        batch = self.units.gather(self._arrays, self._config.keys, Chosen(slots, chosen.numbers))
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
        root = self._context.snapshot.layout.root
        there, longest = len(self.contents), int(self.contents.index.lengths.max(initial=0))
        said = f"the {there} that are there have no {self.units}: the longest has {longest} transitions"
        return (
            f"No episode to draw from came to {root} within {_seconds(self._follow.wait_seconds)}; "
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
            known = self._context.snapshot
            if self.contents.version == known.version and known.newer_version() is None:
                break
            snapshot = Snapshot(known.layout, known.manifest, after=known)
            try:
                self._show(ReadContext.of(snapshot))
                break
            except (CorruptStoreError, FileNotFoundError):
                # Files of a version that is no longer the newest may be vacuumed while they are read.
                if snapshot.newer_version() is None or attempt == _ATTEMPTS - 1:
                    raise
        self._looked = looked

    def _show(self, context: ReadContext) -> None:
        contents = self._window.contents(context)
        index = replace(contents.index, left_out=self._config.needs_last)
        contents = replace(contents, index=index)
        self._warned = self._warned or self._config.warn_left_out(index)
        unit_index = UnitIndex(self.units, contents.index)
        edges = unit_index.edges
        snapshot, weighed = context.snapshot, None
        if edges[-1]:
            weighed = evaluate_weights(snapshot, contents.selection(snapshot), edges, self._config.weights)
        slots = self._held.slots(contents.ids)
        new = slots < 0
        arrays = self._read(context, contents, new) if new.any() else None
        if arrays is not None:
            kept = np.zeros(len(self._held.arrays.index), bool)
            kept[slots[~new]] = True
            self._held.add(contents.ids.filter(pl.Series(new)), arrays, kept)
            # From here on nothing can fail.
            slots = self._held.slots(contents.ids)
            self._arrays = self._config.pipeline.stack(self._held.arrays)
        if self.priorities is not None:
            before = places_among(contents.ids, self.contents.ids)
            self.priorities.restore(
                self._carried(self.priorities, self.priorities.powers, self._edges, before, edges)
            )
        self._context, self.contents, self._slots, self._unit_index = context, contents, slots, unit_index
        self._order = Drawn(int(edges[-1]), self._config.seed, edges, weighed)

    def _read(self, context: ReadContext, contents: Contents, new: np.ndarray) -> StepArrays:
        selection = contents.selection(context.snapshot)
        if self._columns is None:
            self._columns = choose_followed(context.snapshot, selection, self._config.stored_columns)
            source = ColumnSource(context.blocks, selection, self._columns).part(new)
        else:
            source = ColumnSource(context.blocks, selection, self._columns).part(new)
            for column in self._columns:
                column.check(context.snapshot, source.selection)
        return self._config.pipeline.derive(read_arrays(source), self._config.kept_columns)

    # Priorities

    def _carried(
        self,
        priorities: Priorities,
        powers: np.ndarray,
        old_edges: np.ndarray,
        before: np.ndarray,
        edges: np.ndarray,
    ) -> np.ndarray:
        """Return the powers of units: as before for known episodes, the largest of these for new ones."""
        counts = np.diff(edges)
        stayed = np.repeat(before >= 0, counts)
        moved = np.repeat(np.where(before >= 0, old_edges[before] - edges[:-1], 0), counts)
        kept = powers[(np.arange(len(stayed)) + moved)[stayed]]
        largest = kept.max(initial=0.0) or powers.max(initial=0.0) or priorities.first
        carried = np.full(len(stayed), largest)
        carried[stayed] = kept
        return carried

    def update_priorities(self, priorities: Priorities, units: Any, values: Any) -> None:
        """See `Feed`; units of episodes that have gone since are skipped."""
        held = self._held
        units, values = checked_update(units, values, held.numbered)
        slots = np.searchsorted(held.bases, units, side="right") - 1
        numbers = units - held.bases[slots]
        shown = np.full(len(held.bases), -1)
        shown[self._slots] = np.arange(len(self._slots))
        places = shown[slots]
        there = (slots >= 0) & (places >= 0)
        there[there] = numbers[there] < self.counts[places[there]]
        priorities.change((self._edges[places] + numbers)[there], values[there])

    @property
    def counts(self) -> np.ndarray:
        """Units of each episode that is shown: int64."""
        return np.diff(self._edges)

    def state(self) -> dict[str, Any]:
        """See `Feed`: the version; with priorities also each episode's id and 8 bytes."""
        state = {**super().state(), "version": self.contents.version}
        if self.priorities is not None:
            state |= {"episodes": self.contents.ids.to_list(), "counts": self.counts.astype("<i8").tobytes()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `Feed`; episodes of the state that are still there keep their priorities."""
        version = state.get("version")
        if not isinstance(version, int):
            raise LoaderStateError(
                f"This is no state of a loader that follows a store: {state!r:.200}. Expected what its "
                "state_dict() gave."
            )
        self.look()
        if version > self.contents.version:
            raise LoaderStateError(
                f"The state is of version {version}; the newest version of the store is "
                f"{self.contents.version}. So this is an older copy of the store: bring the newer one here, "
                "or start without a state."
            )
        if self.priorities is None:
            return
        powers, beta = read_priorities(state)
        ids, counts = _episodes_of_state(state, powers.size)
        edges = np.concatenate([[0], np.cumsum(counts)])
        before = places_among(self.contents.ids, pl.Series(ids, dtype=pl.String))
        self.priorities.restore(self._carried(self.priorities, powers, edges, before, self._edges), beta)


def _episodes_of_state(state: Mapping[str, Any], units: int) -> tuple[list[str], np.ndarray]:
    """Return the ids of a state's episodes, and how many units each has."""
    try:
        ids, counts = list(state["episodes"]), np.frombuffer(state["counts"], "<i8").astype(np.int64)
        if (
            len(set(ids)) != len(ids)
            or len(ids) != len(counts)
            or counts.sum() != units
            or (counts < 0).any()
        ):
            raise ValueError(f"{len(ids)} episodes with {counts.sum()} units, but {units} priorities")
        if not all(isinstance(name, str) for name in ids):
            raise ValueError("an id of an episode is no text")
    except (TypeError, KeyError, ValueError) as error:
        raise LoaderStateError(
            f"The priorities of this state belong to no episodes: {error!r:.200}. Expected what "
            "state_dict() gave."
        ) from error
    return ids, counts


def _seconds(value: float) -> str:
    return "for ever" if math.isinf(value) else f"{value:g} seconds"
