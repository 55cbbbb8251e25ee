"""Histograms of returns and lengths, by series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from ...store.errors import InvalidArgumentError
from ..amounts import counted
from ..context import ReadContext
from .bins import Bins
from .chart import AnyChart, finished
from .pieces import color_channel, stacked, title_of, tooltip_of, values_of
from .series import Series, count_bins, episode_bench, episode_series
from .theme import HEIGHT, WIDTH

BINS = 40
MOST_BINS = 1_000
#: Bars stand side by side where there are no more than these; beyond, series are outlines over each other.
_MOST_BESIDE = 60
_MOST_TICKS = 20
_SCALE = alt.Scale(zero=False, nice=False, padding=6)
_UNITS = {"return": "return (sum of rewards)", "length": "length (steps)"}


def draw_distribution(context: ReadContext, what: str, by: str | None, bins: int | None) -> AnyChart:
    """Return the chart; see `Plots.return_histogram` and `Plots.lengths`."""
    about = check_bins(BINS if bins is None else bins)
    with episode_bench(context) as bench:
        series = episode_series(bench, what, by)
        counts = {panel: count_bins(bench, panel, about) for panel in series.panels}
    panels = [_panel(series, what, panel, bins, rows) for panel, (bins, _, rows) in counts.items()]
    values = "value" if len(series.panels) > 1 else "episode"
    subtitle = [counted(series.count, values), *series.notes]
    return finished(stacked(panels), f"{what.capitalize()} of episodes by {title_of(series.by)}", subtitle)


def check_bins(bins: int) -> int:
    """Return a number of bins, as it is.

    Raises:
        InvalidArgumentError: it is none.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or not 1 <= bins <= MOST_BINS:
        raise InvalidArgumentError(f"bins={bins!r}: expected a whole number from 1 to {MOST_BINS}.")
    return bins


def beside(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of bars over each other as bars side by side: each series has its part of the room of a bin."""
    ranks = {name: rank for rank, name in enumerate(names)}
    found = []
    for row in rows:
        each = (row["to"] - row["from"]) / len(names)
        start = row["from"] + ranks[row["series"]] * each
        found.append({**row, "from": start, "to": start + each * 0.94})
    return found


def edges_of(bins: Bins, index: int) -> dict[str, Any]:
    """Return where the bar of a bin stands; bars of whole numbers leave a gap."""
    low, high = bins.edges(index)
    inset = bins.width * (0.1 if bins.whole else 0.02)
    return {"from": low + inset, "to": high - inset, "label": bins.label(index)}


def _panel(series: Series, what: str, panel: str, bins: Bins, counts: list[dict[str, Any]]) -> Any:
    rows = [{**row, **edges_of(bins, row["bin"])} for row in counts]
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    # End reasons are parts of one whole; series of other kinds are compared.
    parts = series.by == "end_reason"
    several = len(series.names) > 1 and not parts
    outlined = several and not (bins.whole and bins.count * len(series.names) <= _MOST_BESIDE)
    if several and not outlined:
        rows = beside(rows, series.names)
    x = alt.X("from:Q", title=_UNITS[what] + (f", {panel}" if panel else ""), scale=_SCALE, axis=_axis(bins))
    color = color_channel("series", title_of(series.by), series.names)
    bars = alt.Chart(values_of(heights(rows, "episodes", series.names if parts else ()))).mark_rect(clip=True)
    bars = bars.encode(
        x,
        alt.X2("to:Q"),
        alt.Y("bottom:Q", title="episodes", axis=alt.Axis(tickMinStep=1)),
        alt.Y2("top:Q"),
        color,
        opacity=alt.when(legend).then(alt.value(0.12 if outlined else 0.9)).otherwise(alt.value(0.03)),
        tooltip=tooltip_of(
            *(("series", title_of(series.by)), ("label", what), ("episodes", "episodes")),
            ("share", f"share of its {title_of(series.by)}"),
        ),
    )
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    bars = bars.add_params(legend, zoom)
    if not outlined:
        return bars.properties(width=WIDTH, height=HEIGHT)
    edges = alt.Chart(values_of(_outline(bins, rows, series.names)))
    edges = edges.mark_line(interpolate="step-after", strokeWidth=1.8, clip=True).encode(
        x,
        alt.Y("episodes:Q", title="episodes"),
        color,
        opacity=alt.when(legend).then(alt.value(1)).otherwise(alt.value(0.06)),
    )
    return alt.layer(bars, edges).properties(width=WIDTH, height=HEIGHT)


def _axis(bins: Bins) -> alt.Axis:
    """Ticks; of a small range of whole numbers, one for each."""
    if bins.whole and bins.count <= _MOST_TICKS:
        return alt.Axis(values=[round(bins.start + 0.5) + index for index in range(bins.count)], format="d")
    return alt.Axis(tickMinStep=1) if bins.whole else alt.Axis()


def _outline(bins: Bins, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the upper edge of the bars of each series, from the ground to the ground."""
    found = []
    for name in names:
        counts = {row["bin"]: row["episodes"] for row in rows if row["series"] == name}
        if not counts:
            continue
        first, last = min(counts), max(counts)
        found.append({"series": name, "from": bins.edges(first)[0], "episodes": 0})
        found += [
            {"series": name, "from": bins.edges(index)[0], "episodes": counts.get(index, 0)}
            for index in range(first, last + 1)
        ]
        found.append({"series": name, "from": bins.edges(last)[1], "episodes": 0})
    return found


def heights(rows: Sequence[dict[str, Any]], field: str, order: Sequence[str]) -> list[dict[str, Any]]:
    """Rows with where their bar begins and ends: each from 0; of series in an order, one upon the other."""
    tops: dict[Any, float] = {}
    found = []
    ranks = {name: rank for rank, name in enumerate(order)}
    for row in sorted(rows, key=lambda row: ranks.get(row["series"], 0)):
        bottom = tops.get(row["bin"], 0) if order else 0
        tops[row["bin"]] = bottom + row[field]
        found.append({**row, "bottom": bottom, "top": bottom + row[field]})
    return found
