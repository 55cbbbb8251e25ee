"""Staging of an import: episodes are written to a store beside the target, and brought into it in one commit.

The store is `.NAME.importing-DIGEST`. Episodes that the target has are present, or have changed; of the
others none is visible before the commit. The next import of the same dataset goes on with what is staged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ._store import EpisodeStore, copy_views, create, open_store
from .readers.exporting.holds import IMPORTED_FROM
from .readers.view import EpisodeView
from .store.common.progress import Progress
from .store.errors import DatasetError, StoreAccessError, StoreNotFoundError
from .store.files import guard_access, sync_path
from .store.layout import Layout
from .store.maintenance.merging import merge as merge_stores
from .store.spaces import space_to_json
from .store.spaces.coerce import Cast
from .writers.episodes.source_keys import Source, committed_sources
from .writers.importing.digests import same_content
from .writers.importing.formats import ForeignDataset
from .writers.importing.importer import Imported, OnChanged, OnError, SourceChangedError, import_episodes
from .writers.session.environment import stated_spec

_SOURCE_KEY = "metadata.source_key"


@dataclass(frozen=True)
class Target:
    """Where an import goes, and what it does there.

    Attributes:
        into: the path or URL.
        store: that is there; None if there is none.
        storage_options: how to reach it.
        on_error, on_changed, cast, progress, env, metadata: as for `import_dataset`.
        direct: write straight into a new store, which an error leaves in part.
    """

    into: str | PathLike[str]
    store: EpisodeStore | None
    storage_options: Mapping[str, str] | None
    on_error: OnError
    on_changed: OnChanged
    cast: Cast
    progress: Progress | bool
    env: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    direct: bool = False


@dataclass
class Met:
    """Staged episodes whose equals or predecessors the target has.

    Attributes:
        present: the ids of those that the target has with the same content.
        changed: of each that the target has with other content, its id and that of the target's.
        changed_keys: the source keys of these.
        merged: the source keys of those that this import itself brought in before it was killed.
    """

    present: list[str] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    changed_keys: list[str] = field(default_factory=list)
    merged: set[str] = field(default_factory=set)


def meet(staging: EpisodeStore, target: EpisodeStore, identity: str) -> Met:
    """Compare staged episodes with those of the target.

    Episodes of the same source key meet. So do those of a copy: another dataset of the format in the target,
    of which every episode that both have is equal. It was imported from another place, or by a release whose
    keys had none.

    Args:
        identity: what the source keys of the import begin with.
    """
    here = list(committed_sources(target.handle.layout))
    if not here or not len(staging):
        return Met()
    target.refresh()
    known = {source.key: source for source in here}
    ids = {source.id for source in here}
    met = Met()
    fresh: dict[str, Source] = {}
    for source in committed_sources(staging.handle.layout):
        if source.id in ids:
            met.merged.add(source.key)
        elif source.key not in known:
            fresh[source.key.removeprefix(f"{identity}/")] = source
        elif _is_same(staging, source, target, known[source.key]):
            met.present.append(source.id)
        else:
            met.changed[source.id] = known[source.key].id
            met.changed_keys.append(source.key)
    for others in _datasets(here, identity).values():
        common = [name for name in fresh if name in others]
        if common and all(_is_same(staging, fresh[name], target, others[name]) for name in common):
            met.present += [fresh.pop(name).id for name in common]
    return met


def _is_same(staging: EpisodeStore, ours: Source, target: EpisodeStore, theirs: Source) -> bool:
    if ours.digest is not None and ours.digest == theirs.digest:
        return True
    return same_content(staging[ours.id], target[theirs.id])


def _datasets(here: list[Source], identity: str) -> Mapping[str, Mapping[str, Source]]:
    """Return the episodes of other datasets of the same format, by dataset and their names in it."""
    format = identity.partition(":")[0]
    pattern = re.compile(rf"({re.escape(format)}:(?:.*?@)?[0-9a-f]{{12,16}})/(.*)", re.DOTALL)
    datasets: dict[str, dict[str, Source]] = {}
    for source in here:
        match = pattern.fullmatch(source.key)
        if match and match[1] != identity:
            datasets.setdefault(match[1], {})[match[2]] = source
    return datasets


def import_staged(dataset: ForeignDataset, target: Target) -> dict[str, Any]:
    """Import into a store, or a new one; return the counts for the report.

    An interrupted import whose source has changed since begins anew.
    """
    if target.direct:
        made = empty_store(dataset, Path(target.into))
        counts = counts_of(dataset, write_missing(dataset, made, target), Met(), target)
        return {"episodes": len(made.refresh()), "steps": _steps_of(made), **counts}
    before = dict(dataset.losses)
    for anew in (False, True):
        with suppress(SourceChangedError), _staged(dataset, target.into, anew=anew) as staging:
            return _bring(dataset, staging, write_missing(dataset, staging, target), target)
        dataset.losses.restore(before)
    raise AssertionError("an import that begins anew meets no staged episodes")


def write_missing(
    dataset: ForeignDataset, staging: EpisodeStore, target: Target, *, new: bool = True
) -> Imported:
    """Write the episodes that the target does not have into the staging store.

    Args:
        new: also those of which it has no other version.
    """
    known = {} if target.store is None else _digests_of(target.store)
    identity = str(dataset.identity)
    stated = dataset.card.get("env_spec")
    env = stated if isinstance(stated, str) and stated_spec(stated) else None
    with staging.writer(
        run=identity,
        metadata={**target.metadata, IMPORTED_FROM: identity},
        env=env if target.env is None else target.env,
        on_duplicate="skip",
        cast=target.cast,
        durability="none",
    ) as writer:
        rules: Any = {"on_error": target.on_error, "progress": target.progress, "new": new}
        return import_episodes(dataset, writer, known, _digests_of(staging), **rules)


def _digests_of(store: EpisodeStore) -> dict[str, str | None]:
    return {source.key: source.digest for source in committed_sources(store.handle.layout)}


def _bring(dataset: ForeignDataset, staging: EpisodeStore, done: Imported, target: Target) -> dict[str, Any]:
    """Bring the staged episodes into the target in one step; return the counts for the report."""
    # With what an interrupted import had written.
    added: EpisodeView = staging.refresh()
    met = Met() if target.store is None else meet(staging, target.store, str(dataset.identity))
    counts = counts_of(dataset, done, met, target)
    dropped = [*met.present, *(met.changed if target.on_changed == "keep" else ())]
    if dropped:
        added = staging.filter(~pl.col("episode_id").is_in(dropped))
    replaced = list(met.changed.values()) if target.on_changed == "replace" else []
    new = added.filter(~pl.col("episode_id").is_in(list(met.changed))) if replaced else added
    counts |= {"episodes": len(new), "steps": _steps_of(new)}
    if target.store is not None:
        if len(added):
            ordered = [view.selection() for view in _in_order(added, done.order)]
            merge_stores(target.store.handle, ordered, replaced=replaced)
            target.store.refresh()
    elif done.order or not _moved(staging, target.into):
        copy_views(
            _in_order(added, done.order),
            target.into,
            link=True,
            storage_options=target.storage_options,
            progress=lambda *_: None,
        )
    return counts


def _moved(staging: EpisodeStore, into: str | PathLike[str]) -> bool:
    """Turn a staging store into the new store by one rename; False if it has several commits, or cannot."""
    here, there = staging.handle.layout.root.local, Layout.at(into).root.local
    if here is None or there is None or len(staging.context.snapshot.episode_files) != 1:
        return False
    try:
        if os.path.lexists(there):  # a folder, or a link to one, stays what it is
            return False
        here.rename(there)
    except OSError:  # the copy says what is wrong
        return False
    with guard_access("create the store", there):
        sync_path(there.parent)
    return True


def _steps_of(view: EpisodeView) -> int:
    return int(view.episodes.select(pl.col("length").sum()).collect().item() or 0)


def counts_of(dataset: ForeignDataset, done: Imported, met: Met, target: Target) -> dict[str, Any]:
    """Return the counts of the episodes that the target has, and of those left out.

    Raises:
        DatasetError: some have changed, and `on_changed` is "error".
    """
    if met.changed and target.on_changed == "error":
        raise DatasetError(_changed(dataset, met, target.into))
    return {
        "present": len(done.present - met.merged) + len(met.present),
        "replaced": len(met.changed) if target.on_changed == "replace" else 0,
        "kept": len(met.changed) if target.on_changed == "keep" else 0,
        "skipped": tuple(done.skipped),
    }


def _changed(dataset: ForeignDataset, met: Met, into: str | PathLike[str]) -> str:
    shown = ", ".join(met.changed_keys[:3])
    more = len(met.changed) - 3
    return (
        f"{dataset.source}: episodes with other values than in {into!s} ({len(met.changed):,}): {shown}"
        f"{f' and {more} more' if more > 0 else ''}. Pass on_changed='replace' (--on-changed replace) to "
        "take the new ones, or 'keep' to keep those of the store. If the import has other arguments than the "
        "last, repeat those; if this is another dataset, give it a name with name= (--name)."
    )


def _in_order(view: EpisodeView, keys: Sequence[str]) -> list[EpisodeView]:
    """Return views that, one behind the other, have the order of these source keys.

    A killed process loses whole episodes in memory, but not later ones that were in the journal. The next
    call then writes them behind those.

    Args:
        view: the episodes.
        keys: empty if they are in order.
    """
    if not keys or not len(view):
        return [view]
    ranks = {key: rank for rank, key in enumerate(keys)}
    staged = view.episodes.select(_SOURCE_KEY).collect()[_SOURCE_KEY]
    places = np.array([ranks.get(key, len(ranks)) for key in staged])
    order = np.argsort(places, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(order) < 0) + 1)
    return [view] if len(runs) == 1 else [view[run] for run in runs]


def empty_store(dataset: ForeignDataset, path: Path, **options: Any) -> EpisodeStore:
    """Create a store for the episodes of a dataset."""
    return create(
        path,
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        reward_shape=dataset.reward_shape,
        **options,
    )


@contextmanager
def _staged(dataset: ForeignDataset, into: str | PathLike[str], *, anew: bool) -> Iterator[EpisodeStore]:
    """Yield the store for the episodes of an import.

    It is deleted when the block ends without an error, or before an episode is in it.

    Args:
        anew: delete what an interrupted import left there.
    """
    spaces = space_to_json(dataset.observation_space), space_to_json(dataset.action_space)
    identity = json.dumps([dataset.identity, dataset.settings, spaces, dataset.reward_shape], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    layout = Layout.at(into)
    folder = layout.root.local
    if folder is None:
        path = layout.journals.parent / f"importing-{digest}"
    else:
        path = folder.parent / f".{folder.name}.importing-{digest}"
    try:
        if anew:
            shutil.rmtree(path, ignore_errors=True)
        staging = open_store(path)
    except StoreNotFoundError:
        # A crash may have left a part of an empty store.
        shutil.rmtree(path, ignore_errors=True)
        staging = empty_store(dataset, path, card=dataset.card)
    try:
        yield staging
    except StoreNotFoundError as error:
        if path.exists():
            raise
        raise StoreAccessError(
            f"{path} was deleted during the import, as at the end of another import of the same dataset. "
            "Import again; that adds what is missing."
        ) from error
    except Exception as error:
        if not path.exists():  # it has become the new store
            raise
        # Where the disk is full, the writer still holds its journal, from which the next call goes on.
        if not isinstance(error, StoreAccessError) and not len(staging.refresh()):
            shutil.rmtree(path, ignore_errors=True)
        else:
            error.add_note(
                f"The episodes before it wait in {path}: the same import goes on from there. Delete that "
                "folder to give them up."
            )
        raise
    if not path.exists():  # it has become the new store
        return
    # A store that is deleted in part cannot be opened; under another name it is not looked for.
    deleted = path.with_name(f"{path.name}.deleted")
    with guard_access("delete", path):
        shutil.rmtree(deleted, ignore_errors=True)
        path.rename(deleted)
        shutil.rmtree(deleted)
