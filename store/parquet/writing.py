"""How the store writes Parquet: codecs, encodings, pages, statistics, checksums.

zstd everywhere; BYTE_STREAM_SPLIT for floating-point leaves; delta encoding for `t`, and for large arrays of
integers that it makes smaller, as it does images of depth; dictionaries only where values repeat (ids, texts,
other integers). Pages of 1 MiB let zstd see many frames at once and stay in the
processor's caches. They are of version 1, whose checksums cover the levels with their sizes; version 2 is
written with a copy less (2 of 9 us for a frame of 28 KiB), but has these sizes in headers, unchecked.
Pages carry the checksums that Parquet has. The footer gets one of ours: its CRC-32 stands after it, inside
the length that the file gives for it, where readers that do not know it pass over it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..files import Place
from ..layout import FOOTER_MARK, PARQUET_END, checked_end, checksum
from .pages import COMPRESSION, COMPRESSION_LEVEL, PageChunk, footer_with_pages, write_pages

_PAGE_BYTES = 1 << 20
#: Arrays of integers with as many elements are written in the smaller of two encodings.
_LARGE_ARRAY = 1024
#: Both are tried on so many elements: still cameras repeat themselves, which only several arrays show.
_SAMPLE = 1 << 20


def _leaf(column: pa.Field) -> tuple[str, pa.DataType]:
    """Return the Parquet path and type of the one leaf of a column."""
    path, kind = column.name, column.type
    while pa.types.is_list(kind):
        path, kind = f"{path}.list.element", kind.value_type
    return path, kind


def writer_options(schema: pa.Schema, row_bytes: int, first: pa.Table | None = None) -> dict[str, Any]:
    """Keyword arguments for `pyarrow.parquet.ParquetWriter`.

    Args:
        schema: what is written.
        row_bytes: about how many bytes a row takes; decides how many rows a page takes.
        first: the first rows, where they are known: large arrays of integers are encoded by what suits these.
    """
    leaves = [_leaf(column) for column in schema]
    paths = Counter([path for path, _ in leaves])
    delta = [
        path
        for column, (path, _) in zip(schema, leaves, strict=True)
        # A column may be called as the path of another one is.
        if path == "t" or (first is not None and paths[path] == 1 and _suits_delta(first.column(column.name)))
    ]
    split = [path for path, kind in leaves if pa.types.is_floating(kind)]
    return {
        "compression": COMPRESSION,
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [
            path for path, kind in leaves if path not in (*delta, *split) and not pa.types.is_binary(kind)
        ],
        "use_byte_stream_split": split,
        "column_encoding": dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        "data_page_size": _PAGE_BYTES,
        "write_batch_size": max(1, min(1024, _PAGE_BYTES // max(1, row_bytes))),
        "write_statistics": [
            path for path, kind in leaves if "." not in path and not pa.types.is_binary(kind)
        ],
        "store_schema": False,
        "write_page_checksum": True,
    }


def _suits_delta(column: pa.ChunkedArray) -> bool:
    """Return whether a column has large arrays of integers, the first of which are smaller as differences."""
    kind = column.type
    if not (pa.types.is_list(kind) and pa.types.is_integer(kind.value_type)):
        return False
    row = column.is_valid().index(True).as_py()
    if row < 0 or len(column[row]) < _LARGE_ARRAY:
        return False
    # Lists, since Arrow's writer flushes plain numbers so often that zstd finds no repetition.
    sample = pa.table({"": column.slice(row, -(-_SAMPLE // len(column[row])))})
    options = ({}, {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"})
    usual, differences = (_written_size(sample, **each) for each in options)
    return differences < usual


def _written_size(table: pa.Table, **options: Any) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=COMPRESSION, compression_level=COMPRESSION_LEVEL, **options)
    return sink.tell()


@dataclass(frozen=True)
class PagedColumn:
    """A column of a row group as pages that are made already; see `pages`.

    Attributes:
        pages: each with its number of values, none of which is NULL.
        value_bytes: the size of each value.
    """

    pages: Iterable[tuple[int, pa.Buffer]]
    value_bytes: int


class GroupWriter:
    """Writes the row groups of a file.

    Args:
        sink: the file.
        writer: of the file.

    Attributes:
        nbytes: bytes of the complete file; 0 before.
        footer: the checksum of its footer; empty before.
    """

    nbytes = 0
    footer = ""

    def __init__(self, sink: pa.NativeFile, writer: pq.ParquetWriter) -> None:
        self._sink, self._writer = sink, writer
        #: The columns with pages of each row group.
        self.paged: list[dict[str, PageChunk]] = []

    def write_table(
        self,
        table: pa.Table,
        *,
        row_group_size: int | None = None,
        paged: Mapping[str, PagedColumn] | None = None,
    ) -> None:
        """Write a table.

        Args:
            table: the rows; columns in `paged` are NULL.
            row_group_size: rows of a row group at the most.
            paged: columns whose pages are written as they are; then the table makes one row group.
        """
        self._writer.write_table(table, row_group_size=row_group_size)
        chunks = {
            name: write_pages(self._sink, column.pages, column.value_bytes)
            for name, column in (paged or {}).items()
        }
        self.paged.append(chunks)


@contextlib.contextmanager
def parquet_writer(
    place: Place, schema: pa.Schema, row_bytes: int, first: pa.Table | None = None
) -> Iterator[GroupWriter]:
    """Write a Parquet file of the store; when the block ends it is complete, checked and durable.

    Args:
        place: where; an older file of that name is replaced.
        schema: what is written.
        row_bytes: about how many bytes a row takes.
        first: the first rows, where they are known; see `writer_options`.

    Raises:
        StoreAccessError: the file could not be written; what is there is listed by no table.
    """
    options = writer_options(schema, row_bytes, first)
    del first  # It would be in memory until the file is complete.
    with place.written() as path:
        with pa.OSFile(str(path), "wb") as sink, pq.ParquetWriter(sink, schema, **options) as writer:
            groups = GroupWriter(sink, writer)
            yield groups
        groups.footer = _complete(path, groups.paged)
        groups.nbytes = path.stat().st_size


def _complete(path: Path, paged: Sequence[Mapping[str, PageChunk]]) -> str:
    """Put the places of pages into the footer, and its CRC-32, which is returned, after it."""
    with open(path, "r+b") as file:
        stop = file.seek(0, os.SEEK_END) - PARQUET_END.size
        file.seek(stop)
        end = file.read(PARQUET_END.size)
        length, magic = PARQUET_END.unpack(end)
        file.seek(stop - length)
        footer = file.read(length)
        if any(paged):
            footer = footer_with_pages(footer, paged)
            end = PARQUET_END.pack(len(footer), magic)
            file.seek(stop - length)
            file.truncate()
            file.write(footer)
        value = checksum(footer)
        file.write(checked_end(end, FOOTER_MARK, value))
        return f"{value:08x}"
