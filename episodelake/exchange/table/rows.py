"""Rows of any table, read in batches as often as needed, with the rows of each episode as neighbours.

Sources that can be read once only, and tables whose rows have to be sorted, are first copied to a Parquet
file in the temporary folder; DuckDB sorts, on disk where memory does not suffice.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin import plain_table, reading
from ...writers.importing.boundary import closed_on_error
from .arrays import EPISODE, exploded, has_episode, trajectory_columns
from .files import literal
from .mapping import FILE
from .opening import Spool, open_table, plain_schema

_BATCH_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_MOST_ROWS = 1 << 16
_SORT_MEMORY = "1GB"
_HEAD_ROWS = 16
_ROW = "__episodelake_row"


class TableRows:
    """The rows of a table.

    Attributes:
        name: of the file or folder, or of the class of an object.
        schema: of the table.
        many: whether it has several files.
        added: columns that are none of the source's: `FILE`, and the numbers of episodes.
    """

    def __init__(self, source: Any, *, looking: bool = False) -> None:
        """Open a table; one with a row for each trajectory as that of its steps.

        Args:
            looking: leave such rows as they are; only `names` is asked for.

        Raises:
            DatasetError: it is no table, or cannot be read.
        """
        self._spool = Spool()
        self._head: dict[str, pa.ChunkedArray] = {}
        self.name = Path(source).name if isinstance(source, str | Path) else type(source).__name__
        with closed_on_error(self), reading(self.name, "cannot be read as a table"):
            opened = open_table(source, self.name, self._spool)
            self._data, self._base = opened.data, opened.base
            self.many, self.added = opened.many, opened.added
            if not looking:
                self._data = self._steps()

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table, without views, dictionaries and runs: its batches have none."""
        schema = plain_schema(self._data.schema)
        return schema if self._base is None else schema.append(pa.field(FILE, pa.string()))

    @property
    def names(self) -> list[str]:
        """The names of the columns, with that of the episodes where each row is a trajectory."""
        names = self.schema.names
        lists = trajectory_columns(self.head(self._data.schema.names))
        return names if lists is None or has_episode(names) else [EPISODE, *names]

    def _steps(self) -> ds.Dataset | pa.Table:
        """Return the rows as steps, where each is a whole trajectory."""
        lists = trajectory_columns(self.head(self._data.schema.names))
        if lists is None:
            return self._data

        def tables() -> Iterator[pa.Table]:
            start = 0
            for batch in self.batches(self.schema.names):
                yield exploded(batch, lists, start)
                start += batch.num_rows

        steps = self._spool.joined(tables())
        self.added |= {EPISODE}
        self._base, self._head = None, {}
        del self.schema
        return steps

    def head(self, columns: Sequence[str]) -> pa.Table:
        """Return the first rows, up to 16."""
        unread = [name for name in columns if name not in self._head]
        if unread:
            first = next((batch for batch in self._batches(unread, _HEAD_ROWS) if batch.num_rows), None)
            rows = self.schema.empty_table() if first is None else pa.table(first).slice(0, _HEAD_ROWS)
            self._head |= {name: rows.column(name) for name in unread}
        return pa.table({name: self._head[name] for name in columns})

    def first(self, column: str, read: Callable[[pa.RecordBatch], pa.Array]) -> Any:
        """Return the first value of a column that is not NULL, as plain Python; None if there is none.

        Args:
            read: returns the values of a batch of the column.
        """
        batches = itertools.chain(pa.table(self.head([column])).to_batches(), self.batches([column]))
        return next((value[0].as_py() for each in batches if len(value := read(each).drop_null())), None)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, a few megabytes at a time.

        Raises:
            DatasetError: the table is damaged.
        """
        yield from self._batches(list(columns), self.rows_of(_BATCH_BYTES, columns))

    def _batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        batches = self._raw_batches(columns, size)
        while True:
            with reading(self.name):
                batch = next(batches, None)
                plain = None if batch is None else plain_table(pa.table(batch)).to_batches()
            if plain is None:
                return
            yield from plain

    def _raw_batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        if self._base is not None and FILE in columns:
            yield from self._named_batches([name for name in columns if name != FILE], columns, size)
            return
        if isinstance(self._data, pa.Table):
            # Makes no batch before it is asked for: the first rows may be all that is looked at.
            yield from self._data.select(columns).to_reader(size)
            return
        fragments = self._fragments()
        if fragments is not None and all(_is_plain(fragment, columns) for fragment in fragments):
            # A scanner reads far ahead, and reads to the end when it is given up.
            schema = pa.schema([self._data.schema.field(name) for name in columns])
            for fragment in fragments:
                with fragment.open() as source:
                    # A buffer for each column, in place of the whole file.
                    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES)
                    for batch in file.iter_batches(size, columns=columns):
                        yield batch.select(columns).cast(schema)
            return
        yield from self._data.to_batches(
            columns=columns, batch_size=size, batch_readahead=1, fragment_readahead=1
        )

    def _named_batches(self, stored: list[str], columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the name of their file."""
        assert isinstance(self._data, ds.Dataset) and self._base is not None
        some = stored or self._data.schema.names[:1]
        for fragment in self._data.get_fragments():
            name = os.path.relpath(fragment.path, self._base)  # pyright: ignore[reportAttributeAccessIssue]
            for batch in fragment.to_batches(schema=self._data.schema, columns=some, batch_size=size):
                names = pa.repeat(name, batch.num_rows)
                yield batch.append_column(FILE, names).select(columns)

    def _fragments(self) -> list[ds.Fragment] | None:
        """Return the files of a dataset; None if it has a filter, which they would not heed."""
        assert isinstance(self._data, ds.Dataset)
        try:
            return list(self._data.get_fragments())
        except ValueError:
            return None

    def rows_of(self, size: int, columns: Sequence[str]) -> int:
        """Return how many rows have about this many bytes."""
        head = self.head(columns)
        return int(np.clip(size * head.num_rows // max(1, head.nbytes), 16, _MOST_ROWS))

    def bytes_of(self, rows: int, columns: Sequence[str]) -> int:
        """Return about how many bytes so many rows have."""
        head = self.head(columns)
        return rows * head.nbytes // max(1, head.num_rows)

    def may_have_nulls(self, column: str) -> bool:
        """Return whether a column may hold NULL; quick."""
        if isinstance(self._data, pa.Table):
            return self._data.column(column).null_count > 0
        if self._base is not None and column == FILE:
            return False
        fragments = self._fragments()
        if fragments is None:
            return True
        for fragment in fragments:
            if not isinstance(fragment, ds.ParquetFileFragment):
                return True
            metadata = fragment.metadata
            for group in range(metadata.num_row_groups):
                row_group = metadata.row_group(group)
                for index in range(row_group.num_columns):
                    chunk = row_group.column(index)
                    if f"{chunk.path_in_schema}.".startswith(f"{column}.") and (
                        chunk.statistics is None or chunk.statistics.null_count != 0
                    ):
                        return True
        return False

    def sort(self, columns: Sequence[str], keys: Sequence[str]) -> None:
        """Sort the rows by some columns, in a file; equal rows keep their order, other columns are dropped.

        Raises:
            DatasetError: they cannot be sorted, or the table is damaged.
        """
        given = pa.schema([self.schema.field(name) for name in columns])
        start = 0

        def numbered() -> Iterator[pa.RecordBatch]:
            nonlocal start
            for batch in self.batches(columns):
                rows = pa.array(np.arange(start, start := start + batch.num_rows))
                yield batch.append_column(_ROW, rows)

        reader = pa.RecordBatchReader.from_batches(given.append(pa.field(_ROW, pa.int64())), numbered())
        target = self._spool.path()
        order = ", ".join('"' + key.replace('"', '""') + '"' for key in (*keys, _ROW))
        spill = literal(str(Path(target).with_suffix(".spill")))
        try:
            with duckdb.connect() as connection:
                connection.execute(f"SET memory_limit = '{_SORT_MEMORY}'; SET temp_directory = {spill}")
                connection.register("source", reader)
                connection.execute(
                    f"COPY (SELECT * EXCLUDE ({_ROW}) FROM source ORDER BY {order}) TO {literal(target)} "
                    "(FORMAT parquet, COMPRESSION zstd)"
                )
        except duckdb.Error as error:
            raise DatasetError(f"{self.name} cannot be sorted by {', '.join(keys)}: {error}") from error
        # DuckDB may have widened types.
        self._data, self._head, self._base = ds.dataset(target, schema=given), {}, None
        del self.schema

    def close(self) -> None:
        """Delete the copies."""
        self._spool.close()


def _is_plain(fragment: ds.Fragment, columns: Sequence[str]) -> bool:
    """Return whether a fragment is a Parquet file that has all of the columns itself."""
    return isinstance(fragment, ds.ParquetFileFragment) and {*columns} <= {*fragment.physical_schema.names}
