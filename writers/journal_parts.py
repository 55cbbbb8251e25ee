"""The journal of one live run: which part is written, and which parts are still needed.

A part is closed when a seal is asked for, and deleted as soon as no episode in it is live or waits for its
seal. Not safe for several threads; the session holds its lock around every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..store.episode_events import told_numbers
from ..store.files import guard_access
from ..store.first_array import make_first_array
from ..store.journal import PartWriter, RunHeader, part_path
from ..store.packed_columns import Packer, plain_bytes


@dataclass
class _Part:
    """A part and the episodes that still need it."""

    path: Path
    pending: set[int] = field(default_factory=set)
    closed: bool = False


class JournalParts:
    """Writes the parts of one run.

    Args:
        directory: the run's journal directory.
        header: the run.
        sync: call fsync after each batch.

    Attributes:
        unsealed_bytes: how much was written since the last `close_part`; of packed columns, what they were
            before.
    """

    def __init__(self, directory: Path, header: RunHeader, *, sync: bool) -> None:
        make_first_array()
        self.unsealed_bytes = 0
        self._directory = directory
        self._header = header
        self._sync = sync
        self._writer: PartWriter | None = None
        self._packer = Packer()
        self._parts: list[_Part] = []
        self._count = 0
        self._needed: set[int] = set()

    def need(self, number: int) -> None:
        """Keep the rows of an episode from now on, until it is forgotten."""
        self._needed.add(number)

    def append(
        self, batch: pa.RecordBatch, events: Sequence[dict[str, Any]], numbers: Iterable[int], first: int
    ) -> None:
        """Append a batch with rows of the episodes `numbers`; `first` as for `PartWriter.append`.

        Raises:
            StoreAccessError: it could not be written; nothing of it remains, call again.
        """
        if self._writer is None:
            path = part_path(self._directory, self._count)
            # Counted first: a name that could not be made may be taken all the same.
            self._count += 1
            self._writer = PartWriter(path, self._header, sync=self._sync)
            self._parts.append(_Part(path))
        before = self._writer.size
        packed = self._packer.packed(batch)
        self._writer.append(packed, events, first)
        self.unsealed_bytes += plain_bytes(packed, self._writer.size - before)
        # An event may come in a later part than the rows of its episode; it must not go before they do.
        self._parts[-1].pending |= self._needed & {*numbers, *told_numbers(events)}

    def close_part(self) -> None:
        """Close the part that is being written; the next batch begins another.

        Raises:
            StoreAccessError: its end mark could not be written; call again.
        """
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._parts[-1].closed = True
        self.unsealed_bytes = 0

    def holding(self, numbers: set[int]) -> list[Path]:
        """The parts that have rows of these episodes, oldest first."""
        return [part.path for part in self._parts if part.pending & numbers]

    def forget(self, numbers: set[int]) -> None:
        """No longer keep these episodes; delete the closed parts that nobody needs any more.

        Raises:
            StoreAccessError: a part could not be deleted; that costs room only.
        """
        self._needed -= numbers
        for part in list(self._parts):
            part.pending -= numbers
            if part.closed and not part.pending:
                self._parts.remove(part)
                with guard_access("remove the sealed journal", part.path):
                    part.path.unlink(missing_ok=True)
