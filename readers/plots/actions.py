"""Frequencies of actions: a panel for each element of the action."""

from __future__ import annotations

from typing import Any

import altair as alt

from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.schema import ACTION
from ...store.suggestions import suggest
from ..amounts import counted
from ..context import ReadContext
from .chart import AnyChart, finished
from .distribution import BINS, edges_of, heights
from .pieces import color_channel, stacked, title_of, tooltip_of, values_of
from .series import AGENT, Workbench, step_bench
from .steps import ALL, Element, StepRows, bins_of, elements_of, finite, step_rows
from .texts import shown
from .theme import WIDTH

MOST_PANELS = 8
#: More kinds than this are drawn as amounts.
MOST_KINDS = 60


def draw_actions(context: ReadContext, by: str | None, column: str | None) -> AnyChart:
    """Return the chart; see `Plots.actions`."""
    with step_bench(context) as bench:
        elements = _chosen(context, column)
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
    title = "Actions taken" + (f" by {title_of(rows.by)}" if rows.by != ALL else "")
    return finished(
        stacked(panels), title, [" ".join((counted(rows.count, "transition"), *rows.notes)), left]
    )


def _chosen(context: ReadContext, column: str | None) -> list[Element]:
    """Return the elements of the action that are asked for."""
    schema = context.snapshot.schema
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
            f"column={column!r} is no part of the action.{suggest(column, known)} "
            f"Its parts are: {', '.join(known)}."
        )
    return found


def _shares(bench: Workbench, element: Element) -> list[dict[str, Any]]:
    """Return the count and share of each value, or range of values, in each series."""
    value = element.sql
    bins = bins_of(bench, element, BINS, MOST_KINDS)
    if bins is None:
        return []
    found = bench.rows(
        f"SELECT _series AS series, {bins.sql(value)} AS bin, count(*) AS transitions, "
        "count(*) / sum(count(*)) OVER (PARTITION BY _series) AS share "
        f"FROM counted WHERE {finite(value)} GROUP BY _series, bin ORDER BY bin, series"
    )
    return [{**row, **edges_of(bins, row["bin"])} for row in found]


def _panel(element: Element, rows: StepRows, found: list[dict[str, Any]]) -> Any:
    legend = alt.selection_point(fields=["series"], bind="legend", name="legend")
    strength = 0.9 if _is_kinds(element) or len(rows.names) == 1 else 0.5
    seen = alt.when(legend).then(alt.value(strength)).otherwise(alt.value(0.06))
    by = title_of(rows.by)
    tooltip = tooltip_of(
        *(("series", by), ("label", element.name), ("transitions", "transitions")), ("share", "share")
    )
    percent = alt.Axis(format="~%")
    color = color_channel("series", by, rows.names)
    if _is_kinds(element):
        labels = [f"{element.start + index}" for index in range(element.kinds)]
        # Agents of other groups do not act here, and get no room.
        acting = {row["series"] for row in found}
        here = [shown(name) for name in rows.names if name in acting]
        bars = (
            alt.Chart(values_of(found))
            .mark_bar()
            .encode(
                alt.X(
                    "label:O",
                    title=shown(element.name),
                    scale=alt.Scale(domain=labels, paddingInner=0.25),
                    axis=alt.Axis(labelAngle=0, labelOverlap=True),
                ),
                alt.Y("share:Q", title="share of transitions", axis=percent, stack=None),
                color,
                xOffset=alt.XOffset("series:N", scale=alt.Scale(domain=here)),
                opacity=seen,
                tooltip=tooltip,
            )
        )
        return bars.add_params(legend).properties(width=WIDTH, height=180)
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    bars = (
        alt.Chart(values_of(heights(found, "share", ())))
        .mark_rect(clip=True)
        .encode(
            alt.X("from:Q", title=shown(element.name), scale=alt.Scale(zero=False, nice=False, padding=6)),
            alt.X2("to:Q"),
            alt.Y("bottom:Q", title="share of transitions", axis=percent),
            alt.Y2("top:Q"),
            color,
            opacity=seen,
            tooltip=tooltip,
        )
    )
    return bars.add_params(legend, zoom).properties(width=WIDTH, height=180)


def _is_kinds(element: Element) -> bool:
    return element.discrete and element.kinds <= MOST_KINDS
