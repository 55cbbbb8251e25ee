"""Blocks of rows: the row source of recorders of many environments at once.

    a batch of rows -> block -> (background) session -> journal

Rows come a batch at a time, from as many episodes as there are environments. The recording thread only fills
blocks; the session's background thread brings full ones to the journal while the next one is filled. Memory
is bounded: a recording thread that is faster than the disk, or than sealing, waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.dynamic.column_groups import ColumnSet
from ...store.errors import StoreAccessError
from ...store.journal.episodes import Ends, EpisodeColumns
from ...store.journal.records import begin_events, end_events
from ...store.schema import LATE_ROW
from ..session.row_source import ArrivedRows, JournalRows, RowObserver
from ..session.session import RunSession
from .arrivals import check_agents
from .vector_buffer import VectorBuffer

_MOST_BLOCKS = 3
_MOST_SEALS = 3


class BlockRows:
    """The rows of a run that come in batches.

    Args:
        session: the session that takes the rows.
        rows: how many rows a call of the environments may bring.

    Attributes:
        end_all: called before the session closes, to end what is open.
        record_pending: called by any thread before rows go to the journal, to make all count that are whole.
        observer: pulls rows before a block is cleared; None for none.

    Raises:
        InvalidArgumentError: the store is for several agents.
    """

    #: Which environment is in which episode is known to the recorder.
    open: Collection[int] = ()

    def __init__(self, session: RunSession[Any], rows: int) -> None:
        check_agents(session.store, many=False)
        self._session = session
        self._schema = session.store.schema
        self._rows_at_once = rows
        self._blocks: deque[VectorBuffer] = deque([VectorBuffer(self._schema, rows)])
        self._spare: list[VectorBuffer] = []
        self._unwritten = False
        self.end_all: Callable[[], None] = _nothing
        self.record_pending: Callable[[], None] = _nothing
        self.observer: RowObserver | None = None

    def block(self) -> VectorBuffer:
        """Return the block to fill, with room for the rows of one call.

        Raises:
            StoreAccessError: the journal cannot be written; nothing is lost, call again.
            StoreAccessError, ConcurrentCommitError: an earlier seal failed in the background; nothing is
                lost.
        """
        block, session = self._blocks[-1], self._session
        if self._unwritten:
            with session.lock:
                session.write_rows()
            self._unwritten = False
        if block.capacity - block.count >= self._rows_at_once:
            return block
        if not session.closing:
            session.check_usable()
        if len(self._blocks) >= _MOST_BLOCKS:
            with session.lock:
                session.write_rows()
        session.seals.await_backlog(_MOST_SEALS)
        fresh = self._spare.pop() if self._spare else VectorBuffer(self._schema, self._rows_at_once)
        self._blocks.append(fresh)
        session.wake()
        return fresh

    def recorded(
        self, number: int, rows: int, stop: int, columns: Sequence[ColumnSet]
    ) -> list[pa.RecordBatch]:
        """Return the rows of an episode so far.

        Args:
            number: the episode.
            rows: how many it has.
            stop: the row of the current block after the last that counts, or is about to.
            columns: as for `VectorBuffer.batch`.

        Raises:
            StoreAccessError: it is long, and the journal cannot be written or read; nothing is lost.
        """
        block = self.current
        with self._session.lock:
            own = block.numbers[:stop] == number
            if np.count_nonzero(own & (block.kinds[:stop] != LATE_ROW)) == rows:
                return [block.batch(0, stop, columns, number)]
            return [*self._session.journalled(number), block.batch(block.count, stop, columns, number)]

    def end_call(self, stop: int, episodes: int, transitions: int) -> None:
        """Flush and seal by count, after a call whose rows are recorded.

        Args:
            stop: the row of the current block after the last one.
            episodes, transitions: how many the run has so far.
        """
        session = self._session
        most, taken = session.options.flush_steps, session.finished
        if most is not None and stop - self.current.flushed >= most:
            try:
                with session.lock:
                    session.write_rows()
                    session.seal_if_due()
            except StoreAccessError:
                # Raised by the next call, before the environments move.
                self._unwritten = True
        counts = (episodes - taken.taken_episodes, transitions - taken.taken_steps)
        if session.options.seal_now(*counts) and not session.seals.backlog and (self.ended or taken.episodes):
            session.wake()

    @property
    def current(self) -> VectorBuffer:
        """The current block, full or not."""
        return self._blocks[-1]

    @property
    def full(self) -> bool:
        """Whether a block waits beside the current one."""
        return len(self._blocks) > 1

    @property
    def ended(self) -> bool:
        """Whether episodes have ended since rows were last written."""
        self.record_pending()
        return any(block.counted[2] > block.ended for block in list(self._blocks))

    def pending(self, before: float) -> Iterator[JournalRows]:
        """Yield complete rows, and what happened to episodes with them; see `RowSource`."""
        self.record_pending()
        while True:
            # In this order: nothing comes into a block that is not the last.
            block, full = self._blocks[0], self.full
            rows = self._next(block)
            if rows is not None:
                yield rows
            if not full:
                # More rows may have come meanwhile: they can wait, or many small records would be written.
                return
            if rows is None:
                self._reuse(block)

    def _reuse(self, block: VectorBuffer) -> None:
        """Clear the first block, whose rows are all in the journal."""
        observer = self.observer
        if observer is not None:
            observer.pull()
        with nullcontext() if observer is None else observer.lock:
            self._blocks.popleft()
            block.clear()
            self._spare.append(block)

    def complete(self) -> None:
        """Count all complete rows; see `ObservableRows`."""
        self.record_pending()

    def arrived(self) -> Iterator[ArrivedRows]:
        """Yield the rows that no observer has taken; see `ObservableRows`."""
        blocks = [block.arrived() for block in list(self._blocks)]
        yield from (rows for rows in blocks if rows is not None)

    def _next(self, block: VectorBuffer) -> JournalRows | None:
        stop, begins_counted, ends_counted = counted = block.counted
        begins, ends = block.begins[block.begun : begins_counted], block.ends[block.ended : ends_counted]
        if stop == block.flushed and not ends:
            return None
        batch = block.batch(block.flushed, stop, self._session.columns)
        ended = Ends.joined(ends)
        finished = None if ended is None else EpisodeColumns.of_ended(ended)
        return JournalRows(
            [(batch, begin_events(begins) + ([] if ended is None else end_events(ended)))],
            set(_changes(batch.column(0).to_numpy()).tolist()),
            partial(self._written, block, counted, finished),
        )

    def _written(
        self, block: VectorBuffer, counted: tuple[int, int, int], finished: EpisodeColumns | None
    ) -> None:
        if finished is not None:
            self._session.finished.add(finished)
        block.flushed, block.begun, block.ended = counted


def _changes(numbers: np.ndarray) -> np.ndarray:
    """Return the different numbers of an array in which equal ones are neighbours."""
    if not len(numbers):
        return numbers
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]


def _nothing() -> None:
    """Do nothing before a close or a flush: the default of a source without a recorder."""
