"""Packets of a video file as chunks, without decoding them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from . import ffmpeg, h264_order
from .chunks import NAMES, Chunk
from .images import ImageShape
from .packet_stream import stated_order

#: FFmpeg's names of codecs that differ from ours.
_NAMES = {"h264": "h264", "hevc": "hevc", "av1": "av1", "libdav1d": "av1", "libaom-av1": "av1"}


def codec_of(stream: Any) -> str | None:
    """Return the name of a stream's codec in chunks; None if they have no such codec."""
    name = _NAMES.get(stream.codec_context.name, "")
    return name if name in NAMES else None


def copied_cells(
    around: Sequence[Any], stream: Any, stamps: np.ndarray, image: ImageShape
) -> tuple[pa.Array, bool] | None:
    """Return frames of an open video as the cells of a column, and whether headers state their order.

    If they do, the parameters of the stream are those of every group of pictures.

    Args:
        around: the packets of the frames in decoding order, and some others around them.
        stream: of PyAV.
        stamps: int64, the presentation timestamps of the frames, in units of the stream.
        image: the shape of a frame.

    Returns:
        Binary, one cell per frame. None where the frames cannot be copied: they do not begin at a keyframe,
        are not all the frames from their first to their last, are of another codec, or a decoder that begins
        at a keyframe shows others.
    """
    codec = codec_of(stream)
    if codec is None or not len(stamps) or (np.diff(stamps) <= 0).any():
        return None
    packets = _needed(around, int(stamps[0]), int(stamps[-1]))
    shown, last = [packet.pts for packet in packets], int(stamps[-1])
    if sorted(at for at in shown if at <= last) != stamps.tolist() or not packets[0].is_keyframe:
        return None
    starts = _closed_starts(packets, shown)
    extradata = bytes(stream.codec_context.extradata or b"")
    cells: list[bytes] = []
    stated = True
    for start, stop in zip(starts, [*starts[1:], len(packets)], strict=True):
        wanted = [at for at in range(start, stop) if shown[at] <= last]
        if not wanted:
            continue
        if len(wanted) >= 1 << 16:
            return None
        # Packets behind the last frame that is wanted are not needed to decode it.
        needed = wanted[-1] + 1
        chunk = Chunk(codec, len(wanted), extradata, [bytes(packet) for packet in packets[start:needed]])
        # A decoder that begins here has to show the frames in the order of the file, each once.
        ranks = h264_order.places(shown[start:needed])
        # Headers that once leave the order open, as where an encoder changes, are not asked again.
        stated = stated and _is(stated_order(chunk), ranks)
        if not stated and not _is(ffmpeg.shown_order(chunk, image), ranks):
            return None
        cells += chunk.cells(image.size)
    return pa.array(cells, pa.binary()), stated


def _is(order: np.ndarray | None, ranks: list[int]) -> bool:
    return order is not None and order.tolist() == ranks


def _needed(packets: Sequence[Any], first: int, last: int) -> list[Any]:
    """Return the packets from the one shown at `first` to what frames up to `last` need."""
    kept: list[Any] = []
    for packet in packets:
        if packet.pts is None:
            continue
        # Matroska has no decoding times; FFmpeg lacks those of the first packets.
        if packet.dts is not None and packet.dts > last:
            break
        if kept or packet.pts == first:
            kept.append(packet)
    return kept


def _closed_starts(packets: list[Any], shown: list[int]) -> list[int]:
    """Return the keyframes that no later packet is shown before: nothing after them refers further back."""
    earliest = [*accumulate(reversed(shown), min)][::-1]
    return [at for at, packet in enumerate(packets) if packet.is_keyframe and shown[at] == earliest[at]]
