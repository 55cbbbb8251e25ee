"""`episodelake diff`: two stores, or two versions of one, side by side; status 1 when they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from ..._store import EpisodeStore
from ...readers.amounts import counted
from ...store.errors import CorruptStoreError
from ...store.progress import progress_meter
from ..command import FAILED
from ..opening import open_store_at
from ..output.grid import Grid
from ..output.json_text import write_object
from ..output.page import Page
from ..output.progress import interruptible, unchanged
from .comparison import compare
from .exploring import READING_ERRORS

IDS_SHOWN = 10


def compare_stores(
    sides: Sequence[tuple[str, str | None]],
    storage: Sequence[str] | None,
    *,
    steps: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare two stores, given by path and version; see `episodelake diff`."""
    page = Page()
    with interruptible(unchanged):
        first, second = (open_store_at(path, storage, version) for path, version in sides)
        with progress_meter(True, "Comparing", "files") as progress:
            try:
                report = compare(first, second, steps=steps, progress=progress)
            except READING_ERRORS as error:
                raise _damaged((first, second), error) from error
    if as_json:
        write_object(page, report)
    elif not quiet:
        _write(page, report)
    if not report["same"]:
        raise typer.Exit(FAILED)


def _damaged(stores: Sequence[EpisodeStore], error: Exception) -> Exception:
    """Return what is wrong with the files that ended a comparison: an engine may not have said which they
    are.
    """
    told = [each for store in stores for each in store.leave_out_damaged(steps=True)]
    return CorruptStoreError(" ".join(dict.fromkeys(told))) if told else error


def _write(page: Page, report: Mapping[str, Any]) -> None:
    if report["same"]:
        page.line(f"No difference in {counted(report['episodes']['same'], 'episode')}.", "bold green")
        return
    _write_figures(page, report["a"], report["b"])
    if report["spaces"]:
        page.heading("Spaces")
        _write_sides(page, "space", report["spaces"], "name")
    if report["columns"]:
        page.heading("Columns")
        rows = [{**each, "name": f"{each['table']}.{each['column']}"} for each in report["columns"]]
        _write_sides(page, "column", rows, "name")
    for kind in ("runs", "episodes"):
        _write_ids(page, kind, report[kind])


def _write_figures(page: Page, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    sides = [_labelled(side) for side in (first, second)]
    rows = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (_figure(page, side.get(name)) for side in sides)
        rows.append((name, left, right, "" if left == right else "differs"))
    page.table(Grid.of(("", "A", "B", "difference"), rows))


def _labelled(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures by the words that people read; a list has a line for each of its values."""
    told: dict[str, Any] = {}
    for name, value in figures.items():
        label = name.replace("_", " ")
        if name == "end_reasons":
            told |= {f"ended: {reason}": count for reason, count in value.items()}
        elif isinstance(value, list):
            told |= {f"{label}[{index}]": each for index, each in enumerate(value)}
        else:
            told[label] = value
    return told


def _figure(page: Page, value: Any) -> str:
    return "-" if value is None else page.number(value)


def _write_sides(page: Page, title: str, rows: Sequence[Mapping[str, Any]], name: str) -> None:
    cells = [(row[name], _side(row["a"]), _side(row["b"])) for row in rows]
    page.table(Grid.of((title, "A", "B"), cells))


def _side(value: Any) -> str:
    return "-" if value is None else str(value)


def _write_ids(page: Page, kind: str, report: Mapping[str, Any]) -> None:
    told = {"only in A": report["only_a"], "only in B": report["only_b"]}
    rows = [(where, identity, "") for where, ids in told.items() for identity in _first(page, ids)]
    differing = report["differing"]
    rows += [
        ("differs", each["id"], ", ".join(each["columns"]))
        for each in (differing[:IDS_SHOWN] if page.is_terminal else differing)
    ]
    if not rows:
        return
    page.heading(kind.capitalize())
    page.table(Grid.of(("where", "id", "columns that differ"), rows))
    counts = ", ".join(f"{len(ids):,} {where}" for where, ids in told.items())
    page.note(f"{counts}, {len(differing):,} differ, {report['same']:,} the same.")


def _first(page: Page, ids: Sequence[str]) -> Sequence[str]:
    return ids[:IDS_SHOWN] if page.is_terminal else ids
