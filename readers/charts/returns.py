"""Returns and lengths of episodes: over the course of runs, and as histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ...store.common.arguments import one_of, whole_number
from ..chart_session import ChartSession
from ..context import ReadContext
from ..formatting import counted
from ..sql.text import literal
from .bins import Bins, count_bins, line_ends
from .chart import AnyChart, color_channel, finished, only, stacked, title_of, tooltip_of, values_of
from .series import FITS, LARGEST, OVER, VALUED, WILD, Series, episode_series, means_over
from .theme import HEIGHT, WIDTH, shown

MOST_POINTS = 2_000
MOST_STRETCHES = 120
_SMALLEST_BIN = 4
_UNITS = {"return": "return (sum of rewards)", "length": "length (steps)"}


def draw_over_time(context: ReadContext, what: str, over: str, by: str | None, scale: str) -> AnyChart:
    """Return the chart; see `Plots.returns` and `Plots.lengths`."""
    one_of("over", over, OVER)
    one_of("scale", scale, SCALES)
    with ChartSession(context, steps=False) as bench:
        series = episode_series(bench, what, by)
        many = series.largest > 2 * _SMALLEST_BIN
        bins = min(MOST_STRETCHES, series.largest // _SMALLEST_BIN) if many else 0
        # Of a few episodes, the episodes themselves.
        stretches = (
            f"CASE WHEN n > {2 * _SMALLEST_BIN} THEN least(n // {_SMALLEST_BIN}, {MOST_STRETCHES}) END"
        )
        lines = means_over(bench, OVER[over][0], stretches)
        points = _points(bench, over, lines)
        wild = _wild(bench, over, series)
        clipped = series.panels if scale == "clipped" else ()
        ends = {panel: line_ends(bench, panel) for panel in clipped}
    limits = {panel: each for panel, (each, note) in ends.items() if note}
    notes = [f"{panel}{': ' * bool(panel)}{note}" for panel, (_, note) in ends.items() if note]
    marks = _Marks(lines, points, wild).clipped(limits)
    return _drawn(series, what, over, marks, Shape(bins, scale, limits, notes))


#: How the y axis may run.
SCALES = ("clipped", "linear", "log")


@dataclass(frozen=True)
class Shape:
    """The number of stretches (0 for none), and the y axis: its scale, where it ends in panels with outliers,
    and notes on these.
    """

    bins: int
    scale: str
    limits: dict[str, tuple[float, float]]
    outliers: Sequence[str] = ()

    def y(self, panel: str) -> alt.Scale:
        """Return the scale of a panel."""
        if self.scale == "log":
            return alt.Scale(type="symlog", zero=False, padding=4)
        if panel in self.limits:
            return alt.Scale(domain=list(self.limits[panel]), nice=False, zero=False, padding=4)
        return alt.Scale(zero=False, padding=4)

    @property
    def notes(self) -> list[str]:
        """Return the sentences about the y axis."""
        if self.scale == "log":
            return ["y axis: logarithmic away from 0, linear near it"]
        return [*self.outliers]


_EPISODE = "episode_id AS episode, run, length, end_reason, seed::VARCHAR AS seed"


def _points(bench: ChartSession, over: str, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Single episodes: all; or the extremes of each stretch and a sample that is the same every time."""
    extremes = sorted({row[name] for row in lines for name in ("lowest_id", "highest_id")})
    chosen = ", ".join(map(literal, extremes)) or "NULL"
    rows = f"SELECT series, panel, {OVER[over][0]}::DOUBLE AS x, value, {_EPISODE} FROM drawn"
    order = "ORDER BY hash({0}), {0}, series, panel"
    return bench.rows(
        f"({rows} {order.format('episode_id')} LIMIT {MOST_POINTS}) UNION "
        f"({rows} WHERE episode_id IN ({chosen})) {order.format('episode')}"
    )


def _wild(bench: ChartSession, over: str, series: Series) -> list[dict[str, Any]]:
    """Return some episodes whose value fits no axis, with what it is."""
    names = ", ".join(map(literal, series.names))
    return bench.rows(
        f"SELECT series, panel, {OVER[over][0]}::DOUBLE AS x, {WILD} AS label, {_EPISODE} FROM {VALUED} "
        f"WHERE NOT coalesce({FITS}, false) AND series IN ({names}) "
        f"ORDER BY hash(episode_id), episode_id, series, panel LIMIT {MOST_POINTS}"
    )


