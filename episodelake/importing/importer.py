"""Writes the episodes of a foreign dataset through an `EpisodeWriter`, each of them once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from .. import EpisodeWriter
from ..errors import DatasetError, EpisodelakeError
from ..plugin import ForeignDataset, ForeignEpisode, ForeignTable, Part
from ..plugin.columns import EPISODE, METADATA
from ..store.names import SOURCE_DIGEST, SOURCE_KEY
from ..types import Progress
from ..writers.episodes.source_keys import Source
from ..writers.importing.boundary import Files
from ..writers.importing.formats import guard_limits
from .digests import content_digest, table_digests

OnError = Literal["raise", "skip"]
OnChanged = Literal["error", "keep", "replace"]


class SourceChangedError(Exception):
    """The source has changed since the interrupted import."""


@dataclass
class Imported:
    """The episodes of one import.

    Attributes:
        present: the source keys of those that the store has with the same digest.
        changed: the ids of those that the store has with another digest, by source key.
        staged: the source keys of those to bring in.
        steps: their transitions.
        outdated: whether an interrupted import has staged others, which the source does not have.
        skipped: episodes that could not be read, and why.
    """

    present: set[str] = field(default_factory=set)
    changed: dict[str, str] = field(default_factory=dict)
    staged: set[str] = field(default_factory=set)
    steps: int = 0
    outdated: bool = False
    skipped: list[tuple[str, str]] = field(default_factory=list)


def source_keys(dataset: ForeignDataset, part: Part) -> list[str]:
    """Return the source keys of the episodes of a part."""
    given = part.source_keys or [None] * len(part.keys)
    return [own or f"{dataset.identity}/{key}" for own, key in zip(given, part.keys, strict=True)]


def source_identity(dataset: ForeignDataset, format: str, source: Any, name: str | None) -> str:
    """Return what the source keys of a dataset begin with: the same at every import of this source.

    It is the format with the name that the caller gives; or else with the name and place of a file or folder,
    and the pattern or names of several files; or else, for an object, with its class and a digest of its
    first episode.
    """
    if dataset.identity is not None and name is None:
        return dataset.identity
    if name is not None:
        return f"{format}:{quote(name, ' ')}"
    if isinstance(source, Files):
        shown, place = source.base.name, f"{os.path.realpath(source.base)}\0{source.identity}"
    elif isinstance(source, str | Path):
        shown, place = Path(source).name, os.path.realpath(source)
    else:
        shown, place = type(source).__name__, _first_digest(dataset)
    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return f"{format}:{quote(shown, ' ')}@{digest}"


def _first_digest(dataset: ForeignDataset) -> str:
    """Return the digest of the first episode that can be read."""
    before = dict(dataset.losses)
    try:
        for part in dataset.guarded_parts():
            with suppress(DatasetError), guarded_part(dataset, part):
                loaded, digests = read_part(dataset, part)
                if loaded is not None:
                    return str(digests[0])
    except DatasetError:  # the import itself names it
        pass
    finally:
        dataset.losses.restore(before)
    return ""


def import_episodes(
    dataset: ForeignDataset,
    writer: EpisodeWriter,
    known: Mapping[str, Source],
    staged: Mapping[str, Source],
    *,
    on_error: OnError,
    on_changed: OnChanged = "error",
    progress: Progress,
) -> Imported:
    """Write all episodes that the store does not have with the same content.

    Args:
        dataset: with its identity.
        writer: skips episodes whose source key it has.
        known: the store's episodes, by source key.
        staged: the episodes that an interrupted import wrote.
        on_error: "raise", or "skip" the parts that cannot be read or do not fit the spaces.
        on_changed: "replace" also writes episodes that the store has with another digest.
        progress: called with the episodes done and all episodes, where their number is known.

    Raises:
        DatasetError, SpaceMismatchError: an episode cannot be read or written; those before it are written.
        SourceChangedError: a staged episode has other content by now.
    """
    run = _Import(dataset, writer, known, staged, on_error, on_changed)
    seen = 0
    for part in dataset.guarded_parts():
        keys = source_keys(dataset, part)
        run.add(part, keys)
        seen += len(keys)
        progress(seen, dataset.count or seen)
    run.done.outdated = not run.done.staged.issuperset(staged)
    return run.done


@dataclass
class _Import:
    """Writes parts.

    Attributes:
        dataset, writer, known, staged, on_error, on_changed: as for `import_episodes`.
        done: the episodes so far.
    """

    dataset: ForeignDataset
    writer: EpisodeWriter
    known: Mapping[str, Source]
    staged: Mapping[str, Source]
    on_error: OnError
    on_changed: OnChanged
    done: Imported = field(default_factory=Imported)

    def add(self, part: Part, keys: Sequence[str]) -> None:
        """Write the new episodes of a part; leave out those that cannot be written, unless they raise."""
        losses = self.dataset.losses
        before = dict(losses)
        try:
            with guarded_part(self.dataset, part):
                loaded, digests = read_part(self.dataset, part)
                if loaded is None:
                    return
                fresh = [self._is_fresh(key, digest) for key, digest in zip(keys, digests, strict=True)]
                if any(fresh):
                    self.done.steps += write_loaded(loaded, self.writer, keys, digests, fresh)
            self.done.staged.update(compress(keys, fresh))
        except EpisodelakeError as error:
            losses.restore(before)
            error.add_note(f"{part.name} of {self.dataset.source}.")
            self._failed(part, keys, error)
        else:
            if self.done.present.issuperset(keys):
                losses.restore(before)

    def _is_fresh(self, key: str, digest: str) -> bool:
        """Return whether to bring in an episode."""
        known = self.known.get(key)
        if known is not None and known.digest == digest:
            self.done.present.add(key)
            return False
        if known is not None:
            self.done.changed[key] = known.id
            if self.on_changed != "replace":
                return False
        if key in self.staged and self.staged[key].digest != digest:
            raise SourceChangedError
        return True

    def _failed(self, part: Part, keys: Sequence[str], error: EpisodelakeError) -> None:
        """Raise the error, or leave out the episodes of a part that cannot be read or written."""
        if self.on_error == "raise" or not isinstance(error, ValueError):
            raise error
        if part.singles is None or len(keys) == 1:
            self.done.skipped += [(key, str(error)) for key in part.keys]
            return
        for single, key in zip(part.singles(), keys, strict=True):
            self.add(single, [key])


def guarded_part(dataset: ForeignDataset, part: Part) -> AbstractContextManager[None]:
    """Guard the reading and writing of a part; see `guard_limits`."""
    return guard_limits(f"{part.name} of {dataset.source}")


def read_part(dataset: ForeignDataset, part: Part) -> tuple[ForeignEpisode | ForeignTable | None, list[str]]:
    """Return the episodes of a part and their digests.

    Returns:
        None for the episodes if no transition is left.

    Raises:
        DatasetError: they cannot be read.
    """
    loaded = dataset.load(part)
    if loaded is None:
        return None, []
    if isinstance(loaded, ForeignEpisode):
        return loaded, [content_digest(loaded)]
    steps, episodes = _tables(part, loaded)
    return ForeignTable(steps, episodes), table_digests(steps, episodes)


def write_loaded(
    loaded: ForeignEpisode | ForeignTable,
    writer: EpisodeWriter,
    keys: Sequence[str],
    digests: Sequence[str],
    fresh: Sequence[bool],
) -> int:
    """Write episodes of a part, and return how many transitions they have.

    Args:
        loaded, digests: as `read_part` returns them.
        keys: the source keys, which replace those that the source has of its own source.
        fresh: which of them to write.

    Raises:
        DatasetError, SpaceMismatchError: as `import_episodes`.
    """
    if isinstance(loaded, ForeignEpisode):
        metadata = {**loaded.metadata, SOURCE_KEY: keys[0], SOURCE_DIGEST: digests[0]}
        writer.write_episode(**{**vars(loaded), "metadata": metadata}, source_key=keys[0])
        return len(loaded.rewards)
    steps, episodes = loaded.steps, loaded.episodes
    for name, values in ((SOURCE_KEY, keys), (METADATA.column((SOURCE_DIGEST,)), digests)):
        episodes = episodes.append_column(name, pa.array(values, pa.string()))
    if not all(fresh):
        episodes = episodes.filter(pa.array(fresh))
        wanted = pc.SetLookupOptions(episodes.column(EPISODE).combine_chunks())
        steps = steps.filter(pc.call_function("is_in", [steps.column(EPISODE)], wanted))
    writer.write_episodes(steps, episodes=episodes)
    return int(steps.num_rows - episodes.num_rows)


def _tables(part: Part, table: ForeignTable) -> tuple[pa.Table, pa.Table]:
    """Return the rows of steps, and of episodes, without the facts of the source's own source."""
    steps: pa.Table = table.steps
    if table.episodes is None:
        episodes = pa.table({EPISODE: steps.column(EPISODE).unique()})
    else:
        episodes = pa.table(table.episodes)
    if episodes.num_rows != len(part.keys):
        raise DatasetError(
            f"{part.keys[0]} and the episodes after it: expected {len(part.keys)}, got {episodes.num_rows}."
        )
    own = [METADATA.column((name,)) for name in (SOURCE_KEY, SOURCE_DIGEST)]
    return steps, episodes.drop_columns([name for name in own if name in episodes.column_names])
