"""Files of the tables as commits list them, and the row pointers in them.

The sealer and the maintenance operations make their episodes files here, so both carry the same statistics.
Pointers that lead out of the store, and episodes that share rows, are refused here.

Each run brings a file of one row to the table of runs. A writer that closes its run joins files once there
are many of a size, so their number grows with the logarithm of the number of runs; `compact` joins all of
them. The row of a run that goes on keeps its file, which its writer replaces at the end.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..delta.log import NewFile, TableFile, commit_name
from ..delta.state import listed_log
from ..delta.table import Table
from ..delta.version import TableVersion
from ..errors import CorruptStoreError, EpisodelakeError
from ..files import Place
from ..layout import EPISODES, RUNS, STEPS, Layout, segment_name
from ..parquet.files import check_listed, open_parquet, over_files, read_parquet, reading_file
from ..parquet.writing import parquet_writer
from ..schema import StepSchema
from ..spaces.arrow import values_of
from .episode_figures import EpisodeFigures

_EPISODE_ROW_GROUP = 65_536
_EPISODE_ROW_BYTES = 256
LIVE = "-live.parquet"
#: So many files of about one size become one; also how much larger the files of the next size are.
_MANY = 128
#: How often a closing writer counts the files, in versions of the table.
_EVERY = 32
#: The columns of the episodes table that point at steps.
POINTERS = ("segment", "row_start", "row_count")
_SCHEMA = pa.schema(
    [
        ("segment", pa.dictionary(pa.int32(), pa.string())),
        ("row_start", pa.int64()),
        ("row_count", pa.int64()),
    ]
)


def write_table_file(
    place: Place, table: pa.Table, moment: int | None = None, episodes_of: StepSchema | None = None
) -> NewFile:
    """Write rows of `episodes` or `runs` as one file, and say how to list it.

    Args:
        place: the file.
        table: its rows; the metadata of columns is not written.
        moment: the place of the file in the order of files; None for the end.
        episodes_of: the schema of the store whose episodes they are; None for `runs`.

    Raises:
        StoreAccessError: it could not be written.
    """
    schema = pa.schema([column.remove_metadata() for column in table.schema])
    with parquet_writer(place, schema, _EPISODE_ROW_BYTES) as writer:
        writer.write_table(pa.table(table.columns, schema=schema), row_group_size=_EPISODE_ROW_GROUP)
    figures = None if episodes_of is None else EpisodeFigures.of(table, episodes_of).text()
    bounds = _bounds(table)
    sizes = (moment, writer.nbytes, figures, writer.footer)
    return NewFile(place.name, table.num_rows, null_counts(table), *bounds, *sizes)


def null_counts(table: pa.Table) -> dict[str, int]:
    """Return how many NULLs each column has."""
    return {name: column.null_count for name, column in zip(table.column_names, table.columns, strict=True)}


def _bounds(table: pa.Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Smallest and largest values of the columns that commits carry statistics of; finite ones only."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    column = "episode_id" if "episode_id" in table.column_names else "run_id"
    for name in (column, "length", "episode_return"):
        if name not in table.column_names or pa.types.is_list(table.schema.field(name).type):
            continue
        values = table.column(name)
        # min_max passes over NaN, which a statistic must not.
        if pa.types.is_floating(values.type) and not np.isfinite(values.to_numpy()).all():
            continue
        bounds = _min_max(values)
        if bounds["min"] is not None:
            smallest[name], largest[name] = bounds["min"], bounds["max"]
    return smallest, largest


def _min_max(values: pa.ChunkedArray) -> dict[str, Any]:
    # Not needed to open a store, and slow to import.
    import pyarrow.compute as pc

    return pc.call_function("min_max", [values]).as_py()


def list_steps_file(place: Place) -> NewFile:
    """Return the listing of an existing steps file, from its footer and its ids.

    Raises:
        CorruptStoreError: it is damaged or missing.
    """
    file = open_parquet(place)
    nulls = dict.fromkeys(file.schema_arrow.names, 0)
    with reading_file(place):
        for group in range(file.num_row_groups):
            for name, column in zip(nulls, file.read_row_group(group).columns, strict=True):
                nulls[name] += column.null_count
        ids = file.read(columns=["episode_id"]).column("episode_id")
    extremes = _min_max(ids)
    if extremes["min"] is None:
        raise CorruptStoreError(f"The file {place} has no episode ids.")
    bounds = ({"episode_id": extremes["min"]}, {"episode_id": extremes["max"]})
    return NewFile(place.name, file.metadata.num_rows, nulls, *bounds)


def closed_files(runs: Table) -> list[TableFile]:
    """Return the files with rows of runs that are over."""
    return [file for file in runs.files() if not file.name.endswith(LIVE)]


def join_many(runs: Table, run_id: str) -> None:
    """Join files of about one size if there are many, for a run that was closed just now.

    The new file has the name of a segment of the run, which keeps vacuum away as long as the run's journal is
    there. What fails is left to the next run: the files stay as they are.
    """
    # A run commits twice: one of two versions in a row is certain to be looked at.
    if runs.version % _EVERY > 1:
        return
    with contextlib.suppress(EpisodelakeError):
        sizes: dict[int, list[TableFile]] = defaultdict(list)
        for file in closed_files(runs):
            sizes[_size(file.rows)].append(file)
        for files in sizes.values():
            if len(files) >= _MANY:
                join(runs, files, segment_name(run_id, 0), join_id(run_id))
                return


def join_id(run_id: str) -> str:
    """Return the transaction of the commit that joins files for a run; the run has one of its own."""
    return f"join.{run_id}"


def _size(rows: int) -> int:
    size = 0
    while rows >= _MANY:
        rows, size = rows // _MANY, size + 1
    return size


def join(
    runs: Table,
    files: list[TableFile],
    name: str,
    operation: str,
    *,
    rewritten: Callable[[pa.Table], pa.Table] | None = None,
    columns: Callable[[pa.Schema], pa.Schema] | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Put one file in the place of several, in one commit.

    Args:
        runs: the table.
        files: of its newest version.
        name: of the new file.
        operation: a name that no other operation has.
        rewritten: gives the rows to write for those that the files have.
        columns, check: as for `Table.replace`.

    Raises:
        CorruptStoreError: a file is damaged; nothing was changed.
        ConcurrentCommitError: others joined these files first; nothing was changed.
        StoreAccessError: nothing was changed, or the commit was made.
    """

    def read(file: TableFile) -> pa.Table:
        table = read_parquet(runs.path / file.name, rows=file.rows)
        return table.cast(pa.schema([runs.schema.field(name) for name in table.column_names]))

    new = []
    if files:
        rows = pa.concat_tables(over_files(read, files, runs.path), promote_options="default")
        rows = rows if rewritten is None else rewritten(rows)
        new.append(write_table_file(runs.path / name, rows, files[0].moment))
    names = [file.name for file in files]
    runs.replace(new, names, operation, {"episodelake.operation": "join runs"}, columns, check)


