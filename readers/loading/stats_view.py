"""What a view of episodes says of its columns: exact statistics, kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from ...store.errors import InvalidArgumentError
from ...store.schema import ACTION, OBSERVATION, REWARD
from .arguments import check_single_agents
from .column_stats import Stats
from .columns import Column, check_names, choose_columns, loose_fields
from .episode_index import index_of
from .measuring import measure
from .stats_cache import StatsCache, cache_key

if TYPE_CHECKING:
    from ..view import SnapshotReader

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


class MeasuredView:
    """The part of a view that measures its columns."""

    _reader: SnapshotReader

    def _all_positions(self) -> np.ndarray:
        raise NotImplementedError

    def stats(
        self,
        columns: Sequence[str] | None = None,
        *,
        quantiles: Sequence[float] = QUANTILES,
        cache_folder: str | PathLike[str] | None = None,
    ) -> Stats:
        """Exact statistics of columns: count, mean, standard deviation, extremes and true quantiles.

        They are those of this version and these episodes, and are kept on disk by column, so that asking
        again costs nothing. A column is read whole, one at a time (frames in parts). What `ColumnStats` says
        of a column holds for parts of nested ones too, which stand under their dotted names.

        Args:
            columns: names; None for observations, actions, rewards and all columns of infos, policy and users
                that are numbers or arrays of one shape.
            quantiles: their probabilities.
            cache_folder: where they are kept; None for the environment variable EPISODELAKE_CACHE, or else
                the user's cache directory. One that cannot be written to is a `RuntimeWarning`.

        Raises:
            InvalidArgumentError: there is no such column (the message names those that are), a probability
                is not from 0 to 1, or the view has no episode.
            CorruptStoreError: a file of the store is damaged.
        """
        snapshot, positions = self._reader.snapshot, self._all_positions()
        check_single_agents(snapshot)
        asked = _checked(quantiles)
        if not len(positions):
            raise InvalidArgumentError("There is no episode to measure: the view is empty. Check the filter.")
        cache, index = StatsCache(cache_folder), None
        found = {}
        for column in self._measured_columns(columns, positions):
            key = cache_key(snapshot, positions, column, asked)
            measured = cache.load(key)
            if measured is None:
                index = index or index_of(snapshot, positions)
                measured = measure(self._reader.blocks, positions, index, column, asked)
                cache.save(key, measured)
            found.update((each.name, each) for each in measured)
        return Stats(found)

    def _measured_columns(self, names: Sequence[str] | None, positions: np.ndarray) -> list[Column]:
        snapshot = self._reader.snapshot
        if names is not None:
            check_names(names)
            return list(choose_columns(snapshot, positions, names))
        found: list[Column] = []
        for name in (OBSERVATION, ACTION, REWARD, *loose_fields(snapshot)):
            try:
                found += choose_columns(snapshot, positions, [name])
            except InvalidArgumentError:
                # Values without one shape are left out where nobody asked for them by name.
                continue
        return found


def _checked(quantiles: Sequence[float]) -> tuple[float, ...]:
    try:
        found = tuple(sorted({float(probability) for probability in quantiles}))
    except (TypeError, ValueError):
        found = (-1.0,)
    if not all(0 <= probability <= 1 for probability in found):
        raise InvalidArgumentError(f"quantiles={quantiles!r}: expected probabilities from 0 to 1.")
    return found
