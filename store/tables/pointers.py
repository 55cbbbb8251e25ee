"""Row pointers: where the steps of each episode are, as the episodes table has it.

`snapshot` and maintenance read them here, which refuses pointers that lead out of the store and episodes that
share rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import CorruptStoreError
from ..files import Place
from ..parquet.files import read_parquet, reading_error

#: The columns of the episodes table that point at steps.
POINTERS = ("segment", "row_start", "row_count")
_SCHEMA = pa.schema(
    [
        ("segment", pa.dictionary(pa.int32(), pa.string())),
        ("row_start", pa.int64()),
        ("row_count", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Pointers:
    """The rows of each episode in the steps table; one entry per position.

    Attributes:
        segments: names of the steps files.
        segment: int32, index into `segments`.
        row_start, row_count: int64, rows in that file.
    """

    segments: tuple[str, ...]
    segment: np.ndarray
    row_start: np.ndarray
    row_count: np.ndarray

    def chosen(self, which: slice | np.ndarray) -> Pointers:
        """Return those of some episodes: positions, a slice of them, or bool, one for each."""
        return Pointers(self.segments, self.segment[which], self.row_start[which], self.row_count[which])

    def extended(self, other: Pointers) -> Pointers:
        """Return these and those of later episodes, in other segments."""
        return Pointers(
            (*self.segments, *other.segments),
            np.concatenate([self.segment, other.segment + np.int32(len(self.segments))]),
            np.concatenate([self.row_start, other.row_start]),
            np.concatenate([self.row_count, other.row_count]),
        )


def read_pointers(places: Iterable[Place], root: Place) -> Pointers:
    """Read the row pointers of files of the episodes table, from three small columns.

    Raises:
        CorruptStoreError: a file cannot be read, or a pointer leads out of the store.
    """
    tables = [_SCHEMA.empty_table()]
    for place in places:
        found = read_parquet(place, POINTERS, dictionaries=["segment"])
        if found.schema.types != _SCHEMA.types:
            problem = ValueError(f"it has {found.schema.types} for the row pointers")
            raise reading_error(place, problem) from problem
        tables.append(found)
    return pointers_of(pa.concat_tables(tables), root)


def pointers_of(table: pa.Table, root: Place) -> Pointers:
    """Return the row pointers among the columns of rows of the episodes table.

    Raises:
        CorruptStoreError: a pointer leads out of the store, or cannot be one.
    """
    if any(table.column(name).null_count for name in POINTERS):
        raise CorruptStoreError(f"The episodes table of {root} has row pointers that are NULL.")
    table = table.select(POINTERS).cast(_SCHEMA).unify_dictionaries().combine_chunks()
    if not table.num_rows:
        empty = np.zeros(0, np.int64)
        return Pointers((), empty.astype(np.int32), empty, empty)
    encoded = table.column("segment").combine_chunks()
    names = tuple(encoded.dictionary.to_pylist())
    for name in names:
        if type(name) is not str or not is_file_name(name):
            raise CorruptStoreError(
                f"An episode of {root} points at the segment {name!r}; expected the name of a file in its "
                "steps table."
            )
    starts, counts = (table.column(name).to_numpy() for name in POINTERS[1:])
    if encoded.null_count or (starts < 0).any() or (counts < 2).any():
        raise CorruptStoreError(f"The episodes table of {root} has impossible row pointers.")
    segment = encoded.indices.to_numpy()
    _check_apart(segment, starts, counts, root)
    return Pointers(names, segment, starts, counts)


def _check_apart(segment: np.ndarray, starts: np.ndarray, counts: np.ndarray, root: Place) -> None:
    """Refuse two episodes that share rows."""
    stops = starts + counts
    together = segment[1:] == segment[:-1]
    ordered = not (together & (starts[1:] < stops[:-1])).any()
    if not ordered or np.count_nonzero(~together) + 1 != len(np.unique(segment)):
        order = np.lexsort((starts, segment))
        segment, starts, stops = segment[order], starts[order], stops[order]
        if ((segment[1:] == segment[:-1]) & (starts[1:] < stops[:-1])).any() or (stops < 0).any():
            raise CorruptStoreError(f"The episodes table of {root} has episodes that share rows.")


def is_file_name(name: str) -> bool:
    """Return whether the name of a segment leads to a file of its table, and nowhere else."""
    return name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")
