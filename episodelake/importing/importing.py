"""`import_dataset`: import datasets of other libraries as episodes, atomically."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import gymnasium
import polars as pl
import pyarrow as pa
from gymnasium.envs.registration import EnvSpec

from .. import EpisodeStore, EpisodeView, Video
from ..errors import DatasetError, InvalidArgumentError, SpaceMismatchError
from ..opening import store_at
from ..plugin import (
    DatasetFacts,
    ForeignDataset,
    ImportOptions,
    Layout,
    Losses,
    collected,
    flag,
    one_of,
    progress_meter,
    reading,
    space_to_json,
)
from ..plugin.files import check_free, exists, is_file, real_path, refuse_unused
from ..store.common.arguments import naming_arguments
from ..store.spaces.coerce import Cast
from ..types import Progress
from ..writers.importing.boundary import Files, bounded, guarded, located
from ..writers.importing.formats import (
    SPACES,
    LastObservation,
    LastStep,
    chosen_format,
    installed_dataset,
)
from .importer import OnChanged, OnError, guarded_part, read_part, source_identity, write_loaded
from .staging import Target, empty_store, import_staged

_PREVIEWED_ROWS = 5


@dataclass(frozen=True)
class ImportReport:
    """The result of an import, or of a dry run.

    Attributes:
        source, format, reason: what was imported, its format, and how that was recognised.
        store: the path or URL of the store; it does not exist after a `dry_run` into a new one.
        episodes, steps: what was added, in episodes and transitions, with what interrupted calls had read;
            0 after a `dry_run`, as are the counts below.
        present: episodes that the store had already, with the same content.
        replaced, kept: for `on_changed="replace"` and `"keep"`, episodes that the store had with other
            content; they do not count as added.
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
    replaced: int = 0
    kept: int = 0
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
        if self.replaced:
            lines.append(f"{self.replaced:,} episodes with other content were replaced")
        if self.kept:
            lines.append(f"{self.kept:,} episodes with other content were kept as they were")
        lines += [f"skipped: {key}: {why}" for key, why in self.skipped]
        lines += [f"lost: {what}: {count:,}" for what, count in self.lost.items()]
        return "\n".join(lines)


