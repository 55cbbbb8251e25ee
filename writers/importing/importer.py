"""Writes the episodes of a foreign dataset through an `EpisodeWriter`, each of them once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.dynamic.column_groups import METADATA
from ...store.errors import DatasetError, EpisodelakeError, InvalidArgumentError
from ...store.progress import Progress
from ...store.reserved import EPISODE
from ..bulk.arrow_episodes import batches_of
from ..episode_writer import EpisodeWriter
from ..source_keys import SOURCE_KEY
from .dataset import ForeignDataset, ForeignEpisode, ForeignTable, Part, guard_source
from .ledger import LossLedger

OnError = Literal["raise", "skip"]
#: How much waits, and what a step takes beside its observation.
_BATCH_BYTES, _STEP_BYTES = 4 << 20, 128


@dataclass
class Imported:
    """Counts of one import.

    Attributes:
        present: episodes that the store had already.
        skipped: episodes that could not be read, and why.
        order: where an interrupted import goes on, the source keys in the order of the source; else empty.
    """

    present: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)


def check_on_error(on_error: Any) -> None:
    """Refuse an unknown `on_error`.

    Raises:
        InvalidArgumentError: it is neither "raise" nor "skip".
    """
    if on_error not in get_args(OnError):
        raise InvalidArgumentError(f"on_error={on_error!r} is unknown; expected 'raise' or 'skip'.")


def source_key(dataset: ForeignDataset, key: str) -> str:
    """Return the source key of an episode in a store."""
    return f"{dataset.identity}/{key}"


def import_episodes(
    dataset: ForeignDataset,
    writer: EpisodeWriter,
    present: Collection[str],
    ledger: LossLedger,
    *,
    on_error: OnError,
    progress: Progress,
) -> Imported:
    """Write all episodes that neither the writer's store nor `present` has.

    Args:
        present: source keys of episodes that are left out.
        ledger: of the writer's store.
        on_error: "raise", or "skip" the parts that cannot be read or do not fit the spaces.
        progress: called with the episodes done and all episodes, where their number is known.

    Raises:
        DatasetError, SpaceMismatchError: an episode cannot be read or written; those before it are written.
    """
    done = Imported()
    run = _Import(dataset, writer, present, ledger, on_error, done)
    seen = 0
    for part in run.parts(dataset):
        keys = [source_key(dataset, key) for key in part.keys]
        if ledger.resumes:
            done.order += keys
        found = sum(key in present for key in keys)
        done.present += found
        if found < len(keys):
            run.add(part, keys)
        seen += len(keys)
        progress(seen, dataset.count or seen)
    run.write()
    return done


class _Import:
    """Writes parts; episodes of arrays wait for more, since many short ones are written faster together."""

    def __init__(
        self,
        dataset: ForeignDataset,
        writer: EpisodeWriter,
        present: Collection[str],
        ledger: LossLedger,
        on_error: OnError,
        done: Imported,
    ) -> None:
        self._losses, self._source = dataset.losses, dataset.source
        self._writer = writer
        self._present = present
        self._ledger = ledger
        self._on_error = on_error
        self._done = done
        # With the losses of each.
        self._waiting: list[tuple[Part, str, ForeignEpisode, Mapping[str, int]]] = []
        self._bytes = 0

    def parts(self, dataset: ForeignDataset) -> Iterator[Part]:
        """Yield the parts of a dataset; where the next cannot be found, write the episodes before it."""
        try:
            yield from dataset.guarded_parts()
        except EpisodelakeError:
            self.write()
            raise

    def add(self, part: Part, keys: Sequence[str]) -> None:
        """Take the new episodes of a part; leave out those that cannot be written, unless they raise."""
        fresh = [not (key in self._present or self._writer.has_source_key(key)) for key in keys]
        known = self._ledger.find(keys)
        if known is not None and not any(fresh):
            for what, count in known.items():
                self._losses.add(what, count)
            return
        place = f"Episode {part.keys[0]} of {self._source}"
        try:
            with self._losses.attempt() as before, guard_source(place):
                loaded = part.load()
        except EpisodelakeError as error:
            error.add_note(f"{place}.")
            self.write()
            self._failed(part, keys, error)
            return
        lost = self._losses.since(before)
        self._ledger.add(keys, lost)
        if isinstance(loaded, ForeignEpisode) and any(fresh):
            self._waiting.append((part, keys[0], loaded, lost))
            self._bytes += _nbytes((loaded.observations, loaded.actions)) + len(loaded.rewards) * _STEP_BYTES
            self._bytes += sum(map(_row_bytes, (loaded.infos, loaded.policy, loaded.extra)))
            if self._bytes >= _BATCH_BYTES:
                self.write()
            return
        self.write()
        self._write_loaded(part, loaded, keys, fresh, lost)

    def write(self) -> None:
        """Write the episodes that wait."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len(waiting) > 1:
            given = [_arguments(episode) | {"source_key": key} for _, key, episode, _ in waiting]
            try:
                if self._writer._write_many(given):
                    return
            except EpisodelakeError as error:
                # One of them does not fit; the loop finds it.
                if not isinstance(error, ValueError):
                    raise
        for part, key, episode, lost in waiting:
            self._write_loaded(part, episode, [key], [True], lost)

    def _write_loaded(
        self,
        part: Part,
        loaded: ForeignEpisode | ForeignTable,
        keys: Sequence[str],
        fresh: Sequence[bool],
        lost: Mapping[str, int],
    ) -> None:
        try:
            write_loaded(loaded, part, self._writer, keys, fresh)
        except EpisodelakeError as error:
            for what, count in lost.items():
                self._losses.take_back(what, count)
            self._failed(part, keys, error)

    def _failed(self, part: Part, keys: Sequence[str], error: EpisodelakeError) -> None:
        """Raise the error, or leave out the episodes of a part that cannot be read or written."""
        if self._on_error == "raise" or not isinstance(error, ValueError):
            raise error
        if part.singles is None or len(keys) == 1:
            self._done.skipped += [(key, str(error)) for key in part.keys]
            return
        # Some of them may be written already; their losses are not counted yet.
        for single, key in zip(part.singles(), keys, strict=True):
            if key not in self._present:
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


