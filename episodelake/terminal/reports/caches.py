"""`episodelake cache list | clear`: the columns that loaders cache on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...readers.amounts import counted, size_text
from ...readers.loading.columns.cache_folder import CacheEntry, CacheFolder, chosen_folder
from ..output.grid import Grid
from ..output.json_text import write_object, write_rows
from ..output.page import Page


def list_cache(folder: Path | None, *, as_json: bool) -> None:
    """List the cached columns; see `episodelake cache list`."""
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


def clear_cache(folder: Path | None, *, as_json: bool) -> None:
    """Remove the cached columns that no process uses; see `episodelake cache clear`."""
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
