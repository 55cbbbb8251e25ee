"""TFRecord files, and the `tf.train.Example` in a record, read and written without TensorFlow.

A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data: CRC-32C, masked.
An `Example` is a protocol buffer: a map from names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from google_crc32c import value as crc32c

from ...errors import DatasetError
from ...plugin import check_bytes

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
#: Tag, start and end of a field's content.
_Field = tuple[int, int, int]
#: Wire types, the lowest bits of a tag: integers, and bytes with their length.
_INTEGER, _BYTES = 0, 2


def record_offsets(file: Path) -> Iterator[int]:
    """Yield where each record begins.

    Raises:
        OSError: the file cannot be read.
        DatasetError: it is truncated, or a length has another checksum.
    """
    with file.open("rb") as source:
        size = source.seek(0, 2)
        offset = number = 0
        while offset < size:
            source.seek(offset)
            length = _length(source.read(_HEAD.size), file, number)
            end = offset + _HEAD.size + length + _TAIL.size
            if end > size:
                raise DatasetError(f"{file}: record {number} ends at byte {end}, the file at {size}.")
            yield offset
            offset, number = end, number + 1


def read_record(source: IO[bytes], offset: int) -> bytes:
    """Return the data of the record that begins at an offset of an open file.

    Raises:
        OSError: the file cannot be read.
        DatasetError: it is truncated, has another checksum, or is larger than the limit of the import.
    """
    source.seek(offset)
    length = _length(source.read(_HEAD.size), source.name, 0)
    check_bytes(f"{source.name}: the record at byte {offset}", length)
    data = source.read(length)
    tail = source.read(_TAIL.size)
    if len(tail) < _TAIL.size or _TAIL.unpack(tail)[0] != masked_crc(data):
        raise DatasetError(f"{source.name}: the record at byte {offset} is damaged; its checksum differs.")
    return data


def _length(head: bytes, file: Path | str, number: int) -> int:
    if len(head) < _HEAD.size:
        raise DatasetError(f"{file} is truncated in record {number}.")
    length, checksum = _HEAD.unpack(head)
    if checksum != masked_crc(head[:8]):
        raise DatasetError(f"{file}: the length of record {number} is damaged; its checksum differs.")
    return length


def write_record(file: IO[bytes], data: bytes) -> None:
    """Append a record to a file."""
    length = _LENGTH.pack(len(data))
    file.write(length + _TAIL.pack(masked_crc(length)))
    file.write(data)
    file.write(_TAIL.pack(masked_crc(data)))


def masked_crc(data: bytes) -> int:
    """Return the checksum of bytes as TFRecord files have it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_example(data: bytes) -> dict[str, list[bytes] | np.ndarray]:
    """Return the features of an `Example`: bytes as a list, or an array of the dtype `V` where all items have
    one length; float32 or int64 arrays.

    Raises:
        DatasetError: it is no `Example`.
    """
    contents: dict[str, list[bytes] | np.ndarray] = {}
    try:
        for _, place, end in _fields(data, 0, len(data)):
            for _, start, stop in _fields(data, place, end):
                parts = {field[0]: field for field in _fields(data, start, stop)}
                name = _content_of(data, parts[_BYTES | 1 << 3])
                _, start, stop = parts.get(_BYTES | 2 << 3, (0, 0, 0))
                contents[name.decode()] = _values(data, start, stop)
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise DatasetError(f"A record is no tf.train.Example: {error!r}.") from error
    return contents


def _values(data: bytes, place: int, end: int) -> list[bytes] | np.ndarray:
    """Return the values of a `Feature`; its field gives their type."""
    for tag, start, stop in _fields(data, place, end):
        if tag == _BYTES | 1 << 3:
            return _byte_items(data, start, stop)
        items = _fields(data, start, stop)
        if tag == _BYTES | 2 << 3:
            return np.frombuffer(b"".join([_content_of(data, item) for item in items]), "<f4")
        parts = [_integers(data, item) for item in items]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
    return []


def _byte_items(data: bytes, start: int, stop: int) -> list[bytes] | np.ndarray:
    """Return the items of a `BytesList`; several of one length stay where they are, in an array."""
    if data[start : min(start + 1, stop)] == b"\n":
        length, content = _varint(data, start + 1)
        size = content - start + length
        if length and stop - start > size and (stop - start) % size == 0:
            count = (stop - start) // size
            if all(data[at:stop:size] == data[at : at + 1] * count for at in range(start, content)):
                return np.ndarray((count,), f"V{length}", data, content, (size,))
    return [_content_of(data, item) for item in _fields(data, start, stop)]


