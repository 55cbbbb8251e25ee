"""`create`, `open`, `merge` and `recover`: from a path to an `EpisodeStore`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import gymnasium

from .episode_store import EpisodeStore, EpisodeView, created, new_store
from .store.agents import group_agents
from .store.card import CardEntries
from .store.common.arguments import flag, integer, naming_arguments
from .store.common.progress import Progress, progress_meter
from .store.creation import check_free, created_atomically, make_tables
from .store.delta.state import listed_log
from .store.errors import (
    EpisodelakeError,
    InvalidArgumentError,
    StoreExistsError,
    StoreNotFoundError,
    VersionNotFoundError,
)
from .store.files import afterwards, is_folder, options_of, refuse_unused, user_path
from .store.frames import Video
from .store.layout import EPISODES, Layout
from .store.manifest import (
    Manifest,
    check_same_encodings,
    check_same_spaces,
    read_manifest,
    with_encodings,
    write_card,
    write_manifest,
)
from .store.parquet.files import over_files
from .store.schema import StoreHandle
from .store.snapshot import Snapshot
from .store.tags import tagged_version

if TYPE_CHECKING:
    from .store.recovery.recovery import RecoveredRun
    from .store.rewrite.merging import MergeReport
    from .writers.recorders.store_spaces import AgentSpaces


@naming_arguments()
def create(
    path: str | PathLike[str],
    env: Any = None,
    *,
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    reward_shape: tuple[int, ...] | None = None,
    encodings: Mapping[str, Video] | None = None,
    agents: AgentSpaces | None = None,
    card: Mapping[str, Any] | None = None,
    exist_ok: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> EpisodeStore:
    """Create an empty store and open it.

    Args:
        path: a folder that does not exist yet, or is empty; or a URL of an object store: `s3://`, `gs://`,
            `az://`; or `memory://name`, which ends with the process.
        env: take the spaces from this environment; if it is one of PettingZoo, those of its possible agents.
            `Rollouts(...)` for a store of rollouts of language agents, see docs/rollouts.md.
            An id, a spec or a function without arguments makes one, which is closed again. Spaces of classes
            that derive from Gymnasium's are stored as those, which the card notes under `space_classes`.
        observation_space, action_space: the spaces of every episode; they override the environment's.
        reward_shape: () for scalar rewards, (k,) for k objectives; None asks the environment, as
            MO-Gymnasium's say it with `reward_space`.
        encodings: which columns of frames are stored as video, and how, by column:
            `{"observation.front": episodelake.Video("h264", crf=23, gop=16)}`. Frames are recorded as they
            are, and encoded in the background. Needs the package av; see docs/video.md.
        agents: for a multi-agent store, each agent's observation space and action space.
        card: the first dataset card; a store that is there already keeps its own.
        exist_ok: open the store that is there already, at its newest version, if it has the same spaces, and
            the same encodings where you give some. Of several processes that call this at the same time, one
            creates the store and all open it.
        storage_options: how to reach an object store: the keys that delta-rs and Polars take, such as
            `aws_region`; not kept anywhere.

    Raises:
        StoreExistsError: there is a store already, or other files.
        SpaceMismatchError: with `exist_ok`, the store that is there has other spaces or encodings; it is
            unchanged.
        UnsupportedSpaceError: a space has no columns; see `register_codec`. Nothing was created.
        InvalidArgumentError: neither an environment nor both spaces were given; spaces of one agent and of
            several were; the card is not plain JSON.
        StoreAccessError: the directory cannot be written.
    """
    from .rollouts.declaration import Rollouts
    from .writers.recorders.choice import made
    from .writers.recorders.env_checks import reward_shape as found_reward_shape
    from .writers.recorders.store_spaces import (
        base_notes,
        checked_reward_shape,
        spaces_of,
        spaces_of_agents,
    )

    rollouts: Mapping[str, Any] | None = None
    if isinstance(env, Rollouts):
        given = {"observation_space": observation_space, "action_space": action_space, "agents": agents}
        others = [
            name for name, value in {**given, "reward_shape": reward_shape}.items() if value is not None
        ]
        if others:
            raise InvalidArgumentError(f"Rollouts decides the spaces; leave out {', '.join(others)}.")
        observation_space, action_space = env.observation_space, env.action_space
        rollouts, env = env.to_json(), None
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
            manifest, parts = Manifest.new(*spaces, shape, rollouts=rollouts), {"": spaces}
        notes = base_notes(parts)
    if encodings is not None:
        manifest = with_encodings(manifest, encodings)
    noted = {**notes, **(card or {})} if notes and isinstance(card, Mapping | None) else card
    if not flag("exist_ok", exist_ok):
        return create_described(path, manifest, noted, storage_options)
    try:
        return create_described(path, manifest, noted, storage_options)
    except StoreExistsError:
        present = store_at(path, storage_options)
        if present is None:  # other files are there
            raise
        check_same_spaces(present.handle.manifest, manifest, at=path, source="that was given")
        if encodings is not None:
            check_same_encodings(present.handle.manifest, manifest, at=path)
        return present


def create_described(
    path: str | PathLike[str],
    manifest: Manifest,
    card: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> EpisodeStore:
    """Create the store that a manifest describes."""
    data = CardEntries.to_bytes({} if card is None else card)
    _ = manifest.content  # a space without a description is refused before anything is made
    store = new_store(path, manifest, storage_options)
    check_free(store.layout)
    make_tables(store)
    # Before the store appears: nothing fails afterwards.
    snapshot = Snapshot(store.layout, manifest)
    write_manifest(store.layout, manifest)
    if card:
        # Only now: of several processes that create the store, this one has.
        with afterwards(f"The store {path} is created", "It has no card yet: set `store.card`."):
            write_card(store.layout, data)
    return created(store, snapshot)


@naming_arguments("open")
def open_store(
    path: str | PathLike[str],
    version: int | str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    check_pages: bool = False,
) -> EpisodeStore:
    """Open a store at its newest version, or at `version`: a number or a tag.

    Args:
        path: its folder or URL; or `hf://organisation/name`, with `@tag` after it, for a version on the
            Hugging Face Hub, which is fetched into the cache of this machine and verified.
        version: a number or a tag; None for the newest.
        storage_options: how to reach an object store.
        check_pages: read every file whole and compare its checksums before DuckDB or Polars gets it, also for
            connections of `connect` and on object stores. By default DuckDB and Polars read pages
            unchecked; episodes, loaders and read-only queries compare checksums as they read.

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
    parts: list[Callable[[Layout], Any]] = [read_manifest, _remote_log]
    # An object store answers both in the time of one.
    manifest, log = over_files(lambda read: read(layout), parts, layout.root)
    if isinstance(version, str):
        version = tagged_version(layout, version)
    try:
        wanted = None if version is None else integer(version)
    except TypeError as error:
        raise VersionNotFoundError(f"There is no version {version!r}: expected a whole number.") from error
    snapshot = Snapshot(layout.of_store(manifest.store_id), manifest, wanted, log=log)
    if wanted is not None:
        snapshot.check_retained()
    return EpisodeStore(snapshot.layout, manifest, snapshot)


