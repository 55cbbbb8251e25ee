"""Cameras that a store encodes, as video files: packets of the store, which only the browser decodes."""

from __future__ import annotations

import secrets
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastapi
from starlette.responses import FileResponse

from .. import Episode
from ..errors import EpisodelakeError
from ..plugin.files import temporary_folder
from ..readers.pictures.video import FPS, copied_mp4

#: What the browser is sent instead of a video that cannot be made: it reports an error, and gets pictures.
_NONE = 404


@dataclass(frozen=True)
class VideoMoment:
    """A frame of a video that the browser has; see `Picture`."""

    seconds: float
    width: int
    t: int
    difference: None = None

    def props(self, label: str) -> dict[str, Any]:
        """Return what a video has to show this."""
        return {"currentTime": self.seconds, "aria-label": label}


class CameraVideo:
    """The frames of a camera of an episode as one video; the file is made when the browser asks for it.

    Args:
        episode: of one agent.
        column: of frames that the store encodes.
        width: of a frame in pixels.
    """

    def __init__(self, episode: Episode, column: str, width: int) -> None:
        self._episode = episode
        self._column = column
        self._lock = threading.Lock()
        self._folder: TemporaryDirectory[str] | None = None
        self._made = False
        self._width = width
        key = secrets.token_urlsafe(16)
        self.url = f"{_FOLDER}/{key}"
        _OPEN[key] = self

    def at(self, t: int) -> VideoMoment:
        """Return the place of a step, or of the last frame if that of the last step is missing."""
        seen = min(t, self._episode._observation_count - 1)
        # In the middle of the time that the frame is shown.
        return VideoMoment((seen + 0.5) / FPS, self._width, seen)

    def file(self) -> Path | None:
        """Return the file, which lives as long as this object; None where the frames have to be decoded."""
        with self._lock:
            if self._folder is None:
                self._folder = temporary_folder("episodelake-video-")
                self._made = copied_mp4(self._episode, self._column, self._path, FPS)
            return self._path if self._made else None

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "video.mp4"


_FOLDER = "videos"
#: By the last part of the address, the videos of all open pages.
_OPEN: weakref.WeakValueDictionary[str, CameraVideo] = weakref.WeakValueDictionary()


def add_videos(application: fastapi.FastAPI) -> None:
    """Give an application the files of all videos, of which browsers ask for ranges."""

    @application.get(f"/{_FOLDER}/{{key}}")
    def send_video(key: str) -> fastapi.Response:
        video = _OPEN.get(key)
        try:
            path = None if video is None else video.file()
        except EpisodelakeError:  # Pictures of the same frames show what is wrong.
            path = None
        return (
            fastapi.Response(status_code=_NONE)
            if path is None
            else FileResponse(path, media_type="video/mp4")
        )
