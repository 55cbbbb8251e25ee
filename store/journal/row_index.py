"""The journal rows of episodes, located once for a segment, in columns.

A *lane* is what is shifted and written as one: an episode, or in multi-agent stores one agent of an episode.
A *piece* is a stretch of rows of one lane in one batch. The index keeps pieces as arrays, so it costs nothing
for each row and little for each piece; the rows stay in the mapped journal. It stands between the journal and
`sealing`, which brings the rows into the order of the lanes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..errors import DamagedJournalError
from ..schema import JOURNAL_AGENT, JOURNAL_KIND, JOURNAL_NUMBER, LATE_ROW
from .episodes import LaneColumns
from .packed_columns import Arena, PackedRows, edges_of, unpack_all
from .reading import PartReader

#: A stretch of a batch is read whole, rows of others included, if at least this share of it is wanted.
_DENSE = 0.5
#: A piece of so many bytes is worth the trouble of a batch of its own.
_LARGE_BYTES = 32 << 10


@dataclass(frozen=True)
class RowSpans:
    """The stretches of one batch, one for each lane in it, in the order of their numbers and agents.

    Attributes:
        batch: the rows; columns may be packed, unless the rows are not together.
        chosen: the order that brings the rows of a lane together; None if they are together.
        numbers, agents, starts, stops: whole numbers, one for each stretch; rows count in the order of
            `chosen`. Agents are counted within their episode, and 0 where there is one.
        lates: bool: whether the last row of the stretch is a late one.
        source: the part, for messages.
        finished: whether outcomes stand beside their observations, as in the steps table.
    """

    batch: pa.RecordBatch
    chosen: np.ndarray | None
    numbers: np.ndarray
    agents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    lates: np.ndarray
    source: Path | None
    finished: bool = False

    @staticmethod
    def of(batch: pa.RecordBatch, source: Path | None = None, *, finished: bool = False) -> RowSpans:
        """Find the stretches of a batch."""
        # In the order in which they sort: the last one counts most.
        keys = [batch.column(JOURNAL_NUMBER.name).to_numpy()]
        if JOURNAL_AGENT.name in batch.schema.names:
            keys.insert(0, batch.column(JOURNAL_AGENT.name).to_numpy())
        row_kinds = batch.column(JOURNAL_KIND.name).to_numpy()
        chosen = None
        if _unsorted(keys):
            batch = PackedRows.of(batch, source).unpacked()
            chosen = np.lexsort(keys) if len(keys) > 1 else np.argsort(keys[0], kind="stable")
            keys, row_kinds = [key[chosen] for key in keys], row_kinds[chosen]
        edges = edges_of(keys)
        starts, stops = edges[:-1], edges[1:]
        agents = keys[0][starts] if len(keys) > 1 else np.zeros(len(starts), np.int32)
        lates = row_kinds[stops - 1] == LATE_ROW
        return RowSpans(batch, chosen, keys[-1][starts], agents, starts, stops, lates, source, finished)

    def rows(self, start: int, stop: int) -> PackedRows:
        """Return the rows `[start, stop)`; they share memory with the batch if they are together."""
        if self.chosen is None:
            return self._packed.part(start, stop)
        rows = self.batch.take(pa.array(self.chosen[start:stop]))
        return PackedRows(rows, self.source, None)

    @cached_property
    def _packed(self) -> PackedRows:
        return PackedRows.of(self.batch, self.source)


def _unsorted(keys: list[np.ndarray]) -> bool:
    """Return whether rows are out of order: a row comes before one of a smaller number or agent."""
    numbers = keys[-1]
    if (numbers[1:] < numbers[:-1]).any():
        return True
    together = numbers[1:] == numbers[:-1]
    return any(bool((together & (key[1:] < key[:-1])).any()) for key in keys[:-1])


@dataclass(frozen=True)
class Pieces:
    """Stretches of rows, in order.

    Attributes:
        runs: the batches.
        batches: int64: which batch each piece is of.
        starts, stops: int64: its rows there.
    """

    runs: list[RowSpans]
    batches: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def part(self, first: int, last: int) -> Pieces:
        """Return the pieces `[first, last)`."""
        cut = slice(first, last)
        return Pieces(self.runs, self.batches[cut], self.starts[cut], self.stops[cut])

    def between(self, start: int, stop: int) -> Pieces:
        """Return the pieces that cover rows `[start, stop)` of all rows, cut to them."""
        ends = np.cumsum(self.stops - self.starts)
        begins = ends - (self.stops - self.starts)
        low, high = np.maximum(begins, start), np.minimum(ends, stop)
        cut = np.flatnonzero(low < high)
        return Pieces(
            self.runs,
            self.batches[cut],
            (self.starts + low - begins)[cut],
            (self.stops - (ends - high))[cut],
        )

    def chunks(
        self, row_bytes: int, arena: Arena, paged: Collection[str] = ()
    ) -> tuple[list[pa.RecordBatch], np.ndarray]:
        """Return batches with the rows of all pieces, and the position of each piece's first row in them.

        They share the journal's memory where they can. Large pieces come one by one and in order, so that
        nothing has to be moved again; small ones come together, in the order of the journal.

        Args:
            row_bytes: about how many bytes a row takes.
            arena: where packed columns are unpacked.
            paged: as for `unpack_all`.
        """
        sizes = self.stops - self.starts
        if len(sizes) and sizes.mean() * row_bytes >= _LARGE_BYTES:
            # Neighbours in one batch are one stretch.
            joins = (self.batches[1:] == self.batches[:-1]) & (self.starts[1:] == self.stops[:-1])
            first, last = np.append(True, ~joins), np.append(~joins, True)
            places = zip(
                self.batches[first].tolist(),
                self.starts[first].tolist(),
                self.stops[last].tolist(),
                strict=True,
            )
            large = (self.runs[batch].rows(low, high) for batch, low, high in places)
            return unpack_all(large, arena, paged), np.cumsum(sizes) - sizes
        order = np.lexsort((self.starts, self.batches))
        first_row = np.empty(len(order), np.int64)
        chunks: list[PackedRows] = []
        at = 0
        edges = np.flatnonzero(np.diff(self.batches[order])) + 1
        for members in np.split(order, edges) if len(order) else ():
            runs = self.runs[int(self.batches[members[0]])]
            for stretch in _stretches(self.starts[members], self.stops[members]):
                inside = members[stretch]
                low, high = int(self.starts[inside[0]]), int(self.stops[inside[-1]])
                chunks.append(runs.rows(low, high))
                first_row[inside] = self.starts[inside] - low + at
                at += high - low
        return unpack_all(chunks, arena, paged), first_row


def _stretches(starts: np.ndarray, stops: np.ndarray) -> Iterator[slice]:
    """Cut pieces of one batch, in order, into spans that are read at once."""
    if (stops - starts).sum() >= _DENSE * (stops[-1] - starts[0]):
        yield slice(0, len(starts))
        return
    gaps = (np.flatnonzero(starts[1:] != stops[:-1]) + 1).tolist()
    for low, high in zip([0, *gaps], [*gaps, len(starts)], strict=True):
        yield slice(low, high)


@dataclass(frozen=True)
class RowIndex:
    """The positions of the arrivals of lanes, in a given order of the lanes.

    Attributes:
        pieces: all of them, by lane, then in the order of arrival.
        first: int64, one more than lanes: the first piece of each.
        counts: int64: arrivals of each lane.
        lates: bool: whether the last of them is a late one.
        finished: bool: whether they are finished rows, as in the steps table.
    """

    pieces: Pieces
    first: np.ndarray
    counts: np.ndarray
    lates: np.ndarray
    finished: np.ndarray

    @property
    def steps_rows(self) -> np.ndarray:
        """Rows of each lane in the steps table: T+1."""
        return self.counts - self.lates

    @staticmethod
    def find(
        readers: Iterable[PartReader], lanes: LaneColumns, bulk: Iterable[pa.RecordBatch] = ()
    ) -> RowIndex:
        """Find the rows of some lanes in all batches of the given parts, and in batches of finished rows."""
        every = [*spans_of_parts(readers), *(RowSpans.of(batch, finished=True) for batch in bulk)]
        # Batches may be many and small, so they are searched together.
        numbers, agents, starts, stops, lates = (
            np.concatenate([np.zeros(0, bool), *(getattr(each, name) for each in every)])
            for name in ("numbers", "agents", "starts", "stops", "lates")
        )
        owners, hits = _Wanted(lanes).among(numbers, agents)
        order = np.argsort(owners, kind="stable")
        owners, hits = owners[order], hits[order]
        sizes = np.array([len(each.numbers) for each in every], np.int64)
        used, batches = np.unique(np.repeat(np.arange(len(every)), sizes)[hits], return_inverse=True)
        pieces = Pieces([every[index] for index in used.tolist()], batches, starts[hits], stops[hits])
        counts = np.bincount(owners, pieces.stops - pieces.starts, len(lanes)).astype(np.int64)
        first = np.searchsorted(owners, np.arange(len(lanes) + 1))
        ends_late, finished = np.zeros((2, len(lanes)), bool)
        some = np.flatnonzero(np.diff(first))
        ends_late[some] = lates[hits][first[some + 1] - 1]
        finished[some] = np.array([each.finished for each in pieces.runs], bool)[batches[first[some]]]
        return RowIndex(pieces, first, counts, ends_late, finished)

    def cut(self, steps_rows: np.ndarray) -> RowIndex:
        """Return an index of the first steps rows of each lane only.

        Raises:
            CorruptStoreError: there are not so many.
        """
        there = self.steps_rows
        short = np.flatnonzero(there < steps_rows)
        if len(short):
            raise DamagedJournalError(
                f"The journal has {there[short[0]]} rows of an episode that has {steps_rows[short[0]]}: some "
                "are lost."
            )
        if (there == steps_rows).all():
            return self
        # The rest arrived after a gap in a damaged journal, or in a step that was interrupted and never
        # counted.
        limits = np.where(there == steps_rows, self.counts, steps_rows)
        whole = self.pieces
        sizes = whole.stops - whole.starts
        owners = np.repeat(np.arange(len(limits)), np.diff(self.first))
        before = np.cumsum(sizes) - sizes
        before -= (np.cumsum(self.counts) - self.counts)[owners]
        kept = np.minimum(sizes, limits[owners] - before).clip(min=0)
        some = kept > 0
        pieces = Pieces(whole.runs, whole.batches[some], whole.starts[some], (whole.starts + kept)[some])
        first = np.concatenate([[0], np.cumsum(np.bincount(owners[some], minlength=len(limits)))])
        return RowIndex(pieces, first, limits, self.lates & (limits == self.counts), self.finished)


def spans_of_parts(readers: Iterable[PartReader]) -> Iterator[RowSpans]:
    """Yield the stretches of each batch of some parts of one run, oldest part first."""
    seen = 0
    for reader in readers:
        for batch in reader.batches(seen=seen):
            yield RowSpans.of(batch.rows, batch.source)
        seen = reader.seen


class _Wanted:
    """Finds the stretches of certain lanes among those of a batch."""

    def __init__(self, lanes: LaneColumns) -> None:
        self._episodes = np.unique(lanes.numbers)
        self._width = int(lanes.agents.max(initial=0)) + 1
        keys = np.searchsorted(self._episodes, lanes.numbers) * self._width + lanes.agents
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def among(self, numbers: np.ndarray, agents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of the lane of each stretch that is wanted, and the indices of these stretches."""
        places = np.searchsorted(self._episodes, numbers).clip(max=len(self._episodes) - 1)
        known = (self._episodes[places] == numbers) & (agents >= 0) & (agents < self._width)
        keys = places * self._width + agents
        at = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        hits = np.flatnonzero(known & (self._keys[at] == keys))
        return self._order[at[hits]], hits
