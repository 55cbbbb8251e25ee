"""Writes the episodes of a foreign dataset through an `EpisodeWriter`, each of them once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.common.progress import Progress
from ...store.dynamic.column_groups import METADATA
from ...store.errors import DatasetError, EpisodelakeError
from ...store.names import EPISODE
from ..episodes.arrow_episodes import batches_of
from ..episodes.episode_writer import EpisodeWriter
from ..episodes.source_keys import SOURCE_DIGEST, SOURCE_KEY
from .boundary import Files
from .digests import content_digest, table_digests
from .formats import ForeignDataset, ForeignEpisode, ForeignTable, Part, guard_limits

OnError = Literal["raise", "skip"]
OnChanged = Literal["error", "keep", "replace"]
#: How much waits, and what a step takes beside its observation.
_BATCH_BYTES, _STEP_BYTES = 4 << 20, 128


class SourceChangedError(Exception):
    """The source is not what an interrupted import had read."""


@dataclass
class Imported:
    """Counts of one import.

    Attributes:
        present: the source keys of episodes that the store had already.
        skipped: episodes that could not be read, and why.
        order: the source keys in the order of the source; empty if no interrupted import goes on.
    """

    present: set[str] = field(default_factory=set)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


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
            with suppress(DatasetError):
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
    known: Mapping[str, str | None],
    staged: Mapping[str, str | None],
    *,
    on_error: OnError,
    progress: Progress,
    new: bool = True,
) -> Imported:
    """Write all episodes that the store does not have with the same content.

    Args:
        dataset: with its identity.
        known: the digests of the store's episodes, by source key.
        staged: those of the episodes that an interrupted import wrote.
        on_error: "raise", or "skip" the parts that cannot be read or do not fit the spaces.
        progress: called with the episodes done and all episodes, where their number is known.
        new: also write episodes whose key the store does not have.

    Raises:
        DatasetError, SpaceMismatchError: an episode cannot be read or written; those before it are written.
        SourceChangedError: a staged episode has other content by now.
    """
    run = _Import(dataset, writer, known, staged, on_error, new)
    seen = 0
    for part in run.parts():
        keys = source_keys(dataset, part)
        if staged:
            run.done.order += keys
        run.add(part, keys)
        seen += len(keys)
        progress(seen, dataset.count or seen)
    run.write()
    if run.unmet:
        raise SourceChangedError
    return run.done


@dataclass
class _Import:
    """Writes parts; episodes of arrays wait for more, since many short ones are written faster together.

    Attributes:
        dataset, writer, known, staged, on_error, new: as for `import_episodes`.
        done: the counts.
        unmet: staged episodes that the source has not shown yet.
    """

    dataset: ForeignDataset
    writer: EpisodeWriter
    known: Mapping[str, str | None]
    staged: Mapping[str, str | None]
    on_error: OnError
    new: bool
    done: Imported = field(default_factory=Imported)
    # With the losses of each.
    _waiting: list[tuple[Part, Keyed, ForeignEpisode, Mapping[str, int]]] = field(default_factory=list)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self.unmet = set(self.staged)

    def parts(self) -> Iterator[Part]:
        """Yield the parts of the dataset; where the next cannot be found, write the episodes before it."""
        try:
            yield from self.dataset.guarded_parts()
        except EpisodelakeError:
            self.write()
            raise

    def add(self, part: Part, keys: Sequence[str]) -> None:
        """Take the new episodes of a part; leave out those that cannot be written, unless they raise."""
        place = f"{part.name} of {self.dataset.source}"
        try:
            with self.dataset.losses.attempt() as before:
                loaded, digests = read_part(self.dataset, part)
        except EpisodelakeError as error:
            error.add_note(f"{place}.")
            self.write()
            self._failed(part, keys, error)
            return
        lost = self.dataset.losses.since(before)
        if loaded is None:
            return
        fresh = [self._is_fresh(key, digest) for key, digest in zip(keys, digests, strict=True)]
        if self.done.present.issuperset(keys):
            self._take_back(lost)
        if not any(fresh):
            return
        if isinstance(loaded, ForeignEpisode):
            self._waiting.append((part, Keyed(keys, digests, fresh), loaded, lost))
            self._bytes += _nbytes((loaded.observations, loaded.actions)) + len(loaded.rewards) * _STEP_BYTES
            self._bytes += sum(map(_row_bytes, (loaded.infos, loaded.policy, loaded.extra)))
            if self._bytes >= _BATCH_BYTES:
                self.write()
            return
        self.write()
        self._write_loaded(part, loaded, Keyed(keys, digests, fresh), lost)

    def _is_fresh(self, key: str, digest: str | None) -> bool:
        """Return whether to write an episode."""
        if key in self.staged:
            if digest is None or self.staged[key] != digest:
                raise SourceChangedError
            self.unmet.discard(key)
            return False
        if digest is not None and self.known.get(key) == digest:
            self.done.present.add(key)
            return False
        if not self.new and key not in self.known:
            return False
        # It is there where a part is read again after an error.
        return not self.writer.has_source_key(key)

    def _take_back(self, lost: Mapping[str, int]) -> None:
        for what, count in lost.items():
            self.dataset.losses.take_back(what, count)

    def write(self) -> None:
        """Write the episodes that wait."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len(waiting) > 1:
            given = [_arguments(episode, keyed) for _, keyed, episode, _ in waiting]
            try:
                with guard_limits(self.dataset.source):
                    self.writer._write_many(given)
                    return
            except EpisodelakeError as error:
                # One of them does not fit; the loop finds it.
                if not isinstance(error, ValueError):
                    raise
        for part, keyed, episode, lost in waiting:
            self._write_loaded(part, episode, keyed, lost)

    def _write_loaded(
        self,
        part: Part,
        loaded: ForeignEpisode | ForeignTable,
        keyed: Keyed,
        lost: Mapping[str, int],
    ) -> None:
        try:
            with guard_limits(f"{part.name} of {self.dataset.source}"):
                write_loaded(loaded, part, self.writer, keyed)
        except EpisodelakeError as error:
            self._take_back(lost)
            self._failed(part, keyed.keys, error)

    def _failed(self, part: Part, keys: Sequence[str], error: EpisodelakeError) -> None:
        """Raise the error, or leave out the episodes of a part that cannot be read or written."""
        if self.on_error == "raise" or not isinstance(error, ValueError):
            raise error
        if part.singles is None or len(keys) == 1:
            self.done.skipped += [(key, str(error)) for key in part.keys]
            return
        # Some of them may be written already; their losses are not counted yet.
        for single, key in zip(part.singles(), keys, strict=True):
            self.add(single, [key])


