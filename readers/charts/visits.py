"""Visits of the parts of the observation space, counted in cells; no chart of Altair is made here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...store.common.arguments import suggest
from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.names import OBSERVATION
from ..chart_session import ChartSession
from ..context import ReadContext
from .bins import Binned
from .steps import Element, StepRows, bins_of, elements_of, finite, step_rows


@dataclass(frozen=True)
class Visits:
    """The number of observations in each cell that has any.

    Attributes:
        axes: the element and its bins by axis, "x" and perhaps "y".
        cells: rows of the bin of each axis, and `visits`.
        rows: the steps that were counted.
    """

    axes: dict[str, tuple[Element, Binned]]
    cells: list[dict[str, Any]]
    rows: StepRows

    @staticmethod
    def of(context: ReadContext, x: str | None, y: str | None, about: int) -> Visits:
        """Count the observations of all steps; arguments and errors are those of `Plots.visitation`."""
        with ChartSession(context, steps=True) as bench:
            elements = _places(context, x, y)
            rows = step_rows(bench, None, "steps")
            axes: dict[str, tuple[Element, Binned]] = {}
            for axis, element in zip("xy", elements, strict=False):
                binned = bins_of(bench, element, about, about)
                if binned is None:
                    raise NothingToDrawError(
                        f"There is nothing to draw: {element.name} has no finite value in these episodes."
                    )
                axes[axis] = element, binned
            indices = ", ".join(
                f"{binned.bins.sql(element.sql)} AS {axis}" for axis, (element, binned) in axes.items()
            )
            drawable = " AND ".join(finite(element.sql) for element in elements)
            columns = ", ".join(axes)
            cells = bench.rows(
                f"SELECT {indices}, count(*) AS visits FROM counted WHERE {drawable} "
                f"GROUP BY {columns} ORDER BY {columns}"
            )
        return Visits(axes, cells, rows)

    @property
    def outliers(self) -> list[str]:
        """Notes on values beyond the cells; the outer ones hold them."""
        return [f"{each.name}: {binned.note}" for each, binned in self.axes.values() if binned.note]

    def numbers(self) -> list[dict[str, Any]]:
        """Return a row per cell: `visits`, and of one element or two `x`, `x_from`, `x_to`, `y`, `y_from`,
        `y_to`.
        """
        rows = []
        for cell in self.cells:
            row: dict[str, Any] = {"visits": cell["visits"]}
            for axis, (element, binned) in self.axes.items():
                low, high = binned.bins.edges(cell[axis])
                row |= {axis: element.name, f"{axis}_from": low, f"{axis}_to": high}
            rows.append(row)
        return rows


def _places(context: ReadContext, x: str | None, y: str | None) -> list[Element]:
    """Return one element or two."""
    schema = context.snapshot.schema
    elements = elements_of(schema, OBSERVATION)
    if not elements:
        raise NothingToDrawError(
            "The observations have no visitation, since they are no numbers of a fixed shape: "
            f"{' '.join(str(schema.observation_space).split())}.",
            hint="For images, look at episode.video().",
        )
    known = {element.name: element for element in elements}
    for name in (x, y):
        if name is not None and name not in known:
            listed = ", ".join(list(known)[:20]) + (", ..." if len(known) > 20 else "")
            raise InvalidArgumentError(
                f"{name!r} is no element of the observation.{suggest(name, list(known))} There are: {listed}."
            )
    if x is None and y is None:
        return elements[:2]
    if y is None or x is None:
        return [known[name] for name in (x, y) if name is not None]
    return [known[x], known[y]]