@naming_arguments()
def import_dataset(
    source: Any,
    into: EpisodeStore | str | PathLike[str],
    *,
    format: str | None = None,
    mapping: Any = None,
    dry_run: bool = False,
    on_error: OnError = "raise",
    on_changed: OnChanged = "error",
    name: str | None = None,
    env: gymnasium.Env | EnvSpec | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    last_observation: LastObservation = "missing",
    last_step: LastStep = "auto",
    observation_space: gymnasium.Space | None = None,
    action_space: gymnasium.Space | None = None,
    encodings: Mapping[str, Video] | None = None,
    cast: Cast = "no",
    trust: bool = False,
    max_bytes: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: bool | Progress = False,
) -> ImportReport:
    """Bring a dataset of another library into a store, in one commit.

    Every episode has a source key and a digest of its content, so importing a dataset again adds only what is
    new in it, and reports what has changed. Until all its episodes are read, they are in a store beside the
    target, `.NAME.importing-DIGEST`; after an interrupt or an error the same call skips those that it
    contains. Do not import the same dataset twice at a time.

    Args:
        source: a file, a folder, or an object of the library; `formats()` lists what is known. The name of an
            installed dataset of Minari, such as "D4RL/pen/human-v2", stands for its folder. Of tables also
            a list of files, a pattern such as `"logs/*.csv"` (a path that exists is none), a dict of arrays,
            and a list of dicts.
        into: an open store or a path; a path without a store is created with the spaces of the source.
        format: the name of the format; None to recognise it. "parquet", "csv", "arrow", "delta" and
            "huggingface" stand for "table".
        mapping: for formats that take one: for tables, a `ColumnMapping` or a dict of its arguments; for
            RLlib, its column names to those of the source; for LeRobot, features by the roles `observation`,
            `action`, `reward`, `terminated` and `truncated`; for TorchRL, the keys of observations.
        dry_run: write nothing; report the format, spaces, mapping, first rows, and the losses of the first
            episode.
        on_changed: for episodes that the store has from this source with other content: "error", "keep" those
            of the store, or "replace" them in the same commit.
        name: the dataset in the source keys, in place of the file's name and place. With it the episodes of a
            file that was moved, copied or converted, or of a new object, are known from the last import.
        env: where the episodes come from: an environment, its spec, or its id, which need not be registered
            here; None for what the source states. It is kept with the run of new episodes, for `make_env`,
            `replay`, and the column `env_ids` of a lake.
        metadata: of that run, such as {"algo": "ppo"}; they count more than the facts of the dataset, such as
            `fps`, which its run has as metadata too.
        on_error: "raise", or "skip" episodes that cannot be read or do not fit the spaces, and list them.
        last_observation: for sources that lack the observation after the last action: state that it is
            "missing", which keeps all transitions; "repeat" the last observation; or "drop" the last
            transition, with its reward and flags. The report counts the episodes.
        last_step: for RLDS: whether the last step of an episode is an "observation" alone or a "transition";
            "auto" looks at its action.
        observation_space, action_space: of a new store, in place of those that are stated or inferred.
            Minari's datasets and Stable-Baselines3's sources always state theirs.
        encodings: of a new store, as for `create`; None for those of the source: videos of LeRobot stay
            video. {} stores raw frames. Video that can be copied is, whatever its codec.
        cast: as for `EpisodeStore.writer`: which dtypes are cast to those of the spaces.
        trust: read what can only be read by running code of the source, such as pickled columns, and files
            outside of the source that it links to.
        max_bytes: the most bytes in memory of an episode, or of an array that has to be there whole; None for
            256 MiB, or 200 times the bytes of the source where that is more. 8 MiB are always read; objects
            have no limit.
        storage_options: how to reach the object store `into`.
        progress: True for a bar on the terminal, or a function called with the episodes done and all of
            them.

    Raises:
        DatasetError: the source has no known format, is damaged, leads outside itself or needs more memory
            than `max_bytes`; the store is unchanged.
        SpaceMismatchError: a value does not fit the spaces, or rewards have another shape; the store is
            unchanged.
        InvalidArgumentError: an argument is not valid, the format has no use for it, the store has several
            agents, the source is a store, or one of them lies in the other.
        StoreExistsError: there is something else than a store at `into`.
        MissingPackageError: the format needs a package that is not installed.
    """
    dry_run = flag("dry_run", dry_run)
    trust = flag("trust", trust)
    one_of("on_error", on_error, get_args(OnError))
    one_of("on_changed", on_changed, get_args(OnChanged))
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidArgumentError(f"name={name!r}; expected text that names the dataset.")
    shown, given = _name(source), source
    with guarded(given):
        source = located(given)
        if isinstance(given, str) and isinstance(source, Path) and not exists(source):
            source = installed_dataset(given) or source
    if isinstance(source, Files):
        shown = str(source)
    own = DatasetFacts.KEYS
    if not isinstance(metadata, Mapping | None) or {*own} & {*(metadata or {})}:
        raise InvalidArgumentError(
            f"metadata={metadata!r:.300}; expected a mapping without the keys {' and '.join(own)}, which the "
            "import sets."
        )
    options = ImportOptions(mapping, observation_space, action_space, last_observation, last_step, trust)
    with guarded(shown), bounded(source, trust=trust, max_bytes=max_bytes), _named(source, shown):
        _check_source(source, into)
        refuse_unused(storage_options, None if isinstance(into, EpisodeStore) else into)
        where = into.url if isinstance(into, EpisodeStore) else into
        store = into if isinstance(into, EpisodeStore) else store_at(into, storage_options)
        target = Target(
            where,
            store,
            storage_options,
            on_error,
            on_changed,
            cast,
            progress,
            env,
            metadata or {},
            encodings=encodings,
        )
        return _imported(source, shown, name, target, options, format, dry_run=dry_run)


