"""Where the journal rows of episodes are: found once for a segment, in columns.

A *piece* is a stretch of rows of one episode in one batch. The index keeps pieces as arrays, so it costs
nothing for each row and little for each piece; the rows stay in the mapped journal. It stands between the
journal and `sealing`, which brings the rows into the order of the episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .errors import CorruptStoreError
from .journal_reading import PartReader
from .schema import JOURNAL_KIND, JOURNAL_NUMBER, LATE_ROW

#: A stretch of a batch is read whole, rows of others included, if at least this share of it is wanted.
_DENSE = 0.5
#: A piece of so many bytes is worth the trouble of a batch of its own.
_LARGE_BYTES = 64 << 10


@dataclass(frozen=True)
class BatchRuns:
    """The stretches of one batch, one for each episode in it, in the order of their numbers.

    Attributes:
        batch: the rows.
        chosen: the order that brings the rows of an episode together; None if they are together.
        numbers, starts, stops: int64, one for each stretch; rows count in the order of `chosen`.
        lates: bool: whether the last row of the stretch is a late one.
    """

    batch: pa.RecordBatch
    chosen: np.ndarray | None
    numbers: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    lates: np.ndarray

    @staticmethod
    def of(batch: pa.RecordBatch) -> BatchRuns:
        """Find the stretches of a batch."""
        numbers = batch.column(JOURNAL_NUMBER.name).to_numpy()
        row_kinds = batch.column(JOURNAL_KIND.name).to_numpy()
        chosen = None
        if (numbers[1:] < numbers[:-1]).any():
            chosen = np.argsort(numbers, kind="stable")
            numbers, row_kinds = numbers[chosen], row_kinds[chosen]
        changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        starts = np.concatenate([np.zeros(min(len(numbers), 1), np.int64), changes])
        stops = np.concatenate([changes, np.full(min(len(numbers), 1), len(numbers), np.int64)])
        return BatchRuns(batch, chosen, numbers[starts], starts, stops, row_kinds[stops - 1] == LATE_ROW)

    def rows(self, start: int, stop: int) -> pa.RecordBatch:
        """The rows `[start, stop)`; they share memory with the batch if they are together."""
        if self.chosen is None:
            return self.batch.slice(start, stop - start)
        return self.batch.take(pa.array(self.chosen[start:stop]))


@dataclass(frozen=True)
class Pieces:
    """Stretches of rows, in order.

    Attributes:
        runs: the batches.
        batches: int64: which batch each piece is of.
        starts, stops: int64: its rows there.
    """

    runs: list[BatchRuns]
    batches: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    def part(self, first: int, last: int) -> Pieces:
        """Pieces `[first, last)`."""
        cut = slice(first, last)
        return Pieces(self.runs, self.batches[cut], self.starts[cut], self.stops[cut])

    def between(self, start: int, stop: int) -> Pieces:
        """The pieces that cover rows `[start, stop)` of all rows, cut to them."""
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

    def chunks(self, row_bytes: int) -> tuple[list[pa.RecordBatch], np.ndarray]:
        """Batches that hold the rows of all pieces, and where the first row of each piece stands in them.

        They share the journal's memory where they can. Large pieces come one by one and in order, so that
        nothing has to be moved again; small ones come together, in the order of the journal.

        Args:
            row_bytes: about how many bytes a row takes.
        """
        sizes = self.stops - self.starts
        if len(sizes) and sizes.mean() * row_bytes >= _LARGE_BYTES:
            places = zip(self.batches.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True)
            return [self.runs[batch].rows(low, high) for batch, low, high in places], np.cumsum(sizes) - sizes
        order = np.lexsort((self.starts, self.batches))
        first_row = np.empty(len(order), np.int64)
        found: list[pa.RecordBatch] = []
        at = 0
        edges = np.flatnonzero(np.diff(self.batches[order])) + 1
        for members in np.split(order, edges) if len(order) else ():
            runs = self.runs[int(self.batches[members[0]])]
            for stretch in _stretches(self.starts[members], self.stops[members]):
                inside = members[stretch]
                low, high = int(self.starts[inside[0]]), int(self.stops[inside[-1]])
                found.append(runs.rows(low, high))
                first_row[inside] = self.starts[inside] - low + at
                at += high - low
        return found, first_row


def _stretches(starts: np.ndarray, stops: np.ndarray) -> Iterator[slice]:
    """Cut pieces of one batch, in order, into stretches that are read whole."""
    if (stops - starts).sum() >= _DENSE * (stops[-1] - starts[0]):
        yield slice(0, len(starts))
        return
    gaps = (np.flatnonzero(starts[1:] != stops[:-1]) + 1).tolist()
    for low, high in zip([0, *gaps], [*gaps, len(starts)], strict=True):
        yield slice(low, high)


@dataclass(frozen=True)
class RowIndex:
    """Where the arrivals of episodes are, in a given order of the episodes.

    Attributes:
        pieces: all of them, by episode, then in the order of arrival.
        first: int64, one more than episodes: the first piece of each.
        counts: int64: arrivals of each episode.
        lates: bool: whether the last of them is a late one.
    """

    pieces: Pieces
    first: np.ndarray
    counts: np.ndarray
    lates: np.ndarray

    @property
    def steps_rows(self) -> np.ndarray:
        """Rows of each episode in the steps table: T+1."""
        return self.counts - self.lates

    @staticmethod
    def find(readers: Iterable[PartReader], numbers: np.ndarray) -> RowIndex:
        """Find the rows of the episodes `numbers` in all batches of the given parts."""
        order = np.argsort(numbers)
        in_order = numbers[order]
        runs: list[BatchRuns] = []
        found: list[tuple[np.ndarray, ...]] = []
        seen = 0
        for reader in readers:
            for batch in reader.batches(seen=seen):
                own = BatchRuns.of(batch.rows)
                places = np.searchsorted(in_order, own.numbers).clip(max=len(in_order) - 1)
                hits = np.flatnonzero(in_order[places] == own.numbers)
                if len(hits):
                    batches = np.full(len(hits), len(runs), np.int64)
                    found.append(
                        (order[places[hits]], batches, own.starts[hits], own.stops[hits], own.lates[hits])
                    )
                    runs.append(own)
            seen = reader.seen
        return _indexed(runs, found, len(numbers))

    def cut(self, steps_rows: np.ndarray) -> RowIndex:
        """Only so many steps rows of each episode; what arrived after them is left out.

        Raises:
            CorruptStoreError: there are not so many.
        """
        found = self.steps_rows
        short = np.flatnonzero(found < steps_rows)
        if len(short):
            raise CorruptStoreError(
                f"The journal has {found[short[0]]} rows of an episode that has {steps_rows[short[0]]}: some "
                "are lost."
            )
        if (found == steps_rows).all():
            return self
        # The rest arrived behind a gap in a damaged journal, or in a step that was interrupted and never
        # counted.
        limits = np.where(found == steps_rows, self.counts, steps_rows)
        whole = self.pieces
        sizes = whole.stops - whole.starts
        owners = np.repeat(np.arange(len(limits)), np.diff(self.first))
        before = np.cumsum(sizes) - sizes
        before -= (np.cumsum(self.counts) - self.counts)[owners]
        kept = np.minimum(sizes, limits[owners] - before).clip(min=0)
        some = kept > 0
        pieces = Pieces(whole.runs, whole.batches[some], whole.starts[some], (whole.starts + kept)[some])
        first = np.concatenate([[0], np.cumsum(np.bincount(owners[some], minlength=len(limits)))])
        return RowIndex(pieces, first, limits, self.lates & (limits == self.counts))


def _indexed(runs: list[BatchRuns], found: list[tuple[np.ndarray, ...]], episodes: int) -> RowIndex:
    nothing = (np.zeros(0, np.int64),) * 4 + (np.zeros(0, bool),)
    owners, batches, starts, stops, lates = (
        np.concatenate(each) for each in zip(nothing, *found, strict=True)
    )
    order = np.argsort(owners, kind="stable")
    owners, sizes, lates = owners[order], (stops - starts)[order], lates[order]
    counts = np.bincount(owners, sizes, episodes).astype(np.int64)
    first = np.searchsorted(owners, np.arange(episodes + 1))
    ends_late = np.zeros(episodes, bool)
    some = np.flatnonzero(np.diff(first))
    ends_late[some] = lates[first[some + 1] - 1]
    return RowIndex(Pieces(runs, batches[order], starts[order], stops[order]), first, counts, ends_late)
