"""Open and check Parquet files of the store.

Before a snapshot reads a file, `check_listed` compares its footer with the table's log. Engines compare
nothing: they would show another file's rows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..delta.log import TableFile
from ..errors import CorruptStoreError, EpisodelakeError, MissingFileError
from ..files import Place, access_error, is_denied, is_passing
from ..layout import FOOTER_MARK, PARQUET_END, checksum, checksum_of_end
from .pages import footer_schema, has_schema

_TAIL_BYTES = 64 << 10
#: A file whose size is known to be smaller is read whole where its footer is asked for.
_SMALL_BYTES = 256 << 10
#: Row groups that we write hold some 32 MiB, or one row.
_LARGEST_GROUP = 1 << 30
#: Threads, most of which wait for an object store.
_READERS = 64
_NOTICED_SECONDS = 0.1
_MAGIC = b"PAR1"
_T = TypeVar("_T")
_R = TypeVar("_R")


def file_key(place: Place, *more: object) -> tuple[object, ...] | None:
    """Return the identity of a file, to remember a check by; None if it has none, as reading will explain."""
    if place.remote:
        return (str(place), *more)
    try:
        state = os.stat(str(place))
    except OSError:
        return None
    return (str(place), state.st_ino, state.st_size, state.st_mtime_ns, *more)


@dataclass(frozen=True)
class _FileEnd:
    """The end of a Parquet file of the store, as one request gives it.

    Attributes:
        metadata: the footer, checked.
        size: bytes of the file.
        footer: its bytes.
        data: all bytes of a small file; of others None.
    """

    metadata: pq.FileMetaData
    size: int
    footer: bytes
    data: bytes | None

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes; a parsed footer takes eight times its bytes."""
        return 9 * len(self.footer) + len(self.data or b"")