def import_part(rows: pa.Table, into: Path, name: str, options: ImportOptions) -> ImportReport:
    """Import a table into a new store that only its caller knows, so an error may leave a part of it.

    Args:
        rows: the table.
        into: where nothing is.
        name: as for `import_dataset`.
        options: of the import.

    Raises:
        DatasetError, SpaceMismatchError, InvalidArgumentError: see `import_dataset`.
    """
    target = Target(into, None, None, "raise", "error", "no", False, direct=True)
    with bounded(rows, trust=False, max_bytes=None):
        return _imported(rows, "the dataset", name, target, options, "table", dry_run=False)


@contextmanager
def _named(source: Any, shown: str) -> Iterator[None]:
    """Add the name of the source to errors of its content that do not have it."""
    try:
        yield
    except (DatasetError, SpaceMismatchError) as error:
        name = source.name if isinstance(source, Path) else shown
        if not any(name in each for each in (str(error), *getattr(error, "__notes__", ()))):
            error.add_note(f"The source is {shown}.")
        raise


def _imported(
    source: Any,
    shown: str,
    key_name: str | None,
    target: Target,
    options: ImportOptions,
    format: str | None,
    *,
    dry_run: bool,
) -> ImportReport:
    chosen, reason = chosen_format(source, format, mapped=options.mapping is not None)
    options.check_taken(chosen, source)
    if target.store is None:
        check_free(Layout.at(target.into, target.storage_options), copied=True)
    else:
        _check_spaces(target.store, options)
        _check_same_encodings(target.store, target.encodings)
    with reading(shown):
        opened = chosen.open(source, options)
    opened.source = shown
    with closing(opened) as dataset, _spaces_of(target.store, dataset):
        if target.store is None and target.encodings is not None:
            dataset.encodings = _checked_encodings(target.encodings)
        facts = {
            "source": shown,
            "format": chosen.name,
            "reason": reason,
            "store": str(target.into),
            "observation_space": dataset.observation_space,
            "action_space": dataset.action_space,
        }
        dataset.identity = source_identity(dataset, chosen.name, source, key_name)
        with progress_meter(target.progress, "Importing", "episodes") as meter:
            if dry_run:
                counts = {"preview": _preview(dataset, target.cast), "dry_run": True}
            else:
                counts = import_staged(dataset, replace(target, progress=meter))
        return ImportReport(**facts, mapping=dataset.mapping, lost=dataset.losses, **counts)


def _check_source(source: Any, into: EpisodeStore | str | PathLike[str]) -> None:
    """Refuse stores as sources, and sources inside or around the target."""
    path = real_path(source) if isinstance(source, Path) else None
    if isinstance(source, EpisodeView) or (path is not None and is_file(path / Layout.MANIFEST)):
        raise InvalidArgumentError(
            f"{_name(source)} is a store already, no dataset of another library. Bring its episodes into "
            "another store with el.merge([...], into)."
        )
    target = (into.handle.layout if isinstance(into, EpisodeStore) else Layout.at(into)).root.local
    if target is None or path is None:
        return
    target = real_path(target)
    if path == target or path in target.parents or target in path.parents:
        raise InvalidArgumentError(
            f"{target} contains the source {source}, or is inside it. Choose a store beside the source."
        )


def _check_spaces(target: EpisodeStore, options: ImportOptions) -> None:
    """Refuse spaces that were given for a store that has others.

    Raises:
        InvalidArgumentError: there are such.
    """
    for name in SPACES:
        given, own = getattr(options, name), getattr(target, name, None)
        if given is not None and own is not None and not _same(given, own):
            raise InvalidArgumentError(
                f"{name}={given!s:.200} is for a new store; {target.url} has {own!s:.200}. Leave it out, or "
                "import into another store."
            )


