"""Chunks of an episode as one stream of packets, as video files have it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..common.optional_packages import require
from . import ffmpeg, h264_order
from .chunks import MAGIC, Chunk
from .images import ImageShape

_START = b"\0\0\1"


@dataclass(frozen=True)
class PacketStream:
    """Packets of an episode in decoding order.

    Attributes:
        codec: "h264", "hevc" or "av1".
        extradata: of the chunks; streams with the same one can follow each other in a file.
        packets: of H.264 and HEVC with start codes; keyframes have the parameters of the decoder.
        shown: int64, one per packet: the place at which its frame is shown, counted from 0. Those from the
            episode's number of frames on belong to none of its rows, but others are decoded with them.
        keys: bool, one per packet: the keyframes.
        image: the shape of a frame.
    """

    codec: str
    extradata: bytes
    packets: list[bytes]
    shown: np.ndarray
    keys: np.ndarray
    image: ImageShape

    @property
    def delay(self) -> int:
        """How many frames later than it is decoded a frame is shown at most."""
        return max(0, int((np.arange(len(self.shown)) - self.shown).max()))

    def takes(self, other: PacketStream) -> bool:
        """Return whether a file that begins with these packets can go on with others."""
        alike = (self.codec, self.extradata) == (other.codec, other.extradata)
        return alike and other.delay <= self.delay

    def new_file(self, path: Path, fps: Fraction, *, quick: bool) -> PacketFile:
        """Begin an MP4 file for these packets, and others with the same codec, extradata and image.

        Args:
            path: of the file.
            fps: frames per second.
            quick: put the index first, so that players begin before they have all of the file; writes the
                file twice.
        """
        return PacketFile(self, path, fps, quick=quick)


class PacketFile:
    """An MP4 file of packets that are copied.

    Attributes:
        delay: how many frames later than it is decoded a frame may be shown.
        size: the bytes of its packets.
    """

    def __init__(self, first: PacketStream, path: Path, fps: Fraction, *, quick: bool) -> None:
        self._av: Any = require("av", "A video")
        # Encoders have made odd sides even.
        height, width = (side + side % 2 for side in (first.image.height, first.image.width))
        options = {"movflags": "+faststart"} if quick else {}
        self._container = self._av.open(str(path), "w", format="mp4", options=options)
        self._stream = self._container.add_mux_stream(first.codec, rate=fps, width=width, height=height)
        self.delay = first.delay
        # Others round the times of frames.
        self._stream.time_base = 1 / fps
        self._fps = fps
        self._frames = self.size = 0

    def write(self, packets: PacketStream) -> tuple[int, int]:
        """Append an episode or a part of it, which begins with a keyframe; return the numbers of its frames.

        The next begins after the last frame that its packets have.
        """
        start = self._frames
        for index, data in enumerate(packets.packets):
            packet = self._av.Packet(data)
            packet.stream, packet.time_base = self._stream, 1 / self._fps
            packet.pts, packet.dts = start + int(packets.shown[index]), start + index - self.delay
            packet.is_keyframe = bool(packets.keys[index])
            self._container.mux(packet)
            self.size += len(data)
        self._frames += 1 + int(packets.shown.max())
        return start, self._frames

    def close(self) -> None:
        """Finish the file."""
        self._container.close()


def packet_stream(cells: pa.Array, image: ImageShape) -> PacketStream | None:
    """Return the packets of the cells of an episode; None where they are not one stream.

    They are none with raw or lossless frames, several codecs, or frames in between that no cell has. Nor are
    they where a cell has no frame: what decodes them says what is wrong.

    Args:
        cells: binary, at least one.
        image: the shape of a frame.

    Raises:
        ValueError: a chunk is damaged.
    """
    if cells.null_count:
        return None
    rows = [row for row, cell in enumerate(cells) if len(cell.as_buffer())]
    if not rows or rows[0]:
        return None
    counts = np.diff([*rows, len(cells)]).tolist()
    packets: list[bytes] = []
    shown: list[np.ndarray] = []
    keys: list[int] = []
    first: Chunk | None = None
    for row, count in zip(rows, counts, strict=True):
        cell = memoryview(cells[row].as_buffer())
        chunk = Chunk.parse(cell) if cell[: len(MAGIC)] == MAGIC else None
        first = first or chunk
        if chunk is None or first is None or not _follows(chunk, first):
            return None
        order = stated_order(chunk)
        if order is None:
            order = ffmpeg.shown_order(chunk, image)
        if order is None or np.count_nonzero(order < count) < count:
            return None
        # Packets after the last frame that is wanted are not needed to decode it.
        needed = 1 + int(np.flatnonzero(order < count)[-1])
        if row + count < len(cells) and (order[:needed] >= count).any():
            return None
        keys.append(len(packets))
        packets += _with_start_codes(first, [*map(bytes, chunk.packets[:needed])])
        shown.append(order[:needed] + row)
    assert first is not None
    is_key = np.isin(np.arange(len(packets)), keys)
    return PacketStream(first.codec, first.extradata, packets, np.concatenate(shown), is_key, image)


def stated_order(chunk: Chunk) -> np.ndarray | None:
    """Return the place at which the frame of each packet is shown, from the headers of H.264.

    Returns:
        int64; None where the headers leave it open, and of other codecs.
    """
    if chunk.codec != "h264":
        return None
    packets = [*map(bytes, chunk.packets)]
    if not _has_lengths(chunk):
        return h264_order.shown_order(_with_start_codes(chunk, packets))
    units = [*_split(chunk, packets)]
    # A decoder of packets with start codes would find another unit there.
    damaged = any(h264_order.START_CODE.search(unit) for own in units for unit in own)
    return None if damaged else h264_order.order_of_units(units)


def _follows(chunk: Chunk, first: Chunk) -> bool:
    same = (chunk.codec, chunk.extradata) == (first.codec, first.extradata)
    return same and chunk.codec != "lossless"


def _with_start_codes(chunk: Chunk, packets: list[bytes]) -> Iterator[bytes]:
    """Yield packets of H.264 or HEVC with start codes, the first with the parameters of the extradata, where
    it lacks them: those of files that were copied have them already.
    """
    if not _has_lengths(chunk):
        extra = chunk.extradata
        for number, packet in enumerate(packets):
            lacks = not number and chunk.codec != "av1" and extra not in packet
            yield extra + packet if lacks else packet
        return
    for units in _split(chunk, packets):
        # With a longer code in between, FFmpeg takes its first zero for a part of the unit before.
        yield b"\0" + b"".join(_START + unit for unit in units)


def _has_lengths(chunk: Chunk) -> bool:
    """Return whether the units of its packets follow their lengths, as in MP4, and not start codes."""
    return chunk.codec != "av1" and chunk.extradata[:1] == b"\1"


def _split(chunk: Chunk, packets: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the units of each packet, of the first with the parameters that it lacks."""
    size, parameters = _parameters(chunk.codec, chunk.extradata)
    for packet in packets:
        own = [*_units(packet, size)]
        yield [*(unit for unit in parameters if unit not in own), *own]
        parameters = ()


