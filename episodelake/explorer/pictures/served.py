"""Packs of packets or pictures, and sheets, which the browser draws frames from."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import fastapi

from ...errors import EpisodelakeError

#: Packs that are made at the same time.
_PACKERS = 4
#: Frames stay out of the browser's cache on disk, as the page itself does.
_HEADERS = {"cache-control": "no-store"}


_FOLDER = "frames"
#: By the last part of the address, the cameras and the sheets of all open pages.
_OPEN: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def offered(frames: object) -> str:
    """Return the address at which the browser finds frames, as long as they are referred to.

    Args:
        frames: with `packed` of a camera, or `sheet` of the episodes of a store.
    """
    key = secrets.token_urlsafe(16)
    _OPEN[key] = frames
    return f"{_FOLDER}/{key}"


def add_frames(application: fastapi.FastAPI) -> None:
    """Give an application the packs and sheets of all open pages."""
    packs = ThreadPoolExecutor(_PACKERS)
    # Sheets are made one at a time: the episode that is open comes first.
    sheets = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def ending(_: fastapi.FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            packs.shutdown(wait=False, cancel_futures=True)

    router = fastapi.APIRouter(lifespan=ending)

    async def made(make: Callable[[], bytes], kind: str) -> fastapi.Response:
        content = b""
        # The server ends while it is made; or the episode itself shows what is wrong with it.
        with contextlib.suppress(asyncio.CancelledError, RuntimeError, EpisodelakeError):
            content = await asyncio.get_running_loop().run_in_executor(packs, make)
        return fastapi.Response(content, 200 if content else 204, _HEADERS, kind)

    @router.get(f"/{_FOLDER}/{{key}}/{{first}}", include_in_schema=False)
    async def send_pack(key: str, first: int, want: str = "pictures") -> fastapi.Response:
        source = _OPEN.get(key) if first >= 0 else None
        pack = partial(source.packed, first, want=want) if source is not None else bytes
        return await made(pack, "application/octet-stream")

    @router.get(f"/{_FOLDER}/{{key}}/sheet/{{episode:path}}", include_in_schema=False)
    async def send_sheet(
        request: fastapi.Request, key: str, episode: str, still: bool = False
    ) -> fastapi.Response:
        source = _OPEN.get(key)
        async with sheets:
            # The page no longer shows this row.
            gone = await request.is_disconnected()
            sheet = bytes if gone or source is None else partial(source.sheet, episode, still=still)
            return await made(sheet, "image/jpeg")

    application.include_router(router)
