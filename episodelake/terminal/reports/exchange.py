"""The options and reports of `episodelake import` and `export`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from ..._importing import ImportReport
from ...readers.exporting.export import ExportReport
from ...store.names import unescape
from ..output.page import Page


def write_import(page: Page, report: ImportReport) -> None:
    """Write the report of an import; of a dry run with its first rows."""
    page.pairs([("format", f"{report.format}: {report.reason}"), *_outcome(report)])
    _write_lost(page, report.lost)
    for key, reason in report.skipped:
        page.line(f"skipped {key}: {reason}")
    if report.preview is not None:
        page.heading("First rows of steps")
        page.frame(report.preview)


def mapping_of(given: Sequence[str]) -> dict[str, Any] | None:
    """Return repeated `--map KEY=COLUMNS` as a dict: `observation.arm=a,b` is an entry of a dict within.

    COLUMNS are those of one row of CSV, so that `"a,b"` is one column, and `a,` a list of one.
    """
    mapping: dict[str, Any] = {}
    for each in given:
        key, separator, text = each.partition("=")
        path = key.split(".")
        names = next(csv.reader([text], skipinitialspace=True), [])
        if not separator or not all((*path, names, *names[:-1])):
            raise typer.BadParameter(
                f"{each!r}: expected KEY=COLUMN or KEY=COLUMN,COLUMN,...; a key is an argument of "
                "ColumnMapping, such as observation, or observation.PART of a Dict space.",
                param_hint="--map",
            )
        inner = mapping
        for part in path[:-1]:
            inner = inner.setdefault(unescape(part), {})
            if not isinstance(inner, dict):
                raise typer.BadParameter(
                    f"{each!r}: {key.rpartition('.')[0]} has columns already.", param_hint="--map"
                )
        if unescape(path[-1]) in inner:
            raise typer.BadParameter(f"{each!r}: {key} has columns already.", param_hint="--map")
        inner[unescape(path[-1])] = _columns(names)
    return mapping or None


def _columns(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else [name for name in names if name]


def _outcome(report: ImportReport) -> list[tuple[str, object]]:
    counts = [("there already", report.present), ("replaced", report.replaced), ("kept", report.kept)]
    if report.dry_run:
        return [
            ("observation space", str(report.observation_space)),
            ("action space", str(report.action_space)),
            *((f"column {ours}", theirs) for ours, theirs in report.mapping.items()),
            *counts,
        ]
    added = [("episodes added", report.episodes), ("transitions added", report.steps)]
    return [("store", report.store), *added, *counts]


def import_report(report: ImportReport) -> dict[str, Any]:
    """Return the report of an import, as `--json` prints it."""
    names = ("source", "format", "reason", "store", "episodes", "steps", "present")
    names += ("replaced", "kept", "dry_run")
    return {
        **{name: getattr(report, name) for name in names},
        "observation_space": str(report.observation_space),
        "action_space": str(report.action_space),
        "mapping": report.mapping,
        "skipped": [{"episode": key, "reason": reason} for key, reason in report.skipped],
        "lost": report.lost,
        "preview": None if report.preview is None else report.preview.to_dicts(),
    }


def _write_lost(page: Page, lost: Mapping[str, int]) -> None:
    for name, count in lost.items():
        page.line(f"lost: {name} ({count:,})")


def write_export(page: Page, report: ExportReport) -> None:
    """Write the report of an export."""
    page.pairs(
        [
            ("target", str(report.target)),
            ("episodes", report.episodes),
            ("transitions", report.steps),
            ("files", len(report.files)),
        ]
    )
    _write_lost(page, report.lost)


def options_of(given: Sequence[str]) -> dict[str, Any]:
    """Return repeated `--option KEY=VALUE`; true and false are bools, whole numbers are ints."""
    options: dict[str, Any] = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{each!r}: expected KEY=VALUE.", param_hint="--option")
        words = {"true": True, "false": False}
        options[key] = int(value) if value.isdecimal() else words.get(value.lower(), value)
    return options
