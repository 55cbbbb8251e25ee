"""Charts of the page: those of `view.plot` and `episode.plot`, adapted, and those of SQL results.

The specifications of the former get a brush that chooses episodes, or a cursor at t. Results have chosen
columns on axes that fit their types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from .. import Episode, EpisodeView
from ..errors import InvalidArgumentError
from ..readers.charts.theme import PALETTE, shown
from .facets import exact_literal
from .listing import SeriesColors, column_sql

_HIGHEST = 170
_TALL = 250
#: All signals of an episode together, and one at least.
_BESIDE = 250
_LOWEST = 20
_MOST_NUMBERED = 6
#: The width of a label at most, of one that leans, and about that of a letter, in pixels.
_LABEL_LIMIT = 140
_LEANING_LIMIT = 90
_SIGN = 6.5
#: An axis without room for numbers: its name stands before the line.
_NAMED = {"labels": False, "ticks": False, "grid": False, "titleAngle": 0, "titleAlign": "right"}
_NAMED |= {"titleBaseline": "middle", "titleLimit": _LABEL_LIMIT, "titlePadding": 4}
_OVERLAID = 90
#: Above the list, whose rows need the room.
_LOW = 84
CURSOR = "cursor"
BRUSH = "brush"
#: Beside the panels of an episode a legend would take the room of the lines.
_LEGEND_ABOVE = {"orient": "top", "title": None, "offset": 2, "symbolSize": 60, "columnPadding": 12}
_BEYOND = re.compile(r"\bvalues? beyond .* to ")
_OF_A_LAYER = ("mark", "encoding", "data", "transform", "name")


@dataclass(frozen=True)
class Overview:
    """A chart over all runs.

    Attributes:
        label: its name on the page.
        draw: makes the chart of a view, on a scale as `view.plot` has it.
        columns: which column of `episodes` a brush over a field of the chart chooses by.
    """

    label: str
    draw: Callable[[EpisodeView, str], Any]
    columns: dict[str, str]


OVERVIEWS = {
    "returns": Overview(
        "Returns",
        lambda view, scale: view.plot.returns(scale=scale),
        {"x": "number", "value": "episode_return", "low": "episode_return"},
    ),
    "histogram": Overview(
        "Return histogram",
        lambda view, scale: view.plot.return_histogram(scale=scale),
        {"from": "episode_return"},
    ),
    "lengths": Overview("Lengths", lambda view, scale: view.plot.lengths(scale=scale), {"from": "length"}),
    "lengths over time": Overview(
        "Lengths over episodes",
        lambda view, scale: view.plot.lengths(over="episodes", scale=scale),
        {"x": "number", "value": "length", "low": "length"},
    ),
}


def overview_spec(
    name: str, view: EpisodeView, colors: SeriesColors, scale: str = "clipped"
) -> dict[str, Any]:
    """Return the specification of a chart over all runs, with a brush in place of zooming.

    Its usermeta has notes, and what is `beyond` a clipped axis.

    Args:
        name: one of `OVERVIEWS`.
        view: the episodes to draw.
        colors: those that runs have on the page.
        scale: "clipped", or "linear" for all values.

    Raises:
        NothingToDrawError: the view has no episodes.
    """
    brushable = _brushable(view)
    chart = OVERVIEWS[name].draw(view, scale)
    specification = _changed(_adapted(chart, colors), _low)
    specification = _changed(specification, _brushed) if brushable else specification
    # A histogram says first how many values it has, and then what is odd about them.
    meta = _meta(chart, brushable)
    notes = meta["notes"][1:] if "from" in OVERVIEWS[name].columns else []
    return {**specification, "usermeta": {**meta, "notes": notes}}


def _meta(chart: Any, brush: bool | str | None) -> dict[str, Any]:
    """Return what the page has to know: whether there is a brush, and the notes of the chart."""
    beyond = [each for each in chart.title.subtitle if _BEYOND.search(each)]
    notes = [each for each in chart.title.subtitle if each not in beyond]
    return {"brush": brush, "notes": notes, "beyond": "; ".join(beyond)}


@dataclass(frozen=True)
class Curve:
    """A learning curve, by the arguments of `view.plot.learning_curve`."""

    what: str = "return"
    over: str = "episodes"
    by: str = "run"
    smooth: int = 0
    band: str = "episodes"


#: The distributions of an overview, by title.
DISTRIBUTIONS = {
    "Returns": Overview(
        "Returns",
        lambda view, scale: view.plot.return_histogram(by="end_reason", scale=scale),
        {"from": "episode_return"},
    ),
    "Lengths": OVERVIEWS["lengths"],
}


def curve_spec(curve: Curve, view: EpisodeView, colors: SeriesColors) -> dict[str, Any]:
    """Return the specification of a learning curve; see `distribution_spec`."""
    return _still(view.plot.learning_curve(**asdict(curve)), colors, _TALL)


def compare_spec(
    view: EpisodeView, signals: Sequence[str], align: str, colors: SeriesColors
) -> dict[str, Any]:
    """Return the specification of episodes over each other, with a cursor; see `distribution_spec`.

    Its usermeta also has `episodes`: the label and the zero of each by its id, `differ`: the first step at
    which two of them differ, and `cursor`: the last step, all of them aligned.
    """
    chart = view.plot.overlay(list(signals) or None, align)
    specification = _still(chart, colors, _OVERLAID)
    alone = "vconcat" not in specification
    panels = [_layered(panel) for panel in specification.get("vconcat", [specification])]
    for panel in panels:
        panel["layer"] = [*panel["layer"], _cursor("at")]
        panel["height"] = max(_LOWEST, min(_OVERLAID, _TALL // len(panels)))
        panel["layer"][0]["encoding"]["y"]["axis"] = {"tickCount": 3}
        if panel is not panels[-1]:
            panel["layer"][0]["encoding"]["x"]["axis"] = {"labels": False, "ticks": False}
    specification = panels[0] if alone else {**specification, "vconcat": panels, "spacing": 8}
    ends = {each.id: each.length for each in view}
    episodes = chart.usermeta["episodes"]
    last = max(1, *(ends[key] - each["zero"] for key, each in episodes.items()))
    meta = {"episodes": episodes, "differ": chart.usermeta["differ"], "cursor": last}
    params = [*specification["params"], {"name": CURSOR, "value": 0}]
    return {**specification, "params": params, "usermeta": specification["usermeta"] | meta}


def _cursor(field: str, **scale: Any) -> dict[str, Any]:
    """Return a layer with a line at the signal `cursor`."""
    return {
        "data": {"values": [{}]},
        "transform": [{"calculate": CURSOR, "as": field}],
        "mark": {"type": "rule", "color": "#e0524c", "strokeWidth": 1.5, "clip": True},
        "encoding": {"x": {"field": field, "type": "quantitative", "title": None, **scale}},
    }


def distribution_spec(
    name: str, view: EpisodeView, colors: SeriesColors, scale: str = "clipped"
) -> dict[str, Any]:
    """Return the specification of one of `DISTRIBUTIONS`; see `overview_spec`.

    Raises:
        NothingToDrawError: the view has no episodes, or none with finite values.
    """
    return _still(DISTRIBUTIONS[name].draw(view, scale), colors, brushable=_brushable(view))


def _still(
    chart: Any, colors: SeriesColors, height: int = _HIGHEST, *, brushable: bool = False
) -> dict[str, Any]:
    """Return a chart without zooming, which would catch the wheel of a page that scrolls; or with a brush."""
    specification = _changed(_adapted(chart, colors), lambda part: _resized(part, height))
    specification = _changed(specification, _brushed) if brushable else specification
    kept = [each for each in specification.get("params", []) if each["name"] != "zoom"]
    return {**specification, "params": kept, "usermeta": _meta(chart, "released" if brushable else None)}


def _adapted(chart: Any, colors: SeriesColors) -> dict[str, Any]:
    """Return a chart for the page: without title, not too high, in the colours of its series."""

    def recoloured(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("field") != "series" or "domain" not in part.get("scale", {}):
            return part
        return {**part, "scale": {**part["scale"], "range": colors.of(part["scale"]["domain"])}}

    return _changed(_compact(chart.to_dict()), recoloured)


def _changed(part: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a specification with `change` applied to each of its objects, but not to its data."""
    if isinstance(part, list):
        return [_changed(each, change) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: value if key in ("data", "datasets") else _changed(value, change)
        for key, value in change(part).items()
    }


