"""Which actions are taken how often: a panel for each element of the action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.schema import ACTION
from .bins import Bins, bins_for
from .chart import AnyChart, finished
from .distribution import BINS, edges_of
from .pieces import color_channel, stacked, tooltip_of, values_of
from .series import AGENT, Workbench, bench_of
from .steps import ALL, Element, StepRows, elements_of, finite, nearest, step_rows
from .texts import counted
from .theme import WIDTH

if TYPE_CHECKING:
    from ..view import EpisodeView

MOST_PANELS = 8
#: More kinds than this are drawn as amounts.
MOST_KINDS = 60


def draw_actions(view: EpisodeView, by: str | None, column: str | None) -> AnyChart:
    """The chart; see `Plots.actions`."""
    with bench_of(view) as bench:
        elements = _chosen(view, column)
        rows = step_rows(bench, by or (AGENT if bench.snapshot.schema.groups else None), "transitions")
        panels = [
            _panel(element, rows, found)
            for element in elements[:MOST_PANELS]
            if (found := _shares(bench, element))
        ]
    if not panels:
        raise NothingToDrawError(
            "There is nothing to draw: the episodes have no transition with a finite action."
        )
    more = len(elements) - MOST_PANELS
    left = f"{counted(more, 'more element')} not drawn: name a part with column=" if more > 0 else ""
    title = "Actions taken" + (f" by {rows.by}" if rows.by != ALL else "")
    return finished(
        stacked(panels), title, [" ".join((counted(rows.count, "transition"), *rows.notes)), left]
    )


def _chosen(view: EpisodeView, column: str | None) -> list[Element]:
    """The elements of the action that are asked for."""
    schema = view._reader.snapshot.schema
    elements = elements_of(schema, ACTION)
    if not elements:
        raise NothingToDrawError(
            f"The actions are no numbers of a fixed shape: {' '.join(str(schema.action_space).split())}. "
            "Look at them with view.transitions or in SQL."
        )
    if column is None:
        return elements
    found = [
        each
        for each in elements
        if column in (each.name, each.column) or each.column.startswith(f"{column}.")
    ]
    if not found:
        known = list(dict.fromkeys(each.column for each in elements))
        raise InvalidArgumentError(
            f"column={column!r} is no part of the action.{nearest(column, known)} Its parts are: {', '.join(known)}."
        )
    return found


def _shares(bench: Workbench, element: Element) -> list[dict[str, Any]]:
    """How often each value, or stretch of values, comes in each series."""
    value = element.sql
    if element.discrete and element.kinds <= MOST_KINDS:
        bins = Bins(element.start - 0.5, 1.0, element.kinds, True)
    else:
        (span,) = bench.rows(
            f"SELECT min({value}) AS low, max({value}) AS high, bool_and({value} = round({value})) AS whole "
            f"FROM counted WHERE {finite(value)}"
        )
        if span["low"] is None:
            return []
        bins = bins_for(span["low"], span["high"], BINS, whole=span["whole"])
    found = bench.rows(
        f"SELECT _series AS series, {bins.sql(value)} AS bin, count(*) AS transitions, "
        "count(*) / sum(count(*)) OVER (PARTITION BY _series) AS share "
        f"FROM counted WHERE {finite(value)} GROUP BY _series, bin ORDER BY bin, series"
    )
    return [{**row, **edges_of(bins, row["bin"])} for row in found]


def _panel(element: Element, rows: StepRows, found: list[dict[str, Any]]) -> alt.LayerChart:
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    seen = alt.when(legend).then(alt.value(0.9 if len(rows.names) == 1 else 0.75)).otherwise(alt.value(0.06))
    tooltip = tooltip_of(
        *(("series", rows.by), ("label", element.name), ("transitions", "transitions")),
        ("share", "share"),
    )
    share = alt.Y("share:Q", title="share of transitions", axis=alt.Axis(format="%"), stack=None)
    color = color_channel("series", rows.by, rows.names)
    chart = alt.Chart(values_of(found))
    if element.discrete and element.kinds <= MOST_KINDS:
        labels = [f"{element.start + index}" for index in range(element.kinds)]
        x = alt.X("label:O", title=element.name, scale=alt.Scale(domain=labels), axis=alt.Axis(labelAngle=0))
        bars = (
            chart.mark_bar()
            .encode(x, share, color, xOffset=alt.XOffset("series:N"), opacity=seen, tooltip=tooltip)
            .add_params(legend)
        )
    else:
        x = alt.X("from:Q", title=element.name, scale=alt.Scale(zero=False, nice=False))
        zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
        bars = (
            chart.mark_bar(clip=True)
            .encode(x, alt.X2("to:Q"), share, color, opacity=seen, tooltip=tooltip)
            .add_params(legend, zoom)
        )
    return alt.layer(bars).properties(width=WIDTH, height=180)
