"""`compute_stats`: exact statistics of columns, kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from ....store.errors import InvalidArgumentError
from ....store.schema import ACTION, OBSERVATION, REWARD
from ....store.snapshot import Snapshot
from ...context import ReadContext
from ..columns.selection import Selection, select
from ..columns.specs import Column, check_names, choose_columns, dynamic_fields
from ..columns.step_arrays import ColumnSource
from .column_stats import Stats
from .measuring import measure
from .stats_cache import StatsCache, cache_key

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def compute_stats(
    context: ReadContext,
    columns: Sequence[str] | None = None,
    quantiles: Sequence[float] = QUANTILES,
    cache_folder: str | PathLike[str] | None = None,
    agent: str | None = None,
    group: str | None = None,
) -> Stats:
    """Return exact statistics of columns; see `EpisodeView.stats`."""
    snapshot, positions = context.snapshot, context.all_positions
    asked = _checked(quantiles)
    if not len(positions):
        raise InvalidArgumentError("There is no episode to measure: the view is empty. Check the filter.")
    selection = select(snapshot, positions, agent, group)
    cache, source = StatsCache(cache_folder), ColumnSource(context.blocks, selection, ())
    found = {}
    for column in _columns(snapshot, selection, columns):
        key = cache_key(snapshot, selection.pointers, column, asked)
        measured = cache.load(key)
        if measured is None:
            measured = measure(source, column, asked)
            cache.save(key, measured)
        found.update((each.name, each) for each in measured)
    return Stats(found)


def _columns(snapshot: Snapshot, selection: Selection, names: Sequence[str] | None) -> list[Column]:
    if names is not None:
        check_names(names)
        return list(choose_columns(snapshot, selection, names))
    found: list[Column] = []
    for name in (OBSERVATION, ACTION, REWARD, *dynamic_fields(snapshot)):
        try:
            found += choose_columns(snapshot, selection, [name])
        except InvalidArgumentError:
            # Without named columns, leave out values that have no fixed shape.
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
