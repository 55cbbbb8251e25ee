"""Commands that publish versions of stores and fetch them."""

from __future__ import annotations

from typing import Annotated

import typer

from ..arguments import Condition, StorageOptions, StorePath
from ..command import EXCHANGE, app, command
from ..result import Report

_Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="What was published: a folder, a URL (s3://...) or a dataset of the Hugging Face Hub "
        "(hf://organisation/name); SOURCE@TAG for a version other than the newest.",
    ),
]
_Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A folder or a URL, which has each version as TARGET/TAG; or hf://organisation/name.",
    ),
]


@command(
    app,
    EXCHANGE,
    """\
episodelake publish data/cartpole shared/cartpole --tag v1
episodelake publish data/cartpole hf://me/long --tag v1 --filter "length > 400\"""",
    interrupted="No half version shows; call again to go on.",
)
def publish(
    path: StorePath,
    target: _Target,
    tag: Annotated[str, typer.Option(metavar="NAME", help="The name of the version, new at TARGET.")],
    condition: Condition = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new dataset of the Hub private.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be published.")] = False,
    storage: StorageOptions = None,
) -> Report:
    """Publish episodes as a version that never changes."""
    from ..reports.open_store import open_store_at, options_for

    report = open_store_at(path, storage, beside=[target]).publish(
        target,
        tag=tag,
        where=condition,
        private=private or None,
        storage_options=options_for(storage, target, path),
        dry_run=dry_run,
        progress=True,
    )
    return Report(report)


@command(
    app,
    EXCHANGE,
    """\
episodelake pull shared/cartpole mine/cartpole
episodelake pull hf://me/cartpole@v1 mine/long --filter "length > 400\"""",
    interrupted="There is nothing at INTO; call again to go on.",
)
def pull(
    source: _Source,
    into: Annotated[str, typer.Argument(metavar="INTO", help="A new folder.")],
    condition: Condition = None,
    storage: StorageOptions = None,
) -> Report:
    """Fetch a published version, and verify its files.

    With --filter only the files with steps are fetched that its episodes need.
    """
    from ... import pull as fetch
    from ..reports.open_store import storage_options

    store = fetch(source, into, where=condition, storage_options=storage_options(storage), progress=True)
    return Report({"path": into, "episodes": len(store)})


@command(
    app, EXCHANGE, "episodelake preview shared/cartpole\nepisodelake preview s3://lab/cartpole@v1 --json"
)
def preview(
    source: _Source,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many episodes; 0 prints all.")] = 20,
    storage: StorageOptions = None,
) -> Report:
    """List the episodes of a published version."""
    from ... import preview as episodes_of
    from ..reports.open_store import storage_options

    episodes = episodes_of(source, storage_options=storage_options(storage))
    return Report(episodes.head(limit) if limit else episodes)


@command(
    app, EXCHANGE, "episodelake published shared/cartpole\nepisodelake published hf://me/cartpole --json"
)
def published(target: _Target, storage: StorageOptions = None) -> Report:
    """List the published versions at a target."""
    from ... import published as versions_at
    from ..reports.open_store import storage_options

    return Report(versions_at(target, storage_options=storage_options(storage)))
