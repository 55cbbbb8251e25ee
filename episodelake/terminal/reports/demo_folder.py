"""The demo's folder: made, marked, and replaced only if nothing but a demo wrote into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..._store import open_store
from ...store.errors import StoreExistsError
from ...store.files import guard_access
from ...store.layout import ANNOTATIONS, ARTIFACTS, CARD, JOURNAL, MANIFEST, TABLES, TAGS
from ...store.places import locate

MARK = "demo.json"
MADE_BY = {"made_by": "episodelake demo"}


def prepare_folder(path: Path, names: Sequence[str]) -> None:
    """Make the folder and its mark; remove the stores `names` of an earlier demo.

    Raises:
        StoreExistsError: the folder holds something that no demo wrote; nothing was changed.
        CorruptStoreError: a store of an earlier demo is damaged, so that nobody can say what it holds.
        StoreAccessError: the folder cannot be read or written.
    """
    with guard_access("make the demo's folder", path):
        path.mkdir(parents=True, exist_ok=True)
        found = sorted(entry.name for entry in path.iterdir())
    if found and not _is_marked(path):
        raise StoreExistsError(
            f"{path} holds {_listed(found)} and was not made by the demo, which replaces only a folder of "
            "its own. Choose another one with --path."
        )
    foreign = [name for name in found if name not in (MARK, *names)]
    foreign += [f"{name} (with runs of your own)" for name in names if _has_other_runs(path / name)]
    foreign += [f"{name}/{entry}" for name in names for entry in _others(path / name)]
    if foreign:
        raise StoreExistsError(
            f"{path} is the folder of an earlier demo, but also holds {_listed(foreign)}. Move that away, or "
            "choose another folder with --path."
        )
    locate(path / MARK).write(json.dumps(MADE_BY).encode())
    with guard_access("replace the earlier demo", path):
        for name in names:
            if (path / name).exists():
                shutil.rmtree(path / name)


def _others(store: Path) -> list[str]:
    """Return names in a store's folder that no store has."""
    if store.is_symlink() or not store.is_dir():
        return [""] if os.path.lexists(store) else []
    known = {MANIFEST, CARD, *TABLES, JOURNAL, ANNOTATIONS, ARTIFACTS, TAGS}
    return sorted(entry.name for entry in store.iterdir() if entry.name not in known)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _is_marked(path: Path) -> bool:
    try:
        return json.loads((path / MARK).read_bytes()) == MADE_BY
    except (OSError, ValueError):
        return False


def _has_other_runs(store: Path) -> bool:
    """Return whether a store has runs that no demo recorded; a folder that never became a store has none."""
    if not (store / MANIFEST).exists():
        return False
    runs = open_store(store).sql("FROM runs")
    if "metadata.recorded_by" in runs.columns:
        runs = runs.filter(f""" "metadata.recorded_by" IS DISTINCT FROM '{MADE_BY["made_by"]}' """)
    return runs.aggregate("count(*)").fetchall() != [(0,)]
