"""A run session for many environments at once.

    a batch of rows -> block -> (journal thread) journal part -> (background) seal -> tables

It differs from `RunSession` in its rows: they come a batch at a time, from as many episodes as there are
environments, into blocks. The recording thread only fills blocks; a thread of its own brings full ones into
the journal, while the next one is filled. What is in hand is bounded: a recording thread that is faster than
the disk waits for it, and so does one that is faster than sealing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..store.block_buffer import BlockBuffer
from ..store.episode_events import begin_events, end_events
from ..store.handle import StoreHandle
from ..store.journal import RunHeader
from ..store.layout import episode_id
from ..store.record_columns import Ended, EpisodeColumns
from .options import SessionOptions
from .session import RunSession

_MOST_BLOCKS = 3
_MOST_SEALS = 3
_PAUSE = 0.002


@dataclass(frozen=True)
class _Frame:
    """What goes into the journal at once; kept until it is known to be there, and then repeated as it was."""

    batch: pa.RecordBatch
    events: list[dict[str, Any]]
    numbers: set[int]
    begun: list[int]
    given_up: set[int]
    finished: EpisodeColumns | None
    stop: int
    begins: int
    ends: int
    first: int


class BlockSession(RunSession):
    """One run of a recorder of several environments.

    Args:
        store: the store.
        header: the run.
        options: how to treat the disk.
        rows: how many rows a call of the environments may bring.

    Attributes:
        before_close: called before the session closes, to end what is open.
        before_flush: called by any thread before rows go to the journal, to make all count that are whole.

    Raises:
        StoreAccessError: the journal could not be created.
    """

    def __init__(self, store: StoreHandle, header: RunHeader, options: SessionOptions, rows: int) -> None:
        self._rows_at_once = rows
        self._blocks: deque[BlockBuffer] = deque([BlockBuffer(store.schema, rows)])
        self._spare: list[BlockBuffer] = []
        self._frame: _Frame | None = None
        self._full = threading.Semaphore(0)
        self.before_close: Callable[[], None] = _nothing
        self.before_flush: Callable[[], None] = _nothing
        super().__init__(store, header, options)
        self._scribe = threading.Thread(
            target=self._write_blocks, name=f"episodelake journal {header.run_id}", daemon=True
        )
        self._scribe.start()

    # Recording

    def block(self) -> BlockBuffer:
        """The block to fill, with room for the rows of one call.

        Raises:
            StoreAccessError: the journal cannot be written; nothing is lost, call again.
            StoreAccessError, ConcurrentCommitError: an earlier seal failed in the background; nothing is
            lost.
        """
        block = self._blocks[-1]
        if block.capacity - block.count >= self._rows_at_once:
            return block
        self.check_usable()
        if len(self._blocks) >= _MOST_BLOCKS:
            with self._lock:
                self._flush()
        while self._seals.backlog > _MOST_SEALS and self._seals.waiting:
            time.sleep(_PAUSE)
        fresh = self._spare.pop() if self._spare else BlockBuffer(self._schema, self._rows_at_once)
        self._blocks.append(fresh)
        self._full.release()
        return fresh

    @property
    def current(self) -> BlockBuffer:
        """The block in hand, full or not."""
        return self._blocks[-1]

    def id_of(self, number: int) -> str:
        """The id of an episode of this run."""
        return episode_id(self.header.run_id, number)

    @property
    def next_number(self) -> int:
        """The number of the next episode."""
        return self._next_number

    def take_numbers(self, count: int) -> int:
        """Reserve the numbers of new episodes and return the first of them."""
        self._next_number += count
        return self._next_number - count

    # Journal

    def _flush(self) -> None:
        """Bring all complete rows and what happened to episodes into the journal.

        On failure the rest stays and is tried again, what was being written exactly as it was: the journal
        takes rows that were written twice once, if they are the same.
        """
        self._check_process()
        self.before_flush()
        while True:
            block, full = self._blocks[0], len(self._blocks) > 1
            if self._frame is None:
                self._frame = self._next_frame(block)
            written = self._frame is not None
            if self._frame is not None:
                self._write(block, self._frame)
                self._frame = None
            if not full:
                # More rows may have come meanwhile: they can wait, or many small frames would be written.
                return
            if not written:
                self._blocks.popleft()
                block.clear()
                self._spare.append(block)

    def _next_frame(self, block: BlockBuffer) -> _Frame | None:
        stop, begins_counted, ends_counted = block.counted
        begins, ends = block.begins[block.begun : begins_counted], block.ends[block.ended : ends_counted]
        if stop == block.flushed and not ends:
            return None
        batch = block.batch(block.flushed, stop, self.columns)
        ended = Ended.of(ends)
        return _Frame(
            batch=batch,
            events=begin_events(begins) + ([] if ended is None else end_events(ended)),
            numbers=set(_changes(batch.column(0).to_numpy()).tolist()),
            begun=[number for begin in begins for number in begin.numbers.tolist()],
            given_up=set() if ended is None else set(ended.table[ended.empty, 0].tolist()),
            finished=None if ended is None else EpisodeColumns.of_ended(ended),
            stop=stop,
            begins=begins_counted,
            ends=ends_counted,
            first=self._rows_before,
        )

    def _write(self, block: BlockBuffer, frame: _Frame) -> None:
        for number in frame.begun:
            self._parts.need(number)
        self._parts.append(frame.batch, frame.events, frame.numbers, frame.first)
        # An interrupt may come between any two lines, and all of this is then done again.
        self._rows_before = frame.first + frame.batch.num_rows
        block.flushed, block.begun, block.ended = frame.stop, frame.begins, frame.ends
        if frame.finished is not None and (not self._finished or self._finished[-1] is not frame.finished):
            self._finished.append(frame.finished)
        if frame.given_up:
            self._parts.forget(frame.given_up)

    def _write_blocks(self) -> None:
        """The journal thread: write each block as soon as it is full."""
        while True:
            self._full.acquire()
            if self._stopping:
                return
            try:
                with self._lock:
                    self._flush()
                    self._seal_by_size()
            except Exception as error:  # whatever it is, it must reach the recording thread
                self._seals.fail(error)

    def _seal_by_size(self) -> None:
        if self._finished and self._parts.unsealed_bytes >= self._seal_at:
            self._request_seal()

    def _take_finished(self) -> EpisodeColumns:
        finished, self._finished = self._finished, []
        return EpisodeColumns.joined(finished)

    def close(self) -> None:
        """See `RunSession.close`; what is open ends as `cut`, or as its flags say."""
        if self.closed or os.getpid() != self._process:
            return
        self.before_close()
        super().close()
        self._full.release()
        if threading.current_thread() is not self._scribe:
            self._scribe.join()


def _changes(numbers: np.ndarray) -> np.ndarray:
    """The different numbers of an array in which equal ones are neighbours."""
    if not len(numbers):
        return numbers
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])]


def _nothing() -> None:
    """What is done before closing or flushing a session that nobody uses yet."""
