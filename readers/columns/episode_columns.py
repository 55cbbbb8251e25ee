"""Columns of the episodes table in a loader: each row has the value of its episode.

So units, orders, caches and transforms treat them as columns of steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from ...store.dynamic.column_groups import METADATA
from ...store.dynamic.values import load_object
from ...store.errors import InvalidArgumentError
from ...store.layout import EPISODES
from ...store.names import END_REASON, TERMINATED, TRUNCATED
from ...store.snapshot import Snapshot
from ...store.tables.table_files import Pointers
from ..blocks import Block
from ..frames import collect_episodes, polars_schema, positioned_episodes
from .column import Column
from .selection import Selection
from .specs import EpisodeColumns, choose_columns
from .texts import is_text, text_array
from .tree import Tree

#: Keys that a batch has of each step.
_OF_STEPS = (TERMINATED, TRUNCATED, END_REASON)


@dataclass(frozen=True)
class EpisodeColumn(Column):
    """A number or a text of each episode; where it has none, NaN, 0 or "".

    Attributes:
        positions: int64, shape (E,): positions in the snapshot, ascending.
        cells: shape (E,): the values of the episodes there.
    """

    positions: np.ndarray = field(repr=False)
    cells: np.ndarray = field(repr=False)

    def facts(self, snapshot: Snapshot, pointers: Pointers) -> dict[str, Any]:
        """See `Column`."""
        digest = hashlib.sha256(self.positions.astype("<i8").tobytes())
        digest.update(np.ascontiguousarray(self.cells).tobytes())
        return {**super().facts(snapshot, pointers), "episode_values": digest.hexdigest()}

    def values(self, block: Block, snapshot: Snapshot) -> Tree:
        """Raise an error: its values are in no block."""
        raise TypeError("A column of episodes has no values in a block of steps.")

    def repeat(self, selection: Selection, into: np.ndarray) -> None:
        """Write the values of a selection's episodes into all of their rows.

        Args:
            selection: of episodes that the column has, or of agents in them.
            into: shape (rows,).
        """
        index, positions = selection.index, selection.positions
        own = positions if index.numbers is None else positions[index.numbers]
        places = np.searchsorted(self.positions, own)
        into[...] = np.repeat(self.cells[places], index.lengths + 1)


def choose_loaded(snapshot: Snapshot, selection: Selection, names: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of some names, as `choose_columns` does; also texts, and columns of episodes.

    Raises:
        InvalidArgumentError: see `choose_columns`; or an episode's metadata has a value of another kind.
    """
    make = partial(_make, snapshot, selection.positions)
    return choose_columns(snapshot, selection, names, _columns(snapshot, make), ragged=True)


def choose_followed(snapshot: Snapshot, selection: Selection, names: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of some names, as `choose_columns` does, for a loader that follows the store.

    Raises:
        InvalidArgumentError: see `choose_columns`; or it is a column of episodes or of texts, or its rows
            differ in length.
    """

    def refuse(base: str, name: str) -> Column:
        raise InvalidArgumentError(
            f"{name!r} is a column of episodes, which may change while the store is followed. Leave it out, "
            "or make a loader of the newest version from time to time: store.refresh().loader(...)."
        )

    columns = choose_columns(snapshot, selection, names, _columns(snapshot, refuse), ragged=True)
    for column in columns:
        if is_text(column.template) or column.is_ragged:
            what = "of texts" if is_text(column.template) else "whose rows differ in length"
            raise InvalidArgumentError(
                f"{column.name!r} is a column {what}, and the next episodes of a store that is followed "
                "may have longer ones. Leave it out, or make a loader of the newest version from time to "
                "time: store.refresh().loader(...)."
            )
    return columns


def episode_fields(snapshot: Snapshot) -> list[str]:
    """Return the columns of episodes that `choose_loaded` has."""
    # From the schema of the table alone: files of an older version may be gone, which a loader that follows
    # allows.
    return [
        name
        for name, kind in polars_schema(snapshot.table_schema(EPISODES)).items()
        if name not in _OF_STEPS and (kind == pl.String or kind == pl.Boolean or kind.is_numeric())
    ]


def _columns(snapshot: Snapshot, make: Callable[[str, str], Column]) -> EpisodeColumns:
    return EpisodeColumns(dict.fromkeys(episode_fields(snapshot), make))


def _make(snapshot: Snapshot, positions: np.ndarray, base: str, name: str) -> EpisodeColumn:
    """Return the column of a name: `base`, or whether `base` has a value."""
    ordered = np.unique(positions)
    frame = positioned_episodes(snapshot, ordered)
    wanted = [base]
    if base.startswith(METADATA.prefix) and METADATA.json_column in frame.collect_schema():
        wanted.append(METADATA.json_column)
    rows = collect_episodes(snapshot, frame.select(wanted))
    values = rows[base]
    if name != base:
        cells = values.is_not_null().to_numpy()
    else:
        if len(wanted) > 1:
            _refuse_other_kinds(rows, base)
        cells = _cells(values)
    return EpisodeColumn(name, cells[:0], (), False, ordered, cells)


def _cells(values: pl.Series) -> np.ndarray:
    if values.dtype == pl.String:
        return text_array(values.fill_null("").to_list(), f"The column {values.name!r}")
    empty = float("nan") if values.dtype.is_float() else False if values.dtype == pl.Boolean else 0
    return values.fill_null(empty).to_numpy()


def _refuse_other_kinds(rows: pl.DataFrame, base: str) -> None:
    """Refuse metadata that some episodes have as a value of another kind, beside the column.

    Raises:
        InvalidArgumentError: an episode has one.
    """
    path = METADATA.path(base)
    for text in rows.filter(pl.col(base).is_null())[METADATA.json_column].drop_nulls():
        value: Any = load_object(text, f"The column {METADATA.json_column!r}")
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            raise InvalidArgumentError(
                f"The column {base!r} has values of different kinds, such as {value!r:.100}; a batch "
                "needs one kind. Choose episodes in which it has one, or leave the column out."
            )
