"""Rows as they arrive, for observers of a run such as a replay buffer.

An observer pulls rows when it needs them, so recording does no work for it. A row source only makes it pull
before memory with rows that it may not have seen is reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


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
        """Make all rows count that are whole; called by an observer before it takes its lock."""
        ...

    def arrived(self) -> Iterator[ArrivedRows]:
        """Yield the complete rows that were not yielded before; the observer holds its lock."""
        ...
