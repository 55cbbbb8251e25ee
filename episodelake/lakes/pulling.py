"""`pull` and `preview`: from a published version to a store of this machine, or to its episodes alone."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import polars as pl

from .. import EpisodeStore
from .. import open as open_store
from ..plugin import Layout, collected, progress_meter
from ..plugin.files import LocalPlace, afterwards, remove_tree
from ..publishing.contents import Source, is_needed_for_episodes, is_steps, working_folder
from ..publishing.fetching import appear, fetch, fetch_whole, free_target, source_of, staged
from ..types import Progress, SqlCondition


def pull(
    source: str | PathLike[str],
    into: str | PathLike[str],
    *,
    where: pl.Expr | str | SqlCondition | None = None,
    version: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: bool | Progress = False,
) -> EpisodeStore:
    """Fetch a published version into a folder of this machine, and open it.

    Every file is compared with its checksum. The folder appears whole or not at all; if the call is
    interrupted, call it again: what was fetched is kept beside the folder. No code of the version runs.

    Args:
        source: what `EpisodeStore.publish` had as its target: a folder, a URL or `hf://org/name`; or the
            `address` that it returned, with `@tag` at the end.
        into: a folder that does not exist yet, or is empty.
        where: only the episodes that fulfil this condition, as for `EpisodeView.filter`: their files of steps
            alone are fetched, and `into` becomes a store of its own. Without it `into` is the version itself,
            which never changes; copy it to record into it.
        version: the tag; None for that in `source`, or the newest.
        storage_options: how to reach an object store.
        progress: True for a bar on the terminal, or a function called with the files fetched so far and all.

    Raises:
        StoreNotFoundError: nothing is published there.
        VersionNotFoundError: there is no such version; the message lists those that are.
        StoreExistsError: there is something at `into`.
        CorruptStoreError: a file differs from its checksum, or a name in the list of files is not one of a
            version; nothing appears at `into`.
        QueryError: the condition is not valid.
        StoreAccessError: the source cannot be read or `into` not written; call again.
    """
    target = free_target(into, copied=where is not None)
    published = source_of(source, version, storage_options)
    with (
        progress_meter(progress, "Fetching", "files") as meter,
        staged(target, published.contents) as stage,
    ):
        if where is None:
            fetch_whole(published, stage, meter)
            # Before it appears: nothing fails afterwards.
            store = open_store(stage.local)
            appear(published, stage.local, target)
        else:
            return _pulled_part(published, where, stage, target, meter)
    manifest = store.handle.manifest
    snapshot = store.context.snapshot
    layout = Layout.at(target).of_store(manifest.store_id)
    snapshot.move(layout)
    return EpisodeStore(layout, manifest, snapshot)


def _pulled_part(
    published: Source,
    where: pl.Expr | str | SqlCondition,
    stage: LocalPlace,
    target: Path,
    meter: Progress,
) -> EpisodeStore:
    """Fetch the episodes, then the steps of those that fulfil the condition, and copy these."""
    files = published.contents.files
    fetch(published, [name for name in files if not is_steps(name)], stage, meter)
    view = open_store(stage.local).filter(where)
    segments = view.context.snapshot.segments_of(view.context.all_positions)
    fetch(
        published,
        [name for name in files if is_steps(name) and name.rpartition("/")[2] in segments],
        stage,
        meter,
    )
    store = view.copy(target, link=True)
    change = f"{published.address} is pulled to {target}"
    with afterwards(change, f"{stage} is no longer needed: delete it."):
        remove_tree(stage.local)
    return store


def preview(
    source: str | PathLike[str],
    *,
    version: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """Return the episodes of a published version, a row for each, without reading a step.

    Args:
        source, version, storage_options: as for `pull`.

    Raises:
        StoreNotFoundError, VersionNotFoundError, CorruptStoreError, StoreAccessError: as for `pull`.
    """
    published = source_of(source, version, storage_options)
    wanted = [name for name in published.contents.files if is_needed_for_episodes(name)]
    with working_folder("preview") as folder:
        fetch(published, wanted, folder, lambda done, total: None)
        return collected(open_store(folder.local).episodes)
