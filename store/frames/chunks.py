"""The layout of a chunk: the cell that holds the frames of one closed group of pictures.

    4 bytes  "EPF1"
    u8       the codec: 0 lossless, 1 h264, 2 hevc, 3 av1
    u8       zero
    u16      how many frames it holds
    u32      the size of the codec's extradata
    u32      how many packets there are
    u32 ...  the size of each packet
    bytes    the extradata, then the packets, in the order in which a decoder takes them
    0 or 1   zero bytes, so that the size of a chunk is never that of a raw frame

All numbers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAGIC = b"EPF1"
_HEADER = struct.Struct("<4sBBHII")
#: By number, the codecs.
NAMES = ("lossless", "h264", "hevc", "av1")


@dataclass(frozen=True)
class Chunk:
    """Frames of one closed group of pictures.

    Attributes:
        codec: one of `NAMES`.
        frames: how many.
        extradata: what the decoder needs beside the packets.
        packets: in decoding order.
    """

    codec: str
    frames: int
    extradata: bytes
    packets: Sequence[bytes | memoryview]

    def to_bytes(self, frame_size: int) -> bytes:
        """Return the cell.

        Args:
            frame_size: the bytes of a raw frame of the column.
        """
        sizes = np.array([len(packet) for packet in self.packets], "<u4").tobytes()
        header = _HEADER.pack(
            MAGIC, NAMES.index(self.codec), 0, self.frames, len(self.extradata), len(self.packets)
        )
        cell = b"".join((header, sizes, self.extradata, *self.packets))
        return cell + b"\0" if len(cell) == frame_size else cell

    def cells(self, frame_size: int) -> list[bytes]:
        """Return the cells of its frames: the chunk, and empty ones; see `to_bytes`."""
        return [self.to_bytes(frame_size), *[b""] * (self.frames - 1)]

    @staticmethod
    def parse(cell: memoryview) -> Chunk:
        """Return the chunk of a cell, whose memory it shares.

        Raises:
            ValueError: it is none.
        """
        if len(cell) < _HEADER.size:
            raise ValueError(f"it has {len(cell)} bytes, fewer than the header of a chunk")
        magic, codec, zero, frames, extra, count = _HEADER.unpack_from(cell)
        if magic != MAGIC or zero or codec >= len(NAMES) or not frames:
            raise ValueError(f"it begins with {bytes(cell[: _HEADER.size]).hex()}, which is no chunk")
        first = _HEADER.size + 4 * count
        if first > len(cell):
            raise ValueError(f"it lists {count} packets, more than its {len(cell)} bytes hold")
        sizes = np.frombuffer(cell, "<u4", count, _HEADER.size).astype(np.int64)
        ends = first + extra + np.cumsum(sizes)
        last = int(ends[-1]) if count else first + extra
        if not len(cell) - 1 <= last <= len(cell):
            raise ValueError(f"its packets end at byte {last} of {len(cell)}")
        packets = [cell[end - size : end] for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)]
        return Chunk(NAMES[codec], frames, bytes(cell[first : first + extra]), packets)
