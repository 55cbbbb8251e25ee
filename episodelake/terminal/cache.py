"""The command line's cache: `episodelake cache list | clear`, for the columns that loaders keep here."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ..readers.loading.cache_folder import CacheFolder, chosen_folder
from .grid import Grid
from .page import Page
from .reports import size_text

cache = typer.Typer(
    help="Look after the columns that loaders with cache='mmap' keep on this machine.", no_args_is_help=True
)

Folder = Annotated[
    Path | None,
    typer.Option(help="The cache folder; else EPISODELAKE_CACHE, or the user's folder for caches."),
]


@cache.command(name="list")
def list_command(folder: Folder = None) -> None:
    """List the cached columns, the least recently used first."""
    page = Page()
    found = _folder(folder)
    entries = found.entries()
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


@cache.command(name="clear")
def clear_command(folder: Folder = None) -> None:
    """Remove the cached columns that no process has in use; loaders make them again when they need them."""
    found = _folder(folder)
    removed = found.clear()
    freed = size_text(sum(entry.bytes for entry in removed))
    noun = "file" if len(removed) == 1 else "files"
    Page().note(f"Removed {len(removed)} {noun} of {found.path}; {freed} are free again.")


def _folder(folder: Path | None) -> CacheFolder:
    return CacheFolder(chosen_folder(folder))
