"""Open a store to look at it, and go on where some of its files are damaged.

Commands work out all that they will say before they print; `explored` can therefore begin again without the
files that turned out to be damaged, and names these on standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import duckdb
import polars.exceptions

from .._store import EpisodeStore
from ..store.errors import CorruptStoreError
from .arguments import open_store_at
from .page import report_warning

Result = TypeVar("Result")


@dataclass(frozen=True)
class Explored:
    """A store that is being looked at.

    Attributes:
        store: the store, without its damaged files.
        damaged: what is wrong with each file that was left out.
    """

    store: EpisodeStore
    damaged: tuple[str, ...] = ()


def explored(
    path: str, storage: Sequence[str] | None, work: Callable[[Explored], Result], version: str | None = None
) -> Result:
    """Open a store and work on it; again without the damaged files of its small tables, if there are any.

    Raises:
        CorruptStoreError: what the work needs is damaged itself.
    """
    store = open_store_at(path, storage, version)
    try:
        return work(Explored(store))
    except (CorruptStoreError, duckdb.Error, polars.exceptions.PolarsError):
        damaged = tuple(store.leave_out_damaged())
        if not damaged:
            raise
        for each in damaged:
            report_warning(each)
        return work(Explored(store, damaged))
