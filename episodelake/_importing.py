"""`import_dataset`: datasets of other libraries become episodes of a store, whole or not at all.

Episodes first go to a store of their own beside the target, `.NAME.importing-DIGEST`. When all of them are
there, they are brought into the target in one commit. The next call goes on with an interrupted import.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
import polars as pl

from ._store import EpisodeStore, copy_views, create, merge, open_store
from .readers.view import EpisodeView
from .store.creation import check_free_for_copy
from .store.errors import InvalidArgumentError, SpaceMismatchError, StoreAccessError, StoreNotFoundError
from .store.files import guard_access
from .store.layout import MANIFEST, Layout
from .store.losses import Losses
from .store.progress import Progress, progress_meter
from .store.spaces import space_to_json
from .store.spaces.coerce import Cast
from .writers.importing.dataset import ForeignDataset, ImportOptions, LastObservation, LastStep, guard_source
from .writers.importing.formats import chosen_format, source_formats
from .writers.importing.importer import Imported, OnError, check_on_error, import_episodes, write_loaded
from .writers.importing.ledger import LossLedger
from .writers.importing.table.mapping import names_columns
from .writers.source_keys import committed_keys

_PREVIEWED_ROWS = 5
_LEDGER = "losses.jsonl"
_SOURCE_KEY = "metadata.source_key"


@dataclass(frozen=True)
class ImportReport:
    """The result of an import, or of its rehearsal.

    Attributes:
        source, format, reason: what was imported, its format, and how that was recognised.
        store: the path or URL of the store; it does not exist after a `dry_run` into a new one.
        episodes, steps: what was added, in episodes and transitions, with what interrupted calls had read;
            0 after a `dry_run`.
        present: episodes that the store had already.
        skipped: for `on_error="skip"`, the episodes that could not be read, and why.
        lost: what does not come over: counts, by a sentence that says what.
        observation_space, action_space: of the store.
        mapping: columns of the store, and where they come from.
        preview: after a `dry_run`, the first rows as they would stand in `steps`; else None.
        dry_run: whether nothing was written.
    """

    source: str
    format: str
    reason: str
    store: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    mapping: Mapping[str, str]
    episodes: int = 0
    steps: int = 0
    present: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    lost: Mapping[str, int] = field(default_factory=Losses)
    preview: pl.DataFrame | None = None
    dry_run: bool = False

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.format} ({self.reason})"]
        if self.dry_run:
            lines += [
                f"observation space: {self.observation_space}",
                f"action space: {self.action_space}",
                *(f"{ours} <- {theirs}" for ours, theirs in self.mapping.items()),
                str(self.preview),
            ]
        else:
            lines.append(f"{self.episodes:,} episodes with {self.steps:,} steps added to {self.store}")
        if self.present:
            lines.append(f"{self.present:,} episodes were there already")
        lines += [f"skipped: {key}: {why}" for key, why in self.skipped]
        lines += [f"lost: {what}: {count:,}" for what, count in self.lost.items()]
        return "\n".join(lines)


def import_dataset(
    source: Any,
    into: EpisodeStore | str | PathLike[str],
    *,
    format: str | None = None,
    mapping: Any = None,
    dry_run: bool = False,
    on_error: OnError = "raise",
    last_observation: LastObservation = "drop",
    last_step: LastStep = "auto",
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    cast: Cast = "no",
    trust: bool = False,
    storage_options: Mapping[str, str] | None = None,
    progress: bool | Progress = False,
) -> ImportReport:
    """Bring a dataset of another library into a store, in one commit.

    Every episode has a source key, so importing a dataset again adds only what is new in it. Until all its
    episodes are read, they are in a store beside the target, `.NAME.importing-DIGEST`; after an interrupt or
    an error the same call goes on from there, and reports what an undisturbed one does. Do not import the
    same dataset twice at a time.

    Args:
        source: a file, a folder, or an object of the library; `formats()` lists what is known.
        into: an open store or a path; a path without a store is created with the spaces of the source.
        format: the name of the format; None to recognise it. "parquet", "csv", "arrow", "delta" and
            "huggingface" stand for "table".
        mapping: for tables, a `ColumnMapping` or a dict of its arguments; for RLlib, its column names to
            those of the source.
        dry_run: write nothing; report the format, spaces, mapping and first rows.
        on_error: "raise", or "skip" episodes that cannot be read or do not fit the spaces, and list them.
        last_observation: for sources that lack the observation after the last action: "drop" the last
            transition, "repeat" the last observation, or state that it is "missing".
        last_step: for RLDS: whether the last step of an episode is an "observation" alone or a "transition";
            "auto" looks at its action.
        observation_space, action_space: for sources that do not state them; otherwise they are inferred.
        cast: as for `EpisodeStore.writer`: which dtypes are cast to those of the spaces.
        trust: read what can only be read by running code of the source, such as pickled columns.
        storage_options: how to reach the object store `into`.
        progress: True for a bar on the terminal, or a function called with the episodes done and all of
            them.

    Raises:
        DatasetError: the source has no known format, or is damaged; the store is unchanged.
        SpaceMismatchError: a value does not fit the spaces, or rewards have another shape; the store is
            unchanged.
        InvalidArgumentError: an argument is not valid, the store has several agents, the source is a store,
            or one of them lies in the other.
        StoreExistsError: there is something else than a store at `into`.
        MissingPackageError: the format needs a package that is not installed.
    """
    check_on_error(on_error)
    options = ImportOptions(mapping, observation_space, action_space, last_observation, last_step, trust)
    # A mapping for TorchRL names observations too.
    if format is None and names_columns(mapping) and source_formats()["torchrl"].detect(source).lacks:
        format = "table"
    _check_source(source, into)
    chosen, reason = chosen_format(source, format)
    where = into.url if isinstance(into, EpisodeStore) else into
    target = into if isinstance(into, EpisodeStore) else _opened(into, storage_options)
    if target is None:
        check_free_for_copy(Layout.at(where, storage_options))
    with guard_source(_name(source)):
        opened = chosen.open(source, options)
    opened.source = _name(source)
    with closing(opened) as dataset, _spaces_of(target, dataset):
        told = {
            "source": _name(source),
            "format": chosen.name,
            "reason": reason,
            "store": str(where),
            "observation_space": dataset.observation_space,
            "action_space": dataset.action_space,
        }
        if dry_run:
            preview = _preview(dataset, cast)
            return ImportReport(
                **told, mapping=dataset.mapping, lost=dataset.losses, preview=preview, dry_run=True
            )
        with progress_meter(progress, "Importing", "episodes") as tell:
            done, episodes, steps = _import(
                dataset, where, target, storage_options, on_error=on_error, cast=cast, progress=tell
            )
        return ImportReport(
            **told,
            mapping=dataset.mapping,
            lost=dataset.losses,
            episodes=episodes,
            steps=steps,
            present=done.present,
            skipped=tuple(done.skipped),
        )


def _import(
    dataset: ForeignDataset,
    into: str | PathLike[str],
    target: EpisodeStore | None,
    storage_options: Mapping[str, str] | None,
    *,
    on_error: OnError,
    cast: Cast,
    progress: Progress,
) -> tuple[Imported, int, int]:
    """Import into a store, or a new one; return what happened, and the episodes and steps that were added."""
    present = set(committed_keys(target.handle.layout)) if target is not None else set()
    with _staged(dataset, into) as staging:
        others = _keys_of_others(staging, target, present)
        metadata = {"imported_from": dataset.identity}
        with staging.writer(
            run=dataset.identity, metadata=metadata, on_duplicate="skip", cast=cast, durability="none"
        ) as writer:
            ledger = LossLedger(staging.path / _LEDGER)
            done = import_episodes(dataset, writer, present, ledger, on_error=on_error, progress=progress)
        # With what an interrupted import had written.
        added: EpisodeView = staging.refresh()
        if others:
            added = staging.filter(~pl.col(_SOURCE_KEY).is_in(list(others)))
        ordered = _in_order(added, done.order)
        if target is None:
            copy_views(
                ordered, staging, into, link=True, storage_options=storage_options, progress=lambda *_: None
            )
        elif len(added):
            merge(ordered, target)
        steps = int(added.episodes.select(pl.col("length").sum()).collect().item() or 0)
        return done, len(added), steps


def _keys_of_others(staging: EpisodeStore, target: EpisodeStore | None, present: set[str]) -> set[str]:
    """Return the source keys of staged episodes that other imports brought into the target meanwhile.

    If it was this one, before it crashed, `present` loses the keys: they are what it adds.
    """
    if target is None or not len(staging):
        return set()
    staged = staging.episodes.select("episode_id", _SOURCE_KEY).collect()
    others = present & set(staged[_SOURCE_KEY])
    merged = target.episodes.filter(pl.col("episode_id").is_in(staged["episode_id"].implode()))
    if others and merged.head(1).collect().height:
        present -= others
        return set()
    return others


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


def _check_source(source: Any, into: EpisodeStore | str | PathLike[str]) -> None:
    """Refuse stores as sources, and sources that the target holds or lies in."""
    path = Path(source).expanduser().resolve() if isinstance(source, str | PathLike) else None
    if isinstance(source, EpisodeView) or (path is not None and (path / MANIFEST).is_file()):
        raise InvalidArgumentError(
            f"{_name(source)} is a store already, no dataset of another library. Bring its episodes into "
            "another store with el.merge([...], into)."
        )
    target = (into.handle.layout if isinstance(into, EpisodeStore) else Layout.at(into)).root.local
    if target is None or path is None:
        return
    target = target.resolve()
    if path == target or path in target.parents or target in path.parents:
        raise InvalidArgumentError(
            f"{target} contains the source {source}, or lies in it. Choose a store beside the source."
        )


def _check_target(target: EpisodeStore, dataset: ForeignDataset) -> None:
    """Refuse a store that cannot hold the episodes, before any is read."""
    schema = target.handle.schema
    if schema.groups:
        raise InvalidArgumentError(
            f"{target.url} is a store of several agents, and the episodes of {dataset.identity!r} have one. "
            "Import them into a store of their own."
        )
    if schema.reward_shape != dataset.reward_shape:
        raise SpaceMismatchError(
            f"The rewards of {dataset.identity!r} have the shape {dataset.reward_shape}; {target.url} has "
            f"{schema.reward_shape}. Import them into a store of their own."
        )


@contextmanager
def _spaces_of(target: EpisodeStore | None, dataset: ForeignDataset) -> Iterator[None]:
    """Give a source the spaces of the store it goes to; where a value does not fit, name those of both."""
    if target is None:
        yield
        return
    _check_target(target, dataset)
    found = dataset.observation_space, dataset.action_space
    wanted = target.observation_space, target.action_space
    dataset.observation_space, dataset.action_space = wanted
    try:
        yield
    except SpaceMismatchError as error:
        if [_kind(each) for each in found] == [_kind(each) for each in wanted]:
            raise
        raise SpaceMismatchError(
            f"{error} The store {target.url} has the spaces {wanted[0]!s:.300} and {wanted[1]!s:.300}, the "
            f"source {found[0]!s:.300} and {found[1]!s:.300}: import another kind of data into another store."
        ) from error


def _kind(space: gymnasium.Space) -> tuple[Any, ...]:
    return type(space), space.shape, space.dtype


def _opened(path: str | PathLike[str], storage_options: Mapping[str, str] | None) -> EpisodeStore | None:
    """Return the store at a path; None if there is none."""
    try:
        return open_store(path, storage_options=storage_options)
    except StoreNotFoundError:
        return None


@contextmanager
def _staged(dataset: ForeignDataset, into: str | PathLike[str]) -> Iterator[EpisodeStore]:
    """Yield the store for the episodes of an import.

    It is deleted when the block ends without an error, or before an episode is in it.
    """
    spaces = space_to_json(dataset.observation_space), space_to_json(dataset.action_space)
    told = json.dumps([dataset.identity, dataset.settings, spaces, dataset.reward_shape], sort_keys=True)
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    layout = Layout.at(into)
    folder = layout.root.local
    if folder is None:
        path = layout.journals.parent / f"importing-{digest}"
    else:
        path = folder.parent / f".{folder.name}.importing-{digest}"
    try:
        staging = open_store(path)
    except StoreNotFoundError:
        # A crash may have left a part of an empty store.
        shutil.rmtree(path, ignore_errors=True)
        staging = create(
            path,
            observation_space=dataset.observation_space,
            action_space=dataset.action_space,
            reward_shape=dataset.reward_shape,
            card=dataset.card,
        )
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
        # Where the disk is full, the writer still holds its journal, from which the next call goes on.
        if not isinstance(error, StoreAccessError) and not len(staging.refresh()):
            shutil.rmtree(path, ignore_errors=True)
        raise
    # A store that is deleted in part cannot be opened; under another name it is not looked for.
    deleted = path.with_name(f"{path.name}.deleted")
    with guard_access("delete", path):
        shutil.rmtree(deleted, ignore_errors=True)
        path.rename(deleted)
        shutil.rmtree(deleted)


def _preview(dataset: ForeignDataset, cast: Cast) -> pl.DataFrame | None:
    """Return the first rows of the first episode, as they would stand in `steps`."""
    part = next(dataset.guarded_parts(), None)
    if part is None:
        return None
    with guard_source(f"Episode {part.keys[0]} of {dataset.source}"):
        loaded = part.load()
    with TemporaryDirectory(prefix="episodelake-") as folder:
        store = create(
            Path(folder, "preview"),
            observation_space=dataset.observation_space,
            action_space=dataset.action_space,
            reward_shape=dataset.reward_shape,
        )
        with store.writer(cast=cast, durability="none") as writer:
            write_loaded(loaded, part, writer, part.keys, [True] * len(part.keys))
        return store.refresh().steps.head(_PREVIEWED_ROWS).drop("episode_id").collect()


def _name(source: Any) -> str:
    return str(source) if isinstance(source, str | PathLike) else type(source).__name__
