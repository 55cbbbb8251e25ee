"""`EpisodeStore`: the one object that users hold, made of the store, its writers and its readers.

Only this package knows both sides; it forwards, and decides nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import polars as pl

from ._environments import AgentSpaces, agent_groups, checked_reward_shape, renewed, spaces_of
from ._maintained import MaintainedStore
from ._recording import RecordingStore
from ._saved import SavingStore
from ._targets import check_outside, check_sources
from .readers.context import ReadContext
from .readers.intact import intact
from .readers.view import EpisodeView
from .store.agents.agents import AgentGroup
from .store.creation import check_free, check_free_for_copy, made_whole, make_tables
from .store.errors import (
    InvalidArgumentError,
    StoreNotFoundError,
    VersionNotFoundError,
)
from .store.handle import StoreHandle
from .store.identity import check_identity
from .store.journal.recovery import RecoveredRun
from .store.journal.recovery import recover as recover_journals
from .store.layout import Layout
from .store.maintenance.merging import MergeReport
from .store.maintenance.merging import merge as merge_stores
from .store.maintenance.operation import settle
from .store.maintenance.tags import tagged_version
from .store.manifest import Manifest, card_bytes, read_card, read_manifest, write_card, write_manifest
from .store.progress import Progress, progress_meter
from .store.snapshot import Snapshot
from .writers.recorders.pettingzoo_api import reward_shape as found_reward_shape


class EpisodeStore(RecordingStore, SavingStore, MaintainedStore):
    """A store, pinned at a version: a view of all its episodes, and the door to recording.

    Made by `create` and `open`. What it shows does not change until `refresh`.
    """

    def __init__(self, layout: Layout, manifest: Manifest, version: int | None = None) -> None:
        self.handle = StoreHandle(layout, manifest)
        super().__init__(ReadContext.of(Snapshot(layout, manifest, version)))

    @property
    def path(self) -> Path:
        """The store's folder.

        Raises:
            InvalidArgumentError: it is on an object store and has none; see `url`.
        """
        local = self.handle.layout.root.local
        if local is None:
            raise InvalidArgumentError(f"{self.url} is no folder of this machine. Use the property url.")
        return local

    @property
    def url(self) -> str:
        """Where the store is: the absolute path of its folder, or its URL."""
        return str(self.handle.layout.root)

    @property
    def id(self) -> str:
        """The store's identity, a random UUID in hexadecimal."""
        return self.handle.manifest.store_id

    @property
    def observation_space(self) -> gymnasium.Space:
        """The space of every observation; where groups of agents differ, a Dict with one entry per group."""
        return self.handle.manifest.observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        """The space of every action; where groups of agents differ, a Dict with one entry per group."""
        return self.handle.manifest.action_space

    @property
    def reward_shape(self) -> tuple[int, ...]:
        """() for scalar rewards, (k,) for k objectives."""
        return self.handle.manifest.reward_shape

    @property
    def agent_groups(self) -> tuple[AgentGroup, ...]:
        """The agents of a multi-agent store, by their spaces; empty for a single agent."""
        return self.handle.manifest.groups

    @property
    def version(self) -> int:
        """The version that this object shows; grows with every commit of episodes."""
        return self.context.snapshot.version

    @property
    def card(self) -> dict[str, Any]:
        """The dataset card: whatever its makers say of the store, as plain JSON.

        Assigning replaces it as a whole, atomically.
        """
        return read_card(self.handle.layout)

    @card.setter
    def card(self, card: Mapping[str, Any]) -> None:
        check_identity(self.handle.layout)
        write_card(self.handle.layout, card_bytes(card))

    def refresh(self) -> EpisodeStore:
        """Move to the newest version and return this object; views made before keep theirs.

        It costs what was committed since, unless files were rewritten.
        """
        self._show(Snapshot(self.handle.layout, self.handle.manifest, after=self.context.snapshot))
        return self

    def leave_out_damaged(self, *, steps: bool = False) -> list[str]:
        """Show the same version without the files of episodes and runs that cannot be read.

        So the rest of a damaged store stays explorable. Positions then count the episodes that are left;
        ids stay. `refresh` goes back to all files. A damaged file of steps is not left out unless `steps`
        says so: its episodes are listed in any case, and reading one of them says what is wrong.

        Args:
            steps: read every file of steps too, and leave the rows of damaged ones out of frames and queries.

        Returns:
            For each file that is left out, what is wrong with it; empty if every one can be read.
        """
        snapshot, told = intact(self.context.snapshot, steps=steps)
        self._show(snapshot)
        return told

    def _show(self, snapshot: Snapshot) -> None:
        self.context = ReadContext.of(snapshot)
        # Their connections belong to the snapshot that was shown.
        self.__dict__.pop("_queries", None)

    def copy(
        self,
        into: str | PathLike[str],
        filter: pl.Expr | str | None = None,
        *,
        link: bool = False,
        storage_options: Mapping[str, str] | None = None,
        progress: bool | Progress = False,
    ) -> EpisodeStore:
        """Make a new store with the episodes of this version, under their ids, with their runs and card.

        Segments whose episodes are all wanted are taken over as files.

        Args:
            into: where; as for `create`.
            filter: only the episodes that fulfil this condition, as for `EpisodeView.filter`.
            link: share files on the same file system instead of copying them.
            storage_options: how to reach the object store `into`; if they are not given, this store's own for
                a URL of the same kind.
            progress: True for a bar on the terminal, or a function called with the segments done and all
                segments.

        Raises:
            StoreExistsError: there is a store already, or other files.
            InvalidArgumentError: `into` lies in this store.
            QueryError: the condition is not valid; nothing was created.
        """
        view = self if filter is None else self.filter(filter)
        with progress_meter(progress, "Copying", "segments") as tell:
            return copy_views([view], self, into, link=link, storage_options=storage_options, progress=tell)

    def history(self) -> pl.DataFrame:
        """Return the commits up to this version, newest first, back to the oldest one that was not vacuumed.

        Columns: version, timestamp (UTC), operation, and how many episodes and steps (transitions) the
        commit added; null where it added none.
        """
        rows = [
            {
                "version": entry["version"],
                "timestamp": entry["timestamp"],
                "operation": entry.get("episodelake.operation") or entry["operation"].lower(),
                "episodes": _count(entry.get("episodelake.episodes")),
                "steps": _count(entry.get("episodelake.steps")),
            }
            for entry in self.context.snapshot.history()
        ]
        moment = pl.Datetime("ms", "UTC")
        schema = {
            "version": pl.Int64,
            "timestamp": moment,
            "operation": pl.String,
            "episodes": pl.Int64,
            "steps": pl.Int64,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")


def _count(text: str | None) -> int | None:
    return None if text is None else int(text)


def create(
    path: str | PathLike[str],
    env: Any = None,
    *,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    reward_shape: tuple[int, ...] | None = None,
    agents: AgentSpaces | None = None,
    card: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> EpisodeStore:
    """Create an empty store and open it.

    Args:
        path: a folder that does not exist yet, or is empty; or a URL of an object store: `s3://`, `gs://`,
            `az://`; or `memory://name`, which ends with the process.
        env: take the spaces from this environment; if it is one of PettingZoo, those of its possible agents.
        observation_space, action_space: the spaces of every episode; they override the environment's.
        reward_shape: () for scalar rewards, (k,) for k objectives; None asks the environment, as
            MO-Gymnasium's say it with `reward_space`.
        agents: for a multi-agent store, each agent's observation space and action space.
        card: the first dataset card.
        storage_options: how to reach an object store: the keys that delta-rs and Polars take, such as
            `aws_region`; not kept anywhere.

    Raises:
        StoreExistsError: there is a store already, or other files.
        UnsupportedSpaceError: a space has no columns; see `register_codec`. Nothing was created.
        InvalidArgumentError: neither an environment nor both spaces were given; spaces of one agent and of
            several were; the card is not plain JSON.
        StoreAccessError: the directory cannot be written.
    """
    shape = checked_reward_shape(found_reward_shape(env) if reward_shape is None else reward_shape)
    groups = agent_groups(env, agents)
    if groups and (observation_space is not None or action_space is not None):
        raise InvalidArgumentError(
            "observation_space and action_space are those of a single agent; give those of several as "
            'agents={"red": (observation_space, action_space), ...}.'
        )
    if groups:
        manifest = Manifest.of_agents(groups, shape)
    else:
        manifest = Manifest.new(*spaces_of(env, observation_space, action_space), shape)
    return _made(path, manifest, card, storage_options)


def _made(
    path: str | PathLike[str],
    manifest: Manifest,
    card: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> EpisodeStore:
    """Create the store that a manifest describes."""
    data = card_bytes({} if card is None else card)
    manifest.to_json()
    store = _new(path, manifest, storage_options)
    check_free(store.layout)
    make_tables(store)
    write_manifest(store.layout, manifest)
    if card:
        write_card(store.layout, data)
    return EpisodeStore(store.layout.of_store(manifest.store_id), manifest)


def _new(
    path: str | PathLike[str], manifest: Manifest, storage_options: Mapping[str, str] | None
) -> StoreHandle:
    """Return the store that a manifest describes, of which nothing is there yet."""
    layout = Layout.at(path, storage_options).of_store(manifest.store_id)
    # Its identity is checked by those who open it, once `store.json` is there.
    return StoreHandle(replace(layout, store_id=None), manifest)


def open_store(
    path: str | PathLike[str],
    version: int | str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    check_pages: bool = False,
) -> EpisodeStore:
    """Open a store at its newest version, or at `version`: a number or a tag.

    Args:
        path: its folder or URL.
        version: a number or a tag; None for the newest.
        storage_options: how to reach an object store.
        check_pages: read every file whole and compare its checksums before DuckDB or Polars gets it, also for
            connections of `connect` and on object stores. By default a column's pages are checked before a
            query, filter or local frame first reads it, and those of episodes and loaders as they are read.

    Raises:
        StoreNotFoundError: there is no store at `path`.
        FormatVersionError: it was written in a newer format.
        CorruptStoreError: a file is damaged; the message names it.
        VersionNotFoundError: there is no such version.
    """
    layout = replace(Layout.at(path, storage_options), check_pages=check_pages)
    manifest = read_manifest(layout)
    if isinstance(version, str):
        version = tagged_version(layout, version)
    try:
        wanted = None if version is None else operator.index(version)
    except TypeError as error:
        raise VersionNotFoundError(f"There is no version {version!r}: expected a whole number.") from error
    store = EpisodeStore(layout.of_store(manifest.store_id), manifest, wanted)
    if wanted is not None:
        store.context.snapshot.check_retained()
    return store


def copy_views(
    views: Sequence[EpisodeView],
    store: EpisodeStore,
    into: str | PathLike[str],
    *,
    link: bool,
    storage_options: Mapping[str, str] | None,
    progress: Progress,
) -> EpisodeStore:
    """Return a new store with the episodes of views of a store, one view behind the other."""
    own = store.handle.layout.root
    check_outside(into, store.handle.layout)
    if storage_options is None and str(into).partition("://")[0] == str(own).partition("://")[0]:
        storage_options = own.options
    target = _new(into, renewed(store.handle.manifest), storage_options)
    card = card_bytes(store.card) if store.card else None
    check_free_for_copy(target.layout)
    within = made_whole(target, card)
    selections = [view.selection() for view in views]
    merge_stores(target, selections, link=link, progress=progress, within=within)
    return EpisodeStore(target.layout.of_store(target.manifest.store_id), target.manifest)


def merge(
    sources: Sequence[EpisodeView | str | PathLike[str]],
    into: EpisodeStore | str | PathLike[str],
    *,
    link: bool = True,
    storage_options: Mapping[str, str] | None = None,
    progress: bool | Progress = False,
) -> MergeReport:
    """Bring the episodes of other stores into one, under their own ids, in one commit.

    Whole segments are taken over as files: no step is decoded. Episodes that are there already are left out,
    so a merge may be repeated, and goes on where new episodes were recorded.

    Args:
        sources: paths, open stores, or views of them; their episodes stand in this order.
        into: an open store or its path; a path without a store is created with the first source's spaces.
        link: on the same file system, share the files with the sources, which takes no room.
        storage_options: how to reach those that are given as paths or URLs.
        progress: True for a bar on the terminal, or a function called with the segments done and all
            segments.

    Raises:
        SpaceMismatchError: a source has other spaces; nothing was changed.
        InvalidArgumentError: there is no source; an annotation has another type in a source; a new store
            would lie in a source.
        StoreNotFoundError, CorruptStoreError, StoreAccessError, ConcurrentCommitError: nothing was changed.
    """
    if isinstance(sources, str | PathLike | EpisodeView):
        sources = [sources]
    views = [
        source if isinstance(source, EpisodeView) else open_store(source, storage_options=storage_options)
        for source in sources
    ]
    if not views:
        raise InvalidArgumentError("There is nothing to merge: sources is empty.")
    selections = [view.selection() for view in views]
    with progress_meter(progress, "Merging", "segments") as tell:
        if isinstance(into, EpisodeStore):
            report = merge_stores(into.handle, selections, link=link, progress=tell)
            into.refresh()
            return report
        target = _opened(into, storage_options)
        if target is not None:
            return merge_stores(target, selections, link=link, progress=tell)
        snapshots = [selection.snapshot for selection in selections]
        check_sources(into, snapshots)
        target = _new(into, renewed(snapshots[0].manifest), storage_options)
        check_free_for_copy(target.layout)
        within = made_whole(target, None)
        return merge_stores(target, selections, link=link, progress=tell, within=within)


def _opened(path: str | PathLike[str], storage_options: Mapping[str, str] | None) -> StoreHandle | None:
    """Return the store at a path; None if there is none."""
    try:
        return open_store(path, storage_options=storage_options).handle
    except StoreNotFoundError:
        return None


def recover(
    path: str | PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    journals: str | PathLike[str] | None = None,
) -> list[RecoveredRun]:
    """Seal what dead writers left in their journals; live writers are not touched.

    The tables agree again afterwards if a maintenance operation was killed between its commits. The next
    writer on the store does the same by itself.

    Args:
        path: the store's folder or URL.
        storage_options: how to reach an object store.
        journals: the folder with the journals of another store with the same spaces, such as one that was
            deleted or replaced while a writer lived; None for the store's own.

    Raises:
        StoreNotFoundError, FormatVersionError, CorruptStoreError: as for `open`.
        StoreAccessError, ConcurrentCommitError: nothing is lost; call again.
    """
    layout = Layout.at(path, storage_options)
    manifest = read_manifest(layout)
    layout = layout.of_store(manifest.store_id)
    if journals is not None:
        layout = replace(layout, journals=Path(journals).absolute(), former_journals=None)
    store = StoreHandle(layout, manifest)
    runs = recover_journals(store)
    settle(store)
    return runs