@lru_cache(16)  # The chunks of a file share them.
def _parameters(codec: str, extra: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Return the bytes of the lengths of units, and the units with the parameters of the decoder."""
    size = 1 + (extra[4 if codec == "h264" else 21] & 3)
    stated = _h264_parameters(extra) if codec == "h264" else _hevc_parameters(extra)
    return size, tuple(dict.fromkeys(stated))


def _units(packet: bytes, size: int) -> Iterator[bytes]:
    """Yield the units of a packet, each of which follows its length in so many bytes."""
    at = 0
    while at + size <= len(packet):
        start, at = at + size, at + size + int.from_bytes(packet[at : at + size])
        yield packet[start:at]


def _h264_parameters(extra: bytes) -> list[bytes]:
    units: list[bytes] = []
    at = 5
    for mask in (31, 255):
        count, at = extra[at] & mask, at + 1
        at = _take(extra, at, count, units)
    return units


def _hevc_parameters(extra: bytes) -> list[bytes]:
    units: list[bytes] = []
    at = 23
    for _ in range(extra[22]):
        at = _take(extra, at + 3, int.from_bytes(extra[at + 1 : at + 3]), units)
    return units


def _take(extra: bytes, at: int, count: int, units: list[bytes]) -> int:
    """Add so many units with lengths of two bytes; return the place after them."""
    for _ in range(count):
        size = int.from_bytes(extra[at : at + 2])
        # Zeros at the end are none of its own.
        units.append(extra[at + 2 : at + 2 + size].rstrip(b"\0"))
        at += 2 + size
    return at
