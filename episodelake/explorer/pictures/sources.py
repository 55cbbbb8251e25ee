"""Where the frames of an episode come from: recorded images, decoded in chunks ahead, or a replay.

A replay runs forward only, so its frames are kept, compressed.
"""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import Episode
from ...errors import EnvUnavailableError, EpisodelakeError
from ...plugin import DatasetFacts, RunEnv, require
from ...readers.pictures.images import EncodedPart, encoded_part, image_column, image_columns
from ...readers.pictures.video import FASTEST, REPLAY, is_played, recorded_fps
from .served import offered

#: The most bytes of frames that a replay keeps; it stops there.
MOST_BYTES = 256_000_000


@dataclass(frozen=True)
class Picture:
    """A frame.

    Attributes:
        data: the image as a file.
        kind: "png", or "jpeg" of a large frame that passes by.
        t: the step that it shows.
        difference: where a replay first differs from the recording, at this step or before; None if it does
            not, and for recorded images.
    """

    data: bytes
    kind: str
    t: int
    difference: str | None = None

    @property
    def url(self) -> str:
        """The image as the address of an element."""
        return f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"


class FrameSource:
    """Where the frames of an episode come from.

    Args:
        name: of the camera, or "replay".
        count: of the frames.
        last: the last t of the episode.
        rows: of a pack.
        lossy: pictures of a pack are not exact.
        encoded: there are packets, too.
    """

    def __init__(
        self,
        name: str,
        *,
        count: int,
        last: int,
        rows: int,
        lossy: bool = False,
        encoded: bool = False,
    ) -> None:
        self.name = name
        self.count = count
        #: What the browser has to know.
        self.props = {
            **{"url": offered(self), "zero": 0, "count": count, "last": last},
            **{"rows": rows, "lossy": lossy, "encoded": encoded},
        }

    def picture(self, t: int, *, passing: bool = False) -> Picture:
        """Return the frame of a step; of one that is passing by, a large one may lose some quality."""
        raise NotImplementedError

    def packed(self, first: int, *, want: str) -> bytes:
        """Return frames from a step on as one file.

        It begins with the size of the head as four bytes, the lowest first. The head is JSON: `frames` with
        t, size and difference of each picture, and `problem`, why there are none. The pictures follow. A head
        with `codec` has packets instead, in the order of decoding, with `key` of keyframes.

        Args:
            first: the step.
            want: "pictures"; "exact", only the first, without any loss; or "packets", of which there may be
                none.
        """
        exact = want == "exact"
        steps = range(first, min(first + (1 if exact else self.props["rows"]), self.count))
        problem, pictures = "", []
        try:
            packets = self.packets(steps) if want == "packets" else None
            if packets is not None:
                return _pack(*packets)
            pictures = [self.picture(t, passing=not exact) for t in steps]
        except EpisodelakeError as error:
            problem = str(error)
        facts = [{"t": each.t, "size": len(each.data), "difference": each.difference} for each in pictures]
        return _pack({"frames": facts, "problem": problem}, [each.data for each in pictures])

    def packets(self, steps: range) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return the head and the packets that decode some steps; None where browsers cannot."""


def _pack(head: dict[str, Any], content: list[bytes]) -> bytes:
    encoded = json.dumps(head).encode()
    return b"".join((len(encoded).to_bytes(4, "little"), encoded, *content))


#: Frames are decoded in chunks of so many bytes, of which each camera keeps some: before, now and next.
CHUNK_BYTES = 16 << 20
_KEPT_CHUNKS = 3
#: Decodes frames ahead, of all pages.
_DECODERS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="explorer-frames")
#: Larger frames are sent as JPEG while they play.
_EXACT_PIXELS = 256 * 256
_THUMBNAIL = 64
#: A pack has so many pixels, and so many frames at most; packets are smaller than pictures.
_PACK_PIXELS = 2_500_000
_MOST_ROWS = 64
_PACKET_PIXELS = 8 * _PACK_PIXELS
#: The start of H.264's parameters, which have profile and level.
_H264_PROFILE = re.compile(rb"\x00\x00\x01[\x07\x27\x47\x67](...)", re.DOTALL)
_AV1 = "av01.0.08M.08"
_REPLAYED_ROWS = 16


class RecordedPictures(FrameSource):
    """Recorded images, decoded a chunk ahead.

    Args:
        episode: of one agent.
        column: the image.
        encoded: the store has packets that browsers decode.
    """

    def __init__(self, episode: Episode, column: str, *, encoded: bool = False) -> None:
        self._episode = episode
        self._column = column
        self._image = image = image_column(episode._own_schema, column, None)
        height, width = (image.leaf.shape[image.layout.index(axis)] for axis in "HW")
        pixels, least = (_PACKET_PIXELS, 16) if encoded else (_PACK_PIXELS, 4)
        self._rows = max(1, CHUNK_BYTES // (3 * height * width))
        super().__init__(
            column.removeprefix(f"{episode._own_schema.observation.root}."),
            count=episode._observation_count,
            last=episode.length,
            rows=min(_MOST_ROWS, max(least, pixels // (height * width))),
            lossy=height * width > _EXACT_PIXELS,
            encoded=encoded,
        )
        self._lock = threading.Lock()
        self._part_lock = threading.Lock()
        self._part: EncodedPart | None = None
        self._chunks: dict[int, Future[np.ndarray]] = {}

    def picture(self, t: int, *, passing: bool = False) -> Picture:
        """Return the image that was observed at t, or the last one if that of the last step is missing.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        seen = min(t, self.count - 1)
        number, row = divmod(seen, self._rows)
        frames = self._chunk(number)
        if (number + 1) * self._rows < self.count:
            self._chunk(number + 1)
        return _picture(frames.result()[row], seen, passing=passing)

    def _chunk(self, number: int) -> Future[np.ndarray]:
        """Return a chunk that is decoded or will be; the chunks that were asked for last stay."""
        start = number * self._rows
        with self._lock:
            chunk = self._chunks.pop(number, None)
            # A failure may pass, such as one of a file server.
            if chunk is None or (chunk.done() and chunk.exception() is not None):
                rows = slice(start, min(start + self._rows, self.count))
                chunk = _DECODERS.submit(self._episode.frames, rows, column=self._column)
            self._chunks[number] = chunk
            while len(self._chunks) > _KEPT_CHUNKS:
                del self._chunks[next(iter(self._chunks))]
        return chunk

    def packets(self, steps: range) -> tuple[dict[str, Any], list[bytes]] | None:
        """Return packets of the row group that has the first step; see `FrameSource.packets`.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        if not self.props["encoded"] or not steps:
            return None
        head: dict[str, Any] = {"codec": "", "frames": []}
        content: list[bytes] = []
        at = steps.start
        while at < steps.stop:
            part = self._part_of(at)
            packets = part.packets(at - part.first, steps.stop - part.first)
            codec = packets and _codec_of(packets)
            if not packets or not codec or (content and codec != head["codec"]):
                return None
            head["codec"] = codec
            shown = (packets.shown + part.first).tolist()
            facts = zip(shown, packets.packets, packets.keys.tolist(), strict=True)
            head["frames"] += [{"t": t, "size": len(data), "key": key} for t, data, key in facts]
            content += packets.packets
            at = part.first + len(part.frames)
        return head, content

    def _part_of(self, t: int) -> EncodedPart:
        """Return the row group of a step; the last one stays in memory."""
        with self._part_lock:
            part = self._part
            if part is None or not part.first <= t < part.first + len(part.frames):
                self._part = part = encoded_part(self._episode, self._image, t)
        return part

    def thumbnails(self, most: int) -> list[tuple[int, str]]:
        """Return evenly spaced steps with their images, small, as addresses of data.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        steps = np.unique(np.linspace(0, self.count - 1, most).round().astype(int)).tolist()
        video = self._episode.video(steps, column=self._column)
        return [(t, _picture(_small(frame), t, passing=True).url) for t, frame in video]