def _integers(data: bytes, item: _Field) -> np.ndarray:
    """Return packed integers, seven bits in a byte, the lowest first; or a single one."""
    tag, start, _ = item
    if tag & 7 == _INTEGER:
        return np.array([_varint(data, start)[0]], np.uint64).view(np.int64)
    content = _content_of(data, item)
    packed = np.frombuffer(content, np.uint8)
    if content.isascii():  # none above 127, asked without a reduction
        return packed.astype(np.int64)
    ends = np.flatnonzero(packed < 128)
    if not len(ends) or ends[-1] != len(packed) - 1:
        raise ValueError("an integer has no end")
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(packed)) - np.repeat(starts, ends - starts + 1)
    parts = (packed & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts).view(np.int64)


def _content_of(data: bytes, item: _Field) -> bytes:
    tag, start, stop = item
    if tag & 7 == _INTEGER:
        raise ValueError("a field is an integer, where bytes are expected")
    return data[start:stop]


def _fields(data: bytes, place: int, end: int) -> list[_Field]:
    """Return the fields of a message: tag (number and wire type), and where its content begins and ends."""
    fields: list[_Field] = []
    while place < end:
        # Most numbers have one byte.
        tag, place = (data[place], place + 1) if data[place] < 128 else _varint(data, place)
        kind = tag & 7
        if kind == _BYTES:
            length, place = (data[place], place + 1) if data[place] < 128 else _varint(data, place)
            stop = place + length
        elif kind == _INTEGER:
            stop = _varint(data, place)[1]
        elif kind in (1, 5):
            stop = place + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"a field has the unknown wire type {kind}")
        if stop > end:
            raise ValueError("a field ends after its message")
        fields.append((tag, place, stop))
        place = stop
    return fields


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place
        if shift > 63:
            raise ValueError("an integer has more than 64 bits")


def write_example(features: Mapping[str, np.ndarray | list[bytes]]) -> bytes:
    """Return an `Example`.

    Args:
        features: float32 arrays and arrays of integers or flags are stored as such, in C order; of an array
            of the dtype `V`, and of a list, each item is bytes.
    """
    entries: list[bytes] = []
    for name, values in features.items():
        kind, content = _content(values)
        feature = _message(2, *_message(kind, *content))
        entries += _message(1, *_message(1, name.encode()), *feature)
    return b"".join(_message(1, *entries))


def _content(values: np.ndarray | list[bytes]) -> tuple[int, list[bytes]]:
    """Return the type of a `Feature`, and its list in parts."""
    if isinstance(values, list):
        return 1, [part for item in values for part in _message(1, item)]
    if values.dtype.kind == "V":
        size = values.dtype.itemsize
        head = np.frombuffer(b"\x0a" + _encoded(size), np.uint8)
        rows = np.empty((values.size, len(head) + size), np.uint8)
        rows[:, : len(head)] = head
        rows[:, len(head) :] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, size)
        return 1, [rows.tobytes()]
    if values.dtype.kind == "f":
        return 2, _message(1, values.astype("<f4", copy=False).tobytes())
    return 3, _message(1, _packed(values.reshape(-1).astype(np.int64).view(np.uint64)))


def _packed(values: np.ndarray) -> bytes:
    """Return integers of seven bits in a byte, the lowest first; all but the last byte have the eighth."""
    if not values.size or values.max() < 128:
        return values.astype(np.uint8).tobytes()
    places = np.arange(10, dtype=np.uint64) * np.uint64(7)
    rest = values[:, None] >> places
    packed = (rest & np.uint64(127)).astype(np.uint8)
    more = np.zeros(packed.shape, bool)
    more[:, :-1] = rest[:, 1:] > 0
    packed[more] |= 128
    kept = np.ones(packed.shape, bool)
    kept[:, 1:] = more[:, :-1]
    return packed[kept].tobytes()


def _message(field: int, *content: bytes) -> list[bytes]:
    """Return a field of bytes in parts."""
    return [bytes([field << 3 | 2]) + _encoded(sum(map(len, content))), *content]


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