def open_tables(layout: Layout, version: int | None, log: Sequence[str] | None) -> Sequence[TableVersion]:
    """Return a version of episodes, and the newest one of steps and runs as they were afterwards.

    Args:
        layout, version: the store, and which version; None for the newest.
        log: the names of the files in the log of episodes, if they have just been listed.
    """
    tables = [layout.table(name) for name in (EPISODES, STEPS, RUNS)]
    # Once the log of episodes is listed, an object store is asked for the rest at once.
    names = listed_log(tables[0]) if log is None else log
    wanted = [(tables[0], version, names), *((table, None, None) for table in tables[1:])]
    opened = over_files(lambda each: TableVersion(*each), wanted, layout.root)
    if version is None and commit_name(opened[0].version) not in names:
        return [opened[0], *(table.advanced() for table in opened[1:])]
    return opened


def run_ids(runs: Place, files: Iterable[TableFile]) -> Iterator[str]:
    """Yield the ids of the runs in some files of the table of runs; most are in its log."""
    for file in files:
        low, high = file.bounds("run_id") or (None, None)
        if low is not None and low == high:
            yield low
            continue
        # A damaged file of runs must not keep others from being read.
        with contextlib.suppress(CorruptStoreError):
            yield from read_parquet(runs / file.name, ["run_id"]).column(0).to_pylist()


@dataclass(frozen=True)
class FileGroup:
    """Files of a table that have the same columns, in commit order."""

    places: tuple[Place, ...]
    columns: frozenset[str]


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


def read_pointers(table: Place, files: Sequence[TableFile], schema: pa.Schema) -> Pointers:
    """Read the row pointers of files of the episodes table, from three small columns; see `check_listed`.

    Raises:
        CorruptStoreError: a file cannot be read, or a pointer leads out of the store.
    """

    def read(file: TableFile) -> pa.Table:
        place = table / file.name
        # Here, while other files are on their way.
        check_listed(place, file, schema)
        rows = read_parquet(place, POINTERS, dictionaries=["segment"])
        with reading_file(place):
            if rows.schema.types != _SCHEMA.types:
                raise ValueError(f"it has {rows.schema.types} for the row pointers")
        return rows

    tables = over_files(read, files, table)
    return pointers_of(pa.concat_tables([pa.Table.from_batches([], _SCHEMA), *tables]), table.parent)


def pointers_of(table: pa.Table, root: Place) -> Pointers:
    """Return the row pointers among the columns of rows of the episodes table.

    Raises:
        CorruptStoreError: a pointer leads out of the store, or cannot be one.
    """
    if any(table.column(name).null_count for name in POINTERS):
        raise CorruptStoreError(f"The episodes table of {root} has row pointers that are NULL.")
    table = table.select(POINTERS)
    # A cast imports pyarrow.compute.
    table = table if table.schema.types == _SCHEMA.types else table.cast(_SCHEMA)
    table = table.unify_dictionaries().combine_chunks()
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
    starts, counts = (values_of(table.column(name)) for name in POINTERS[1:])
    if encoded.null_count or (starts < 0).any() or (counts < 2).any():
        raise CorruptStoreError(f"The episodes table of {root} has impossible row pointers.")
    segment = values_of(encoded.indices)
    _check_apart(segment, starts, counts, root)
    return Pointers(names, segment, starts, counts)


def _check_apart(segment: np.ndarray, starts: np.ndarray, counts: np.ndarray, root: Place) -> None:
    """Refuse two episodes that share rows."""
    stops = starts + counts
    together = segment[1:] == segment[:-1]
    ordered = not (together & (starts[1:] < stops[:-1])).any()
    if not ordered or np.count_nonzero(~together) + 1 != np.count_nonzero(np.bincount(segment)):
        order = np.lexsort((starts, segment))
        segment, starts, stops = segment[order], starts[order], stops[order]
        if ((segment[1:] == segment[:-1]) & (starts[1:] < stops[:-1])).any() or (stops < 0).any():
            raise CorruptStoreError(f"The episodes table of {root} has episodes that share rows.")


def is_file_name(name: str) -> bool:
    """Return whether the name of a segment leads to a file of its table, and nowhere else."""
    return name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")
