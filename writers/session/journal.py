"""The journal of a live run: when rows reach it, its parts, and the lock that one writer has on it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, NoReturn, SupportsIndex, TypedDict, get_args

import numpy as np
import pyarrow as pa

from ...store.common.arguments import one_of, positive_number, suggest, whole_number
from ...store.errors import InvalidArgumentError, RecorderStateError, StoreAccessError
from ...store.files import afterwards, guard_access, make_folder, remove_file, stat_or_none, sync_path
from ...store.files.locks import FileLock
from ...store.journal.packed_columns import Packer, plain_bytes
from ...store.journal.reading import PartReader
from ...store.journal.records import RunHeader, numbers_in
from ...store.journal.row_index import spans_of_parts
from ...store.journal.run_journal import (
    PartWriter,
    check_journals,
    lock_path,
    part_path,
    part_paths,
    remove_journal,
)
from ...store.layout import Layout, check_identity
from ...store.parquet.files import make_first_array
from ...store.spaces.coerce import Cast
from .row_source import JournalRows

Durability = Literal["flush", "fsync", "none"]


class SessionKeywords(TypedDict, total=False):
    """The attributes of `SessionOptions` as keyword arguments of whatever opens a run."""

    durability: Durability
    flush_seconds: float
    flush_steps: int | None
    seal_seconds: float
    seal_steps: int | None
    seal_episodes: int | None
    segment_bytes: int
    cast: Cast


@dataclass(frozen=True)
class SessionOptions:
    """When a session writes to the disk, and which values it casts.

    Attributes:
        durability: "flush" (rows survive the process), "fsync" (rows survive the machine) or "none"
            (rows reach the journal when the row buffer is full or `flush_steps` asks, no sooner).
        flush_seconds: rows reach the journal after this time at the latest; not used with "none".
        flush_steps: rows reach the journal as soon as this many wait, before the call that brings the last of
            them returns. A reset is a row, and so is the arrival of each agent or sub-environment.
        seal_seconds: finished episodes become visible to readers after about this time at the latest.
        seal_steps, seal_episodes: finished episodes are sealed in the background as soon as they have this
            many steps, or are this many. While a segment is written they gather for the next.
        segment_bytes: finished episodes are sealed as soon as the journal holds about this much.
        cast: "no" takes arrays whose dtype the space's dtype holds exactly. "safe" and "same_kind" also take
            what `numpy.can_cast` allows by that rule, rounded to the space's dtype: float64 in a float32
            space with "same_kind". A number outside the range of the space's dtype is an error either way.
    """

    durability: Durability = "flush"
    flush_seconds: float = 1.0
    flush_steps: int | None = None
    seal_seconds: float = 60.0
    seal_steps: int | None = None
    seal_episodes: int | None = None
    segment_bytes: int = 64 << 20
    cast: Cast = "no"

    @staticmethod
    def of(given: Mapping[str, Any], own: Collection[str] = ()) -> SessionOptions:
        """Return the options that keyword arguments state.

        Args:
            given: the keyword arguments.
            own: names of other arguments of the call.

        Raises:
            InvalidArgumentError: one is unknown, or makes no sense.
        """
        names = list(SessionOptions.__annotations__)
        for name in given:
            if name not in names:
                raise InvalidArgumentError(
                    f"There is no option {name!r}.{suggest(name, [*own, *names], 'record()')} "
                    f"The options of a run are {', '.join(names)}; "
                    "all other arguments are in the documentation of this call."
                )
        return SessionOptions(**given)

    @property
    def seals_by_count(self) -> bool:
        """Whether the number of finished episodes or their steps can cause a seal."""
        return self.seal_steps is not None or self.seal_episodes is not None

    def seal_now(self, episodes: int, steps: int) -> bool:
        """Return whether so many finished episodes with so many steps are to be sealed at once."""
        return (self.seal_episodes is not None and episodes >= self.seal_episodes) or (
            self.seal_steps is not None and steps >= self.seal_steps
        )

    def __post_init__(self) -> None:
        one_of("durability", self.durability, get_args(Durability))
        one_of("cast", self.cast, get_args(Cast))
        for name in ("flush_seconds", "seal_seconds"):
            object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        for name in ("segment_bytes", "flush_steps", "seal_steps", "seal_episodes"):
            value = getattr(self, name)
            if value is not None or name == "segment_bytes":
                object.__setattr__(self, name, whole_number(name, value, 1))


class NotCopyable:
    """The base of recorders, writers and sessions; `copy.copy`, `copy.deepcopy` and `pickle` raise."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            RecorderStateError: always.
        """
        raise RecorderStateError(
            f"Objects of type {type(self).__name__} cannot be copied or pickled: each holds a run's journal "
            "and lock. Open another one on the same store instead, in each process that records."
        )


#: Patient: a process that looks at a lock may be stopped while it has it.
_CLAIM_SECONDS = 30.0


def _claim(directory: Path) -> FileLock:
    """Take the lock of a run, then make its journal directory.

    Raises:
        StoreAccessError: the directory cannot be made.
        RecorderStateError: another writer has it.
    """
    check_journals(directory.parent)
    with guard_access("create the journal", directory):
        make_folder(directory.parent)
        # A recovery may hold the lock, to see if it is a stray one.
        lock = FileLock.wait_for(lock_path(directory), _CLAIM_SECONDS)
        if lock is None:
            raise RecorderStateError(f"The run {directory.name!r} is being written already.")
        try:
            directory.mkdir()
            sync_path(directory.parent)
        except BaseException:
            # Recovery finds a directory that was made already by its lock.
            gone = False
            with contextlib.suppress(OSError):
                gone = stat_or_none(directory, follow=False) is None
            lock.release(remove=gone)
            raise
    return lock


class RunJournal:
    """The journal of one live run: its lock, the part being written, and the parts that are still needed.

    A part is closed when a seal is requested, and deleted once no episode in it is live or waits for its
    seal. An interrupt may come between any two lines and the same call may then be repeated: a part is
    registered with its episodes before it gets their rows, and deleted before it is dropped from the
    register. Not safe for several threads; the session holds its lock around every call.

    Args:
        layout: the store.
        header: the run.
        sync: call fsync after each batch.

    Attributes:
        directory: the run's journal directory.
        unsealed_bytes: how much was written since the last `close_part`; of packed columns, what they were
            before.

    Raises:
        StoreAccessError: the directory cannot be made.
        RecorderStateError: another writer has it.
    """

    def __init__(self, layout: Layout, header: RunHeader, *, sync: bool) -> None:
        make_first_array()
        self.directory = layout.journals / header.run_id
        self._layout = layout
        self._header = header
        self._sync = sync
        self.unsealed_bytes = 0
        self._writer: PartWriter | None = None
        self._packer = Packer()
        # The episodes that still need each part, oldest part first.
        self._pending: dict[Path, set[int]] = {}
        self._numbers = count()
        self._needed: set[int] = set()
        # What is being written, and the place of its first row in the run; and how many rows are written.
        self._unfinished: tuple[JournalRows, int] | None = None
        self._place = 0
        # Whether everything is in the store: from then on the journal may be gone, also after an interrupt.
        self._all_committed = False
        self._lock = _claim(self.directory)

    @property
    def is_ours(self) -> bool:
        """Whether it was neither removed nor recovered by another process."""
        return self._lock.is_ours()

    def check(self) -> None:
        """Refuse a journal that was removed, or recovered by `recover(other_hosts=True)`.

        Raises:
            StoreNotFoundError: it went with the store.
            StoreAccessError: it alone is gone.
        """
        if not self._all_committed and not self.is_ours:
            check_identity(self._layout)
            raise StoreAccessError(
                f"The journal {self.directory} of the run {self._header.run_id!r} was removed, or recovered "
                "on another host although this writer lives. Nothing more of this run is recorded; what it "
                "recorded before may be in the store. Close it, and open a new writer."
            )

    def write(self, rows: JournalRows) -> None:
        """Write rows after all others of the run; none may be unfinished.

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
        self.check()
        given_up = numbers_in(events, "discard")
        if given_up:
            self.forget(given_up)

    def _open_part(self) -> PartWriter:
        """Return the part to write to: a fresh one if there is none, or after a failed fsync."""
        writer = self._writer
        if writer is not None and writer.failed:
            writer.close()
        if writer is None or writer.closed:
            for stray in set(part_paths(self.directory)) - self._pending.keys():
                # An interrupt left it before it had a row; recovery would see a gap in the journal.
                remove_file(stray)
            path = part_path(self.directory, next(self._numbers))
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

        A part that cannot be deleted is left to the next call: the episodes are in the store, or given up.
        """
        self._needed -= numbers
        for pending in self._pending.values():
            pending -= numbers
        writer = self._writer
        current = None if writer is None or writer.closed else writer.path
        for path in [path for path, pending in self._pending.items() if not pending and path != current]:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                del self._pending[path]

    def remove(self) -> None:
        """Remove the journal, since everything in it is committed; may be called again.

        Where that fails, it is left to the next writer, with a warning.

        Raises:
            StoreAccessError: it is no longer this run's.
        """
        self.check()
        self._all_committed = True
        left, gone = f"Its journal {self.directory} stays; the next writer removes it.", False
        with afterwards(f"The run {self._header.run_id!r} is in the store", left):
            self.close_part()
            remove_journal(self.directory)
            gone = True
        self._lock.release(remove=gone)

    def leave(self) -> None:
        """Release the lock, so that a recovery may take the journal."""
        self._lock.release(remove=False)
