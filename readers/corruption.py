"""Find the damaged file behind an error of an engine, whose message may not name it; and read without it.

DuckDB and Polars skip the checksums of pages. Footers are checked before an engine reads a file; pages where
the store was opened with `check_pages=True`, and after an error that may come from them. An engine that
cannot read a file for now has no damaged one behind its error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import polars as pl

from ..store.delta.log import TableFile
from ..store.errors import CorruptStoreError, StoreAccessError, StoreUnavailableError
from ..store.files import Place, access_error, is_denied, is_passing
from ..store.layout import EPISODES, RUNS, STEPS, TABLES
from ..store.parquet.files import check_listed, open_parquet
from ..store.parquet.page_checks import check_pages
from ..store.snapshot import Snapshot
from .formatting import counted

#: Errors of DuckDB that do not depend on the content of files, by name: importing it takes time.
_SYNTAX_ERRORS = {f"{kind}Exception" for kind in ("Binder", "Catalog", "Interrupt", "Parser", "Permission")}
#: Errors of queries whose files have intact pages.
_VALUE_ERRORS = {"ConstraintException", "ConversionException", "NotImplementedException"}
_VALUE_ERRORS |= {"OutOfMemoryException", "OutOfRangeException", "ResourceInUseException"}
#: Texts by which DuckDB blames a file, and not the argument of a function.
_FILE_ERRORS = ("reading the stream", "exporting a stream", "Failed to read file", "found in Parquet file")


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
    reason = str(error)
    if _is_any(error, _SYNTAX_ERRORS):
        if _is_any(error, {"PermissionException"}):
            # It looks for files below one whose state it could not get, which confined connections may not.
            _check_overlooked(snapshot, error, tables, segments, below="/**")
        return
    # The text of a query may quote anything.
    unread = _is_any(error, {"IOException"})
    if unread or any(words in reason for words in _FILE_ERRORS):
        _check_reachable(snapshot, error)
    check_readable(snapshot, tables, segments)
    if _is_any(error, _VALUE_ERRORS):
        return
    if unread:
        _check_overlooked(snapshot, error, tables, segments)
    if _is_any(error, {"InvalidInputException"}) and not any(words in reason for words in _FILE_ERRORS):
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


def _check_overlooked(
    snapshot: Snapshot,
    error: Exception,
    tables: Collection[str],
    segments: frozenset[str] | None,
    below: str = "",
) -> None:
    """Raise the error of our tree for a file that DuckDB takes for missing or for a folder, since it could
    not get its state for one moment.

    Args:
        below: the text behind the path of the file in the message.
    """
    reason, root = str(error), snapshot.layout.root
    places = [place for table in tables for place in table_places(snapshot, table, segments)]
    if any(f"{place}{below}" in reason for place in places):
        raise StoreUnavailableError(
            f"Could not read {root}: {reason}. Call again; `verify` reads every page."
        ) from error


def table_places(snapshot: Snapshot, table: str, segments: frozenset[str] | None = None) -> list[Place]:
    """Return the files of a table; of the steps, those of some segments."""
    places = snapshot.listed_places(table)
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
            str(error), hint=f"Queries and charts go on without its episodes: {without}."
        ) from error


def without_damaged_files(snapshot: Snapshot, *, steps: bool = False) -> tuple[Snapshot, list[str]]:
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
