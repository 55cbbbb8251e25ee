"""`ReadContext`: some episodes of one snapshot, and the readers of their rows.

The bottom of this package. Frames, queries, loaders, charts, cards and replays take a context; `EpisodeView`
holds one and delegates to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..store.agents import lanes_of
from ..store.delta.log import TableFile
from ..store.dynamic.columns import align_to_schema
from ..store.errors import CorruptStoreError, InvalidArgumentError, QueryError
from ..store.layout import EPISODES
from ..store.parquet.files import check_listed, open_parquet, reading_file
from ..store.snapshot import Snapshot
from ..store.spaces.arrow import values_of
from .blocks import BlockReader
from .formatting import counted

#: Values of `?` and `$1` in order, or of `$name` by name.
Parameters = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class SqlCondition:
    """An SQL condition over the episodes table, with the values of its parameters if it has some."""

    text: str
    parameters: Parameters | None = None

    def __str__(self) -> str:
        """Return the text, and the parameters if there are some."""
        return self.text if self.parameters is None else f"{self.text} with {self.parameters!r}"

    @staticmethod
    def of(condition: object, parameters: Parameters | None, what: str) -> pl.Expr | SqlCondition:
        """Return a condition as a caller gave it: an expression, or SQL text with its parameters.

        Args:
            condition, parameters: the arguments.
            what: the condition, for errors, such as "a filter".

        Raises:
            QueryError: it is something else, or there are parameters for an expression.
        """
        if isinstance(condition, str):
            # Of a member of an enumeration, a formatted text would be its name.
            return SqlCondition(str.__str__(condition), parameters)
        given = f"{what} of type {type(condition).__name__}"
        if parameters is not None:
            raise QueryError(
                f"parameters={parameters!r:.200} came with {given}; expected them with SQL text. Put the "
                "values into the expression."
            )
        if not isinstance(condition, pl.Expr | SqlCondition):
            raise QueryError(
                f"{given[0].upper()}{given[1:]} was given; expected a Polars expression or SQL text."
            )
        return condition


@dataclass(frozen=True, eq=False)
class ReadContext:
    """Some episodes of a snapshot, in an order.

    Attributes:
        snapshot: the version of the store.
        blocks: the open files of steps; contexts of one snapshot share them.
        rows: the rows of episodes; shared too.
        positions: int64, positions in the snapshot; None for all.
        conditions: the filters that gave these positions, one after the other; None if they came otherwise.
    """

    snapshot: Snapshot
    blocks: BlockReader
    rows: EpisodeRowReader
    positions: np.ndarray | None = None
    conditions: tuple[pl.Expr | SqlCondition, ...] | None = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> ReadContext:
        """Return all episodes of a snapshot."""
        return cls(snapshot, BlockReader(snapshot), EpisodeRowReader(snapshot))

    def choose(
        self, positions: np.ndarray, conditions: tuple[pl.Expr | SqlCondition, ...] | None = None
    ) -> ReadContext:
        """Return the context of other episodes of the same snapshot."""
        return replace(self, positions=positions, conditions=conditions)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return self.snapshot.episode_count if self.positions is None else len(self.positions)

    @property
    def all_positions(self) -> np.ndarray:
        """int64: the positions, also where all episodes are chosen."""
        return np.arange(len(self)) if self.positions is None else self.positions

    @cached_property
    def segments(self) -> frozenset[str] | None:
        """The files that hold the steps of these episodes; None for all of the snapshot."""
        return None if self.positions is None else self.snapshot.segments_of(self.positions)

    def check_not_empty(self, purpose: str) -> None:
        """Refuse to do something without episodes.

        Args:
            purpose: such as "to load".

        Raises:
            InvalidArgumentError: there is no episode; the message names the filters that left none.
        """
        if len(self):
            return
        if not self.snapshot.episode_count:
            why = "the store has none."
        elif self.conditions:
            filters = " and ".join(str(each) for each in self.conditions)
            why = (
                f"of {counted(self.snapshot.episode_count, 'episode')} none has {filters}. Check the filter."
            )
        else:
            why = f"the view has none of the store's {counted(self.snapshot.episode_count, 'episode')}."
        raise InvalidArgumentError(f"There is no episode {purpose}: {why}{refresh_hint(self.snapshot)}")


class ContextView:
    """The base of views, and the argument of functions that are their methods.

    Attributes:
        context: the episodes, as the rest of the library reads them.
    """

    context: ReadContext

    def __init__(self, context: ReadContext) -> None:
        self.context = context


def refresh_hint(snapshot: Snapshot) -> str:
    """Return a hint that a newer version exists, for errors about a missing name; else nothing."""
    newer = snapshot.newer_version()
    if newer is None:
        return ""
    newest = f"Version {newer} is newer: refresh the store, or open that version."
    return f" This is version {snapshot.version}. {newest}"


_KEPT_FILES = 4


class EpisodeRowReader:
    """Finds the row of an episode in the files of one snapshot; keeps the last few files in memory.

    Safe to use from several threads.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        # Of the snapshot alone: a method of the reader would keep the reader, and the rows, in a cycle.
        self._rows = lru_cache(_KEPT_FILES)(partial(_checked_rows, snapshot))

    def __reduce__(self) -> tuple[Any, ...]:
        """Rows in memory stay in this process."""
        return EpisodeRowReader, (self.snapshot,)

    def find(self, position: int) -> tuple[pa.Table, int]:
        """Return the table of one file, with every column of the snapshot, and the episode's row in it.

        Raises:
            CorruptStoreError: the file is damaged or has another number of rows than was committed.
        """
        file, row = self.snapshot.row_of(position)
        return self._rows(file), row


def _checked_rows(snapshot: Snapshot, file: TableFile) -> pa.Table:
    path = snapshot.layout.table(EPISODES) / file.name
    with reading_file(path):
        rows = open_parquet(path).read()
    if rows.num_rows != file.rows:
        raise CorruptStoreError(f"{path} has {rows.num_rows} rows; {file.rows} were committed.")
    missing = {field.name for field in snapshot.schema.episodes}.difference(rows.column_names)
    if missing:
        raise CorruptStoreError(f"{path} has no column {', '.join(sorted(missing))}. The file is damaged.")
    check_listed(path, file, snapshot.episodes_schema)
    if rows.column("episode_id").null_count or not _fitting(snapshot, rows):
        raise CorruptStoreError(f"{path} has an episode without an id, or with an impossible length.")
    with reading_file(path):
        return align_to_schema(rows, snapshot.episodes_schema)


def _fitting(snapshot: Snapshot, rows: pa.Table) -> bool:
    """Return whether the lengths go with the numbers of rows."""
    if snapshot.schema.groups:
        return not lanes_of(rows, snapshot.schema.groups).bad.any()
    lengths, counts = rows.column("length"), rows.column("row_count")
    whole = not lengths.null_count and not counts.null_count
    return whole and np.array_equal(values_of(lengths) + 1, values_of(counts))
