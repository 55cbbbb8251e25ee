"""`episodelake plot`: a chart of a store, to a file by Altair, or drawn with characters."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..readers.amounts import size_text
from ..readers.optional_packages import EXPLORE, require
from ..readers.plots.series import check_any
from ..readers.view import EpisodeView
from ..store.errors import InvalidArgumentError, NothingToDrawError
from .arguments import AsJson, Condition, StorageOptions, StorePath
from .commands import LOOK, command
from .drawing import draw_actions, draw_histogram, draw_over_time, drawn_series
from .exploring import end, explored_steps
from .exporting import check_target, replaced
from .json_text import write_object, write_rows
from .listing import meant
from .page import Page
from .progress import interruptible, unchanged

SUFFIXES = (".svg", ".png", ".html")

EXAMPLES = """\
episodelake plot data/cartpole returns
episodelake plot data/cartpole returns --output returns.svg
episodelake plot data/cartpole histogram --filter "length > 9" -o returns.html
episodelake plot data/cartpole visitation --output visited.png"""


class Kind(StrEnum):
    """What can be drawn."""

    returns = "returns"
    lengths = "lengths"
    histogram = "histogram"
    actions = "actions"
    visitation = "visitation"


def complete_kinds(incomplete: str) -> list[str]:
    """The kinds of charts."""
    return [kind.value for kind in Kind if kind.value.startswith(incomplete)]


#: Their methods of `EpisodeView.plot`.
_METHODS = {Kind.histogram: "return_histogram"}
_COLUMNS = {Kind.returns: "episode_return", Kind.lengths: "length", Kind.histogram: "episode_return"}


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    command(app, LOOK, EXAMPLES)(plot)


def plot(
    path: StorePath,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="returns and lengths over time by run, histogram of returns, actions taken, or visitation "
            "of observations.",
            show_default=False,
            autocompletion=complete_kinds,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the chart to a .svg, .png or .html file; needs episodelake[explore].",
            show_default=False,
        ),
    ] = None,
    condition: Condition = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Draw returns, lengths, actions or visited observations.

    To a file, or without one with characters.
    """
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(
            f"{str(output)!r}: expected a name that ends in {', '.join(SUFFIXES)}.", param_hint="--output"
        )
    wanted = _kind(kind, path)
    if output is not None:
        check_target(output)
    page = Page()
    with interruptible(unchanged):
        if output is None:
            _, complete = explored_steps(
                path, storage, lambda opened: _draw(page, _view(opened.store, condition), wanted, as_json)
            )
        else:
            _, complete = explored_steps(
                path, storage, lambda opened: _save(_view(opened.store, condition), wanted, output)
            )
            _told(page, wanted, output, as_json=as_json)
        end(complete)


def _kind(text: str, path: str) -> Kind:
    """The chart that KIND names."""
    kinds = [kind.value for kind in Kind]
    if text in kinds:
        return Kind(text)
    if "/" in text or Path(text).is_dir():
        known = path if path in kinds else "KIND"
        raise typer.BadParameter(
            f"{text!r} is a path, and the store stands first: episodelake plot {text} {known}. "
            f"There are: {', '.join(kinds)}.",
            param_hint="KIND",
        )
    raise typer.BadParameter(f"there is no chart {text!r}.{meant(text, kinds)}", param_hint="KIND")


def _view(store: EpisodeView, condition: str | None) -> EpisodeView:
    return store if condition is None else store.filter(condition)


def _save(view: EpisodeView, kind: Kind, output: Path) -> None:
    chart = getattr(view.plot, _METHODS.get(kind, kind.value))()
    with replaced(output) as draft:
        chart.save(draft)


def _visits(view: EpisodeView) -> list[dict[str, Any]]:
    """The numbers behind the chart of visitation."""
    if not len(view):
        return []
    # Imported where it is wanted: it brings Altair.
    require("altair", "Visitation", EXPLORE)
    from ..readers.plots.visitation import visits

    return visits(view)


def _told(page: Page, kind: Kind, output: Path, *, as_json: bool) -> None:
    size = output.stat().st_size
    if as_json:
        write_object(page, {"kind": kind.value, "file": str(output), "bytes": size})
    else:
        page.note(f"The chart is in {output} ({size_text(size)}).")


def _draw(page: Page, view: EpisodeView, kind: Kind, as_json: bool) -> None:
    drawn: list[dict[str, Any]]
    if not as_json:
        # As for a file; an empty list is an answer for programs.
        check_any(view)
    if kind is Kind.visitation:
        if not as_json:
            raise InvalidArgumentError(
                "Visitation is a picture, which characters cannot draw: give --output FILE.png, .svg or "
                ".html, or --json for its numbers."
            )
        drawn = _visits(view)
    elif kind is Kind.actions:
        drawn = draw_actions(page, view, write=not as_json)
    else:
        series = drawn_series(view, _COLUMNS[kind])
        draw = draw_histogram if kind is Kind.histogram else draw_over_time
        drawn = draw(page, series, write=not as_json)
    if as_json:
        write_rows(page, drawn)
    elif not drawn:
        raise NothingToDrawError("There is nothing to draw: these episodes have no such numbers.")