@dataclass(frozen=True)
class _Marks:
    """The rows of the layers: means, single episodes, and episodes that fit no axis."""

    lines: list[dict[str, Any]]
    points: list[dict[str, Any]]
    wild: list[dict[str, Any]]

    def only(self, panel: str) -> _Marks:
        """Return those of a panel."""
        return _Marks(only(self.lines, panel), only(self.points, panel), only(self.wild, panel))

    def clipped(self, limits: dict[str, tuple[float, float]]) -> _Marks:
        """Return marks whose points beyond the limits of their panel are crosses at its edge."""

        def side(row: dict[str, Any]) -> int:
            low, high = limits.get(row["panel"], (-math.inf, math.inf))
            return (row["value"] > high) - (row["value"] < low)

        beyond = [
            {**row, "label": f"{row['value']:.6g}", "above": side(row) > 0}
            for row in self.points
            if side(row)
        ]
        return _Marks(self.lines, [row for row in self.points if not side(row)], [*self.wild, *beyond])


def _drawn(series: Series, what: str, over: str, marks: _Marks, shape: Shape) -> AnyChart:
    bins, shown = shape.bins, len(marks.points) + sum("value" in row for row in marks.wild)
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    panels = [
        _line_panel(Axes(series, what, over, panel, shape), legend, marks.only(panel))
        for panel in series.panels
    ]
    values = "value" if len(series.panels) > 1 else "episode"
    subtitle = [
        counted(series.count, values)
        + (f"; line: mean of {_stretches(series, bins)}, band: 10 % to 90 %" if bins else ""),
        f"points: {shown:,} of them: the extremes, others drawn by hash of the episode id"
        if shown < series.count
        else "",
        *shape.notes,
        *series.notes,
        "crosses at the edge: values that are not on the axis" if marks.wild else "",
    ]
    return finished(
        stacked(panels), f"{what.capitalize()} of each episode by {title_of(series.by)}", subtitle
    )


def _stretches(series: Series, bins: int) -> str:
    if len(series.names) == 1:
        return f"{bins:,} stretches"
    return f"up to {bins:,} stretches of each {title_of(series.by)}"


@dataclass(frozen=True)
class Axes:
    """Channels that the layers of a panel share."""

    series: Series
    what: str
    over: str
    panel: str
    shape: Shape

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
        title = _UNITS.get(self.what, shown(self.what)) + (f", {self.panel}" if self.panel else "")
        return alt.Y(f"{field}:Q", title=title, scale=self.shape.y(self.panel))

    @property
    def color(self) -> Any:
        """The colour of the series."""
        return color_channel("series", title_of(self.series.by), self.series.names)


def _line_panel(axes: Axes, legend: Any, marks: _Marks) -> Any:
    seen = alt.when(legend)
    what, by = axes.what, title_of(axes.series.by)
    single = alt.Chart(values_of(marks.points)).mark_circle(size=22, clip=True)
    single = single.encode(
        axes.x,
        axes.y("value"),
        axes.color,
        opacity=seen.then(alt.value(0.45 if axes.shape.bins else 0.9)).otherwise(alt.value(0.04)),
        tooltip=tooltip_of(
            *(("episode", "episode"), ("series", by), ("value", what), ("length", "length (steps)")),
            *(("end_reason", "end reason"), ("seed", "seed")),
        ),
    ).add_params(legend, alt.selection_interval(bind="scales", name="zoom"))
    means = alt.Chart(values_of([{**row, "lowest_id": None, "highest_id": None} for row in marks.lines]))
    line = means.mark_line(strokeWidth=2, clip=True).encode(
        axes.x,
        axes.y("value"),
        axes.color,
        opacity=seen.then(alt.value(1)).otherwise(alt.value(0.08)),
        tooltip=tooltip_of(("series", by), ("value", f"mean {what}"), ("episodes", "episodes")),
    )
    if not axes.shape.bins:
        return alt.layer(single, line, *_edge(axes, marks.wild)).properties(width=WIDTH, height=HEIGHT)
    band = means.mark_area(clip=True).encode(
        axes.x,
        axes.y("low"),
        alt.Y2("high:Q"),
        axes.color,
        opacity=seen.then(alt.value(0.16)).otherwise(alt.value(0.02)),
    )
    return alt.layer(band, single, line, *_edge(axes, marks.wild)).properties(width=WIDTH, height=HEIGHT)


