"""`episodelake history | tag | annotations`: versions, tags and added columns."""

from __future__ import annotations

from collections.abc import Sequence

from ..opening import open_store_at
from ..output.grid import Grid
from ..output.json_text import write_rows
from ..output.page import Page
from ..output.progress import interruptible, unchanged


def list_versions(path: str, storage: Sequence[str] | None, limit: int, *, as_json: bool) -> None:
    """List the versions; see `episodelake history`."""
    page = Page()
    with interruptible(unchanged):
        versions = open_store_at(path, storage).history()
    shown = versions.head(limit) if limit else versions
    if as_json:
        write_rows(page, shown.iter_rows(named=True))
    else:
        page.frame(shown)
    if versions.height > shown.height:
        more = versions.height - shown.height
        page.note(f"{more} more versions; show more with --limit N, all with --limit 0.")


def change_tags(
    path: str,
    storage: Sequence[str] | None,
    name: str | None,
    version: int | None,
    *,
    remove: bool,
    as_json: bool,
) -> None:
    """Set, remove or list tags; see `episodelake tag`."""
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


def list_annotations(path: str, storage: Sequence[str] | None, *, as_json: bool) -> None:
    """List the annotations; see `episodelake annotations`."""
    page = Page()
    with interruptible(unchanged):
        found = open_store_at(path, storage).annotations
    if as_json:
        write_rows(page, found.iter_rows(named=True))
    elif found.height:
        page.frame(found)
    else:
        page.note("The store has no annotations.")
