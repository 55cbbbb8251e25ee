"""Check that a Parquet file is the committed one, by comparing its footer with the table's log.

Snapshots ask before a file is read. Engines compare nothing: they would show another file's rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from ..delta.log import TableFile
from ..errors import CorruptStoreError
from ..files import Place, guard_access
from ..parquet.files import file_key, footer_digest, open_parquet, read_footer, reading_error, text_bounds

_READERS = 16

#: What this process has checked, by file: one that was changed since counts as another.
_checked: set[object] = set()
#: What footers this process has hashed, likewise.
_digests: dict[object, str] = {}


def check_listed(place: Place, file: TableFile, schema: pa.Schema) -> None:
    """Compare a file's footer with its entry in the table's log, once per process."""
    key = file_key(place, file.rows, file.columns)
    if key is not None and key in _checked:
        return
    footer = read_footer(place)
    in_file = footer.schema.to_arrow_schema()
    columns = frozenset(in_file.names)
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
        if column.name in columns and in_file.field(column.name).type != column.type:
            raise CorruptStoreError(
                f"The file {place} has {in_file.field(column.name).type} as its column {column.name!r}; the "
                f"table has {column.type}. The file or the table's log is damaged."
            )
    _check_identity(place, file, footer)
    _checked.add(key)


def _check_identity(place: Place, file: TableFile, footer: pq.FileMetaData) -> None:
    """Refuse another file of the same columns and rows in the place of the one that was committed."""
    with guard_access("look at the size", place):
        size = file.size if place.local is None else place.size()
    if size != file.size:
        raise CorruptStoreError(
            f"The file {place} has {size} bytes where {file.size} were committed. It is damaged, or another "
            "file stands in its place: restore it from a copy."
        )
    for name in ("episode_id", "run_id"):
        listed, bounds = file.bounds(name), text_bounds(footer, name)
        if listed is not None and bounds is not None and bounds != listed:
            raise _misplaced(place, name, bounds)


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


def content_digests(places: Sequence[Place]) -> list[str]:
    """Return a text for each of some files that another file, or a changed one, does not have.

    It is the hash of the file's footer, read once in this process (see `footer_digest`); and of a local file
    its size, and when its inode changed, which no program can set: a footer says little of lists.

    Raises:
        CorruptStoreError: one is damaged or missing; the message names it.
    """
    keys = [file_key(place, "footer") for place in places]
    new = [(key, place) for key, place in zip(keys, places, strict=True) if key not in _digests]
    # Object stores answer many requests at once in the time of one.
    with ThreadPoolExecutor(_READERS) as pool:
        _digests.update(
            zip((key for key, _ in new), pool.map(footer_digest, (p for _, p in new)), strict=True)
        )
    return [_digests[key] + _changed(place) for key, place in zip(keys, places, strict=True)]


def _changed(place: Place) -> str:
    if place.local is None:
        return ""
    with guard_access("look at", place.local):
        state = os.stat(place.local)
    return f"-{state.st_size}-{state.st_ctime_ns}"


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
