"""`EpisodeStore`: the one object that users hold, made of the store, its writers and its readers.

Only this package knows both sides; it forwards, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import gymnasium

from ._environments import AgentSpaces, base_notes, checked_reward_shape, renewed, spaces_of, spaces_of_agents
from ._maintained import MaintainedStore
from ._recording import RecordingStore
from ._saved import SavingStore
from .readers.context import ReadContext
from .readers.damaged_files import intact
from .readers.view import EpisodeView
from .store.agents import group_agents
from .store.common.arguments import flag, integer
from .store.common.progress import Progress, progress_meter
from .store.errors import InvalidArgumentError, StoreAccessError, StoreNotFoundError, VersionNotFoundError
from .store.files import access_class, user_path
from .store.layout import Layout, check_identity
from .store.maintenance.creation import check_free, check_free_for_copy, made_whole, make_tables
from .store.maintenance.tags import tagged_version
from .store.manifest import Manifest, card_bytes, read_manifest, write_card, write_manifest
from .store.schema import StoreHandle
from .store.snapshot import Snapshot

if TYPE_CHECKING:
    import polars as pl

    from ._exploring import Explorer
    from .store.maintenance.merging import MergeReport
    from .store.maintenance.recovery import RecoveredRun


class EpisodeStore(RecordingStore, SavingStore, MaintainedStore):
    """A store, pinned at a version: a view of all its episodes, and the door to recording.

    Made by `create` and `open`. What it shows does not change until `refresh`.
    """

    def __init__(self, layout: Layout, manifest: Manifest, version: int | None = None) -> None:
        self.handle = StoreHandle(layout, manifest)
        super().__init__(ReadContext.of(Snapshot(layout, manifest, version)))

    @EpisodeView.card.setter
    def card(self, card: Mapping[str, Any]) -> None:
        """Replace the card."""
        self._write_card(card)

    def _write_card(self, card: Mapping[str, Any]) -> None:
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
        steps = flag("steps", steps)
        snapshot, damaged = intact(self.context.snapshot, steps=steps)
        self._show(snapshot)
        return damaged

    def explore(
        self,
        *,
        browser: bool = False,
        height: int = 760,
        write: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Explorer:
        """Start the explorer; in a notebook its page appears below the cell.

        A process of its own serves the page, to this machine and this user alone, and ends with `stop()` or
        with this process. It follows running writers; a store opened at an older version stays there.

        Args:
            browser: also open the page in the browser.
            height: of the page in the notebook, in pixels.
            write: let the page label episodes; see `label`.
            storage_options: how to reach a store on an object store.

        Raises:
            MissingPackageError: a package of the extra `explore` is not installed.
            InvalidArgumentError: the height is no whole number from 1, an option neither True nor False, or
                `write` is given for an older version.
            StoreAccessError, CorruptStoreError: the store cannot be read.
            ComputationError: the process ended before its page answered.
        """
        from ._exploring import start

        browser, write = flag("browser", browser), flag("write", write)
        version = None if self.context.snapshot.newest else self.version
        return start(
            self.url, version, browser=browser, height=height, write=write, storage_options=storage_options
        )

    def published(self, *, storage_options: Mapping[str, str] | None = None) -> pl.DataFrame:
        """Return the published versions of this store, wherever they are; columns as for `el.published`.

        The store knows the targets to which it was published, and asks each what it holds. A target that
        cannot be asked has a row with its `error`; one that has moved is asked with `el.published`. A store
        that is renamed or moved keeps this, and a `copy` begins anew.

        Args:
            storage_options: how to reach targets on object stores; not kept anywhere.

        Raises:
            StoreAccessError: the store cannot be read.
        """
        from .publishing.published import publications

        return publications(self.handle.layout.root, self.handle.manifest.store_id, storage_options)

    def _show(self, snapshot: Snapshot) -> None:
        self.context = ReadContext.of(snapshot)
        # Their connections belong to the snapshot that was shown.
        self.__dict__.pop("_queries", None)


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
            An id, a spec or a function without arguments makes one, which is closed again. Spaces of classes
            that derive from Gymnasium's are stored as those, which the card notes under `space_classes`.
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
    from .writers.recorders.choice import made
    from .writers.recorders.env_checks import reward_shape as found_reward_shape

    with made(env) as own:
        shape = checked_reward_shape(found_reward_shape(own) if reward_shape is None else reward_shape)
        parts = spaces_of_agents(own, agents)
        groups = group_agents(parts) if parts or agents is not None else ()
        if groups and (observation_space is not None or action_space is not None):
            raise InvalidArgumentError(
                "observation_space and action_space are those of a single agent; give those of several as "
                'agents={"red": (observation_space, action_space), ...}.'
            )
        if groups:
            manifest = Manifest.of_agents(groups, shape)
        else:
            spaces = spaces_of(own, observation_space, action_space)
            manifest, parts = Manifest.new(*spaces, shape), {"": spaces}
        notes = base_notes(parts)
    noted = {**notes, **(card or {})} if notes and isinstance(card, Mapping | None) else card
    return create_described(path, manifest, noted, storage_options)


def create_described(
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
        try:
            write_card(store.layout, data)
        except StoreAccessError as error:
            raise access_class(error)(
                f"The store {path} was created, but without its card: {error} Open it and set `store.card`."
            ) from error
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
        path: its folder or URL; or `hf://organisation/name`, with `@tag` behind it, for a version on the
            Hugging Face Hub, which is fetched into the cache of this machine and verified.
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
    check_pages = flag("check_pages", check_pages)
    if isinstance(path, str) and path.startswith("hf://"):
        # No engine reads it in place. Imported when it is needed, since few stores are there.
        from .publishing.fetching import cached_version

        path, version = cached_version(path, version, storage_options), None
    layout = replace(Layout.at(path, storage_options), check_pages=check_pages)
    manifest = read_manifest(layout)
    if isinstance(version, str):
        version = tagged_version(layout, version)
    try:
        wanted = None if version is None else integer(version)
    except TypeError as error:
        raise VersionNotFoundError(f"There is no version {version!r}: expected a whole number.") from error
    store = EpisodeStore(layout.of_store(manifest.store_id), manifest, wanted)
    if wanted is not None:
        store.context.snapshot.check_retained()
    return store


def copy_views(
    views: Sequence[EpisodeView],
    into: str | PathLike[str],
    *,
    link: bool,
    storage_options: Mapping[str, str] | None,
    progress: Progress,
) -> EpisodeStore:
    """Return a new store with the episodes of views of one store, one view behind the other."""
    from .store.maintenance.merging import merge as merge_stores

    snapshot = views[0].context.snapshot
    own = snapshot.layout.root
    if storage_options is None and str(into).partition("://")[0] == str(own).partition("://")[0]:
        storage_options = own.options
    target = _new(into, renewed(snapshot.manifest), storage_options)
    card = card_bytes(views[0].card) if views[0].card else None
    check_free_for_copy(target.layout)
    within = made_whole(target, card)
    selections = [view.selection() for view in views]
    merge_stores(target, selections, link=link, progress=progress, within=within)
    return EpisodeStore(target.layout.of_store(target.manifest.store_id), target.manifest)


def _publish(*arguments: Any, **named: Any) -> Any:
    # Imported when it is needed: it brings the card's charts.
    from .publishing.publishing import publish_view

    return publish_view(*arguments, **named)


EpisodeView.copier = staticmethod(copy_views)
EpisodeView.publisher = staticmethod(_publish)


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
            would lie in a source; nothing was changed.
        StoreExistsError: a saved environment or named artifact has other content in a source; nothing was
            changed.
        StoreNotFoundError, CorruptStoreError, ConcurrentCommitError: no episode was brought; a new store was
            not made.
        StoreAccessError: the same, unless the message says that the episodes are there.
    """
    from .store.maintenance.merge_sources import check_spaces
    from .store.maintenance.merging import merge as merge_stores

    link = flag("link", link)
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
            into._show_newest()
            return report
        present = store_at(into, storage_options)
        if present is not None:
            return merge_stores(present.handle, selections, link=link, progress=tell)
        snapshots = [selection.snapshot for selection in selections]
        first = StoreHandle(snapshots[0].layout, snapshots[0].manifest)
        for snapshot in snapshots:
            check_spaces(first, snapshot)
        target = _new(into, renewed(snapshots[0].manifest), storage_options)
        check_free_for_copy(target.layout)
        within = made_whole(target, None)
        return merge_stores(target, selections, link=link, progress=tell, within=within)


