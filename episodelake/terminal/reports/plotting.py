"""`episodelake plot`: a chart of a store, to a file by Altair, or drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ...readers.plots.series import LENGTH, RETURN, check_any
from ...readers.view import EpisodeView
from ...store.errors import InvalidArgumentError, NothingToDrawError
from ...store.optional_packages import EXPLORE, require
from ..completion import CHARTS
from ..output.drawing import draw_actions, draw_histogram, draw_over_time, drawn_series
from ..output.exporting import check_target, replaced, report_file
from ..output.json_text import write_rows
from ..output.page import Page
from ..output.progress import interruptible, unchanged
from .exploring import end, explored_steps, meant

SUFFIXES = (".svg", ".png", ".html")

#: Methods of `EpisodeView.plot` by chart, where the names differ.
_METHODS = {"histogram": "return_histogram"}


def draw_chart(
    path: str,
    storage: Sequence[str] | None,
    kind: str,
    output: Path | None,
    condition: str | None,
    *,
    as_json: bool,
) -> None:
    """Draw a chart; see `episodelake plot`."""
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(
            f"{str(output)!r}: expected a name that ends in {', '.join(SUFFIXES)}.", param_hint="--output"
        )
    _check_kind(kind, path)
    if output is not None:
        check_target(output)
    page = Page()
    with interruptible(unchanged):
        if output is None:
            _, complete = explored_steps(
                path, storage, lambda opened: _draw(page, opened.chosen(condition), kind, as_json)
            )
        else:
            _, complete = explored_steps(
                path, storage, lambda opened: _save(opened.chosen(condition), kind, output)
            )
            report_file(page, "The chart is in", output, {"kind": kind}, as_json=as_json)
        end(complete)


def _check_kind(kind: str, path: str) -> None:
    """Refuse a chart that does not exist."""
    if kind in CHARTS:
        return
    if "/" in kind or Path(kind).is_dir():
        known = path if path in CHARTS else "KIND"
        raise typer.BadParameter(
            f"{kind!r} is a path, and the store stands first: episodelake plot {kind} {known}. "
            f"There are: {', '.join(CHARTS)}.",
            param_hint="KIND",
        )
    raise typer.BadParameter(f"there is no chart {kind!r}.{meant(kind, CHARTS)}", param_hint="KIND")


def _save(view: EpisodeView, kind: str, output: Path) -> None:
    chart = getattr(view.plot, _METHODS.get(kind, kind))()
    with replaced(output) as draft:
        chart.save(draft)


def _visits(view: EpisodeView) -> list[dict[str, Any]]:
    """Return the numbers behind the chart of visitation."""
    if not len(view):
        return []
    # Imported where it is kind: it brings Altair.
    require("altair", "Visitation", EXPLORE)
    from ...readers.plots.visitation import visits

    return visits(view.context)


def _draw(page: Page, view: EpisodeView, kind: str, as_json: bool) -> None:
    drawn: list[dict[str, Any]]
    if not as_json:
        # As for a file; an empty list is an answer for programs.
        check_any(view.context)
    if kind == "visitation":
        if not as_json:
            raise InvalidArgumentError(
                "Visitation is a picture, which characters cannot draw: give --output FILE.png, .svg or "
                ".html, or --json for its numbers."
            )
        drawn = _visits(view)
    elif kind == "actions":
        drawn = draw_actions(page, view, write=not as_json)
    else:
        series = drawn_series(view, LENGTH if kind == "lengths" else RETURN)
        draw = draw_histogram if kind == "histogram" else draw_over_time
        drawn = draw(page, series, write=not as_json)
    if as_json:
        write_rows(page, drawn)
    elif not drawn:
        raise NothingToDrawError("There is nothing to draw: these episodes have no such numbers.")
