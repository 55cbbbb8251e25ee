"""Finished episodes of a run, until the segment that contains them is committed.

`BulkEpisodes` were written whole: their rows stay in memory until a segment takes them. Where that does not
happen soon, or a caller waits for `flush()`, their rows go to the journal like those of any other episode.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import pyarrow as pa

from ...store.journal.episodes import EpisodeColumns, EpisodeRecord


@dataclass(frozen=True)
class BulkEpisodes:
    """Finished episodes with all of their rows.

    Attributes:
        episodes: the episodes, in order.
        batches: their finished rows, in the columns of the journal; they own their memory. At least one.
        since: when they were recorded, by `time.monotonic`.
    """

    episodes: EpisodeColumns
    batches: Sequence[pa.RecordBatch]
    since: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> int:
        """The number of the first episode."""
        return int(self.episodes.number[0])

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    @cached_property
    def nbytes(self) -> int:
        """The size of the rows in bytes."""
        return sum(batch.get_total_buffer_size() for batch in self.batches)


Ended = EpisodeRecord | EpisodeColumns | BulkEpisodes


class FinishedEpisodes:
    """See the module.

    Attributes:
        memory_bytes: the size of the rows that are in memory only and that no seal has taken.
        memory_since: when the oldest of these came, by `time.monotonic`, or earlier.
        episodes, steps: how many episodes no seal has taken, and their steps; at least.
        taken_episodes, taken_steps: how many seals have taken.
    """

    def __init__(self) -> None:
        self.memory_bytes = 0
        self.memory_since = math.inf
        self.episodes = self.steps = self.taken_episodes = self.taken_steps = 0
        # Columns of many stand under the first of their numbers.
        self._ended: dict[int, Ended] = {}

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, ended: EpisodeRecord | EpisodeColumns) -> None:
        """Add what ended; a second time it changes nothing."""
        if isinstance(ended, EpisodeRecord):
            self._ended[ended.number] = ended
            self._count(1, ended.length)
        else:
            self._ended[int(ended.number[0])] = ended
            self._count(len(ended.number), int(ended.length.sum()))

    def _count(self, episodes: int, steps: int) -> None:
        self.episodes += episodes
        self.steps += steps

    def add_bulk(self, bulk: BulkEpisodes) -> None:
        """Add whole episodes whose rows stay in memory; a second time it changes nothing."""
        if self._ended.get(bulk.number) is bulk:
            return
        self._ended[bulk.number] = bulk
        if not self.memory_bytes:
            self.memory_since = bulk.since
        self.memory_bytes += bulk.nbytes
        self._count(len(bulk.episodes.number), int(bulk.episodes.length.sum()))

    def taken(self) -> None:
        """Count everything as taken by a seal."""
        self.taken_episodes += self.episodes
        self.taken_steps += self.steps
        self.memory_bytes = self.episodes = self.steps = 0

    def bulk(self) -> Iterator[BulkEpisodes]:
        """Yield those whose rows are in memory."""
        return (each for each in list(self._ended.values()) if isinstance(each, BulkEpisodes))

    def journalled(self, bulk: BulkEpisodes) -> None:
        """Let go of rows in memory, since the journal has them."""
        # A seal that has them may have been committed between two attempts.
        if self._ended.get(bulk.number) is bulk:
            self._ended[bulk.number] = bulk.episodes
            self.memory_bytes = max(0, self.memory_bytes - bulk.nbytes)

    def take_back(self, bulk: BulkEpisodes) -> bool:
        """Forget whole episodes; False if their rows are not only in memory any more, and they stay."""
        if self._ended.get(bulk.number) is not bulk:
            return False
        del self._ended[bulk.number]
        self.memory_bytes = max(0, self.memory_bytes - bulk.nbytes)
        self._count(-len(bulk.episodes.number), -int(bulk.episodes.length.sum()))
        return True

    def forget(self, numbers: Collection[int]) -> None:
        """Forget episodes that are committed or discarded; columns go with the first of their numbers."""
        for number in numbers:
            self._ended.pop(number, None)

    def without(self, left_out: Callable[[int], bool]) -> list[Ended]:
        """Return all but some, by the first of their numbers."""
        return [each for number, each in self._ended.items() if not left_out(number)]


def columns_of(ended: Sequence[Ended]) -> EpisodeColumns:
    """Join what ended, in order; at least one."""
    parts: list[EpisodeColumns] = []
    for kind, group in groupby(ended, type):
        if kind is EpisodeRecord:
            parts.append(EpisodeColumns.of(list(group)))  # type: ignore[arg-type]
        else:
            parts += [each.episodes if isinstance(each, BulkEpisodes) else each for each in group]  # type: ignore[misc]
    return EpisodeColumns.joined(parts)
