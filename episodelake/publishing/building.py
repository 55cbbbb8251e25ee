"""Local build of a published version: a copy with one commit in each log, its card and its checksums.

The same episodes give the same files, so an upload that was cut short goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version as installed
from typing import Any

import pyarrow as pa

from ..plugin import TABLES, Layout, ReadContext, Snapshot, collected
from ..readers.view import ReadView
from ..store.creation import created_atomically
from ..store.delta.version import fold_log
from ..store.files import remove_file
from ..store.files.local import LocalPlace
from ..store.files.locks import MAINTENANCE_LOCK
from ..store.manifest import Manifest, card_bytes
from ..store.rewrite.merging import merge
from ..store.schema import StoreHandle
from ..store.snapshot import EpisodeSet
from ..types import Progress
from .contents import CHECKSUMS, README, Contents, digest_of, place_of
from .readme import readme


def build(
    view: ReadView, folder: LocalPlace, card: Mapping[str, Any], tag: str, address: str, progress: Progress
) -> Contents:
    """Write a version into a new folder.

    Args:
        view: the episodes.
        folder: of this machine; files of the store are linked into it where that is possible.
        card: of the version.
        tag: its name.
        address: where it will be, for its README.
        progress: called with the segments written so far and all segments.

    Raises:
        CorruptStoreError: a file of the store is damaged.
        StoreAccessError: a file cannot be read or written.
    """
    selection = view.selection()
    source = selection.snapshot
    moment = int(source.history()[0]["timestamp"])
    manifest = _manifest(selection, card, moment)
    layout = Layout.at(str(folder))
    store = StoreHandle(layout, manifest)
    within = created_atomically(store, card_bytes(card) if card else None)
    merge(store, [selection], uniform=True, progress=progress, within=within)
    for table in TABLES:
        fold_log(layout.table(table), moment)
    remove_file(layout.journals / MAINTENANCE_LOCK)
    LocalPlace(layout.journals).remove_folder()
    context = ReadContext.of(Snapshot(layout, manifest))
    files = {each.name: digest_of(place_of(folder, each.name).chunks()) for each in folder.entries(deep=True)}
    steps = sum(collected(view.episodes.select("length"))["length"].to_list())
    origin = source.manifest.store_id, source.version
    contents = Contents(tag, len(view), steps, files, origin, time.time_ns() // 1_000_000)
    page = readme(context, card, contents, address).encode()
    contents = replace(contents, files={**files, README: digest_of([page])})
    (folder / README).write(page)
    (folder / CHECKSUMS).write(contents.to_bytes())
    return contents


def _manifest(selection: EpisodeSet, card: Mapping[str, Any], moment: int) -> Manifest:
    """Return the identity of the version: the same for the same episodes, card and releases."""
    snapshot = selection.snapshot
    releases = [installed("episodelake"), pa.__version__]
    ids = None if selection.ids is None else selection.ids.to_pylist()
    about = [snapshot.manifest.store_id, snapshot.version, card, releases, ids]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    created = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds")
    return replace(snapshot.manifest, store_id=digest[:32], created_at=created)
