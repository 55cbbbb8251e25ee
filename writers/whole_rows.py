"""The rows of an `EpisodeWriter`: single rows, and whole episodes that stay in memory for a while.

The rows of a whole episode wait until a segment takes them. They go to the journal like those of any other
episode where no segment takes them within `flush_seconds`, or where a caller waits for `flush()`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from .bulk.bulk_episodes import BulkEpisodes
from .row_source import JournalRows
from .step_rows import StepRows

#: Segments of rows in memory: one being written, one that waits, one being filled.
_MOST_BULK_SEALS = 1


class WholeRows(StepRows):
    """See `StepRows`; the session's finished episodes keep the rows of those that are in memory."""

    #: Rows of whole episodes since all were last journalled by `flush_steps`.
    _bulk_rows = 0

    def add(self, bulk: BulkEpisodes) -> None:
        """Record finished episodes with all of their rows.

        Those of an episode larger than a segment, and those of a store on another machine, which takes
        segments slowly, go to the journal at once.

        Raises:
            StoreAccessError: the journal could not be written; nothing was recorded.
        """
        session = self._session
        session.check_usable()
        session.await_seals(_MOST_BULK_SEALS)
        local = session.store.layout.root.local is not None
        flush_steps = session.options.flush_steps
        fits = bulk.nbytes <= session.options.segment_bytes and session.backlog <= _MOST_BULK_SEALS
        with session.lock:
            try:
                session.finished.add_bulk(bulk)
                if not (local and fits):
                    session.write_rows()
                    session.write([self._rows_of(bulk)])
                elif flush_steps is not None:
                    self._bulk_rows += bulk.rows
                    if self._bulk_rows >= flush_steps:
                        session.write_rows(math.inf)
                        self._bulk_rows = 0
            except BaseException:
                session.take_back(bulk)
                raise
            session.seal_if_due()

    def pending(self, before: float) -> Iterator[JournalRows]:
        """Yield all complete rows and events, and whole episodes that came before a moment."""
        yield from super().pending(before)
        if before == -math.inf:
            return
        for bulk in self._session.finished.bulk():
            # A segment that is being written is about to take its rows.
            about = before < math.inf and self._session.is_sealing(bulk.number)
            if bulk.since < before and not about:
                yield self._rows_of(bulk)

    def _rows_of(self, bulk: BulkEpisodes) -> JournalRows:
        done = partial(self._session.finished.journalled, bulk)
        return JournalRows(list(bulk.journal_batches()), bulk.episodes.numbers, done)
