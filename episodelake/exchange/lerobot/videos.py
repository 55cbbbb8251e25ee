"""Frames of an episode in a video: located by time within the episode's own range, then decoded.

A file of version 3.0 has the frames of many episodes. `frame_stamps` finds those of one without decoding
them, so that frames can be decoded or their packets copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DatasetError
from ...plugin import check_bytes, reading
from ...types import EncodedFrames
from ..video_files import CopiedFrames, changes_decoder, opened_video, seek_before

#: How far a frame may be from the time of its row, in frames; nearer to a half, two frames are alike.
_TOLERANCE = 0.25


@dataclass(frozen=True)
class VideoSpan:
    """The frames of an episode in a video.

    Attributes:
        file: the path.
        start: the time of the first frame in seconds.
        stop: the time at which the next episode begins; infinite where the file ends.
    """

    file: Path
    start: float = 0.0
    stop: float = math.inf


def span_packets(container: Any, stream: Any, span: VideoSpan, fps: float) -> list[Any]:
    """Return the packets of a range in decoding order, and some around them."""
    base = float(stream.time_base)
    margin = 0.5 / fps
    first, stop = (span.start - margin) / base, (span.stop - margin) / base
    seek_before(container, stream, math.floor(first))
    packets: list[Any] = []
    for packet in container.demux(stream):
        if packets or (packet.pts is not None and packet.pts >= first) or changes_decoder(packet):
            packets.append(packet)
        # A decoding time is never after its presentation time, and does not go back.
        if packet.dts is not None and packet.dts >= stop:
            break
    return packets


def frame_stamps(
    packets: Sequence[Any], stream: Any, span: VideoSpan, times: np.ndarray, fps: float
) -> np.ndarray:
    """Return the presentation timestamp of the frame of each row, int64 (T,), in units of the stream.

    A range with T frames has one for each row, whatever clock the rows have. In any other, the frame of a row
    is the nearest in time.

    Args:
        packets: of the range.
        times: of the rows, in seconds from the first frame of the episode.
        fps: frames per second of the dataset.

    Raises:
        DatasetError: no frame of the range is near enough to the time of a row.
    """
    base = float(stream.time_base)
    margin = 0.5 / fps
    first, stop = (span.start - margin) / base, (span.stop - margin) / base
    shown = [packet.pts for packet in packets if packet.pts is not None and not packet.is_discard]
    stamps = np.unique(np.array(shown, np.int64))
    stamps = stamps[(first <= stamps) & (stamps < stop)]
    if len(stamps) == len(times):
        return stamps
    return _nearest(stamps, base, span, times, fps)


def _nearest(stamps: np.ndarray, base: float, span: VideoSpan, times: np.ndarray, fps: float) -> np.ndarray:
    wanted = span.start + times.astype(np.float64)
    if not len(stamps):
        raise DatasetError(f"{span.file} has no frame from {span.start:.4f} s on.")
    moments = stamps * base
    after = np.searchsorted(moments, wanted).clip(1, max(len(moments) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(moments) - 1)
    nearest = np.where(wanted - moments[before] <= moments[after] - wanted, before, after)
    distances = np.abs(moments[nearest] - wanted)
    far = np.flatnonzero(distances > _TOLERANCE / fps)
    if len(far):
        row = int(far[0])
        raise DatasetError(
            f"{span.file} has no frame at {wanted[row]:.4f} s, frame {row} of the episode; the nearest is "
            f"{distances[row]:.4f} s away. The video has {len(stamps):,} frames for {len(times):,} rows, so "
            "their times have to fit."
        )
    return stamps[nearest]


@dataclass(frozen=True)
class Pixels:
    """The pixels that frames become.

    Attributes:
        shape: (H, W, C).
        dtype: of their numbers.
        convert: returns those of a frame of PyAV, (H, W, C) or (H, W).
    """

    shape: tuple[int, ...]
    dtype: Any
    convert: Callable[[Any], np.ndarray]

    @staticmethod
    def colors(shape: tuple[int, ...]) -> Pixels:
        """Return levels of gray, for one channel, or of colours, from 0 to 255."""
        name = "gray" if shape[-1] == 1 else "rgb24"
        return Pixels(shape, np.uint8, lambda frame: frame.to_ndarray(format=name))


class OpenVideos:
    """Video files that stay open for the next episodes: one of each camera."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Path, ExitStack, tuple[Any, Any, CopiedFrames]]] = {}

    def copied(
        self, camera: str, span: VideoSpan, times: np.ndarray, fps: float, shape: tuple[int, ...]
    ) -> EncodedFrames | None:
        """Return the frame of each row without decoding; None where they cannot be copied.

        Args:
            camera: the name of its feature.
            times, fps: as for `frame_stamps`.
            shape: (H, W, C).

        Raises:
            DatasetError: the file is damaged, or a frame is missing.
        """
        container, stream, frames = self._opened(camera, span.file)
        with reading(span.file, "cannot be decoded"):
            packets = span_packets(container, stream, span, fps)
            copied = frames.of(packets, stream, frame_stamps(packets, stream, span, times, fps), shape)
        if any(map(changes_decoder, packets)):
            # The file gives them once only, and not all of its packets are decoded.
            self._close(camera)
        return copied

    def _opened(self, camera: str, file: Path) -> tuple[Any, Any, CopiedFrames]:
        if camera not in self._open or self._open[camera][0] != file:
            self._close(camera)
            with ExitStack() as stack:
                # Only the first frame of an episode is decoded: threads would decode more of them.
                opened = stack.enter_context(opened_video(file, threads="NONE"))
                self._open[camera] = file, stack.pop_all(), (*opened, CopiedFrames())
        return self._open[camera][2]

    def _close(self, camera: str) -> None:
        if camera in self._open:
            self._open.pop(camera)[1].close()

    def close(self) -> None:
        """Close the files."""
        for camera in [*self._open]:
            self._close(camera)


def video_frames(span: VideoSpan, times: np.ndarray, fps: float, pixels: Pixels) -> np.ndarray:
    """Decode the frame of each row, as (T, H, W, C).

    Args:
        times, fps: as for `frame_stamps`.

    Raises:
        DatasetError: the file is damaged, frames have another shape, or one is missing.
    """
    size = len(times) * math.prod(pixels.shape) * np.dtype(pixels.dtype).itemsize
    check_bytes(f"The video {span.file} of an episode", size)
    frames = np.empty((len(times), *pixels.shape), pixels.dtype)
    done = 0
    with opened_video(span.file) as (container, stream):
        stamps = frame_stamps(span_packets(container, stream, span, fps), stream, span, times, fps)
        order = np.argsort(stamps, kind="stable")
        seek_before(container, stream, int(stamps[order[0]]))
        for frame in container.decode(stream):
            if frame.pts is None or frame.pts < stamps[order[done]]:
                continue
            if frame.pts > stamps[order[done]]:
                break
            image = pixels.convert(frame).reshape(frame.height, frame.width, -1)
            if image.shape != pixels.shape:
                raise DatasetError(
                    f"{span.file} has frames of {image.shape}; meta/info.json gives {pixels.shape}."
                )
            while done < len(times) and stamps[order[done]] == frame.pts:
                frames[order[done]] = image
                done += 1
            if done == len(times):
                return frames
        second = float(stamps[order[done]] * stream.time_base)
    raise DatasetError(
        f"{span.file}: the frame at {second:.4f} s cannot be decoded; frame {order[done]} of the episode."
    )
