"""`episodelake plot`: a chart of a store in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ..output.exporting import check_target, file_report, replaced
from ..result import Report
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


def save_chart(
    path: str,
    storage: Sequence[str] | None,
    kind: str,
    output: Path,
    condition: str | None,
    **options: Any,
) -> Report:
    """Write a chart to a file; see `episodelake plot`. Options that are None were not given."""
    if output.suffix.lower() not in SUFFIXES:
        raise typer.BadParameter(
            f"{str(output)!r}: expected a name that ends in {', '.join(SUFFIXES)}.", param_hint="--output"
        )
    check_target(output)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in _TAKES[kind]:
            others = [other for other, taken in _TAKES.items() if name in taken]
            raise typer.BadParameter(
                f"{kind} does not take it. Charts that do: {', '.join(others)}.", param_hint=f"--{name}"
            )

    def save(opened: Explored) -> None:
        chart = getattr(opened.chosen(condition).plot, _METHODS.get(kind, kind))(**given)
        with replaced(output) as draft:
            chart.save(draft)

    _, status = explored(path, storage, save, steps=True)
    return file_report("The chart is in", output, {"kind": kind}, status=status)
