"""Staging of an import: episodes are written to a store beside the target, and brought into it in one commit.

The store is `.NAME.importing-DIGEST`. No episode is visible before the commit. The next import of the same
dataset skips what is staged.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from .. import EpisodeStore, EpisodeView, Rollouts, Video, create
from .. import open as open_store
from ..errors import DatasetError, StoreAccessError, StoreNotFoundError
from ..plugin import (
    DatasetFacts,
    ForeignDataset,
    Layout,
    collected,
    dump_json,
    freeze_value,
    space_to_json,
)
from ..plugin.engines import merge_stores
from ..plugin.files import afterwards, exists, is_visible, rename_durably, visible_step
from ..store.spaces.coerce import Cast
from ..types import Progress
from ..writers.episodes.source_keys import Source, known_sources
from ..writers.session.environment import stated_spec
from .importer import Imported, OnChanged, OnError, SourceChangedError, import_episodes


@dataclass(frozen=True)
class Target:
    """Target and rules of an import.

    Attributes:
        into: the path or URL.
        store: that is there; None if there is none.
        storage_options: how to reach it.
        on_error, on_changed, cast, progress, env, metadata, encodings: as for `import_dataset`.
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
    encodings: Mapping[str, Video] | None = None


def import_staged(dataset: ForeignDataset, target: Target) -> dict[str, Any]:
    """Import into a store, or a new one; return the counts for the report.

    An interrupted import whose source has changed since begins anew.
    """
    known: Mapping[str, Source] = {}
    if target.store is not None:
        known = known_sources(target.store.handle)
    if target.direct:
        done = _write(dataset, empty_store(dataset, Path(target.into)), known, {}, target)
        return {"episodes": len(done.staged), "steps": done.steps, "skipped": tuple(done.skipped)}

    def run() -> dict[str, Any]:
        with _staged(dataset, target) as (staging, staged):
            return _commit(dataset, staging, _write(dataset, staging, known, staged, target), target)

    before = dict(dataset.losses)
    try:
        return run()
    except SourceChangedError:
        dataset.losses.restore(before)
        return run()


def _write(
    dataset: ForeignDataset,
    staging: EpisodeStore,
    known: Mapping[str, Source],
    staged: Mapping[str, Source],
    target: Target,
) -> Imported:
    """Write the episodes that the target does not have into the staging store."""
    identity = str(dataset.identity)
    stated = dataset.card.get("env_spec")
    env = stated if isinstance(stated, str) and stated_spec(stated) else None
    facts = {key: value for key, value in dataset.card.items() if env is None or key != "env_spec"}
    with staging.writer(
        run=identity,
        metadata=DatasetFacts.as_metadata(facts, target.metadata, identity),
        env=env if target.env is None else target.env,
        on_duplicate="skip",
        cast=target.cast,
        durability="none",
    ) as writer:
        writer._sources.assume(staged)
        rules: Any = {name: getattr(target, name) for name in ("on_error", "on_changed", "progress")}
        return import_episodes(dataset, writer, known, staged, **rules)


def _commit(dataset: ForeignDataset, staging: EpisodeStore, done: Imported, target: Target) -> dict[str, Any]:
    """Bring the staged episodes into the target in one commit; return the counts for the report.

    Raises:
        DatasetError: some have changed, and `on_changed` is "error".
    """
    if done.changed and target.on_changed == "error":
        raise DatasetError(_changed(dataset, done, target.into))
    counts = {
        "episodes": len(done.staged),
        "steps": done.steps,
        "present": len(done.present),
        "replaced": 0,
        "kept": len(done.changed) if target.on_changed == "keep" else 0,
        "skipped": tuple(done.skipped),
    }
    if target.store is None and not done.outdated and _moved(staging, target.into):
        return counts
    staging.refresh()
    # With those that an interrupted import has written, of which the target may have some by now.
    staged = {key: source.id for key, source in known_sources(staging.handle).items() if key in done.staged}
    added: EpisodeView = staging
    if len(staged) < len(staging):
        added = staging.filter(pl.col("episode_id").is_in(list(staged.values())))
    changed = {staged[key]: id for key, id in done.changed.items() if key in staged}
    if changed:
        new = added.filter(~pl.col("episode_id").is_in([*changed]))
        counts |= {"episodes": len(new), "steps": _steps_of(new), "replaced": len(changed)}
    if target.store is None:
        added.copy(target.into, link=True, storage_options=target.storage_options)
    elif staged:
        merge_stores(target.store.handle, [added.selection()], replaced=list(changed.values()))
        target.store._show_newest()
    return counts


