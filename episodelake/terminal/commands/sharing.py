"""Commands that publish versions of stores and fetch them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..arguments import AsJson, Condition, StorageOptions, StorePath
from ..command import EXCHANGE, app, command

if TYPE_CHECKING:
    import polars as pl

    from ...readers.publish_report import PublishReport
    from ..output.page import Page

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
)
def publish(
    path: StorePath,
    target: _Target,
    tag: Annotated[str, typer.Option(metavar="NAME", help="The name of the version, new at TARGET.")],
    condition: Condition = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make a new dataset of the Hub private.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be sent.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Publish episodes as a version that never changes."""
    from ..output.page import emit
    from ..reports.opening import interruptible, open_store_at, storage_options

    with interruptible(lambda: "No half version shows; call again to go on."):
        report = open_store_at(path, storage).publish(
            target,
            tag=tag,
            where=condition,
            private=private or None,
            storage_options=storage_options(storage),
            dry_run=dry_run,
            progress=True,
        )
    emit(report, _write_publication, as_json=as_json)


@command(
    app,
    EXCHANGE,
    """\
episodelake pull shared/cartpole mine/cartpole
episodelake pull hf://me/cartpole@v1 mine/long --filter "length > 400\"""",
)
def pull(
    source: _Source,
    into: Annotated[str, typer.Argument(metavar="INTO", help="A new folder.")],
    condition: Condition = None,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Fetch a published version, and verify its files.

    With --filter only the files with steps are fetched that its episodes need.
    """
    from ..._pulling import pull as fetch
    from ..output.page import Page, emit
    from ..reports.opening import interruptible, storage_options

    with interruptible(lambda: f"There is nothing at {into}; call again to go on."):
        store = fetch(source, into, where=condition, storage_options=storage_options(storage), progress=True)
    report = {"path": into, "episodes": len(store)}
    emit(report, lambda page, _: Page.pairs(page, list(report.items())), as_json=as_json)


@command(
    app, EXCHANGE, "episodelake preview shared/cartpole\nepisodelake preview s3://lab/cartpole@v1 --json"
)
def preview(
    source: _Source,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many episodes; 0 prints all.")] = 20,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """List the episodes of a published version."""
    from ..._pulling import preview as episodes_of
    from ..output.page import Page, emit
    from ..reports.opening import interruptible, storage_options

    with interruptible():
        episodes = episodes_of(source, storage_options=storage_options(storage))
    emit(episodes.head(limit) if limit else episodes, Page.frame, as_json=as_json)


@command(app, EXCHANGE, "episodelake published shared/cartpole\nepisodelake published data/cartpole --json")
def published(target: _Target, as_json: AsJson = False, storage: StorageOptions = None) -> None:
    """List the published versions at a target, or of a store.

    Where TARGET is a store, its versions anywhere.
    """
    from ...publishing.published import published as versions_at
    from ...store.errors import StoreExistsError
    from ..output.page import Page, emit
    from ..reports.opening import interruptible, open_store_at, storage_options

    options = storage_options(storage)
    with interruptible():
        try:
            versions = versions_at(target, storage_options=options)
        except StoreExistsError:
            versions = open_store_at(target, storage).published(storage_options=options)
    emit(versions, Page.frame, as_json=as_json)


@command(app, EXCHANGE, "episodelake unpublish shared/cartpole --tag v1")
def unpublish(
    target: _Target,
    tag: Annotated[str, typer.Option(metavar="NAME", help="The name of the version.")],
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Take a published version back.

    What others have pulled stays with them, and the Hub keeps its history. JSON has the versions that are
    left.
    """
    from ...publishing.published import published as versions_at
    from ...publishing.published import unpublish as take_back
    from ..output.page import emit
    from ..reports.opening import interruptible, storage_options

    options = storage_options(storage)
    with interruptible(lambda: "Call again to go on."):
        take_back(target, tag, storage_options=options)
        left = versions_at(target, storage_options=options)
    emit(left, partial(_write_left, tag=tag, target=target), as_json=as_json)


def _write_left(page: Page, left: pl.DataFrame, tag: str, target: str) -> None:
    """Say what was taken back, and which versions are left."""
    page.note(f"{target} has no version {tag} any more; there are {', '.join(left['tag']) or 'no others'}.")


def _write_publication(page: Page, report: PublishReport) -> None:
    """Write the report of a publication."""
    page.pairs(
        [
            ("version", report.address),
            ("episodes", report.episodes),
            ("transitions", report.steps),
            ("files", report.files),
            ("size", page.size(report.size)),
            ("sent", page.size(report.sent_bytes)),
        ]
    )