def _codec_of(packets: Any) -> str | None:
    """Return what browsers call the codec, with the profile of H.264; None of one that few decode."""
    profile = _H264_PROFILE.search(packets.packets[0]) if packets.codec == "h264" else None
    return f"avc1.{profile[1].hex()}" if profile else {"av1": _AV1}.get(packets.codec)


def _small(frame: np.ndarray) -> np.ndarray:
    """Return every so many pixels of a frame."""
    every = max(1, min(frame.shape[:2]) // _THUMBNAIL)
    return np.ascontiguousarray(frame[::every, ::every])


class ReplayedPictures(FrameSource):
    """Frames that the environment renders while it replays the recorded actions.

    All of it happens in one thread, since renderers belong to the thread that made them.

    Args:
        episode: of one agent.

    Raises:
        NothingToDrawError: the environment cannot be made again without trust; the message says why.
    """

    def __init__(self, episode: Episode) -> None:
        super().__init__(REPLAY, count=episode.length + 1, last=episode.length, rows=_REPLAYED_ROWS)
        self._kept: list[Picture] = []
        self._size = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="episodelake-replay")
        weakref.finalize(self, self._thread.shutdown, wait=False)
        self._video = self._thread.submit(episode.video).result()
        self._frames: Iterator[tuple[int, np.ndarray]] = iter(self._video)

    def picture(self, t: int, *, passing: bool = False) -> Picture:
        """Return the frame of a step; the last one that there is if the replay ended before.

        Raises:
            EnvUnavailableError: the environment renders nothing.
        """
        return self._thread.submit(self._played, t).result()

    def _played(self, t: int) -> Picture:
        while len(self._kept) <= t and self._size < MOST_BYTES:
            following = next(self._frames, None)
            if following is None:
                break
            report = self._video.report
            difference = report and report.first_difference
            picture = _picture(following[1], following[0], difference and str(difference))
            self._kept.append(picture)
            self._size += len(picture.data)
        if not self._kept:
            raise EnvUnavailableError("The environment rendered no frame.")
        return self._kept[min(t, len(self._kept) - 1)]


