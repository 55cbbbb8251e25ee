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

from ..plugin import Layout, ReadContext, ReadView, Snapshot, collected, write_fixed_copy
from ..plugin.files import Place
from ..types import Progress
from .contents import CHECKSUMS, README, Contents, digest_of, place_of
from .readme import readme


def build(
    view: ReadView, folder: Place, card: Mapping[str, Any], tag: str, address: str, progress: Progress
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
    digest = _digest(source, selection.ids, card)
    created = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds")
    manifest = replace(source.manifest, store_id=digest[:32], created_at=created)
    layout = Layout.at(str(folder))
    context = ReadContext.of(write_fixed_copy(layout, manifest, card, selection, moment, progress))
    files = {each.name: digest_of(place_of(folder, each.name).chunks()) for each in folder.entries(deep=True)}
    steps = sum(collected(view.episodes.select("length"))["length"].to_list())
    origin = source.manifest.store_id, source.version
    contents = Contents(tag, len(view), steps, files, origin, time.time_ns() // 1_000_000)
    page = readme(context, card, contents, address).encode()
    contents = replace(contents, files={**files, README: digest_of([page])})
    (folder / README).write(page)
    (folder / CHECKSUMS).write(contents.to_bytes())
    return contents


def _digest(snapshot: Snapshot, chosen: pa.Array | None, card: Mapping[str, Any]) -> str:
    """Return the identity of the version: the same for the same episodes, card and releases."""
    releases = [installed("episodelake"), pa.__version__]
    ids = None if chosen is None else chosen.to_pylist()
    about = [snapshot.manifest.store_id, snapshot.version, card, releases, ids]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