def store_at(path: str | PathLike[str], storage_options: Mapping[str, str] | None) -> EpisodeStore | None:
    """Return the store at a path; None if there is none."""
    try:
        return open_store(path, storage_options=storage_options)
    except StoreNotFoundError:
        return None


def recover(
    path: str | PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    journals: str | PathLike[str] | None = None,
    other_hosts: bool = False,
    progress: bool | Progress = False,
) -> list[RecoveredRun]:
    """Seal what dead writers left in their journals; live writers are not touched.

    The tables agree again afterwards if a maintenance operation was killed between its commits. The next
    writer on the store does the same by itself. A journal of a host whose locks do not reach this one is left
    alone, and a warning names it.

    Args:
        path: the store's folder or URL.
        storage_options: how to reach an object store.
        journals: the folder with the journals of another store with the same spaces, such as one that was
            deleted or replaced while a writer lived; None for the store's own.
        other_hosts: recover also what was left on such hosts. No writer and no maintenance may run there: the
            run of a live writer ends with an error, and what it records afterwards is lost.
        progress: True for a bar on the terminal, or a function called with the journals done and all of them.

    Raises:
        StoreNotFoundError, FormatVersionError, CorruptStoreError: as for `open`.
        StoreAccessError, ConcurrentCommitError: nothing is lost; call again.
    """
    from .store.maintenance.recovery import recover as recover_store

    other_hosts = flag("other_hosts", other_hosts)
    layout = Layout.at(path, storage_options)
    manifest = read_manifest(layout)
    layout = layout.of_store(manifest.store_id)
    if journals is not None:
        layout = replace(layout, journals=user_path(journals).absolute(), former_journals=None)
    store = StoreHandle(layout, manifest)
    with progress_meter(progress, "Recovering", "journals") as report:
        return recover_store(store, other_hosts=other_hosts, progress=report)
