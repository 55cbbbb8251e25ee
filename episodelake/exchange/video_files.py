"""Video files of datasets: opened so that they lead nowhere else, and their frames as they are encoded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, dropwhile
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import DatasetError
from ..plugin import reading, require
from ..types import EncodedFrames

#: The most frames by which codecs decode a frame before it is shown.
_MOST_REORDERED = 16


@contextmanager
def opened_video(file: Path, threads: str = "AUTO") -> Iterator[tuple[Any, Any]]:
    """Yield the container and the video stream of a file.

    Args:
        threads: of the decoder, as PyAV names their types.

    Raises:
        DatasetError: the file is damaged, or the block fails to decode it.
    """
    av: Any = require("av", "Reading videos")
    # From an open file, with a fixed format, FFmpeg opens no other file or address.
    with (
        reading(file, "cannot be decoded"),
        file.open("rb") as content,
        av.open(content, format=_container(content, file)) as container,
    ):
        if not container.streams.video:
            raise DatasetError(f"{file} has no video, only {len(container.streams)} other streams.")
        stream = container.streams.video[0]
        stream.thread_type = threads
        yield container, stream


def seek_before(container: Any, stream: Any, stamp: int) -> None:
    """Go to a packet from which on the frame at a timestamp can be decoded.

    FFmpeg seeks by decoding times. A keyframe may be decoded before frames that are shown before it.
    """
    if stream.codec_context.has_b_frames:
        stamp -= math.ceil(_MOST_REORDERED / (stream.average_rate or 1) / stream.time_base)
    container.seek(max(stamp, 0), stream=stream)


class CopiedFrames:
    """Frames of an open video without decoding them, span by span.

    The first frame of a span is decoded both ways: a container may state other colours than the packets, and
    one file may hold streams of several encoders. Once one was the same, and as long as headers state the
    order of all frames, the parameters of the decoder stay those of the stream, and no other is compared.
    """

    def __init__(self) -> None:
        self._stated, self._compared = True, False

    def of(
        self, packets: Sequence[Any], stream: Any, stamps: np.ndarray, shape: tuple[int, ...]
    ) -> EncodedFrames | None:
        """Return the frames of a span; None where they have to be decoded.

        Args:
            packets: of the frames, in decoding order; some others may be around them.
            stream: of PyAV.
            stamps: int64, the presentation timestamps of the frames, in units of the stream.
            shape: of a frame, (H, W, C).
        """
        copied = EncodedFrames.copied(packets, stream, stamps, shape)
        frames, stated = copied or (None, False)
        self._stated = self._stated and stated and not any(map(changes_decoder, packets))
        if frames is None or (self._stated and self._compared):
            return frames
        self._compared = _is_first_same(frames, packets, stream, stamps, shape)
        return frames if self._compared else None


def _is_first_same(
    frames: EncodedFrames, packets: Sequence[Any], stream: Any, stamps: np.ndarray, shape: tuple[int, ...]
) -> bool:
    """Return whether the first frame of a span is the same where its file is decoded."""
    form = "gray" if shape[-1] == 1 else "rgb24"
    shown = (packet for packet in packets if packet.pts is not None)
    needed = dropwhile(lambda packet: packet.pts != stamps[0] and not changes_decoder(packet), shown)
    for frame in chain.from_iterable(map(stream.decode, chain(needed, [None]))):
        if frame.pts == stamps[0]:
            image = frame.to_ndarray(format=form).reshape(frame.height, frame.width, -1)
            try:
                return image.shape == shape and np.array_equal(image, frames[0])
            except ValueError:  # It lacks the parameters of its encoder.
                return False
    return False


def changes_decoder(packet: Any) -> bool:
    """Return whether a packet has other parameters for its decoder than those before it."""
    return bool(packet.has_sidedata("new_extradata"))


def frames_of(path: str | PathLike[str]) -> EncodedFrames:
    """Return the frames of a video file, for `EpisodeWriter.write_episode` and for numpy.

    A store that holds the column as video takes the packets over without decoding them, if the codec is
    H.264, HEVC or AV1. Everything else decodes them: `numpy.asarray(frames)`, `frames[3]`, stores of raw
    frames.

    Args:
        path: of an MP4 or Matroska file. Its first video stream is read.

    Returns:
        Frames of shape (n, H, W, 3), uint8, or (n, H, W, 1) where FFmpeg decodes them as grey: HEVC and AV1
        of one channel, but not H.264.

    Raises:
        DatasetError: the file is damaged, or no such video.
        MissingPackageError: PyAV is not installed.
    """
    file = Path(path)
    with opened_video(file) as (container, stream):
        context = stream.codec_context
        shape = context.height, context.width, 1 if context.pix_fmt == "gray" else 3
        packets = [*container.demux(stream)]
        shown = [packet.pts for packet in packets if packet.pts is not None and not packet.is_discard]
        if not shown:
            raise DatasetError(f"{file} has no frames.")
        copied = CopiedFrames().of(packets, stream, np.unique(np.array(shown, np.int64)), shape)
        if copied is not None:
            return copied
        container.seek(0, stream=stream)
        form = "gray" if shape[-1] == 1 else "rgb24"
        frames = [frame.to_ndarray(format=form).tobytes() for frame in container.decode(stream)]
    return EncodedFrames.raw(frames, shape)


def _container(file: IO[bytes], path: Path) -> str:
    """Return FFmpeg's name for the container of an open video: MP4 or Matroska, none that lists files."""
    head = file.read(12)
    file.seek(0)
    if head[4:8] in (b"ftyp", b"moov"):
        return "mov"
    if head[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    raise DatasetError(f"{path} is no MP4 or Matroska file; other videos are not read.")
