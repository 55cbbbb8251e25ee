"""Tables of any kind opened: files, folders, data frames, datasets, and arrays in dicts.

Sources that can be read once only, and those that Arrow does not read by itself, are copied to a Parquet file
in the temporary folder.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ...errors import DatasetError
from ...plugin import plain_table
from ...plugin.files import is_file, is_folder, matching
from ...writers.importing.boundary import Files
from ...writers.importing.flat import class_names
from .arrays import EPISODE, dict_tables, is_dicts, is_rollout
from .files import (
    EXPECTED,
    check_rounded,
    files_in,
    kind_of_file,
    kind_of_files,
    literal,
    npz_tables,
    query_of,
)
from .mapping import FILE

_MOST_ROWS = 1 << 16
_DELTA_LOG = "_delta_log"


@dataclass(frozen=True)
class OpenTable:
    """A table that Arrow reads.

    Attributes:
        data: its rows.
        added: columns that are none of the source's: `FILE`, and the numbers of episodes.
        many: whether it has several files.
        base: the folder of its files, where the rows have no column `FILE` of their own; else None.
    """

    data: ds.Dataset | pa.Table
    added: frozenset[str] = frozenset()
    many: bool = False
    base: Path | None = None


class Spool:
    """Parquet files in a temporary folder, which is made with the first of them."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None

    def path(self) -> str:
        """Return the path of a new file."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="episodelake-")
        return str(Path(self._folder.name, f"{len(list(Path(self._folder.name).iterdir()))}.parquet"))

    def written(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> ds.Dataset:
        """Write rows of one schema."""
        with pq.ParquetWriter(target := self.path(), plain_schema(schema), compression="zstd") as writer:
            for batch in batches:
                writer.write_table(plain_table(pa.table(batch)))
        return ds.dataset(target)

    def joined(self, tables: Iterable[pa.Table], schema: pa.Schema | None = None) -> ds.Dataset:
        """Write tables one after another.

        Args:
            schema: the columns of all of them, NULL where one lacks a column; None for those of the first.

        Raises:
            pyarrow.ArrowException: a value does not fit the type of its column.
        """
        tables = iter(tables)
        first = next(tables)
        wanted = first.schema if schema is None else schema
        aligned = (_aligned(table, wanted) for table in itertools.chain([first], tables))
        return self.written(wanted, (batch for table in aligned for batch in table.to_batches()))

    def close(self) -> None:
        """Delete the files."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _aligned(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, with NULLs for those that a table lacks."""
    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def open_table(source: Any, name: str, spool: Spool) -> OpenTable:
    """Open a table.

    Args:
        name: of the source, for errors.
        spool: for its copy, if it needs one.

    Raises:
        DatasetError: it is no table.
    """
    if isinstance(source, str | Path):
        return _open_path(Path(source), spool)
    if isinstance(source, Files):
        return _open_files(source, spool)
    if isinstance(source, Mapping) or is_dicts(source):
        rows = not isinstance(source, Mapping) and not is_rollout(source[0])
        added = () if rows and EPISODE in source[0] else {EPISODE}
        return OpenTable(spool.joined(dict_tables(source), _schema(dict_tables(source))), frozenset(added))
    if is_huggingface(source):
        return OpenTable(spool.joined(source.with_format("arrow").iter(_MOST_ROWS)))
    return OpenTable(_open_frame(source, name, spool))