def _check_same_encodings(target: EpisodeStore, encodings: Mapping[str, Video] | None) -> None:
    """Refuse encodings that were given for a store that has others.

    Raises:
        InvalidArgumentError: it has others.
    """
    own = target.handle.manifest.encodings
    if encodings is not None and encodings != own:
        raise InvalidArgumentError(
            f"encodings={encodings!r:.300} is for a new store; {target.url} has {dict(own)!r:.300}. Leave it "
            "out, or import into another store."
        )


def _checked_encodings(encodings: Any) -> Mapping[str, Video]:
    """Return the encodings of a new store, whose creation checks the columns.

    Raises:
        InvalidArgumentError: they are no mapping to encodings.
    """
    if not isinstance(encodings, Mapping):
        raise InvalidArgumentError(
            f"encodings={encodings!r:.200}: expected a mapping from columns to episodelake.Video."
        )
    for column, encoding in encodings.items():
        if not isinstance(encoding, Video):
            kind = type(encoding).__name__
            raise InvalidArgumentError(f"encodings[{column!r}] is {kind}; expected episodelake.Video.")
    return encodings


def _same(space: gymnasium.Space, other: gymnasium.Space) -> bool:
    return bool(space == other) or space_to_json(space) == space_to_json(other)


def _check_target(target: EpisodeStore, dataset: ForeignDataset) -> None:
    """Refuse a store that cannot hold the episodes, before any is read."""
    schema = target.handle.schema
    if schema.groups:
        raise InvalidArgumentError(
            f"{target.url} is a store of several agents, and the episodes of {dataset.source} have one. "
            "Import them into a store of their own."
        )
    own = target.handle.manifest.rollouts
    if (own is None) != (dataset.rollouts is None):
        kinds = "no rollouts" if own is None else "rollouts", "no rollouts" if own is not None else "rollouts"
        raise SpaceMismatchError(
            f"{target.url} is a store of {kinds[0]}, and the episodes of {dataset.source} are {kinds[1]}. "
            "Import them into a store of their own."
        )
    if schema.reward_shape != dataset.reward_shape:
        raise SpaceMismatchError(
            f"The rewards of {dataset.source} have the shape {dataset.reward_shape}; {target.url} has "
            f"{schema.reward_shape}. Import them into a store of their own."
        )


@contextmanager
def _spaces_of(target: EpisodeStore | None, dataset: ForeignDataset) -> Iterator[None]:
    """Give a source the spaces of the store it goes to; where a value does not fit, name those of both."""
    if target is None:
        yield
        return
    _check_target(target, dataset)
    own = dataset.observation_space, dataset.action_space
    wanted = target.observation_space, target.action_space
    dataset.observation_space, dataset.action_space = wanted
    dataset.encodings = target.handle.manifest.encodings
    dataset.rollouts = target.handle.manifest.rollouts
    try:
        yield
    except SpaceMismatchError as error:
        if [_kind(each) for each in own] == [_kind(each) for each in wanted]:
            raise
        raise SpaceMismatchError(
            f"{error} The store {target.url} has the spaces {wanted[0]!s:.300} and {wanted[1]!s:.300}, the "
            f"source {own[0]!s:.300} and {own[1]!s:.300}: import another kind of data into another store."
        ) from error


def _kind(space: gymnasium.Space) -> tuple[Any, ...]:
    return type(space), space.shape, space.dtype


def _preview(dataset: ForeignDataset, cast: Cast) -> pl.DataFrame | None:
    """Return the first rows of the first episode, as `steps` would show them."""
    for part in dataset.guarded_parts():
        with guarded_part(dataset, part):
            loaded, digests = read_part(dataset, part)
        if loaded is None:
            continue
        with TemporaryDirectory(prefix="episodelake-") as folder:
            store = empty_store(dataset, Path(folder, "preview"))
            with store.writer(cast=cast, durability="none") as writer:
                write_loaded(loaded, writer, part.keys, digests, [True] * len(part.keys))
            return collected(store.refresh().steps.head(_PREVIEWED_ROWS).drop("episode_id"))
    return None


def _name(source: Any) -> str:
    return str(source) if isinstance(source, str | PathLike) else type(source).__name__
