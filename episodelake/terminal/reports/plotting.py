"""`episodelake plot`: a chart of a store, to a file by Altair, or drawn with characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ... import EpisodeView
from ...errors import InvalidArgumentError, NothingToDrawError
from ...plugin import ChartSession
from ..output.exporting import check_target, file_report, replaced
from ..result import Report
from .drawings import (
    Drawing,
    actions_drawing,
    drawn_series,
    histogram_drawing,
    learning_drawing,
    time_drawing,
)
from .open_store import Explored, explored

SUFFIXES = (".svg", ".png", ".html")

#: Methods of `EpisodeView.plot` by chart, where the names differ.
_METHODS = {"histogram": "return_histogram", "learning": "learning_curve"}
#: The options that a chart takes.
_TAKES = {
    "returns": ("over", "by"),
    "lengths": ("over", "by"),
    "histogram": ("by",),
    "learning": ("over", "by", "smooth"),
    "actions": ("by",),
    "visitation": (),
}


@dataclass(frozen=True)
class Wanted:
    """A chart that a command asks for; options that are None were not given.

    Attributes:
        kind: the chart.
        over, by, smooth: as for the method of `EpisodeView.plot`.
    """

    kind: str
    over: str | None = None
    by: str | None = None
    smooth: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given.

        Raises:
            BadParameter: the chart does not take one.
        """
        options = {"over": self.over, "by": self.by, "smooth": self.smooth}
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in _TAKES[self.kind]:
                others = [kind for kind, taken in _TAKES.items() if name in taken]
                raise typer.BadParameter(
                    f"{self.kind} does not take it. Charts that do: {', '.join(others)}.",
                    param_hint=f"--{name}",
                )
        return given


def save_chart(
    path: str,
    storage: Sequence[str] | None,
    wanted: Wanted,
    output: Path,
    condition: str | None,
) -> Report:
    """Write a chart to a file; see `episodelake plot`."""
    if output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(
            f"{str(output)!r}: expected a name that ends in {', '.join(SUFFIXES)}.", param_hint="--output"
        )
    check_target(output)
    given = wanted.given()

    def save(opened: Explored) -> None:
        plot = opened.chosen(condition).plot
        chart = getattr(plot, _METHODS.get(wanted.kind, wanted.kind))(**given)
        with replaced(output) as draft:
            chart.save(draft)

    _, status = explored(path, storage, save, steps=True)
    return file_report("The chart is in", output, {"kind": wanted.kind}, status=status)


def drawn(view: EpisodeView, wanted: Wanted, *, as_json: bool) -> Drawing:
    """Return a chart of characters, or its numbers.

    Raises:
        NothingToDrawError: there is no episode, and the chart is not for programs.
        InvalidArgumentError: characters cannot draw it.
        BadParameter: the chart does not take an option.
    """
    kind, given = wanted.kind, wanted.given()
    if not as_json:
        # As for a file.
        ChartSession.check_any(view.context)
    if kind == "visitation" and not as_json:
        raise InvalidArgumentError(
            "Visitation is a picture, which characters cannot draw: give --output FILE.png, .svg or "
            ".html, or --json for its numbers."
        )
    if kind != "learning" and given.get("over", "episodes") != "episodes":
        raise InvalidArgumentError(
            f"Without --output {kind} go from the first episode to the last: give --output FILE for --over, "
            "or choose learning."
        )
    if kind == "actions" and given:
        raise InvalidArgumentError(
            "Without --output actions are those of all episodes: give --output FILE for --by."
        )
    try:
        return _drawing(view, kind, given)
    except NothingToDrawError:
        # An empty list is an answer for programs.
        if as_json and (kind == "learning" or not len(view)):
            return Drawing([])
        raise


def _drawing(view: EpisodeView, kind: str, given: dict[str, Any]) -> Drawing:
    match kind:
        case "visitation":
            return Drawing(view.plot.numbers(kind).rows.to_dicts())
        case "learning":
            return learning_drawing(view, **given)
        case "actions":
            return actions_drawing(view)
    series = drawn_series(view, "lengths" if kind == "lengths" else "returns", given.get("by"))
    return (histogram_drawing if kind == "histogram" else time_drawing)(series)
