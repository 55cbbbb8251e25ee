"""The commands `import`, `export` and `formats`: one call of the library each, and its report."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..._formats import formats
from ..._importing import ImportReport, import_dataset
from ...store.names import unescape
from ..output.page import Page, write_object, write_rows
from .opening import interruptible, open_store_at, storage_options


@dataclass(frozen=True)
class Import:
    """The arguments of `episodelake import`."""

    source: str | Sequence[str]
    format: str | None
    mapping: Sequence[str]
    dry_run: bool
    skip_errors: bool
    on_changed: Any
    name: str | None
    last_observation: Any
    cast: Any
    trust: bool
    max_bytes: int | None


def import_source(wanted: Import, path: str, storage: Sequence[str] | None, *, as_json: bool) -> None:
    """Import a dataset; see `episodelake import`."""
    page = Page()
    with interruptible(lambda: "The store is as it was; the same command goes on from here."):
        report = import_dataset(
            wanted.source,
            path,
            format=wanted.format,
            mapping=_mapping(wanted.mapping),
            dry_run=wanted.dry_run,
            on_error="skip" if wanted.skip_errors else "raise",
            on_changed=wanted.on_changed,
            name=wanted.name,
            last_observation=wanted.last_observation,
            cast=wanted.cast,
            trust=wanted.trust,
            max_bytes=wanted.max_bytes,
            storage_options=storage_options(storage),
            progress=True,
        )
    if as_json:
        write_object(page, _as_json(report))
        return
    page.pairs([("format", f"{report.format}: {report.reason}"), *_outcome(page, report)])
    _lost(page, report.lost)
    for key, reason in report.skipped:
        page.line(f"skipped {key}: {reason}")
    if report.preview is not None:
        page.heading("First rows of steps")
        page.frame(report.preview)


def _mapping(given: Sequence[str]) -> dict[str, Any] | None:
    """Return repeated `--map KEY=COLUMNS` as a dict: `observation.arm=a,b` is an entry of a dict within.

    COLUMNS are those of one row of CSV, so that `"a,b"` is one column, and `a,` a list of one.
    """
    found: dict[str, Any] = {}
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
        inner = found
        for part in path[:-1]:
            inner = inner.setdefault(unescape(part), {})
            if not isinstance(inner, dict):
                raise typer.BadParameter(
                    f"{each!r}: {key.rpartition('.')[0]} has columns already.", param_hint="--map"
                )
        if unescape(path[-1]) in inner:
            raise typer.BadParameter(f"{each!r}: {key} has columns already.", param_hint="--map")
        inner[unescape(path[-1])] = _columns(names)
    return found or None


def _columns(names: list[str]) -> str | list[str]:
    return names[0] if len(names) == 1 else [name for name in names if name]


def _outcome(page: Page, report: ImportReport) -> list[tuple[str, str]]:
    counts = [
        ("there already", page.number(report.present)),
        ("replaced", page.number(report.replaced)),
        ("kept", page.number(report.kept)),
    ]
    if report.dry_run:
        return [
            ("observation space", str(report.observation_space)),
            ("action space", str(report.action_space)),
            *((f"column {ours}", theirs) for ours, theirs in report.mapping.items()),
            *counts,
        ]
    return [
        ("store", report.store),
        ("episodes added", page.number(report.episodes)),
        ("transitions added", page.number(report.steps)),
        *counts,
    ]


def _as_json(report: ImportReport) -> dict[str, Any]:
    names = ("source", "format", "reason", "store", "episodes", "steps", "present")
    names += ("replaced", "kept", "dry_run")
    return {
        **{name: getattr(report, name) for name in names},
        "observation_space": str(report.observation_space),
        "action_space": str(report.action_space),
        "mapping": dict(report.mapping),
        "skipped": [{"episode": key, "reason": reason} for key, reason in report.skipped],
        "lost": dict(report.lost),
        "preview": None if report.preview is None else report.preview.to_dicts(),
    }


def _lost(page: Page, lost: Any) -> None:
    for what, count in lost.items():
        page.line(f"lost: {what} ({count:,})")


def export_store(
    path: str,
    storage: Sequence[str] | None,
    target: Path,
    format: str,
    condition: str | None,
    options: Sequence[str],
    *,
    overwrite: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Write episodes as a dataset of another library; see `episodelake export`."""
    page = Page()
    with interruptible(lambda: f"There is nothing new at {target}."):
        store = open_store_at(path, storage)
        view = store if condition is None else store.filter(condition)
        report = view.export(
            target, format=format, overwrite=overwrite, strict=strict, progress=True, **_options(options)
        )
    if as_json:
        found = dataclasses.asdict(report)
        write_object(page, {**found, "target": str(report.target), "lost": dict(report.lost)})
        return
    page.pairs(
        [
            ("target", str(report.target)),
            ("episodes", page.number(report.episodes)),
            ("transitions", page.number(report.steps)),
            ("files", page.number(len(report.files))),
        ]
    )
    _lost(page, report.lost)


def _options(given: Sequence[str]) -> dict[str, Any]:
    """Return repeated `--option KEY=VALUE`; true and false are bools, whole numbers are ints."""
    options: dict[str, Any] = {}
    for each in given:
        key, separator, value = each.partition("=")
        if not key or not separator:
            raise typer.BadParameter(f"{each!r}: expected KEY=VALUE.", param_hint="--option")
        words = {"true": True, "false": False}
        options[key] = int(value) if value.isdecimal() else words.get(value.lower(), value)
    return options


def list_formats(*, as_json: bool) -> None:
    """List the formats of import and export; see `episodelake formats`."""
    page = Page()
    found = formats()
    if as_json:
        write_rows(page, found.to_dicts())
    else:
        page.frame(found)
