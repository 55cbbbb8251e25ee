"""Lossless frames: zstd of the differences between neighbours of a line, or of the frame itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .chunks import Chunk
from .images import ImageShape

_PLAIN, _DIFFERENCES = 0, 1
_LEVEL = 1


def encode(frame: np.ndarray, image: ImageShape) -> Chunk:
    """Return the smaller of both as the chunk of one frame, uint8 of the image's shape."""
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    lines = _lines(np.ascontiguousarray(frame), image)
    differences = lines.copy()
    np.subtract(lines[:, 1:], lines[:, :-1], out=differences[:, 1:])
    tried = [
        codec.compress(np.ascontiguousarray(each).reshape(-1).data, asbytes=True)
        for each in (lines, differences)
    ]
    best = min(_PLAIN, _DIFFERENCES, key=lambda kind: len(tried[kind]))
    return Chunk("lossless", 1, b"", [bytes([best]) + tried[best]])


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
    for number, frame in zip(wanted.tolist(), frames, strict=True):
        _decode(chunk.packets[number], image, frame)
    return frames


def _decode(packet: bytes | memoryview, image: ImageShape, into: np.ndarray) -> None:
    if not len(packet) or packet[0] not in (_PLAIN, _DIFFERENCES):
        raise ValueError("a lossless frame begins with neither 0 nor 1")
    try:
        data = pa.Codec("zstd").decompress(pa.py_buffer(packet[1:]), image.size)
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"a lossless frame cannot be decompressed: {error}") from error
    plain = np.frombuffer(data, np.uint8)
    if len(plain) != image.size:
        raise ValueError(f"a lossless frame has {len(plain)} bytes instead of {image.size}")
    lines = _lines(plain.reshape(image.shape), image)
    if packet[0] == _PLAIN:
        _lines(into, image)[...] = lines
    else:
        np.cumsum(lines, axis=1, dtype=np.uint8, out=_lines(into, image))


def _lines(frame: np.ndarray, image: ImageShape) -> np.ndarray:
    """Return a view (lines, width, values of a pixel)."""
    if image.channels_first:
        return frame.reshape(image.channels * image.height, image.width, 1)
    return frame.reshape(image.height, image.width, image.channels)
