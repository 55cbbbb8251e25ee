"""Frames into files: MP4 and GIF by PyAV, PNG by Pillow, a frame at a time.

A file is written beside its place and moved there when it is whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ...store.common.optional_packages import require
from ...store.errors import InvalidArgumentError
from ...store.files import replacing
from ...store.manifest import check_outside_stores

#: Steps of an episode with their frames, uint8 (H, W, 3); at least one.
Frames = Iterable[tuple[int, np.ndarray]]
#: A `PacketStream` by part of an episode, each from a keyframe on; None for a part to be decoded.
Packets = Iterable[Any]
FORMATS = (".mp4", ".gif", ".png")
SHEET_FRAMES = 12
_SHEET_COLUMNS = 4
_SHEET_GAP = 6
_LABEL = 20
_LABEL_SIZE = 14
_SMALL_SHEET_SIDE = 120
#: Smaller frames are drawn with larger pixels.
_SMALL_SIDE = 240
#: What browsers play.
PLAYED_CODECS = ("h264", "av1")
_PLAYED_COLOURS = ("yuv420p", "yuvj420p", "gray")


def write_mp4(
    frames: Frames, path: Path, fps: float, *, lossless: bool, scale: int | None, packets: Packets | None
) -> None:
    """Write packets as they are if they are one video.

    Else write H.264; without `lossless` in the colours that every player knows, else exactly.
    """
    with _replacing(path) as temporary:
        if packets is None or not copy_mp4(packets, temporary, fps):
            _encode_mp4(frames, path, fps, temporary, lossless=lossless, scale=scale)


def copy_mp4(packets: Packets, path: Path, fps: float) -> bool:
    """Write a file of packets without decoding them; return False where it is none that browsers play."""
    av: Any = require("av", "A video")
    first: Any = None
    file: Any = None
    try:
        with contextlib.ExitStack() as stack:
            for part in packets:
                if part is None or part.codec not in PLAYED_CODECS:
                    return False
                if first is None:
                    first, file = part, part.new_file(path, _rate(fps), quick=True)
                    stack.callback(file.close)
                elif not first.takes(part):
                    return False
                file.write(part)
        if first is None:
            return False
        with av.open(str(path)) as written:
            return written.streams.video[0].pix_fmt in _PLAYED_COLOURS
    except av.error.FFmpegError:  # Those who decode the frames get to know more.
        return False


def _encode_mp4(
    frames: Frames, path: Path, fps: float, temporary: Path, *, lossless: bool, scale: int | None
) -> None:
    av: Any = require("av", "A video")
    codec, pixels, options = _encoding(av, lossless=lossless)
    with _opened(av, temporary, path, "mp4", {"movflags": "+faststart"}) as container:
        stream: Any = None
        for frame in _frames(frames, 1 if lossless and scale is None else scale):
            if stream is None:
                stream = container.add_stream(codec, rate=_rate(fps), options=options)
                stream.height, stream.width = (side + (side % 2 and not lossless) for side in frame.shape[:2])
                stream.pix_fmt = pixels
            wide = _padded(frame, stream.height, stream.width)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(wide, format="rgb24")))
        container.mux(stream.encode(None))


def _encoding(av: Any, *, lossless: bool) -> tuple[str, str, dict[str, str]]:
    """Return the codec, its pixels and its options: H.264, or without lossless MPEG-4 where PyAV has no
    H.264.

    Raises:
        InvalidArgumentError: lossless, and there is no H.264.
    """
    if lossless and "libx264rgb" in av.codecs_available:
        return "libx264rgb", "rgb24", {"qp": "0", "preset": "veryfast"}
    if lossless:
        raise InvalidArgumentError("This PyAV has no H.264, so MP4 cannot be lossless. Save a .gif or .png.")
    if "libx264" in av.codecs_available:
        return "libx264", "yuv420p", {"crf": "18", "preset": "veryfast"}
    return "mpeg4", "yuv420p", {"qscale": "2"}


def write_gif(frames: Frames, path: Path, fps: float, scale: int | None) -> None:
    """Write a GIF that repeats for ever; each frame with colours of its own, exact up to 256 of them."""
    av: Any = require("av", "A GIF")
    with _replacing(path) as temporary, _opened(av, temporary, path, "gif", {"loop": "0"}) as container:
        stream: Any = None
        for index, frame in enumerate(_frames(frames, scale)):
            if stream is None:
                stream = container.add_stream("gif", rate=_rate(fps))
                stream.height, stream.width = frame.shape[:2]
                stream.pix_fmt = "pal8"
                stream.time_base = stream.codec_context.time_base = Fraction(1, 100)
            coloured = av.VideoFrame.from_ndarray(_palette(frame), format="pal8")
            coloured.pts = round(index * max(100 / fps, 2))
            coloured.time_base = Fraction(1, 100)
            container.mux(stream.encode(coloured))
        container.mux(stream.encode(None))


def write_png(frames: Frames, path: Path, scale: int | None) -> None:
    """Write a single frame, or a sheet of several with their steps below."""
    images: Any = require("PIL.Image", "A PNG")
    chosen = list(frames)
    single = len(chosen) == 1
    picture = images.fromarray(*_frames(chosen, scale)) if single else _sheet(images, chosen, scale)
    with _replacing(path) as temporary:
        picture.save(temporary, format="png")


def _sheet(images: Any, frames: Frames, scale: int | None) -> Any:
    """Return a contact sheet without a background."""
    drawing: Any = require("PIL.ImageDraw", "A PNG")
    font = require("PIL.ImageFont", "A PNG").load_default(size=_LABEL_SIZE)
    numbered = list(_numbered(frames, scale, _SMALL_SHEET_SIDE))
    height, width = numbered[0][1].shape[:2]
    columns = min(_SHEET_COLUMNS, len(numbered))
    rows = -(-len(numbered) // columns)
    size = (columns * (width + _SHEET_GAP) - _SHEET_GAP, rows * (height + _LABEL + _SHEET_GAP) - _SHEET_GAP)
    sheet = images.new("RGBA", size, (0, 0, 0, 0))
    pen = drawing.Draw(sheet)
    for number, (t, frame) in enumerate(numbered):
        left = number % columns * (width + _SHEET_GAP)
        top = number // columns * (height + _LABEL + _SHEET_GAP)
        sheet.paste(images.fromarray(frame), (left, top))
        pen.text((left + 1, top + height + 1), f"t = {t}", fill=(128, 128, 128, 255), font=font)
    return sheet


def _frames(frames: Frames, scale: int | None) -> Iterator[np.ndarray]:
    return (frame for _, frame in _numbered(frames, scale))


def _numbered(frames: Frames, scale: int | None, side: int = _SMALL_SIDE) -> Iterator[tuple[int, np.ndarray]]:
    for t, frame in frames:
        factor = scale or max(1, -(-side // min(frame.shape[:2])))
        yield t, np.repeat(np.repeat(frame, factor, 0), factor, 1) if factor > 1 else frame


def _rate(fps: float) -> Fraction:
    # Slower rates would be rounded to 0.
    return Fraction(fps).limit_denominator(1001) or Fraction(1, round(1 / fps))


def _padded(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a frame with its last row and column again, where a codec wants even sides."""
    more = ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0))
    return np.pad(frame, more, mode="edge") if height > frame.shape[0] or width > frame.shape[1] else frame