def _moved(staging: EpisodeStore, into: str | PathLike[str]) -> bool:
    """Rename a staging store to the new store; False if something is there, or the store is remote."""
    here, there = staging.handle.layout.root.local, Layout.at(into).root.local
    if here is None or there is None:
        return False
    with visible_step(f"The store {there} is created"):
        try:
            if exists(there, follow=False):  # a folder, or a link to one, stays what it is
                return False
            rename_durably(here, there)
        except StoreAccessError as error:
            if is_visible(error):
                raise
            return False  # the copy says what is wrong
    return True


def _steps_of(view: EpisodeView) -> int:
    return int(collected(view.episodes.select(pl.col("length").sum())).item() or 0)


def _changed(dataset: ForeignDataset, done: Imported, into: str | PathLike[str]) -> str:
    keys = list(done.changed)
    more = f" and {len(keys) - 3:,} more" if len(keys) > 3 else ""
    return (
        f"{dataset.source}: episodes with other values than in {into!s} ({len(keys):,}): "
        f"{', '.join(keys[:3])}{more}. Pass on_changed='replace' (--on-changed replace) to take the new "
        "ones, or 'keep' to keep those of the store. If the import has other arguments than the last, repeat "
        "those; if this is another dataset, give it a name with name= (--name)."
    )


def empty_store(dataset: ForeignDataset, path: Path, **options: Any) -> EpisodeStore:
    """Create a store for the episodes of a dataset."""
    if dataset.rollouts is not None:
        return create(path, Rollouts.of(dataset.rollouts), **options)
    return create(
        path,
        observation_space=dataset.observation_space,
        action_space=dataset.action_space,
        reward_shape=dataset.reward_shape,
        encodings=dataset.encodings,
        **options,
    )


@contextmanager
def _staged(dataset: ForeignDataset, target: Target) -> Iterator[tuple[EpisodeStore, Mapping[str, Source]]]:
    """Yield the store for the episodes of an import, and the episodes in it from an interrupted import.

    It is deleted when the block ends without an error, and if no episode is in it or the source has changed.
    """
    # The digests of episodes show other options of the import.
    run = str(getattr(target.env, "spec", target.env)), dump_json(freeze_value(dict(target.metadata)))
    spaces = space_to_json(dataset.observation_space), space_to_json(dataset.action_space)
    encodings = [{column: each.to_json() for column, each in dataset.encodings.items()}]
    facts = [dataset.identity, run, spaces, dataset.reward_shape, *(encodings if encodings[0] else ())]
    if dataset.rollouts is not None:
        facts.append({"rollouts": dict(dataset.rollouts)})
    identity = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    layout = Layout.at(target.into)
    folder = layout.root.local
    if folder is None:
        path = layout.journals.parent / f"importing-{digest}"
    else:
        path = folder.parent / f".{folder.name}.importing-{digest}"
    staged: Mapping[str, Source] = {}
    try:
        staging = open_store(path)
    except StoreNotFoundError:
        # A crash may have left a part of an empty store.
        shutil.rmtree(path, ignore_errors=True)
        staging = empty_store(dataset, path, card=dataset.card)
    else:
        staged = known_sources(staging.handle)
    try:
        yield staging, staged
    except Exception as error:
        if not exists(path):  # it has become the new store
            raise
        changed = isinstance(error, SourceChangedError)
        # Where the disk is full, the writer still holds its journal, from which the next call goes on.
        if changed or not (isinstance(error, StoreAccessError) or len(staging.refresh())):
            with suppress(OSError):
                _delete(path)
        else:
            error.add_note(
                f"The episodes before it wait in {path}: the same import goes on from there. Delete that "
                "folder to give them up."
            )
        raise
    with afterwards(
        f"The episodes are in {target.into}", f"Those in {path} are no longer needed: delete it."
    ):
        if exists(path):  # else it has become the new store
            _delete(path)


def _delete(staging: Path) -> None:
    """Delete a staging store; the next import finds no store in what a kill leaves of it."""
    (staging / Layout.MANIFEST).unlink()
    shutil.rmtree(staging)
