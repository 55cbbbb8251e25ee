"""Which parts of the observation space are visited how often: a heat map of two elements, or bars of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.schema import OBSERVATION
from ..amounts import counted
from .bins import Bins, bins_for
from .chart import AnyChart, finished
from .distribution import check_bins, edges_of
from .pieces import tooltip_of, values_of
from .series import Workbench, step_bench
from .steps import Element, elements_of, finite, nearest, step_rows
from .texts import shown
from .theme import HEIGHT, PALETTE, WIDTH

if TYPE_CHECKING:
    from ..view import EpisodeView


def draw_visitation(view: EpisodeView, x: str | None, y: str | None, bins: int) -> AnyChart:
    """The chart; see `Plots.visitation`."""
    check_bins(bins)
    with step_bench(view) as bench:
        elements = _chosen(view, x, y)
        rows = step_rows(bench, None, "steps")
        axes = [_bins(bench, element, bins) for element in elements]
        found = _visits(bench, elements, axes)
    subtitle = [" ".join((counted(sum(row["visits"] for row in found), "observation"), *rows.notes))]
    if len(elements) == 1:
        return finished(_bars(elements[0], found), f"Visits by {elements[0].name}", subtitle)
    told = f"Visits by {elements[0].name} and {elements[1].name}"
    return finished(
        _heat_map(elements, found), told, [*subtitle, "colour: number of observations, on a log scale"]
    )


def visits(view: EpisodeView, bins: int = 50) -> list[dict[str, Any]]:
    """The numbers behind the chart: a row per cell that has any visit, with its edges and their count.

    Keys: `visits`, and of one element or two `x`, `x_from`, `x_to`, `y`, `y_from`, `y_to`.
    """
    with step_bench(view) as bench:
        elements = _chosen(view, None, None)
        step_rows(bench, None, "steps")
        axes = dict(zip("xy", [_bins(bench, element, bins) for element in elements], strict=False))
        cells = _counted(bench, elements, list(axes.values()))
    names = dict(zip(axes, (element.name for element in elements), strict=True))
    return [{"visits": cell["visits"], **_edges(cell, axes, names)} for cell in cells]


def _edges(cell: dict[str, Any], axes: dict[str, Bins], names: dict[str, str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for axis, bins in axes.items():
        low, high = bins.edges(cell[axis])
        told |= {axis: names[axis], f"{axis}_from": low, f"{axis}_to": high}
    return told


def _chosen(view: EpisodeView, x: str | None, y: str | None) -> list[Element]:
    """One element or two."""
    schema = view._reader.snapshot.schema
    elements = elements_of(schema, OBSERVATION)
    if not elements:
        raise NothingToDrawError(
            "The observations have no visitation, since they are no numbers of a fixed shape: "
            f"{' '.join(str(schema.observation_space).split())}. For images, look at episode.video()."
        )
    known = {element.name: element for element in elements}
    for name in (x, y):
        if name is not None and name not in known:
            listed = ", ".join(list(known)[:20]) + (", ..." if len(known) > 20 else "")
            raise InvalidArgumentError(
                f"{name!r} is no element of the observation.{nearest(name, list(known))} There are: {listed}."
            )
    if x is None and y is None:
        return elements[:2]
    if y is None or x is None:
        return [known[name] for name in (x, y) if name is not None]
    return [known[x], known[y]]


def _bins(bench: Workbench, element: Element, about: int) -> Bins:
    if element.discrete and element.kinds <= about:
        return Bins(element.start - 0.5, 1.0, element.kinds, True)
    value = element.sql
    (span,) = bench.rows(
        f"SELECT min({value}) AS low, max({value}) AS high, bool_and({value} = round({value})) AS whole "
        f"FROM counted WHERE {finite(value)}"
    )
    if span["low"] is None:
        raise NothingToDrawError(
            f"There is nothing to draw: {element.name} has no finite value in these episodes."
        )
    return bins_for(span["low"], span["high"], about, whole=span["whole"])


def _visits(bench: Workbench, elements: list[Element], axes: list[Bins]) -> list[dict[str, Any]]:
    """The cells that have any observation, as they are drawn."""
    pairs = list(zip("xy", elements, axes, strict=False))
    found = _counted(bench, elements, axes)
    return [{"visits": row["visits"], **_cell(row, pairs)} for row in found]


def _counted(bench: Workbench, elements: list[Element], axes: list[Bins]) -> list[dict[str, Any]]:
    """How many observations fall into each cell that has any."""
    pairs = list(zip("xy", elements, axes, strict=False))
    names = [name for name, _, _ in pairs]
    cells = ", ".join(f"{bins.sql(element.sql)} AS {name}" for name, element, bins in pairs)
    drawable = " AND ".join(finite(element.sql) for element in elements)
    columns = ", ".join(names)
    return bench.rows(
        f"SELECT {cells}, count(*) AS visits FROM counted WHERE {drawable} "
        f"GROUP BY {columns} ORDER BY {columns}"
    )


def _cell(row: dict[str, Any], pairs: list[tuple[str, Element, Bins]]) -> dict[str, Any]:
    """Where a cell stands. Cells of a heat map overlap a little, which closes the hairlines between them."""
    cell: dict[str, Any] = {}
    for name, _, bins in pairs:
        low, high = bins.edges(row[name])
        edges = edges_of(bins, row[name]) if len(pairs) == 1 else {"from": low, "to": high + bins.width / 20}
        cell |= {f"{name}_from": edges["from"], f"{name}_to": edges["to"]}
        cell[f"{name}_label"] = bins.label(row[name])
    return cell


def _heat_map(elements: list[Element], found: list[dict[str, Any]]) -> Any:
    # The ends of the scheme would vanish on black or on white.
    scale = alt.Scale(type="log", scheme=alt.SchemeParams("plasma", extent=[0.25, 0.88]))
    legend = alt.Legend(gradientLength=200, tickCount=5)
    cells = (
        alt.Chart(values_of(found))
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


def _bars(element: Element, found: list[dict[str, Any]]) -> Any:
    bars = (
        alt.Chart(values_of(found))
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
