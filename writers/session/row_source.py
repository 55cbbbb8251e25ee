"""Row sources: where the rows of a run wait until its session brings them to the journal.

A recorder or writer fills a source; the session asks it for what is pending. There are two kinds: single
rows (`step_rows`, with `agent_rows` for several agents) and blocks of rows from many environments
(`block_rows`).

An observer of a run, such as a replay buffer, pulls rows when it needs them, so recording does no work for
it. A row source only makes it pull before memory with rows that it may not have seen is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class JournalRows:
    """Rows and events on their way to the journal, written again unchanged until they are known to be there.

    Attributes:
        records: batches, each with the events that go beside it; at least one.
        numbers: the episodes of the rows.
        done: called once all records are written; may be called again.
    """

    records: Sequence[tuple[pa.RecordBatch, list[dict[str, Any]]]]
    numbers: set[int]
    done: Callable[[], None]


class RowSource(Protocol):
    """The rows of one run that are not in the journal yet."""

    @property
    def full(self) -> bool:
        """Whether rows must go to the journal soon, whatever `durability` says."""
        ...

    @property
    def ended(self) -> bool:
        """Whether episodes have ended that the session counts as finished once their rows are written."""
        ...

    @property
    def open(self) -> Collection[int]:
        """The numbers of the episodes that have not ended, as far as the source knows them."""
        ...

    def pending(self, before: float) -> Iterator[JournalRows]:
        """Yield what is complete; the session writes each before it asks for the next, and holds its lock.

        Args:
            before: the rows of whole episodes stay in memory unless they came before this moment of
                `time.monotonic`.
        """
        ...

    def end_all(self) -> None:
        """End the episodes that are open, since the session closes."""
        ...


@dataclass(frozen=True)
class ArrivedRows:
    """Complete rows `[start, start + n)` of a row buffer, in order of arrival, and the episodes that ended.

    Row 0 of an episode has its first observation. Each further row has an action, its reward and flags, and
    the observation after it. The buffers may be reused once the observer has pulled.

    Attributes:
        numbers: int64, shape (n,): the episode of each row.
        kinds: int16, shape (n,): `RESET_ROW`, `STEP_ROW` or `LATE_ROW`.
        values: observations, actions, rewards and flags, by column: the arrays of the whole buffer, nested as
            the spaces are.
        start: the first row in these arrays.
        envs: by number, the environments of episodes that began; 0 where one is absent.
        ended: the numbers of episodes that ended, each with whether it was discarded. Their rows are among
            these or arrived before.
    """

    numbers: np.ndarray
    kinds: np.ndarray
    values: Mapping[str, Any]
    start: int
    envs: Mapping[int, int]
    ended: Sequence[tuple[int, bool]]


class RowObserver(Protocol):
    """Pulls the rows of a row source, from any thread."""

    #: Held while rows are read; a row source clears memory under it.
    lock: AbstractContextManager[Any]

    def pull(self) -> None:
        """Take all complete rows that it has not seen."""
        ...


class ObservableRows(Protocol):
    """A row source that one observer may watch."""

    observer: RowObserver | None

    def complete(self) -> None:
        """Count all complete rows; an observer calls it before it takes its lock."""
        ...

    def arrived(self) -> Iterator[ArrivedRows]:
        """Yield the complete rows that were not yielded before; the observer holds its lock."""
        ...
