"""Check that a Parquet file is the committed one, by comparing its footer with the table's log.

Snapshots ask before a file is read. Engines compare nothing: they would show another file's rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import CorruptStoreError
from ..places import Place
from ..tables.listed_files import TableFile
from .page_checks import file_key
from .parquet import open_parquet, read_footer, reading_error, text_bounds

#: What this process has checked, by file: one that was changed since counts as another.
_checked: set[object] = set()


def check_listed(place: Place, file: TableFile, schema: pa.Schema) -> None:
    """Compare a file's footer with its entry in the table's log, once per process."""
    key = file_key(place, file.rows, file.columns)
    if key is not None and key in _checked:
        return
    footer = read_footer(place)
    found = footer.schema.to_arrow_schema()
    columns = frozenset(found.names)
    if footer.num_rows != file.rows or columns != file.columns:
        lost = ", ".join(sorted(columns ^ file.columns)) or "none"
        raise CorruptStoreError(
            f"The file {place} has {footer.num_rows} rows where {file.rows} were committed; columns that "
            f"only one of the two has: {lost}. The file or the table's log is damaged."
        )
    foreign = sorted(columns.difference(schema.names))
    if foreign:
        raise CorruptStoreError(
            f"The file {place} has the column {foreign[0]!r}, which its table lacks. The table's log is "
            "damaged."
        )
    for column in schema:
        if column.name in columns and found.field(column.name).type != column.type:
            raise CorruptStoreError(
                f"The file {place} has {found.field(column.name).type} as its column {column.name!r}; the "
                f"table has {column.type}. The file or the table's log is damaged."
            )
    _check_identity(place, file, footer)
    _checked.add(key)


def _check_identity(place: Place, file: TableFile, footer: pq.FileMetaData) -> None:
    """Refuse another file of the same columns and rows in the place of the one that was committed."""
    size = file.size if place.local is None else place.size()
    if size != file.size:
        raise CorruptStoreError(
            f"The file {place} has {size} bytes where {file.size} were committed. It is damaged, or another "
            "file stands in its place: restore it from a copy."
        )
    for name in ("episode_id", "run_id"):
        listed, found = file.bounds(name), text_bounds(footer, name)
        if listed is not None and found is not None and found != listed:
            raise _misplaced(place, name, found)


def _misplaced(place: Place, name: str, bounds: tuple[str, str]) -> CorruptStoreError:
    return CorruptStoreError(
        f"The file {place} has {name} from {bounds[0]!r} to {bounds[1]!r}, which is not what was committed. "
        "Another file stands in its place: restore it from a copy."
    )


def check_beside(place: Place, segment: TableFile) -> None:
    """Compare the footer of an annotation's file with the segment beside which it lies, once in this process.

    Raises:
        CorruptStoreError: it is damaged, or belongs to another segment.
    """
    key = file_key(place, segment.rows)
    if key is not None and key in _checked:
        return
    footer = read_footer(place)
    if footer.num_rows != segment.rows:
        raise CorruptStoreError(
            f"The file {place} has {footer.num_rows} rows beside {segment.rows} in its segment. It is "
            "damaged, or another file stands in its place: restore it from a copy."
        )
    bounds = text_bounds(footer, "episode_id")
    if bounds is not None:
        low, high = segment.bounds("episode_id") or bounds
        if bounds[0] < low or bounds[1] > high:
            raise _misplaced(place, "episode_id", bounds)
    _checked.add(key)


def check_pages(places: Sequence[Place]) -> None:
    """Compare every page of some files with its checksum, once in this process: engines do not.

    Raises:
        CorruptStoreError: one is damaged; the message names the file.
    """
    for place in places:
        key = file_key(place, "pages")
        if key is not None and key in _checked:
            continue
        try:
            file = open_parquet(place)
            for group in range(file.num_row_groups):
                file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise reading_error(place, error) from error
        _checked.add(key)
