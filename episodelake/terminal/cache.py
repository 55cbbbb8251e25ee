"""The command line's cache: `episodelake cache list | clear`, for the columns that loaders keep here."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ..readers.amounts import counted, size_text
from ..readers.loading.cache_folder import CacheEntry, CacheFolder, chosen_folder
from .arguments import AsJson
from .commands import KEEP, ReportingGroup, command
from .grid import Grid
from .json_text import write_object, write_rows
from .page import Page

cache = typer.Typer(
    cls=ReportingGroup,
    help="List and clear what loaders keep on this machine.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option(help="The cache folder; else EPISODELAKE_CACHE, or the user's folder for caches."),
]


@command(cache, KEEP, "episodelake cache list --json", name="list")
def list_command(folder: Folder = None, as_json: AsJson = False) -> None:
    """List the cached columns, the least recently used first."""
    page = Page()
    found = _folder(folder)
    entries = found.entries()
    if as_json:
        write_rows(page, map(_entry, entries))
        return
    rows = [
        (
            str(entry.facts.get("column", "damaged")),
            str(entry.facts.get("store", "")),
            str(entry.facts.get("version", "")),
            str(entry.facts.get("episodes", "")),
            size_text(entry.bytes) if page.is_terminal else f"{entry.bytes} bytes",
            datetime.fromtimestamp(entry.used).isoformat(" ", "seconds"),
            "yes" if entry.in_use else "no",
        )
        for entry in entries
    ]
    if rows:
        headers = ("column", "store", "version", "episodes", "size", "last used", "in use")
        page.table(Grid.of(headers, rows, (False, False, True, True, True, False, False)))
        page.note(f"{found.path} holds {size_text(sum(entry.bytes for entry in entries))}.")
    else:
        page.note(f"{found.path} is empty.")


@command(cache, KEEP, "episodelake cache clear", name="clear")
def clear_command(folder: Folder = None, as_json: AsJson = False) -> None:
    """Remove the cached columns that no process has in use; loaders make them again when they need them."""
    found = _folder(folder)
    removed = found.clear()
    freed = sum(entry.bytes for entry in removed)
    if as_json:
        write_object(Page(), {"path": str(found.path), "files": len(removed), "bytes": freed})
        return
    removed_files = counted(len(removed), "file")
    Page().note(f"Removed {removed_files} of {found.path}; {size_text(freed)} are free again.")


def _entry(entry: CacheEntry) -> dict[str, Any]:
    told = {name: entry.facts.get(name) for name in ("column", "store", "version", "episodes")}
    used = datetime.fromtimestamp(entry.used, UTC)
    return {**told, "bytes": entry.bytes, "used": used, "in_use": entry.in_use}


def _folder(folder: Path | None) -> CacheFolder:
    return CacheFolder(chosen_folder(folder))
