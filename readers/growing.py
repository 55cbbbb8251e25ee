"""`GrowingEpisode`: an episode that a writer is recording, as one that grows.

It is read as recovery would: its rows are copied into a journal of its own, in memory, from which a store
with this episode alone is recovered, again each time that it has grown.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..store.creation import make_tables
from ..store.errors import EpisodelakeError, NothingToDrawError
from ..store.files.locating import memory_place
from ..store.journal.packed_columns import Packer
from ..store.journal.reading import JournalBatch
from ..store.journal.row_index import RowSpans
from ..store.journal.run_journal import PartWriter, part_path
from ..store.layout import Layout
from ..store.manifest import write_manifest
from ..store.recovery.recovery import recover
from ..store.schema import StoreHandle
from ..store.snapshot import Snapshot
from .context import ReadContext
from .episode import Episode
from .episodes import find_episode
from .unsealed import FollowedJournal, UnsealedEpisode

#: Seconds between two looks at a journal; a pause is at least so many times as long as the look took.
POLL = 0.5
REST = 5.0
#: Larger episodes can be read only when they are sealed.
MOST_BYTES = 512 << 20
_names = itertools.count()


class _TooLargeError(NothingToDrawError):
    """An unsealed episode is larger than what is copied, or than the memory that is free."""

    def __init__(self) -> None:
        super().__init__("This episode is too large to be shown before it is sealed.")


class GrowingEpisode:
    """An unsealed episode of a running writer, readable as far as it was recorded.

    Its rows are copied into memory and read further with each call of `episode`, though at most twice a
    second. The writer is not disturbed.

    Args:
        store: the `handle` of its store.
        unsealed: the episode, of `JournalFollower`.
    """

    def __init__(self, store: StoreHandle, unsealed: UnsealedEpisode) -> None:
        self._manifest = store.manifest
        self._directory = unsealed.directory
        self._number = unsealed.record.number
        self._episode: Episode | None = None
        self._too_large = False
        self._part: PartWriter | None = None
        self._earliest = 0.0
        self._begin()

    def _begin(self) -> None:
        """Read the journal from its beginning, into a new part."""
        self._journal = FollowedJournal(self._directory)
        self._folder = _new_folder()
        self._packer = Packer()
        self._rows = 0
        self._grown = self._cut = False

    def episode(self) -> Episode | None:
        """Return the episode as far as it was recorded, the same object until it has grown.

        Returns:
            None if it has no step yet.

        Raises:
            NothingToDrawError: it is larger than 512 MiB, or than the memory that is free.
            StoreAccessError, CorruptStoreError: its journal cannot be read.
        """
        if self._too_large:
            raise _TooLargeError
        started = time.monotonic()
        if started < self._earliest:
            return self._episode
        try:
            for batch in self._journal.batches():
                self._copy(batch)
            if self._grown and self._part is not None:
                self._episode = self._recovered(self._part.path) or self._episode
                self._grown = False
        except BaseException as error:
            # A batch may be missing in what was copied.
            self.close()
            self._begin()
            self._too_large = isinstance(error, _TooLargeError)
            raise
        finally:
            self._earliest = time.monotonic() + max(POLL, REST * (time.monotonic() - started))
        return self._episode

    def _copy(self, batch: JournalBatch) -> None:
        """Append what a batch has of the episode to its own journal."""
        events = [_own(event) for event in batch.events() if event["number"] == self._number]
        spans = RowSpans.of(batch.rows, batch.source)
        places = np.flatnonzero(spans.numbers == self._number)
        # Recovery cuts an episode where rows may be missing.
        self._cut |= batch.after_gap and self._part is not None
        if self._cut or not (events or len(places)):
            return
        if self._part is None:
            self._part = self._new_part()
        limits = zip(spans.starts[places].tolist(), spans.stops[places].tolist(), strict=True)
        rows = pa.concat_batches([spans.rows(*each).unpacked() for each in [(0, 0), *limits]])
        # Besides the part, a store is made of it.
        needed = self._part.size + 2 * rows.nbytes
        if self._part.size > MOST_BYTES or needed > shutil.disk_usage(self._folder).free:
            raise _TooLargeError
        self._part.append(self._packer.packed(rows), events, self._rows)
        self._rows += rows.num_rows
        self._grown = True

    def _new_part(self) -> PartWriter:
        header = self._journal.header
        assert header is not None
        folder = self._folder / header.run_id
        folder.mkdir(parents=True)
        return PartWriter(part_path(folder, 0), header, sync=False)

    def _recovered(self, part: Path) -> Episode | None:
        """Return the episode from a new store; None if it has no step."""
        path = _new_folder()
        store = StoreHandle(Layout.at(path), self._manifest)
        try:
            make_tables(store)
            write_manifest(store.layout, self._manifest)
            journal = store.layout.journals / part.parent.name
            journal.mkdir()
            (journal / part.name).hardlink_to(part)
            recover(store)
            snapshot = Snapshot(store.layout, self._manifest)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        # It is read for as long as somebody has the episode.
        weakref.finalize(snapshot, shutil.rmtree, path, ignore_errors=True).atexit = False
        context = ReadContext.of(snapshot)
        return find_episode(context, 0) if len(context) else None

    def close(self) -> None:
        """Delete what was copied; episodes that were returned stay readable."""
        with contextlib.suppress(EpisodelakeError):
            if self._part is not None:
                self._part.close()
        self._part = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _new_folder() -> Path:
    """Return the place of a folder in memory that is not made yet."""
    return memory_place(f"unsealed/{next(_names)}").local


def _own(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without the episode that it continues, which is in another store."""
    return {key: value for key, value in event.items() if key not in ("continues", "continued_steps")}
