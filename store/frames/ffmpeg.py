"""Frames to packets and back with FFmpeg, through PyAV."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from ..common.optional_packages import require
from ..errors import InvalidArgumentError, MissingPackageError
from ..files import access_error, is_passing
from .chunks import Chunk
from .encoding import Video
from .images import ImageShape

_ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
_DECODERS = {"h264": ("h264",), "hevc": ("hevc",), "av1": ("libdav1d", "libaom-av1")}
_RATE = 30
#: The largest block of the codecs, in pixels of a side.
_BLOCK = 128
#: Of pictures narrower than this, x265 writes past its memory in its cutree.
_NARROW = 64


@cache
def _av() -> Any:
    # SVT-AV1 prints its settings at each start.
    os.environ.setdefault("SVT_LOG", "0")
    return require("av", "Video in a store", "'episodelake[video]'")


def check_encoder(encoding: Video) -> None:
    """Raise if this machine cannot encode so.

    Raises:
        MissingPackageError: PyAV is not installed.
        InvalidArgumentError: its FFmpeg lacks the encoder.
    """
    if not encoding.lossless:
        assert encoding.codec is not None
        name = _ENCODERS[encoding.codec]
        if name not in _av().codecs_available:
            known = [codec for codec, each in _ENCODERS.items() if each in _av().codecs_available]
            raise InvalidArgumentError(
                f"This build of PyAV has no encoder {name}, which codec={encoding.codec!r} needs. It has "
                f"those of: {', '.join(known) or 'none'}."
            )


def encode(frames: np.ndarray, image: ImageShape, encoding: Video) -> Iterator[Chunk]:
    """Yield the chunks of consecutive frames; each begins with a keyframe and refers to no other.

    Args:
        frames: uint8, (n, *image.shape), n at least 1.
        image: the shape of a frame.
        encoding: with a codec.
    """
    av = _av()
    assert encoding.codec is not None and encoding.gop is not None
    context = av.codec.CodecContext.create(_ENCODERS[encoding.codec], "w")
    # The encoders subsample colours by two.
    height, width = (side + side % 2 for side in (image.height, image.width))
    context.height, context.width, context.pix_fmt = height, width, "yuv420p"
    context.time_base, context.framerate = Fraction(1, _RATE), Fraction(_RATE)
    context.gop_size, context.thread_count = encoding.gop, 1
    context.options = _options(encoding, width)
    open_encoder(context)
    packets: list[bytes] = []
    starts: list[int] = []
    shown: list[int] = []

    def take(made: Any) -> None:
        for packet in made:
            if packet.is_keyframe:
                starts.append(len(packets))
            packets.append(bytes(packet))
            shown.append(int(packet.pts))

    for number, frame in enumerate(frames):
        pixels = _padded(image.pixels(frame), height, width)
        picture = av.VideoFrame.from_ndarray(pixels, format="gray" if image.channels == 1 else "rgb24")
        picture.pts = number
        take(context.encode(picture))
    take(context.encode(None))
    extradata = bytes(context.extradata or b"")
    # By when they are shown: each chunk's frames come before those of the next.
    firsts = [*(min(shown[start:stop]) for start, stop in _spans(starts, len(packets))), len(frames)]
    for (start, stop), first, following in zip(
        _spans(starts, len(packets)), firsts, firsts[1:], strict=False
    ):
        yield Chunk(encoding.codec, following - first, extradata, packets[start:stop])


def open_encoder(context: Any) -> None:
    """Open an encoder, and leave the priority of threads as it was.

    SVT-AV1 makes its threads, and the one that calls it, real-time threads where it may, as for root. The
    environment, the journal and all other processes of the machine would wait for them.
    """
    if not hasattr(os, "sched_setscheduler"):
        context.open()
        return
    usual, known = (os.sched_getscheduler(0), os.sched_getparam(0)), _threads()
    try:
        context.open()
    finally:
        for thread in (0, *(_threads() - known)):
            with suppress(OSError):  # a thread may have ended
                os.sched_setscheduler(thread, *usual)


def _threads() -> set[int]:
    try:
        return {*map(int, os.listdir("/proc/self/task"))}
    except OSError:
        return set()


def _spans(starts: list[int], stop: int) -> list[tuple[int, int]]:
    return list(zip(starts, [*starts[1:], stop], strict=True))


def _options(encoding: Video, width: int) -> dict[str, str]:
    crf, gop = str(encoding.crf), encoding.gop
    match encoding.codec:
        case "h264":
            own = f"scenecut=0:open-gop=0:keyint={gop}:min-keyint={gop}:log-level=none"
            return {"preset": "veryfast", "crf": crf, "x264-params": own}
        case "hevc":
            own = f"scenecut=0:open-gop=0:keyint={gop}:min-keyint={gop}:log-level=none:pools=none"
            if width < _NARROW:
                own += ":cutree=0"
            return {"preset": "veryfast", "crf": crf, "x265-params": own}
        case _:
            return {"preset": "8", "crf": crf, "svtav1-params": "lp=1:irefresh-type=2:scd=0"}


def _padded(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    more = [(0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)][: pixels.ndim]
    if any(high for _, high in more):
        pixels = np.pad(pixels, more, mode="edge")
    return np.ascontiguousarray(pixels)


def decode(chunk: Chunk, image: ImageShape, wanted: np.ndarray) -> np.ndarray:
    """Return frames of a chunk: uint8, (n, *image.shape). Nothing behind the last of them is decoded.

    Args:
        chunk: of a codec.
        image: the shape of a frame.
        wanted: which of its frames, ascending.

    Raises:
        ValueError: the chunk is damaged, or its frames have another size.
        MemoryError, StoreUnavailableError: FFmpeg lacks memory, or what else may be there at the next call.
        MissingPackageError: PyAV is not installed, or its FFmpeg lacks the decoder.
    """
    frames = np.empty((len(wanted), *image.shape), np.uint8)
    done = 0
    for shown, picture in enumerate(_pictures(chunk, image, int(wanted[-1]) + 1)):
        if shown == wanted[done]:
            _write(picture, image, frames[done])
            done += 1
    return frames


def decode_each(chunk: Chunk, image: ImageShape, count: int) -> Iterator[np.ndarray]:
    """Yield the first frames of a chunk, as `decode` returns them, one at a time."""
    for picture in _pictures(chunk, image, count):
        frame = np.empty(image.shape, np.uint8)
        _write(picture, image, frame)
        yield frame


def _pictures(chunk: Chunk, image: ImageShape, count: int) -> Iterator[Any]:
    """Yield the first `count` pictures of a chunk in the order in which they are shown."""
    av = _av()
    context = _decoder(chunk, image)
    shown = 0
    for packet in (*chunk.packets, None):
        with _decoding():
            pictures = context.decode(None if packet is None else av.Packet(bytes(packet)))
        for picture in pictures:
            yield picture
            shown += 1
            if shown == count:
                return
    raise ValueError(f"it has {shown} frames; expected at least {count}")


def _write(picture: Any, image: ImageShape, frame: np.ndarray) -> None:
    with _decoding():
        image.write(_pixels(picture, "gray" if image.channels == 1 else "rgb24", image), frame)


def _pixels(picture: Any, form: str, image: ImageShape) -> np.ndarray:
    if not (0 <= picture.height - image.height <= 1 and 0 <= picture.width - image.width <= 1):
        raise ValueError(
            f"a frame has {picture.height} x {picture.width} pixels; expected {image.height} x {image.width}"
        )
    return picture.to_ndarray(format=form)[: image.height, : image.width]


def shown_order(chunk: Chunk, image: ImageShape) -> np.ndarray | None:
    """Return the place at which the frame of each packet is shown, int64; None if not each has one.

    Raises:
        ValueError: the chunk is damaged.
        MemoryError, StoreUnavailableError: as for `decode`.
        MissingPackageError: PyAV is not installed, or its FFmpeg lacks the decoder.
    """
    count = len(chunk.packets)
    if chunk.codec == "av1":  # a packet has what is shown at one time
        return np.arange(count)
    av = _av()
    context = _decoder(chunk, image)
    # Pixels do not matter.
    context.options |= {"skip_loop_filter": "all", "skip_idct": "all"}
    decoded: list[int] = []
    with _decoding():
        for number, packet in enumerate((*chunk.packets, None)):
            data = None if packet is None else av.Packet(bytes(packet))
            if data is not None:
                data.pts = number
            decoded += [picture.pts for picture in context.decode(data)]
    return np.argsort(decoded) if sorted(decoded) == [*range(count)] else None


@contextmanager
def _decoding() -> Iterator[None]:
    """Turn an error of FFmpeg into a `ValueError` where the chunk is to blame.

    Raises:
        MemoryError, StoreUnavailableError: the error says nothing about the chunk.
    """
    try:
        yield
    except MemoryError:
        raise
    except _av().error.FFmpegError as error:
        if is_passing(error):
            raise access_error("Could not decode frames", error, "") from error
        raise ValueError(f"FFmpeg cannot decode it: {error}") from error


def _decoder(chunk: Chunk, image: ImageShape) -> Any:
    av = _av()
    for name in _DECODERS[chunk.codec]:
        if name in av.codecs_available:
            context = av.codec.CodecContext.create(name, "r")
            if chunk.extradata:
                context.extradata = chunk.extradata
            context.thread_count = 1
            # Damaged packets may ask for gigabytes. Codecs round sides up to whole blocks.
            context.options = {
                "max_pixels": str((image.height + _BLOCK) * (image.width + _BLOCK)),
                "strict": "1",
            }
            return context
    raise MissingPackageError(
        f"This build of PyAV has no decoder of {chunk.codec}. Install another: pip install --upgrade av"
    )
