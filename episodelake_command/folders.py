"""What the shell completes where a store is wanted: folders of this machine."""

from __future__ import annotations

from pathlib import Path

#: What tells a store from another folder; `store/layout.py` has it too, behind everything that a store needs.
MANIFEST = "store.json"


def complete_stores(incomplete: str) -> list[tuple[str, str]]:
    """Folders that begin so; those that are stores say it.

    Behind a single name the shell sets a space. Where that is a folder on the way to a store, what lies in it
    is offered instead.
    """
    found = _folders(incomplete)
    while len(found) == 1 and found[0][0].endswith("/"):
        within = _folders(found[0][0])
        if not within:
            break
        found = within
    return found


def _folders(incomplete: str) -> list[tuple[str, str]]:
    """Folders that begin so; the name of one that is no store ends in a slash."""
    folder, _, start = incomplete.rpartition("/")
    base = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".").expanduser()
    prefix = incomplete[: len(incomplete) - len(start)]
    try:
        found = sorted(
            entry for entry in base.iterdir() if entry.is_dir() and entry.name.startswith(start or "")
        )
    except OSError:
        return []
    shown = [entry for entry in found if start.startswith(".") or not entry.name.startswith(".")]
    return [
        (f"{prefix}{entry.name}", "a store")
        if (entry / MANIFEST).exists()
        else (f"{prefix}{entry.name}/", "")
        for entry in shown
    ]
