"""Copies whose files depend on the episodes, the card and the identity alone: for published versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..card import CardEntries
from ..common.progress import Progress
from ..creation import created_atomically
from ..delta.version import fold_log
from ..files import guard_access
from ..files.local import LocalPlace
from ..layout import TABLES, Layout
from ..manifest import Manifest
from ..schema import StoreHandle
from ..snapshot import Snapshot
from .episode_set import EpisodeSet
from .merging import merge_stores


def write_fixed_copy(
    layout: Layout,
    manifest: Manifest,
    card: Mapping[str, Any],
    episodes: EpisodeSet,
    moment: int,
    progress: Progress,
) -> Snapshot:
    """Write a store with these episodes and one commit in each log: the same files for the same arguments.

    Args:
        layout: of the new store, in a local folder.
        manifest: its identity and spaces.
        card: its card; empty for none.
        episodes: what it holds.
        moment: the time of the commits, in milliseconds since 1970.
        progress: called with the segments written so far and all segments.

    Raises:
        CorruptStoreError: a file of the episodes is damaged.
        StoreAccessError: a file cannot be read or written.
    """
    store = StoreHandle(layout, manifest)
    within = created_atomically(store, CardEntries.to_bytes(card) if card else None)
    merge_stores(store, [episodes], uniform=True, progress=progress, within=within)
    for table in TABLES:
        fold_log(layout.table(table), moment)
    with guard_access("remove the lock", layout.journals):
        layout.maintenance_lock.unlink(missing_ok=True)
        LocalPlace(layout.journals).remove_folder()
    return Snapshot(layout, manifest)
