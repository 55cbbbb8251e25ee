"""Finished episodes that were written whole: their rows stay in memory until a segment takes them.

`WholeRows.add` keeps them beside the journal. Where a segment does not come soon, or a caller waits for
`flush()`, their rows go to the journal like those of any other episode.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...store.journal.episode_events import begin_and_end_events
from ...store.schema import JOURNAL_NUMBER
from ...store.segments.episode_columns import EpisodeColumns


@dataclass(frozen=True)
class BulkEpisodes:
    """Finished episodes with all of their rows.

    Attributes:
        episodes: the episodes, in order.
        batches: their rows as journal batches that own their memory; at least one.
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

    def journal_batches(self) -> Iterator[tuple[pa.RecordBatch, list[dict[str, Any]]]]:
        """Yield each batch with the events that go to the journal with it."""
        begins, ends = begin_and_end_events(self.episodes)
        last = len(self.batches) - 1
        for index, batch in enumerate(self.batches):
            yield batch, [*(begins if index == 0 else ()), *(ends if index == last else ())]

    def without(self, numbers: Collection[int]) -> BulkEpisodes | None:
        """Return the other episodes; None if there are none."""
        left = self.episodes.without(numbers)
        if left is None:
            return None
        if left is self.episodes:
            return self
        kept = pa.array(left.number)
        return replace(
            self,
            episodes=left,
            batches=[
                batch.filter(
                    pc.call_function("is_in", [batch.column(JOURNAL_NUMBER.name)], pc.SetLookupOptions(kept))
                )
                for batch in self.batches
            ],
        )
