"""Lossless frames: zstd of the pixels, of their differences between lines, or of those to the frame before.

Differences from one line to the next all the way down are slow to add up in numpy. So every eighth line is
stored as its difference to the eighth line before it, and the seven below it line after line: a decoder adds
many lines at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from .chunks import Chunk
from .images import ImageShape

_PIXELS, _LINES, _FRAMES = 0, 1, 2
_STRIDE = 8
_LEVEL = 1
#: The most frames of a chunk; a reader of the last one decodes all.
LONGEST = 8
#: A frame is stored as its difference to the one before where that takes at most this part of its own bytes.
_WORTH = 0.9


def encode(frames: np.ndarray, image: ImageShape) -> Iterator[Chunk]:
    """Yield frames as chunks; those that are smaller as differences to the frame before share its chunk.

    Args:
        frames: uint8, (n, *image.shape).
        image: the shape of a frame.
    """
    codec = pa.Codec("zstd", compression_level=_LEVEL)

    def packed(kind: int, data: np.ndarray) -> bytes:
        return bytes([kind]) + codec.compress(data.reshape(-1).data, asbytes=True)

    packets: list[bytes] = []
    kind, before = _LINES, None
    for lines in (_lines(frame, image) for frame in np.ascontiguousarray(frames)):
        alone = packed(kind, _encoded(lines, kind))
        if packets and len(packets) < LONGEST:
            difference = packed(_FRAMES, lines - before)
            if len(difference) < _WORTH * len(alone):
                packets.append(difference)
                before = lines
                continue
        if packets:
            yield Chunk("lossless", len(packets), b"", packets)
        other = _PIXELS + _LINES - kind
        alone = min(alone, packed(other, _encoded(lines, other)), key=len)
        kind, packets, before = alone[0], [alone], lines
    if packets:
        yield Chunk("lossless", len(packets), b"", packets)


def decode(chunk: Chunk, image: ImageShape, wanted: np.ndarray) -> np.ndarray:
    """Return frames of a chunk: uint8, (n, *image.shape).

    Args:
        chunk: lossless.
        image: the shape of a frame.
        wanted: which of its frames, ascending.

    Raises:
        ValueError: the chunk is damaged.
    """
    if len(chunk.packets) != chunk.frames:
        raise ValueError(f"it holds {chunk.frames} lossless frames in {len(chunk.packets)} packets")
    frames = np.empty((len(wanted), *image.shape), np.uint8)
    last, before = -1, None
    for number, frame in zip(wanted.tolist(), frames, strict=True):
        first = number
        while first > last + 1 and chunk.packets[first][:1] == bytes([_FRAMES]):
            first -= 1
            if number - first == LONGEST:
                raise ValueError(f"more than {LONGEST - 1} lossless frames refer to the one before them")
        for index in range(first, number + 1):
            lines = _lines(frame if index == number else np.empty_like(frame), image)
            _decode(chunk.packets[index], before, lines)
            before = lines
        last = number
    return frames


def _lines(frame: np.ndarray, image: ImageShape) -> np.ndarray:
    """Return a view (lines, bytes of a line); of (C, H, W) a line is one of a channel."""
    return frame.reshape(-1, image.width if image.channels_first else image.width * image.channels)


def _encoded(lines: np.ndarray, kind: int) -> np.ndarray:
    """Return the bytes that zstd compresses for a frame alone."""
    if kind == _PIXELS:
        return lines
    made = lines.copy()
    for into, above in _added(made, lines):
        into -= above
    return made


def _decode(packet: bytes | memoryview, before: np.ndarray | None, into: np.ndarray) -> None:
    """Decode a frame.

    Args:
        packet: what is stored.
        before: the lines of the frame before it, where they are known.
        into: its lines.
    """
    if not len(packet) or packet[0] not in (_PIXELS, _LINES, _FRAMES):
        raise ValueError("a lossless frame begins with none of 0, 1 and 2")
    try:
        data = pa.Codec("zstd").decompress(pa.py_buffer(packet[1:]), into.size)
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"a lossless frame cannot be decompressed: {error}") from error
    plain = np.frombuffer(data, np.uint8)
    if len(plain) != into.size:
        raise ValueError(f"a lossless frame has {len(plain)} bytes instead of {into.size}")
    into[...] = plain.reshape(into.shape)
    if packet[0] == _FRAMES:
        if before is None:
            raise ValueError("its first frame refers to one before it")
        into += before
    elif packet[0] == _LINES:
        for part, above in _added(into, into):
            part += above


def _added(lines: np.ndarray, above: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield views of lines, each with those that a decoder adds to them, in its order."""
    for line in range(_STRIDE, len(lines), _STRIDE):
        yield lines[line], above[line - _STRIDE]
    for offset in range(1, min(_STRIDE, len(lines))):
        part = lines[offset::_STRIDE]
        yield part, above[offset - 1 :: _STRIDE][: len(part)]
