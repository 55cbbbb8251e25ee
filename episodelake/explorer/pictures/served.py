"""Files that the browser draws frames from: video files of packets of the store, and packs of pictures."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastapi
from starlette.responses import FileResponse

from ... import Episode
from ...errors import EpisodelakeError
from ...plugin.files import temporary_folder
from ...readers.pictures.video import FPS, copied_mp4

#: What the browser is sent instead of a video that cannot be made: it reports an error, and gets pictures.
_NONE = 404
#: Packs that are made at the same time.
_PACKERS = 4
#: Frames stay out of the browser's cache on disk, as the page itself does.
_HEADERS = {"cache-control": "no-store"}


class CameraVideo:
    """The frames of a camera of an episode as one video; the file is made when the browser asks for it.

    Args:
        episode: of one agent.
        column: of frames that the store encodes.
    """

    def __init__(self, episode: Episode, column: str) -> None:
        self._episode = episode
        self._column = column
        self._lock = threading.Lock()
        self._folder: TemporaryDirectory[str] | None = None
        self._made = False
        self.url = offered(self)

    def file(self) -> Path | None:
        """Return the file, which lives as long as this object; None where the frames have to be decoded.

        The next call tries again what failed.
        """
        with self._lock:
            if not self._made:
                self._folder = folder = temporary_folder("episodelake-video-")
                try:
                    self._made = copied_mp4(self._episode, self._column, _file_in(folder), FPS)
                finally:
                    if not self._made:
                        self.remove()
            return None if self._folder is None else _file_in(self._folder)

    def remove(self) -> None:
        """Delete the file, if there is one; one that is being made is given up."""
        self._made = False
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()


def _file_in(folder: TemporaryDirectory[str]) -> Path:
    return Path(folder.name) / "video.mp4"


_FOLDER = "frames"
#: By the last part of the address, the videos and the cameras of all open pages.
_OPEN: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def offered(frames: object) -> str:
    """Return the address at which the browser finds frames, as long as they are referred to.

    Args:
        frames: with `file` of a video, `packed` of a camera, or `sheet` of the episodes of a store.
    """
    key = secrets.token_urlsafe(16)
    _OPEN[key] = frames
    return f"{_FOLDER}/{key}"


class _SentVideo(FileResponse):
    """A file, or ranges of it. It is opened after the route has returned, so this keeps the video."""

    def __init__(self, video: CameraVideo, path: Path) -> None:
        super().__init__(path, headers=_HEADERS, media_type="video/mp4")
        self._video = video


def add_frames(application: fastapi.FastAPI) -> None:
    """Give an application the files of all videos, of which browsers ask for ranges, packs, and sheets."""
    # Sheets are made one at a time: the episode that is open comes first.
    packs, sheets = ThreadPoolExecutor(_PACKERS), ThreadPoolExecutor(1)

    @contextlib.asynccontextmanager
    async def ending(_: fastapi.FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for executor in (packs, sheets):
                executor.shutdown(wait=False, cancel_futures=True)
            # A signal may end the process without finalizers.
            for video in list(_OPEN.values()):
                if isinstance(video, CameraVideo):
                    video.remove()

    router = fastapi.APIRouter(lifespan=ending)

    @router.api_route(f"/{_FOLDER}/{{key}}", methods=["GET", "HEAD"], include_in_schema=False)
    def send_video(key: str) -> fastapi.Response:
        video = _OPEN.get(key)
        try:
            path = None if video is None else video.file()
        except (EpisodelakeError, OSError):  # Pictures need no file, and show what is wrong with frames.
            path = None
        if video is None or path is None:
            return fastapi.Response(status_code=_NONE, headers=_HEADERS)
        return _SentVideo(video, path)

    async def made(executor: Executor, make: Callable[[], bytes], kind: str) -> fastapi.Response:
        content = b""
        # The server ends while it is made; or the episode itself shows what is wrong with it.
        with contextlib.suppress(asyncio.CancelledError, RuntimeError, EpisodelakeError):
            content = await asyncio.get_running_loop().run_in_executor(executor, make)
        return fastapi.Response(content, 200 if content else 204, _HEADERS, kind)

    @router.get(f"/{_FOLDER}/{{key}}/{{first}}", include_in_schema=False)
    async def send_pack(key: str, first: int, exact: bool = False) -> fastapi.Response:
        source = _OPEN.get(key) if first >= 0 else None
        pack = partial(source.packed, first, exact=exact) if source is not None else bytes
        return await made(packs, pack, "application/octet-stream")

    @router.get(f"/{_FOLDER}/{{key}}/sheet/{{episode:path}}", include_in_schema=False)
    async def send_sheet(key: str, episode: str) -> fastapi.Response:
        source = _OPEN.get(key)
        sheet = partial(source.sheet, episode) if source is not None else bytes
        return await made(sheets, sheet, "image/jpeg")

    application.include_router(router)