def _remote_log(layout: Layout) -> list[str] | None:
    """Return the files in the log of episodes; None on this machine, and if it cannot be listed."""
    with contextlib.suppress(EpisodelakeError):
        return listed_log(layout.table(EPISODES)) if layout.root.local is None else None


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
        into: an open store or its path; a path without a store is created with the first source's spaces,
            and the encodings of all sources.
        link: on the same file system, share the files with the sources, which takes no room.
        storage_options: how to reach those that are given as paths or URLs.
        progress: True for a bar on the terminal, or a function called with the segments done and all
            segments.

    Raises:
        SpaceMismatchError: a source has other spaces, or encoded frames in columns that `into` keeps raw;
            nothing was changed.
        InvalidArgumentError: there is no source; an annotation has another type in a source; a new store
            would lie in a source; PyAV cannot encode a column of raw frames; nothing was changed.
        MissingPackageError: a column of raw frames is to be encoded, and PyAV is not installed; nothing was
            changed.
        StoreExistsError: a saved environment or named artifact has other content in a source; nothing was
            changed.
        StoreNotFoundError, CorruptStoreError, ConcurrentCommitError: no episode was brought; a new store was
            not made.
        StoreAccessError: the same.
    """
    from .store.rewrite.merging import merge_stores

    link = flag("link", link)
    if isinstance(sources, str | PathLike | EpisodeView):
        sources = [sources]
    paths = [each for each in (*sources, into) if not isinstance(each, EpisodeView)]
    refuse_unused(storage_options, *paths)
    views = [
        source
        if isinstance(source, EpisodeView)
        else open_store(source, storage_options=options_of(storage_options, source))
        for source in sources
    ]
    if not views:
        raise InvalidArgumentError("There is nothing to merge: sources is empty.")
    selections = [view.selection() for view in views]
    with progress_meter(progress, "Merging", "segments") as meter:
        if isinstance(into, EpisodeStore):
            report = merge_stores(into.handle, selections, link=link, progress=meter)
            into._show_newest()
            return report
        present = store_at(into, options_of(storage_options, into))
        if present is not None:
            return merge_stores(present.handle, selections, link=link, progress=meter)
        snapshots = [selection.snapshot for selection in selections]
        # Each frame may stay as it is: columns that a source encodes are encoded in the new store.
        encodings: dict[str, Video] = {}
        for snapshot in reversed(snapshots):
            encodings |= snapshot.manifest.encodings
        manifest = replace(snapshots[0].manifest.renewed(), encodings=encodings)
        first = snapshots[0].layout.root
        for snapshot in snapshots:
            check_same_spaces(manifest, snapshot.manifest, at=first, source=f"of {snapshot.layout.root}")
        target = new_store(into, manifest, options_of(storage_options, into))
        check_free(target.layout, copied=True)
        within = created_atomically(target, None)
        return merge_stores(target, selections, link=link, progress=meter, within=within)


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
    """Seal the journals of dead writers; live writers are not touched.

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
        InvalidArgumentError: the folder `journals` does not exist.
        StoreAccessError, ConcurrentCommitError: nothing is lost; call again.
    """
    from .store.recovery.recovery import recover as recover_store

    other_hosts = flag("other_hosts", other_hosts)
    layout = Layout.at(path, storage_options)
    manifest = read_manifest(layout)
    layout = layout.of_store(manifest.store_id)
    if journals is not None:
        folder = user_path(journals).absolute()
        if not is_folder(folder):
            raise InvalidArgumentError(f"journals={str(journals)!r}: there is no such folder.")
        layout = replace(layout, journals=folder, former_journals=None)
    store = StoreHandle(layout, manifest)
    with progress_meter(progress, "Recovering", "journals") as report:
        return recover_store(store, other_hosts=other_hosts, progress=report)
