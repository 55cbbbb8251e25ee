"""Rows of any table, read in batches as often as needed, with the rows of each episode as neighbours.

Sources that can be read once only, and tables whose rows have to be sorted, are first copied to a Parquet
file in the temporary folder; DuckDB sorts, on disk where memory does not suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ....store.errors import DatasetError

_BATCH_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_MOST_ROWS = 1 << 16
_SORT_MEMORY = "1GB"
_HEAD_ROWS = 16
_ROW = "__episodelake_row"
_ARROW_MAGIC = b"ARROW1"
_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
}
_DELTA_LOG = "_delta_log"
#: DATE is none of them, since DuckDB takes a column of "inf" for dates.
_CSV_TYPES = ["BOOLEAN", "BIGINT", "DOUBLE", "TIMESTAMP", "VARCHAR"]


class TableRows:
    """The rows of a table.

    Attributes:
        name: of the file or folder, or of the class of an object.
        schema: of the table.
    """

    def __init__(self, source: Any) -> None:
        """Open a table.

        Raises:
            DatasetError: it is no table, or cannot be read.
        """
        self._folder: TemporaryDirectory[str] | None = None
        self._head: dict[str, pa.ChunkedArray] = {}
        self.name = Path(source).name if isinstance(source, str | Path) else type(source).__name__
        try:
            self._data = self._opened(source)
        except (pa.ArrowException, duckdb.Error, pl.exceptions.PolarsError, OSError, ValueError) as error:
            self.close()
            raise DatasetError(f"{self.name} cannot be read as a table: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._data.schema

    def _opened(self, source: Any) -> ds.Dataset | pa.Table:
        if isinstance(source, str | Path):
            return self._open_path(Path(source))
        if isinstance(source, pl.DataFrame):
            source = source.to_arrow()
        elif isinstance(source, pl.LazyFrame):
            source.sink_parquet(target := self._spool())
            return ds.dataset(target)
        elif isinstance(source, duckdb.DuckDBPyRelation):
            source = source.to_arrow_reader(_MOST_ROWS)
        elif hasattr(source, "to_pyarrow_dataset"):
            return source.to_pyarrow_dataset()
        elif _is_pandas(source):
            source = pa.Table.from_pandas(source, preserve_index=False)
        if isinstance(source, ds.Dataset):
            return source
        if isinstance(source, pa.RecordBatch):
            source = pa.table(source)
        if isinstance(source, pa.Table):
            return source
        if hasattr(source, "__arrow_c_stream__"):
            reader = pa.RecordBatchReader.from_stream(source)
            return self._written(reader.schema, reader)
        raise DatasetError(f"{self.name} is no table. {EXPECTED}")

    def _open_path(self, path: Path) -> ds.Dataset:
        kind = kind_of(path)
        if kind == "delta":
            from deltalake import DeltaTable

            return DeltaTable(path).to_pyarrow_dataset()
        if kind == "csv":
            # All rows decide the types: pyarrow takes those of the first block, and fails later.
            # One statement reads the file twice; a relation of Python's reads it once more for each question.
            source = f"read_csv({_literal(str(path))}, sample_size=-1, auto_type_candidates={_CSV_TYPES})"
            with duckdb.connect() as connection:
                connection.execute(
                    f"COPY (FROM {source}) TO {_literal(target := self._spool())} (FORMAT parquet)"
                )
            return ds.dataset(target)
        if kind is None:
            raise DatasetError(f"{path} is no table. {EXPECTED}")
        return _dataset(path, kind)

    def _spool(self) -> str:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="episodelake-")
        return str(Path(self._folder.name, f"{len(list(Path(self._folder.name).iterdir()))}.parquet"))

    def _written(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> ds.Dataset:
        with pq.ParquetWriter(target := self._spool(), schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
        return ds.dataset(target)

    def head(self, columns: Sequence[str]) -> pa.Table:
        """Return the first rows, up to 16."""
        unread = [name for name in columns if name not in self._head]
        if unread:
            first = next((batch for batch in self._batches(unread, _HEAD_ROWS) if batch.num_rows), None)
            found = self.schema.empty_table() if first is None else pa.table(first).slice(0, _HEAD_ROWS)
            self._head |= {name: found.column(name) for name in unread}
        return pa.table({name: self._head[name] for name in columns})

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, a few megabytes at a time.

        Raises:
            DatasetError: the table is damaged.
        """
        yield from self._batches(list(columns), self.rows_of(_BATCH_BYTES, columns))

    def _batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._raw_batches(columns, size)
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{self.name} cannot be read: {error}") from error

    def _raw_batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        if isinstance(self._data, pa.Table):
            yield from self._data.select(columns).to_batches(max_chunksize=size)
            return
        fragments = list(self._data.get_fragments())
        if all(_is_plain(fragment, columns) for fragment in fragments):
            # A scanner reads far ahead, and reads to the end when it is given up.
            schema = pa.schema([self.schema.field(name) for name in columns])
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

    def rows_of(self, size: int, columns: Sequence[str]) -> int:
        """Return how many rows have about this many bytes."""
        head = self.head(columns)
        return int(np.clip(size * head.num_rows // max(1, head.nbytes), 16, _MOST_ROWS))

    def may_have_nulls(self, column: str) -> bool:
        """Return whether a column may hold NULL; quick."""
        if isinstance(self._data, pa.Table):
            return self._data.column(column).null_count > 0
        for fragment in self._data.get_fragments():
            if not isinstance(fragment, ds.ParquetFileFragment):
                return True
            metadata = fragment.metadata
            for group in range(metadata.num_row_groups):
                row_group = metadata.row_group(group)
                for index in range(row_group.num_columns):
                    found = row_group.column(index)
                    if f"{found.path_in_schema}.".startswith(f"{column}.") and (
                        found.statistics is None or found.statistics.null_count != 0
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
        target = self._spool()
        order = ", ".join('"' + key.replace('"', '""') + '"' for key in (*keys, _ROW))
        spill = _literal(str(Path(target).with_suffix(".spill")))
        try:
            with duckdb.connect() as connection:
                connection.execute(f"SET memory_limit = '{_SORT_MEMORY}'; SET temp_directory = {spill}")
                connection.register("source", reader)
                connection.execute(
                    f"COPY (SELECT * EXCLUDE ({_ROW}) FROM source ORDER BY {order}) TO {_literal(target)} "
                    "(FORMAT parquet, COMPRESSION zstd)"
                )
        except duckdb.Error as error:
            raise DatasetError(f"{self.name} cannot be sorted by {', '.join(keys)}: {error}") from error
        # DuckDB may have widened types.
        self._data, self._head = ds.dataset(target, schema=given), {}

    def close(self) -> None:
        """Delete the copies."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _is_plain(fragment: ds.Fragment, columns: Sequence[str]) -> bool:
    """Return whether a fragment is a Parquet file that has all of the columns itself."""
    return isinstance(fragment, ds.ParquetFileFragment) and {*columns} <= {*fragment.physical_schema.names}


def _is_pandas(source: Any) -> bool:
    return type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


EXPECTED = (
    "Expected a Parquet, CSV or Arrow file, a folder of Parquet files, a Delta table, or a data frame of "
    "Polars, pandas, DuckDB or pyarrow."
)


def kind_of(path: Path) -> str | None:
    """Return the kind of table at a path: "parquet", "csv", "ipc", "delta", or None."""
    if path.is_dir():
        if (path / _DELTA_LOG).is_dir():
            return "delta"
        return "parquet" if _files(path) else None
    if not path.is_file():
        return None
    with path.open("rb") as file:
        magic = file.read(6)
    if magic == _ARROW_MAGIC:
        return "ipc"
    return "parquet" if magic[:4] == b"PAR1" else _SUFFIXES.get(path.suffix.lower())


def columns_of(source: Any) -> list[str] | None:
    """Return the columns of a table without reading its rows; None if it is no table."""
    if isinstance(source, str | Path):
        return _columns_at(Path(source))
    if isinstance(source, pl.LazyFrame):
        return source.collect_schema().names()
    if isinstance(source, pa.Table | pa.RecordBatch | pa.RecordBatchReader | ds.Dataset):
        return source.schema.names
    if hasattr(source, "to_pyarrow_dataset"):
        return [field.name for field in source.schema().fields]
    if isinstance(source, pl.DataFrame | duckdb.DuckDBPyRelation) or (_is_pandas(source)):
        return [str(name) for name in source.columns]
    return None


def _columns_at(path: Path) -> list[str] | None:
    kind = kind_of(path)
    if kind is None:
        return None
    if kind == "csv":
        with duckdb.connect() as connection:
            return connection.read_csv(str(path)).columns
    if kind == "delta":
        from deltalake import DeltaTable

        return [field.name for field in DeltaTable(path).schema().fields]
    return _dataset(path, kind).schema.names


def _dataset(path: Path, kind: str) -> ds.Dataset:
    if not path.is_dir():
        return ds.dataset(path, format=kind)
    # Other files, such as a README, are none of the table.
    files = [str(file) for file in _files(path)]
    return ds.dataset(files, format=kind, partitioning="hive", partition_base_dir=str(path))


def _files(path: Path) -> list[Path]:
    """Return the files of a folder, or those in `data`, where Hugging Face's `datasets` keeps shards."""
    return [*_parquet_files(path)] or [*_parquet_files(path / "data")]


def _parquet_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the partitions in it."""
    yield from sorted(file for file in folder.glob("*.parquet") if file.name[0] not in "._")
    for each in sorted(folder.glob("*=*/")):
        yield from _parquet_files(each)