def _open_frame(source: Any, name: str, spool: Spool) -> ds.Dataset | pa.Table:
    if isinstance(source, pl.DataFrame):
        source = source.to_arrow()
    elif isinstance(source, pl.LazyFrame):
        source.sink_parquet(target := spool.path())
        return ds.dataset(target)
    elif isinstance(source, duckdb.DuckDBPyRelation):
        source = source.to_arrow_reader(_MOST_ROWS)
    elif hasattr(source, "to_pyarrow_dataset"):
        source = source.to_pyarrow_dataset()
    elif is_pandas(source):
        source = pa.Table.from_pandas(source, preserve_index=False)
    if isinstance(source, pa.RecordBatch):
        source = pa.table(source)
    if isinstance(source, ds.Dataset | pa.Table):
        return source
    if hasattr(source, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(source)
        return spool.written(reader.schema, reader)
    raise DatasetError(f"{name} is no table. {EXPECTED}")


def _open_path(path: Path, spool: Spool) -> OpenTable:
    if is_delta(path):
        return OpenTable(delta_table(path).to_pyarrow_dataset())
    files = table_files(path)
    if files is None:
        raise DatasetError(f"{path} is no table. {EXPECTED}")
    return _open_files(files, spool, partitioned=is_folder(path))


def _open_files(files: Files, spool: Spool, *, partitioned: bool = False) -> OpenTable:
    kind, many = kind_of_files(files), len(files.paths) > 1
    if kind is None:
        raise DatasetError(f"{files} are no tables. {EXPECTED}")
    if kind in ("parquet", "ipc"):
        options = {"partitioning": "hive", "partition_base_dir": str(files.base)} if partitioned else {}
        data = ds.dataset([str(path) for path in files.paths], format=kind, **options)
        named = FILE in data.schema.names
        return OpenTable(data, frozenset(() if named else {FILE}), many, None if named else files.base)
    if kind == "npz":
        data = spool.joined(npz_tables(files), _schema(npz_tables(files)) if many else None)
        return OpenTable(data, frozenset({FILE, EPISODE}), many)
    with duckdb.connect() as connection:
        # One statement reads the files twice; a relation of Python's reads them for each question.
        query = query_of(connection, kind, files)
        connection.execute(f"COPY ({query}) TO {literal(target := spool.path())} (FORMAT parquet)")
        check_rounded(connection, kind, files, target)
    return OpenTable(ds.dataset(target), frozenset({FILE}), many)


def _schema(tables: Iterable[pa.Table]) -> pa.Schema:
    """Return the columns of all tables, of the type that holds the values of each."""
    return pa.unify_schemas([table.schema for table in tables], promote_options="permissive")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the types of `plain_table`."""
    return plain_table(schema.empty_table()).schema


def is_delta(path: Path) -> bool:
    """Return whether a folder is a Delta table."""
    return is_folder(path / _DELTA_LOG)


def is_pandas(source: Any) -> bool:
    """Return whether a source is a data frame of pandas; found without an import of it."""
    return type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns")


def is_huggingface(source: Any) -> bool:
    """Return whether a source is a `datasets.Dataset`; found without an import of `datasets`."""
    return class_names(source, "datasets") >= {"Dataset"}


def table_files(path: Path) -> Files | None:
    """Return the files of a table at a path; None if there is none.

    Of a folder these are its Parquet files, or those in `data`, where `datasets` of Hugging Face keeps its
    shards; or else all tables in it. Other files, such as a README, are none of the table.
    """
    if is_folder(path):
        parquet = tuple(_parquet_files(path)) or tuple(_parquet_files(path / "data"))
        files = Files(parquet, path) if parquet else files_in(path)
        return files if files.paths else None
    return Files((path,), path.parent) if is_file(path) and kind_of_file(path) is not None else None


def delta_table(path: Path) -> Any:
    """Open a Delta table; deltalake reads no file outside its folder.

    Raises:
        DatasetError: deltalake would take the path for another one.
    """
    from deltalake import DeltaTable

    where = str(path.absolute())
    if "%" in where or (os.sep == "/" and "\\" in where):
        raise DatasetError(
            f"{where}: deltalake takes % and \\ in a path for another path. Rename the folder."
        )
    return DeltaTable(where)


def _parquet_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the partitions in it."""
    yield from (file for file in matching(folder, "*.parquet") if file.name[0] != "_")
    for each in filter(is_folder, matching(folder, "*=*")):
        yield from _parquet_files(each)
