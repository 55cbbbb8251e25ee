"""Frames for the slider: the recorded image at t, or the rendering of a replay.

Recorded images are decoded for one t at a time. A replay runs forward only, so its frames are kept,
compressed.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..readers.episode import Episode
from ..readers.pictures.images import image_columns
from ..store.errors import EnvUnavailableError
from ..store.optional_packages import EXPLORE, require

#: The most bytes of frames that a replay keeps; it stops there.
MOST_BYTES = 256_000_000


@dataclass(frozen=True)
class Picture:
    """A frame.

    Attributes:
        png: the image as a PNG file.
        width, height: in pixels.
        t: the step that it shows.
    """

    png: bytes
    width: int
    height: int
    t: int


class FrameSource(Protocol):
    """Where the frames of an episode come from."""

    def picture(self, t: int) -> Picture:
        """Return the frame of a step."""
        ...


class RecordedPictures:
    """Recorded images.

    Args:
        episode: of one agent.
        column: the image.
    """

    def __init__(self, episode: Episode, column: str) -> None:
        self._episode = episode
        self._column = column

    def picture(self, t: int) -> Picture:
        """Return the image that was observed at t, or the last one if that of the last step is missing.

        Raises:
            CorruptStoreError: the file is damaged.
        """
        seen = min(t, self._episode._observation_count - 1)
        return _picture(self._episode.frames(seen, column=self._column)[0], seen)


class ReplayedPictures:
    """Frames that the environment renders while it replays the recorded actions.

    All of it happens in one thread, since renderers belong to the thread that made them.

    Args:
        episode: of one agent.

    Raises:
        NothingToDrawError: the environment cannot be made again without trust; the message says why.
    """

    def __init__(self, episode: Episode) -> None:
        self._kept: list[Picture] = []
        self._size = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="episodelake-replay")
        weakref.finalize(self, self._thread.shutdown, wait=False)
        self._frames: Iterator[tuple[int, np.ndarray]] = self._thread.submit(
            lambda: iter(episode.video())
        ).result()

    def picture(self, t: int) -> Picture:
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
            picture = _picture(following[1], following[0])
            self._kept.append(picture)
            self._size += len(picture.png)
        if not self._kept:
            raise EnvUnavailableError("The environment rendered no frame.")
        return self._kept[min(t, len(self._kept) - 1)]


def frame_source(episode: Episode, *, replayed: bool) -> FrameSource | None:
    """Return where the frames of an episode come from; None if there are none.

    Args:
        episode: of one agent, or of several, which have frames by agent only.
        replayed: make the environment again (never with trust) where no images were recorded.

    Raises:
        NothingToDrawError: it was to be replayed, and cannot be.
    """
    if episode.agents:
        return None
    columns = image_columns(episode._own_schema)
    if columns:
        return RecordedPictures(episode, columns[0])
    return ReplayedPictures(episode) if replayed else None


def _picture(frame: np.ndarray, t: int) -> Picture:
    image = require("PIL.Image", "A frame", EXPLORE).fromarray(frame)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return Picture(file.getvalue(), frame.shape[1], frame.shape[0], t)
