"""Check files for DuckDB and Polars, and find the damaged one behind an error, whose message may not name it.

Both engines skip the checksums of pages. A small table is checked as a whole; of a larger one only the
columns of a query, once in this process. A selective query over very much unchecked data would take longer to
check than to answer: Polars then gets a check of the row groups it needs, and DuckDB reads through Arrow,
which checks pages. On object stores DuckDB always reads through Arrow, and Polars unchecked, since a check
would transfer the data twice. An engine that cannot read a file for now has no damaged one behind its error.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from ..store.delta.log import TableFile
from ..store.errors import CorruptStoreError, StoreAccessError, StoreUnavailableError
from ..store.files import Place, access_error, is_denied, is_passing
from ..store.layout import EPISODES, RUNS, STEPS, TABLES
from ..store.parquet.files import check_listed, open_parquet
from ..store.parquet.page_checks import FilePages, all_checked, check, check_pages, unchecked
from ..store.snapshot import Snapshot
from .amounts import counted

#: Errors of DuckDB that do not depend on the content of files, by name: importing it takes time.
_OF_THE_TEXT = {f"{kind}Exception" for kind in ("Binder", "Catalog", "Interrupt", "Parser", "Permission")}
#: Errors of queries whose files have intact pages.
_OF_THE_QUERY = {"ConstraintException", "ConversionException", "NotImplementedException"}
_OF_THE_QUERY |= {"OutOfMemoryException", "OutOfRangeException", "ResourceInUseException"}
#: Texts by which DuckDB blames a file, and not the argument of a function.
_OF_FILES = ("reading the stream", "Failed to read file")


def check_files(snapshot: Snapshot, table: str, error: Exception | None = None) -> None:
    """Open every file of a table, and read its pages where an error may come from them.

    Args:
        snapshot: what was read.
        table: which table of it.
        error: what an engine raised; where it is about names or types, the files' pages are not to blame.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
        StoreAccessError: the engine could not read a file.
    """
    if error is not None:
        _check_reachable(snapshot, error)
    check_readable(snapshot, [table])
    if isinstance(error, pl.exceptions.ComputeError | pl.exceptions.PanicException):
        check_pages(table_places(snapshot, table))


def check_readable(
    snapshot: Snapshot, tables: Collection[str], segments: frozenset[str] | None = None
) -> None:
    """Open every file of some tables; of the steps, those of some segments (None: of all).

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    for table in tables:
        for place in table_places(snapshot, table, segments):
            with _advised(table, place):
                open_parquet(place)


def steps_places(snapshot: Snapshot, segments: Iterable[str] | None = None) -> list[Place]:
    """Return the files of some segments (None: all that the snapshot reads), checked for an engine.

    Raises:
        CorruptStoreError: one is damaged or missing; the message names the file, and says how to go on.
    """
    read = snapshot.readable((file.name for file in snapshot.step_files) if segments is None else segments)
    try:
        return snapshot.segment_places(read)
    except CorruptStoreError:
        # One by one only now: each query over steps comes here, and a store may have thousands of files.
        for segment in read:
            with _advised(STEPS, snapshot.segment_path(segment)):
                snapshot.segment_places([segment])
        raise


def check_column_pages(table: str, files: Sequence[FilePages]) -> None:
    """Compare pages with their checksums before an engine reads them.

    Raises:
        CorruptStoreError: one is damaged; the message names the file, and says how to go on without it.
    """
    try:
        check(files)
    except CorruptStoreError:
        for file in files:
            with _advised(table, file.place):
                check([file])
        raise


