"""The journal of one live run: the part being written, and the parts that are still needed.

A part is closed when a seal is requested, and deleted once no episode in it is live or waits for its seal. An
interrupt may come between any two lines and the same call may then be repeated: a part is registered with its
episodes before it gets their rows, and deleted before it is dropped from the register. Not safe for several
threads; the session holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...store.files import guard_access
from ...store.journal.packed_columns import Packer, plain_bytes
from ...store.journal.reading import PartReader
from ...store.journal.records import RunHeader, numbers_in
from ...store.journal.row_index import spans_of_parts
from ...store.journal.run_journal import PartWriter, part_path, part_paths
from ...store.parquet.files import make_first_array
from .row_source import JournalRows


class JournalParts:
    """Writes the parts of one run.

    Args:
        directory: the run's journal directory.
        header: the run.
        sync: call fsync after each batch.
        check: raises if the journal is no longer this run's.

    Attributes:
        unsealed_bytes: how much was written since the last `close_part`; of packed columns, what they were
            before.
    """

    def __init__(
        self,
        directory: Path,
        header: RunHeader,
        *,
        sync: bool,
        check: Callable[[], None],
    ) -> None:
        make_first_array()
        self.unsealed_bytes = 0
        self._directory = directory
        self._header = header
        self._sync = sync
        self._check = check
        self._writer: PartWriter | None = None
        self._packer = Packer()
        # The episodes that still need each part, oldest part first.
        self._pending: dict[Path, set[int]] = {}
        self._numbers = count()
        self._needed: set[int] = set()
        # What is being written, and the place of its first row in the run; and how many rows are written.
        self._unfinished: tuple[JournalRows, int] | None = None
        self._place = 0

    def write(self, rows: JournalRows) -> None:
        """Write rows behind all others of the run; none may be unfinished.

        Raises:
            StoreAccessError: they could not be written; `finish_write` tries again.
        """
        self._unfinished = rows, self._place
        self.finish_write()

    def finish_write(self) -> None:
        """Write what an earlier call left unfinished, as it was and in the same place."""
        if self._unfinished is None:
            return
        rows, place = self._unfinished
        for batch, events in rows.records:
            self.append(batch, events, rows.numbers, place)
            place += batch.num_rows
        self._place = place
        rows.done()
        self._unfinished = None

    def give_up(self, numbers: set[int]) -> None:
        """Discard the episodes of `JournalRows` with these very numbers, if a write of them is unfinished."""
        if self._unfinished is not None and self._unfinished[0].numbers is numbers:
            rows, place = self._unfinished
            nothing = rows.records[0][0].slice(0, 0)
            discards = [{"event": "discard", "number": number} for number in sorted(numbers)]
            place += sum(batch.num_rows for batch, _ in rows.records)
            self._unfinished = JournalRows([(nothing, discards)], set(), lambda: None), place

    def append(
        self, batch: pa.RecordBatch, events: Sequence[dict[str, Any]], numbers: Iterable[int], first: int
    ) -> None:
        """Append a batch with rows of the episodes `numbers`; `first` as for `PartWriter.append`.

        The rows of episodes that begin with these events are kept until the episodes are forgotten, and those
        of episodes that are discarded no longer.

        Raises:
            StoreAccessError: it could not be written, and nothing of it remains, call again; or the journal
                is no longer this run's.
        """
        self._needed |= numbers_in(events, "begin", "begins")
        named = {*numbers, *numbers_in(events)}
        writer = self._open_part()
        # An event may come in a later part than the rows of its episode; it must not go before they do.
        pending = self._pending.setdefault(writer.path, set())
        pending |= self._needed & named
        before = writer.size
        packed = self._packer.packed(batch)
        writer.append(packed, events, first)
        self.unsealed_bytes += plain_bytes(packed, writer.size - before)
        # Behind the write: a recovery that takes the lock from now on finds these rows.
        self._check()
        given_up = numbers_in(events, "discard")
        if given_up:
            self.forget(given_up)

    def _open_part(self) -> PartWriter:
        """Return the part to write to: a fresh one if there is none, or after a failed fsync."""
        writer = self._writer
        if writer is not None and writer.failed:
            writer.close()
        if writer is None or writer.closed:
            for stray in set(part_paths(self._directory)) - self._pending.keys():
                # An interrupt left it before it had a row; recovery would see a gap in the journal.
                with guard_access("remove the empty journal part", stray):
                    stray.unlink(missing_ok=True)
            path = part_path(self._directory, next(self._numbers))
            self._writer = writer = PartWriter(path, self._header, sync=self._sync)
        return writer

    def close_part(self) -> None:
        """Close the part that is being written; the next batch begins another.

        Raises:
            StoreAccessError: its end mark could not be written; call again.
        """
        if self._writer is not None:
            self._writer.close()
        self.unsealed_bytes = 0

    def holding(self, numbers: set[int]) -> list[Path]:
        """Return the parts that have rows of these episodes, oldest first."""
        return [path for path, pending in self._pending.items() if pending & numbers]

    def rows_of(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an episode that are in the journal, in order.

        Raises:
            StoreAccessError: a part cannot be read.
            CorruptStoreError: a part is damaged.
        """
        for spans in spans_of_parts(map(PartReader, self.holding({number}))):
            for span in np.flatnonzero(spans.numbers == number).tolist():
                yield spans.rows(int(spans.starts[span]), int(spans.stops[span])).unpacked()

    def forget(self, numbers: set[int]) -> None:
        """Stop keeping these episodes; delete the closed parts that no episode needs any more.

        Raises:
            StoreAccessError: a part could not be deleted; the next call tries again.
        """
        self._needed -= numbers
        for pending in self._pending.values():
            pending -= numbers
        writer = self._writer
        current = None if writer is None or writer.closed else writer.path
        for path in [path for path, pending in self._pending.items() if not pending and path != current]:
            with guard_access("remove the sealed journal", path):
                path.unlink(missing_ok=True)
            del self._pending[path]
