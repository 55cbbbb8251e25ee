"""A decoder of frame columns that was written from docs/format.md alone, to prove that the page suffices.

It imports nothing of Episodelake: pyarrow for Parquet and zstd, and PyAV for the codecs of FFmpeg.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_DECODERS = {1: ("h264",), 2: ("hevc",), 3: ("libdav1d", "libaom-av1")}


def read_frames(cells: list[bytes | None], shape: tuple[int, ...]) -> Iterator[np.ndarray | None]:
    """The frame of each cell, uint8 of `shape`; None for NULL."""
    size = int(np.prod(shape))
    waiting: Iterator[np.ndarray] = iter(())
    for cell in cells:
        if cell is None:
            yield None
            continue
        if len(cell) == size:
            waiting = iter(())
            yield np.frombuffer(cell, np.uint8).reshape(shape)
            continue
        if cell:
            waiting = _frames_of_chunk(cell, shape, size)
        yield next(waiting)


def _frames_of_chunk(cell: bytes, shape: tuple[int, ...], size: int) -> Iterator[np.ndarray]:
    magic, codec, zero, frames, extra, count = struct.unpack_from("<4sBBHII", cell)
    assert (magic, zero) == (b"EPF1", 0) and codec in (0, 1, 2, 3) and frames >= 1
    sizes = struct.unpack_from(f"<{count}I", cell, 16)
    place = 16 + 4 * count
    extradata = cell[place : place + extra]
    ends = list(itertools.accumulate(sizes, initial=place + extra))
    packets = [cell[start:stop] for start, stop in itertools.pairwise(ends)]
    rest = cell[ends[-1] :]
    assert rest == b"" or (rest == b"\0" and ends[-1] == size)
    pictures = _lossless(packets, shape, size) if codec == 0 else _decoded(codec, extradata, packets, shape)
    found = list(pictures)
    assert len(found) == frames
    yield from found


def _lossless(packets: list[bytes], shape: tuple[int, ...], size: int) -> Iterator[np.ndarray]:
    # A line is a row of pixels, of (C, H, W) those of one channel.
    height, width = shape[-2:] if len(shape) == 2 or _first(shape) else shape[:2]
    channels = 1 if len(shape) == 2 or _first(shape) else shape[-1]
    before = None
    for packet in packets:
        with pa.CompressedInputStream(pa.BufferReader(packet[1:]), "zstd") as stream:
            data = np.frombuffer(stream.read(), np.uint8)
        assert len(data) == size and packet[0] in (0, 1, 2) and size % (height * width) == 0
        lines = data.reshape(-1, width * channels).astype(np.int64)
        if packet[0] == 1:
            for line in range(1, len(lines)):
                lines[line] += lines[line - 1 if line % 8 else line - 8]
        elif packet[0] == 2:
            lines = lines + before
        before = lines % 256
        yield before.astype(np.uint8).reshape(shape)


def _decoded(
    codec: int, extradata: bytes, packets: list[bytes], shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    name = next(name for name in _DECODERS[codec] if name in av.codecs_available)
    decoder = av.codec.CodecContext.create(name, "r")
    if extradata:
        decoder.extradata = extradata
    height, width = shape[1:] if _first(shape) else shape[:2]
    grey = len(shape) == 2 or 1 in (shape[0], shape[-1])
    for packet in [*map(av.Packet, packets), None]:
        for picture in decoder.decode(packet):
            assert picture.height == height + height % 2 and picture.width == width + width % 2
            pixels = picture.to_ndarray(format="gray" if grey else "rgb24")[:height, :width]
            yield (np.moveaxis(pixels, -1, 0) if _first(shape) and not grey else pixels).reshape(shape)


def _first(shape: tuple[int, ...]) -> bool:
    """Whether the channels come first: (C, H, W)."""
    return len(shape) == 3 and shape[-1] not in (1, 3)


def row_groups(store: Path, column: str) -> Iterator[tuple[list[str], list[int], list[bytes | None]]]:
    """Of each row group of the steps: episode ids, t, and the cells of a column."""
    for file in sorted((store / "steps").glob("*.parquet")):
        parquet = pq.ParquetFile(file)
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group, columns=["episode_id", "t", column])
            yield tuple(table.column(name).to_pylist() for name in ("episode_id", "t", column))


def read_column(store: Path, column: str, shape: tuple[int, ...]) -> dict[tuple[str, int], np.ndarray]:
    """The frames of a column of a single agent's store, by episode id and t; checks where chunks begin.

    Rows that a rewrite left behind in old files count as well: read stores after `vacuum`, or new ones.
    """
    described = json.loads((store / "store.json").read_text())
    assert described["format"] == 2 and column in described["encodings"]
    found: dict[tuple[str, int], np.ndarray] = {}
    for ids, steps, cells in row_groups(store, column):
        begins = [True, *(steps[row] == 0 for row in range(1, len(steps)))]
        assert all(cell != b"" for cell, first in zip(cells, begins, strict=True) if first)
        for key, frame in zip(zip(ids, steps, strict=True), read_frames(cells, shape), strict=True):
            if frame is not None:
                found[key] = frame
    return found