class _RemoteEnds:
    """Ends of files of object stores, each asked for once, since a file never changes.

    Safe to use from several threads; those used least recently go first.

    Args:
        most: about how many bytes are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def find(self, place: Place, size: int | None = None) -> _FileEnd:
        """Return the end of a file, of a small one all; see `read_footer` for errors.

        Args:
            place: the file.
            size: its bytes, where they are known.
        """
        with self._lock:
            if place in self._ends:
                self._ends.move_to_end(place)
                return self._ends[place]
        return self.read(place, size if size is not None and size <= _SMALL_BYTES else _TAIL_BYTES)

    def read(self, place: Place, count: int = _TAIL_BYTES) -> _FileEnd:
        """Return so many bytes at the end of a file as it is now; keep the footer, or all of a small file."""
        whole = end = _read_end(place, count)
        if end.size > _SMALL_BYTES:
            end = replace(end, data=None)
        with self._lock:
            before = self._ends.pop(place, None)
            self._ends[place] = end
            self._bytes += end.nbytes - (before.nbytes if before else 0)
            while self._bytes > self._most:
                self._bytes -= self._ends.popitem(last=False)[1].nbytes
        return whole

    def whole(self, places: Sequence[Place], most: int) -> list[bytes] | None:
        """Return the bytes of files, if all are known and are not more than so many."""
        with self._lock:
            ends = [self._ends.get(place) for place in places]
        known = [end.data for end in ends if end is not None and end.data is not None]
        return known if len(known) == len(places) and sum(map(len, known)) <= most else None

    def forget(self, root: Place) -> None:
        """Forget the files below a place."""
        with self._lock:
            below = [place for place in self._ends if str(place).startswith(f"{root}/")]
            self._bytes -= sum(self._ends.pop(place).nbytes for place in below)

    def clear(self) -> None:
        """Forget all, also in a child that was forked while another thread held the lock."""
        self._bytes = 0
        self._ends: OrderedDict[Place, _FileEnd] = OrderedDict()
        self._lock = threading.Lock()


def read_footer(place: Place) -> pq.FileMetaData:
    """Read and check the footer of a Parquet file of the store.

    Raises:
        CorruptStoreError: the file is missing, truncated, damaged or no Parquet file; the message names it.
        StoreAccessError: it may not be read, or cannot be reached.
    """
    return (_remote_ends.read(place) if place.remote else _read_end(place)).metadata


def _read_end(place: Place, count: int = _TAIL_BYTES) -> _FileEnd:
    with reading_file(place):
        footer, tail, size = _end_bytes(place, count)
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
        sizes = (metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
        if max(sizes, default=0) > _LARGEST_GROUP:
            raise ValueError(f"a row group unpacks to more than {_LARGEST_GROUP} bytes")
        return _FileEnd(metadata, size, footer, tail if len(tail) == size else None)


_remote_ends = _RemoteEnds(128 << 20)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remote_ends.clear)


def forget_files(root: Place) -> None:
    """Forget what was read of the files of a store: since then, one may have been damaged."""
    if root.remote:
        _remote_ends.forget(root)
        below = f"{root}/"
        _checked.difference_update([key for key in list(_checked) if str(key[0]).startswith(below)])


def known_files(places: Sequence[Place], most: int = 64 << 20) -> list[bytes] | None:
    """Return the bytes of small files of an object store that this process has read.

    Returns:
        None if it has not read all of them, or they have more than `most` bytes together.
    """
    return _remote_ends.whole(places, most) if places and places[0].local is None else None


def read_whole(place: Place, size: int) -> bytes | None:
    """Return all bytes of a file of an object store, its footer checked; None if it has another size.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_footer`.
    """
    return _remote_ends.read(place, size).data


def footer_bytes(place: Place) -> bytes:
    """Return the bytes of a file's footer, with length and magic, compared with their checksum."""
    return _end_bytes(place)[0]


def _end_bytes(place: Place, count: int = _TAIL_BYTES) -> tuple[bytes, bytes, int]:
    """Return the footer, all bytes that were read at the end of the file, and its size."""
    tail, size = place.read_tail(count)
    needed = _footer_size(tail, size)
    if needed > len(tail):
        tail, _ = place.read_tail(needed)
    footer = tail[-needed:]
    end = checksum_of_end(footer, FOOTER_MARK)  # None in files of other writers
    if end is not None and checksum(footer[: end[0]]) != end[1]:
        raise ValueError("its footer does not have the checksum that it was written with")
    return footer, tail, size


def text_bounds(footer: pq.FileMetaData, name: str) -> tuple[str, str] | None:
    """Return the smallest and the largest text of a column by the statistics of a file's row groups; None
    without any: no such column, no value, or another writer.
    """
    schema = footer.schema
    # It ends at the first: a path is made anew each time, and ids stand in front.
    found = next((index for index in range(len(schema)) if schema.column(index).path == name), None)
    groups = range(0 if found is None else footer.num_row_groups)
    statistics = [footer.row_group(group).column(found).statistics for group in groups]
    known = [each for each in statistics if each is not None and each.has_min_max]
    if not known:
        return None
    return min(each.min for each in known), max(each.max for each in known)


def reading_error(place: Place, error: Exception) -> EpisodelakeError:
    """Return the error for a file of the store that is damaged, missing or out of reach.

    Raises:
        MemoryError: `error` is one, from Arrow perhaps; the file is not to blame.
    """
    if isinstance(error, MemoryError):
        raise error
    number = error.errno if isinstance(error, OSError) else None
    absent = isinstance(error, FileNotFoundError) and number != errno.ENOTDIR
    folder = number == errno.EISDIR
    if isinstance(error, EpisodelakeError) and not (
        folder or (absent and isinstance(error, MissingFileError))
    ):
        return error
    if absent:
        return CorruptStoreError(
            f"The file {place} is missing. Either it was vacuumed after this version was opened (refresh the "
            "store), or it was deleted by hand: restore it from a copy."
        )
    if not (folder or number is None) or is_passing(error) or is_denied(error):
        return access_error(f"Could not read {place}", error, place)
    reason = " ".join((os.strerror(errno.EISDIR) if folder else str(error)).split()).rstrip(" .")
    return CorruptStoreError(
        f"The file {place} cannot be read: {reason}. It is damaged; the other files of the store are not "
        "affected."
    )


@contextlib.contextmanager
def reading_file(place: Place) -> Iterator[None]:
    """Turn what Arrow and the system raise at a file of the store into the errors of `reading_error`.

    Raises:
        CorruptStoreError: the file is damaged or missing.
        StoreAccessError: it may not be read, or cannot be reached.
    """
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        ours = reading_error(place, error)
        # An error that has itself for a cause has no end.
        if ours is error:
            raise
        raise ours from error


def _footer_size(tail: bytes, size: int) -> int:
    """Return how many bytes at the end of a file its footer takes, with length and magic."""
    if len(tail) < PARQUET_END.size:
        raise ValueError(f"it has {size} bytes, too few for a Parquet file")
    length, magic = PARQUET_END.unpack(tail[-PARQUET_END.size :])
    if magic != _MAGIC or length + PARQUET_END.size + len(_MAGIC) > size:
        raise ValueError("it does not end as a Parquet file does")
    return length + PARQUET_END.size


def read_parquet(
    place: Place,
    columns: Sequence[str] | None = None,
    *,
    dictionaries: Sequence[str] = (),
    rows: int | None = None,
) -> pa.Table:
    """Read columns of a Parquet file of the store.

    Args:
        place: the file.
        columns: the columns to read; None for all.
        dictionaries: columns to read dictionary-encoded.
        rows: how many rows were committed; None if that is not known.

    Raises:
        CorruptStoreError: the file is damaged, missing, or has another number of rows; the message names it.
        StoreAccessError: it may not be read, or cannot be reached.
    """
    with reading_file(place):
        file = open_parquet(place, dictionaries=dictionaries)
        # Columns of one small group are decoded sooner than they are handed to Arrow's threads.
        table = file.read(columns and list(columns), use_threads=file.num_row_groups > 1)
        if rows not in (None, table.num_rows):
            raise ValueError(f"it has {table.num_rows} rows, {rows} were committed")
        return table


#: Of a column of a local file so much is read ahead; without a buffer all of its row group is in memory.
_BUFFER_BYTES = 256 << 10


def open_parquet(
    place: Place,
    metadata: pq.FileMetaData | None = None,
    dictionaries: Sequence[str] = (),
    data: bytes | None = None,
) -> pq.ParquetFile:
    """Open a Parquet file of the store.

    Args:
        place: the file.
        metadata: its footer, if it was read before.
        dictionaries: columns to read dictionary-encoded.
        data: its bytes, as `read_whole` returns them; None to read what is needed.

    Raises:
        CorruptStoreError, StoreAccessError: see `read_footer`.
    """
    options: dict[str, Any]
    if place.local is None:
        end = _remote_ends.find(place)
        metadata = metadata or end.metadata
        data = data or end.data
        source = place.parquet_source(end.size) if data is None else pa.BufferReader(data)
        options = {"pre_buffer": True}
    else:
        metadata = metadata or read_footer(place)
        source, options = place.parquet_source(), {"buffer_size": _BUFFER_BYTES}
    with reading_file(place):
        return pq.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=list(dictionaries) or None,
            page_checksum_verification=True,
            **options,
        )


def make_first_array() -> None:
    """Have pyarrow look for pandas now, which takes half a second where it is installed.

    It does so when it makes its first array. In a thread that writes a journal, the first steps would reach
    the disk late; beside a thread that draws, Altair would meet a pandas of which only a part is loaded.
    """
    pa.array(np.empty(0))


def over_files(read: Callable[[_T], _R], files: Sequence[_T], place: Place) -> Sequence[_R]:
    """Return what a function reads of files, in order; on an object store of several files at a time.

    That answers many requests in the time of one. An error is that of the first file which has one; no other
    file is begun after it.
    """
    if place.local is not None or len(files) < 2:
        return [read(file) for file in files]
    results: list[Any] = [None] * len(files)
    errors: dict[int, BaseException] = {}
    left = iter([*enumerate(files)])

    def work() -> None:
        # A future for each of thousands of files takes as long as reading it.
        for number, file in left:
            if errors:
                return
            try:
                results[number] = read(file)
            except BaseException as error:
                errors[number] = error

    with ThreadPoolExecutor(_READERS, "episodelake files") as pool:
        try:
            workers = [pool.submit(work) for _ in files[:_READERS]]
            # A wait without end would not notice an interrupt.
            while wait(workers, _NOTICED_SECONDS).not_done:
                pass
        except RuntimeError:  # The interpreter ends, and starts no more threads.
            work()
        except BaseException as error:
            errors[-1] = error
            raise
    if errors:
        raise errors[min(errors)]
    return results


def decoding_threads(place: Place) -> int:
    """Return how many threads read and decode row groups: more where they wait for an object store."""
    processors = os.cpu_count() or 1
    return processors if place.local is not None else max(processors, _READERS)


#: What this process has checked, by file: one that was changed since counts as another.
_checked: set[tuple[object, ...]] = set()
#: Schemas of a table and of a file that agrees with it, the latter as in footers too, by the file's columns.
_agreed: dict[frozenset[str], tuple[pa.Schema, pa.Schema, bytes]] = {}


def check_listed(place: Place, file: TableFile, schema: pa.Schema) -> None:
    """Compare a file's footer, or its checksum, with its entry in the table's log, once per process."""
    key = file_key(place, file.rows, file.columns)
    if key is not None and key in _checked:
        return
    # Of files with the same columns, the first footer is parsed.
    if not _is_as_committed(place, file, schema):
        end = _remote_ends.find(place, file.size) if place.remote else _read_end(place)
        _check_columns(place, file, schema, end)
        _check_identity(place, file, end)
    if key is not None:
        _checked.add(key)


def _is_as_committed(place: Place, file: TableFile, schema: pa.Schema) -> bool:
    """Return whether a file has the size, footer checksum and rows that the log has, and a known schema."""
    known = _agreed.get(file.columns)
    if not file.footer or place.remote or known is None or known[0] is not schema:
        return False
    with reading_file(place):
        footer, _, size = _end_bytes(place)
    end = checksum_of_end(footer, FOOTER_MARK)
    same = end is not None and (size, f"{end[1]:08x}") == (file.size, file.footer)
    return same and has_schema(footer, known[2], file.rows)


def _check_columns(place: Place, file: TableFile, schema: pa.Schema, end: _FileEnd) -> None:
    """Compare rows, names and types; for columns that an earlier file had as well, one comparison."""
    in_file, rows = end.metadata.schema.to_arrow_schema(), end.metadata.num_rows
    known = _agreed.get(file.columns)
    if known and known[0] is schema and in_file.equals(known[1]) and rows == file.rows:
        return
    types = dict(zip(in_file.names, in_file.types, strict=True))
    columns = frozenset(types)
    if rows != file.rows or columns != file.columns:
        lost = ", ".join(sorted(columns ^ file.columns)) or "none"
        raise CorruptStoreError(
            f"The file {place} has {rows} rows where {file.rows} were committed; columns that only one of "
            f"the two has: {lost}. The file or the table's log is damaged."
        )
    foreign = sorted(columns.difference(schema.names))
    if foreign:
        raise CorruptStoreError(
            f"The file {place} has the column {foreign[0]!r}, which its table lacks. The table's log is "
            "damaged."
        )
    for name, kind in zip(schema.names, schema.types, strict=True):
        if types.get(name, kind) != kind:
            raise CorruptStoreError(
                f"The file {place} has {types[name]} as its column {name!r}; the table has {kind}. The file "
                "or the table's log is damaged."
            )
    _agreed[file.columns] = (schema, in_file, footer_schema(end.footer))


def _check_identity(place: Place, file: TableFile, end: _FileEnd) -> None:
    """Refuse another file of the same columns and rows in the place of the one that was committed."""
    if not place.remote and end.size != file.size:
        raise CorruptStoreError(
            f"The file {place} has {end.size} bytes where {file.size} were committed. It is damaged, or "
            "another file has replaced it: restore it from a copy."
        )
    for name in ("episode_id", "run_id"):
        listed = file.bounds(name)
        bounds = None if listed is None else text_bounds(end.metadata, name)
        if bounds is not None and bounds != listed:
            raise _misplaced(place, name, bounds)


def _misplaced(place: Place, name: str, bounds: tuple[str, str]) -> CorruptStoreError:
    return CorruptStoreError(
        f"The file {place} has {name} from {bounds[0]!r} to {bounds[1]!r}, which is not what was committed. "
        "Another file has replaced it: restore it from a copy."
    )


def check_annotation_footer(place: Place, segment: TableFile) -> None:
    """Compare the footer of an annotation file with its segment, once in this process.

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
            "damaged, or another file has replaced it: restore it from a copy."
        )
    bounds = text_bounds(footer, "episode_id")
    if bounds is not None:
        low, high = segment.bounds("episode_id") or bounds
        if bounds[0] < low or bounds[1] > high:
            raise _misplaced(place, "episode_id", bounds)
    if key is not None:
        _checked.add(key)
