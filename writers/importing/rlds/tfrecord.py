"""TFRecord files, and the `tf.train.Example` in a record, read without TensorFlow.

A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data: CRC-32C, masked.
An `Example` is a protocol buffer: a map from names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ....store.errors import DatasetError

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78
_ALL = 0xFFFFFFFF


def record_offsets(file: Path) -> Iterator[int]:
    """Yield where each record begins.

    Raises:
        DatasetError: the file cannot be read, is truncated, or a length has another checksum.
    """
    try:
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
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error


def read_record(file: Path, offset: int) -> bytes:
    """Return the data of the record that begins at an offset.

    Raises:
        DatasetError: it cannot be read, or has another checksum.
    """
    try:
        with file.open("rb") as source:
            source.seek(offset)
            data = source.read(_length(source.read(_HEAD.size), file, 0))
            tail = source.read(_TAIL.size)
    except OSError as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error
    if len(tail) < _TAIL.size or _TAIL.unpack(tail)[0] != masked_crc(data):
        raise DatasetError(f"{file}: the record at byte {offset} is damaged; its checksum differs.")
    return data


def _length(head: bytes, file: Path, number: int) -> int:
    if len(head) < _HEAD.size:
        raise DatasetError(f"{file} is truncated in record {number}.")
    length, checksum = _HEAD.unpack(head)
    if checksum != masked_crc(head[:8]):
        raise DatasetError(f"{file}: the length of record {number} is damaged; its checksum differs.")
    return length


def masked_crc(data: bytes) -> int:
    """Return the checksum of bytes as TFRecord files have it."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & _ALL


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes.

    Long data is cut into lanes of equal length whose checksums advance together, and are then combined in
    pairs: the checksum of A and B is that of A moved over the length of B, combined with that of B.
    """
    if len(data) < 64:
        crc = _ALL
        for byte in data:
            crc = int(_table()[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
        return crc ^ _ALL
    lanes = 1 << (len(data).bit_length() // 2)
    width = -(-len(data) // lanes)
    # Zeros before the data change nothing, once its first bytes have taken up the initial value.
    padded = np.zeros(lanes * width, np.uint8)
    padded[-len(data) :] = np.frombuffer(data, np.uint8)
    padded[len(padded) - len(data) :][:4] ^= 0xFF
    found = np.zeros(lanes, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(lanes, width).T):
        found = _table()[(found ^ column) & 0xFF] ^ (found >> 8)
    move = _move(width)
    while len(found) > 1:
        found = _moved(move, found[::2]) ^ found[1::2]
        move = _moved(move, move)
    return int(found[0]) ^ _ALL


@cache
def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table


@cache
def _move(width: int) -> np.ndarray:
    """Return what a checksum with each single bit set becomes after some zero bytes."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power, found = _table()[bits & 0xFF] ^ (bits >> 8), bits
    while width:
        if width & 1:
            found = _moved(power, found)
        power, width = _moved(power, power), width >> 1
    return found


def _moved(move: np.ndarray, values: np.ndarray) -> np.ndarray:
    found = np.zeros_like(values)
    for bit in range(32):
        found ^= np.where((values >> np.uint32(bit)) & 1, move[bit], np.uint32(0))
    return found


def read_example(data: bytes) -> dict[str, list[bytes] | np.ndarray]:
    """Return the features of an `Example`: lists of bytes, float32 or int64 arrays.

    Raises:
        DatasetError: it is no `Example`.
    """
    found: dict[str, list[bytes] | np.ndarray] = {}
    try:
        for _, features in _fields(memoryview(data)):
            for _, entry in _fields(features):
                parts = dict(_fields(entry))
                found[bytes(parts[1]).decode()] = _values(parts.get(2, memoryview(b"")))
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        raise DatasetError(f"A record is no tf.train.Example: {error!r}.") from error
    return found


def _values(feature: memoryview) -> list[bytes] | np.ndarray:
    """Return the values of a `Feature`: its field says of which type they are."""
    for kind, content in _fields(feature):
        items = [item for _, item in _fields(content)]
        if kind == 1:
            return [bytes(item) for item in items]
        if kind == 2:
            return np.frombuffer(b"".join(items), "<f4")
        return np.concatenate([np.empty(0, np.int64), *map(_integers, items)])
    return []


def _integers(item: memoryview | int) -> np.ndarray:
    """Return packed integers, seven bits in a byte, the lowest first; or a single one."""
    if isinstance(item, int):
        return np.array([item], np.uint64).view(np.int64)
    data = np.frombuffer(item, np.uint8)
    ends = np.flatnonzero(data < 128)
    if len(ends) == len(data):
        return data.astype(np.int64)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise ValueError("an integer has no end")
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(data)) - np.repeat(starts, ends - starts + 1)
    parts = (data & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts).view(np.int64)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: number, and bytes or an integer."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {kind}")
        if place + length > len(data):
            raise ValueError("a field ends behind its message")
        yield tag >> 3, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
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
