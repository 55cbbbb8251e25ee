"""Histograms of returns and lengths, by series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ...store.errors import InvalidArgumentError
from .bins import Bins, bins_for
from .chart import AnyChart, finished
from .pieces import color_channel, only, stacked, tooltip_of, values_of
from .series import Series, Workbench, bench_of, episode_series
from .texts import counted
from .theme import HEIGHT, WIDTH

if TYPE_CHECKING:
    from ..view import EpisodeView

BINS = 40
MOST_BINS = 1_000
_UNITS = {"return": "return (sum of rewards)", "length": "length (steps)"}


def draw_distribution(view: EpisodeView, what: str, by: str | None, bins: int | None) -> AnyChart:
    """The chart; see `Plots.return_histogram` and `Plots.lengths`."""
    about = check_bins(BINS if bins is None else bins)
    with bench_of(view) as bench:
        series = episode_series(bench, what, by)
        panels = [_panel(series, what, panel, _counts(bench, panel, about)) for panel in series.panels]
    values = "value" if len(series.panels) > 1 else "episode"
    subtitle = [counted(series.count, values), *series.notes]
    return finished(stacked(panels), f"{what.capitalize()} of episodes by {series.by}", subtitle)


def check_bins(bins: int) -> int:
    """A number of bins, as it is.

    Raises:
        InvalidArgumentError: it is none.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or not 1 <= bins <= MOST_BINS:
        raise InvalidArgumentError(f"bins={bins!r}: expected a whole number from 1 to {MOST_BINS}.")
    return bins


def _counts(bench: Workbench, panel: str, about: int) -> list[dict[str, Any]]:
    """Episodes in each bin of each series."""
    chosen = f"panel = '{panel}'"
    (span,) = bench.rows(
        "SELECT min(value) AS low, max(value) AS high, bool_and(value = round(value)) AS whole FROM drawn "
        f"WHERE {chosen}"
    )
    bins = bins_for(span["low"], span["high"], about, whole=span["whole"])
    found = bench.rows(
        f"SELECT series, panel, {bins.sql('value')} AS bin, count(*) AS episodes, "
        f"count(*) / sum(count(*)) OVER (PARTITION BY series) AS share FROM drawn WHERE {chosen} "
        "GROUP BY series, panel, bin ORDER BY bin, series"
    )
    return [{**row, **edges_of(bins, row["bin"])} for row in found]


def edges_of(bins: Bins, index: int) -> dict[str, Any]:
    """Where the bar of a bin stands; bars of whole numbers leave a gap."""
    low, high = bins.edges(index)
    inset = bins.width * (0.1 if bins.whole else 0.02)
    return {"from": low + inset, "to": high - inset, "label": bins.label(index)}


def _panel(series: Series, what: str, panel: str, rows: list[dict[str, Any]]) -> alt.LayerChart:
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    title = _UNITS[what] + (f", {panel}" if panel else "")
    # End reasons are parts of one whole; series of other kinds are compared, and stand over each other.
    parts = series.by == "end_reason"
    single = len(series.names) == 1
    count = alt.Y("episodes:Q", title="episodes", stack="zero" if parts else None)
    strength = 0.9 if parts or single else 0.5
    bars = (
        alt.Chart(values_of(only(rows, panel)))
        .mark_bar(clip=True)
        .encode(
            alt.X("from:Q", title=title, scale=alt.Scale(zero=False, nice=False)),
            alt.X2("to:Q"),
            count,
            color_channel("series", series.by, series.names),
            opacity=alt.when(legend).then(alt.value(strength)).otherwise(alt.value(0.06)),
            tooltip=tooltip_of(
                *(("series", series.by), ("label", what), ("episodes", "episodes")),
                ("share", f"share of its {series.by}"),
            ),
        )
    )
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    return alt.layer(bars.add_params(legend, zoom)).properties(width=WIDTH, height=HEIGHT)