def frame_sources(episode: Episode, *, replayed: bool, encoded: bool = True) -> list[FrameSource]:
    """Return where the frames of an episode come from: each recorded camera, or a replay, or none.

    Args:
        episode: of one agent, or of several, which have frames by agent only.
        replayed: make the environment again (never with trust) where no images were recorded.
        encoded: send packets of encoded columns as they are.

    Raises:
        NothingToDrawError: it was to be replayed, and cannot be.
    """
    if episode.agents:
        return []
    cameras = [
        RecordedPictures(episode, column, encoded=encoded and is_played(episode.schema, column))
        for column in image_columns(episode._own_schema)
    ]
    return [*cameras] or ([ReplayedPictures(episode)] if replayed else [])


def rate_of(episode: Episode, fps: Any) -> float:
    """Return how many steps an episode has in a second: the `fps` of its run, of the card, or of its
    environment.

    Args:
        fps: that of the card.
    """
    facts = DatasetFacts.of(episode._rows.snapshot)
    rate = facts.rates({"fps": fps}, [episode.run_id])[episode.run_id]
    return rate if rate is not None and rate <= FASTEST else recorded_fps(episode)


def has_environment(episode: Episode) -> bool:
    """Return whether the record of its run suffices to replay an episode of one agent."""
    environment = RunEnv.of_runs(episode._rows.snapshot).get(episode.run_id)
    return not episode.agents and environment is not None and environment.spec is not None


def _picture(frame: np.ndarray, t: int, difference: str | None = None, *, passing: bool = False) -> Picture:
    image = require("PIL.Image", "A frame").fromarray(frame)
    file = io.BytesIO()
    kind = "jpeg" if passing and image.width * image.height > _EXACT_PIXELS else "png"
    image.save(file, kind, **({"quality": 90} if kind == "jpeg" else {"compress_level": 1}))
    return Picture(file.getvalue(), kind, t, difference)
