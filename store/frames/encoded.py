"""`EncodedFrames`: frames of an episode that are encoded already, to be stored as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError
from . import ffmpeg, lossless
from .chunks import MAGIC, Chunk
from .images import ImageShape
from .packet_stream import PacketStream, packet_stream
from .packets import copied_cells
from .video_column import chunk_starts, decode_frames


@dataclass(frozen=True)
class EncodedFrames:
    """The frames of one episode as cells of a column; where arrays are wanted, it decodes itself.

    Attributes:
        cells: binary; begins with a chunk or a raw frame.
        image: the shape of a frame.
    """

    cells: pa.Array
    image: ImageShape

    @staticmethod
    def copied(
        packets: Sequence[Any], stream: Any, stamps: np.ndarray, shape: tuple[int, ...]
    ) -> tuple[EncodedFrames, bool] | None:
        """Return frames of an open video without decoding them, and whether headers state their order.

        None where the frames have to be decoded.

        Args:
            packets: of the frames, in decoding order; some others may be around them.
            stream: of PyAV.
            stamps: int64, the presentation timestamps of the frames, in units of the stream.
            shape: of a frame.
        """
        image = ImageShape(tuple(shape))
        try:
            copied = copied_cells(packets, stream, stamps, image)
        except ValueError:  # Damaged packets; decoding them says more.
            return None
        return None if copied is None else (EncodedFrames(copied[0], image), copied[1])

    def reshaped(self, shape: tuple[int, ...]) -> EncodedFrames:
        """Return grey frames with another place of their one channel, or without it."""
        return EncodedFrames(self.cells, ImageShape(tuple(shape)))

    @staticmethod
    def can_have(shape: tuple[int, ...]) -> bool:
        """Return whether frames of a shape can be encoded."""
        try:
            ImageShape(shape)
        except InvalidArgumentError:
            return False
        return True

    @staticmethod
    def raw(frames: Sequence[bytes], shape: tuple[int, ...]) -> EncodedFrames:
        """Return frames that are not encoded, each as the bytes of its pixels."""
        return EncodedFrames(pa.array(frames, pa.binary()), ImageShape(tuple(shape)))

    def joined(self, frames: np.ndarray) -> EncodedFrames:
        """Return these frames and others, uint8 `(n, *shape)`, which stay exactly as they are."""
        chunks = lossless.encode(frames, self.image)
        more = [cell for chunk in chunks for cell in chunk.cells(self.image.size)]
        return EncodedFrames(pa.concat_arrays([self.cells, pa.array(more, pa.binary())]), self.image)

    def stream(self, start: int = 0, stop: int | None = None) -> PacketStream | None:
        """Return the packets of some frames, from the keyframe before them on; None where the frames have to
        be decoded.

        Args:
            start: the first frame.
            stop: the end of the frames, by default of all.

        Raises:
            ValueError: they are damaged.
        """
        begin = max(np.flatnonzero(chunk_starts(self.cells[: start + 1])).tolist(), default=0)
        packets = packet_stream(self.cells[begin:stop], self.image)
        return packets and replace(packets, shown=packets.shown + begin)

    def __repr__(self) -> str:
        """Return how many frames of which shape these are, and the bytes that they take."""
        return f"EncodedFrames({len(self)} frames of {self.image.shape}, {self.cells.nbytes:,} bytes)"

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array: `(n, *shape)`, with the shape of a frame."""
        return (len(self.cells), *self.image.shape)

    @property
    def dtype(self) -> np.dtype:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        """The axes of the array."""
        return 1 + len(self.image.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Decode all frames.

        Raises:
            ValueError: they are damaged.
        """
        frames = decode_frames(self.cells, self.image)
        return frames if dtype is None else frames.astype(dtype)

    def __getitem__(self, key: Any) -> np.ndarray:
        """Decode some frames; `key` as for an array along its first axis."""
        rows = np.arange(len(self))[key]
        frames = decode_frames(self.cells, self.image, np.atleast_1d(rows))
        return frames if rows.ndim else frames[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the frames; each group of pictures is decoded once, and a frame of it is held at a time.

        Raises:
            ValueError: they are damaged.
        """
        starts = np.flatnonzero(chunk_starts(self.cells))
        for start, stop in pairwise([0, *starts[starts > 0].tolist(), len(self)]):
            cell = memoryview(self.cells[start].as_buffer() if stop > start else b"")
            chunk = Chunk.parse(cell) if cell[: len(MAGIC)] == MAGIC else None
            if chunk is None or chunk.codec == "lossless":
                for row in range(start, stop, lossless.LONGEST):
                    yield from self[row : min(row + lossless.LONGEST, stop)]
            else:
                yield from ffmpeg.decode_each(chunk, self.image, stop - start)
