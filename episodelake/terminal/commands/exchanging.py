"""Commands that bring datasets of other libraries in and write episodes for them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import (
    Cast,
    Condition,
    LastObservation,
    OnChanged,
    StorageOptions,
    StorePath,
    WritablePath,
    keyed_values,
)
from ..command import EXCHANGE, app, command
from ..completion import complete_formats
from ..result import Report

if TYPE_CHECKING:
    from ...types import ExportReport, ImportReport
    from ..output.page import Page


@command(
    app,
    EXCHANGE,
    """\
episodelake import ~/.minari/datasets/cartpole/random-v0 data/new --dry-run
episodelake import pen.hdf5 data/pen --format d4rl
episodelake import log.csv trips --map observation=x,v --map action=u
episodelake import hopper.hdf5 lake/hopper --env Hopper-v4 --metadata algo=sac""",
    name="import",
    interrupted="The store is as it was; the same command goes on from here.",
)
def import_(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="A file, a folder, a pattern, or several files.")
    ],
    path: WritablePath,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The format; recognised by default.", autocompletion=complete_formats
        ),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="KEY=COLUMNS",
            help="Columns of a table: observation=x,y; observation.arm=a,b; episode=id; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the format, spaces, columns, first rows and losses.")
    ] = False,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out episodes that cannot be read, and list them.")
    ] = False,
    last_observation: Annotated[
        LastObservation,
        typer.Option(
            metavar="RULE",
            help="Where the observation after the last action is missing: missing, repeat or drop.",
        ),
    ] = LastObservation.MISSING,
    cast: Annotated[
        Cast, typer.Option(metavar="RULE", help="Cast values to the spaces' dtypes: no, safe or same_kind.")
    ] = Cast.NO,
    raw_frames: Annotated[
        bool, typer.Option("--raw-frames", help="Of a new store: decode videos and store raw frames.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Read what needs code of the source, or stands outside of it.")
    ] = False,
    on_changed: Annotated[
        OnChanged,
        typer.Option(
            metavar="RULE", help="Episodes that the store has with other values: error, keep or replace."
        ),
    ] = OnChanged.ERROR,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name the dataset in source keys; else its file and place do."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The environment of the episodes; else what the source states."),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Metadata of the run of the new episodes; may be repeated."),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The most bytes of an episode in memory; else 256 MiB, or 200 times the source.",
        ),
    ] = None,
    storage: StorageOptions = None,
) -> Report:
    """Import a dataset of another library.

    The store is created if there is none. An import is visible whole or not at all; importing again adds only
    what is new.
    """
    from ... import import_dataset
    from ..reports.open_store import storage_options

    report = import_dataset(
        sources[0] if len(sources) == 1 else sources,
        path,
        format=format,
        mapping=_mapping_of(mapping or ()),
        dry_run=dry_run,
        on_error="skip" if skip_errors else "raise",
        on_changed=on_changed.value,
        name=name,
        env=env,
        metadata=keyed_values(metadata or (), "--metadata"),
        last_observation=last_observation.value,
        encodings={} if raw_frames else None,
        cast=cast.value,
        trust=trust,
        max_bytes=max_bytes,
        storage_options=storage_options(storage),
        progress=True,
    )
    return Report(_import_report(report), lambda page, _: _write_import(page, report))


@command(
    app,
    EXCHANGE,
    """\
episodelake export data/cartpole cartpole-minari --format minari
episodelake export data/cartpole long --format minari --filter "length > 400" --strict""",
    interrupted="There is nothing new at TARGET.",
)
def export(
    path: StorePath,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new file or folder.")],
    format: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The format; see `episodelake formats`.", autocompletion=complete_formats
        ),
    ],
    condition: Condition = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the format; may be repeated."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export at TARGET.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the format cannot hold everything.")
    ] = False,
    storage: StorageOptions = None,
) -> Report:
    """Write episodes as a dataset of another library."""
    from ..reports.open_store import open_store_at

    store = open_store_at(path, storage)
    view = store if condition is None else store.filter(condition)
    options = keyed_values(option or ())
    report = view.export(target, format=format, overwrite=overwrite, strict=strict, progress=True, **options)
    return Report(report, _write_export)


@command(app, EXCHANGE, "episodelake formats", name="formats")
def formats_command() -> Report:
    """List the formats of import and export."""
    from ... import formats

    return Report(formats())


def _write_import(page: Page, report: ImportReport) -> None:
    """Write the report of an import; of a dry run with its first rows."""
    page.pairs([("format", f"{report.format}: {report.reason}"), *_outcome(report)])
    _write_lost(page, report.lost)
    for key, reason in report.skipped:
        page.line(f"skipped {key}: {reason}")
    if report.preview is not None:
        page.heading("First rows of steps")
        page.frame(report.preview)


def _mapping_of(given: Sequence[str]) -> dict[str, Any] | None:
    """Return repeated `--map KEY=COLUMNS` as a dict: `observation.arm=a,b` is an entry of a dict within.

    COLUMNS are those of one row of CSV, so that `"a,b"` is one column, and `a,` a list of one.
    """
    # Loads the library, which the help does without.
    from ...plugin.columns import unescape

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
    if report.dry_run:
        return [
            ("observation space", str(report.observation_space)),
            ("action space", str(report.action_space)),
            *((f"column {ours}", theirs) for ours, theirs in report.mapping.items()),
        ]
    counts = [("there already", report.present), ("replaced", report.replaced), ("kept", report.kept)]
    added = [("episodes added", report.episodes), ("transitions added", report.steps)]
    return [("store", report.store), *added, *counts]


def _import_report(report: ImportReport) -> dict[str, Any]:
    """Return the report of an import, as `--json` prints it."""
    return {
        **vars(report),
        # A Dict space is a mapping, too.
        **{name: str(getattr(report, name)) for name in ("observation_space", "action_space")},
        "skipped": [{"episode": key, "reason": reason} for key, reason in report.skipped],
        "preview": None if report.preview is None else report.preview.to_dicts(),
    }


def _write_lost(page: Page, lost: Mapping[str, int]) -> None:
    for name, count in lost.items():
        page.line(f"lost: {name} ({count:,})")


def _write_export(page: Page, report: ExportReport) -> None:
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
