"""Checks pages before DuckDB or Polars reads them, by the columns that a query needs.

Both engines skip the checksums of pages. A small table is checked as a whole; of a larger one only the
columns in a query's plan, once in this process. A selective query over very much unchecked data would take
longer to check than to answer: Polars then gets a check of the row groups it needs, and DuckDB reads through
Arrow, which checks pages as it goes. On object stores DuckDB always reads through Arrow; Polars reads them
unchecked, since a check would transfer the data twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from ..store.errors import CorruptStoreError
from ..store.files import Place
from ..store.layout import STEPS
from ..store.parquet.page_checks import FilePages, all_checked, check, unchecked
from ..store.snapshot import Snapshot
from .damaged_files import check_column_pages, table_places

#: A table of at most so many files and bytes is checked as a whole.
_FEW_FILES, _FEW_BYTES = 64, 32 << 20
#: A selective query checks at most so many bytes, of which it may read few.
_MOST_BYTES = 1 << 30
_SCANS = ("READ_PARQUET", "PARQUET_SCAN")


# DuckDB


def check_plan(
    snapshot: Snapshot,
    plan: Callable[[], str] | None,
    tables: Collection[str],
    segments: frozenset[str] | None,
    *,
    may_decline: bool = False,
) -> bool:
    """Check the pages of the columns that a plan of DuckDB reads.

    Args:
        snapshot: what is queried.
        plan: gives the plan as JSON, where it is needed; None to check all columns.
        tables: those that the query may read.
        segments: those whose steps it may read; None for all.
        may_decline: return False instead of checking very much for a query that chooses rows.

    Returns:
        False if it chooses some rows of so much unchecked data that it had better read through Arrow.

    Raises:
        CorruptStoreError: a page is damaged; the message names the file.
    """
    if snapshot.layout.root.local is None:
        return True
    parts = [part for table in tables for part in _parts(snapshot, table, segments)]
    known = {name for _, _, names in parts for name in names}
    parts = [(table, places, names) for table, places, names in parts if not _is_whole(places, names)]
    if not parts:
        return True
    if plan is None:
        for table, places, names in parts:
            check_column_pages(table, unchecked(places, names))
        return True
    scanned = _scanned(json.loads(plan()))
    if scanned is None:
        return True
    projected, filters, selective = scanned
    # A name that is no column of ours may be one that the plan writes in another way.
    everything = not projected <= known
    for table, places, names in parts:
        read = [
            name for name in names if everything or name in projected or any(name in each for each in filters)
        ]
        files = unchecked(places, read)
        if may_decline and selective and sum(file.size for file in files) > _MOST_BYTES:
            return False
        check_column_pages(table, files)
    return True


def _parts(
    snapshot: Snapshot, table: str, segments: frozenset[str] | None
) -> Iterator[tuple[str, list[Place], list[str]]]:
    """Yield the files behind a table and the names of their columns; annotations of steps have files too."""
    yield table, table_places(snapshot, table, segments), snapshot.table_schema(table).names
    if table != STEPS:
        return
    names = [name for name in snapshot.pointers.segments if segments is None or name in segments]
    keys = snapshot.schema.step_keys
    for annotation in snapshot.annotation_files.annotations.values():
        places = snapshot.annotation_places(annotation.name, snapshot.readable(names))
        yield table, places, annotation.schema(keys).names


def _scanned(plan: Any) -> tuple[set[str], list[str], bool] | None:
    """Columns and conditions that a plan reads from Parquet, and whether it chooses rows; None for none."""
    projected: set[str] = set()
    filters: list[str] = []
    scans = selective = False
    nodes = list(plan)
    while nodes:
        node = nodes.pop()
        nodes += node["children"]
        about = node.get("extra_info", {})
        selective |= "LIMIT" in node["name"] or "TOP_N" in node["name"]
        if node["name"].strip() in _SCANS or about.get("Function") in _SCANS:
            scans = True
            projected.update(name for name in _texts(about.get("Projections")) if name)
            filters += _texts(about.get("Filters"))
    selective |= any(not text.rstrip(")").endswith("IS NOT NULL") for text in filters)
    return (projected, filters, selective) if scans else None


def _texts(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else value


# Polars


def guarded_scan(
    table: str, places: Sequence[Place], schema: pl.Schema, scan: Callable[[], pl.LazyFrame]
) -> pl.LazyFrame:
    """Yield a scan of some files whose pages are checked before, or while, it is collected.

    Args:
        table: which table they belong to.
        places: the files, in the order of the scan.
        schema: of the scan.
        scan: makes the frame.

    Raises:
        CorruptStoreError: a footer is damaged. Where a page is, `collect` fails with a Polars error.
    """
    names = schema.names()
    if any(place.local is None for place in places):
        return scan()
    if _is_whole(places, names):
        return scan()

    def checked(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        read = set(names if columns is None else columns)
        asked = set() if predicate is None else set(predicate.meta.root_names())
        files = unchecked(places, read | asked)
        if (predicate is not None or rows is not None) and sum(file.size for file in files) > _MOST_BYTES:
            check_column_pages(table, unchecked(places, asked))
            files = _needed(
                unchecked(places, read | asked, every=True), _rows(scan(), predicate, asked, rows)
            )
        check_column_pages(table, files)
        yield pl.DataFrame(schema={name: schema[name] for name in (names if columns is None else columns)})

    # The guard gives no row. Polars tells it the columns and the condition that it tells the scan.
    return pl.concat([register_io_source(checked, schema=schema, is_pure=True), scan()])


def _rows(frame: pl.LazyFrame, predicate: pl.Expr | None, asked: set[str], rows: int | None) -> np.ndarray:
    """Return the rows of a scan that a collection needs, counted over all files."""
    if predicate is None:
        return np.arange(rows or 0)
    index = "_row"
    while index in asked:
        index += "_"
    matches = frame.select(sorted(asked)).with_row_index(index).filter(predicate).select(index)
    return (matches if rows is None else matches.head(rows)).collect()[index].to_numpy()


def _needed(files: Sequence[FilePages], rows: np.ndarray) -> list[FilePages]:
    """Return the row groups of files that hold some rows, which count over all files."""
    needed, start = [], 0
    for file in files:
        stop = start + (file.ends[-1] if file.ends else 0)
        needed.append(file.within(rows[(rows >= start) & (rows < stop)] - start))
        start = stop
    return needed


def _is_whole(places: Sequence[Place], names: Sequence[str]) -> bool:
    """Return whether all pages of some files are known to be whole; those of few files are checked for it."""
    if all_checked(places, names):
        return True
    if len(places) > _FEW_FILES:
        return False
    try:
        if sum(os.stat(place.local).st_size for place in places if place.local) > _FEW_BYTES:
            return False
        check(unchecked(places, names))
    except (CorruptStoreError, OSError):
        return False  # queries over other columns are answered
    return True
