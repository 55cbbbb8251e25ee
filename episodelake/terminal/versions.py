"""The command line's versions: `history | tag | annotations`, what a store was and what was added to it."""

from __future__ import annotations

from typing import Annotated

import polars as pl
import typer

from .arguments import AsJson, StorageOptions, StorePath, WritablePath, open_store_at
from .commands import KEEP, command
from .grid import Grid, grid_of
from .json_text import write_rows
from .page import Page
from .progress import interruptible, unchanged

EXAMPLES = {
    "history": """\
episodelake history data/cartpole
episodelake history data/cartpole --limit 0 --json""",
    "tag": """\
episodelake tag data/cartpole
episodelake tag data/cartpole v1.0 --version 12
episodelake tag data/cartpole v1.0 --remove""",
    "annotations": """\
episodelake annotations data/cartpole""",
}


def add_to(app: typer.Typer) -> None:
    """Add the commands to the program."""
    command(app, KEEP, EXAMPLES["history"])(history)
    command(app, KEEP, EXAMPLES["tag"])(tag)
    command(app, KEEP, EXAMPLES["annotations"], name="annotations")(annotations_command)


def history(
    path: StorePath,
    limit: Annotated[int, typer.Option(min=0, help="Print at most so many versions; 0 prints all.")] = 20,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """List the versions, newest first."""
    page = Page()
    with interruptible(unchanged):
        versions = open_store_at(path, storage).history()
    shown = versions.head(limit) if limit else versions
    if as_json:
        write_rows(page, shown.iter_rows(named=True))
    else:
        _write_frame(page, shown)
    if versions.height > shown.height:
        more = versions.height - shown.height
        page.note(f"{more} more versions; show more with --limit N, all with --limit 0.")


def tag(
    path: WritablePath,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The tag; without it, tags are listed.", show_default=False),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="The version to tag; the newest if left out.", show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the tag away; the version stays.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions = None,
) -> None:
    """Give a version a name, or list the tags.

    A tagged version opens by its name and survives vacuum.
    """
    if name is None and (remove or version is not None):
        raise typer.BadParameter("it is missing.", param_hint="NAME")
    if remove and version is not None:
        raise typer.BadParameter("it does not go with --remove.", param_hint="--version")
    page = Page()
    with interruptible(lambda: "Whether the tag changed, `episodelake tag` shows."):
        store = open_store_at(path, storage)
        if name is None:
            if not as_json:
                _write_tags(page, store.tags)
        elif remove:
            store.untag(name)
            page.note(f"The tag {name} is gone; its version stays until it is vacuumed.")
        else:
            store.tag(name, version)
            page.note(f"{name} is version {store.tags[name]}.")
        if as_json:
            write_rows(page, [{"tag": each, "version": number} for each, number in store.tags.items()])


def _write_tags(page: Page, tags: dict[str, int]) -> None:
    if tags:
        page.table(Grid.of(("tag", "version"), list(tags.items()), (False, True)))
    else:
        page.note("The store has no tags.")


def annotations_command(path: StorePath, as_json: AsJson = False, storage: StorageOptions = None) -> None:
    """List the annotations: columns that were added later."""
    page = Page()
    with interruptible(unchanged):
        found = open_store_at(path, storage).annotations
    if as_json:
        write_rows(page, found.iter_rows(named=True))
    elif found.height:
        _write_frame(page, found)
    else:
        page.note("The store has no annotations.")


def _write_frame(page: Page, frame: pl.DataFrame) -> None:
    page.table(grid_of(frame.to_arrow(), exact=not page.is_terminal))
