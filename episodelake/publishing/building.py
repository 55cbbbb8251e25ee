"""A published version in a folder of this machine: a store whose bytes depend on what it shows alone.

The same episodes, published again, give the same files, so a publication that was cut short goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version as installed
from typing import Any

import pyarrow as pa

from ..readers.context import ReadContext
from ..readers.view import EpisodeView
from ..store.common.progress import Progress
from ..store.delta.version import fold_log
from ..store.files import Place, guard_access
from ..store.files.local import LocalPlace
from ..store.files.locks import MAINTENANCE_LOCK
from ..store.layout import TABLES, Layout
from ..store.maintenance.creation import made_whole
from ..store.maintenance.merging import merge
from ..store.manifest import Manifest, card_bytes
from ..store.schema import StoreHandle
from ..store.snapshot import Selection, Snapshot
from .contents import CHART, CHECKSUMS, LATEST, README, Contents, contents_of, digest_of
from .readme import chart, readme

_SEGMENT_BYTES = 256 << 20


def build(
    view: EpisodeView,
    folder: Place,
    card: Mapping[str, Any],
    tag: str,
    address: str,
    progress: Progress,
    earlier: Iterable[Contents] = (),
) -> Contents:
    """Write a version into a folder that is new or empty.

    Args:
        view: the episodes.
        folder: of this machine.
        card: of the version.
        tag: its name.
        address: where it will be, for its README.
        progress: called with the rows written so far and all rows.
        earlier: the versions at the target, which were published before this one, whatever the clocks say.

    Raises:
        CorruptStoreError: a file of the store is damaged.
        StoreAccessError: a file cannot be read or written.
    """
    selection = view.selection()
    moment = int(selection.snapshot.history()[0]["timestamp"])
    manifest = _manifest(selection, card, moment)
    layout = Layout.at(str(folder))
    store = StoreHandle(layout, manifest)
    within = made_whole(store, card_bytes(card) if card else None)
    merge(store, [selection], segment_bytes=_SEGMENT_BYTES, progress=progress, within=within)
    for table in TABLES:
        fold_log(layout.table(table), moment)
    with guard_access("remove the lock", layout.journals):
        (layout.journals / MAINTENANCE_LOCK).unlink(missing_ok=True)
        LocalPlace(layout.journals).remove_folder()
    context = ReadContext.of(Snapshot(layout, manifest))
    steps = sum(view.episodes.select("length").collect()["length"].to_list())
    contents = contents_of(folder, tag, len(view), steps)
    pages = {README: readme(context, card, contents, address).encode(), CHART: chart(context).encode()}
    files = {**contents.files, **{name: digest_of([page]) for name, page in pages.items()}}
    now = max([time.time_ns() // 1_000_000, *((each.moment or 0) + 1 for each in earlier)])
    source = selection.snapshot
    origin = source.manifest.store_id, source.version
    contents = replace(contents, files=files, origin=origin, moment=min(now, LATEST - 1))
    with guard_access("write", folder):
        for name, page in {**pages, CHECKSUMS: contents.to_bytes()}.items():
            (folder / name).write(page)
    return contents


def _manifest(selection: Selection, card: Mapping[str, Any], moment: int) -> Manifest:
    """Return the identity of the version: the same for the same episodes, card and releases."""
    snapshot = selection.snapshot
    digest = hashlib.sha256()
    releases = [installed("episodelake"), pa.__version__]
    about = [snapshot.manifest.store_id, snapshot.version, card, *releases]
    digest.update(json.dumps(about, sort_keys=True).encode())
    for identifier in [] if selection.ids is None else selection.ids.to_pylist():
        digest.update(f"\n{identifier}".encode())
    created = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds")
    return replace(snapshot.manifest, store_id=digest.hexdigest()[:32], created_at=created)