def _nbytes(values: Any) -> int:
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, tuple):
        return sum(map(_nbytes, values))
    # A list cannot be joined with others.
    return values.nbytes if isinstance(values, np.ndarray) else _BATCH_BYTES


def _row_bytes(values: Any) -> int:
    """Return the size of the arrays in the infos, policy values or extras of an episode."""
    if isinstance(values, Mapping):
        return sum(map(_row_bytes, values.values()))
    if isinstance(values, list | tuple):
        # Rows are alike, but for empty infos of resets.
        some = (values[0], values[len(values) // 2], values[-1]) if values else ()
        return len(values) * max(map(_row_bytes, some), default=0)
    return values.nbytes if isinstance(values, np.ndarray) else 0


@dataclass(frozen=True)
class Keyed:
    """The episodes of a part.

    Attributes:
        keys: their source keys.
        digests: of their content.
        fresh: which of them to write.
    """

    keys: Sequence[str]
    digests: Sequence[str | None]
    fresh: Sequence[bool]


def write_loaded(
    loaded: ForeignEpisode | ForeignTable, part: Part, writer: EpisodeWriter, keyed: Keyed
) -> None:
    """Write episodes of a part.

    Raises:
        DatasetError, SpaceMismatchError: as `import_episodes`.
    """
    if not any(keyed.fresh):
        return
    if isinstance(loaded, ForeignTable):
        steps, episodes = _chosen(loaded, keyed)
        writer.write_episodes(steps, episodes=episodes)
        return
    try:
        writer.write_episode(**_arguments(loaded, keyed))
    except EpisodelakeError as error:
        error.add_note(f"{part.name} of the source.")
        raise


def _arguments(episode: ForeignEpisode, keyed: Keyed) -> dict[str, Any]:
    arguments = {each.name: getattr(episode, each.name) for each in fields(episode)}
    own = {SOURCE_KEY: keyed.keys[0], SOURCE_DIGEST: keyed.digests[0]}
    # A source that was exported from a store has the key of its own source.
    given = {key: value for key, value in episode.metadata.items() if key not in own}
    arguments["metadata"] = given | {key: value for key, value in own.items() if value is not None}
    return arguments | {"source_key": keyed.keys[0]}


def read_part(
    dataset: ForeignDataset, part: Part
) -> tuple[ForeignEpisode | ForeignTable | None, list[str | None]]:
    """Return the episodes of a part, and the digest of each; None if no transition is left.

    Raises:
        DatasetError: they cannot be read.
    """
    loaded = dataset.load(part)
    if loaded is None:
        return None, []
    with guard_limits(f"{part.name} of {dataset.source}"):
        if isinstance(loaded, ForeignEpisode):
            return loaded, [content_digest(loaded)]
        steps, episodes = _tables(part, loaded)
        return ForeignTable(steps, episodes), table_digests(steps, episodes)


def _tables(part: Part, table: ForeignTable) -> tuple[pa.Table, pa.Table]:
    """Return the rows of steps, and of episodes, without the facts of the source's own source."""
    steps: pa.Table = table.steps
    if table.episodes is None:
        episodes = pa.table({EPISODE: steps.column(EPISODE).unique()})
    else:
        episodes = pa.Table.from_batches(batches_of(table.episodes))
    if episodes.num_rows != len(part.keys):
        raise DatasetError(
            f"{part.keys[0]} and the episodes after it: expected {len(part.keys)}, got {episodes.num_rows}."
        )
    own = [METADATA.column((name,)) for name in (SOURCE_KEY, SOURCE_DIGEST)]
    return steps, episodes.drop_columns([name for name in own if name in episodes.column_names])


def _chosen(table: ForeignTable, keyed: Keyed) -> tuple[pa.Table, pa.Table]:
    """Return the rows of those episodes that are to be written, with their source keys and digests."""
    steps, episodes = table.steps, table.episodes
    episodes = episodes.append_column(SOURCE_KEY, pa.array(keyed.keys, pa.string()))
    digests = pa.array(keyed.digests, pa.string())
    episodes = episodes.append_column(METADATA.column((SOURCE_DIGEST,)), digests)
    if all(keyed.fresh):
        return steps, episodes
    episodes = episodes.filter(pa.array(keyed.fresh))
    wanted = pc.call_function(
        "is_in", [steps.column(EPISODE)], pc.SetLookupOptions(episodes.column(EPISODE).combine_chunks())
    )
    return steps.filter(wanted), episodes