def _edge(axes: Axes, wild: list[dict[str, Any]]) -> list[Any]:
    """Return crosses for values that fit no axis or not this one: large ones at the upper edge, others at
    the lower.
    """
    above = [row for row in wild if row.get("above", row["label"] in ("inf", f">{LARGEST:g}"))]
    below = [row for row in wild if row not in above]
    return [
        alt.Chart(values_of(rows))
        .mark_point(shape="cross", angle=45, size=50, filled=True)
        .encode(
            axes.x,
            axes.color,
            y=alt.value(place),
            tooltip=tooltip_of(("episode", "episode"), ("label", axes.what), ("seed", "seed")),
        )
        for rows, place in ((above, 4), (below, HEIGHT - 4))
        if rows
    ]


BINS = 40
MOST_BINS = 1_000
#: Bars stand side by side where there are no more than these; beyond, series are outlines over each other.
_MOST_BESIDE = 60
_MOST_TICKS = 20
_SCALE = alt.Scale(zero=False, nice=False, padding=6)


def draw_distribution(
    context: ReadContext, what: str, by: str | None, bins: int | None, scale: str
) -> AnyChart:
    """Return the chart; see `Plots.return_histogram` and `Plots.lengths`."""
    one_of("scale", scale, SCALES)
    about = BINS if bins is None else whole_number("bins", bins, 1, MOST_BINS)
    with ChartSession(context, steps=False) as bench:
        series = episode_series(bench, what, by)
        counts = {panel: count_bins(bench, panel, about, clip=scale == "clipped") for panel in series.panels}
    clipped = [binned.note for binned, _ in counts.values()]
    panels = [_bar_panel(series, what, panel, binned.bins, rows) for panel, (binned, rows) in counts.items()]
    values = "value" if len(series.panels) > 1 else "episode"
    subtitle = [counted(series.count, values), *series.notes, *clipped]
    return finished(stacked(panels), f"{what.capitalize()} of episodes by {title_of(series.by)}", subtitle)


def beside(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of bars over each other as bars side by side: each series has its part of the room of a bin."""
    ranks = {name: rank for rank, name in enumerate(names)}
    bars = []
    for row in rows:
        each = (row["to"] - row["from"]) / len(names)
        start = row["from"] + ranks[row["series"]] * each
        bars.append({**row, "from": start, "to": start + each * 0.94})
    return bars


def edges_of(bins: Bins, index: int) -> dict[str, Any]:
    """Return the position of a bin's bar; bars of integers leave a gap."""
    low, high = bins.edges(index)
    inset = bins.width * (0.1 if bins.whole else 0.02)
    return {"from": low + inset, "to": high - inset, "label": bins.label(index)}


def _bar_panel(series: Series, what: str, panel: str, bins: Bins, counts: list[dict[str, Any]]) -> Any:
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
    """Ticks; for a small range of integers, one for each."""
    if bins.whole and bins.count <= _MOST_TICKS:
        return alt.Axis(values=[round(bins.start + 0.5) + index for index in range(bins.count)], format="d")
    return alt.Axis(tickMinStep=1) if bins.whole else alt.Axis()


def _outline(bins: Bins, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the upper edge of the bars of each series, from the ground to the ground."""
    edges = []
    for name in names:
        counts = {row["bin"]: row["episodes"] for row in rows if row["series"] == name}
        if not counts:
            continue
        first, last = min(counts), max(counts)
        edges.append({"series": name, "from": bins.edges(first)[0], "episodes": 0})
        edges += [
            {"series": name, "from": bins.edges(index)[0], "episodes": counts.get(index, 0)}
            for index in range(first, last + 1)
        ]
        edges.append({"series": name, "from": bins.edges(last)[1], "episodes": 0})
    return edges


def heights(rows: Sequence[dict[str, Any]], field: str, order: Sequence[str]) -> list[dict[str, Any]]:
    """Rows with where their bar begins and ends: each from 0; of series in an order, one upon the other."""
    tops: dict[Any, float] = {}
    bars = []
    ranks = {name: rank for rank, name in enumerate(order)}
    for row in sorted(rows, key=lambda row: ranks.get(row["series"], 0)):
        bottom = tops.get(row["bin"], 0) if order else 0
        tops[row["bin"]] = bottom + row[field]
        bars.append({**row, "bottom": bottom, "top": bottom + row[field]})
    return bars
