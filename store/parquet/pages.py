"""Data pages of frames, made when frames reach the journal and copied into Parquet files as they are.

A page holds values of one size, none NULL, as Parquet's data pages of version 1 do: definition levels, then
each value after its length, compressed together. Arrow writes only pages that it has made itself, so a row
group is written with NULLs in place of such a column. Its pages follow, and their places replace those of the
NULLs in the file's footer, which is compact Thrift (https://parquet.apache.org/docs/file-format/metadata/).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

#: How all pages of the store are compressed.
COMPRESSION, COMPRESSION_LEVEL = "zstd", 1
_LENGTH_BYTES = 4
_TRUE, _FALSE, _BYTE, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 5, 6, 7, 8, 9, 10, 12
#: Enumerations of Parquet.
_PLAIN, _RLE = 0, 3
# Fields of the structures of a footer.
_ROW_GROUPS, _COLUMNS, _TOTAL_BYTES, _TOTAL_COMPRESSED, _META_DATA = 4, 1, 2, 6, 3
_ENCODINGS, _PATH, _UNCOMPRESSED, _COMPRESSED, _FIRST_PAGE = 2, 3, 6, 7, 9
_OF_OTHER_PAGES = (11, 12, 13, 16)
_Struct = dict[int, tuple[int, Any]]


@dataclass(frozen=True)
class PageChunk:
    """The pages of one column in one row group: their offset, and their bytes, headers included."""

    offset: int
    uncompressed: int
    compressed: int


def page_bytes(count: int, size: int) -> int:
    """Return the size of a page of `count` values of `size` bytes before compression."""
    return len(_levels(count)) + count * (_LENGTH_BYTES + size)


def put_page(values: np.ndarray, page: np.ndarray) -> None:
    """Fill memory of `page_bytes` with values, uint8 of shape (n, size), as a page before compression."""
    count, size = values.shape
    levels = _levels(count)
    page[: len(levels)] = np.frombuffer(levels, np.uint8)
    rows = page[len(levels) :].reshape(count, -1)
    rows[:, :_LENGTH_BYTES] = _length(size)
    rows[:, _LENGTH_BYTES:] = values


def values_of_page(page: np.ndarray, count: int, size: int) -> np.ndarray:
    """Return the values of a page as a view of it, uint8 of shape (count, size).

    Raises:
        ValueError: it is no page of so many values of this size.
    """
    levels = _levels(count)
    rows = page[len(levels) :].reshape(count, -1)
    if page[: len(levels)].tobytes() != levels or (rows[:, :_LENGTH_BYTES] != _length(size)).any():
        raise ValueError(f"a page that is not one of {count} values of {size} bytes")
    return rows[:, _LENGTH_BYTES:]


def _levels(count: int) -> bytes:
    """Return the definition levels of values none of which is NULL: one run."""
    run = _varint(count << 1) + b"\x01"
    return len(run).to_bytes(4, "little") + run


def _length(size: int) -> np.ndarray:
    return np.frombuffer(size.to_bytes(_LENGTH_BYTES, "little"), np.uint8)


def write_pages(sink: pa.NativeFile, pages: Iterable[tuple[int, pa.Buffer]], size: int) -> PageChunk:
    """Write pages, each with its number of values, at the end of a file, and return where they are."""
    offset, uncompressed = sink.tell(), 0
    for count, page in pages:
        raw = page_bytes(count, size)
        check = zlib.crc32(page)
        values = {1: (_I32, count), 2: (_I32, _PLAIN), 3: (_I32, _RLE), 4: (_I32, _RLE)}
        header = _encoded(
            {
                1: (_I32, 0),
                2: (_I32, raw),
                3: (_I32, page.size),
                4: (_I32, check - (1 << 32) if check >> 31 else check),
                5: (_STRUCT, values),
            }
        )
        sink.write(header)
        sink.write(page)
        uncompressed += len(header) + raw
    return PageChunk(offset, uncompressed, sink.tell() - offset)


def footer_with_pages(footer: bytes, groups: Sequence[Mapping[str, PageChunk]]) -> bytes:
    """Return the footer of a file with the places of pages that were written by `write_pages`.

    Args:
        footer: as Arrow has written it, with places of NULLs for these columns.
        groups: the columns with pages of each row group.
    """
    content, _ = _decoded(footer, 0)
    for group, chunks in zip(_items(content, _ROW_GROUPS), groups, strict=True):
        for column in _items(group, _COLUMNS):
            meta = column[_META_DATA][1]
            name, *inner = _items(meta, _PATH)
            chunk = None if inner else chunks.get(name.decode())
            if chunk is not None:
                _add(group, _TOTAL_BYTES, chunk.uncompressed - meta[_UNCOMPRESSED][1])
                _add(group, _TOTAL_COMPRESSED, chunk.compressed - meta[_COMPRESSED][1])
                _locate(meta, chunk)
    return _encoded(content)


def footer_schema(footer: bytes) -> bytes:
    """Return the bytes of a footer before its number of rows: version and schema; none in an unusual form."""
    if footer[:1] != bytes([1 << 4 | _I32]):
        return b""
    try:
        at = _read_varint(footer, 1)[1]
        return footer[: _decoded_value(_LIST, footer, at + 1)[1]] if footer[at] == 1 << 4 | _LIST else b""
    except (IndexError, RecursionError, ValueError):
        return b""


def has_schema(footer: bytes, schema: bytes, rows: int) -> bool:
    """Return whether a footer has a schema, as `footer_schema` returns it, and so many rows."""
    return bool(schema) and footer.startswith(schema + bytes([1 << 4 | _I64]) + _varint(rows << 1))


def _add(group: _Struct, field: int, more: int) -> None:
    if field in group:
        group[field] = _I64, group[field][1] + more


def _locate(meta: _Struct, chunk: PageChunk) -> None:
    for field in _OF_OTHER_PAGES:
        meta.pop(field, None)
    meta[_ENCODINGS] = _LIST, (_I32, [_PLAIN, _RLE])
    meta[_UNCOMPRESSED], meta[_COMPRESSED] = (_I64, chunk.uncompressed), (_I64, chunk.compressed)
    meta[_FIRST_PAGE] = _I64, chunk.offset


# Compact Thrift: a structure is a mapping from field numbers to types and values, a list a type and values.
# https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md


def _items(structure: _Struct, field: int) -> list[Any]:
    return structure[field][1][1]


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _encoded(structure: _Struct) -> bytes:
    parts, before = [], 0
    for field, (kind, value) in sorted(structure.items()):
        step = field - before
        parts.append(bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _varint(field << 1))
        parts.append(b"" if kind in (_TRUE, _FALSE) else _encoded_value(kind, value))
        before = field
    return b"".join(parts) + b"\0"


def _encoded_value(kind: int, value: Any) -> bytes:
    if kind == _STRUCT:
        return _encoded(value)
    if kind == _BINARY:
        return _varint(len(value)) + value
    if kind in (_LIST, _SET):
        own, items = value
        head = (
            bytes([len(items) << 4 | own]) if len(items) < 15 else bytes([0xF0 | own]) + _varint(len(items))
        )
        return head + b"".join(_encoded_value(own, item) for item in items)
    if kind in (_BYTE, _DOUBLE, _TRUE, _FALSE):
        return value
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _decoded(data: bytes, at: int) -> tuple[_Struct, int]:
    structure: _Struct = {}
    field = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            field += step
        else:
            number, at = _read_varint(data, at)
            field = number >> 1
        value = None
        if kind not in (_TRUE, _FALSE):
            value, at = _decoded_value(kind, data, at)
        structure[field] = kind, value
    return structure, at + 1


def _decoded_value(kind: int, data: bytes, at: int) -> tuple[Any, int]:
    if kind == _STRUCT:
        return _decoded(data, at)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return data[at : at + size], at + size
    if kind in (_LIST, _SET):
        own, count = data[at] & 15, data[at] >> 4
        at += 1
        if count == 15:
            count, at = _read_varint(data, at)
        items = []
        for _ in range(count):
            value, at = _decoded_value(own, data, at)
            items.append(value)
        return (own, items), at
    if kind in (_BYTE, _DOUBLE, _TRUE, _FALSE):
        size = 8 if kind == _DOUBLE else 1
        return data[at : at + size], at + size
    if kind not in (4, _I32, _I64):
        raise ValueError(f"a footer with values of type {kind}, which Parquet has none of")
    number, at = _read_varint(data, at)
    return number >> 1 if not number & 1 else -((number + 1) >> 1), at