def name_damaged(
    snapshot: Snapshot,
    error: Exception,
    tables: Collection[str] = TABLES,
    segments: frozenset[str] | None = None,
) -> None:
    """Find the damaged file, if that is why a query failed. Every page of the files may have to be read.

    Args:
        snapshot: what was asked.
        error: what the engine said.
        tables: those that the query could have read.
        segments: those whose steps it could have read; None for all.

    Raises:
        CorruptStoreError: a file is damaged; the message names it, and says how to go on without.
        StoreAccessError: the engine could not read a file.
    """
    if _is_any(error, _OF_THE_TEXT):
        return
    reason = str(error)
    # The text of a query may quote anything.
    unread = _is_any(error, {"IOException"})
    if unread or any(words in reason for words in _OF_FILES):
        _check_reachable(snapshot, error)
    check_readable(snapshot, tables, segments)
    if _is_any(error, _OF_THE_QUERY):
        return
    places = [place for table in tables for place in table_places(snapshot, table, segments)]
    if unread and any(str(place) in reason for place in places):
        # DuckDB takes a file whose state it could not get for one moment for a missing one.
        root = snapshot.layout.root
        raise StoreUnavailableError(
            f"Could not read {root}: {reason}. Its files are whole: call again."
        ) from error
    if _is_any(error, {"InvalidInputException"}) and not any(words in reason for words in _OF_FILES):
        return
    for table in tables:
        for place in table_places(snapshot, table, segments):
            with _advised(table, place):
                check_pages([place])


def _is_any(error: Exception, names: set[str]) -> bool:
    """Return whether the class of an error, or one it derives from, has one of some names."""
    return not names.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def _check_reachable(snapshot: Snapshot, error: Exception) -> None:
    """Raise the error of our tree for an engine's that says that a file could not be read."""
    if is_passing(error) or is_denied(error):
        root = snapshot.layout.root
        raise access_error(f"Could not read {root}", error, root) from error


def table_places(snapshot: Snapshot, table: str, segments: frozenset[str] | None = None) -> list[Place]:
    """Return the files of a table; of the steps, those of some segments."""
    places = [place for group in snapshot.groups(table) for place in group.places]
    return [place for place in places if table != STEPS or segments is None or place.name in segments]


@contextlib.contextmanager
def _advised(table: str, place: Place) -> Iterator[None]:
    """Say of a damaged file of steps how to go on without it."""
    try:
        yield
    except CorruptStoreError as error:
        if table != STEPS:
            raise
        without = f"store.filter(\"segment <> '{place.name}'\")"
        raise CorruptStoreError(
            f"{error} Queries and charts go on without its episodes: {without}."
        ) from error


def intact(snapshot: Snapshot, *, steps: bool = False) -> tuple[Snapshot, list[str]]:
    """Return the same version without the files of episodes and runs that cannot be read.

    Every page of these files is read. Positions count the episodes that are left.

    Args:
        snapshot: a version of a store.
        steps: leave out files of steps too; the episodes in them stay, without rows of steps.

    Raises:
        StoreUnavailableError: a file cannot be read for now, which says nothing about it.

    Returns:
        The snapshot, and for each file that was left out its fault and its number of rows.
    """
    whole = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version)
    faults = {**_damaged(whole, EPISODES, whole.episode_files), **_damaged(whole, RUNS, whole.run_files)}
    readable = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version, frozenset(faults))
    if not steps:
        return readable, list(faults.values())
    # Only readable episodes list the files of steps.
    lost = _damaged(readable, STEPS, readable.step_files)
    rest = Snapshot(snapshot.layout, snapshot.manifest, snapshot.version, frozenset(faults), frozenset(lost))
    return rest, [*faults.values(), *lost.values()]


def _damaged(snapshot: Snapshot, table: str, files: Sequence[TableFile]) -> dict[str, str]:
    """Return the fault of each file that cannot be read, by its name."""
    folder, schema = snapshot.layout.table(table), snapshot.table_schema(table)
    faults = {}
    for file in files:
        try:
            check_listed(folder / file.name, file, schema)
            check_pages([folder / file.name])
        except StoreUnavailableError:
            raise
        except (CorruptStoreError, StoreAccessError) as error:
            faults[file.name] = f"{error} Left out: {counted(file.rows, 'row')} of {table}."
    return faults


#: A table of at most so many files and bytes is checked as a whole.
_FEW_FILES, _FEW_BYTES = 64, 32 << 20
#: A selective query checks at most so many bytes, of which it may read few.
_MOST_BYTES = 1 << 30
_SCANS = ("READ_PARQUET", "PARQUET_SCAN")


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
