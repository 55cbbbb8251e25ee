"""Returns or lengths over the course of runs: a line of means, a band, and single episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import altair as alt

from ...store.errors import InvalidArgumentError
from ..amounts import counted
from ..context import ReadContext
from .chart import AnyChart, finished
from .pieces import color_channel, only, stacked, title_of, tooltip_of, values_of
from .series import Series, Workbench, episode_bench, episode_series, means_over
from .theme import HEIGHT, WIDTH

MOST_POINTS = 2_000
MOST_BINS = 120
_SMALLEST_BIN = 4
#: What the x axis may count: the column of `drawn`, and its title with a unit.
OVER = {
    "episodes": ("number", "episode of its run (number)"),
    "steps": ("steps", "steps of its run so far"),
    "time": ("epoch_ms(ended_at)", "end of the episode (UTC)"),
}
_UNITS = {"return": "return (sum of rewards)", "length": "length (steps)"}


def draw_over_time(context: ReadContext, what: str, over: str, by: str | None) -> AnyChart:
    """Return the chart; see `Plots.returns` and `Plots.lengths`."""
    if over not in OVER:
        raise InvalidArgumentError(f"over={over!r}: expected one of {', '.join(map(repr, OVER))}.")
    with episode_bench(context) as bench:
        series = episode_series(bench, what, by)
        many = series.largest > 2 * _SMALLEST_BIN
        bins = min(MOST_BINS, series.largest // _SMALLEST_BIN) if many else 0
        # Of a few episodes, the episodes themselves.
        stretches = f"CASE WHEN n > {2 * _SMALLEST_BIN} THEN least(n // {_SMALLEST_BIN}, {MOST_BINS}) END"
        lines = means_over(bench, OVER[over][0], stretches)
        points = _points(bench, over)
    return _drawn(series, what, over, lines, points, bins)


def _points(bench: Workbench, over: str) -> list[dict[str, Any]]:
    """Single episodes: all, or a sample that is the same every time."""
    return bench.rows(
        f"SELECT series, panel, {OVER[over][0]}::DOUBLE AS x, value, episode_id AS episode, run, length, "
        "end_reason, seed::VARCHAR AS seed FROM drawn "
        f"ORDER BY hash(episode_id), episode_id, series, panel LIMIT {MOST_POINTS}"
    )


def _drawn(
    series: Series, what: str, over: str, lines: list[dict[str, Any]], points: list[dict[str, Any]], bins: int
) -> AnyChart:
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    panels = [
        _panel(_Axes(series, what, over, panel, bins), legend, only(lines, panel), only(points, panel))
        for panel in series.panels
    ]
    values = "value" if len(series.panels) > 1 else "episode"
    subtitle = [
        counted(series.count, values)
        + (f"; line: mean of {_stretches(series, bins)}, band: 10 % to 90 %" if bins else ""),
        f"points: {len(points):,} of them, drawn by hash of the episode id"
        if len(points) < series.count
        else "",
        *series.notes,
    ]
    return finished(
        stacked(panels), f"{what.capitalize()} of each episode by {title_of(series.by)}", subtitle
    )


def _stretches(series: Series, bins: int) -> str:
    if len(series.names) == 1:
        return f"{bins:,} stretches"
    return f"up to {bins:,} stretches of each {title_of(series.by)}"


@dataclass(frozen=True)
class _Axes:
    """Channels that the layers of a panel share."""

    series: Series
    what: str
    over: str
    panel: str
    bins: int

    @property
    def x(self) -> alt.X:
        """The horizontal channel."""
        title = OVER[self.over][1]
        if self.over == "time":
            return alt.X("x:T", title=title, scale=alt.Scale(type="utc", padding=6), axis=alt.Axis())
        scale = alt.Scale(nice=False, zero=False, padding=6)
        return alt.X("x:Q", title=title, scale=scale, axis=alt.Axis(tickMinStep=1))

    def y(self, field: str) -> alt.Y:
        """Return the vertical channel of a field."""
        title = _UNITS[self.what] + (f", {self.panel}" if self.panel else "")
        return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False, padding=4))

    @property
    def color(self) -> Any:
        """The colour of the series."""
        return color_channel("series", title_of(self.series.by), self.series.names)


def _panel(axes: _Axes, legend: Any, lines: list[dict[str, Any]], points: list[dict[str, Any]]) -> Any:
    seen = alt.when(legend)
    what, by = axes.what, title_of(axes.series.by)
    single = alt.Chart(values_of(points)).mark_circle(size=22, clip=True)
    single = single.encode(
        axes.x,
        axes.y("value"),
        axes.color,
        opacity=seen.then(alt.value(0.45 if axes.bins else 0.9)).otherwise(alt.value(0.04)),
        tooltip=tooltip_of(
            *(("episode", "episode"), ("series", by), ("value", what), ("length", "length (steps)")),
            *(("end_reason", "end reason"), ("seed", "seed")),
        ),
    ).add_params(legend, alt.selection_interval(bind="scales", name="zoom"))
    means = alt.Chart(values_of(lines))
    line = means.mark_line(strokeWidth=2, clip=True).encode(
        axes.x,
        axes.y("value"),
        axes.color,
        opacity=seen.then(alt.value(1)).otherwise(alt.value(0.08)),
        tooltip=tooltip_of(("series", by), ("value", f"mean {what}"), ("episodes", "episodes")),
    )
    if not axes.bins:
        return alt.layer(single, line).properties(width=WIDTH, height=HEIGHT)
    band = means.mark_area(clip=True).encode(
        axes.x,
        axes.y("low"),
        alt.Y2("high:Q"),
        axes.color,
        opacity=seen.then(alt.value(0.16)).otherwise(alt.value(0.02)),
    )
    return alt.layer(band, single, line).properties(width=WIDTH, height=HEIGHT)
