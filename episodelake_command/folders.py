"""What the shell completes where a store is wanted: folders of this machine."""

from __future__ import annotations

from pathlib import Path

#: What tells a store from another folder; `store/layout.py` has it too, behind everything that a store needs.
MANIFEST = "store.json"


def complete_stores(incomplete: str) -> list[tuple[str, str]]:
    """Folders that begin so; those that are stores say it."""
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
