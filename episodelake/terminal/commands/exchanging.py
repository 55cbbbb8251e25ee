"""Commands that bring datasets of other libraries in and write episodes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..arguments import (
    AsJson,
    Cast,
    Condition,
    LastObservation,
    OnChanged,
    StorageOptions,
    StorePath,
    WritablePath,
)
from ..command import EXCHANGE, app, command


@command(
    app,
    EXCHANGE,
    """\
episodelake import ~/.minari/datasets/cartpole/random-v0 data/new --dry-run
episodelake import pen.hdf5 data/pen --format d4rl
episodelake import log.csv trips --map observation=x,v --map action=u""",
    name="import",
)
def import_(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="A file, a folder, a pattern, or several files.")
    ],
    path: WritablePath,
    format: Annotated[
        str | None, typer.Option(metavar="NAME", help="The format; recognised by default.")
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
            help="Where the observation after the last action is missing: drop, repeat or missing.",
        ),
    ] = LastObservation.DROP,
    cast: Annotated[
        Cast, typer.Option(metavar="RULE", help="Cast values to the spaces' dtypes: no, safe or same_kind.")
    ] = Cast.NO,
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
    max_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The most bytes of an episode in memory; else 256 MiB, or 200 times the source.",
        ),
    ] = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Import a dataset of another library.

    The store is created if there is none. An import is visible whole or not at all; importing again adds only
    what is new.
    """
    from ..._importing import import_dataset
    from ..output.page import emit
    from ..reports.exchange import import_report, mapping_of, write_import
    from ..reports.opening import interruptible, storage_options

    with interruptible(lambda: "The store is as it was; the same command goes on from here."):
        report = import_dataset(
            sources[0] if len(sources) == 1 else sources,
            path,
            format=format,
            mapping=mapping_of(mapping or ()),
            dry_run=dry_run,
            on_error="skip" if skip_errors else "raise",
            on_changed=on_changed.value,
            name=name,
            last_observation=last_observation.value,
            cast=cast.value,
            trust=trust,
            max_bytes=max_bytes,
            storage_options=storage_options(storage),
            progress=True,
        )
    emit(import_report(report), lambda page, _: write_import(page, report), as_json=as_json)


@command(
    app,
    EXCHANGE,
    """\
episodelake export data/cartpole cartpole-minari --format minari
episodelake export data/cartpole long --format minari --filter "length > 400" --strict""",
)
def export(
    path: StorePath,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new file or folder.")],
    format: Annotated[str, typer.Option(metavar="NAME", help="The format; see `episodelake formats`.")],
    condition: Condition = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the format; may be repeated."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an unchanged export at TARGET.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if the format cannot hold everything.")
    ] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Write episodes as a dataset of another library."""
    from ..output.page import emit
    from ..reports.exchange import options_of, write_export
    from ..reports.opening import interruptible, open_store_at

    with interruptible(lambda: f"There is nothing new at {target}."):
        store = open_store_at(path, storage)
        view = store if condition is None else store.filter(condition)
        report = view.export(
            target,
            format=format,
            overwrite=overwrite,
            strict=strict,
            progress=True,
            **options_of(option or ()),
        )
    emit(report, write_export, as_json=as_json)


@command(app, EXCHANGE, "episodelake formats", name="formats")
def formats_command(as_json: AsJson = False) -> None:
    """List the formats of import and export."""
    from ...exchange import formats
    from ..output.page import Page, emit

    emit(formats(), Page.frame, as_json=as_json)