def write_loaded(
    loaded: ForeignEpisode | ForeignTable,
    part: Part,
    writer: EpisodeWriter,
    keys: Sequence[str],
    fresh: Sequence[bool],
) -> None:
    """Write episodes of a part.

    Args:
        keys: the source keys of its episodes.
        fresh: which of its episodes to write.

    Raises:
        DatasetError, SpaceMismatchError: as `import_episodes`.
    """
    if not any(fresh):
        return
    if isinstance(loaded, ForeignTable):
        steps, episodes = _chosen(part, loaded, keys, fresh)
        writer.write_episodes(steps, episodes=episodes)
        return
    try:
        writer.write_episode(**_arguments(loaded), source_key=keys[0])
    except EpisodelakeError as error:
        error.add_note(f"Episode {part.keys[0]} of the source.")
        raise


def _arguments(episode: ForeignEpisode) -> dict[str, Any]:
    arguments = {each.name: getattr(episode, each.name) for each in fields(episode)}
    # A source that was exported from a store has the key of its own source.
    arguments["metadata"] = {key: value for key, value in episode.metadata.items() if key != SOURCE_KEY}
    return arguments


def _chosen(
    part: Part, table: ForeignTable, keys: Sequence[str], fresh: Sequence[bool]
) -> tuple[pa.Table, pa.Table]:
    """Return the rows of those episodes that are to be written, with their source keys."""
    steps = pa.Table.from_batches(batches_of(table.steps))
    if table.episodes is None:
        episodes = pa.table({EPISODE: steps.column(EPISODE).unique()})
    else:
        episodes = pa.Table.from_batches(batches_of(table.episodes))
    if episodes.num_rows != len(part.keys):
        raise DatasetError(
            f"{part.keys[0]} and the episodes after it: expected {len(part.keys)}, got {episodes.num_rows}."
        )
    own = METADATA.column((SOURCE_KEY,))
    if own in episodes.column_names:
        # As in `_arguments`.
        episodes = episodes.drop_columns(own)
    episodes = episodes.append_column(SOURCE_KEY, pa.array(keys, pa.string()))
    if all(fresh):
        return steps, episodes
    episodes = episodes.filter(pa.array(fresh))
    wanted = pc.call_function(
        "is_in", [steps.column(EPISODE)], pc.SetLookupOptions(episodes.column(EPISODE).combine_chunks())
    )
    return steps.filter(wanted), episodes
