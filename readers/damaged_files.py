"""Which file it was: an engine that stumbled over a damaged file may not say so, or not which."""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from ..store.errors import CorruptStoreError
from ..store.file_checks import check_pages
from ..store.layout import STEPS, TABLES
from ..store.parquet import open_parquet
from ..store.places import Place
from ..store.snapshot import Snapshot

#: What goes wrong before a file is read, or whatever the files hold.
_OF_THE_TEXT = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.InterruptException,
    duckdb.ParserException,
    duckdb.PermissionException,
)
#: What goes wrong where the pages of the files are whole.
_OF_THE_QUERY = (
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.NotImplementedException,
    duckdb.OutOfMemoryException,
    duckdb.OutOfRangeException,
    duckdb.ResourceInUseException,
)
#: How DuckDB says that its input is a file, which it cannot read, and not what a query gives to a function.
_OF_FILES = ("reading the stream", "Failed to read file")


def check_files(snapshot: Snapshot, table: str) -> None:
    """Open every file of a table.

    Raises:
        CorruptStoreError: a file is damaged; the message names it.
    """
    for group in snapshot.groups(table):
        for place in group.places:
            open_parquet(place)


def name_damaged(snapshot: Snapshot, error: duckdb.Error, tables: Collection[str] = TABLES) -> None:
    """Find the damaged file, if that is why a query failed. Every page of the files may have to be read.

    Args:
        snapshot: what was asked.
        error: what the engine said.
        tables: those that the query could have read.

    Raises:
        CorruptStoreError: a file is damaged; the message names it, and says how to go on without.
    """
    if isinstance(error, _OF_THE_TEXT):
        return
    for table in tables:
        check_files(snapshot, table)
    told = str(error)
    if isinstance(error, _OF_THE_QUERY):
        return
    if isinstance(error, duckdb.InvalidInputException) and not any(words in told for words in _OF_FILES):
        return
    for table in tables:
        for place in (place for group in snapshot.groups(table) for place in group.places):
            _check_pages(place, table)


def _check_pages(place: Place, table: str) -> None:
    try:
        check_pages([place])
    except CorruptStoreError as error:
        if table != STEPS:
            raise
        without = f"store.filter(\"segment <> '{place.name}'\")"
        raise CorruptStoreError(
            f"{error} Queries and charts go on without its episodes: {without}."
        ) from error
