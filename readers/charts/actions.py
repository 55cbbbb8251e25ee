"""Frequencies of actions, and visits of the parts of the observation space."""

from __future__ import annotations

from typing import Any

import altair as alt

from ...store.common.arguments import suggest, whole_number
from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.names import ACTION
from ..chart_session import ChartSession
from ..context import ReadContext
from ..formatting import counted
from .bins import Binned
from .chart import AnyChart, color_channel, finished, stacked, title_of, tooltip_of, values_of
from .returns import BINS, MOST_BINS, edges_of, heights
from .series import AGENT
from .steps import ALL, Element, StepRows, bins_of, elements_of, finite, named, step_rows
from .theme import HEIGHT, PALETTE, WIDTH, shown
from .visits import Visits

MOST_PANELS = 8
#: More kinds than this are drawn as amounts.
MOST_KINDS = 60


def draw_actions(context: ReadContext, by: str | None, column: str | None) -> AnyChart:
    """Return the chart; see `Plots.actions`."""
    with ChartSession(context, steps=True) as bench:
        elements = named(_chosen(context, column), context.snapshot)
        rows = step_rows(bench, by or (AGENT if bench.snapshot.schema.groups else None), "transitions")
        drawn = [(each, *_shares(bench, each)) for each in elements[:MOST_PANELS]]
    panels = [_panel(element, rows, shares) for element, shares, _ in drawn if shares]
    if not panels:
        raise NothingToDrawError(
            "There is nothing to draw: the episodes have no transition with a finite action."
        )
    more = len(elements) - MOST_PANELS
    left = f"{counted(more, 'more element')} not drawn: name a part with column=" if more > 0 else ""
    title = "Actions taken" + (f" by {title_of(rows.by)}" if rows.by != ALL else "")
    return finished(
        stacked(panels),
        title,
        [" ".join((counted(rows.count, "transition"), *rows.notes)), left, *(note for *_, note in drawn)],
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
    chosen = [
        each
        for each in elements
        if column in (each.name, each.column) or each.column.startswith(f"{column}.")
    ]
    if not chosen:
        known = list(dict.fromkeys(each.column for each in elements))
        raise InvalidArgumentError(
            f"column={column!r} is no part of the action.{suggest(column, known)} "
            f"Its parts are: {', '.join(known)}."
        )
    return chosen


def _shares(bench: ChartSession, element: Element) -> tuple[list[dict[str, Any]], str]:
    """Return the count and share of each value, or range of values, in each series, and a note on
    outliers.
    """
    value = element.sql
    binned = bins_of(bench, element, BINS, MOST_KINDS)
    if binned is None:
        return [], ""
    bins = binned.bins
    rows = bench.rows(
        f"SELECT _series AS series, {bins.sql(value)} AS bin, count(*) AS transitions, "
        "count(*) / sum(count(*)) OVER (PARTITION BY _series) AS share "
        f"FROM counted WHERE {finite(value)} GROUP BY _series, bin ORDER BY bin, series"
    )
    note = binned.note and f"{element.name}: {binned.note}"
    return [{**row, **edges_of(bins, row["bin"])} for row in rows], note


def _panel(element: Element, rows: StepRows, shares: list[dict[str, Any]]) -> Any:
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
        acting = {row["series"] for row in shares}
        here = [shown(name) for name in rows.names if name in acting]
        bars = (
            alt.Chart(values_of(shares))
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
        alt.Chart(values_of(heights(shares, "share", ())))
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


def draw_visitation(context: ReadContext, x: str | None, y: str | None, bins: int) -> AnyChart:
    """Return the chart; see `Plots.visitation`."""
    bins = whole_number("bins", bins, 1, MOST_BINS)
    visits = Visits.of(context, x, y, bins)
    elements = named([element for element, _ in visits.axes.values()], context.snapshot)
    visits_by_cell = [{"visits": cell["visits"], **_cell(cell, visits.axes)} for cell in visits.cells]
    observations = counted(sum(row["visits"] for row in visits_by_cell), "observation")
    subtitle = [" ".join((observations, *visits.rows.notes)), *visits.outliers]
    if len(elements) == 1:
        return finished(_bars(elements[0], visits_by_cell), f"Visits by {elements[0].name}", subtitle)
    title = f"Visits by {elements[0].name} and {elements[1].name}"
    return finished(
        _heat_map(elements, visits_by_cell),
        title,
        [*subtitle, "colour: number of observations, on a log scale"],
    )


def _cell(row: dict[str, Any], axes: dict[str, tuple[Element, Binned]]) -> dict[str, Any]:
    """Return the position of a cell. Cells of a heat map overlap a little, which closes the hairlines between
    them.
    """
    cell: dict[str, Any] = {}
    for name, (_, binned) in axes.items():
        bins = binned.bins
        low, high = bins.edges(row[name])
        edges = edges_of(bins, row[name]) if len(axes) == 1 else {"from": low, "to": high + bins.width / 20}
        cell |= {f"{name}_from": edges["from"], f"{name}_to": edges["to"]}
        cell[f"{name}_label"] = bins.label(row[name])
    return cell


def _heat_map(elements: list[Element], visited: list[dict[str, Any]]) -> Any:
    # The ends of the scheme would vanish on black or on white.
    scale = alt.Scale(type="log", scheme=alt.SchemeParams("plasma", extent=[0.25, 0.88]))
    legend = alt.Legend(gradientLength=200, tickCount=5)
    cells = (
        alt.Chart(values_of(visited))
        .mark_rect(clip=True, strokeWidth=0)
        .encode(
            alt.X(
                "x_from:Q", title=shown(elements[0].name), scale=alt.Scale(zero=False, nice=False, padding=4)
            ),
            alt.X2("x_to:Q"),
            alt.Y(
                "y_from:Q", title=shown(elements[1].name), scale=alt.Scale(zero=False, nice=False, padding=4)
            ),
            alt.Y2("y_to:Q"),
            alt.Color("visits:Q", title="observations", scale=scale, legend=legend),
            tooltip=tooltip_of(
                ("x_label", elements[0].name), ("y_label", elements[1].name), ("visits", "observations")
            ),
        )
    )
    zoom = alt.selection_interval(bind="scales", name="zoom")
    return cells.add_params(zoom).properties(width=WIDTH * 3 // 4, height=WIDTH * 3 // 4)


def _bars(element: Element, cells: list[dict[str, Any]]) -> Any:
    bars = (
        alt.Chart(values_of(cells))
        .mark_rect(clip=True, color=PALETTE[0])
        .encode(
            alt.X("x_from:Q", title=shown(element.name), scale=alt.Scale(zero=False, nice=False, padding=6)),
            alt.X2("x_to:Q"),
            alt.Y("visits:Q", title="observations", axis=alt.Axis(tickMinStep=1)),
            alt.Y2(datum=0),
            tooltip=tooltip_of(("x_label", element.name), ("visits", "observations")),
        )
    )
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    return bars.add_params(zoom).properties(width=WIDTH, height=HEIGHT)