def _brushable(view: EpisodeView) -> bool:
    """Return whether an interval of returns is a condition: not for several objectives or agents."""
    columns = view.episodes.collect_schema()
    return not columns["episode_return"].is_nested() and "agents" not in columns


def _brushed(part: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a specification; zooming by dragging becomes a brush."""
    if part.get("name") != "zoom" or "select" not in part:
        return part
    encodings = part["select"].get("encodings") if isinstance(part["select"], dict) else None
    chosen = {"type": "interval", "encodings": encodings or ["x", "y"]}
    rest = {key: value for key, value in part.items() if key not in ("bind", "value")}
    return {**rest, "name": BRUSH, "select": chosen}


def _compact(specification: dict[str, Any]) -> dict[str, Any]:
    """Remove titles, which the page shows, and limit heights."""
    kept = {key: value for key, value in specification.items() if key != "title"}
    return {**_changed(kept, _lower), "padding": 4}


def _resized(part: dict[str, Any], height: int) -> dict[str, Any]:
    return {**part, "height": height} if isinstance(part.get("height"), int) else part


def _low(part: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a specification; the chart is low, so the tab above it names what y is."""
    resized = _resized(part, _LOW)
    if isinstance(part.get("y"), dict) and "title" in part["y"]:
        resized = {**resized, "y": {**part["y"], "title": None}}
    if isinstance(part.get("legend"), dict) and part.get("field"):
        resized = {**resized, "legend": {**part["legend"], "title": None, "columns": 2, "labelLimit": 90}}
    return resized


def _lower(part: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a specification; a chart is no higher than the page has room for."""
    if ("layer" in part or "mark" in part) and isinstance(part.get("height"), int):
        return {**part, "height": min(part["height"], _HIGHEST)}
    return part


def conditions_of(name: str, chosen: dict[str, tuple[float, float]]) -> list[str]:
    """Return the intervals of a brush over a chart as SQL conditions.

    >>> conditions_of("returns", {"x": (10.2, 20.0)})
    ['number BETWEEN 10.2 AND 20']
    """
    columns = OVERVIEWS[name].columns
    intervals = {columns[field]: interval for field, interval in chosen.items() if field in columns}
    return [interval_condition(column, interval) for column, interval in intervals.items()]


def interval_condition(column: str, interval: tuple[float, float]) -> str:
    """Return the SQL condition of an interval."""
    low, high = map(exact_literal, interval)
    return f"{column_sql(column)} BETWEEN {low} AND {high}"


def to_extremes(
    interval: tuple[float, float], specification: Mapping[str, Any], column: pl.Series
) -> tuple[float, float]:
    """Return an interval of a histogram; one that covers half of an outer bar goes on to the extreme.

    Args:
        interval: as the brush gives it.
        specification: of the histogram.
        column: the values that it shows, and others.
    """
    rows = [row for rows in specification["datasets"].values() for row in rows if "to" in row]
    middles = [(row["from"] + row["to"]) / 2 for row in rows]
    numbers = column.drop_nulls().cast(pl.Float64)
    finite = numbers.filter(numbers.is_finite())
    low, high = (float(f"{end:.9g}") for end in interval)
    extremes: Any = finite.min(), finite.max()
    return (
        extremes[0] if low <= min(middles) else low,
        extremes[1] if high >= max(middles) else high,
    )


def episode_spec(episode: Episode, signals: Sequence[str] = ()) -> dict[str, Any]:
    """Return the specification of an episode over time, with a cursor at the signal `cursor` in every panel.

    Its usermeta has the last t at which the cursor stands.

    Args:
        episode: all panels go to its last t, so that the cursor stands at one place in them.
        signals: what to draw, as `Episode.plot` takes it; none for its default.

    Raises:
        NothingToDrawError: nothing of it is a few numbers at every step.
        InvalidArgumentError: there is no such signal.
    """
    specification = _compact(episode.plot(list(signals) or None).to_dict())
    across = {"domain": [0, max(episode.length, 1)], "nice": False}
    rule = _cursor("t", scale=across)
    alone = "vconcat" not in specification
    panels = [_layered(panel) for panel in specification.get("vconcat", [specification])]
    for panel in panels:
        for layer in panel["layer"]:
            encoding = layer.get("encoding", {})
            x = encoding.get("x", {})
            if encoding.get("color", {}).get("legend"):
                encoding["color"]["legend"]["title"] = None
            if x.get("field") == "t":
                x["scale"] = {**x.get("scale", {}), **across}
        panel["layer"] = [*panel["layer"], rule]
        if panel["layer"][0]["mark"]["type"] != "rect":  # Rows of a heat map need their room.
            _fit(panel, len(panels))
    specification = panels[0] if alone else {**specification, "vconcat": panels, "spacing": 6}
    if "vconcat" in specification:
        specification.setdefault("resolve", {}).setdefault("scale", {})["color"] = "independent"
    legend = {**specification.get("config", {}).get("legend", {}), **_LEGEND_ABOVE}
    specification["config"] = {**specification.get("config", {}), "legend": legend}
    params = [*specification.get("params", []), {"name": CURSOR, "value": 0}]
    return {**specification, "params": params, "usermeta": {"cursor": max(episode.length, 1)}}


def _fit(panel: dict[str, Any], count: int) -> None:
    """Make a panel so high that all of them are seen beside the frames."""
    panel["height"] = max(_LOWEST, min(110, _BESIDE // count))
    if count > _MOST_NUMBERED:
        for layer in panel["layer"]:
            if "y" in layer.get("encoding", {}):
                layer["encoding"]["y"]["axis"] = _NAMED


def _layered(panel: dict[str, Any]) -> dict[str, Any]:
    """Return a chart of one layer as a layered chart, so that another can be drawn over it."""
    if "layer" in panel:
        return panel
    inside = {"name": "panel_0"} | {key: value for key, value in panel.items() if key in _OF_A_LAYER}
    outside = {key: value for key, value in panel.items() if key not in _OF_A_LAYER}
    # Every layer would get a selection of its own, of the same name.
    if params := panel.get("params"):
        outside["params"] = [{"views": [inside["name"]], **each} for each in params]
    return {**outside, "layer": [inside]}


KINDS = ("line", "points", "bars", "histogram")


@dataclass(frozen=True)
class _Column:
    """A column of a result, as a chart has it.

    Attributes:
        field: its name in the data, since a specification interprets dots and brackets in names.
        kind: "Q" for amounts, "T" for times, "N" for anything else.
        title: its name, for people.
    """

    field: str
    kind: str
    title: str

    @property
    def place(self) -> str:
        """The column as a channel names it."""
        return f"{self.field}:{self.kind}"


def result_spec(
    table: pa.Table, kind: str, x: str, y: str | None, color: str | None, colors: SeriesColors
) -> dict[str, Any]:
    """Return a chart of an SQL result.

    Args:
        table: the result.
        kind: one of `KINDS`; a histogram counts the values of `x`.
        x, y, color: columns.
        colors: those that runs have on the page.

    Raises:
        InvalidArgumentError: a column is missing, or cannot be drawn.
    """
    import altair as alt

    from ..readers.charts.chart import finished, values_of

    wanted = [name for name in (x, None if kind == "histogram" else y, color) if name is not None]
    columns, rows = _drawable_part(table, list(dict.fromkeys(wanted)))
    upright = None if y is None or kind == "histogram" else columns[y]
    marked = _marked(alt.Chart(values_of(rows)), kind, columns[x], upright, rows)
    if color is not None:
        by = columns[color]
        scale = _color_scale([row[by.field] for row in rows], colors)
        marked = marked.encode(alt.Color(by.place, title=by.title, scale=scale))
    tooltips = [alt.Tooltip(column.place, title=column.title) for column in columns.values()]
    chart = finished(marked.encode(tooltip=tooltips).properties(width=560, height=260), "result")
    return {key: value for key, value in chart.to_dict().items() if key not in ("title", "usermeta")}


def _drawable_part(table: pa.Table, names: Sequence[str]) -> tuple[dict[str, _Column], list[dict[str, Any]]]:
    """Columns of a result by name, and their rows by field."""
    for name in names:
        if name not in table.column_names:
            raise InvalidArgumentError(
                f"The result has no column {name!r}; it has {', '.join(table.column_names)}."
            )
        if pa.types.is_nested(table.schema.field(name).type):
            raise InvalidArgumentError(f"{name!r} holds lists, which have no place on an axis.")
    columns = {
        name: _Column(f"c{index}", _kind_of(table.schema.field(name).type), name.replace("\n", " ")[:60])
        for index, name in enumerate(names)
    }
    rows = [
        {columns[name].field: _drawable(value) for name, value in row.items()}
        for row in table.select(list(names)).to_pylist()
    ]
    return columns, rows


def _marked(base: Any, kind: str, x: _Column, y: _Column | None, rows: Sequence[dict[str, Any]]) -> Any:
    """Return the marks of a chart of some rows, on their axes."""
    import altair as alt

    if kind == "histogram":
        across = alt.X(x.place, bin=alt.Bin(maxbins=40) if x.kind == "Q" else False, title=x.title)
        return base.mark_bar(color=PALETTE[0]).encode(across, alt.Y("count():Q", title="rows"))
    if y is None:
        raise InvalidArgumentError("Choose a column for the y axis.")
    mark = {
        "line": base.mark_line(point=True, color=PALETTE[0]),
        "points": base.mark_circle(size=36, color=PALETTE[0]),
        "bars": base.mark_bar(color=PALETTE[0]),
    }[kind]
    scale = alt.Scale(zero=kind == "bars")
    return mark.encode(
        alt.X(
            x.place,
            title=x.title,
            sort=None if x.kind == "N" else alt.Undefined,
            axis=_name_axis([row[x.field] for row in rows]) if x.kind == "N" else alt.Undefined,
            scale=alt.Scale(zero=False) if x.kind == "Q" else alt.Undefined,
        ),
        alt.Y(y.place, title=y.title, scale=scale if y.kind == "Q" else alt.Undefined),
    )


def _name_axis(values: Sequence[Any]) -> Any:
    """Return an axis of names, which lean where the chart is too narrow for them side by side."""
    import altair as alt

    names = {str(value) for value in values}
    longest = min(_LABEL_LIMIT, _SIGN * max(map(len, names), default=0))
    crowded = f"width < {len(names) * (longest + 12):.0f}"
    return alt.Axis(
        labelAngle=alt.ExprRef(f"{crowded} ? -40 : 0"),
        labelAlign=alt.ExprRef(f"{crowded} ? 'right' : 'center'"),
        labelLimit=alt.ExprRef(f"{crowded} ? {_LEANING_LIMIT} : {_LABEL_LIMIT}"),
    )


def _color_scale(values: Sequence[Any], colors: SeriesColors) -> Any:
    """Give runs and end reasons their colours on the rest of the page."""
    import altair as alt

    names = list(dict.fromkeys(shown(value) for value in values if isinstance(value, str)))
    if not any(map(colors.knows, names)):
        return alt.Undefined
    return alt.Scale(domain=names, range=colors.of(names))


def _kind_of(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "Q"
    return "T" if pa.types.is_temporal(kind) and not pa.types.is_time(kind) else "N"


def _drawable(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return float(value) if hasattr(value, "as_tuple") else str(value)
