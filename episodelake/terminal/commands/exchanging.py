"""Commands that bring datasets of other libraries in and write episodes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..arguments import AsJson, Condition, StorageOptions, StorePath, WritablePath, one_of
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
        list[str],
        typer.Argument(
            metavar="SOURCE", help="A file, a folder, a pattern, or several files.", show_default=False
        ),
    ],
    path: WritablePath,
    format: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The format; recognised by default.", show_default=False),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="KEY=COLUMNS",
            help="Columns of a table: observation=x,y; observation.arm=a,b; episode=id; may be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the format, spaces, columns, first rows and losses.")
    ] = False,
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out episodes that cannot be read, and list them.")
    ] = False,
    last_observation: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Where the observation after the last action is missing: drop, repeat or missing.",
            callback=one_of("drop", "repeat", "missing"),
        ),
    ] = "drop",
    cast: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Cast values to the spaces' dtypes: no, safe or same_kind.",
            callback=one_of("no", "safe", "same_kind"),
        ),
    ] = "no",
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Read what needs code of the source, or stands outside of it."),
    ] = False,
    on_changed: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Episodes that the store has with other values: error, keep or replace.",
            callback=one_of("error", "keep", "replace"),
        ),
    ] = "error",
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
    from ..reports.exchange import Import, import_source

    wanted = Import(
        sources[0] if len(sources) == 1 else sources,
        format,
        mapping or (),
        dry_run,
        skip_errors,
        on_changed,
        name,
        last_observation,
        cast,
        trust,
        max_bytes,
    )
    import_source(wanted, path, storage, as_json=as_json)


@command(
    app,
    EXCHANGE,
    """\
episodelake export data/cartpole cartpole-minari --format minari
episodelake export data/cartpole long --format minari --filter "length > 400" --strict""",
)
def export(
    path: StorePath,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A new file or folder.", show_default=False)
    ],
    format: Annotated[str, typer.Option(metavar="NAME", help="The format; see `episodelake formats`.")],
    condition: Condition = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="KEY=VALUE",
            help="An option of the format; may be repeated.",
            show_default=False,
        ),
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
    from ..reports.exchange import export_store

    export_store(
        path,
        storage,
        target,
        format,
        condition,
        option or (),
        overwrite=overwrite,
        strict=strict,
        as_json=as_json,
    )


@command(app, EXCHANGE, "episodelake formats")
def formats(as_json: AsJson = False) -> None:
    """List the formats of import and export."""
    from ..reports.exchange import list_formats

    list_formats(as_json=as_json)