def _palette(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a frame as numbers of colours, and the colours, ARGB; more than 256 become the nearest of
    256.
    """
    packed = frame.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colors, numbers = np.unique(packed, return_inverse=True)
    table = np.zeros((256, 4), np.uint8)
    table[:, 0] = 255
    if len(colors) <= 256:
        table[: len(colors), 1:] = np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1)
        return numbers.reshape(frame.shape[:2]).astype(np.uint8), table
    images: Any = require("PIL.Image", "A GIF of more than 256 colours")
    reduced = images.fromarray(frame).quantize(256, dither=images.Dither.NONE)
    palette = np.array(reduced.getpalette("RGB"), np.uint8).reshape(-1, 3)
    table[: len(palette), 1:] = palette
    return np.array(reduced), table


@contextlib.contextmanager
def _opened(av: Any, temporary: Path, path: Path, format: str, options: dict[str, str]) -> Iterator[Any]:
    try:
        with av.open(str(temporary), "w", format=format, options=options) as container:
            yield container
    except av.error.FFmpegError as error:
        raise InvalidArgumentError(
            f"{path.name} cannot be encoded: {error}. Try .gif or .png instead."
        ) from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which takes the place of `path` in the end."""
    check_outside_stores(path)
    with replacing(path, path.suffix) as draft:
        # The libraries would blame one of their own for a folder that cannot be written.
        draft.touch(exist_ok=False)
        yield draft
